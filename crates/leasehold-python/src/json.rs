//! Results and errors as JSON text, which both sides parse quickly and without shared types.

use leasehold_core::{Error, Reason, Result, Task, record};
use pyo3::PyErr;
use pyo3::exceptions::PyException;
use serde::Serialize;
use serde_json::{Value, json};
use std::error::Error as _;

pyo3::create_exception!(
    _native,
    Failure,
    PyException,
    "An error as JSON; the package raises its own instead."
);

/// JSON text of a result or of an error.
pub(crate) type JsonAnswer = std::result::Result<String, String>;

/// Encodes a result.
pub(crate) fn encode<T: Serialize>(result: Result<T>) -> JsonAnswer {
    let text = result.and_then(|answer| {
        let written = serde_json::to_string(&answer);
        written.map_err(|error| {
            Error::new(leasehold_core::Kind::Internal, "failed to encode the answer as JSON").because(error)
        })
    });
    text.map_err(|error| describe_error(&error).to_string())
}

/// Encodes a task.
pub(crate) fn encode_task_result(result: Result<Task>) -> JsonAnswer {
    result.map(|task| encode_task(&task)).map_err(|error| describe_error(&error).to_string())
}

pub(crate) fn encode_task(task: &Task) -> String {
    String::from_utf8(record::write(task)).unwrap_or_default()
}

/// Describes an error with all that Python needs to raise an exception.
pub(crate) fn describe_error(error: &Error) -> Value {
    let mut message = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = without_body(&cause.to_string());
        // Some errors repeat their cause.
        if !message.contains(&cause_text) {
            message = format!("{message}: {cause_text}");
        }
        source = cause.source();
    }
    json!({
        "kind": error.kind().name(),
        "reason": error.reason().map(Reason::name),
        "outcome_unknown": error.outcome_is_unknown(),
        "message": message,
    })
}

/// Replaces the XML or HTML of a store's response in an error text with its code and message, which are readable in an
/// exception.
fn without_body(text: &str) -> String {
    let lower = text.to_ascii_lowercase();
    let starts = ["<?xml", "<error", "<!doctype", "<html"].into_iter().filter_map(|tag| lower.find(tag));
    let Some(start) = starts.min() else { return text.to_owned() };
    let (words, body) = text.split_at(start);
    let words = words.trim_end().trim_end_matches(':');
    let parts: Vec<&str> = ["Code", "Message"].into_iter().filter_map(|name| element(body, name)).collect();
    if parts.is_empty() { words.to_owned() } else { format!("{words}, {}", parts.join(": ")) }
}

/// Returns the text of an XML element, unless it is missing or empty.
fn element<'a>(body: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = body.split_once(&format!("<{name}>"))?;
    let (text, _) = rest.split_once(&format!("</{name}>"))?;
    Some(text.trim()).filter(|text| !text.is_empty())
}

/// Converts an error to an exception, for calls that fail immediately.
pub(crate) fn exception(error: &Error) -> PyErr {
    Failure::new_err(describe_error(error).to_string())
}
