//! Kinds of requests, and their keys.
//!
//! Keys are `{directory}/{round}-{number}`: computed where they are used and never stored, so that memory
//! stays flat. The workers of a round take numbers in turn, so that many workers can create the keys that one
//! removes.

use bytes::Bytes;
use leasehold_core::limits::PAGE_KEYS_MAX;
use leasehold_store::{Host, HostExt, SystemHost};

/// Number of keys under the listed prefix: five pages.
pub(crate) const LISTED: u64 = 5 * PAGE_KEYS_MAX as u64;
/// Size of a body, about that of a task's record.
const BODY_BYTES: usize = 1_000;

/// One kind of request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BenchRequest {
    /// Create an object of a kilobyte.
    Put,
    /// Replace the last version by a kilobyte.
    Replace,
    /// Create an empty object without a condition, under a new key.
    Index,
    /// Read a kilobyte.
    Get,
    /// Read an object that has not changed ("not modified").
    Unmodified,
    /// List a page of a thousand keys out of five thousand.
    List,
    /// Remove an object.
    Delete,
}

impl BenchRequest {
    pub(crate) const ALL: [BenchRequest; 7] = [
        BenchRequest::Put,
        BenchRequest::Replace,
        BenchRequest::Index,
        BenchRequest::Get,
        BenchRequest::Unmodified,
        BenchRequest::List,
        BenchRequest::Delete,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            BenchRequest::Put => "put",
            BenchRequest::Replace => "replace",
            BenchRequest::Index => "index",
            BenchRequest::Get => "get",
            BenchRequest::Unmodified => "unmodified",
            BenchRequest::List => "list",
            BenchRequest::Delete => "delete",
        }
    }

    /// Directory of its keys.
    pub(crate) fn directory(self) -> &'static str {
        match self {
            BenchRequest::Get | BenchRequest::Unmodified => "pool",
            _ => self.name(),
        }
    }

    /// Returns whether a worker must know the version of its object before it begins.
    pub(crate) fn needs_version(self) -> bool {
        matches!(self, BenchRequest::Replace | BenchRequest::Unmodified)
    }
}

/// Position of a request in a round.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestSlot {
    pub(crate) directory: &'static str,
    pub(crate) round: u32,
    pub(crate) workers: u64,
    pub(crate) worker: u64,
    pub(crate) nth: u64,
}

impl RequestSlot {
    /// Key of this request.
    pub(crate) fn key(self) -> String {
        key(self.directory, self.round, self.nth * self.workers + self.worker)
    }

    /// Key of the worker's own object.
    pub(crate) fn own_key(self) -> String {
        key(self.directory, 0, self.worker)
    }

    /// Key after which this request's page begins: the pages in turn.
    pub(crate) fn page_after(self) -> Option<String> {
        let before = self.nth * PAGE_KEYS_MAX as u64 % LISTED;
        Some(key(self.directory, 0, before.checked_sub(1)?))
    }
}

fn key(directory: &str, round: u32, number: u64) -> String {
    format!("{directory}/{round:05}-{number:06}")
}

/// Creates a unique record of about a kilobyte.
pub(crate) fn body() -> Bytes {
    const FILLING: [u8; BODY_BYTES] = [b'x'; BODY_BYTES];
    let host: &dyn Host = &SystemHost;
    let mut record = format!(r#"{{"write_id":"{:032x}","body":""#, host.random_bits()).into_bytes();
    record.extend_from_slice(&FILLING[record.len()..]);
    record.extend_from_slice(b"\"}");
    record.into()
}
