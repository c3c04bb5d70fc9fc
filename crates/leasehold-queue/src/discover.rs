//! Scanning the index for entries that are due.
//!
//! Entries sort by minute, oldest first, so the first page of a shard has its oldest entries, however old they are.
//! The first entry of a future minute ends the scan of a shard. No due entry is ever skipped.
//!
//! Requests: 1 list per thousand due entries in a range of neighbouring shards, at least 1, and 1 per shard that has
//! more than a page of entries in the future.

use futures::future::ready;
use futures::{Stream, TryStreamExt, stream};
pub use leasehold_core::scan::IndexHit;
use leasehold_core::{Entry, Index, IndexLocation, Minute, Result, Shard, ShardRange, keys};
use leasehold_store::{Client, List, ListEntry, Purpose};
use std::collections::BTreeSet;

use crate::connect::ObjectQueue;

/// Result of a scan of an index.
#[derive(Debug, Clone, Default)]
pub struct ScanPage {
    /// Entries of minutes that have begun, oldest first in each shard.
    pub due: Vec<IndexHit>,
    /// Keys that are not entries.
    pub invalid_keys: Vec<String>,
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

impl ObjectQueue {
    /// Scans one page of a range. Returns its entries, and the rest of the range if there is more. Once a page ends
    /// in a future minute of a shard, the rest of that shard is skipped. Requests: 1 list.
    pub async fn scan_page(&self, purpose: Purpose, range: KeyRange) -> Result<(ScanPage, Option<KeyRange>)> {
        let page = self.client.list(purpose, &range.list).await?;
        let (mut scanned, mut final_entry, now) = (ScanPage::default(), None, self.now()?);
        for listed in page.entries {
            let entry = Entry::parse(&listed.key);
            match &entry {
                None => scanned.invalid_keys.push(listed.key),
                Some(entry) if range.is_past(entry) => {}
                Some(entry) if now.is_due(entry.minute.start()) => {
                    scanned.due.push(IndexHit { entry: entry.clone(), written_at: listed.modified });
                }
                Some(entry) => {
                    scanned.next = Some(scanned.next.map_or(entry.minute, |next| next.min(entry.minute)));
                }
            }
            final_entry = entry;
        }
        let Some(cursor) = page.next else { return Ok((scanned, None)) };
        let list = match final_entry {
            Some(entry) if range.is_past(&entry) => return Ok((scanned, None)),
            Some(entry) if !now.is_due(entry.minute.start()) => {
                // An index without shards has nothing after the future minutes.
                if entry.shard().is_none() {
                    return Ok((scanned, None));
                }
                // A tilde sorts after every minute.
                let end = format!("{}~", entry.location.prefix());
                List { cursor: None, after: Some(end), ..range.list }
            }
            _ => range.list.at(cursor),
        };
        Ok((scanned, Some(KeyRange { list, ..range })))
    }

    /// Lists the entries of a range, including those that are not due. Requests: 1 list per thousand.
    pub fn entries_in(
        &self,
        purpose: Purpose,
        range: KeyRange,
    ) -> impl Stream<Item = Result<Entry>> + Send + use<'_> {
        let entry = |listed: ListEntry| Entry::parse(&listed.key).map(Ok);
        let pages = self.client.pages(purpose, range.list.clone());
        let entries = pages.map_ok(move |page| stream::iter(page.entries.into_iter().filter_map(entry)));
        entries.try_flatten().try_take_while(move |entry| ready(Ok(!range.is_past(entry))))
    }

    /// Scans these ranges for all entries that are due.
    pub async fn discover(&self, purpose: Purpose, ranges: Vec<KeyRange>) -> Result<ScanPage> {
        let mut whole = ScanPage::default();
        for range in ranges {
            let mut next = Some(range);
            while let Some(range) = next {
                let (scanned, beyond) = self.scan_page(purpose, range).await?;
                whole.due.extend(scanned.due);
                whole.invalid_keys.extend(scanned.invalid_keys);
                whole.next = [whole.next, scanned.next].into_iter().flatten().min();
                next = beyond;
            }
        }
        Ok(whole)
    }

    /// The shards that have entries. May include shards that no longer have any: prefixes that a store returns may be
    /// empty by now.
    pub async fn shards_with_entries(&self, purpose: Purpose, index: Index) -> Result<BTreeSet<Shard>> {
        let names = folders(&self.client, purpose, index.root()).await?;
        Ok(names.iter().filter_map(|name| self.shard_len().parse(name).ok()).collect())
    }
}

/// Names of the folders directly below a prefix. May include some that are empty by now.
pub(crate) async fn folders(client: &Client, purpose: Purpose, root: &str) -> Result<Vec<String>> {
    let pages: Vec<_> = client.pages(purpose, List::all(root).delimited()).try_collect().await?;
    let prefixes = pages.iter().flat_map(|page| &page.prefixes);
    let name = |prefix: &String| Some(prefix.strip_prefix(root)?.strip_suffix('/')?.to_owned());
    Ok(prefixes.filter_map(name).collect())
}
