//! Backoff per index entry: entries that are not checked again before a certain time, because they are not due, of a
//! task type without a handler, stale, or ahead of their task. It only saves requests; losing it has no other effect.

use leasehold_core::{Entry, Now, StoreTime, TaskId};
use leasehold_queue::IndexHit;
use std::collections::BTreeMap;
use std::time::Duration;

/// Maximum number of entries; when it is reached, all are dropped.
const REMEMBERED_MAX: usize = 100_000;

/// Pause before a corrupt record is read again: an operator may have repaired it.
pub const CORRUPT_PAUSE: Duration = Duration::from_mins(10);

/// Action when the pause is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackoffAction {
    /// Try to claim it.
    Claim,
    /// Its task does not exist: try to claim it again, in case its producer is slow.
    Await,
    /// Sweep it: another worker's claim on its task may have expired.
    Recover,
    /// Sweep it.
    Sweep,
}

#[derive(Debug)]
struct Memory {
    at: StoreTime,
    next: BackoffAction,
    written_at: StoreTime,
}

/// Pauses by entry.
#[derive(Debug, Default)]
pub struct EntryBackoff {
    entries: BTreeMap<Entry, Memory>,
}

impl EntryBackoff {
    /// Sets the time and action for an entry.
    pub fn until(&mut self, found: IndexHit, at: StoreTime, next: BackoffAction) {
        if self.entries.len() >= REMEMBERED_MAX {
            self.entries.clear();
        }
        self.entries.insert(found.entry, Memory { at, next, written_at: found.written_at });
    }

    /// Action for an entry now; none if its pause is not over.
    #[must_use]
    pub fn next(&self, entry: &Entry, now: Now) -> Option<BackoffAction> {
        match self.entries.get(entry) {
            None => Some(BackoffAction::Claim),
            Some(memory) => now.is_due(memory.at).then_some(memory.next),
        }
    }

    /// Drops entries that are no longer in the index.
    pub fn keep(&mut self, is_there: impl Fn(&Entry) -> bool) {
        self.entries.retain(|entry, _| is_there(entry));
    }

    /// Drops an entry.
    pub fn forget(&mut self, entry: &Entry) {
        self.entries.remove(entry);
    }

    /// Removes and returns the entries whose tasks may be claimable now. They need no new scan.
    pub fn recall(&mut self, now: Now) -> Vec<(IndexHit, BackoffAction)> {
        let is_due =
            |_: &Entry, memory: &mut Memory| memory.next != BackoffAction::Sweep && now.is_due(memory.at);
        let due = self.entries.extract_if(.., is_due);
        due.map(|(entry, memory)| (IndexHit { entry, written_at: memory.written_at }, memory.next)).collect()
    }

    /// Earliest time at which a task may be claimable.
    #[must_use]
    pub fn first_run(&self) -> Option<StoreTime> {
        self.first(|next| next != BackoffAction::Sweep)
    }

    /// Earliest time at which an existing task may be claimable. An entry without a task belongs to a submit that was
    /// not acknowledged.
    #[must_use]
    pub fn first_due(&self) -> Option<StoreTime> {
        self.first(|next| !matches!(next, BackoffAction::Sweep | BackoffAction::Await))
    }

    fn first(&self, counts: impl Fn(BackoffAction) -> bool) -> Option<StoreTime> {
        self.entries.values().filter(|memory| counts(memory.next)).map(|memory| memory.at).min()
    }

    /// A task that this worker could run and that another worker holds.
    #[must_use]
    pub fn any_held(&self) -> Option<TaskId> {
        let mut held = self.entries.iter().filter(|(_, memory)| memory.next == BackoffAction::Recover);
        held.next().map(|(entry, _)| entry.id)
    }
}
