//! `leasehold tail`: prints tasks as they change.
//!
//! In the layout `objects`, a scan lists all tasks with their timestamps, one request per thousand, and reads only those written since the last
//! scan. Three cases need care:
//!
//! * A list is not a snapshot. A task that changes behind the cursor gets a later timestamp than all tasks read
//!   before the list began, so a scan starts from the newest timestamp of the scan before the last.
//! * Some stores round timestamps to whole seconds, and the clocks of their servers differ: scans overlap by a few seconds.
//! * A task may change twice with the same timestamp, so it is read once more when no other write can get that one.
//!
//! The revision decides whether a task has changed. Only tasks within the overlap are remembered. If the store's timestamps
//! jump back by more than the overlap, changes are missed until the timestamps have caught up.

mod journal;

use clap::Args;
use futures::future::{Either, select};
use futures::{StreamExt, stream};
use leasehold_core::{Kind, Result, StoreTime, Task, TaskId, keys};
use leasehold_queue::inspect::READS_AT_ONCE;
use leasehold_queue::{Filter, Queue};
use leasehold_store::host::Instant;
use leasehold_store::{List, ListEntry, Purpose};
use leasehold_worker::Shutdown;
use leasehold_worker::shutdown::Stage;
use std::collections::HashMap;
use std::time::Duration;

use self::journal::JournalTail;
use super::list::Rows;
use crate::durations::duration;
use crate::printer::Printer;

/// Prefix of the tasks.
const TASKS: &str = "tasks/";
/// Maximum difference between the timestamps of writes at the same time.
const OVERLAP: Duration = Duration::from_secs(5);
/// Time after the first read of a timestamp, in whole seconds, from which on no other write gets it.
const SETTLED: Duration = Duration::from_secs(2);
/// Maximum number of remembered tasks, about ten megabytes. When more change at once, all are forgotten, and some may
/// be printed twice.
const REMEMBERED_MAX: usize = 100_000;

#[derive(Debug, Args)]
pub(crate) struct TailArgs {
    /// Pause between scans, in seconds, or with a unit such as 30s, 5m
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "2s")]
    every: Duration,
    /// Print all existing tasks first
    #[arg(long)]
    all: bool,
}

pub(crate) async fn run(
    queue: &Queue,
    args: &TailArgs,
    printer: &Printer,
    shutdown: &Shutdown,
) -> anyhow::Result<()> {
    let following = Box::pin(follow(queue, args.every, args.all, printer));
    // Only reads: it can be dropped at any point.
    match select(following, Box::pin(shutdown.reached(Stage::Drain))).await {
        Either::Left((followed, _)) => Ok(followed?),
        Either::Right(_) => Ok(()),
    }
}

async fn follow(queue: &Queue, every: Duration, all: bool, printer: &Printer) -> Result<()> {
    let mut rows = Rows::new(queue, printer);
    if let Ok(journal) = queue.journal() {
        let mut tail = JournalTail::from_now(journal).await?;
        if all {
            let mut tasks = queue.list(Filter::default());
            while let Some(task) = tasks.next().await {
                rows.print(&task?);
            }
        }
        printer.note(&watching(queue));
        loop {
            queue.host().sleep(every).await;
            tail.scan(|task| rows.print(task)).await?;
        }
    }
    let mut tail = TailState::from_now(queue).await?;
    if all {
        tail.from = StoreTime::from_millis(i64::MIN);
        tail.scan(printer, |task| rows.print(task)).await?;
    } else {
        tail.scan(printer, |_| ()).await?;
    }
    printer.note(&watching(queue));
    loop {
        queue.host().sleep(every).await;
        tail.scan(printer, |task| rows.print(task)).await?;
    }
}

fn watching(queue: &Queue) -> String {
    format!("watching {}; Ctrl-C stops it", queue.describe())
}

/// State of the scans so far.
struct TailState<'a> {
    queue: &'a Queue,
    /// Tasks with an earlier timestamp are not read.
    from: StoreTime,
    /// Newest timestamp of all tasks.
    newest: StoreTime,
    seen: HashMap<TaskId, LastRead>,
}

/// Task as of its last read.
struct LastRead {
    modified: StoreTime,
    rev: u64,
    /// Time of the first read with this timestamp.
    first_at: Instant,
    read_at: Instant,
}

impl<'a> TailState<'a> {
    async fn from_now(queue: &'a Queue) -> Result<Self> {
        let start = StoreTime::from_millis(0);
        let mut tail = Self { queue, from: start, newest: start, seen: HashMap::new() };
        let mut list = Some(List::all(TASKS));
        while let Some(request) = list {
            let page = queue.client()?.list(Purpose::Admin, &request).await?;
            tail.note_newest(&page.entries);
            list = page.next.map(|cursor| request.at(cursor));
        }
        tail.from = tail.newest.minus(OVERLAP);
        Ok(tail)
    }

    fn note_newest(&mut self, entries: &[ListEntry]) {
        let newest = entries.iter().map(|entry| entry.modified).max();
        self.newest = newest.map_or(self.newest, |newest| newest.max(self.newest));
    }

    /// Scans all tasks once, and shows those that have changed.
    async fn scan(&mut self, printer: &Printer, mut show: impl FnMut(&Task)) -> Result<()> {
        let next_from = self.newest.minus(OVERLAP);
        let mut list = Some(List::all(TASKS));
        while let Some(request) = list {
            let page = self.queue.client()?.list(Purpose::Admin, &request).await?;
            self.note_newest(&page.entries);
            let written: Vec<_> = page.entries.iter().filter_map(|entry| self.maybe_written(entry)).collect();
            let queue = self.queue;
            let reads =
                written.into_iter().map(|(id, modified)| async move { (modified, queue.get(&id).await) });
            let mut tasks = stream::iter(reads).buffered(READS_AT_ONCE);
            while let Some((modified, task)) = tasks.next().await {
                match task {
                    Ok(task) if self.is_changed(&task, modified, next_from) && !task.is_tombstone() => {
                        show(&task);
                    }
                    Ok(_) => {}
                    // Deleted since it was listed.
                    Err(error) if error.kind() == Kind::Invalid => {}
                    Err(error) if error.kind() == Kind::Corrupt => printer.note(&error.to_string()),
                    Err(error) => return Err(error),
                }
            }
            list = page.next.map(|cursor| request.at(cursor));
        }
        self.from = next_from;
        self.seen.retain(|_, seen| seen.modified >= next_from);
        Ok(())
    }

    /// Task of a list entry, if it may have been written since its last read.
    fn maybe_written(&self, entry: &ListEntry) -> Option<(TaskId, StoreTime)> {
        let (_, id) = keys::parse_task(&entry.key)?;
        let is_known = self.seen.get(&id).is_some_and(|seen| {
            seen.modified == entry.modified && seen.read_at.since(seen.first_at) >= SETTLED
        });
        (entry.modified >= self.from && !is_known).then_some((id, entry.modified))
    }

    /// True if this revision was not read before. Remembers it as long as it can be read again.
    fn is_changed(&mut self, task: &Task, modified: StoreTime, next_from: StoreTime) -> bool {
        let read_at = self.queue.host().instant();
        let seen = self.seen.get(&task.id);
        let is_changed = seen.is_none_or(|seen| seen.rev != task.rev);
        let first_at = seen.filter(|seen| seen.modified == modified).map_or(read_at, |seen| seen.first_at);
        if modified >= next_from {
            if self.seen.len() >= REMEMBERED_MAX {
                self.seen.clear();
            }
            self.seen.insert(task.id, LastRead { modified, rev: task.rev, first_at, read_at });
        }
        is_changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_core::NewTask;
    use leasehold_store::testing::FakeHost;
    use leasehold_store::{Client, Host, MemoryStore, Verb};
    use std::sync::Arc;

    /// Queue whose store rounds timestamps to whole seconds, with some tasks a minute old and one new task.
    async fn queue(host: &FakeHost) -> (Queue, Vec<TaskId>) {
        let clock = host.clone();
        let store = MemoryStore::with_time(move || {
            StoreTime::from_millis(clock.instant().wall_ns.div_euclid(1_000_000_000) * 1000)
        });
        let client = Client::new(Arc::new(store), Arc::new(host.clone()));
        let queue = Queue::connect(client).await.unwrap();
        let mut ids = Vec::new();
        for number in 0..20 {
            if number == 19 {
                host.advance(Duration::from_mins(1));
            }
            ids.push(queue.submit_task(NewTask::new("a", number.into()).unwrap()).await.unwrap().id);
        }
        (queue, ids)
    }

    /// Tasks that one scan shows, and its number of list and get requests.
    async fn scan(tail: &mut TailState<'_>) -> (Vec<TaskId>, [u64; 2]) {
        let mut shown = Vec::new();
        let before = tail.queue.client().unwrap().ledger().snapshot();
        tail.scan(&Printer::new(true), |task| shown.push(task.id)).await.unwrap();
        let spent = tail.queue.client().unwrap().ledger().snapshot().since(&before);
        (shown, [Verb::List, Verb::Get].map(|verb| spent.verb(verb)))
    }

    #[tokio::test]
    async fn a_scan_reads_only_tasks_that_may_have_changed() {
        let host = FakeHost::new();
        let (queue, ids) = queue(&host).await;
        let mut tail = TailState::from_now(&queue).await.unwrap();
        assert_eq!(scan(&mut tail).await, (vec![ids[19]], [1, 1]), "the nineteen old ones are not read");
        host.advance(Duration::from_secs(3));
        queue.cancel(&ids[3]).await.unwrap();
        assert_eq!(scan(&mut tail).await, (vec![ids[3]], [1, 2]));
        queue.retry(&ids[3]).await.unwrap();
        assert_eq!(scan(&mut tail).await, (vec![ids[3]], [1, 1]), "a second change under the same timestamp");
        host.advance(Duration::from_secs(3));
        assert_eq!(scan(&mut tail).await, (vec![], [1, 1]), "once more, for a third");
        assert_eq!(scan(&mut tail).await, (vec![], [1, 0]), "nothing has happened");
    }

    #[tokio::test]
    async fn tasks_that_have_not_changed_for_long_are_forgotten() {
        let host = FakeHost::new();
        let (queue, ids) = queue(&host).await;
        let mut tail = TailState::from_now(&queue).await.unwrap();
        tail.from = StoreTime::from_millis(0);
        assert_eq!(scan(&mut tail).await.0.len(), 20, "all, if asked for");
        assert_eq!(tail.seen.len(), 1);
        host.advance(Duration::from_mins(1));
        queue.cancel(&ids[7]).await.unwrap();
        for _ in 0..2 {
            scan(&mut tail).await;
        }
        assert_eq!(tail.seen.keys().collect::<Vec<_>>(), [&ids[7]]);
    }
}
