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

use super::submit::{TaskLine, receipt};
use crate::json::check_numbers;
use crate::printer::{Printer, line};
use crate::table::count;

#[derive(Debug, Args)]
pub(crate) struct SubmitMany {
    /// File with one JSON object per line, or `-` for standard input
    #[arg(value_name = "FILE")]
    file: String,
    /// Submit only these lines, such as `58,61-64,70`; a single number at the end includes all lines after it
    #[arg(long, value_name = "LINES", default_value = "1")]
    from: Lines,
    /// Send the tasks to the inboxes of live workers, if there are any (setting `queue.dispatch_mode`)
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
            bar.suspend(|| print(*number, &result, printer));
            results.add(*number, result);
            is_stopped.store(results.stopped_by.is_some(), Relaxed);
        }
    }
    bar.finish_and_clear();
    results.conclude(printer)
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
        // The id is in the message.
        Err(error) if error.outcome_is_unknown() => printer.note(&format!("line {number}: {error}")),
        // The error that stops the command is printed once, at the end.
        Err(error) if !is_of_the_store(error) => {
            printer.note(&format!("line {number} was not submitted: {error}"));
        }
        _ => {}
    }
}

/// True for an error that would happen to every other task as well.
fn is_of_the_store(error: &Error) -> bool {
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
        let mut ranges: Vec<_> = text
            .split(',')
            .map(|part| {
                let (first, last) = part.split_once('-').unwrap_or((part, part));
                Some(first.parse().ok()?..=last.parse().ok()?)
            })
            .collect::<Option<_>>()
            .ok_or("expected line numbers such as `58` or `58,61-64,70`")?;
        if let Some(last) = ranges.last_mut()
            && text.rsplit(',').next().is_some_and(|part| !part.contains('-'))
        {
            *last = *last.start()..=usize::MAX;
        }
        Ok(Self(ranges))
    }
}

/// Value of `--from` for the remaining lines, in the format that [`Lines`] parses.
fn rest(numbers: &[usize], is_left: impl Fn(usize) -> bool) -> String {
    let runs = numbers.chunk_by(|one, next| is_left(*one) == is_left(*next));
    let runs = runs.filter_map(|run| match (*run.first()?, *run.last()?) {
        (first, _) if !is_left(first) => None,
        (first, last) if Some(&last) == numbers.last() => Some(first.to_string()),
        (first, last) if first == last => Some(first.to_string()),
        (first, last) => Some(format!("{first}-{last}")),
    });
    let ends_closed = numbers.last().is_some_and(|last| !is_left(*last));
    let mut runs: Vec<_> = runs.collect();
    if let Some(last) = runs.last_mut()
        && ends_closed
        && !last.contains('-')
    {
        *last = format!("{last}-{last}");
    }
    runs.join(",")
}

/// Results so far, by line number.
#[derive(Default)]
struct Results {
    /// All lines to submit.
    numbers: Vec<usize>,
    done: Vec<usize>,
    existed: usize,
    /// Existing tasks that had failed or expired, and were not retried.
    dead: usize,
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
            self.stopped_by.get_or_insert(error);
            return;
        }
        // A submit that was fenced off because it took too long can be submitted again.
        if error.kind() != Kind::Lost && !error.outcome_is_unknown() {
            self.refused.push(number);
        }
        self.first.get_or_insert(error);
    }

    fn conclude(self, printer: &Printer) -> anyhow::Result<()> {
        let (total, done) = (self.numbers.len(), self.done.len());
        if let Some(error) = self.stopped_by {
            let is_settled = |number| self.done.contains(&number) || self.refused.contains(&number);
            let from = rest(&self.numbers, |number| !is_settled(number));
            let mut unknown = String::new();
            if !self.unknown.is_empty() {
                unknown = format!(", {} with unknown outcome", self.unknown.len());
                let lines = ranges(&self.unknown);
                printer.note(&format!(
                    "outcome unknown: {lines}; leave a line out of --from if `leasehold get ID` finds its task"
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

/// Line numbers as text: `lines 3, 7-9`.
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
    fn the_lines_to_continue_with_are_parsed_as_they_are_printed() {
        for (numbers, left, printed) in [
            (vec![1, 2, 3, 4], vec![1, 2, 3, 4], "1"),
            (vec![1, 2, 3, 4], vec![4], "4"),
            (vec![1, 2, 3, 4], vec![3], "3-3"),
            (vec![1, 2, 3, 4], vec![1, 2], "1-2"),
            // Lines 3 and 6 are empty.
            (vec![1, 2, 4, 5, 7, 8, 9], vec![2, 4, 7, 9], "2-4,7,9"),
            (vec![1, 2, 4, 5, 7, 8, 9], vec![1, 5, 7], "1,5-7"),
        ] {
            let text = rest(&numbers, |number| left.contains(&number));
            assert_eq!(text, printed);
            let lines: Lines = text.parse().unwrap();
            let parsed: Vec<_> = numbers.into_iter().filter(|number| lines.contains(*number)).collect();
            assert_eq!(parsed, left, "{text}");
        }
        assert!("121".parse::<Lines>().unwrap().contains(100_000));
        for wrong in ["", "x", "1,", "1-", "-3", "1-2-3", "1;2"] {
            assert!(wrong.parse::<Lines>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn lines_are_printed_as_ranges() {
        assert_eq!(ranges(&[7]), "line 7");
        assert_eq!(ranges(&[1, 2, 3, 5, 8, 9]), "lines 1-3, 5, 8-9");
    }
}
