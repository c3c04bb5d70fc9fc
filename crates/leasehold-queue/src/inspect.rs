//! Reading tasks: get, list, wait, count.
//!
//! Nothing here writes. A list reads every task; [`ObjectQueue::list_timestamps`] returns only keys and timestamps, so that a caller
//! with a cache reads only what has changed. Counts come from the index, not from the tasks.
//!
//! Requests: a get is 1 get. A list is 1 list per thousand tasks and 1 get per task. A wait is 1 conditional get per
//! poll, every 0.1 to 5 seconds. A count is 1 list per thousand entries and at most 100 gets.

use futures::future::ready;
use futures::{Stream, StreamExt, TryStreamExt, stream};
pub use leasehold_core::filter::Filter;
use leasehold_core::{
    Entry, Error, IndexLocation, Kind, Minute, Reason, Result, ShardLen, Status, StoreTime, Task, TaskId,
    TaskIdPrefix, keys,
};
use leasehold_store::host::{Instant, lock};
use leasehold_store::{List, ListEntry, Purpose};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::Duration;

use crate::connect::ObjectQueue;
use crate::tasks::{TaskObject, TaskSnapshot};

/// Number of tasks that are read concurrently.
pub const READS_AT_ONCE: usize = 32;
/// Maximum number of ids listed for a prefix: enough to tell that it is ambiguous, even if some keys are not keys of
/// tasks.
const FOUND_MAX: usize = 10;
/// Age below which an entry is counted without a read of its task: its producer is probably between its two writes.
const IN_MOTION: Duration = Duration::from_secs(10);
/// Time after which the task of an entry without a task is read again.
const CHECK_AGAIN: Duration = Duration::from_mins(1);
/// Maximum number of tasks that one count reads: a long queue is counted by its entries.
const COUNT_READS_MAX: usize = 100;
/// Maximum number of remembered entries: more than the counts of an hour can check.
const CHECKS_MAX: usize = 10_000;

/// Entries known to have a task or not, from earlier counts: none if the task exists, a time at which it did not. Shared
/// by all clones of a queue.
pub(crate) type EntryChecks = Mutex<BTreeMap<Entry, Option<Instant>>>;

/// A task as a list shows it, without its record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedTask {
    /// Its id.
    pub id: TaskId,
    /// Time of its last write, from the store's timestamp; some stores have whole seconds.
    pub modified: StoreTime,
    /// Size of its record in bytes.
    pub size: u64,
    /// Its key. During a migration one task can have two keys.
    pub key: String,
}

/// Number of pending and running tasks, from the index.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Stats {
    /// Pending tasks that are due.
    pub due: u64,
    /// Pending tasks that are scheduled for later.
    pub scheduled: u64,
    /// Tasks held by workers.
    pub running: u64,
    /// Waiting time of the oldest due task in seconds, to the minute.
    pub oldest_due_secs: Option<u64>,
    /// Final tasks by status, in a layout that counts them without reading each.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished: Option<BTreeMap<Status, u64>>,
    /// Index entries whose task does not exist, because a submit was not finished. They are not counted as due.
    pub without_task: u64,
    /// Counts per shard, for shards that are not empty: due, scheduled, running.
    pub shards: BTreeMap<String, [u64; 3]>,
}

impl ObjectQueue {
    /// Reads a task.
    pub async fn get(&self, id: &TaskId) -> Result<Task> {
        let loaded = self.load(Purpose::Admin, id).await?;
        loaded.map(|loaded| loaded.task).ok_or_else(|| unknown_task(id))
    }

    /// Finds the only task whose id begins with these characters. No task is read. Requests: 1 list, and 1 more per
    /// further shard length during a migration.
    pub async fn find(&self, prefix: &TaskIdPrefix) -> Result<TaskId> {
        self.refresh_meta_if_old().await?;
        let mut found = BTreeSet::new();
        for len in self.meta_cache.known().meta.lengths() {
            let shard = len.parse(&prefix.as_str()[..usize::from(len.digits())])?;
            let list = List::all(keys::tasks_with_prefix(&shard, prefix)).limit(FOUND_MAX);
            let page = self.client.list(Purpose::Admin, &list).await?;
            found.extend(
                page.entries.iter().filter_map(|entry| keys::parse_task_shard(&entry.key)).map(|(_, id)| id),
            );
        }
        prefix.resolve(&found)
    }

    /// Lists tasks, shard by shard, as they are read. A corrupt object is an item with an error of kind corrupt, and
    /// the list continues.
    pub fn list(&self, filter: Filter) -> impl Stream<Item = Result<Task>> + Send + '_ {
        self.records().try_filter(move |task| ready(filter.matches(task)))
    }

    /// Lists all task records, including the tombstones of abandoned submits.
    pub(crate) fn records(&self) -> impl Stream<Item = Result<Task>> + Send + '_ {
        let reads = self.task_keys().map_ok(move |key| async move { self.load_listed(&key).await });
        let loaded = reads.try_buffered(READS_AT_ONCE);
        loaded.filter_map(|loaded| async { loaded.map(|found| found.map(|found| found.task)).transpose() })
    }

    /// Lists all tasks with their timestamps, shard by shard, without reading them. A caller that caches tasks reads
    /// only those whose timestamp has changed. Keys that are not keys of tasks are left out; `check` reports them.
    /// Requests: 1 list per thousand tasks.
    pub fn list_timestamps(&self) -> impl Stream<Item = Result<ListedTask>> + Send + '_ {
        let with_id = |ListEntry { key, modified, size }| {
            let id = keys::parse_task_shard(&key).map(|(_, id)| id);
            ready(Ok(id.map(|id| ListedTask { id, modified, size, key })))
        };
        self.task_objects().try_filter_map(with_id)
    }

    /// Reads a listed task; none if it no longer exists, if it is the tombstone of a submit, or if it is the
    /// forwarding marker of a task that is listed at its new key.
    pub async fn read_listed(&self, listed: &ListedTask) -> Result<Option<Task>> {
        let loaded = self.load_listed(&listed.key).await?;
        Ok(loaded.map(|loaded| loaded.task).filter(|task| !task.is_tombstone()))
    }

    /// Reads the task at a listed key. A task that was moved is returned with its current key.
    pub(crate) async fn load_listed(&self, key: &str) -> Result<Option<TaskSnapshot>> {
        // No client would find a task at any other key.
        let lengths = self.meta_cache.known().meta.lengths();
        if !keys::parse_task_shard(key).is_some_and(|(len, _)| lengths.contains(&len)) {
            return Err(Error::new(Kind::Corrupt, format!("`{key}` is not the key of a task")));
        }
        match self.read_task_object(Purpose::Admin, key).await? {
            Some(TaskObject::Here(loaded)) => Ok(Some(loaded)),
            Some(TaskObject::Elsewhere(marker)) => {
                let is_there = self.client.get(Purpose::Admin, &marker.key()).await?.is_some();
                if is_there { Ok(None) } else { self.load_forwarded(Purpose::Admin, marker).await.map(Some) }
            }
            None => Ok(None),
        }
    }

    /// All keys under the prefix of tasks, including those that are not keys of tasks.
    pub(crate) fn task_keys(&self) -> impl Stream<Item = Result<String>> + Send + '_ {
        self.task_objects().map_ok(|entry| entry.key)
    }

    fn task_objects(&self) -> impl Stream<Item = Result<ListEntry>> + Send + '_ {
        let refreshed = stream::once(self.refresh_meta_if_old());
        refreshed.map_ok(|()| self.objects_under(Purpose::Admin, keys::TASKS)).try_flatten()
    }

    /// All keys that begin with `prefix`, page by page.
    pub(crate) fn keys<'a>(&'a self, prefix: &str) -> impl Stream<Item = Result<String>> + Send + use<'a> {
        self.objects_under(Purpose::Admin, prefix).map_ok(|entry| entry.key)
    }

    /// Lists the objects whose keys begin with `prefix`, page by page. Requests: 1 list per thousand.
    pub fn objects_under<'a>(
        &'a self,
        purpose: Purpose,
        prefix: &str,
    ) -> impl Stream<Item = Result<ListEntry>> + Send + use<'a> {
        let pages = self.client.pages(purpose, List::all(prefix));
        pages.map_ok(|page| stream::iter(page.entries.into_iter().map(Ok))).try_flatten()
    }

    /// Counts pending and running tasks. A due entry of a task that was never claimed may be the rest of an
    /// unfinished submit: when it is older than 10 s, its task is read, once.
    ///
    /// Requests: 1 list per 1,000 entries, at most 100 gets of tasks, and one of `queue.json` if a task is missing.
    pub async fn stats(&self) -> Result<Stats> {
        let (mut stats, mut doubtful) = (Stats::default(), Vec::new());
        for root in keys::ENTRY_PREFIXES {
            let mut entries = std::pin::pin!(self.objects_under(Purpose::Admin, root));
            while let Some(listed) = entries.try_next().await? {
                let Some(entry) = Entry::parse(&listed.key) else { continue };
                let now = self.now()?;
                let is_new = entry.rev == 1 && !matches!(entry.location, IndexLocation::Lease(_));
                if is_new && now.is_due(entry.minute.start()) && now.is_past(listed.modified.plus(IN_MOTION))
                {
                    doubtful.push(entry);
                } else {
                    stats.count(&entry, self.shard_len(), now);
                }
            }
        }
        let without_task = self.without_task(&doubtful).await?;
        for entry in doubtful.iter().filter(|entry| !without_task.contains(entry)) {
            stats.count(entry, self.shard_len(), self.now()?);
        }
        stats.without_task = without_task.len() as u64;
        Ok(stats)
    }

    /// The entries whose task does not exist. Results are cached: a task that exists is not read again, and one that
    /// does not is read again after a minute.
    async fn without_task<'a>(&self, entries: &'a [Entry]) -> Result<BTreeSet<&'a Entry>> {
        let (now, there) = (self.client.host().instant(), entries.iter().collect::<BTreeSet<_>>());
        let unknown: Vec<_> = {
            let mut known = lock(&self.entry_checks);
            known.retain(|entry, _| there.contains(entry));
            let is_unknown = |entry: &&Entry| match known.get(*entry) {
                None => true,
                Some(None) => false,
                Some(Some(at)) => now.since(*at) >= CHECK_AGAIN,
            };
            entries.iter().filter(is_unknown).take(COUNT_READS_MAX).cloned().collect()
        };
        let reads = unknown.into_iter().map(|entry| async move {
            match self.load(Purpose::Admin, &entry.id).await {
                Ok(loaded) => Ok((entry, loaded.is_some())),
                // A corrupt record exists.
                Err(error) if error.kind() == Kind::Corrupt => Ok((entry, true)),
                Err(error) => Err(error),
            }
        });
        let mut reads = std::pin::pin!(stream::iter(reads).buffered(READS_AT_ONCE));
        while let Some((entry, exists)) = reads.try_next().await? {
            let mut known = lock(&self.entry_checks);
            if known.len() < CHECKS_MAX || known.contains_key(&entry) {
                known.insert(entry, (!exists).then_some(now));
            }
        }
        let known = lock(&self.entry_checks);
        Ok(entries.iter().filter(|entry| matches!(known.get(*entry), Some(Some(_)))).collect())
    }
}

impl Stats {
    fn count(&mut self, entry: &Entry, len: ShardLen, now: leasehold_core::Now) {
        let shard = len.shard_of(&entry.id).to_string();
        let shard = self.shards.entry(shard).or_default();
        let (index, total) = match entry.location {
            IndexLocation::Lease(_) => (2, &mut self.running),
            _ if now.is_due(entry.minute.start()) => {
                let waited = now.earliest.since(Minute::start(entry.minute)).as_secs();
                self.oldest_due_secs = self.oldest_due_secs.max(Some(waited));
                (0, &mut self.due)
            }
            _ => (1, &mut self.scheduled),
        };
        shard[index] += 1;
        *total += 1;
    }
}

pub(crate) fn unknown_task(id: &TaskId) -> Error {
    Error::invalid(format!("no task {id} in this queue")).with_reason(Reason::Missing)
}
