//! `leasehold cancel`, `leasehold retry`, `leasehold reschedule`, `leasehold purge`: changing tasks.

use clap::Args;
use futures::StreamExt;
use leasehold_core::{Error, Kind, Status, StoreTime, Task, TaskId};
use leasehold_queue::purge::{PurgedAll, Retention};
use leasehold_queue::{Filter, Operated, Queue};
use serde_json::json;
use std::time::Duration;

use crate::printer::{Printer, line};

#[derive(Debug, Args)]
pub(crate) struct Which {
    /// The tasks' ids
    #[arg(required_unless_present = "task_type")]
    ids: Vec<TaskId>,
    /// All tasks of this type to which it can happen
    #[arg(long = "type", value_name = "TYPE", conflicts_with = "ids")]
    task_type: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Reschedule {
    /// The task's id
    id: TaskId,
    /// When it is to start, by the store's time
    #[arg(long, value_name = "TIME")]
    at: StoreTime,
}

pub(crate) async fn cancel(queue: &Queue, which: &Which, printer: &Printer) -> anyhow::Result<()> {
    let statuses = [Status::Pending, Status::Running];
    each(queue, which, &statuses, printer, "cancelled", async |id| queue.cancel(&id).await).await
}

pub(crate) async fn retry(queue: &Queue, which: &Which, printer: &Printer) -> anyhow::Result<()> {
    let statuses = [Status::Failed, Status::Cancelled, Status::Expired];
    each(queue, which, &statuses, printer, "put back", async |id| queue.retry(&id).await).await
}

pub(crate) async fn reschedule(queue: &Queue, args: &Reschedule, printer: &Printer) -> anyhow::Result<()> {
    let which = Which { ids: vec![args.id], task_type: None };
    let at = args.at;
    each(queue, &which, &[Status::Pending], printer, "planned", async |id| queue.reschedule(&id, at).await)
        .await
}

/// Does something to each task, and says what became of it.
async fn each(
    queue: &Queue,
    which: &Which,
    statuses: &[Status],
    printer: &Printer,
    done: &str,
    act: impl AsyncFn(TaskId) -> leasehold_core::Result<Operated>,
) -> anyhow::Result<()> {
    let ids = match &which.task_type {
        None => which.ids.clone(),
        Some(task_type) => of_type(queue, task_type, statuses).await?,
    };
    let mut refused = 0;
    for id in ids {
        match act(id).await? {
            Operated::Done(task) => {
                let status = task.status();
                if printer.is_json() {
                    line(json!({"id": id, "status": status}));
                } else if status == Status::Running {
                    line(format_args!("{id}: its worker will stop it at the next renewal"));
                } else {
                    line(format_args!("{id}: {done}"));
                }
            }
            Operated::Refused(rejected) => {
                refused += 1;
                if printer.is_json() {
                    line(json!({"id": id, "refused": rejected.to_string()}));
                } else {
                    printer.note(&format!("{id}: {rejected}"));
                }
            }
        }
    }
    if refused > 0 {
        return Err(Error::new(Kind::Lost, format!("{refused} tasks were not {done}")).into());
    }
    Ok(())
}

async fn of_type(queue: &Queue, task_type: &str, statuses: &[Status]) -> anyhow::Result<Vec<TaskId>> {
    let filter = Filter { task_type: Some(task_type.to_owned()), ..Filter::default() };
    let fitting = |task: &Task| statuses.contains(&task.status());
    let mut ids = Vec::new();
    let mut tasks = std::pin::pin!(queue.list(filter));
    while let Some(task) = tasks.next().await {
        match task {
            Ok(task) if fitting(&task) => ids.push(task.id),
            Ok(_) => {}
            Err(error) if error.kind() == Kind::Corrupt => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(ids)
}

#[derive(Debug, Args)]
pub(crate) struct Purge {
    /// Only tasks that have been final for so many days
    #[arg(long, value_name = "DAYS", default_value_t = 7.0)]
    older_than_days: f64,
    /// Only tasks in this status; can be given several times
    #[arg(long, value_name = "STATUS")]
    status: Vec<String>,
}

pub(crate) async fn purge(queue: &Queue, args: &Purge, printer: &Printer) -> anyhow::Result<()> {
    let older_than: Duration = super::submit::seconds("older-than-days", args.older_than_days * 86_400.0)?;
    let statuses = args.status.iter().map(|text| Status::parse(text)).collect::<Result<_, _>>()?;
    let PurgedAll { marked, deleted, corrupt } = queue.purge_all(&Retention { statuses, older_than }).await?;
    for why in corrupt {
        printer.note(&why);
    }
    if printer.is_json() {
        line(json!({"marked": marked, "deleted": deleted}));
    } else {
        line(format_args!(
            "{marked} tasks marked (they are deleted by a purge a day later), {deleted} deleted"
        ));
    }
    Ok(())
}
