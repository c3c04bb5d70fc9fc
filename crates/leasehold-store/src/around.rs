//! A store around another: every request goes through, but for those that it treats in its own way.
//!
//! Tests and the simulator put such stores between the code and a real one, to lose an answer, hold one up or break a rule.

use bytes::Bytes;
use std::fmt;
use std::ops::Range;

use crate::clock::Clock;
use crate::seam::{Answer, Get, List, Page, PartId, PutAnswer, Ranged, Store, UploadId, Version, When};

/// A [`Store`] that only says where it differs from the one inside.
#[expect(missing_docs, reason = "they are those of `Store`, where they are told")]
pub trait Around: fmt::Debug + Send + Sync + 'static {
    /// The store that is asked.
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

impl<S: Around> Store for S {
    fn get<'a>(&'a self, key: &'a str, unless: Option<&'a Version>) -> Answer<'a, Get> {
        Around::get(self, key, unless)
    }

    fn put<'a>(&'a self, key: &'a str, body: Bytes, when: &'a When) -> Answer<'a, PutAnswer> {
        Around::put(self, key, body, when)
    }

    fn delete<'a>(&'a self, key: &'a str) -> Answer<'a, ()> {
        Around::delete(self, key)
    }

    fn list<'a>(&'a self, list: &'a List) -> Answer<'a, Page> {
        Around::list(self, list)
    }

    fn get_range<'a>(
        &'a self,
        key: &'a str,
        range: Range<u64>,
        unchanged: Option<&'a Version>,
    ) -> Answer<'a, Ranged> {
        Around::get_range(self, key, range, unchanged)
    }

    fn upload_begin<'a>(&'a self, key: &'a str, part_bytes: u64) -> Answer<'a, UploadId> {
        Around::upload_begin(self, key, part_bytes)
    }

    fn upload_part<'a>(
        &'a self,
        key: &'a str,
        upload: &'a UploadId,
        number: usize,
        body: Bytes,
    ) -> Answer<'a, PartId> {
        Around::upload_part(self, key, upload, number, body)
    }

    fn upload_end<'a>(
        &'a self,
        key: &'a str,
        upload: &'a UploadId,
        parts: Vec<PartId>,
    ) -> Answer<'a, Version> {
        Around::upload_end(self, key, upload, parts)
    }

    fn upload_abort<'a>(&'a self, key: &'a str, upload: &'a UploadId) -> Answer<'a, ()> {
        Around::upload_abort(self, key, upload)
    }

    fn clock(&self) -> &Clock {
        Around::clock(self)
    }

    fn describe(&self) -> String {
        Around::describe(self)
    }
}
