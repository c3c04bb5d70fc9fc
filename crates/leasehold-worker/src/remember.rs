//! Entries that are not to be looked at again before a certain moment: not yet due, of a type that nobody here can run,
//! left behind by their task, ahead of it. A hint to save requests, nothing more: forgetting it all costs only those.

use leasehold_core::{Entry, Now, StoreTime};
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
        self.entries.values().filter(|memory| memory.next != Next::Sweep).map(|memory| memory.at).min()
    }

    /// Whether a task that could be run here is held by someone else.
    #[must_use]
    pub fn is_any_held(&self) -> bool {
        self.entries.values().any(|memory| memory.next == Next::Recover)
    }
}
