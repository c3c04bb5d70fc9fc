//! Evicted bodies: the encoded tasks that are not in memory, because a chunk of a snapshot has them.
//!
//! A pending or final task is found, counted, ordered, made due and expired by its indexes. Its body, which may have a large
//! input, is needed only to claim, to change and to show the task. A broker with more of them than its budget evicts those
//! of whole chunks; the tasks stay in the state with their indexes:
//!
//! ```text
//!   in memory ─ a snapshot has it, the lease names that snapshot, and it has not changed since ─▶ evicted
//!       ▲──────────────────────────── its chunk was read back ◀────────────────────────────────────┘
//! ```
//!
//! The functions that decide and read stay pure: they tell which evicted task they need before they decide
//! ([`submit_needs`](JournalState::submit_needs), [`list_needs`](JournalState::list_needs)), or end before it and return its
//! id. The caller reads its chunk back, and asks again. Running tasks are never evicted: they change soon.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Bound;

use super::record::JournalRecord;
use super::state::{JournalState, LiveTask, TaskBody};
use super::task::{EncodedTask, ReservedKey};
use crate::error::{Error, Kind, Result};
use crate::ids::TaskId;

/// Place of the bodies: how many bytes are in memory, and which tasks are evicted.
#[derive(Debug, Default)]
pub(super) struct BodyPlaces {
    resident_bytes: u64,
    evicted: usize,
    /// Idempotency keys of evicted tasks: they are freed when such a task is archived, which takes no body.
    keys: BTreeMap<TaskId, ReservedKey>,
}

/// Body of a live task, for a snapshot.
#[derive(Debug, PartialEq)]
pub enum LiveBody<'a> {
    /// It is in memory.
    Resident(Cow<'a, [u8]>),
    /// A chunk has it.
    Evicted {
        /// Revision of the task.
        rev: u64,
        /// Length of its encoding.
        bytes: usize,
    },
}

impl BodyPlaces {
    pub(super) fn add(&mut self, body: &TaskBody) {
        match body {
            TaskBody::Encoded(body) => self.resident_bytes += body.len() as u64,
            TaskBody::Evicted { .. } => self.evicted += 1,
            TaskBody::Running(_) => {}
        }
    }

    pub(super) fn remove(&mut self, body: &TaskBody) {
        match body {
            TaskBody::Encoded(body) => self.resident_bytes -= body.len() as u64,
            TaskBody::Evicted { .. } => self.evicted -= 1,
            TaskBody::Running(_) => {}
        }
    }

    /// Takes the idempotency key of a task that was evicted.
    pub(super) fn take_key(&mut self, id: &TaskId) -> Option<ReservedKey> {
        self.keys.remove(id)
    }
}

impl LiveTask {
    pub(super) fn is_evicted(&self) -> bool {
        matches!(self.body, TaskBody::Evicted { .. })
    }

    /// Length of its encoding; 0 while it runs.
    pub(super) fn bytes(&self) -> u64 {
        match &self.body {
            TaskBody::Encoded(body) => body.len() as u64,
            TaskBody::Running(_) => 0,
            TaskBody::Evicted { bytes, .. } => u64::from(*bytes),
        }
    }

    /// Revision of the task.
    pub(super) fn rev(&self) -> Result<u64> {
        match &self.body {
            TaskBody::Encoded(body) => Ok(EncodedTask::read(body)?.rev()),
            TaskBody::Running(running) => Ok(running.logged.task.rev),
            TaskBody::Evicted { rev, .. } => Ok(*rev),
        }
    }
}

impl JournalState {
    /// Bytes of the encoded tasks in memory, without the running ones.
    #[must_use]
    pub fn resident_bytes(&self) -> u64 {
        self.bodies.resident_bytes
    }

    /// Number of evicted tasks.
    #[must_use]
    pub fn evicted(&self) -> usize {
        self.bodies.evicted
    }

    /// True if a task is live and evicted.
    #[must_use]
    pub fn is_evicted(&self, id: &TaskId) -> bool {
        self.tasks.get(id).is_some_and(LiveTask::is_evicted)
    }

    /// Revision of a live task.
    pub fn rev(&self, id: &TaskId) -> Result<Option<u64>> {
        self.tasks.get(id).map(LiveTask::rev).transpose()
    }

    /// Evicted task that the records of a commit change, so that it cannot be applied yet.
    #[must_use]
    pub fn commit_needs(&self, lines: &[u8]) -> Option<TaskId> {
        if self.bodies.evicted == 0 {
            return None;
        }
        lines.split(|byte| *byte == b'\n').find_map(|line| match JournalRecord::read(line) {
            Ok(JournalRecord::Change { task, .. }) => Some(task).filter(|task| self.is_evicted(task)),
            // A corrupt record is reported when it is applied.
            _ => None,
        })
    }

    /// Evicts the pending and final tasks of a range of ids; `end` is not part of it. A chunk must have them as they are now.
    pub fn evict(&mut self, first: TaskId, end: Option<TaskId>) {
        let end = end.map_or(Bound::Unbounded, Bound::Excluded);
        for (id, live) in self.tasks.range_mut((Bound::Included(first), end)) {
            let TaskBody::Encoded(body) = &live.body else { continue };
            // A corrupt task is left in place; reading it by its id shows the error.
            let Ok(head) = EncodedTask::read(body).map(|task| task.into_parts().0) else { continue };
            let Ok(bytes) = u32::try_from(body.len()) else { continue };
            self.bodies.remove(&live.body);
            live.body = TaskBody::Evicted { rev: head.rev, bytes };
            self.bodies.add(&live.body);
            if let Some(key) = head.key {
                self.bodies.keys.insert(*id, key);
            }
        }
    }

    /// Restores the evicted tasks of a range of ids from their chunk, which has the tasks of that range; `end` is not part of
    /// it. Tasks that are not evicted have changed since, and stay as they are.
    pub fn read_back(&mut self, first: TaskId, end: Option<TaskId>, chunk: Vec<EncodedTask>) -> Result<()> {
        for task in chunk {
            let Some(live) = self.tasks.get_mut(&task.id()) else { continue };
            let TaskBody::Evicted { rev, .. } = live.body else { continue };
            if rev != task.rev() {
                let (id, found) = (task.id(), task.rev());
                return Err(not_in_chunk(&id, &format!("revision {found}, not {rev}")));
            }
            self.bodies.remove(&live.body);
            self.bodies.keys.remove(&task.id());
            live.body = TaskBody::Encoded(task.into_parts().1);
            self.bodies.add(&live.body);
        }
        let end = end.map_or(Bound::Unbounded, Bound::Excluded);
        let mut range = self.tasks.range((Bound::Included(first), end));
        match range.find(|(_, live)| live.is_evicted()) {
            Some((id, _)) => Err(not_in_chunk(id, "no such task")),
            None => Ok(()),
        }
    }

    /// Live tasks in the order of their ids, from an id on, for a snapshot. [`insert`](Self::insert) reads what is encoded.
    pub fn bodies_from(&self, first: Option<TaskId>) -> impl Iterator<Item = (TaskId, LiveBody<'_>)> {
        let start = first.map_or(Bound::Unbounded, Bound::Included);
        self.tasks.range((start, Bound::Unbounded)).map(|(id, live)| {
            let body = match &live.body {
                TaskBody::Encoded(body) => LiveBody::Resident(Cow::Borrowed(&**body)),
                TaskBody::Running(running) => {
                    LiveBody::Resident(Cow::Owned(running.logged.encode().body().to_vec()))
                }
                TaskBody::Evicted { rev, bytes } => LiveBody::Evicted { rev: *rev, bytes: *bytes as usize },
            };
            (*id, body)
        })
    }
}

fn not_in_chunk(id: &TaskId, found: &str) -> Error {
    let message = format!("the chunk of task {id} was changed: it has {found}");
    Error::new(Kind::Corrupt, message)
}

/// Error of a caller that has not read a task back.
pub(super) fn evicted_error(id: &TaskId) -> Error {
    Error::new(Kind::Internal, format!("task {id} is evicted, and was not read back"))
}
