//! Compact table of all tasks as last read: a quarter of a million of them fit into memory.
//!
//! A row keeps only what lists, counts and filters need: of an input its first characters, for the search, and nothing of an
//! output. The rest is read when a task is opened. Repeated values (types, workers, tags, errors, equal inputs) are
//! interned.
//!
//! The timestamp in a list decides whether a task has to be read again. Some stores have timestamps in whole seconds, so a
//! task can change twice under one timestamp; a task that was read too soon after its timestamp is read once more.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::task::Change;
use leasehold_core::{State, Status, StoreTime, Task, TaskId};
use leasehold_queue::ListedTask;

use crate::cost::{self, Requests};

/// Largest number of tasks in the table: about a hundred megabytes, and up to a hundred more if all have long inputs. The
/// page shows a warning when there are more.
const ROWS_MAX: usize = 250_000;
/// Part of a full table that is emptied at once.
const ROOM_PART: usize = 16;
/// Number of characters kept of an error.
const ERROR_CHARS_MAX: usize = 200;
/// Number of characters kept of an input, for the search.
const INPUT_CHARS_MAX: usize = 200;
/// Time after its timestamp during which a task may still be written under the same one: a second, plus clock skew between
/// servers.
const SETTLED: Duration = Duration::from_secs(3);

pub(crate) type Tags = BTreeMap<String, String>;

/// Row of a task.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) id: TaskId,
    pub(crate) task_type: Arc<str>,
    pub(crate) shard: Arc<str>,
    pub(crate) status: Status,
    pub(crate) attempt: u32,
    pub(crate) max_attempts: u32,
    pub(crate) priority: u8,
    pub(crate) created_at: StoreTime,
    pub(crate) updated_at: StoreTime,
    pub(crate) available_at: Option<StoreTime>,
    pub(crate) finished_at: Option<StoreTime>,
    /// Current or last holder.
    pub(crate) worker: Option<Arc<str>>,
    pub(crate) tags: Arc<Tags>,
    /// Idempotency key.
    pub(crate) key: Option<Arc<str>>,
    /// Beginning of the input, as JSON without spaces.
    pub(crate) input: Arc<str>,
    pub(crate) error: Option<Arc<str>>,
    /// Time from submission to the first claim.
    pub(crate) waited: Option<Duration>,
    /// Time from the last claim to the end.
    pub(crate) ran: Option<Duration>,
    /// Requests derived from the history.
    pub(crate) requests: Requests,
    /// Outpost that has finished the task offline.
    pub(crate) outpost: Option<Arc<str>>,
    rev: u64,
    /// Timestamp and size in the list when it was read; `None` if it was not read by a list.
    modified_and_size: Option<(StoreTime, u64)>,
    is_settled: bool,
    listed_in: u64,
}

impl Row {
    /// True if the task is pending and due.
    pub(crate) fn is_due(&self, now: StoreTime) -> bool {
        self.available_at.is_some_and(|at| at <= now)
    }
}

/// Result of putting a task into the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RowChange {
    /// The row has changed.
    Yes,
    /// The row is the same, or already newer.
    No,
    /// The table has no room for the task.
    Full,
}

/// A listed object that is not a task: a forwarding marker, the tombstone of an abandoned submit, or a corrupt record.
#[derive(Debug)]
struct NonTask {
    modified_and_size: (StoreTime, u64),
    is_settled: bool,
    is_corrupt: bool,
    listed_in: u64,
}

/// All tasks.
#[derive(Debug)]
pub(crate) struct TaskTable {
    rows: HashMap<TaskId, Row>,
    /// Largest number of rows.
    capacity: usize,
    /// True if there was no finished task when room was needed, and none has been added since.
    has_no_finished: bool,
    texts: Interned<str>,
    tags: Interned<Tags>,
    /// Listed objects that are not tasks, by key, so that they are not read again.
    non_tasks: HashMap<String, NonTask>,
    /// Number of the current or last pass.
    pass: u64,
    /// Number of tasks finished since `since`, by status.
    finished: BTreeMap<Status, u64>,
    since: Option<StoreTime>,
}

impl Default for TaskTable {
    fn default() -> Self {
        Self::with_capacity(ROWS_MAX)
    }
}

impl TaskTable {
    /// Creates an empty table with room for this many tasks.
    pub(crate) fn with_capacity(capacity: usize) -> Self {
        Self {
            rows: HashMap::new(),
            capacity,
            has_no_finished: false,
            texts: Interned::default(),
            tags: Interned::default(),
            non_tasks: HashMap::new(),
            pass: 0,
            finished: BTreeMap::new(),
            since: None,
        }
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    pub(crate) fn rows(&self) -> impl Iterator<Item = &Row> {
        self.rows.values()
    }

    pub(crate) fn get(&self, id: &TaskId) -> Option<&Row> {
        self.rows.get(id)
    }

    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    /// Number of tasks finished since the first pass, by status.
    pub(crate) fn finished(&self) -> &BTreeMap<Status, u64> {
        &self.finished
    }

    /// Starts a pass over all tasks.
    pub(crate) fn begin_pass(&mut self, now: StoreTime) {
        self.pass += 1;
        self.since.get_or_insert(now);
    }

    /// Ends a pass: removes the rows that it has not listed, and returns their number.
    pub(crate) fn end_pass(&mut self) -> usize {
        let (before, pass) = (self.rows.len(), self.pass);
        self.rows.retain(|_, row| row.listed_in == pass);
        self.non_tasks.retain(|_, non_task| non_task.listed_in == pass);
        self.texts.drop_unused();
        self.tags.drop_unused();
        before - self.rows.len()
    }

    /// Ends a pass over live tasks: removes the rows of unfinished tasks that it has not listed.
    pub(crate) fn end_pass_over_live(&mut self) -> usize {
        let (before, pass) = (self.rows.len(), self.pass);
        self.rows.retain(|_, row| row.listed_in == pass || row.status.is_final());
        before - self.rows.len()
    }

    /// Number of finished tasks in the table.
    pub(crate) fn final_len(&self) -> usize {
        self.rows.values().filter(|row| row.status.is_final()).count()
    }

    /// Stores a task that was read or written; if the table is full, in place of some that ended first.
    pub(crate) fn put_newest(&mut self, task: &Task) -> RowChange {
        match self.put(task) {
            RowChange::Full if self.make_room() => self.put(task),
            changed => changed,
        }
    }

    /// Removes a part of the finished tasks, those that ended first. Returns false if there are none.
    fn make_room(&mut self) -> bool {
        if self.has_no_finished {
            return false;
        }
        let mut ends: Vec<_> =
            self.rows.values().filter_map(|row| Some((row.finished_at?, row.id))).collect();
        let removed = (self.capacity / ROOM_PART).max(1).min(ends.len());
        if removed == 0 {
            self.has_no_finished = true;
            return false;
        }
        ends.select_nth_unstable(removed - 1);
        for (_, id) in &ends[..removed] {
            self.rows.remove(id);
        }
        true
    }

    /// Records a listed task. Returns true if it has to be read.
    pub(crate) fn note_listed(&mut self, listed: &ListedTask) -> bool {
        let modified_and_size = (listed.modified, listed.size);
        if let Some(non_task) = self.non_tasks.get_mut(&listed.key)
            && non_task.modified_and_size == modified_and_size
            && non_task.is_settled
        {
            non_task.listed_in = self.pass;
            return false;
        }
        let is_full = self.rows.len() >= self.capacity;
        let Some(row) = self.rows.get_mut(&listed.id) else { return !is_full };
        row.listed_in = self.pass;
        !row.is_settled || row.modified_and_size != Some(modified_and_size)
    }

    /// Stores a listed task that was read. `now` is a time before the read.
    pub(crate) fn put_listed(&mut self, listed: &ListedTask, task: &Task, now: StoreTime) -> RowChange {
        let changed = self.put(task);
        if let Some(row) = self.rows.get_mut(&task.id)
            && row.rev == task.rev
        {
            row.modified_and_size = Some((listed.modified, listed.size));
            row.is_settled = now.since(listed.modified) >= SETTLED;
        }
        changed
    }

    /// Records a listed object that is not a task.
    pub(crate) fn put_non_task(
        &mut self,
        listed: &ListedTask,
        is_corrupt: bool,
        now: StoreTime,
    ) -> RowChange {
        if self.non_tasks.len() < self.capacity {
            let (modified_and_size, listed_in) = ((listed.modified, listed.size), self.pass);
            let is_settled = now.since(listed.modified) >= SETTLED;
            let non_task = NonTask { modified_and_size, is_settled, is_corrupt, listed_in };
            self.non_tasks.insert(listed.key.clone(), non_task);
        }
        RowChange::No
    }

    /// Number of corrupt records.
    pub(crate) fn corrupt(&self) -> u64 {
        self.non_tasks.values().filter(|non_task| non_task.is_corrupt).count() as u64
    }

    /// Stores a task that was read or written.
    pub(crate) fn put(&mut self, task: &Task) -> RowChange {
        let old = self.rows.get_mut(&task.id);
        if let Some(old) = old {
            old.listed_in = self.pass;
            // Two reads may arrive out of order.
            if old.rev >= task.rev {
                return RowChange::No;
            }
        } else if self.rows.len() >= self.capacity {
            return RowChange::Full;
        }
        let row = self.row(task);
        self.count_finished(&row);
        self.has_no_finished &= row.finished_at.is_none();
        self.rows.insert(task.id, row);
        RowChange::Yes
    }

    /// Removes a task that no longer exists.
    pub(crate) fn remove(&mut self, id: &TaskId) -> RowChange {
        if self.rows.remove(id).is_some() { RowChange::Yes } else { RowChange::No }
    }

    fn count_finished(&mut self, row: &Row) {
        let before = self.rows.get(&row.id).and_then(|old| old.finished_at);
        if let (Some(finished), Some(since)) = (row.finished_at, self.since)
            && finished >= since
            && before != Some(finished)
        {
            *self.finished.entry(row.status).or_default() += 1;
        }
    }

    fn row(&mut self, task: &Task) -> Row {
        let times = Times::of(task);
        let worker = match &task.state {
            State::Running(claim) => Some(claim.by.as_str()),
            _ => times.worker,
        };
        let available_at =
            if let State::Pending { available_at } = task.state { Some(available_at) } else { None };
        let outpost = task.history.events().rev().find(|change| change.event.ends_with("_offline"));
        let error = task.error.as_deref().map(|error| shortened(informative_part(error), ERROR_CHARS_MAX));
        let input = task.input.to_string();
        Row {
            id: task.id,
            task_type: self.texts.get(task.task_type.as_str()),
            shard: self.texts.get(task.shard.as_str()),
            status: task.status(),
            attempt: task.attempt,
            max_attempts: task.max_attempts,
            priority: task.priority.into(),
            created_at: task.created_at,
            updated_at: task.updated_at,
            available_at,
            finished_at: task.state.finished_at(),
            worker: worker.map(|worker| self.texts.get(worker)),
            tags: self.tags.get(&task.tags),
            key: task.idempotency_key.as_deref().map(|key| self.texts.get(key)),
            input: self.texts.get(shortened(&input, INPUT_CHARS_MAX)),
            error: error.map(|error| self.texts.get(error)),
            waited: times.first_claim.map(|at| at.since(task.created_at)),
            ran: task.state.finished_at().zip(times.last_claim).map(|(end, at)| end.since(at)),
            requests: cost::of_history(task.history.events()),
            outpost: outpost.map(|change| self.texts.get(&change.by)),
            rev: task.rev,
            modified_and_size: None,
            is_settled: false,
            listed_in: self.pass,
        }
    }
}

/// First and last claim of a task, and its last worker.
struct Times<'a> {
    first_claim: Option<StoreTime>,
    last_claim: Option<StoreTime>,
    worker: Option<&'a str>,
}

impl<'a> Times<'a> {
    fn of(task: &'a Task) -> Self {
        let is_claim = |change: &&Change| {
            change.to == Status::Running && change.from != Some(Status::Running)
                || change.event == "take over"
        };
        let mut claims = task.history.events().filter(is_claim);
        let first = claims.next();
        let last = claims.next_back().or(first);
        Self {
            first_claim: first.map(|claim| claim.at),
            last_claim: last.map(|claim| claim.at),
            worker: last.map(|claim| claim.by.as_str()),
        }
    }
}

/// Most informative part of an error: the last line of a traceback, otherwise the whole text.
fn informative_part(error: &str) -> &str {
    if error.starts_with("Traceback") {
        error.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or(error)
    } else {
        error
    }
}

fn shortened(text: &str, chars_max: usize) -> &str {
    text.char_indices().nth(chars_max).map_or(text, |(end, _)| &text[..end])
}

/// Interned values.
#[derive(Debug)]
struct Interned<T: ?Sized>(HashSet<Arc<T>>);

impl<T: ?Sized> Default for Interned<T> {
    fn default() -> Self {
        Self(HashSet::new())
    }
}

impl<T: ?Sized + Eq + Hash> Interned<T> {
    fn get(&mut self, value: &T) -> Arc<T>
    where
        T: ToOwned,
        Arc<T>: From<T::Owned>,
    {
        if let Some(known) = self.0.get(value) {
            return known.clone();
        }
        let new = Arc::<T>::from(value.to_owned());
        self.0.insert(new.clone());
        new
    }

    /// Drops unused values.
    fn drop_unused(&mut self) {
        self.0.retain(|value| Arc::strong_count(value) > 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_shortened_by_characters_not_bytes() {
        assert_eq!(informative_part("Traceback:\n  line 1\nOSError: no\n\n"), "OSError: no");
        assert_eq!(informative_part("refused\nTraceback"), "refused\nTraceback");
        assert_eq!(shortened("short", 5), "short");
        assert_eq!(shortened(&"ä".repeat(500), ERROR_CHARS_MAX), "ä".repeat(ERROR_CHARS_MAX));
    }
}
