//! Results of index scans, and the capacity for more tasks on this node.

use leasehold_core::{Result, StoreTime, TaskId, TaskType};
use leasehold_queue::Bell;
use leasehold_queue::discover::IndexHit;
use leasehold_store::host::Instant;
use std::collections::{HashMap, HashSet};

use super::Supervisor;
use crate::spool::Wants;

/// Most task ids whose type is cached.
const TYPES_MAX: usize = 100_000;

/// Results of the index scans.
#[derive(Default)]
pub(crate) struct PrefetchState {
    pub(super) bell: Bell,
    /// Time of the last full scan, which does not depend on the bell.
    pub(super) passed_at: Option<Instant>,
    /// Revision of entries whose task was not free.
    pub(super) skip: HashMap<TaskId, u64>,
    /// Type of a task, with the revision of its entry: a task that no worker here handles is read once.
    types: HashMap<TaskId, (u64, TaskType)>,
    /// Types with more pending tasks than are kept here.
    pub(super) more: HashSet<TaskType>,
    /// True if there are more pending tasks whose type was not read, because there is enough of every type.
    pub(super) has_unknown: bool,
    /// True if the last scan was cut off: there was too much to read at once.
    pub(super) is_unread: bool,
    /// Task types that workers here handled at the last scan.
    pub(super) wants: Option<Wants>,
    /// Time at which the next task becomes due, as of the last scan.
    pub(super) next: Option<StoreTime>,
}

impl PrefetchState {
    /// Resets the state after a reconnect, for a full scan. Cached types are kept.
    pub(super) fn begin_anew(&mut self) {
        let types = std::mem::take(&mut self.types);
        *self = Self { types, ..Self::default() };
    }

    pub(super) fn type_of(&self, found: &IndexHit) -> Option<&TaskType> {
        self.types.get(&found.entry.id).filter(|(rev, _)| *rev == found.entry.rev).map(|(_, of)| of)
    }

    pub(super) fn learn_type(&mut self, found: &IndexHit, task_type: &TaskType) {
        if self.types.len() >= TYPES_MAX {
            self.types.clear();
        }
        self.types.insert(found.entry.id, (found.entry.rev, task_type.clone()));
    }

    pub(super) fn is_skipped(&self, found: &IndexHit) -> bool {
        self.skip.get(&found.entry.id) == Some(&found.entry.rev)
    }

    /// Returns whether a task may be of use here. Types and tasks for which there is no capacity are recorded.
    pub(super) fn may_come(&mut self, found: &IndexHit, room: &Capacity) -> bool {
        let Some(of) = self.type_of(found).cloned() else {
            self.has_unknown |= room.is_full();
            return !room.is_full();
        };
        let is_for_it = room.is_for(&of);
        if !is_for_it && room.wants.includes(&of) {
            self.more.insert(of);
        }
        is_for_it
    }

    /// Returns whether workers here will soon be idle although there are pending tasks.
    pub(super) fn is_short(&self, room: &Capacity) -> bool {
        self.is_unread
            || self.more.iter().any(|of| room.is_short_of(of))
            || self.has_unknown && room.is_short()
    }
}

/// Capacity for more tasks: per type that a worker here handles, so that no type blocks another; for all types together if a
/// worker handles everything, or none has subscribed.
pub(super) struct Capacity {
    pub(super) wants: Wants,
    free: HashMap<TaskType, usize>,
    window: usize,
}

impl Capacity {
    fn of(&self, task_type: &TaskType) -> usize {
        if self.wants.types().is_some() {
            return self.free.get(task_type).copied().unwrap_or(0);
        }
        self.free.values().sum()
    }

    pub(super) fn is_for(&self, task_type: &TaskType) -> bool {
        self.wants.includes(task_type) && self.of(task_type) < self.window
    }

    pub(super) fn take(&mut self, task_type: &TaskType) {
        *self.free.entry(task_type.clone()).or_default() += 1;
    }

    fn is_short_of(&self, task_type: &TaskType) -> bool {
        self.wants.includes(task_type) && self.of(task_type) < self.window / 2
    }

    /// True if there is enough of every type.
    pub(super) fn is_full(&self) -> bool {
        self.are_all(|free| free >= self.window)
    }

    fn is_short(&self) -> bool {
        !self.are_all(|free| free >= self.window / 2)
    }

    fn are_all(&self, are_enough: impl Fn(usize) -> bool) -> bool {
        match self.wants.types() {
            Some(mut types) => types.all(|of| are_enough(self.of(of))),
            None => are_enough(self.free.values().sum()),
        }
    }
}

impl Supervisor {
    pub(super) async fn room(&self) -> Result<Capacity> {
        let (wants, free) = self.on_disk(|spool| Ok((spool.wants()?, spool.free()?))).await?;
        Ok(Capacity { wants, free, window: self.options.window })
    }
}
