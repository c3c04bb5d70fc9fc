//! Indexes of the live tasks. They follow from the tasks, and are never logged.

use std::collections::{BTreeMap, BTreeSet};

use super::task::{KeyHash, ReservedKey, TaskHead};
use super::types::{ReadyKey, TypeNumber, TypeTable};
use crate::ids::{TaskId, WorkerId};
use crate::task::{Priority, Status};
use crate::time::StoreTime;

/// Indexes of the live tasks.
#[derive(Debug)]
pub(super) struct TaskIndexes {
    /// Counts and due tasks by type.
    pub(super) types: TypeTable,
    /// Pending tasks that are not due yet, by time.
    pub(super) scheduled: BTreeMap<(StoreTime, TaskId), (TypeNumber, Priority)>,
    /// Pending tasks that expire, by expiry.
    pub(super) expiries: BTreeSet<(StoreTime, TaskId)>,
    /// Running tasks by the expiry of their claim, with its renewals.
    pub(super) claims: BTreeSet<(StoreTime, TaskId)>,
    /// Running tasks by the worker that holds them.
    pub(super) workers: BTreeMap<WorkerId, BTreeSet<TaskId>>,
    /// Final tasks by the time at which they ended.
    pub(super) finished: BTreeSet<(StoreTime, TaskId)>,
    /// Tasks by their idempotency keys. A key that has expired may be missing although a task has had it.
    pub(super) keys: BTreeMap<KeyHash, (TaskId, StoreTime)>,
    /// Time up to which scheduled tasks were made due.
    pub(super) due_until: StoreTime,
}

/// Position of a task in the indexes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct IndexedTask {
    pub(super) task_type: TypeNumber,
    pub(super) status: Status,
    pub(super) priority: Priority,
    pub(super) was_scheduled: bool,
    /// Time of the head; for a running task, the expiry of its claim with its renewals.
    pub(super) time: StoreTime,
    /// [`StoreTime::NEVER`] if it does not expire: a million options would be eight megabytes.
    pub(super) expires_at: StoreTime,
}

impl Default for TaskIndexes {
    fn default() -> Self {
        Self {
            types: TypeTable::default(),
            scheduled: BTreeMap::new(),
            expiries: BTreeSet::new(),
            claims: BTreeSet::new(),
            workers: BTreeMap::new(),
            finished: BTreeSet::new(),
            keys: BTreeMap::new(),
            due_until: StoreTime::from_millis(i64::MIN),
        }
    }
}

impl TaskIndexes {
    /// Adds a task; `worker` is the one that holds it.
    pub(super) fn insert(&mut self, head: &TaskHead, worker: Option<&WorkerId>) -> IndexedTask {
        let indexed = IndexedTask {
            task_type: self.types.add(&head.task_type, head.status),
            status: head.status,
            priority: head.priority,
            was_scheduled: head.was_scheduled,
            time: head.time,
            expires_at: head.expires_at.unwrap_or(StoreTime::NEVER),
        };
        let IndexedTask { time, expires_at, .. } = indexed;
        match indexed.status {
            Status::Pending => {
                if expires_at != StoreTime::NEVER {
                    self.expiries.insert((expires_at, head.id));
                }
                if self.is_scheduled(&indexed) {
                    self.scheduled.insert((time, head.id), (indexed.task_type, indexed.priority));
                } else {
                    let key = ReadyKey::new(time, indexed.priority, head.id);
                    self.types.row_mut(indexed.task_type).ready.insert(key);
                }
            }
            Status::Running => {
                self.claims.insert((time, head.id));
                if let Some(worker) = worker {
                    self.workers.entry(worker.clone()).or_default().insert(head.id);
                }
            }
            _ => {
                self.finished.insert((time, head.id));
            }
        }
        indexed
    }

    /// Removes a task.
    pub(super) fn remove(&mut self, id: TaskId, indexed: &IndexedTask, worker: Option<&WorkerId>) {
        let IndexedTask { time, expires_at, .. } = *indexed;
        match indexed.status {
            Status::Pending => {
                self.expiries.remove(&(expires_at, id));
                if self.is_scheduled(indexed) {
                    self.scheduled.remove(&(time, id));
                } else {
                    let key = ReadyKey::new(time, indexed.priority, id);
                    self.types.row_mut(indexed.task_type).ready.remove(&key);
                }
            }
            Status::Running => {
                self.claims.remove(&(time, id));
                if let Some(worker) = worker {
                    self.remove_from_worker(id, worker);
                }
            }
            _ => {
                self.finished.remove(&(time, id));
            }
        }
        self.types.remove(indexed.task_type, indexed.status);
    }

    fn remove_from_worker(&mut self, id: TaskId, worker: &WorkerId) {
        let Some(tasks) = self.workers.get_mut(worker) else { return };
        tasks.remove(&id);
        if tasks.is_empty() {
            self.workers.remove(worker);
        }
    }

    /// Moves a running task to the new expiry of its claim.
    pub(super) fn move_claim(&mut self, id: TaskId, indexed: &mut IndexedTask, expires_at: StoreTime) {
        self.claims.remove(&(indexed.time, id));
        indexed.time = expires_at;
        self.claims.insert((expires_at, id));
    }

    /// True if a pending task is still scheduled: [`advance`](Self::advance) has not reached its time. A task that was
    /// submitted to run at once is due from the start, independent of the clock.
    fn is_scheduled(&self, indexed: &IndexedTask) -> bool {
        indexed.was_scheduled && indexed.time > self.due_until
    }

    /// Makes scheduled tasks due up to a time; true if there are any. Earlier ones stay due if the time goes back; the claim
    /// decides.
    pub(super) fn advance(&mut self, until: StoreTime) -> bool {
        self.due_until = self.due_until.max(until);
        let mut is_any_due = false;
        while let Some(first) = self.scheduled.first_entry() {
            let (time, id) = *first.key();
            if time > self.due_until {
                break;
            }
            let (task_type, priority) = first.remove();
            self.types.row_mut(task_type).ready.insert(ReadyKey::new(time, priority, id));
            is_any_due = true;
        }
        is_any_due
    }

    /// Reserves an idempotency key for a task. If several tasks have had the key, the one with the latest expiry has it now:
    /// a key is reserved again only after its expiry.
    pub(super) fn reserve(&mut self, key: ReservedKey, id: TaskId) {
        let (owner, expires_at) = self.keys.entry(key.hash).or_insert((id, key.expires_at));
        if key.expires_at >= *expires_at {
            (*owner, *expires_at) = (id, key.expires_at);
        }
    }

    /// Frees the idempotency key of a task, if it still has it.
    pub(super) fn free(&mut self, key: ReservedKey, id: TaskId) {
        if self.keys.get(&key.hash).is_some_and(|(owner, _)| *owner == id) {
            self.keys.remove(&key.hash);
        }
    }

    /// Task that has an idempotency key, and the expiry of the key.
    pub(super) fn owner(&self, key: KeyHash) -> Option<(TaskId, StoreTime)> {
        self.keys.get(&key).copied()
    }
}
