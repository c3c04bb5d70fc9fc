//! Finding what is due.
//!
//! Entries sort by minute, oldest first, so one page shows the oldest, however old; what lies in a future minute ends
//! the look at a shard. Nothing is ever skipped.
//!
//! Requests: one list for each thousand entries that are due in a stretch of neighbouring shards, at least one, and one
//! for each shard that has more than a page of entries in the future.

use leasehold_core::{Entry, Index, Minute, Now, Result, Shard, ShardRange, StoreTime, Where, keys};
use leasehold_store::{List, Page, Purpose};
use std::collections::BTreeSet;

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

/// A part of an index: the entries of neighbouring shards, which lie side by side.
#[derive(Debug, Clone)]
pub struct Stretch {
    list: List,
    /// Nothing means to the end.
    last: Option<Shard>,
}

impl Stretch {
    /// All of an index.
    #[must_use]
    pub fn whole(index: Index) -> Self {
        Self { list: List::all(index.root()), last: None }
    }

    /// The entries of these shards.
    #[must_use]
    pub fn of(index: Index, range: &ShardRange) -> Self {
        if range.first == range.last {
            return Self { list: List::all(index.prefix(&range.first)), last: None };
        }
        // With the slash: a server that keeps folders passes over one whose bare name is the key to start after.
        let before = index.prefix(&range.first);
        Self { list: List::all(index.root()).after(before), last: Some(range.last.clone()) }
    }

    /// The entries of all inboxes.
    #[must_use]
    pub fn inboxes() -> Self {
        Self { list: List::all(keys::INBOXES), last: None }
    }

    /// The entries of an inbox, or of the overflow.
    #[must_use]
    pub fn at(place: &Where) -> Self {
        Self { list: List::all(place.prefix()), last: None }
    }

    fn is_past(&self, entry: &Entry) -> bool {
        self.last.as_ref().is_some_and(|last| entry.shard() > Some(last))
    }
}

impl Queue {
    /// Looks at one page of a stretch. Gives what it shows, and how to go on behind it, if there is more: what is left
    /// of a shard lies in the future once its page ends there, and is passed over.
    pub async fn look(&self, purpose: Purpose, stretch: Stretch) -> Result<(Look, Option<Stretch>)> {
        let mut page = self.client.list(purpose, &stretch.list).await?;
        let final_entry = page.entries.last().and_then(|listed| Entry::parse(&listed.key));
        let next = page.next.take();
        page.entries.retain(|listed| !Entry::parse(&listed.key).is_some_and(|entry| stretch.is_past(&entry)));
        let mut look = Look::default();
        let now = self.now()?;
        look.take(page, now);
        let Some(cursor) = next else { return Ok((look, None)) };
        let list = match final_entry {
            Some(entry) if stretch.is_past(&entry) => return Ok((look, None)),
            Some(entry) if !now.is_due(entry.bucket.start()) => {
                // Without shards there is nothing behind the future.
                if entry.shard().is_none() {
                    return Ok((look, None));
                }
                // A tilde sorts behind every minute.
                let end = format!("{}~", entry.place.prefix());
                List { cursor: None, after: Some(end), ..stretch.list }
            }
            _ => stretch.list.at(cursor),
        };
        Ok((look, Some(Stretch { list, ..stretch })))
    }

    /// The entries of one page of a stretch, whenever they are due, and how to go on behind it.
    pub async fn entries_in(
        &self,
        purpose: Purpose,
        stretch: Stretch,
    ) -> Result<(Vec<Entry>, Option<Stretch>)> {
        let page = self.client.list(purpose, &stretch.list).await?;
        let entries = page.entries.iter().filter_map(|listed| Entry::parse(&listed.key));
        let (past, entries): (Vec<_>, Vec<_>) = entries.partition(|entry| stretch.is_past(entry));
        let next = page.next.filter(|_| past.is_empty());
        Ok((entries, next.map(|cursor| Stretch { list: stretch.list.at(cursor), last: stretch.last })))
    }

    /// Looks at all that is due in these stretches.
    pub async fn discover(&self, purpose: Purpose, stretches: Vec<Stretch>) -> Result<Look> {
        let mut whole = Look::default();
        for stretch in stretches {
            let mut next = Some(stretch);
            while let Some(stretch) = next {
                let (look, beyond) = self.look(purpose, stretch).await?;
                whole.add(look);
                next = beyond;
            }
        }
        Ok(whole)
    }

    /// The shards that have entries, and perhaps some that had: what a store folds together may be empty by now.
    pub async fn shards_with_entries(&self, purpose: Purpose, index: Index) -> Result<BTreeSet<Shard>> {
        let mut list = Some(List::all(index.root()).delimited());
        let mut shards = BTreeSet::new();
        while let Some(next) = list {
            let page = self.client.list(purpose, &next).await?;
            let names = page.prefixes.iter().filter_map(|prefix| prefix.strip_prefix(index.root()));
            shards.extend(names.filter_map(|name| self.shard_len().parse(name.trim_end_matches('/')).ok()));
            list = page.next.map(|cursor| next.at(cursor));
        }
        Ok(shards)
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
