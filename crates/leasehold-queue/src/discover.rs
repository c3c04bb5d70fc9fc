//! Finding what is due.
//!
//! Entries sort by minute, oldest first, so one page shows the oldest, however old; what lies in a future minute ends
//! the look at a shard. Nothing is ever skipped.
//!
//! Requests: one list for the whole index while it fits on a page, else one per shard.

use leasehold_core::{Entry, Index, Minute, Now, Result, Shard, StoreTime};
use leasehold_store::{List, Page, Purpose};

use crate::connect::Queue;

/// An entry that was found in an index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The entry.
    pub entry: Entry,
    /// When it was written, by the store's stamp.
    pub written_at: StoreTime,
}

/// What a look at an index has shown.
#[derive(Debug, Clone, Default)]
pub struct Look {
    /// Entries of minutes that have begun, oldest first in each shard.
    pub due: Vec<Found>,
    /// Keys that are no entries.
    pub odd: Vec<String>,
    /// The first minute that has not begun, if one was seen.
    pub next: Option<Minute>,
}

impl Queue {
    /// Looks at an index for all of these shards; `all` says that they are all shards of the queue.
    pub async fn discover(
        &self,
        purpose: Purpose,
        index: Index,
        shards: &[Shard],
        all: bool,
    ) -> Result<Look> {
        let mut look = Look::default();
        if all {
            let page = self.client.list(purpose, &List::all(index.root())).await?;
            if page.next.is_none() {
                look.take(page, self.now()?);
                return Ok(look);
            }
        }
        for shard in shards {
            look.add(self.discover_shard(purpose, index, shard, &|_| false).await?);
        }
        Ok(look)
    }

    /// Looks at one shard, beyond the entries that are already known: pages are followed while they hold nothing else.
    pub async fn discover_shard(
        &self,
        purpose: Purpose,
        index: Index,
        shard: &Shard,
        known: &(dyn Fn(&Entry) -> bool + Sync),
    ) -> Result<Look> {
        let mut list = List::all(index.prefix(shard));
        let mut look = Look::default();
        loop {
            let page = self.client.list(purpose, &list).await?;
            let next = page.next.clone();
            look.take(page, self.now()?);
            look.due.retain(|found| !known(&found.entry));
            match next {
                Some(cursor) if look.due.is_empty() && look.next.is_none() => list = list.at(cursor),
                _ => return Ok(look),
            }
        }
    }
}

impl Look {
    fn add(&mut self, other: Look) {
        self.due.extend(other.due);
        self.odd.extend(other.odd);
        self.next = [self.next, other.next].into_iter().flatten().min();
    }

    fn take(&mut self, page: Page, now: Now) {
        for listed in page.entries {
            match Entry::parse(&listed.key) {
                None => self.odd.push(listed.key),
                Some(entry) if !now.is_due(entry.bucket.start()) => {
                    self.next = Some(self.next.map_or(entry.bucket, |next| next.min(entry.bucket)));
                }
                Some(entry) => self.due.push(Found { entry, written_at: listed.modified }),
            }
        }
    }
}
