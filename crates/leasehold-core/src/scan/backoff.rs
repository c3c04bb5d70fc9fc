//! Backoff per index entry: entries that are not checked again before a certain time, because they are not due, of a
//! task type without a handler, outdated, or ahead of their task. It only saves requests; losing it has no other effect.

use std::collections::BTreeMap;
use std::time::Duration;

use super::IndexHit;
use crate::{Entry, Now, StoreTime, TaskId};

/// Maximum number of entries; when it is reached, all are dropped.
const ENTRIES_MAX: usize = 100_000;

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

/// Pause of one entry.
#[derive(Debug)]
struct Pause {
    until: StoreTime,
    action: BackoffAction,
    written_at: StoreTime,
}

/// Pauses by entry.
#[derive(Debug, Default)]
pub struct EntryBackoff {
    entries: BTreeMap<Entry, Pause>,
}

impl EntryBackoff {
    /// Sets the time and action for an entry; none removes it.
    pub fn set(&mut self, hit: IndexHit, next: Option<(StoreTime, BackoffAction)>) {
        let Some((until, action)) = next else { return self.remove(&hit.entry) };
        if self.entries.len() >= ENTRIES_MAX {
            self.entries.clear();
        }
        self.entries.insert(hit.entry, Pause { until, action, written_at: hit.written_at });
    }

    /// Action for an entry now; none if its pause is not over.
    #[must_use]
    pub fn action(&self, entry: &Entry, now: Now) -> Option<BackoffAction> {
        match self.entries.get(entry) {
            None => Some(BackoffAction::Claim),
            Some(pause) => now.is_due(pause.until).then_some(pause.action),
        }
    }

    /// Keeps only the entries that are still in the index.
    pub fn retain(&mut self, is_present: impl Fn(&Entry) -> bool) {
        self.entries.retain(|entry, _| is_present(entry));
    }

    /// Removes an entry.
    pub(super) fn remove(&mut self, entry: &Entry) {
        self.entries.remove(entry);
    }

    /// Removes and returns the entries whose tasks may be claimable now. They need no new scan.
    pub(super) fn take_due(&mut self, now: Now) -> Vec<(IndexHit, BackoffAction)> {
        let is_due =
            |_: &Entry, pause: &mut Pause| pause.action != BackoffAction::Sweep && now.is_due(pause.until);
        let due = self.entries.extract_if(.., is_due);
        due.map(|(entry, pause)| (IndexHit { entry, written_at: pause.written_at }, pause.action)).collect()
    }

    /// Earliest time at which a task may be claimable.
    #[must_use]
    pub fn earliest_claim(&self) -> Option<StoreTime> {
        self.earliest(|action| action != BackoffAction::Sweep)
    }

    /// Earliest time at which an existing task may be claimable. An entry without a task belongs to a submit that was
    /// not acknowledged.
    #[must_use]
    pub fn earliest_due(&self) -> Option<StoreTime> {
        self.earliest(|action| !matches!(action, BackoffAction::Sweep | BackoffAction::Await))
    }

    fn earliest(&self, counts: impl Fn(BackoffAction) -> bool) -> Option<StoreTime> {
        self.entries.values().filter(|pause| counts(pause.action)).map(|pause| pause.until).min()
    }

    /// A task that this worker could run and that another worker holds.
    #[must_use]
    pub fn any_held(&self) -> Option<TaskId> {
        let mut held = self.entries.iter().filter(|(_, pause)| pause.action == BackoffAction::Recover);
        held.next().map(|(entry, _)| entry.id)
    }
}
