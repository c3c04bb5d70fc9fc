//! `leasehold submit-many`: one JSON object per line.

use clap::Args;
use futures::StreamExt;
use leasehold_core::{Error, Kind};
use leasehold_queue::Queue;
use serde_json::json;
use std::io::{BufRead, BufReader, Read};

use super::submit::Line;
use crate::printer::{Printer, line};

#[derive(Debug, Args)]
pub(crate) struct SubmitMany {
    /// A file with one JSON object per line, or `-` for standard input
    #[arg(value_name = "FILE")]
    file: String,
    /// Put them into the inboxes of live workers, if there are any (setting `queue.dispatch_mode`)
    #[arg(long)]
    pub(crate) direct: bool,
}

pub(crate) async fn run(queue: &Queue, args: SubmitMany, printer: &Printer) -> anyhow::Result<()> {
    let source: Box<dyn Read> = if args.file == "-" {
        Box::new(std::io::stdin())
    } else {
        let opened = std::fs::File::open(&args.file);
        Box::new(opened.map_err(|error| {
            Error::invalid(format!("`{}` cannot be read: {error}", args.file)).because(error)
        })?)
    };
    // Everything is read and understood before anything is written: a mistake in line 900 submits nothing.
    let mut submits = Vec::new();
    for (number, text) in BufReader::new(source).lines().enumerate() {
        let text = text?;
        if text.trim().is_empty() {
            continue;
        }
        let place = format!("line {}", number + 1);
        let parsed: Line = serde_json::from_str(&text)
            .map_err(|error| Error::invalid(format!("{place} is not a task: {error}")))?;
        let submit = parsed.submit(queue);
        submits.push(submit.map_err(|error| Error::new(error.kind(), format!("{place}: {error}")))?);
    }
    let bar = printer.bar(submits.len() as u64, "submitting");
    let total = submits.len();
    let mut failed = 0;
    let mut results = std::pin::pin!(queue.submit_many(submits));
    while let Some(result) = results.next().await {
        bar.inc(1);
        match result {
            Ok(submitted) if printer.is_json() => {
                line(json!({"id": submitted.id, "is_new": submitted.is_new}));
            }
            Ok(_) => {}
            Err(error) => {
                failed += 1;
                if printer.is_json() {
                    line(json!({"error": error.to_string(), "outcome_unknown": error.outcome_is_unknown()}));
                } else {
                    printer.note(&format!("a task was not submitted: {error}"));
                }
            }
        }
    }
    bar.finish_and_clear();
    if failed > 0 {
        let message = format!("{failed} of {total} tasks were not submitted");
        return Err(Error::new(Kind::Unavailable, message).into());
    }
    if !printer.is_json() {
        line(format_args!("submitted {total} tasks"));
    }
    Ok(())
}
