//! `leasehold list` and `leasehold tail`: many tasks.

use clap::Args;
use futures::StreamExt;
use leasehold_core::{Kind, Result, Status, Task};
use leasehold_queue::{Filter, Queue};
use leasehold_worker::Shutdown;
use std::collections::HashMap;
use std::time::Duration;

use super::get::style;
use super::submit::json_line;
use crate::printer::{Printer, line};

#[derive(Debug, Args)]
pub(crate) struct List {
    /// Only tasks in this status
    #[arg(long, value_name = "STATUS")]
    status: Option<String>,
    /// Only tasks of this type
    #[arg(long = "type", value_name = "TYPE")]
    task_type: Option<String>,
    /// Only tasks with this tag; can be given several times
    #[arg(long = "tag", value_name = "KEY=VALUE")]
    tags: Vec<String>,
    /// At most so many
    #[arg(long, value_name = "N", default_value_t = 100)]
    limit: usize,
}

impl List {
    fn filter(&self) -> Result<Filter> {
        let status = self.status.as_deref().map(Status::parse).transpose()?;
        let tags = self.tags.iter().filter_map(|tag| tag.split_once('='));
        let tags = tags.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        Ok(Filter { status, task_type: self.task_type.clone(), tags })
    }
}

pub(crate) async fn run(queue: &Queue, args: &List, printer: &Printer) -> anyhow::Result<()> {
    let mut tasks = std::pin::pin!(queue.list(args.filter()?));
    let mut shown = 0;
    while shown < args.limit {
        match tasks.next().await {
            None => break,
            Some(Ok(task)) => {
                print(&task, printer, shown == 0);
                shown += 1;
            }
            Some(Err(error)) if error.kind() == Kind::Corrupt => printer.note(&error.to_string()),
            Some(Err(error)) => return Err(error.into()),
        }
    }
    if shown == args.limit && tasks.next().await.is_some() {
        printer.note(&format!("there are more than {}; see --limit", args.limit));
    }
    Ok(())
}

fn print(task: &Task, printer: &Printer, is_first: bool) {
    if printer.is_json() {
        return json_line(task);
    }
    if is_first {
        line(format_args!("{:<36}  {:<9}  {:>3}  {:<24}  TYPE", "ID", "STATUS", "ATT", "UPDATED"));
    }
    // Padded before it is painted: colours have no width.
    let status = printer.paint(style(task.status()), &format!("{:<9}", task.status()));
    let (id, attempt, updated) = (task.id, task.attempt, task.updated_at);
    line(format_args!("{id}  {status}  {attempt:>3}  {updated}  {}", task.task_type));
}

#[derive(Debug, Args)]
pub(crate) struct Tail {
    /// Look again after so many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0)]
    every: f64,
}

/// Prints tasks as they change, until interrupted.
pub(crate) async fn tail(
    queue: &Queue,
    args: &Tail,
    printer: &Printer,
    shutdown: &Shutdown,
) -> anyhow::Result<()> {
    let every: Duration = super::submit::seconds("every", args.every)?;
    let mut known = HashMap::new();
    let mut is_first = true;
    loop {
        let mut tasks = std::pin::pin!(queue.list(Filter::default()));
        while let Some(task) = tasks.next().await {
            match task {
                Ok(task) if known.insert(task.id, task.rev) != Some(task.rev) => {
                    print(&task, printer, is_first);
                    is_first = false;
                }
                Ok(_) => {}
                Err(error) if error.kind() == Kind::Corrupt => {}
                Err(error) => return Err(error.into()),
            }
        }
        let pause = queue.client().host().sleep(every);
        let stop = Box::pin(shutdown.reached(leasehold_worker::shutdown::Stage::Drain));
        if let futures::future::Either::Right(_) = futures::future::select(pause, stop).await {
            return Ok(());
        }
    }
}
