//! Plans: which tasks are archived, and which objects are merged.
//!
//! Two rules limit the objects of a day, so that the table stays small and a read needs at most three of them:
//!
//! * **Depth.** No id is covered by more than [`ARCHIVE_DEPTH_MAX`] objects. New tasks that would break the rule are merged
//!   with the smallest of the objects that cover its ids. The result has no overlaps in itself, so that it counts once.
//! * **Small objects.** A day has a limited number of objects below [`ARCHIVE_SMALL_BYTES`]; when there are more, all of
//!   them are merged. The newest day may have more than the others, which seldom get new tasks.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::time::Duration;

use super::super::state::{JournalState, LiveTask, TaskBody};
use super::super::task::EncodedTask;
use super::{ArchiveDay, ArchiveName, ArchiveRef, ArchiveTable};
use crate::ids::TaskId;
use crate::limits::{
    ARCHIVE_AGE, ARCHIVE_DEPTH_MAX, ARCHIVE_EXAMINED_MAX, ARCHIVE_KEPT, ARCHIVE_MERGE_BYTES_MAX,
    ARCHIVE_OBJECTS_MAX, ARCHIVE_SMALL_BYTES, ARCHIVE_SMALL_MAX, ARCHIVE_SMALL_OLD_MAX, CHUNK_BYTES,
    FINAL_LIVE_MAX,
};
use crate::time::{Now, StoreTime};

/// Times and numbers of the archive. Every value is safe; the defaults are those of [`limits`](crate::limits).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArchiveLimits {
    /// Time since its end after which a task is archived.
    pub age: Duration,
    /// Number of final tasks that are kept live within that time.
    pub final_live: usize,
    /// Number of small objects of the newest day.
    pub small: usize,
    /// Time for which a removed object is kept.
    pub kept: Duration,
}

impl Default for ArchiveLimits {
    fn default() -> Self {
        Self { age: ARCHIVE_AGE, final_live: FINAL_LIVE_MAX, small: ARCHIVE_SMALL_MAX, kept: ARCHIVE_KEPT }
    }
}

/// Tasks of one day that are to be archived, sorted by id.
#[derive(Debug, Clone)]
pub struct ArchiveBatch {
    /// The tasks.
    pub tasks: Vec<EncodedTask>,
}

/// One page of the tasks that are to be archived.
#[derive(Debug, Clone, Default)]
pub struct ArchivePage {
    /// Batches of one day each.
    pub batches: Vec<ArchiveBatch>,
    /// Position among the final tasks after which the next page begins; none if this was the last.
    pub next: Option<(StoreTime, TaskId)>,
    /// First task of the page, if it is [evicted](crate::journal::evicted): then the page is to be repeated.
    pub evicted: Option<TaskId>,
}

impl JournalState {
    /// Tasks that may be archived: those that ended long enough ago, and the oldest of too many. A task with an idempotency
    /// key that has not expired stays live, because submits look the key up. Reads at most one object's worth of tasks, and ends
    /// before an evicted one.
    #[must_use]
    pub fn archivable(
        &self,
        after: Option<(StoreTime, TaskId)>,
        now: Now,
        limits: &ArchiveLimits,
    ) -> ArchivePage {
        let mut page = ArchivePage::default();
        if self.archive.len() >= ARCHIVE_OBJECTS_MAX {
            return page;
        }
        let finished = &self.indexes.finished;
        let excess = finished.len().saturating_sub(limits.final_live);
        let newest_excess = excess.checked_sub(1).and_then(|place| finished.iter().nth(place)).copied();
        let is_due = |place: &&(StoreTime, TaskId)| {
            now.is_past(place.0.plus(limits.age)) || newest_excess.is_some_and(|newest| **place <= newest)
        };
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut due = finished.range((start, Bound::Unbounded)).take_while(is_due).peekable();
        let (mut tasks, mut bytes) = (Vec::new(), 0);
        for _ in 0..ARCHIVE_EXAMINED_MAX {
            let Some(place) = due.peek() else { break };
            let live = self.tasks.get(&place.1);
            if live.is_some_and(LiveTask::is_evicted) {
                page.evicted = Some(place.1).filter(|_| page.next.is_none());
                break;
            }
            page.next = due.next().copied();
            // A corrupt task is left in place; reading it by its id shows the error.
            let task = live.and_then(final_task);
            if let Some(task) = task.filter(|task| task.key_expires_at().is_none_or(|at| now.is_past(at))) {
                bytes += task.body().len() + 1;
                tasks.push(task);
            }
            if bytes >= CHUNK_BYTES {
                break;
            }
        }
        page.next = page.next.filter(|_| due.peek().is_some());
        tasks.sort_by_key(|task| (ArchiveDay::of(&task.id()), task.id()));
        let same_day = |a: &EncodedTask, b: &EncodedTask| ArchiveDay::of(&a.id()) == ArchiveDay::of(&b.id());
        page.batches = tasks.chunk_by(same_day).map(|tasks| ArchiveBatch { tasks: tasks.to_vec() }).collect();
        page
    }
}

fn final_task(live: &LiveTask) -> Option<EncodedTask> {
    let TaskBody::Encoded(body) = &live.body else { return None };
    EncodedTask::read(body).ok().filter(|task| task.status().is_final())
}

impl ArchiveBatch {
    /// Divides it into two halves; none if it has a single task.
    #[must_use]
    pub fn split(mut self) -> Option<(Self, Self)> {
        let rest = self.tasks.split_off(self.tasks.len() / 2);
        (!self.tasks.is_empty()).then_some((self, Self { tasks: rest }))
    }

    fn range(&self) -> Option<(TaskId, TaskId)> {
        Some((self.tasks.first()?.id(), self.tasks.last()?.id()))
    }
}

impl ArchiveTable {
    /// Objects that must be merged with a batch; none if they have more bytes than a broker reads at once, so that the batch
    /// is to be divided. A batch of one task always has a result.
    #[must_use]
    pub fn merge_with(&self, batch: &ArchiveBatch, limits: &ArchiveLimits) -> Option<Vec<ArchiveRef>> {
        let Some(range) = batch.range() else { return Some(Vec::new()) };
        let day = ArchiveDay::of(&range.0);
        let all: Vec<_> = self.of_day(day).collect();
        let fits = |merged: &[ArchiveRef]| {
            merged.iter().map(|object| object.bytes).sum::<u64>() <= ARCHIVE_MERGE_BYTES_MAX
        };
        let small: BTreeSet<_> =
            all.iter().filter(|object| is_small(object)).map(|object| &object.name).collect();
        if small.len() >= self.small_max(day, limits) {
            let merged = with_covering(&all, small, Some(range));
            if fits(&merged) {
                return Some(merged);
            }
        }
        let merged = with_covering(&all, BTreeSet::new(), Some(range));
        (fits(&merged) || batch.tasks.len() == 1).then_some(merged)
    }

    /// Objects that are to be merged although no task is archived: too many small ones of one day, or one without tasks.
    #[must_use]
    pub fn next_merge(&self, limits: &ArchiveLimits) -> Option<Vec<ArchiveRef>> {
        if let Some(empty) = self.objects().find(|object| object.counts.is_empty()) {
            return Some(vec![empty.clone()]);
        }
        let days: BTreeSet<_> = self.objects().map(|object| object.name.day()).collect();
        days.into_iter().find_map(|day| {
            let all: Vec<_> = self.of_day(day).collect();
            let small: BTreeSet<_> =
                all.iter().filter(|object| is_small(object)).map(|object| &object.name).collect();
            let merged =
                (small.len() > self.small_max(day, limits)).then(|| with_covering(&all, small, None))?;
            let bytes = merged.iter().map(|object| object.bytes).sum::<u64>();
            (bytes <= ARCHIVE_MERGE_BYTES_MAX).then_some(merged)
        })
    }

    fn small_max(&self, day: ArchiveDay, limits: &ArchiveLimits) -> usize {
        let is_dated = |name: &&ArchiveName| name.day() != ArchiveDay::UNDATED;
        let newest = self.objects.keys().rev().find(is_dated).map(ArchiveName::day);
        let is_newest = newest.is_none_or(|newest| day >= newest);
        if is_newest { limits.small.max(1) } else { ARCHIVE_SMALL_OLD_MAX.min(limits.small).max(1) }
    }
}

fn is_small(object: &ArchiveRef) -> bool {
    object.bytes < ARCHIVE_SMALL_BYTES
}

/// Adds objects of a day to those that are merged, until no id is covered by too many objects after the merge. The result of the
/// merge counts as one object that covers the whole range of its ids.
fn with_covering<'a>(
    all: &[&'a ArchiveRef],
    mut merged: BTreeSet<&'a ArchiveName>,
    range: Option<(TaskId, TaskId)>,
) -> Vec<ArchiveRef> {
    let by_name = |merged: &BTreeSet<&ArchiveName>| {
        all.iter().filter(|object| merged.contains(&object.name)).map(|object| (*object).clone()).collect()
    };
    loop {
        let firsts = merged.iter().map(|name| name.first()).chain(range.map(|range| range.0));
        let lasts = merged.iter().map(|name| name.last()).chain(range.map(|range| range.1));
        let (Some(first), Some(last)) = (firsts.min(), lasts.max()) else { return by_name(&merged) };
        let others = all.iter().filter(|object| {
            !merged.contains(&object.name) && object.name.first() <= last && object.name.last() >= first
        });
        let others: Vec<_> = others.copied().collect();
        let Some(smallest) = smallest_of_too_many(&others, first) else { return by_name(&merged) };
        merged.insert(&smallest.name);
    }
}

/// Smallest of the objects that cover one id, if they are so many that no further object may cover it; none if there is no such id.
fn smallest_of_too_many<'a>(sorted: &[&'a ArchiveRef], first: TaskId) -> Option<&'a ArchiveRef> {
    let mut covering: Vec<&ArchiveRef> = Vec::new();
    for object in sorted {
        let id = object.name.first().max(first);
        covering.retain(|other| other.name.last() >= id);
        covering.push(*object);
        if covering.len() >= ARCHIVE_DEPTH_MAX {
            return covering.into_iter().min_by_key(|object| (object.bytes, &object.name));
        }
    }
    None
}
