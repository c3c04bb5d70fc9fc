//! Reading tasks: get, list, wait, count.
//!
//! Nothing here writes. A list reads every task; [`ObjectQueue::listed`] returns only keys and timestamps, so that a caller
//! with a cache reads only what has changed. Counts come from the index, not from the tasks.
//!
//! Requests: a get is 1 get. A list is 1 list per thousand tasks and 1 get per task. A wait is 1 conditional get per
//! poll, every 0.1 to 5 seconds. A count is 1 list per thousand entries and at most 100 gets.

use futures::{Stream, StreamExt, TryStreamExt, stream};
pub use leasehold_core::filter::Filter;
use leasehold_core::{
    Entry, Error, IndexLocation, Kind, Minute, Reason, Result, Shard, ShardLen, Status, StoreTime, Task, TaskId,
    TaskIdPrefix, keys,
};
use leasehold_store::host::{Instant, lock};
use leasehold_store::{Get, List, Purpose};
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

/// Entries known to have a task or not, from earlier counts. Shared by all clones of a queue.
#[derive(Debug, Default)]
pub(crate) struct EntryChecks {
    /// None: the task exists. A time: it did not exist then.
    known: Mutex<BTreeMap<Entry, Option<Instant>>>,
}

impl EntryChecks {
    /// Entries whose tasks are to be read; forgets those that are no longer in the index.
    fn unknown(&self, entries: &[Entry], now: Instant) -> Vec<Entry> {
        let (there, mut known) = (entries.iter().collect::<BTreeSet<_>>(), lock(&self.known));
        known.retain(|entry, _| there.contains(entry));
        let is_unknown = |entry: &&Entry| match known.get(*entry) {
            None => true,
            Some(None) => false,
            Some(Some(at)) => now.since(*at) >= CHECK_AGAIN,
        };
        entries.iter().filter(is_unknown).take(COUNT_READS_MAX).cloned().collect()
    }

    fn record(&self, entry: Entry, exists: bool, now: Instant) {
        let mut known = lock(&self.known);
        if known.len() < CHECKS_MAX || known.contains_key(&entry) {
            known.insert(entry, (!exists).then_some(now));
        }
    }

    fn without_task<'a>(&self, entries: &'a [Entry]) -> BTreeSet<&'a Entry> {
        let known = lock(&self.known);
        entries.iter().filter(|entry| matches!(known.get(*entry), Some(Some(_)))).collect()
    }
}

/// A task as a list shows it, without its record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedTask {
    /// Its id.
    pub id: TaskId,
    /// Time of its last write, from the store's timestamp; some stores have whole seconds.
    pub modified: StoreTime,
    /// Size of its record in bytes.
    pub size: u64,
    key: String,
}

impl ListedTask {
    /// Its key. During a migration one task can have two keys.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }
}

/// Number of waiting and running tasks, from the index.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Stats {
    /// Waiting tasks that are due.
    pub due: u64,
    /// Waiting tasks that are scheduled for later.
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
        self.refresh_layout_if_old().await?;
        let mut found = BTreeSet::new();
        for len in self.layout.known().meta.lengths() {
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
        self.records().try_filter(move |task| {
            let is_wanted = filter.matches(task);
            async move { is_wanted }
        })
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
    pub fn listed(&self) -> impl Stream<Item = Result<ListedTask>> + Send + '_ {
        let entries = stream::once(self.refresh_layout_if_old())
            .map_ok(|()| self.entries(keys::TASKS.into()))
            .try_flatten();
        entries.try_filter_map(|entry| async move {
            let listed = keys::parse_task_shard(&entry.key).map(|(_, id)| ListedTask {
                id,
                modified: entry.modified,
                size: entry.size,
                key: entry.key,
            });
            Ok(listed)
        })
    }

    /// Reads a listed task; none if it no longer exists, if it is the tombstone of a submit, or if it is the
    /// forwarding marker of a task that is listed at its new key.
    pub async fn read_listed(&self, listed: &ListedTask) -> Result<Option<Task>> {
        let loaded = self.load_listed(&listed.key).await?;
        Ok(loaded.map(|loaded| loaded.task).filter(|task| !task.is_tombstone()))
    }

    /// Reads the task at a listed key. A task that was moved is returned with its current key.
    pub(crate) async fn load_listed(&self, key: &str) -> Result<Option<TaskSnapshot>> {
        self.check_task_key(key)?;
        match self.read_task_object(Purpose::Admin, key).await? {
            Some(TaskObject::Here(loaded)) => Ok(Some(loaded)),
            Some(TaskObject::Elsewhere(marker)) => {
                let is_there = self.client.get(Purpose::Admin, &marker.key()).await?.is_some();
                if is_there { Ok(None) } else { self.load_forwarded(Purpose::Admin, marker).await.map(Some) }
            }
            None => Ok(None),
        }
    }

    /// All keys under the prefix of tasks, including those that are not keys of tasks by the layout.
    pub(crate) fn task_keys(&self) -> impl Stream<Item = Result<String>> + Send + '_ {
        let refreshed = stream::once(self.refresh_layout_if_old());
        refreshed.map_ok(|()| self.keys(keys::TASKS.into())).try_flatten()
    }

    /// Refuses a key that is not the key of a task by the layout, because no client would find a task there.
    pub(crate) fn check_task_key(&self, key: &str) -> Result<()> {
        match keys::parse_task_shard(key) {
            Some((len, _)) if self.layout.known().meta.lengths().contains(&len) => Ok(()),
            _ => Err(Error::new(Kind::Corrupt, format!("`{key}` is not the key of a task"))),
        }
    }

    /// All keys that begin with `prefix`, page by page.
    pub(crate) fn keys(&self, prefix: String) -> impl Stream<Item = Result<String>> + Send + '_ {
        self.entries(prefix).map_ok(|entry| entry.key)
    }

    pub(crate) fn entries(
        &self,
        prefix: String,
    ) -> impl Stream<Item = Result<leasehold_store::ListEntry>> + Send + '_ {
        let pages = self.client.pages(Purpose::Admin, List::all(prefix));
        pages.map_ok(|page| stream::iter(page.entries.into_iter().map(Ok))).try_flatten()
    }

    /// Reads a task, unless it is unchanged since it was read; 1 conditional get.
    pub(crate) async fn read_unless(
        &self,
        id: &TaskId,
        known: Option<&TaskSnapshot>,
    ) -> Result<Option<TaskSnapshot>> {
        let key = known.map_or_else(|| self.task_key(id), |known| keys::task(&known.task.shard, id));
        let version = known.map(|known| &known.version);
        let object = match self.client.get_unless(Purpose::Admin, &key, version).await? {
            Get::Unchanged => return Ok(None),
            read => read.found(),
        };
        let loaded = self.load_from(Purpose::Admin, id, &key, object).await?;
        loaded.map(Some).ok_or_else(|| unknown_task(id))
    }

    /// Counts waiting and running tasks. A due entry of a task that was never claimed may be the rest of an
    /// unfinished submit: when it is older than 10 s, its task is read, once.
    ///
    /// Requests: 1 list per 1,000 entries, at most 100 gets of tasks, and one of `queue.json` if a task is missing.
    pub async fn stats(&self) -> Result<Stats> {
        let (mut stats, mut doubtful) = (Stats::default(), Vec::new());
        for root in keys::ENTRY_PREFIXES {
            let mut entries = std::pin::pin!(self.entries(root.to_owned()));
            while let Some(listed) = entries.try_next().await? {
                let Some(entry) = Entry::parse(&listed.key) else { continue };
                let now = self.now()?;
                let is_new = entry.rev == 1 && !matches!(entry.location, IndexLocation::Lease(_));
                if is_new && now.is_due(entry.bucket.start()) && now.is_past(listed.modified.plus(IN_MOTION))
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
        let now = self.client.host().instant();
        let unknown = self.entry_checks.unknown(entries, now);
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
            self.entry_checks.record(entry, exists, now);
        }
        Ok(self.entry_checks.without_task(entries))
    }

    /// Parses the names of shards; an empty list means all.
    pub fn shards(&self, names: &[String]) -> Result<Vec<Shard>> {
        let len = self.shard_len();
        if names.is_empty() { Ok(len.all()) } else { names.iter().map(|name| len.parse(name)).collect() }
    }
}

impl Stats {
    fn count(&mut self, entry: &Entry, len: ShardLen, now: leasehold_core::Now) {
        let shard = len.shard_of(&entry.id).to_string();
        let shard = self.shards.entry(shard).or_default();
        let is_due = now.is_due(entry.bucket.start());
        match entry.location {
            IndexLocation::Lease(_) => {
                shard[2] += 1;
                self.running += 1;
            }
            _ if is_due => {
                shard[0] += 1;
                self.due += 1;
                let waited = now.earliest.since(Minute::start(entry.bucket)).as_secs();
                self.oldest_due_secs = self.oldest_due_secs.max(Some(waited));
            }
            _ => {
                shard[1] += 1;
                self.scheduled += 1;
            }
        }
    }
}

pub(crate) fn unknown_task(id: &TaskId) -> Error {
    Error::invalid(format!("no task {id} in this queue")).with_reason(Reason::Missing)
}
