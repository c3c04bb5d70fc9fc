//! Scanning the index for entries that are due.
//!
//! Entries sort by minute, oldest first, so the first page of a shard has its oldest entries, however old they are.
//! The first entry of a future minute ends the scan of a shard. No due entry is ever skipped.
//!
//! Requests: 1 list per thousand due entries in a range of neighbouring shards, at least 1, and 1 per shard that has
//! more than a page of entries in the future.

use leasehold_core::{Entry, Index, IndexLocation, Minute, Now, Result, Shard, ShardRange, StoreTime, keys};
use leasehold_store::{List, Page, Purpose};
use std::collections::BTreeSet;

use crate::connect::Queue;

/// An entry found in an index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexHit {
    /// The entry.
    pub entry: Entry,
    /// Time at which it was written, from the store's timestamp.
    pub written_at: StoreTime,
}

/// Result of a scan of an index.
#[derive(Debug, Clone, Default)]
pub struct ScanPage {
    /// Entries of minutes that have begun, oldest first in each shard.
    pub due: Vec<IndexHit>,
    /// Keys that are not entries.
    pub odd: Vec<String>,
    /// The first minute in the future, if an entry has one.
    pub next: Option<Minute>,
}

/// A range of an index: the entries of neighbouring shards, which are adjacent in key order.
#[derive(Debug, Clone)]
pub struct KeyRange {
    list: List,
    /// Last shard of the range; none means to the end.
    last: Option<Shard>,
}

impl KeyRange {
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
        // With the slash: a server that stores objects in folders skips a folder whose bare name is the key to start
        // after.
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
    pub fn at(place: &IndexLocation) -> Self {
        Self { list: List::all(place.prefix()), last: None }
    }

    fn is_past(&self, entry: &Entry) -> bool {
        self.last.as_ref().is_some_and(|last| entry.shard() > Some(last))
    }
}

impl Queue {
    /// Scans one page of a range. Returns its entries, and the rest of the range if there is more. Once a page ends
    /// in a future minute of a shard, the rest of that shard is skipped. Requests: 1 list.
    pub async fn look(&self, purpose: Purpose, stretch: KeyRange) -> Result<(ScanPage, Option<KeyRange>)> {
        let mut page = self.client.list(purpose, &stretch.list).await?;
        let final_entry = page.entries.last().and_then(|listed| Entry::parse(&listed.key));
        let next = page.next.take();
        page.entries.retain(|listed| !Entry::parse(&listed.key).is_some_and(|entry| stretch.is_past(&entry)));
        let mut look = ScanPage::default();
        let now = self.now()?;
        look.take(page, now);
        let Some(cursor) = next else { return Ok((look, None)) };
        let list = match final_entry {
            Some(entry) if stretch.is_past(&entry) => return Ok((look, None)),
            Some(entry) if !now.is_due(entry.bucket.start()) => {
                // An index without shards has nothing after the future minutes.
                if entry.shard().is_none() {
                    return Ok((look, None));
                }
                // A tilde sorts after every minute.
                let end = format!("{}~", entry.place.prefix());
                List { cursor: None, after: Some(end), ..stretch.list }
            }
            _ => stretch.list.at(cursor),
        };
        Ok((look, Some(KeyRange { list, ..stretch })))
    }

    /// Lists one page of a range, including entries that are not due, and returns the rest of the range. Requests: 1
    /// list.
    pub async fn entries_in(
        &self,
        purpose: Purpose,
        stretch: KeyRange,
    ) -> Result<(Vec<Entry>, Option<KeyRange>)> {
        let page = self.client.list(purpose, &stretch.list).await?;
        let entries = page.entries.iter().filter_map(|listed| Entry::parse(&listed.key));
        let (past, entries): (Vec<_>, Vec<_>) = entries.partition(|entry| stretch.is_past(entry));
        let next = page.next.filter(|_| past.is_empty());
        Ok((entries, next.map(|cursor| KeyRange { list: stretch.list.at(cursor), last: stretch.last })))
    }

    /// Scans these ranges for all entries that are due.
    pub async fn discover(&self, purpose: Purpose, stretches: Vec<KeyRange>) -> Result<ScanPage> {
        let mut whole = ScanPage::default();
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

    /// The shards that have entries. May include shards that no longer have any: prefixes that a store returns may be
    /// empty by now.
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

impl ScanPage {
    fn add(&mut self, other: ScanPage) {
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
                Some(entry) => self.due.push(IndexHit { entry, written_at: listed.modified }),
            }
        }
    }
}
