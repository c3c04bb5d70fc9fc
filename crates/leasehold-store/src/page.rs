//! Page of a list, filled from keys in byte order: the semantics of S3 for stores without their own.

use leasehold_core::limits::PAGE_KEYS_MAX;
use leasehold_core::{Error, Result};

use crate::store::{Cursor, List, ListEntry, Page};

/// Builder of a page; the caller offers keys in byte order until it is full.
#[derive(Debug)]
pub struct Pager<'a> {
    list: &'a List,
    /// Key up to which keys are skipped; one that ends in a slash covers all keys with that prefix.
    floor: Option<&'a str>,
    page: Page,
    last: Option<String>,
    full: bool,
}

impl<'a> Pager<'a> {
    /// Creates an empty page.
    pub fn new(list: &'a List) -> Result<Self> {
        if !(1..=PAGE_KEYS_MAX).contains(&list.limit) {
            let limit = list.limit;
            return Err(Error::invalid(format!("page limit must be 1 to {PAGE_KEYS_MAX} keys, got {limit}")));
        }
        let floor = list.cursor.as_ref().map(|cursor| cursor.0.as_str()).max(list.after.as_deref());
        Ok(Self { list, floor, page: Page::default(), last: None, full: false })
    }

    /// True if one more key than fits was offered.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.full
    }

    /// First key that can be part of the page: a caller that can seek starts here.
    #[must_use]
    pub fn start(&self) -> &str {
        self.floor.unwrap_or_default().max(&self.list.prefix)
    }

    /// True if any key with the prefix `branch` (ending in a slash) could be part of the page.
    pub(crate) fn wants(&self, branch: &str) -> bool {
        let prefix = self.list.prefix.as_str();
        let fits = branch.starts_with(prefix) || prefix.starts_with(branch);
        let above_floor = self.floor.is_none_or(|floor| branch > floor || floor.starts_with(branch));
        let folded_already = self.list.delimited
            && self.page.prefixes.last().is_some_and(|last| branch.starts_with(last.as_str()));
        fits && above_floor && !folded_already && !self.is_passed_by_cursor(branch)
    }

    /// True if this key could be part of the page.
    pub(crate) fn wants_key(&self, key: &str) -> bool {
        key.starts_with(&self.list.prefix)
            && self.floor.is_none_or(|floor| key > floor)
            && !self.is_passed_by_cursor(key)
    }

    /// True if all keys with the prefix `branch` fold into one prefix.
    pub(crate) fn folds(&self, branch: &str) -> bool {
        self.list.delimited
            && branch.len() > self.list.prefix.len()
            && branch.starts_with(&self.list.prefix)
            && self.floor.is_none_or(|floor| !floor.starts_with(branch))
    }

    /// Adds the next key in byte order, if it is part of the page.
    pub fn offer(&mut self, key: &str, entry: impl FnOnce() -> ListEntry) {
        if !self.wants_key(key) {
            return;
        }
        let rest = &key[self.list.prefix.len()..];
        let folded = rest
            .find('/')
            .filter(|_| self.list.delimited)
            .map(|slash| &key[..=key.len() - rest.len() + slash]);
        if folded.is_some() && folded == self.page.prefixes.last().map(String::as_str) {
            return;
        }
        if self.page.entries.len() + self.page.prefixes.len() == self.list.limit {
            self.full = true;
            return;
        }
        self.last = Some(folded.unwrap_or(key).to_owned());
        match folded {
            Some(prefix) => self.page.prefixes.push(prefix.to_owned()),
            None => self.page.entries.push(entry()),
        }
    }

    /// Returns the page.
    #[must_use]
    pub fn finish(self) -> Page {
        Page { next: self.last.filter(|_| self.full).map(Cursor), ..self.page }
    }

    fn is_passed_by_cursor(&self, key: &str) -> bool {
        let cursor = self.list.cursor.as_ref().map(|cursor| cursor.0.as_str());
        cursor.is_some_and(|cursor| cursor.ends_with('/') && key.starts_with(cursor))
    }
}
