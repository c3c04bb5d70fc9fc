//! The trait [`Store`]: requests that Leasehold makes of a store.
//!
//! Each call sends exactly one request: get, conditional put, delete, list; and for objects that are too large to hold
//! in memory, a get of a range and the four steps of an upload in parts. There are no retries here: a request without
//! an answer fails with [`Cause::Unanswered`], and only [`Client`](crate::Client) decides what that means. A lost race
//! is a value, never a failure.

use bytes::Bytes;
use futures::future::BoxFuture;
use leasehold_core::{Error, Kind, StoreTime};
use std::fmt;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use crate::clock::Clock;
use crate::folder::FolderOptions;

/// Object store with conditional writes.
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// Reads an object, unless it still has the version `unless`.
    fn get<'a>(&'a self, key: &'a str, unless: Option<&'a Version>) -> Answer<'a, Get>;

    /// Writes an object if the condition holds at that instant.
    fn put<'a>(&'a self, key: &'a str, body: Bytes, when: &'a When) -> Answer<'a, PutAnswer>;

    /// Removes an object, whether it exists or not. Only for keys that are never written again.
    fn delete<'a>(&'a self, key: &'a str) -> Answer<'a, ()>;

    /// Lists one page of keys in byte order.
    fn list<'a>(&'a self, list: &'a List) -> Answer<'a, Page>;

    /// Reads a range of bytes of an object, if it still has the known version.
    ///
    /// A range that goes beyond the end is cut. One that is empty, or begins at the end or beyond it, is a final
    /// failure of [`Kind::Invalid`]: S3 refuses it and returns no version.
    ///
    /// The version in the answer is only for other ranged reads. A folder derives it from the file's inode, time and
    /// length, because its usual version is a hash of all bytes.
    fn get_range<'a>(
        &'a self,
        key: &'a str,
        range: Range<u64>,
        unchanged: Option<&'a Version>,
    ) -> Answer<'a, Ranged>;

    /// Begins an upload in parts, which is invisible until its end. Every part has `part_bytes`, but the last may be
    /// smaller: a folder must know the position of a part before the others arrive, and some buckets accept no others.
    ///
    /// An upload belongs to the store that began it, and on a folder ends with its process.
    fn upload_begin<'a>(&'a self, key: &'a str, part_bytes: u64) -> Answer<'a, UploadId>;

    /// Sends a part, numbered from 0. The same bytes may be sent again under the same number.
    fn upload_part<'a>(
        &'a self,
        key: &'a str,
        upload: &'a UploadId,
        number: usize,
        body: Bytes,
    ) -> Answer<'a, PartId>;

    /// Assembles all parts, in order, into an object that replaces any existing one atomically. The version is for
    /// ranged reads, as above. An upload that does not exist (or no longer) is a final failure of [`Kind::Lost`], as it
    /// is for a part.
    fn upload_end<'a>(
        &'a self,
        key: &'a str,
        upload: &'a UploadId,
        parts: Vec<PartId>,
    ) -> Answer<'a, Version>;

    /// Removes the parts of an upload, whether it exists or not.
    fn upload_abort<'a>(&'a self, key: &'a str, upload: &'a UploadId) -> Answer<'a, ()>;

    /// Clock of this store.
    fn clock(&self) -> &Clock;

    /// Name of the store for messages, without secrets.
    fn describe(&self) -> String;

    /// Folder on a disk of this host that has the objects, in which a journal keeps its log as files; none for every other
    /// store, and for a folder that hosts share.
    fn local_folder(&self) -> Option<LocalFolder> {
        None
    }

    /// Returns a handle to the same store for another runtime, without shared connections that a busy runtime could
    /// block; none if it shares nothing anyway.
    fn detached(&self) -> Option<Arc<dyn Store>> {
        None
    }
}

/// Folder on a disk of this host.
#[derive(Debug, Clone)]
pub struct LocalFolder {
    /// Its path.
    pub root: PathBuf,
    /// Options with which it was opened.
    pub options: FolderOptions,
}

/// Pending answer.
pub type Answer<'a, T> = BoxFuture<'a, Result<T, Failure>>;

/// Opaque version of an object: equal bytes may have equal versions, different bytes never do.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Version(Arc<str>);

impl Version {
    /// Creates a version from the store's own identifier.
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self(name.into())
    }

    /// Returns the store's own identifier.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Condition of a put.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum When {
    /// The object does not exist.
    Absent,
    /// The object still has this version.
    Unchanged(Version),
    /// No condition: only for objects whose content is derived from others, such as index entries.
    Always,
}

impl When {
    /// True if a put with this condition could still succeed, given the object that was just read.
    #[must_use]
    pub fn holds(&self, current: Option<&Object>) -> bool {
        match (self, current) {
            (When::Absent, None) | (When::Always, _) => true,
            (When::Unchanged(version), Some(object)) => object.version == *version,
            (When::Absent, Some(_)) | (When::Unchanged(_), None) => false,
        }
    }
}

/// Object as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    /// Bytes of the object.
    pub body: Bytes,
    /// Version, for the next condition.
    pub version: Version,
}

/// Answer to a get.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Get {
    /// The object.
    Found(Object),
    /// The object does not exist.
    Missing,
    /// The object still has the given version.
    Unchanged,
}

impl Get {
    /// Returns the object, if it was read.
    #[must_use]
    pub fn found(self) -> Option<Object> {
        match self {
            Get::Found(object) => Some(object),
            Get::Missing | Get::Unchanged => None,
        }
    }
}

/// Answer to a get of a range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ranged {
    /// The bytes in the range; the version is only for ranged reads.
    Found(Object),
    /// The object does not exist.
    Missing,
    /// The object no longer has the given version.
    Changed,
}

impl Ranged {
    /// Returns the bytes in the range and their version, if they were read.
    #[must_use]
    pub fn found(self) -> Option<Object> {
        match self {
            Ranged::Found(object) => Some(object),
            Ranged::Missing | Ranged::Changed => None,
        }
    }
}

/// Identifier of an upload in parts, chosen by the store.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UploadId(Arc<str>);

impl UploadId {
    /// Creates an id from the store's own identifier.
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self(name.into())
    }

    /// Returns the store's own identifier.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Identifier of an uploaded part, chosen by the store.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PartId(Arc<str>);

impl PartId {
    /// Creates an id from the store's own identifier.
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self(name.into())
    }

    /// Returns the store's own identifier.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Answer of the store to one put.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PutAnswer {
    /// Written, with its new version.
    Written(Version),
    /// Refused. Stores use several statuses for it (409, 412, 404), and some mix them up. None of them proves that the
    /// race was lost, because an earlier attempt of our own may be the reason.
    Refused,
}

/// Request for a page of keys.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct List {
    /// Prefix of the keys.
    pub prefix: String,
    /// Key after which the list begins, in byte order.
    pub after: Option<String>,
    /// Position at which an earlier page ended; the other fields must be the same.
    pub cursor: Option<Cursor>,
    /// Maximum number of keys and prefixes.
    pub limit: usize,
    /// Folds all keys below the next slash into one prefix.
    pub delimited: bool,
}

impl List {
    /// Lists all keys with `prefix`, with the maximum page size.
    pub fn all(prefix: impl Into<String>) -> Self {
        Self { prefix: prefix.into(), limit: leasehold_core::limits::PAGE_KEYS_MAX, ..Self::default() }
    }

    /// Begins the list after this key.
    #[must_use]
    pub fn after(mut self, key: impl Into<String>) -> Self {
        self.after = Some(key.into());
        self
    }

    /// Limits the number of keys and prefixes.
    #[must_use]
    pub fn limit(mut self, limit: usize) -> Self {
        self.limit = limit;
        self
    }

    /// Folds all keys below the next slash into one prefix.
    #[must_use]
    pub fn delimited(mut self) -> Self {
        self.delimited = true;
        self
    }

    /// Requests the page that follows one which ended at `cursor`.
    #[must_use]
    pub fn at(mut self, cursor: Cursor) -> Self {
        self.cursor = Some(cursor);
        self
    }
}

/// Position at which a page ended; opaque, for the store that created it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cursor(pub(crate) String);

/// One page of a list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Page {
    /// Keys in byte order.
    pub entries: Vec<ListEntry>,
    /// Folded prefixes, each with its final slash, in byte order.
    pub prefixes: Vec<String>,
    /// Position of the next page; none after the last.
    pub next: Option<Cursor>,
}

/// Key in a list, with its metadata.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListEntry {
    /// Key of the object.
    pub key: String,
    /// Time of the last write, by the store.
    pub modified: StoreTime,
    /// Size in bytes.
    pub size: u64,
}

/// Cause of a failed request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// The store is throttling requests.
    Throttled,
    /// The request was sent, but there was no usable answer: it may have been carried out, or may still be.
    Unanswered,
    /// The request never reached the store, or was rejected unread: it was surely not carried out.
    Unreached,
    /// A retry cannot succeed.
    Final(Kind),
}

/// Request without a usable answer.
#[derive(Debug)]
pub struct Failure {
    /// Cause of the failure.
    pub cause: Cause,
    /// Error for the caller.
    pub error: Error,
}

impl Failure {
    /// Creates a failure that a retry may cure.
    pub fn transient(cause: Cause, message: impl Into<String>) -> Self {
        Self { cause, error: Error::new(Kind::Unavailable, message) }
    }

    /// Creates a failure that no retry cures.
    pub fn permanent(kind: Kind, message: impl Into<String>) -> Self {
        Self { cause: Cause::Final(kind), error: Error::new(kind, message) }
    }

    /// Adds the cause.
    #[must_use]
    pub fn because(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.error = self.error.because(source);
        self
    }
}
