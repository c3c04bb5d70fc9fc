//! Results of index scans, and the capacity for more tasks on this node.

use leasehold_core::ids::TaskTypes;
use leasehold_core::{Result, StoreTime, TaskId, TaskType};
use leasehold_queue::Bell;
use leasehold_queue::discover::IndexHit;
use leasehold_store::host::Instant;
use std::collections::{HashMap, HashSet};

use super::BucketLink;

/// Most task ids whose type is cached.
const TYPES_MAX: usize = 100_000;

/// Results of the index scans, for the next ones.
#[derive(Default)]
pub(crate) struct PrefetchState {
    pub(super) bell: Bell,
    /// Time of the second scan after the last ring.
    pub(super) second_scan_at: Option<StoreTime>,
    /// Time of the last full scan, which does not depend on the bell.
    pub(super) full_scan_at: Option<Instant>,
    /// Revision of entries whose task was not free.
    pub(super) skip: HashMap<TaskId, u64>,
    /// Type of a task, with the revision of its entry: a task that no worker here handles is read once.
    types: HashMap<TaskId, (u64, TaskType)>,
    /// Types with more pending tasks than are kept here.
    pub(super) types_with_more: HashSet<TaskType>,
    /// True if there are more pending tasks whose type was not read, because there is enough of every type.
    pub(super) has_unknown: bool,
    /// True if the last scan was cut off: there was too much to read at once.
    pub(super) is_cut_off: bool,
    /// Task types that workers here handled at the last scan.
    pub(super) subscriptions: Option<TaskTypes>,
    /// Time at which the next task becomes due, as of the last scan.
    pub(super) next_due_at: Option<StoreTime>,
    /// Capacity of this node, as of the last count.
    pub(super) capacity: Capacity,
}

impl PrefetchState {
    /// Returns the state after a reconnect, for a full scan. Cached types are kept.
    pub(super) fn reset(&mut self) -> Self {
        Self { types: std::mem::take(&mut self.types), ..Self::default() }
    }

    pub(super) fn cache_type(&mut self, hit: &IndexHit, task_type: &TaskType) {
        if self.types.len() >= TYPES_MAX {
            self.types.clear();
        }
        self.types.insert(hit.entry.id, (hit.entry.rev, task_type.clone()));
    }

    /// Returns whether a task may be of use here. Types and tasks for which there is no capacity are recorded.
    pub(super) fn is_useful(&mut self, hit: &IndexHit) -> bool {
        let known = self.types.get(&hit.entry.id).filter(|(rev, _)| *rev == hit.entry.rev);
        let Some((_, of)) = known else {
            let has_capacity = self.capacity.is_any_below(1);
            self.has_unknown |= !has_capacity;
            return has_capacity;
        };
        let has_capacity = self.capacity.is_below(of, 1);
        if !has_capacity && self.capacity.subscriptions.contains(of) {
            self.types_with_more.insert(of.clone());
        }
        has_capacity
    }

    /// Returns whether workers here will soon be idle although there are pending tasks.
    pub(super) fn is_running_short(&self) -> bool {
        self.is_cut_off
            || self.types_with_more.iter().any(|of| self.capacity.is_below(of, 2))
            || self.has_unknown && self.capacity.is_any_below(2)
    }
}

/// Capacity for more tasks: per type that a worker here handles, so that no type blocks another; for all types together if a
/// worker handles everything, or none has subscribed.
#[derive(Default)]
pub(super) struct Capacity {
    pub(super) subscriptions: TaskTypes,
    pub(super) free: HashMap<TaskType, usize>,
    window: usize,
}

impl Capacity {
    /// Returns whether workers here handle this type, and fewer of its tasks are free than the window divided by `divisor`.
    fn is_below(&self, task_type: &TaskType, divisor: usize) -> bool {
        let free = match self.subscriptions.names() {
            Some(_) => self.free.get(task_type).copied().unwrap_or(0),
            None => self.free.values().sum(),
        };
        self.subscriptions.contains(task_type) && free < self.window / divisor
    }

    /// Returns whether fewer tasks of any type are free than the window divided by `divisor`.
    fn is_any_below(&self, divisor: usize) -> bool {
        match self.subscriptions.names() {
            Some(types) => types.iter().any(|of| self.is_below(of, divisor)),
            None => self.free.values().sum::<usize>() < self.window / divisor,
        }
    }
}

impl BucketLink {
    /// Counts the capacity of this node.
    pub(super) async fn capacity(&self) -> Result<Capacity> {
        let (subscriptions, free) =
            self.spool.on_disk(|spool| Ok((spool.subscriptions()?, spool.free()?))).await?;
        Ok(Capacity { subscriptions, free, window: self.options.window })
    }
}
