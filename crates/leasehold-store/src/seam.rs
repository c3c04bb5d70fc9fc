//! The one seam: what Leasehold asks of a store.
//!
//! Four requests, each sent exactly once per call: get, put on condition, delete, list. There are no retries
//! here and no guesses; a request whose answer did not come fails with [`Cause::Unanswered`], and only
//! [`Client`](crate::Client) decides what that means. A lost race is a value, never a failure.

use bytes::Bytes;
use futures::future::BoxFuture;
use leasehold_core::{Error, Kind, StoreTime};
use std::fmt;
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
