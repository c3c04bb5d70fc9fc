//! Answers and errors as text: JSON, which both sides read quickly and without each other's types.

use leasehold_core::{Error, Matter, Result, Task, record};
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

/// An answer, or an error.
pub(crate) type Told = std::result::Result<String, String>;

/// The text of a result.
pub(crate) fn told<T: Serialize>(result: Result<T>) -> Told {
    let text = result.and_then(|answer| {
        let written = serde_json::to_string(&answer);
        written.map_err(|error| Error::new(leasehold_core::Kind::Internal, "not JSON").because(error))
    });
    text.map_err(|error| described(&error).to_string())
}

/// The text of a task.
pub(crate) fn task(result: Result<Task>) -> Told {
    result.map(|task| of_task(&task)).map_err(|error| described(&error).to_string())
}

pub(crate) fn of_task(task: &Task) -> String {
    String::from_utf8(record::write(task)).unwrap_or_default()
}

/// An error with all that Python makes of it.
pub(crate) fn described(error: &Error) -> Value {
    let mut message = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = without_body(&cause.to_string());
        // Some errors repeat what led to them.
        if !message.contains(&cause_text) {
            message = format!("{message}: {cause_text}");
        }
        source = cause.source();
    }
    json!({
        "kind": error.kind().name(),
        "matter": error.matter().map(Matter::name),
        "outcome_unknown": error.outcome_is_unknown(),
        "message": message,
    })
}

/// An error's text with the code and the message of a store's answer in place of its XML or HTML, which is of no use to
/// whoever reads an exception.
fn without_body(text: &str) -> String {
    let lower = text.to_ascii_lowercase();
    let starts = ["<?xml", "<error", "<!doctype", "<html"].into_iter().filter_map(|tag| lower.find(tag));
    let Some(start) = starts.min() else { return text.to_owned() };
    let (words, body) = text.split_at(start);
    let words = words.trim_end().trim_end_matches(':');
    let told: Vec<&str> = ["Code", "Message"].into_iter().filter_map(|name| element(body, name)).collect();
    if told.is_empty() { words.to_owned() } else { format!("{words}, {}", told.join(": ")) }
}

/// The text of an XML element, if it is there and is not empty.
fn element<'a>(body: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = body.split_once(&format!("<{name}>"))?;
    let (text, _) = rest.split_once(&format!("</{name}>"))?;
    Some(text.trim()).filter(|text| !text.is_empty())
}

/// An error as an exception, for what is refused at once.
pub(crate) fn raised(error: &Error) -> PyErr {
    Failure::new_err(described(error).to_string())
}
