//! Reads: one task, lists, counts. They show the decided state, with the renewals of claims.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use super::archive::ArchiveRef;
use super::state::{JournalState, LiveTask, LoadedTask};
use super::task::JournalTask;
use super::types::{ReadyKey, TypeRow};
use crate::error::Result;
use crate::filter::Filter;
use crate::ids::{TaskId, TaskIdPrefix, TaskType, WorkerId};
use crate::limits::{ARCHIVE_PAGE_BYTES, PAGE_BYTES_MAX};
use crate::task::{Status, Task};
use crate::time::Minute;

/// Maximum number of ids found for a prefix: enough to tell that it is ambiguous.
const FOUND_MAX: usize = 10;

/// Place of a task.
#[derive(Debug, Clone, PartialEq)]
pub enum TaskPlace {
    /// It is live.
    Live(Box<Task>),
    /// It is not live. One of these objects may have it; without objects it does not exist.
    Archived(Vec<ArchiveRef>),
}

/// One page of a list: the tasks with ids of one range.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TaskPage {
    /// Live tasks that match, in the order of their ids.
    pub tasks: Vec<Task>,
    /// Archived tasks of the range.
    pub archived: ArchivedRange,
    /// Id with which the next page begins; none if this was the last.
    pub next: Option<TaskId>,
}

/// One page of an export: the tasks with ids of one range.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ExportPage {
    /// Live tasks in the order of their ids.
    pub tasks: Vec<JournalTask>,
    /// Archived tasks of the range.
    pub archived: ArchivedRange,
    /// Id with which the next page begins; none if this was the last.
    pub next: Option<TaskId>,
}

/// Archived tasks with ids of a range: those of these objects that are in the range and not outdated.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ArchivedRange {
    /// Objects that have some of them.
    pub objects: Vec<ArchiveRef>,
    /// First id of the range; none for the smallest.
    pub first: Option<TaskId>,
    /// End of the range, which is not part of it; none if it has no end.
    pub end: Option<TaskId>,
}

impl ArchivedRange {
    /// True if an id is in the range.
    #[must_use]
    pub fn includes(&self, id: &TaskId) -> bool {
        self.first.is_none_or(|first| first <= *id) && self.end.is_none_or(|end| *id < end)
    }
}

/// Number of tasks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalCounts {
    /// Pending tasks that were due at the last [`JournalState::advance`].
    pub due: u64,
    /// Pending tasks that are scheduled for later.
    pub scheduled: u64,
    /// Minute in which the oldest due task became available.
    pub oldest_due: Option<Minute>,
    /// Live tasks by type and status, without zeros.
    pub types: BTreeMap<TaskType, BTreeMap<Status, u64>>,
    /// Archived tasks by status, without zeros.
    pub archived: BTreeMap<Status, u64>,
}

impl JournalState {
    /// Reads a live task.
    pub fn get(&self, id: &TaskId) -> Result<Option<Task>> {
        Ok(self.load(id)?.map(LoadedTask::into_current))
    }

    /// Number of live tasks.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tasks.len()
    }

    /// True if there are no live tasks.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Finds the place of a task.
    pub fn place(&self, id: &TaskId) -> Result<TaskPlace> {
        Ok(match self.get(id)? {
            Some(task) => TaskPlace::Live(Box::new(task)),
            None => TaskPlace::Archived(self.archive.covering(id)),
        })
    }

    /// Objects of the archive that may have a task which is not live.
    #[must_use]
    pub fn archived_in(&self, id: &TaskId) -> Vec<ArchiveRef> {
        if self.tasks.contains_key(id) { Vec::new() } else { self.archive.covering(id) }
    }

    /// Objects of the archive with at least this many tasks, those first whose tasks have ended last.
    #[must_use]
    pub fn newest_archived(&self, tasks: u64) -> Vec<ArchiveRef> {
        let mut objects: Vec<_> = self.archive.objects().filter(|object| object.tasks() > 0).collect();
        objects.sort_by_key(|object| std::cmp::Reverse(object.latest));
        let mut found = 0;
        let needed = objects.into_iter().take_while(|object| {
            let is_needed = found < tasks;
            found += object.tasks();
            is_needed
        });
        needed.cloned().collect()
    }

    /// Lists the tasks that match a filter, in the order of their ids, from an id on. At most `max` live tasks are examined,
    /// so that a page takes a limited time; it may have fewer tasks, or none, although another page follows. Tasks that
    /// are evicted must have been read back: see [`list_needs`](Self::list_needs).
    pub fn list(&self, filter: &Filter, first: Option<TaskId>, max: usize) -> Result<TaskPage> {
        let may_match =
            |object: &ArchiveRef| filter.status.is_none_or(|status| object.counts.contains_key(&status));
        let archived = self.page_range(first, max, |live| self.includes(filter, live), may_match);
        let mut tasks = Vec::new();
        for (id, live) in self.live_in(&archived) {
            if self.includes(filter, live) {
                let task = live.load(id)?.into_current();
                tasks.extend(Some(task).filter(|task| filter.matches(task)));
            }
        }
        let next = archived.end;
        Ok(TaskPage { tasks, archived, next })
    }

    /// Evicted task of a page of a [list](Self::list).
    #[must_use]
    pub fn list_needs(&self, filter: &Filter, first: Option<TaskId>, max: usize) -> Option<TaskId> {
        self.page_needs(first, max, |live| self.includes(filter, live))
    }

    /// Evicted task of a page of an [export](Self::export).
    #[must_use]
    pub fn export_needs(&self, first: Option<TaskId>, max: usize) -> Option<TaskId> {
        self.page_needs(first, max, |_| true)
    }

    fn page_needs(
        &self,
        first: Option<TaskId>,
        max: usize,
        is_read: impl Fn(&LiveTask) -> bool,
    ) -> Option<TaskId> {
        let range = self.page_range(first, max, &is_read, |_| false);
        let mut page = self.live_in(&range);
        page.find(|(_, live)| live.is_evicted() && is_read(live)).map(|(id, _)| *id)
    }

    /// True if a filter may match a task, by its index.
    fn includes(&self, filter: &Filter, live: &LiveTask) -> bool {
        let task_type = &self.indexes.types.row(live.indexed.task_type).name;
        filter.includes(live.indexed.status, task_type.as_str())
    }

    /// Exports at most `max` live tasks, and the archived ones beside them, in the order of their ids.
    pub fn export(&self, first: Option<TaskId>, max: usize) -> Result<ExportPage> {
        let archived = self.page_range(first, max, |_| true, |_| true);
        let mut tasks = Vec::new();
        for (id, live) in self.live_in(&archived) {
            let loaded = live.load(id)?;
            let (key, claim) = (loaded.logged.key, loaded.logged.claim);
            tasks.push(JournalTask { task: loaded.into_current(), key, claim });
        }
        let next = archived.end;
        Ok(ExportPage { tasks, archived, next })
    }

    /// Range of a page: from an id on, with at most `max` live tasks, of which those that are read have a limited size, and
    /// with archive objects of a limited size.
    fn page_range(
        &self,
        first: Option<TaskId>,
        max: usize,
        is_read: impl Fn(&LiveTask) -> bool,
        may_match: impl Fn(&ArchiveRef) -> bool,
    ) -> ArchivedRange {
        let start = first.map_or(Bound::Unbounded, Bound::Included);
        let mut read_bytes = 0;
        let is_end = |(place, (_, live)): &(usize, (_, &LiveTask))| {
            read_bytes += if is_read(live) { live.bytes() } else { 0 };
            *place == max || (*place > 0 && read_bytes > PAGE_BYTES_MAX)
        };
        let mut live = self.tasks.range((start, Bound::Unbounded)).enumerate();
        let mut end = live.find(is_end).map(|(_, (id, _))| *id);
        let (mut objects, mut bytes) = (Vec::new(), 0);
        for object in self.archive.overlapping(first, end) {
            if !may_match(object) || end.is_some_and(|end| object.name.first() >= end) {
                continue;
            }
            bytes += object.bytes;
            // Few objects cover the first id, so that every page gets further.
            let begins_later = first.is_none_or(|first| object.name.first() > first);
            if bytes > ARCHIVE_PAGE_BYTES && begins_later && !objects.is_empty() {
                end = Some(object.name.first());
                break;
            }
            objects.push(object.clone());
        }
        ArchivedRange { objects, first, end }
    }

    fn live_in(&self, range: &ArchivedRange) -> impl Iterator<Item = (&TaskId, &LiveTask)> {
        let start = range.first.map_or(Bound::Unbounded, Bound::Included);
        let end = range.end.map_or(Bound::Unbounded, Bound::Excluded);
        self.tasks.range((start, end))
    }

    /// Live ids that begin with these characters: all of them, or enough to tell that they are ambiguous. And the objects of
    /// the archive that may have more.
    #[must_use]
    pub fn find(&self, prefix: &TaskIdPrefix) -> (BTreeSet<TaskId>, Vec<ArchiveRef>) {
        let ids = self.tasks.range(prefix.first_id()..).map(|(id, _)| *id);
        let ids = ids.take_while(|id| prefix.matches(id)).take(FOUND_MAX).collect();
        let objects = self.archive.overlapping(Some(prefix.first_id()), None).into_iter();
        let objects = objects.filter(|object| object.name.first() <= prefix.last_id()).cloned();
        (ids, objects.collect())
    }

    /// Counts the tasks. Takes time by the number of types and of archive objects, not of tasks.
    #[must_use]
    pub fn counts(&self) -> JournalCounts {
        let rows = || self.indexes.types.rows();
        let by_status = |row: &TypeRow| {
            let counts = Status::ALL.into_iter().zip(row.counts);
            counts.filter(|(_, count)| *count > 0).collect()
        };
        JournalCounts {
            due: rows().map(|row| row.ready.len() as u64).sum(),
            scheduled: self.indexes.scheduled.len() as u64,
            oldest_due: rows().filter_map(|row| row.ready.first()).map(ReadyKey::minute).min(),
            types: rows().map(|row| (row.name.clone(), by_status(row))).collect(),
            archived: self.archive.counts(),
        }
    }

    /// True if a task is due. Takes time by the number of types.
    #[must_use]
    pub fn has_due(&self) -> bool {
        self.indexes.types.rows().any(|row| !row.ready.is_empty())
    }

    /// Workers that hold tasks, with the tasks of each.
    pub fn workers(&self) -> impl Iterator<Item = (&WorkerId, &BTreeSet<TaskId>)> {
        self.indexes.workers.iter()
    }
}
