//! The kinds of request, and the keys they are aimed at.
//!
//! Keys are `{directory}/{round}-{number}`: made up where they are used and never kept, so that memory stays
//! flat. The workers of a round take numbers in turn, so that the same keys can be made by many workers and
//! removed by one.

use bytes::Bytes;
use leasehold_core::limits::PAGE_KEYS_MAX;
use leasehold_store::{Host, HostExt, SystemHost};

/// Keys under the prefix that is listed: five pages.
pub(crate) const LISTED: u64 = 5 * PAGE_KEYS_MAX as u64;
/// A body of about a kilobyte, as a task's record is.
const BODY_BYTES: usize = 1_000;

/// One kind of request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    /// A kilobyte where nothing is yet.
    Put,
    /// A kilobyte over the version that was written last.
    Replace,
    /// An empty object without a condition, under a new key.
    Index,
    /// A kilobyte read.
    Get,
    /// A read that is answered "not modified".
    Unmodified,
    /// A page of a thousand keys out of five thousand.
    List,
    /// A removal.
    Delete,
}

impl Operation {
    pub(crate) const ALL: [Operation; 7] = [
        Operation::Put,
        Operation::Replace,
        Operation::Index,
        Operation::Get,
        Operation::Unmodified,
        Operation::List,
        Operation::Delete,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Operation::Put => "put",
            Operation::Replace => "replace",
            Operation::Index => "index",
            Operation::Get => "get",
            Operation::Unmodified => "unmodified",
            Operation::List => "list",
            Operation::Delete => "delete",
        }
    }

    /// Where its keys are.
    pub(crate) fn directory(self) -> &'static str {
        match self {
            Operation::Get | Operation::Unmodified => "pool",
            _ => self.name(),
        }
    }

    /// Whether a worker must know the version of its object before it begins.
    pub(crate) fn needs_version(self) -> bool {
        matches!(self, Operation::Replace | Operation::Unmodified)
    }
}

/// Which of a round's requests this is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Spot {
    pub(crate) directory: &'static str,
    pub(crate) round: u32,
    pub(crate) workers: u64,
    pub(crate) worker: u64,
    pub(crate) nth: u64,
}

impl Spot {
    /// A key of its own.
    pub(crate) fn key(self) -> String {
        key(self.directory, self.round, self.nth * self.workers + self.worker)
    }

    /// The one object of this worker.
    pub(crate) fn own_key(self) -> String {
        key(self.directory, 0, self.worker)
    }

    /// The key after which this request's page begins: the pages in turn.
    pub(crate) fn page_after(self) -> Option<String> {
        let before = self.nth * PAGE_KEYS_MAX as u64 % LISTED;
        Some(key(self.directory, 0, before.checked_sub(1)?))
    }
}

fn key(directory: &str, round: u32, number: u64) -> String {
    format!("{directory}/{round:05}-{number:06}")
}

/// A record of about a kilobyte, unlike any other.
pub(crate) fn body() -> Bytes {
    const FILLING: [u8; BODY_BYTES] = [b'x'; BODY_BYTES];
    let host: &dyn Host = &SystemHost;
    let mut record = format!(r#"{{"write_id":"{:032x}","body":""#, host.random_bits()).into_bytes();
    record.extend_from_slice(&FILLING[record.len()..]);
    record.extend_from_slice(b"\"}");
    record.into()
}
