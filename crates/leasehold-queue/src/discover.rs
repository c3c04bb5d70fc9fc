//! Finding what is due.
//!
//! Entries sort by minute, oldest first, so one page shows the oldest, however old; what lies in a future minute ends
//! the look at a shard. Nothing is ever skipped.
//!
//! Requests: one list for each thousand entries that are due, and one for each shard that has more than a page of
//! entries in the future.

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
    /// Looks at one page of an index. Gives what it shows, and how to go on behind it, if there is more: what is left
    /// of a shard lies in the future once its page ends there, and is passed over.
    pub async fn look(&self, purpose: Purpose, list: List) -> Result<(Look, Option<List>)> {
        let page = self.client.list(purpose, &list).await?;
        let final_entry = page.entries.last().and_then(|listed| Entry::parse(&listed.key));
        let next = page.next.clone();
        let mut look = Look::default();
        let now = self.now()?;
        look.take(page, now);
        let beyond = next.map(|cursor| match final_entry {
            Some(entry) if !now.is_due(entry.bucket.start()) => {
                // A tilde sorts behind every minute.
                let end = format!("{}~", entry.index.prefix(&entry.shard));
                List { cursor: None, after: Some(end), ..list }
            }
            _ => list.at(cursor),
        });
        Ok((look, beyond))
    }

    /// Looks at all that is due in an index for these shards; `all` says that they are all shards of the queue.
    pub async fn discover(
        &self,
        purpose: Purpose,
        index: Index,
        shards: &[Shard],
        all: bool,
    ) -> Result<Look> {
        let lists = if all { vec![List::all(index.root())] } else { lists_of(index, shards) };
        let mut whole = Look::default();
        for list in lists {
            let mut list = Some(list);
            while let Some(next) = list {
                let (look, beyond) = self.look(purpose, next).await?;
                whole.add(look);
                list = beyond;
            }
        }
        Ok(whole)
    }
}

/// A list for each of these shards.
#[must_use]
pub fn lists_of(index: Index, shards: &[Shard]) -> Vec<List> {
    shards.iter().map(|shard| List::all(index.prefix(shard))).collect()
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
