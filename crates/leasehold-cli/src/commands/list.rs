//! `leasehold list`: many tasks.

use clap::Args;
use futures::StreamExt;
use leasehold_core::{Kind, Result, Status, Task};
use leasehold_queue::{Filter, Queue};

use super::submit::{json_line, tag};
use crate::printer::Printer;
use crate::table::{self, MOMENT, Table};

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
        let tags = self.tags.iter().map(|text| tag(text)).collect::<Result<_>>()?;
        Ok(Filter { status, task_type: self.task_type.clone(), tags })
    }
}

pub(crate) async fn run(queue: &Queue, args: &List, printer: &Printer) -> anyhow::Result<()> {
    let mut tasks = std::pin::pin!(queue.list(args.filter()?));
    let mut rows = Rows::new(queue, printer);
    let spinner = printer.spinner("listing");
    let mut shown = 0;
    while shown < args.limit {
        match tasks.next().await {
            None => break,
            Some(Ok(task)) => {
                spinner.suspend(|| rows.print(&task));
                spinner.inc(1);
                shown += 1;
            }
            Some(Err(error)) if error.kind() == Kind::Corrupt => {
                spinner.suspend(|| printer.note(&error.to_string()));
            }
            Some(Err(error)) => return Err(error.into()),
        }
    }
    let are_more = shown == args.limit && tasks.next().await.is_some();
    spinner.finish_and_clear();
    if shown == 0 && !are_more && !printer.is_json() {
        printer.note("there is no such task");
    }
    if are_more {
        printer.note(&format!("there are more than {}; see --limit", args.limit));
    }
    Ok(())
}

/// Tasks, one below the other, printed while they are read.
pub(crate) struct Rows<'a> {
    queue: &'a Queue,
    printer: &'a Printer,
    table: Table,
    is_first: bool,
}

impl<'a> Rows<'a> {
    pub(crate) fn new(queue: &'a Queue, printer: &'a Printer) -> Self {
        let table = Table::default().left("ID", 36).left("STATUS", 9).right("ATTEMPT", 7);
        let table = table.left("UPDATED (UTC)", MOMENT).left("TYPE", 0);
        Self { queue, printer, table, is_first: true }
    }

    pub(crate) fn print(&mut self, task: &Task) {
        if self.printer.is_json() {
            return json_line(task);
        }
        if std::mem::take(&mut self.is_first) {
            self.table.header(self.printer);
        }
        let now = self.queue.now().map_or(task.updated_at, |now| now.earliest);
        let updated = table::moment(task.updated_at, now);
        let cells = [
            task.id.into(),
            table::status(task.status()),
            format!("{} of {}", task.attempt, task.max_attempts).into(),
            updated.into(),
            task.task_type.as_str().into(),
        ];
        self.table.row(&cells, self.printer);
    }
}
