//! Entries that are not to be looked at again before a certain moment: not yet due, of a type that nobody here can run,
//! left behind by their task, ahead of it. A hint to save requests, nothing more: forgetting it all costs only those.

use leasehold_core::{Entry, Now, StoreTime};
use std::collections::HashMap;
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
    /// Sweep it.
    Sweep,
}

/// What is remembered of entries.
#[derive(Debug, Default)]
pub struct Remembered {
    entries: HashMap<Entry, (StoreTime, Next)>,
}

impl Remembered {
    /// Not before this moment.
    pub fn until(&mut self, entry: Entry, at: StoreTime, next: Next) {
        if self.entries.len() >= REMEMBERED_MAX {
            self.entries.clear();
        }
        self.entries.insert(entry, (at, next));
    }

    /// What to do with an entry now; nothing if its moment has not come.
    #[must_use]
    pub fn next(&self, entry: &Entry, now: Now) -> Option<Next> {
        match self.entries.get(entry) {
            None => Some(Next::Claim),
            Some((at, next)) => now.is_due(*at).then_some(*next),
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

    /// The first moment at which something is to be claimed.
    #[must_use]
    pub fn first_claim(&self) -> Option<StoreTime> {
        let claims = self.entries.values().filter(|(_, next)| *next == Next::Claim);
        claims.map(|(at, _)| *at).min()
    }
}
