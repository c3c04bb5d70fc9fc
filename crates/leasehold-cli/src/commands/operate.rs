//! `leasehold cancel`, `leasehold retry`, `leasehold reschedule` and `leasehold purge`: change tasks.

use clap::Args;
use futures::{StreamExt, TryStreamExt, stream};
use indicatif::ProgressBar;
use leasehold_core::{Error, Kind, Result, Status, StoreTime, Task, TaskId};
use leasehold_queue::inspect::Stats;
use leasehold_queue::purge::{PURGE_GRACE, Purged, Retention};
use leasehold_queue::{Filter, LayoutName, Queue, Transition};
use serde::Serialize;
use serde_json::json;
use std::time::Duration;

use super::get::with_queue_name;
use super::task_ref::TaskRef;
use crate::printer::{Printer, line};
use crate::table::count;

/// Number of tasks that are changed at once: each takes several round trips to a bucket.
const AT_ONCE: usize = 32;

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct TaskSelector {
    /// Task ids, or prefixes of at least 4 characters
    #[arg(value_name = "ID")]
    pub(crate) ids: Vec<TaskRef>,
    /// All tasks of this type; each command has its own text
    #[arg(long = "type", value_name = "TYPE")]
    pub(crate) task_type: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct RescheduleArgs {
    /// Task id, or a prefix of at least 4 characters
    id: TaskRef,
    /// New start time, by the store's clock, such as 2026-12-24T18:00:00Z
    #[arg(long, value_name = "TIME")]
    at: StoreTime,
}

pub(crate) async fn cancel(queue: &Queue, which: &TaskSelector, printer: &Printer) -> anyhow::Result<()> {
    let statuses = [Status::Pending, Status::Running];
    apply_to_each(queue, which, &statuses, printer, "cancelled", async |id| {
        queue.cancel(&id).await.map_err(|error| with_queue_name(queue, &error))
    })
    .await
}

pub(crate) async fn retry(queue: &Queue, which: &TaskSelector, printer: &Printer) -> anyhow::Result<()> {
    let statuses = [Status::Failed, Status::Cancelled, Status::Expired];
    apply_to_each(queue, which, &statuses, printer, "retried", async |id| {
        queue.retry(&id).await.map_err(|error| with_queue_name(queue, &error))
    })
    .await
}

pub(crate) async fn reschedule(
    queue: &Queue,
    args: &RescheduleArgs,
    printer: &Printer,
) -> anyhow::Result<()> {
    let which = TaskSelector { ids: vec![args.id.clone()], task_type: None };
    let at = args.at;
    apply_to_each(queue, &which, &[Status::Pending], printer, "rescheduled", async |id| {
        queue.reschedule(&id, at).await
    })
    .await
}

/// Applies an operation to each task and prints its result.
async fn apply_to_each(
    queue: &Queue,
    which: &TaskSelector,
    statuses: &[Status],
    printer: &Printer,
    done: &str,
    act: impl AsyncFn(TaskId) -> Result<Transition<Task>>,
) -> anyhow::Result<()> {
    let ids = match &which.task_type {
        // All are resolved before any is changed.
        None => stream::iter(&which.ids).then(|id| id.resolve(queue)).try_collect().await?,
        Some(task_type) => find_by_type(queue, task_type, statuses, printer).await?,
    };
    if ids.is_empty() {
        let fitting = statuses.iter().map(|status| status.name()).collect::<Vec<_>>().join(" or ");
        let task_type = which.task_type.as_deref().unwrap_or_default();
        printer.note(&format!("no task of type `{task_type}` is {fitting}"));
    }
    let bar = printer.bar(ids.len() as u64, "changing");
    let (mut refused, mut reason) = (0, None);
    let act = &act;
    let acts = ids.iter().map(|id| async move { (*id, act(*id).await) });
    let mut changed = std::pin::pin!(stream::iter(acts).buffered(AT_ONCE));
    while let Some((id, operated)) = changed.next().await {
        let operated = operated?;
        refused += u64::from(!operated.is_done());
        if let Transition::Rejected(rejected, _) = &operated {
            reason = Some(rejected.to_string());
        }
        // The reason for a single task is in the error.
        if reason.is_none() || ids.len() > 1 || printer.is_json() {
            bar.suspend(|| print(id, &operated, done, printer));
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    if refused > 0 {
        let message = match (&ids[..], reason) {
            ([id], Some(reason)) => format!("task {id} could not be {done}: {reason}"),
            _ => format!("{refused} of {} could not be {done}", count(ids.len() as u64, "task", "tasks")),
        };
        return Err(Error::new(Kind::Lost, message).into());
    }
    Ok(())
}

fn print(id: TaskId, operated: &Transition<Task>, done: &str, printer: &Printer) {
    match operated {
        Transition::Done(task) if printer.is_json() => line(json!({"id": id, "status": task.status()})),
        Transition::Done(task) if task.status() == Status::Running => {
            line(format_args!("{id}: running; its worker stops it at the next renewal"));
        }
        Transition::Rejected(rejected, _) if printer.is_json() => {
            line(json!({"id": id, "refused": rejected.to_string()}));
        }
        Transition::Rejected(rejected, _) => printer.note(&format!("{id}: {rejected}")),
        _ => line(format_args!("{id}: {done}")),
    }
}

async fn find_by_type(
    queue: &Queue,
    task_type: &str,
    statuses: &[Status],
    printer: &Printer,
) -> anyhow::Result<Vec<TaskId>> {
    let spinner = printer.spinner("finding tasks");
    let filter = Filter { task_type: Some(task_type.to_owned()), ..Filter::default() };
    let fitting = |task: &Task| statuses.contains(&task.status());
    let mut ids = Vec::new();
    let mut tasks = std::pin::pin!(queue.list(filter));
    while let Some(task) = tasks.next().await {
        match task {
            Ok(task) if fitting(&task) => {
                ids.push(task.id);
                spinner.inc(1);
            }
            Ok(_) => {}
            Err(error) if error.kind() == Kind::Corrupt => {}
            Err(error) => return Err(error.into()),
        }
    }
    spinner.finish_and_clear();
    Ok(ids)
}

#[derive(Debug, Args)]
pub(crate) struct PurgeArgs {
    /// Minimum number of days since the task became final; tasks younger than a day are always kept
    #[arg(long, value_name = "DAYS", default_value_t = 7.0)]
    older_than_days: f64,
    /// Purge only tasks with this status: completed, failed, cancelled or expired; repeatable [default: all of them]
    #[arg(long, value_name = "STATUS")]
    status: Vec<String>,
}

pub(crate) async fn purge(queue: &Queue, args: &PurgeArgs, printer: &Printer) -> anyhow::Result<()> {
    let older_than: Duration = super::submit::seconds("older-than-days", args.older_than_days * 86_400.0)?;
    let statuses = args.status.iter().map(|text| final_status(text)).collect::<Result<_>>()?;
    let retention = Retention { statuses, older_than };
    let spinner = printer.spinner("scanning tasks");
    let purged = match queue.meta().map(|meta| meta.layout) {
        Some(LayoutName::Journal) => purge_journal(queue, &retention, &spinner, printer).await?,
        _ => purge_tasks(queue, &retention, &spinner, printer).await?,
    };
    spinner.finish_and_clear();
    if printer.is_json() {
        line(serde_json::to_value(&purged)?);
    } else {
        let PurgeCounts { marked, deleted, kept, too_new } = purged;
        let marked = count(marked, "task", "tasks");
        let too_new =
            if too_new > 0 { format!(", {too_new} of them younger than a day") } else { String::new() };
        line(format_args!(
            "{marked} marked for deletion by a purge a day later, {deleted} deleted, {kept} kept{too_new}"
        ));
    }
    Ok(())
}

/// Tasks of a queue by the effect of a purge. In JSON and text alike.
#[derive(Debug, Default, Serialize)]
struct PurgeCounts {
    marked: u64,
    deleted: u64,
    kept: u64,
    /// Kept tasks that only are too young.
    too_new: u64,
}

/// Purges one task after the other.
async fn purge_tasks(
    queue: &Queue,
    retention: &Retention,
    spinner: &ProgressBar,
    printer: &Printer,
) -> Result<PurgeCounts> {
    let mut counts = PurgeCounts::default();
    let tasks = queue.list(Filter::default());
    let work = tasks.map(|task| async move { queue.purge(&task?, retention).await });
    let mut purged = std::pin::pin!(work.buffered(AT_ONCE));
    while let Some(purged) = purged.next().await {
        spinner.inc(1);
        match purged {
            Ok(Purged::Kept) => counts.kept += 1,
            Ok(Purged::TooNew) => {
                counts.kept += 1;
                counts.too_new += 1;
            }
            Ok(Purged::Marked) => counts.marked += 1,
            Ok(Purged::Deleted) => counts.deleted += 1,
            Err(error) if error.kind() == Kind::Corrupt => {
                spinner.suspend(|| printer.note(&error.to_string()));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(counts)
}

/// Purges all tasks of a journal at once: task by task, the broker would rewrite the archive object of each.
async fn purge_journal(
    queue: &Queue,
    retention: &Retention,
    spinner: &ProgressBar,
    printer: &Printer,
) -> Result<PurgeCounts> {
    let purged = queue.purge_all(retention).await?;
    for error in &purged.corrupt {
        spinner.suspend(|| printer.note(error));
    }
    let Stats { due, scheduled, running, finished, .. } = queue.stats().await?;
    let kept = due + scheduled + running + finished.unwrap_or_default().values().sum::<u64>();
    // Tasks that have been final for a day were not created within a day: no need to read them.
    let too_new =
        if retention.older_than < PURGE_GRACE { count_young(queue, retention, spinner).await? } else { 0 };
    Ok(PurgeCounts { marked: purged.marked, deleted: purged.deleted, kept, too_new })
}

/// Number of tasks that a retention covers, and that were created less than a day ago.
async fn count_young(queue: &Queue, retention: &Retention, spinner: &ProgressBar) -> Result<u64> {
    let (now, mut young) = (queue.now()?, 0);
    let is_young = |task: &Task| !now.is_past(task.created_at.plus(PURGE_GRACE));
    let mut tasks = queue.list(Filter::default());
    while let Some(task) = tasks.next().await {
        match task {
            Ok(task) => young += u64::from(is_young(&task) && retention.covers(&task, now)),
            // The purge has reported it.
            Err(error) if error.kind() == Kind::Corrupt => {}
            Err(error) => return Err(error),
        }
        spinner.inc(1);
    }
    Ok(young)
}

fn final_status(text: &str) -> Result<Status> {
    let status = Status::parse(text)?;
    if status.is_final() {
        return Ok(status);
    }
    Err(Error::invalid(format!("cannot purge {status} tasks; cancel them first")))
}
