//! Reads: one task, lists, counts. They show the decided state, with the renewals of claims.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use super::state::{JournalState, LoadedTask};
use super::task::JournalTask;
use super::types::{ReadyKey, TypeRow};
use crate::error::Result;
use crate::filter::Filter;
use crate::ids::{TaskId, TaskIdPrefix, TaskType, WorkerId};
use crate::task::{Status, Task};
use crate::time::Minute;

/// Maximum number of ids found for a prefix: enough to tell that it is ambiguous.
const FOUND_MAX: usize = 10;

/// One page of a list.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TaskPage {
    /// Tasks that match, in the order of their ids.
    pub tasks: Vec<Task>,
    /// Id after which the next page begins; none if this was the last.
    pub next: Option<TaskId>,
}

/// One page of an export.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ExportPage {
    /// Tasks in the order of their ids.
    pub tasks: Vec<JournalTask>,
    /// Id after which the next page begins; none if this was the last.
    pub next: Option<TaskId>,
}

/// Number of live tasks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JournalCounts {
    /// Pending tasks that were due at the last [`JournalState::advance`].
    pub due: u64,
    /// Pending tasks that are scheduled for later.
    pub scheduled: u64,
    /// Minute in which the oldest due task became available.
    pub oldest_due: Option<Minute>,
    /// Tasks by type and status, without zeros.
    pub types: BTreeMap<TaskType, BTreeMap<Status, u64>>,
}

impl JournalState {
    /// Reads a task.
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

    /// Lists the tasks that match a filter, in the order of their ids. At most `max` tasks are examined, so that a page
    /// takes a limited time; it may have fewer tasks, or none, although another page follows.
    pub fn list(&self, filter: &Filter, after: Option<TaskId>, max: usize) -> Result<TaskPage> {
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut examined = self.tasks.range((start, Bound::Unbounded));
        let mut page = TaskPage::default();
        for (id, live) in examined.by_ref().take(max) {
            page.next = Some(*id);
            let task_type = &self.indexes.types.row(live.indexed.task_type).name;
            if filter.includes(live.indexed.status, task_type.as_str()) {
                let task = live.load()?.into_current();
                page.tasks.extend(Some(task).filter(|task| filter.matches(task)));
            }
        }
        page.next = page.next.filter(|_| examined.next().is_some());
        Ok(page)
    }

    /// Exports at most `max` tasks, in the order of their ids.
    pub fn export(&self, after: Option<TaskId>, max: usize) -> Result<ExportPage> {
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut live = self.tasks.range((start, Bound::Unbounded));
        let mut page = ExportPage::default();
        for (id, live) in live.by_ref().take(max) {
            let loaded = live.load()?;
            let (key, claim) = (loaded.logged.key, loaded.logged.claim);
            page.tasks.push(JournalTask { task: loaded.into_current(), key, claim });
            page.next = Some(*id);
        }
        page.next = page.next.filter(|_| live.next().is_some());
        Ok(page)
    }

    /// Ids that begin with these characters: all of them, or enough to tell that they are ambiguous.
    #[must_use]
    pub fn find(&self, prefix: &TaskIdPrefix) -> BTreeSet<TaskId> {
        let ids = self.tasks.range(prefix.first_id()..).map(|(id, _)| *id);
        ids.take_while(|id| prefix.matches(id)).take(FOUND_MAX).collect()
    }

    /// Counts the live tasks. Takes time by the number of types, not of tasks.
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
        }
    }

    /// Workers that hold tasks, with the tasks of each.
    pub fn workers(&self) -> impl Iterator<Item = (&WorkerId, &BTreeSet<TaskId>)> {
        self.indexes.workers.iter()
    }
}
