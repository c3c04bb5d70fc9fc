//! The one seam: what Leasehold asks of a store.
//!
//! Requests, each sent exactly once per call: get, put on condition, delete, list; and for what is too large to be
//! held at once, a get of a range and the four steps of an upload in parts. There are no retries here and no guesses; a request whose answer did not come fails with [`Cause::Unanswered`], and only
//! [`Client`](crate::Client) decides what that means. A lost race is a value, never a failure.

use bytes::Bytes;
use futures::future::BoxFuture;
use leasehold_core::{Error, Kind, StoreTime};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::clock::Clock;

/// A place that keeps objects and writes them on condition.
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// Reads an object, or learns that it is still the version we know.
    fn get<'a>(&'a self, key: &'a str, unless: Option<&'a Version>) -> Answer<'a, Get>;

    /// Writes an object if the condition holds at that instant.
    fn put<'a>(&'a self, key: &'a str, body: Bytes, when: &'a When) -> Answer<'a, PutAnswer>;

    /// Removes an object, whether it is there or not. Aimed only at keys that are never written again.
    fn delete<'a>(&'a self, key: &'a str) -> Answer<'a, ()>;

    /// Lists one page of keys in byte order.
    fn list<'a>(&'a self, list: &'a List) -> Answer<'a, Page>;

    /// Reads the bytes of an object that lie in a range, if it is still the version we know.
    ///
    /// A range that goes beyond the end is cut. One that is empty, or begins at the end or beyond it, is a failure that
    /// is final and [`Kind::Invalid`]: S3 refuses it, and tells no version.
    ///
    /// The version in the answer is for other ranged reads alone. A folder makes it from the file's number, stamp and
    /// length, because its usual version is a hash over all bytes.
    fn get_range<'a>(
        &'a self,
        key: &'a str,
        range: Range<u64>,
        unchanged: Option<&'a Version>,
    ) -> Answer<'a, Ranged>;

    /// Begins an upload in parts. Nothing is seen of it until its end. Every part has `part_bytes`, but the last may be
    /// smaller: a folder has to know a part's place before all others are there, and some buckets take no others.
    ///
    /// An upload belongs to the store that began it, and on a folder dies with its process.
    fn upload_begin<'a>(&'a self, key: &'a str, part_bytes: u64) -> Answer<'a, UploadId>;

    /// Sends a part; they are counted from 0. The same bytes may be sent again under the same number.
    fn upload_part<'a>(
        &'a self,
        key: &'a str,
        upload: &'a UploadId,
        number: usize,
        body: Bytes,
    ) -> Answer<'a, PartId>;

    /// Makes an object of all parts, in their order, whatever stood there before: it appears whole or not at all. The
    /// version is for ranged reads, as above. An upload that is not there (any more) is a failure that is final and
    /// [`Kind::Lost`], as it is for a part.
    fn upload_end<'a>(
        &'a self,
        key: &'a str,
        upload: &'a UploadId,
        parts: Vec<PartId>,
    ) -> Answer<'a, Version>;

    /// Removes the parts of an upload, whether it is there or not.
    fn upload_abort<'a>(&'a self, key: &'a str, upload: &'a UploadId) -> Answer<'a, ()>;

    /// What this store's answers have taught about its time.
    fn clock(&self) -> &Clock;

    /// The store as a person would name it, without secrets.
    fn describe(&self) -> String;

    /// The same store for use on another runtime, sharing nothing that a busy one could hold up; nothing if it
    /// shares nothing anyway.
    fn apart(&self) -> Option<Arc<dyn Store>> {
        None
    }
}

/// An answer that is on its way.
pub type Answer<'a, T> = BoxFuture<'a, Result<T, Failure>>;

/// An opaque version of one object: equal bytes may have equal versions, different bytes never do.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Version(Arc<str>);

impl Version {
    /// A version by the store's own name for it.
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self(name.into())
    }

    /// The store's own name for it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The condition of a put.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum When {
    /// Nothing is there.
    Absent,
    /// What is there is still this version.
    Unchanged(Version),
    /// No condition: only for objects whose content follows from elsewhere, such as index entries.
    Always,
}

impl When {
    /// Whether a put with this condition could still succeed on what was just read.
    #[must_use]
    pub fn holds(&self, current: Option<&Object>) -> bool {
        match (self, current) {
            (When::Absent, None) | (When::Always, _) => true,
            (When::Unchanged(version), Some(object)) => object.version == *version,
            (When::Absent, Some(_)) | (When::Unchanged(_), None) => false,
        }
    }
}

/// An object as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    /// Its bytes.
    pub body: Bytes,
    /// Its version, for the next condition.
    pub version: Version,
}

/// The answer to a get.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Get {
    /// Here it is.
    Found(Object),
    /// There is no such object.
    Missing,
    /// It is still the version that was named.
    Unchanged,
}

impl Get {
    /// The object, if there is one to show.
    #[must_use]
    pub fn found(self) -> Option<Object> {
        match self {
            Get::Found(object) => Some(object),
            Get::Missing | Get::Unchanged => None,
        }
    }
}

/// The answer to a get of a range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ranged {
    /// Here is what lies in the range; its version is for ranged reads alone.
    Found(Object),
    /// There is no such object.
    Missing,
    /// It is not the version that was named.
    Changed,
}

impl Ranged {
    /// The bytes in the range and their version, if there are any to show.
    #[must_use]
    pub fn found(self) -> Option<Object> {
        match self {
            Ranged::Found(object) => Some(object),
            Ranged::Missing | Ranged::Changed => None,
        }
    }
}

/// A store's own name for an upload in parts.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UploadId(Arc<str>);

impl UploadId {
    /// An upload by the store's own name for it.
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self(name.into())
    }

    /// The store's own name for it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A store's own name for a part that it has.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PartId(Arc<str>);

impl PartId {
    /// A part by the store's own name for it.
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self(name.into())
    }

    /// The store's own name for it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The answer to one put, as the store gave it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PutAnswer {
    /// Written; this is the version now.
    Written(Version),
    /// Refused. Stores use several words for it (409, 412, 404) and some mix them up; none of them proves
    /// that the race was lost, because an earlier try of ours may be what stands in the way.
    Refused,
}

/// Which keys to list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct List {
    /// Only keys that begin with this.
    pub prefix: String,
    /// Only keys after this one in byte order.
    pub after: Option<String>,
    /// Go on where an earlier page ended; the other fields must be the same.
    pub cursor: Option<Cursor>,
    /// At most so many keys and prefixes.
    pub limit: usize,
    /// Fold everything below the next slash into one prefix.
    pub delimited: bool,
}

impl List {
    /// Everything that begins with `prefix`, a full page at a time.
    pub fn all(prefix: impl Into<String>) -> Self {
        Self { prefix: prefix.into(), limit: leasehold_core::limits::PAGE_KEYS_MAX, ..Self::default() }
    }

    /// Only keys after this one.
    #[must_use]
    pub fn after(mut self, key: impl Into<String>) -> Self {
        self.after = Some(key.into());
        self
    }

    /// At most so many keys and prefixes.
    #[must_use]
    pub fn limit(mut self, limit: usize) -> Self {
        self.limit = limit;
        self
    }

    /// Fold everything below the next slash into one prefix.
    #[must_use]
    pub fn delimited(mut self) -> Self {
        self.delimited = true;
        self
    }

    /// The page that follows one which ended at `cursor`.
    #[must_use]
    pub fn at(mut self, cursor: Cursor) -> Self {
        self.cursor = Some(cursor);
        self
    }
}

/// Where a page ended; only the store that gave it can read it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cursor(pub(crate) String);

/// One page of a list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Page {
    /// Keys in byte order.
    pub entries: Vec<Entry>,
    /// Folded prefixes, each with its final slash, in byte order.
    pub prefixes: Vec<String>,
    /// How to ask for the next page; none when this was the last.
    pub next: Option<Cursor>,
}

/// A key in a list, with what lists tell of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The key.
    pub key: String,
    /// When it was last written, by the store's stamp.
    pub modified: StoreTime,
    /// How many bytes it holds.
    pub size: u64,
}

/// Why there was no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// The store asks us to slow down.
    Throttled,
    /// The request was sent and no usable answer came: it may have been carried out, or may still be.
    Unanswered,
    /// The request never reached the store, or was turned away unread: it surely was not carried out.
    Unreached,
    /// Asking again will not help.
    Final(Kind),
}

/// A request without an answer that could be used.
#[derive(Debug)]
pub struct Failure {
    /// What is known about why.
    pub cause: Cause,
    /// The failure as the caller would see it.
    pub error: Error,
}

impl Failure {
    /// A failure that another try may cure.
    pub fn passing(cause: Cause, message: impl Into<String>) -> Self {
        Self { cause, error: Error::new(Kind::Unavailable, message) }
    }

    /// A failure that no repetition cures.
    pub fn last(kind: Kind, message: impl Into<String>) -> Self {
        Self { cause: Cause::Final(kind), error: Error::new(kind, message) }
    }

    /// Adds what led to it.
    #[must_use]
    pub fn because(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.error = self.error.because(source);
        self
    }
}
