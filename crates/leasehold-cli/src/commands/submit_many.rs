//! `leasehold submit-many`: one JSON object per line.
//!
//! An error of one task, such as a key with another input, is told with its line, and the rest goes on. An error of the
//! store stops it: nothing new is submitted, and it says from which line to continue.

use clap::Args;
use futures::StreamExt;
use leasehold_core::{Error, Kind, Status};
use leasehold_queue::{Queue, Submitted};
use serde_json::json;
use std::io::{BufRead, BufReader, Read};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::submit::{Line, receipt};
use crate::json::check_numbers;
use crate::printer::{Printer, line};
use crate::table::count;

#[derive(Debug, Args)]
pub(crate) struct SubmitMany {
    /// A file with one JSON object per line, or `-` for standard input
    #[arg(value_name = "FILE")]
    file: String,
    /// Skip the lines before this one: continues after an error of the store
    #[arg(long, value_name = "LINE", default_value_t = 1)]
    from: usize,
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
    let (mut numbers, mut submits) = (Vec::new(), Vec::new());
    for (number, text) in BufReader::new(source).lines().enumerate() {
        let (number, text) = (number + 1, text?);
        if number < args.from || text.trim().is_empty() {
            continue;
        }
        let place = format!("line {number}");
        check_numbers(&place, &text)?;
        let parsed: Line = serde_json::from_str(&text)
            .map_err(|error| Error::invalid(format!("{place} is not a task: {error}")))?;
        let submit = parsed.submit(queue);
        submits.push(submit.map_err(|error| Error::new(error.kind(), format!("{place}: {error}")))?);
        numbers.push(number);
    }
    let bar = printer.bar(submits.len() as u64, "submitting");
    let is_stopped = AtomicBool::new(false);
    let mut results = Results::default();
    {
        // Those under way end; no other begins. The results come in order.
        let submits = submits.into_iter().take_while(|_| !is_stopped.load(Relaxed));
        let mut submitted = std::pin::pin!(queue.submit_many(submits));
        for number in &numbers {
            let Some(result) = submitted.next().await else { break };
            bar.inc(1);
            bar.suspend(|| print(*number, &result, printer));
            results.add(*number, result);
            is_stopped.store(results.stopped_by.is_some(), Relaxed);
        }
    }
    bar.finish_and_clear();
    results.conclude(numbers.len(), printer)
}

fn print(number: usize, result: &leasehold_core::Result<Submitted>, printer: &Printer) {
    match result {
        Ok(submitted) if printer.is_json() => {
            let mut receipt = receipt(submitted);
            receipt["line"] = number.into();
            line(receipt);
        }
        Err(error) if printer.is_json() => line(json!({
            "line": number, "error": error.to_string(), "outcome_unknown": error.outcome_is_unknown(),
        })),
        // What stops it is told once, at the end.
        Err(error) if !is_of_the_store(error) => {
            printer.note(&format!("line {number} was not submitted: {error}"));
        }
        _ => {}
    }
}

/// Whether it would happen to every other task as well.
fn is_of_the_store(error: &Error) -> bool {
    matches!(error.kind(), Kind::Unavailable | Kind::Denied | Kind::Internal)
}

/// The results so far, by the numbers of their lines.
#[derive(Default)]
struct Results {
    done: Vec<usize>,
    existed: usize,
    /// Those of them that had failed or expired, and were not retried.
    dead: usize,
    failed: Vec<usize>,
    unknown: Vec<usize>,
    /// The first error of a task.
    first: Option<Error>,
    /// The first error of the store, and its line.
    stopped_by: Option<(usize, Error)>,
}

impl Results {
    fn add(&mut self, number: usize, result: leasehold_core::Result<Submitted>) {
        let error = match result {
            Ok(submitted) => {
                let is_dead = matches!(submitted.existing, Some(Status::Failed | Status::Expired));
                self.done.push(number);
                self.existed += usize::from(!submitted.is_new);
                self.dead += usize::from(is_dead && !submitted.is_retried);
                return;
            }
            Err(error) => error,
        };
        let numbers = if error.outcome_is_unknown() { &mut self.unknown } else { &mut self.failed };
        numbers.push(number);
        if is_of_the_store(&error) {
            self.stopped_by.get_or_insert((number, error));
        } else {
            self.first.get_or_insert(error);
        }
    }

    fn conclude(self, total: usize, printer: &Printer) -> anyhow::Result<()> {
        let done = self.done.len();
        if let Some((from, error)) = self.stopped_by {
            let beyond: Vec<_> = self.done.iter().copied().filter(|number| *number > from).collect();
            if !beyond.is_empty() {
                let lines = ranges(&beyond);
                printer.note(&format!("submitted after line {from}: {lines}; empty these lines to continue"));
            }
            if !self.unknown.is_empty() {
                let lines = ranges(&self.unknown);
                printer
                    .note(&format!("outcome unknown: {lines}; `leasehold list` shows whether they are in"));
            }
            let message = format!(
                "submitted {done} of {total} tasks, then stopped: {error}; continue with --from {from}"
            );
            return Err(Error::new(error.kind(), message).because(error).into());
        }
        if let Some(error) = self.first {
            let failed = self.failed.len() + self.unknown.len();
            let message = format!("{failed} of {total} tasks were not submitted");
            return Err(Error::new(error.kind(), message).because(error).into());
        }
        if !printer.is_json() {
            let existed = match (self.existed, self.dead) {
                (0, _) => String::new(),
                (existed, 0) => format!(", {existed} of them existed"),
                (existed, dead) => format!(", {existed} of them existed, {dead} failed or expired"),
            };
            line(format_args!("submitted {}{existed}", count(total as u64, "task", "tasks")));
        }
        Ok(())
    }
}

/// Numbers of lines in words: `lines 3, 7-9`.
fn ranges(numbers: &[usize]) -> String {
    let runs = numbers.chunk_by(|one, next| one + 1 == *next).filter_map(|run| match run {
        [] => None,
        [one] => Some(one.to_string()),
        [first, .., last] => Some(format!("{first}-{last}")),
    });
    let word = if numbers.len() == 1 { "line" } else { "lines" };
    format!("{word} {}", runs.collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_told_as_ranges() {
        assert_eq!(ranges(&[7]), "line 7");
        assert_eq!(ranges(&[1, 2, 3, 5, 8, 9]), "lines 1-3, 5, 8-9");
    }
}
