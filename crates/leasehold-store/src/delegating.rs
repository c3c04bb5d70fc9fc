//! Store that wraps another and overrides some of its requests.
//!
//! Tests and the simulator put such stores between the code and a real store, to lose an answer, delay one or break a
//! rule.

use bytes::Bytes;
use std::fmt;
use std::ops::Range;

use crate::clock::Clock;
use crate::store::{Answer, Get, List, Page, PartId, PutAnswer, Ranged, Store, UploadId, Version, When};

/// [`Store`] that delegates every request to an inner store, unless it overrides it.
#[expect(missing_docs, reason = "the methods are documented in `Store`")]
pub trait DelegatingStore: fmt::Debug + Send + Sync + 'static {
    /// Inner store.
    fn inner(&self) -> &dyn Store;

    fn get<'a>(&'a self, key: &'a str, unless: Option<&'a Version>) -> Answer<'a, Get> {
        self.inner().get(key, unless)
    }

    fn put<'a>(&'a self, key: &'a str, body: Bytes, when: &'a When) -> Answer<'a, PutAnswer> {
        self.inner().put(key, body, when)
    }

    fn delete<'a>(&'a self, key: &'a str) -> Answer<'a, ()> {
        self.inner().delete(key)
    }

    fn list<'a>(&'a self, list: &'a List) -> Answer<'a, Page> {
        self.inner().list(list)
    }

    fn get_range<'a>(
        &'a self,
        key: &'a str,
        range: Range<u64>,
        unchanged: Option<&'a Version>,
    ) -> Answer<'a, Ranged> {
        self.inner().get_range(key, range, unchanged)
    }

    fn upload_begin<'a>(&'a self, key: &'a str, part_bytes: u64) -> Answer<'a, UploadId> {
        self.inner().upload_begin(key, part_bytes)
    }

    fn upload_part<'a>(
        &'a self,
        key: &'a str,
        upload: &'a UploadId,
        number: usize,
        body: Bytes,
    ) -> Answer<'a, PartId> {
        self.inner().upload_part(key, upload, number, body)
    }

    fn upload_end<'a>(
        &'a self,
        key: &'a str,
        upload: &'a UploadId,
        parts: Vec<PartId>,
    ) -> Answer<'a, Version> {
        self.inner().upload_end(key, upload, parts)
    }

    fn upload_abort<'a>(&'a self, key: &'a str, upload: &'a UploadId) -> Answer<'a, ()> {
        self.inner().upload_abort(key, upload)
    }

    fn clock(&self) -> &Clock {
        self.inner().clock()
    }

    fn describe(&self) -> String {
        self.inner().describe()
    }
}

impl<S: DelegatingStore> Store for S {
    fn get<'a>(&'a self, key: &'a str, unless: Option<&'a Version>) -> Answer<'a, Get> {
        DelegatingStore::get(self, key, unless)
    }

    fn put<'a>(&'a self, key: &'a str, body: Bytes, when: &'a When) -> Answer<'a, PutAnswer> {
        DelegatingStore::put(self, key, body, when)
    }

    fn delete<'a>(&'a self, key: &'a str) -> Answer<'a, ()> {
        DelegatingStore::delete(self, key)
    }

    fn list<'a>(&'a self, list: &'a List) -> Answer<'a, Page> {
        DelegatingStore::list(self, list)
    }

    fn get_range<'a>(
        &'a self,
        key: &'a str,
        range: Range<u64>,
        unchanged: Option<&'a Version>,
    ) -> Answer<'a, Ranged> {
        DelegatingStore::get_range(self, key, range, unchanged)
    }

    fn upload_begin<'a>(&'a self, key: &'a str, part_bytes: u64) -> Answer<'a, UploadId> {
        DelegatingStore::upload_begin(self, key, part_bytes)
    }

    fn upload_part<'a>(
        &'a self,
        key: &'a str,
        upload: &'a UploadId,
        number: usize,
        body: Bytes,
    ) -> Answer<'a, PartId> {
        DelegatingStore::upload_part(self, key, upload, number, body)
    }

    fn upload_end<'a>(
        &'a self,
        key: &'a str,
        upload: &'a UploadId,
        parts: Vec<PartId>,
    ) -> Answer<'a, Version> {
        DelegatingStore::upload_end(self, key, upload, parts)
    }

    fn upload_abort<'a>(&'a self, key: &'a str, upload: &'a UploadId) -> Answer<'a, ()> {
        DelegatingStore::upload_abort(self, key, upload)
    }

    fn clock(&self) -> &Clock {
        DelegatingStore::clock(self)
    }

    fn describe(&self) -> String {
        DelegatingStore::describe(self)
    }
}
