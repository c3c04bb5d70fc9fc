//! `leasehold get`, `leasehold history` and `leasehold wait`: one task.

use clap::Args;
use leasehold_core::{State, Task, TaskId};
use leasehold_queue::Queue;
use std::time::Duration;

use super::submit::{json_line, seconds};
use crate::printer::{Printer, Style, line};

#[derive(Debug, Args)]
pub(crate) struct Get {
    /// The task's id
    id: TaskId,
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
    print(&queue.get(&args.id).await?, printer);
    Ok(())
}

pub(crate) async fn wait(queue: &Queue, args: &Wait, printer: &Printer) -> anyhow::Result<()> {
    let patience: Option<Duration> = args.timeout.map(|secs| seconds("timeout", secs)).transpose()?;
    print(&queue.wait(&args.id, patience).await?, printer);
    Ok(())
}

pub(crate) async fn history(queue: &Queue, args: &Get, printer: &Printer) -> anyhow::Result<()> {
    let task = queue.get(&args.id).await?;
    if printer.is_json() {
        for change in task.history.events() {
            line(serde_json::to_string(change)?);
        }
    } else {
        print_history(&task, printer);
    }
    Ok(())
}

/// A readable time line.
pub(crate) fn print_history(task: &Task, printer: &Printer) {
    line(format_args!("{} {}", printer.paint(Style::Strong, &task.id.to_string()), task.task_type));
    let folded = task.history.folded();
    for (number, change) in task.history.events().enumerate() {
        if folded > 0 && number == leasehold_core::limits::HISTORY_FIRST {
            line(format_args!("  … {folded} changes are not kept …"));
        }
        let why = change.why.as_ref().map_or(String::new(), |why| format!("  ({why})"));
        let to = printer.paint(style(change.to), change.to.name());
        let (at, event, by) = (change.at, &change.event, &change.by);
        let (attempt, epoch) = (change.attempt, change.epoch);
        line(format_args!("  {at}  {event:<10} → {to:<9}  by {by}  attempt {attempt}, epoch {epoch}{why}"));
    }
}

pub(crate) fn print(task: &Task, printer: &Printer) {
    if printer.is_json() {
        return json_line(task);
    }
    let row = |name: &str, value: &str| line(format_args!("{name:<12} {value}"));
    row("id", &task.id.to_string());
    row("type", task.task_type.as_str());
    row("status", &printer.paint(style(task.status()), task.status().name()));
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
    if let State::Completed { output, .. } = &task.state {
        row("output", &output.to_string());
    }
    if let Some(error) = &task.error {
        row("error", error);
    }
    for (key, value) in &task.tags {
        row("tag", &format!("{key}={value}"));
    }
}

pub(crate) fn style(status: leasehold_core::Status) -> Style {
    use leasehold_core::Status::{Cancelled, Completed, Expired, Failed, Pending, Purged, Running};
    match status {
        Completed => Style::Good,
        Failed | Expired => Style::Bad,
        Running => Style::Strong,
        Pending | Cancelled | Purged => Style::Plain,
    }
}
