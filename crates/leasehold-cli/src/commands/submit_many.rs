//! `leasehold submit-many`: submits tasks from a file, one JSON object per line.
//!
//! An error of one task, such as a key with another input, is reported with its line, and the other lines are submitted.
//! An error of the store stops the command: nothing new is submitted, and the error names the lines to continue with.
//! Several submits are under way at once, so lines after the first one that failed may be submitted: `--from` names
//! exactly those that are not.

use clap::Args;
use futures::StreamExt;
use leasehold_core::{Error, Kind, Status};
use leasehold_queue::{Queue, Submitted};
use serde_json::json;
use std::io::{BufRead, BufReader, Read};
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::submit::{TaskLine, submitted_json};
use crate::json::check_numbers;
use crate::printer::{Printer, line};
use crate::table::count;

#[derive(Debug, Args)]
pub(crate) struct SubmitManyArgs {
    /// File with one JSON object per line, or `-` for standard input
    #[arg(value_name = "FILE")]
    file: String,
    /// Submit only these lines, such as `58,61-64,70-`; a `-` at the end includes all lines after it
    #[arg(long, visible_alias = "lines", value_name = "LINES", default_value = "1-")]
    from: Lines,
    /// Send the tasks to the inboxes of live workers, if there are any (setting `queue.dispatch_mode`)
    #[arg(long)]
    pub(crate) direct: bool,
}

pub(crate) async fn run(queue: &Queue, args: SubmitManyArgs, printer: &Printer) -> anyhow::Result<()> {
    if args.direct {
        super::objects(queue, "submit-many --direct", super::submit::NO_INBOXES)?;
    }
    let source: Box<dyn Read> = if args.file == "-" {
        Box::new(std::io::stdin())
    } else {
        let opened = std::fs::File::open(&args.file);
        Box::new(opened.map_err(|error| {
            Error::invalid(format!("`{}` cannot be read: {error}", args.file)).because(error)
        })?)
    };
    // All lines are parsed before anything is written: a mistake in line 900 submits nothing.
    let (mut numbers, mut submits) = (Vec::new(), Vec::new());
    for (number, text) in BufReader::new(source).lines().enumerate() {
        let (number, text) = (number + 1, text?);
        if !args.from.contains(number) || text.trim().is_empty() {
            continue;
        }
        let place = format!("line {number}");
        check_numbers(&place, &text)?;
        let parsed: TaskLine = serde_json::from_str(&text)
            .map_err(|error| Error::invalid(format!("{place} is not a task: {error}")))?;
        let submit = parsed.submit(queue);
        submits.push(submit.map_err(|error| Error::new(error.kind(), format!("{place}: {error}")))?);
        numbers.push(number);
    }
    let bar = printer.bar(submits.len() as u64, "submitting");
    let is_stopped = AtomicBool::new(false);
    let mut results = Results::new(numbers.clone());
    {
        // After an error of the store, submits under way finish and no other starts. The results come in order.
        let submits = submits.into_iter().take_while(|_| !is_stopped.load(Relaxed));
        let mut submitted = std::pin::pin!(queue.submit_many(submits));
        for number in &numbers {
            let Some(result) = submitted.next().await else { break };
            bar.inc(1);
            let stops = match &result {
                Ok(_) => false,
                // An error of the whole queue, such as a missing queue.json, would happen to every other line as well.
                Err(error) => is_store_error(error) || !is_writable(queue).await,
            };
            bar.suspend(|| print(*number, &result, stops, printer));
            results.add(*number, result, stops);
            is_stopped.store(results.stopped_by.is_some(), Relaxed);
        }
    }
    bar.finish_and_clear();
    results.finish(printer)
}

/// Returns whether tasks can be submitted at present.
async fn is_writable(queue: &Queue) -> bool {
    match queue.objects() {
        Ok(objects) => objects.ensure_writable().await.is_ok(),
        Err(_) => true,
    }
}

fn print(number: usize, result: &leasehold_core::Result<Submitted>, stops: bool, printer: &Printer) {
    match result {
        Ok(submitted) if printer.is_json() => {
            let mut json = submitted_json(submitted);
            json["line"] = number.into();
            line(json);
        }
        Err(error) if printer.is_json() => line(json!({
            "line": number, "error": error.to_string(), "outcome_unknown": error.outcome_is_unknown(),
        })),
        // The id is in the message.
        Err(error) if error.outcome_is_unknown() => printer.note(&format!("line {number}: {error}")),
        // The error that stops the command is printed once, at the end.
        Err(error) if !stops => {
            printer.note(&format!("line {number} was not submitted: {error}"));
        }
        _ => {}
    }
}

/// True for an error that would happen to every other task as well.
fn is_store_error(error: &Error) -> bool {
    matches!(error.kind(), Kind::Unavailable | Kind::Denied | Kind::Internal)
}

/// Lines of a file, in ascending order.
#[derive(Debug, Clone, PartialEq)]
struct Lines(Vec<RangeInclusive<usize>>);

impl Lines {
    fn contains(&self, number: usize) -> bool {
        self.0.iter().any(|range| range.contains(&number))
    }
}

impl FromStr for Lines {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let range = |part: &str| {
            let (first, last) = match part.split_once('-') {
                None => (part.parse().ok()?, part.parse().ok()?),
                Some((first, "")) => (first.parse().ok()?, usize::MAX),
                Some((first, last)) => (first.parse().ok()?, last.parse().ok()?),
            };
            (first <= last).then_some(first..=last)
        };
        let ranges = text.split(',').map(range).collect::<Option<_>>();
        ranges.map(Self).ok_or_else(|| "expected line numbers such as `58`, `58-` or `58,61-64,70-`".into())
    }
}

/// Results so far, by line number.
#[derive(Default)]
struct Results {
    /// All lines to submit.
    numbers: Vec<usize>,
    done: Vec<usize>,
    existed: usize,
    /// Existing tasks that had failed or expired, and were not retried.
    not_retried: usize,
    failed: Vec<usize>,
    /// Failed lines that would fail again.
    refused: Vec<usize>,
    unknown: Vec<usize>,
    /// The first error of a task.
    first: Option<Error>,
    /// The first error of the store.
    stopped_by: Option<Error>,
}

impl Results {
    fn new(numbers: Vec<usize>) -> Self {
        Self { numbers, ..Self::default() }
    }

    fn add(&mut self, number: usize, result: leasehold_core::Result<Submitted>, stops: bool) {
        let error = match result {
            Ok(submitted) => {
                let has_failed = matches!(submitted.existing, Some(Status::Failed | Status::Expired));
                self.done.push(number);
                self.existed += usize::from(!submitted.is_new);
                self.not_retried += usize::from(has_failed && !submitted.is_retried);
                return;
            }
            Err(error) => error,
        };
        let numbers = if error.outcome_is_unknown() { &mut self.unknown } else { &mut self.failed };
        numbers.push(number);
        if stops {
            self.stopped_by.get_or_insert(error);
            return;
        }
        // A submit that was fenced off because it took too long can be submitted again.
        if error.kind() != Kind::Lost && !error.outcome_is_unknown() {
            self.refused.push(number);
        }
        self.first.get_or_insert(error);
    }

    fn finish(self, printer: &Printer) -> anyhow::Result<()> {
        let (total, done) = (self.numbers.len(), self.done.len());
        if let Some(error) = self.stopped_by {
            // Both are in ascending order, as the results come.
            let settled = [&self.done, &self.refused];
            let is_left = |number: &usize| settled.iter().all(|lines| lines.binary_search(number).is_err());
            let left: Vec<_> = self.numbers.iter().copied().filter(is_left).collect();
            let from = ranges(&left, ",");
            let mut unknown = String::new();
            if !self.unknown.is_empty() {
                unknown = format!(", {} with unknown outcome", self.unknown.len());
                let lines = ranges(&self.unknown, ", ");
                printer.note(&format!(
                    "outcome unknown in line {lines}; leave a line out of --from if `leasehold get ID` finds its task"
                ));
            }
            let message = format!(
                "submitted {done} of {total} tasks{unknown}, then stopped: {error}; continue with --from {from}"
            );
            return Err(Error::new(error.kind(), message).because(error).into());
        }
        if let Some(error) = self.first {
            let failed = self.failed.len() + self.unknown.len();
            let message = format!("{failed} of {total} tasks were not submitted");
            return Err(Error::new(error.kind(), message).because(error).into());
        }
        if !printer.is_json() {
            line(summary(total, self.existed, self.not_retried));
        }
        Ok(())
    }
}

/// Describes the result of a complete run.
fn summary(total: usize, existed: usize, not_retried: usize) -> String {
    let tasks = count(total as u64, "task", "tasks");
    if existed == 0 {
        return format!("submitted {tasks}");
    }
    let summary = format!("{tasks}: {} submitted, {existed} existed already", total - existed);
    match not_retried {
        0 => summary,
        1 => {
            format!("{summary}; 1 of these has failed or expired and was not retried (set key_retry_failed)")
        }
        _ => format!(
            "{summary}; {not_retried} of these have failed or expired and were not retried (set key_retry_failed)"
        ),
    }
}

/// Line numbers as text, consecutive ones as a range: `3,7-9`. [`Lines`] parses it.
fn ranges(numbers: &[usize], separator: &str) -> String {
    let runs = numbers.chunk_by(|one, next| one + 1 == *next).filter_map(|run| match run {
        [] => None,
        [one] => Some(one.to_string()),
        [first, .., last] => Some(format!("{first}-{last}")),
    });
    runs.collect::<Vec<_>>().join(separator)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_that_existed_are_not_counted_as_submitted() {
        assert_eq!(summary(10, 0, 0), "submitted 10 tasks");
        assert_eq!(summary(10, 3, 0), "10 tasks: 7 submitted, 3 existed already");
        let retry = "not retried (set key_retry_failed)";
        let one = format!(
            "1 task: 0 submitted, 1 existed already; 1 of these has failed or expired and was {retry}"
        );
        assert_eq!(summary(1, 1, 1), one);
        let two = format!(
            "10 tasks: 7 submitted, 3 existed already; 2 of these have failed or expired and were {retry}"
        );
        assert_eq!(summary(10, 3, 2), two);
    }

    /// Also when they are the rest of a run that was itself continued: lines between them are submitted already.
    #[test]
    fn the_lines_to_continue_with_are_parsed_as_they_are_printed() {
        for (left, printed) in [
            (vec![1, 2, 3, 4], "1-4"),
            (vec![4], "4"),
            (vec![58, 61, 62, 63, 64], "58,61-64"),
            (vec![2, 4, 7, 8, 9], "2,4,7-9"),
        ] {
            let text = ranges(&left, ",");
            assert_eq!(text, printed);
            let lines: Lines = text.parse().unwrap();
            let parsed: Vec<_> = (1..=100).filter(|number| lines.contains(*number)).collect();
            assert_eq!(parsed, left, "{text}");
        }
        assert!("121-".parse::<Lines>().unwrap().contains(100_000));
        assert!(!"121".parse::<Lines>().unwrap().contains(122));
        for wrong in ["", "x", "1,", "-3", "1-2-3", "1;2", "64-61"] {
            assert!(wrong.parse::<Lines>().is_err(), "{wrong}");
        }
    }
}
