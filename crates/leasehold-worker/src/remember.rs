//! Entries that are not to be looked at again before a certain moment: not yet due, of a type that nobody here can run,
//! left behind by their task, ahead of it. A hint to save requests, nothing more: forgetting it all costs only those.

use leasehold_core::{Entry, Now, StoreTime, TaskId};
use leasehold_queue::Found;
use std::collections::BTreeMap;
use std::time::Duration;

/// So many entries are remembered before all are forgotten.
const REMEMBERED_MAX: usize = 100_000;

/// A record that makes no sense is looked at again after this: a person may have put it right.
pub const CORRUPT_PAUSE: Duration = Duration::from_mins(10);

/// What to do when the moment has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Try to claim it.
    Claim,
    /// Its task does not exist: try to claim it again, in case its producer is slow.
    Await,
    /// Sweep it: the claim that someone else has on its task may have run out.
    Recover,
    /// Sweep it.
    Sweep,
}

#[derive(Debug)]
struct Memory {
    at: StoreTime,
    next: Next,
    written_at: StoreTime,
}

/// What is remembered of entries.
#[derive(Debug, Default)]
pub struct Remembered {
    entries: BTreeMap<Entry, Memory>,
}

impl Remembered {
    /// Not before this moment.
    pub fn until(&mut self, found: Found, at: StoreTime, next: Next) {
        if self.entries.len() >= REMEMBERED_MAX {
            self.entries.clear();
        }
        self.entries.insert(found.entry, Memory { at, next, written_at: found.written_at });
    }

    /// What to do with an entry now; nothing if its moment has not come.
    #[must_use]
    pub fn next(&self, entry: &Entry, now: Now) -> Option<Next> {
        match self.entries.get(entry) {
            None => Some(Next::Claim),
            Some(memory) => now.is_due(memory.at).then_some(memory.next),
        }
    }

    /// Forgets what is gone from the index.
    pub fn keep(&mut self, is_there: impl Fn(&Entry) -> bool) {
        self.entries.retain(|entry, _| is_there(entry));
    }

    /// Forgets an entry.
    pub fn forget(&mut self, entry: &Entry) {
        self.entries.remove(entry);
    }

    /// Takes out what may now be had to run. It need not be looked for: it was seen before.
    pub fn recall(&mut self, now: Now) -> Vec<(Found, Next)> {
        let is_due = |_: &Entry, memory: &mut Memory| memory.next != Next::Sweep && now.is_due(memory.at);
        let due = self.entries.extract_if(.., is_due);
        due.map(|(entry, memory)| (Found { entry, written_at: memory.written_at }, memory.next)).collect()
    }

    /// The first moment at which something may be had to run.
    #[must_use]
    pub fn first_run(&self) -> Option<StoreTime> {
        self.first(|next| next != Next::Sweep)
    }

    /// The first moment at which a task that exists may be had to run. An entry without a task belongs to a submit that
    /// was not acknowledged.
    #[must_use]
    pub fn first_due(&self) -> Option<StoreTime> {
        self.first(|next| !matches!(next, Next::Sweep | Next::Await))
    }

    fn first(&self, counts: impl Fn(Next) -> bool) -> Option<StoreTime> {
        self.entries.values().filter(|memory| counts(memory.next)).map(|memory| memory.at).min()
    }

    /// A task that could be run here and is held by another worker.
    #[must_use]
    pub fn any_held(&self) -> Option<TaskId> {
        let mut held = self.entries.iter().filter(|(_, memory)| memory.next == Next::Recover);
        held.next().map(|(entry, _)| entry.id)
    }
}
