//! `leasehold get`, `leasehold history` and `leasehold wait`: show one task.

use clap::Args;
use leasehold_core::limits::HISTORY_FIRST;
use leasehold_core::task::{Change, summary_line};
use leasehold_core::{Error, Kind, Result, State, Status, StoreTime, Task, TaskId};
use leasehold_queue::Queue;
use serde_json::Value;
use std::fmt;
use std::time::Duration;

use super::submit::json_line;
use super::task_ref::TaskRef;
use crate::durations::duration;
use crate::printer::{Printer, Style, escaped_lines, line};
use crate::table::{self, Cell, MOMENT, TextTable};

#[derive(Debug, Args)]
pub(crate) struct GetArgs {
    /// Task id, or a prefix of at least 4 characters
    pub(crate) id: TaskRef,
}

#[derive(Debug, Args)]
pub(crate) struct WaitArgs {
    /// Task id, or a prefix of at least 4 characters
    id: TaskRef,
    /// Give up after this time, in seconds, or with a unit such as 5m, 12h [default: never]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    timeout: Option<Duration>,
    /// Print only the output of the completed task, as JSON
    #[arg(long)]
    output: bool,
}

/// Error of a wait for a task that was not completed. Its exit code is that of the task's status.
#[derive(Debug)]
pub(crate) struct TaskEnded {
    pub(crate) status: Status,
    message: String,
}

impl fmt::Display for TaskEnded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for TaskEnded {}

pub(crate) async fn get(queue: &Queue, args: &GetArgs, printer: &Printer) -> anyhow::Result<()> {
    print(&find_task(queue, &args.id).await?, printer);
    Ok(())
}

pub(crate) async fn wait(queue: &Queue, args: &WaitArgs, printer: &Printer) -> anyhow::Result<()> {
    let id = args.id.resolve(queue).await?;
    let task = wait_until_final(queue, &id, args.timeout, printer).await?;
    print_result(&task, args.output, printer)
}

/// Prints a final task, or only its output. Returns an error unless the task was completed.
pub(crate) fn print_result(task: &Task, is_only_output: bool, printer: &Printer) -> anyhow::Result<()> {
    match (is_only_output, task.output()) {
        (false, _) => print(task, printer),
        (true, Some(output)) => line(output),
        (true, None) => {}
    }
    let reason = summary(task.error.as_deref().unwrap_or("no reason given"));
    let message = match task.status() {
        Status::Completed => return Ok(()),
        Status::Failed => format!("task {} failed: {reason}", task.id),
        Status::Expired => format!("task {} expired before it was started", task.id),
        status => format!("task {} was {status}", task.id),
    };
    Err(TaskEnded { status: task.status(), message }.into())
}

/// Summary of a reason, with an ellipsis if it has other lines.
fn summary(reason: &str) -> String {
    let line = summary_line(reason);
    if line == reason.trim() { line.to_owned() } else { format!("{line} …") }
}

async fn find_task(queue: &Queue, id: &TaskRef) -> Result<Task> {
    queue.get(&id.resolve(queue).await?).await.map_err(|error| with_queue_name(queue, &error))
}

/// Waits until a task is final.
pub(crate) async fn wait_until_final(
    queue: &Queue,
    id: &TaskId,
    timeout: Option<Duration>,
    printer: &Printer,
) -> Result<Task> {
    let spinner = printer.clock("waiting");
    let task = queue.wait(id, timeout).await;
    spinner.finish_and_clear();
    task.map_err(|error| with_queue_name(queue, &error))
}

/// Adds the queue to an error about a missing task, which may be in another queue.
pub(crate) fn with_queue_name(queue: &Queue, error: &Error) -> Error {
    let message = match (error.kind(), error.to_string()) {
        (Kind::Invalid, text) => {
            let what = text.strip_suffix(" in this queue").unwrap_or(&text);
            format!("{what} in {}; list its tasks with `leasehold list`", queue.describe())
        }
        (_, text) => text,
    };
    Error::new(error.kind(), message)
}

pub(crate) async fn history(queue: &Queue, args: &GetArgs, printer: &Printer) -> anyhow::Result<()> {
    let task = find_task(queue, &args.id).await?;
    if printer.is_json() {
        for change in task.history.events() {
            line(serde_json::to_string(change)?);
        }
    } else {
        print_history(&task, queue.now()?.earliest, printer);
    }
    Ok(())
}

/// Prints the history of a task as a table.
pub(crate) fn print_history(task: &Task, now: StoreTime, printer: &Printer) {
    line(format_args!("{} {}", printer.paint(Style::Strong, &task.id.to_string()), task.task_type));
    let table =
        TextTable::default().left("TIME (UTC)", MOMENT).left("EVENT", 0).left("STATUS", 0).left("BY", 0);
    let table = table.right("ATTEMPT", 0).right("EPOCH", 0).left("REASON", 0);
    let mut rows: Vec<_> = task.history.events().map(|change| history_row(change, now)).collect();
    let folded = task.history.folded();
    if folded > 0 {
        rows.insert(HISTORY_FIRST, vec!["…".into(), format!("{folded} changes omitted").into()]);
    }
    table.rows(&rows, printer);
}

fn history_row(change: &Change, now: StoreTime) -> Vec<Cell> {
    vec![
        table::moment(change.at, now).into(),
        change.event.as_str().into(),
        table::status(change.to),
        change.by.as_str().into(),
        change.attempt.into(),
        change.epoch.into(),
        summary(change.why.as_deref().unwrap_or_default()).into(),
    ]
}

pub(crate) fn print(task: &Task, printer: &Printer) {
    if printer.is_json() {
        return json_line(task);
    }
    let row = |name: &str, value: &str| {
        let value = escaped_lines(value.trim_end());
        for (number, text) in value.split('\n').enumerate() {
            let name = if number == 0 { name } else { "" };
            line(format_args!("{name:<12} {text}").to_string().trim_end());
        }
    };
    row("id", &task.id.to_string());
    row("type", task.task_type.as_str());
    let status = printer.paint(table::colour(task.status()), task.status().name());
    line(format_args!("{:<12} {status}", "status"));
    row("attempt", &format!("{} of {}", task.attempt, task.max_attempts));
    row("created", &task.created_at.to_string());
    match &task.state {
        State::Pending { available_at } => row("due", &available_at.to_string()),
        State::Running(claim) => {
            row("worker", claim.by.as_str());
            row("claim until", &claim.expires_at.to_string());
            if let Some(progress) = &task.progress {
                row("progress", &progress_line(progress));
            }
        }
        state => row("finished", &state.finished_at().map_or(String::new(), |at| at.to_string())),
    }
    row("input", &task.input.to_string());
    for (name, artifact) in &task.artifacts {
        row("artifact", &format!("{name}={artifact}"));
    }
    if let State::Completed { output, results, .. } = &task.state {
        row("output", &output.to_string());
        for (name, artifact) in results {
            row("result", &format!("{name}={artifact}"));
        }
    }
    if let Some(error) = &task.error {
        // After a retry it is the error of an earlier attempt.
        row(if task.status() == Status::Failed { "error" } else { "last error" }, error);
    }
    for (key, value) in &task.tags {
        row("tag", &format!("{key}={value}"));
    }
}

/// Progress of a handler: a bar if it has a number `percent`, then the whole value.
fn progress_line(progress: &Value) -> String {
    const WIDTH: usize = 20;
    let Some(percent) = progress.get("percent").and_then(Value::as_f64) else { return progress.to_string() };
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to 20")]
    let full = (percent.clamp(0.0, 100.0) / 5.0).round() as usize;
    format!("[{}{}] {percent:.0} %  {progress}", "#".repeat(full), "-".repeat(WIDTH - full))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn progress_in_percent_is_a_bar() {
        for (progress, shown) in [
            (json!({"percent": 0}), r#"[--------------------] 0 %  {"percent":0}"#),
            (
                json!({"percent": 49.6, "step": 2}),
                r#"[##########----------] 50 %  {"percent":49.6,"step":2}"#,
            ),
            (json!({"percent": 250}), r#"[####################] 250 %  {"percent":250}"#),
            (json!({"percent": "half"}), r#"{"percent":"half"}"#),
            (json!(7), "7"),
        ] {
            assert_eq!(progress_line(&progress), shown);
        }
    }

    #[test]
    fn a_reason_of_several_lines_is_summarized_in_one() {
        assert_eq!(summary("no luck"), "no luck");
        assert_eq!(summary("Traceback:\r\n  line 3\r\nOSError: no\r\n"), "OSError: no …");
        assert_eq!(summary(" no luck\n"), "no luck");
        assert_eq!(summary(""), "");
    }
}
