//! `leasehold get`, `leasehold history` and `leasehold wait`: one task.

use clap::Args;
use leasehold_core::limits::HISTORY_FIRST;
use leasehold_core::task::Change;
use leasehold_core::{Error, Kind, Result, State, StoreTime, Task, TaskId};
use leasehold_queue::Queue;
use std::time::Duration;

use super::submit::{json_line, seconds};
use crate::printer::{Printer, Style, escaped_lines, line};
use crate::table::{self, Cell, MOMENT, Table};

#[derive(Debug, Args)]
pub(crate) struct Get {
    /// The task's id
    pub(crate) id: TaskId,
}

#[derive(Debug, Args)]
pub(crate) struct Wait {
    /// The task's id
    id: TaskId,
    /// Give up after so long
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<f64>,
}

pub(crate) async fn get(queue: &Queue, args: &Get, printer: &Printer) -> anyhow::Result<()> {
    print(&found(queue, &args.id).await?, printer);
    Ok(())
}

pub(crate) async fn wait(queue: &Queue, args: &Wait, printer: &Printer) -> anyhow::Result<()> {
    let patience: Option<Duration> = args.timeout.map(|secs| seconds("timeout", secs)).transpose()?;
    print(&finished(queue, &args.id, patience, printer).await?, printer);
    Ok(())
}

async fn found(queue: &Queue, id: &TaskId) -> Result<Task> {
    queue.get(id).await.map_err(|error| named(queue, &error))
}

/// The task once it is final.
pub(crate) async fn finished(
    queue: &Queue,
    id: &TaskId,
    patience: Option<Duration>,
    printer: &Printer,
) -> Result<Task> {
    let spinner = printer.clock("waiting");
    let task = queue.wait(id, patience).await;
    spinner.finish_and_clear();
    task.map_err(|error| named(queue, &error))
}

/// A task that is not there may be in another queue: says in which one it was looked for.
pub(crate) fn named(queue: &Queue, error: &Error) -> Error {
    let message = match error.kind() {
        Kind::Invalid => {
            format!("{error}: {}; `leasehold list` shows what is there", queue.client().describe())
        }
        _ => error.to_string(),
    };
    Error::new(error.kind(), message)
}

pub(crate) async fn history(queue: &Queue, args: &Get, printer: &Printer) -> anyhow::Result<()> {
    let task = found(queue, &args.id).await?;
    if printer.is_json() {
        for change in task.history.events() {
            line(serde_json::to_string(change)?);
        }
    } else {
        print_history(&task, queue.now()?.earliest, printer);
    }
    Ok(())
}

/// A readable time line.
pub(crate) fn print_history(task: &Task, now: StoreTime, printer: &Printer) {
    line(format_args!("{} {}", printer.paint(Style::Strong, &task.id.to_string()), task.task_type));
    let table = Table::default().left("TIME (UTC)", MOMENT).left("EVENT", 0).left("STATUS", 0).left("BY", 0);
    let table = table.right("ATTEMPT", 0).right("EPOCH", 0).left("WHY", 0);
    let mut rows: Vec<_> = task.history.events().map(|change| history_row(change, now)).collect();
    let folded = task.history.folded();
    if folded > 0 {
        rows.insert(HISTORY_FIRST, vec!["…".into(), format!("{folded} changes are not kept").into()]);
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
        change.why.as_deref().unwrap_or_default().into(),
    ]
}

pub(crate) fn print(task: &Task, printer: &Printer) {
    if printer.is_json() {
        return json_line(task);
    }
    let row = |name: &str, value: &str| {
        let value = escaped_lines(value);
        let mut lines = value.lines();
        line(format_args!("{name:<12} {}", lines.next().unwrap_or_default()));
        lines.for_each(|more| line(format_args!("{:<12} {more}", "")));
    };
    row("id", &task.id.to_string());
    row("type", task.task_type.as_str());
    let status = printer.paint(table::colour(task.status()), task.status().name());
    line(format_args!("{:<12} {status}", "status"));
    row("attempt", &format!("{} of {}", task.attempt, task.max_attempts));
    row("created", &task.created_at.to_string());
    match &task.state {
        State::Pending { available_at } => row("available", &available_at.to_string()),
        State::Running(claim) => {
            row("worker", claim.by.as_str());
            row("lease until", &claim.expires_at.to_string());
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
        row("error", error);
    }
    for (key, value) in &task.tags {
        row("tag", &format!("{key}={value}"));
    }
}
