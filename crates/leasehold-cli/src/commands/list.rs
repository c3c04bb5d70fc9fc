//! `leasehold list`: lists tasks.

use clap::Args;
use futures::{StreamExt, TryStreamExt, stream};
use leasehold_core::{Kind, Result, State, Status, StoreTime, Task, TaskId};
use leasehold_queue::inspect::READS_AT_ONCE;
use leasehold_queue::{Filter, ListedTask, Queue};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use super::submit::{json_line, parse_tag};
use crate::printer::Printer;
use crate::table::{self, MOMENT, TextTable};

/// Maximum number of tasks that are sorted, about 60 megabytes; up to twice as many are in memory while they are listed.
const LISTED_MAX: usize = 500_000;
/// Tolerance for timestamps of the store: some stores round them to whole seconds, and the clocks of their servers differ.
const TIMESTAMP_TOLERANCE: Duration = Duration::from_secs(5);

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// List only tasks with this status: pending, running, completed, failed, cancelled, expired or purged [default: all]
    #[arg(long, value_name = "STATUS")]
    status: Option<String>,
    /// List only tasks of this type [default: all]
    #[arg(long = "type", value_name = "TYPE")]
    task_type: Option<String>,
    /// List only tasks with this tag; repeatable
    #[arg(long = "tag", value_name = "KEY=VALUE")]
    tags: Vec<String>,
    /// Maximum number of tasks to list
    #[arg(long, value_name = "N", default_value_t = 100)]
    limit: usize,
    /// Order of the tasks
    #[arg(long, value_enum, value_name = "ORDER", default_value_t = Sort::Created)]
    sort: Sort,
}

/// Order of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Sort {
    /// Newest first
    Created,
    /// Most recently changed first
    Updated,
    /// Earliest due first, then tasks that are not pending
    Due,
    /// By id, printed while they are read
    Id,
}

impl Sort {
    /// Sort key; smaller comes first.
    fn rank(self, task: &Task) -> i64 {
        match (self, &task.state) {
            (Sort::Created, _) => newest(task.created_at),
            (Sort::Updated, _) => newest(task.updated_at),
            (Sort::Due, State::Pending { available_at }) => available_at.as_millis(),
            (Sort::Due, _) => i64::MAX,
            (Sort::Id, _) => 0,
        }
    }
}

fn newest(at: StoreTime) -> i64 {
    at.as_millis().saturating_neg()
}

impl ListArgs {
    fn filter(&self) -> Result<Filter> {
        let status = self.status.as_deref().map(Status::parse).transpose()?;
        let tags = self.tags.iter().map(|text| parse_tag(text)).collect::<Result<_>>()?;
        Ok(Filter { status, task_type: self.task_type.clone(), tags })
    }
}

pub(crate) async fn run(queue: &Queue, args: &ListArgs, printer: &Printer) -> anyhow::Result<()> {
    let filter = args.filter()?;
    let spinner = printer.spinner("listing");
    let mut rows = Rows::new(queue, printer);
    let note = |text: &str| spinner.suspend(|| printer.note(text));
    let (shown, are_more) = match args.sort {
        Sort::Id => {
            let show = |task: &Task| spinner.suspend(|| rows.print(task));
            list_in_store_order(queue, filter, args.limit, show, &note, || spinner.inc(1)).await?
        }
        sort => {
            let top = sorted(queue, filter, sort, args.limit, &note, || spinner.inc(1)).await?;
            spinner.suspend(|| top.tasks.values().for_each(|task| rows.print(task)));
            (top.tasks.len(), top.are_more)
        }
    };
    spinner.finish_and_clear();
    if shown == 0 && !are_more && !printer.is_json() {
        printer.note("no tasks match");
    }
    if are_more {
        printer.note(&format!("limit of {} reached; raise --limit to list more", args.limit));
    }
    Ok(())
}

/// Shows tasks while they are read. Returns how many were shown, and whether there are more.
async fn list_in_store_order(
    queue: &Queue,
    filter: Filter,
    limit: usize,
    mut show: impl FnMut(&Task),
    note: &impl Fn(&str),
    count: impl Fn(),
) -> Result<(usize, bool)> {
    let mut tasks = std::pin::pin!(queue.list(filter));
    let mut shown = 0;
    while let Some(task) = tasks.next().await {
        match task {
            Ok(_) if shown == limit => return Ok((shown, true)),
            Ok(task) => {
                show(&task);
                count();
                shown += 1;
            }
            Err(error) if error.kind() == Kind::Corrupt => note(&error.to_string()),
            Err(error) => return Err(error),
        }
    }
    Ok((shown, false))
}

/// First tasks of a sort order, up to a limit.
struct TopTasks {
    sort: Sort,
    limit: usize,
    tasks: BTreeMap<(i64, TaskId), Task>,
    are_more: bool,
}

impl TopTasks {
    fn add(&mut self, task: Task) {
        self.tasks.insert((self.sort.rank(&task), task.id), task);
        if self.tasks.len() > self.limit {
            self.tasks.pop_last();
            self.are_more = true;
        }
    }

    /// True if no task whose modification time is this or earlier can belong to the top tasks.
    fn excludes(&self, modified: StoreTime) -> bool {
        let last = || self.tasks.last_key_value().map(|((rank, _), _)| *rank);
        self.sort != Sort::Due
            && self.are_more
            && last().is_none_or(|last| newest(modified.plus(TIMESTAMP_TOLERANCE)) > last)
    }
}

/// Reads the tasks; in the object layout most recently written first. A task was created and updated no later than its modification time, so
/// reading stops as soon as no other task can belong to the result.
async fn sorted(
    queue: &Queue,
    filter: Filter,
    sort: Sort,
    limit: usize,
    note: &impl Fn(&str),
    count: impl Fn(),
) -> Result<TopTasks> {
    let mut top = TopTasks { sort, limit, tasks: BTreeMap::new(), are_more: false };
    if queue.objects().is_err() {
        // Other layouts list whole tasks.
        let add = |task: &Task| top.add(task.clone());
        list_in_store_order(queue, filter, usize::MAX, add, note, count).await?;
        return Ok(top);
    }
    let listed = most_recently_written(queue, note).await?;
    let reads = stream::iter(listed).map(|one| async move { (one.modified, queue.read_listed(&one).await) });
    let mut reads = std::pin::pin!(reads.buffered(READS_AT_ONCE));
    while let Some((modified, read)) = reads.next().await {
        if top.excludes(modified) {
            break;
        }
        match read {
            Ok(Some(task)) if filter.matches(&task) => top.add(task),
            Ok(_) => {}
            Err(error) if error.kind() == Kind::Corrupt => note(&error.to_string()),
            Err(error) => return Err(error),
        }
        count();
    }
    Ok(top)
}

/// Lists the most recently written tasks, newest first.
async fn most_recently_written(queue: &Queue, note: &impl Fn(&str)) -> Result<Vec<ListedTask>> {
    let (mut listed, mut left_out) = (Vec::new(), 0);
    let mut all = queue.list_timestamps();
    let newest_first = |one: &ListedTask| Reverse(one.modified);
    while let Some(one) = all.try_next().await? {
        listed.push(one);
        if listed.len() == 2 * LISTED_MAX {
            listed.sort_unstable_by_key(newest_first);
            listed.truncate(LISTED_MAX);
            left_out += LISTED_MAX;
        }
    }
    listed.sort_unstable_by_key(newest_first);
    left_out += listed.len().saturating_sub(LISTED_MAX);
    listed.truncate(LISTED_MAX);
    if left_out > 0 {
        note(&format!("{left_out} least recently changed tasks are not listed; list all with --sort id"));
    }
    Ok(listed)
}

/// Table of tasks, printed while they are read.
pub(crate) struct Rows<'a> {
    queue: &'a Queue,
    printer: &'a Printer,
    table: TextTable,
    is_first: bool,
}

impl<'a> Rows<'a> {
    pub(crate) fn new(queue: &'a Queue, printer: &'a Printer) -> Self {
        let table = TextTable::default().left("ID", 36).left("STATUS", 9).right("ATTEMPT", 7);
        let table = table.left("DUE (UTC)", MOMENT).left("UPDATED (UTC)", MOMENT).left("TYPE", 0);
        Self { queue, printer, table, is_first: true }
    }

    pub(crate) fn print(&mut self, task: &Task) {
        if self.printer.is_json() {
            return json_line(task);
        }
        if std::mem::take(&mut self.is_first) {
            self.table.header(self.printer);
        }
        let now = self.queue.now().ok();
        let today = now.map_or(task.updated_at, |now| now.earliest);
        let updated = table::moment(task.updated_at, today);
        let due = match task.state {
            State::Pending { available_at } if now.is_some_and(|now| now.is_due(available_at)) => {
                "now".into()
            }
            State::Pending { available_at } => table::moment(available_at, today),
            _ => String::new(),
        };
        let cells = [
            task.id.into(),
            table::status(task.status()),
            format!("{} of {}", task.attempt, task.max_attempts).into(),
            due.into(),
            updated.into(),
            task.task_type.as_str().into(),
        ];
        self.table.row(&cells, self.printer);
    }
}
