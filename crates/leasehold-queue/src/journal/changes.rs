//! Tasks that have changed lately. A reader that shows a queue as it changes requests only the changes after its last page.
//!
//! The ids of the last changes are kept in memory, by the broker and by a process that follows the log. A reader whose position is
//! not among them, because too much has changed or the source is another one, starts over: it reads all tasks once.

use leasehold_core::journal::{JournalRecord, JournalState};
use leasehold_core::limits::BROKER_PAGE_MAX;
use leasehold_core::{Result, Task, TaskId};
use serde::{Deserialize, Serialize};
use std::collections::{HashSet, VecDeque};

use super::JournalQueue;
use super::replay::Replayed;
use super::request::BrokerRequest;

/// Number of changes that are kept: a reader that asks every few seconds misses none at the rates of a journal. Two megabytes.
const CHANGES_KEPT: usize = 100_000;

/// Position among the changes of one source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangePosition {
    source: String,
    number: u64,
}

/// Tasks that have changed after a position.
#[derive(Debug, Clone, PartialEq)]
pub struct ChangePage {
    /// Position after these changes.
    pub position: ChangePosition,
    /// True if the changes after the requested position are not known: read all tasks, and continue at `position`.
    pub is_gap: bool,
    /// The tasks as they are now, each once.
    pub tasks: Vec<Task>,
    /// Tasks that were changed and are no longer live: purged, or archived since.
    pub gone: Vec<TaskId>,
    /// True if more changes are known.
    pub has_more: bool,
}

/// Ids of the tasks that have changed lately, in order; a task that has changed twice is there twice.
#[derive(Debug, Default)]
pub(super) struct ChangeFeed {
    source: String,
    /// Number of the first change that is kept.
    first: u64,
    changed: VecDeque<TaskId>,
}

impl ChangeFeed {
    pub(super) fn new(source: String) -> Self {
        Self { source, first: 0, changed: VecDeque::new() }
    }

    /// Notes a record.
    pub(super) fn record(&mut self, record: &JournalRecord) {
        match record {
            JournalRecord::Submit(task) => self.add(task.id()),
            JournalRecord::Change { task, .. } => self.add(*task),
            // They change no task.
            JournalRecord::Heard { .. } | JournalRecord::Archive(_) => {}
        }
    }

    fn add(&mut self, id: TaskId) {
        if self.changed.len() == CHANGES_KEPT {
            self.changed.pop_front();
            self.first += 1;
        }
        self.changed.push_back(id);
    }

    /// Evicted task without which the changes after a position cannot be read.
    pub(super) fn needs(&self, since: Option<&ChangePosition>, state: &JournalState) -> Option<TaskId> {
        self.after(self.place(since).unwrap_or(self.end())).copied().find(|id| state.is_evicted(id))
    }

    /// Reads the changes after a position.
    pub(super) fn page(&self, since: Option<&ChangePosition>, state: &JournalState) -> Result<ChangePage> {
        let start = self.place(since);
        let from = start.unwrap_or(self.end());
        let ids: Vec<_> = self.after(from).copied().collect();
        let position = ChangePosition { source: self.source.clone(), number: from + ids.len() as u64 };
        let has_more = position.number < self.end();
        let (mut tasks, mut gone, mut seen) = (Vec::new(), Vec::new(), HashSet::new());
        for id in ids.into_iter().filter(|id| seen.insert(*id)) {
            match state.get(&id)? {
                Some(task) => tasks.push(task),
                None => gone.push(id),
            }
        }
        Ok(ChangePage { position, is_gap: start.is_none(), tasks, gone, has_more })
    }

    /// Number of a position, if the changes after it are kept.
    fn place(&self, since: Option<&ChangePosition>) -> Option<u64> {
        let is_kept = |since: &&ChangePosition| {
            since.source == self.source && (self.first..=self.end()).contains(&since.number)
        };
        since.filter(is_kept).map(|since| since.number)
    }

    fn end(&self) -> u64 {
        self.first + self.changed.len() as u64
    }

    /// Tasks of one page, from a number on.
    fn after(&self, from: u64) -> impl Iterator<Item = &TaskId> {
        let skipped = usize::try_from(from - self.first).unwrap_or(usize::MAX);
        self.changed.iter().skip(skipped).take(BROKER_PAGE_MAX)
    }
}

impl JournalQueue {
    /// Reads the tasks that have changed after a position; without one, only the current position. Requests: none while the broker can be
    /// reached, otherwise those of a read without a connection.
    pub async fn changes(&self, since: Option<&ChangePosition>) -> Result<ChangePage> {
        let asked = since.cloned();
        let request = move |answer| BrokerRequest::Changes { since: asked, answer };
        if let Some(page) = self.broker.ask_serving(&self.client, request).await {
            return page;
        }
        let needs = |replayed: &Replayed| replayed.changes.needs(since, &replayed.state);
        self.follow(needs, |replayed| replayed.changes.page(since, &replayed.state)).await
    }
}
