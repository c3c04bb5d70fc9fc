//! Log of a journal: commits in one order, written by one process at a time.
//!
//! A log is stored in one of two ways. In a *bucket* every commit is an object, and the conditional put of the next one decides who
//! may write (`bucket`). In a *folder* of one host commits are appended to segments, and an epoch file decides
//! (`folder`). Both follow the rules of `docs/protocol/journal.md`, which were checked with a model checker; comments name
//! the rule at the line that implements it.
//!
//! ```text
//!   Log ─ take_over ─▶ replays commits, puts a fence ─▶ FencedLog ─ confirm ─▶ LogWriter ─ commit ─▶ Committed
//!    │                          │                            │                     │
//!    └─ reader ─▶ LogReader     └─▶ Superseded, Mismatch ◀───┴─────────────────────┘
//! ```
//!
//! The types show the order of a takeover: only [`Log::take_over`] makes a [`FencedLog`], and only its confirmation, which
//! is sent after the fence was put (B3), makes a [`LogWriter`] (B2). A writer takes `&mut self`, so one commit is in flight
//! (B6, F7), and a refusal waits for it (B8).
//!
//! A writer whose commit has an unknown outcome is *poisoned*: it refuses everything from then on. The same holds for a
//! call that was dropped before its end. The process drops its state, goes back to following, and takes over again.

mod bucket;
mod continuity;
mod faults;
mod folder;

use bytes::Bytes;
use leasehold_core::journal::{Commit, Fence, LogPosition, Seq};
use leasehold_core::{Error, HexName, Kind, Result};
use std::collections::BTreeSet;
use std::future::Future;
use std::path::Path;
use std::sync::Arc;

use crate::client::Client;
use crate::folder::FolderOptions;
use crate::host::Host;
use crate::mutant::breaks;
use bucket::{BucketLog, BucketReader, BucketTrimmer, BucketWriter};
pub use faults::LogFault;
use folder::{FolderLog, FolderReader, FolderTrimmer, FolderWriter};
pub use folder::{FolderLogDirectory, HeldLock, LogDirectory, LogFile};

/// Log of a journal.
#[derive(Debug, Clone)]
pub struct Log {
    storage: Storage<BucketLog, FolderLog>,
}

/// Bucket or folder variant of a log, or of a part of it.
#[derive(Debug, Clone)]
enum Storage<B, F> {
    Bucket(B),
    Folder(F),
}

/// Process that takes a log over, as its lease names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogHolder {
    /// Epoch of the lease.
    pub epoch: u64,
    /// Process, random.
    pub instance: HexName,
}

/// Outcome of a takeover.
#[derive(Debug)]
pub enum TakeOver {
    /// Every commit was replayed, and the fence is the last one.
    Fenced(FencedLog),
    /// Another process takes the log over, or has: go back to following.
    Superseded,
    /// The log does not continue the history. It is corrupt if the lease, read after this, is still held; otherwise the
    /// process has replayed slots that its successor has deleted, and goes back to following (B12).
    Mismatch(Error),
}

/// Outcome of a commit.
#[derive(Debug)]
pub enum CommitOutcome {
    /// The commit with this number is durable, and every later broker replays it.
    Committed(Seq),
    /// Another process has taken the log over: drop all state, and acknowledge nothing.
    Superseded,
    /// The slot of the commit has other content. The log is corrupt if the lease, read after this, is still held (B12).
    /// Drop all state in either case, and acknowledge nothing.
    Mismatch(Error),
}

/// Outcome of a read without the lease.
#[derive(Debug)]
pub enum Followed {
    /// Every commit up to the current end was read.
    Current,
    /// The log does not continue what was read before: read the lease again, and start over from its snapshot. It is
    /// corrupt if that fails in the same way (B12).
    Mismatch(Error),
}

impl Log {
    /// Log as objects of a bucket, or of any other store.
    #[must_use]
    pub fn in_bucket(client: Client) -> Self {
        Self { storage: Storage::Bucket(BucketLog::new(client)) }
    }

    /// Log as segments in the folder of a queue on a disk of this host. Not for mounts that hosts share: kernel locks and
    /// the cache of another host are not reliable there.
    #[must_use]
    pub fn in_folder(root: &Path, options: FolderOptions, host: Arc<dyn Host>) -> Self {
        let directory = FolderLogDirectory::new(root, options, host.clone());
        Self::in_directory(Arc::new(directory), host)
    }

    /// Log as segments in a directory of any kind, for tests and the simulator.
    #[must_use]
    pub fn in_directory(directory: Arc<dyn LogDirectory>, host: Arc<dyn Host>) -> Self {
        Self { storage: Storage::Folder(FolderLog::new(directory, host)) }
    }

    /// Begins a new segment from this size on; for tests.
    #[must_use]
    pub fn with_segment_bytes(mut self, bytes: u64) -> Self {
        if let Storage::Folder(log) = &mut self.storage {
            log.set_segment_bytes(bytes);
        }
        self
    }

    /// Replays every commit after `from`, and puts a fence at the end.
    ///
    /// `on_commit` gets the commits in order, and the fence as the last one. `fence` is called when the end is reached, and
    /// again if another commit turns up there. Errors of both end the takeover.
    ///
    /// Cost in a bucket: one get per commit, at most [`SLOTS_AT_ONCE`](leasehold_core::limits::SLOTS_AT_ONCE) at once and
    /// as many beyond the end, one list, and one put. In a folder: three syncs of files, two of the directory, and one of each directory above it.
    ///
    /// # Cancel safety
    ///
    /// A dropped call is like a process that crashes: it may have fenced earlier brokers.
    pub async fn take_over(
        &self,
        holder: &LogHolder,
        from: LogPosition,
        mut fence: impl FnMut() -> Result<Fence> + Send,
        mut on_commit: impl FnMut(Commit) -> Result<()> + Send,
    ) -> Result<TakeOver> {
        let replay = Replay { holder, from, fence: &mut fence, on_commit: &mut on_commit };
        match &self.storage {
            Storage::Bucket(log) => log.take_over(replay).await,
            Storage::Folder(log) => log.take_over(replay).await,
        }
    }

    /// Reads commits after `from` without the lease.
    #[must_use]
    pub fn reader(&self, from: LogPosition) -> LogReader {
        LogReader {
            storage: match &self.storage {
                Storage::Bucket(log) => Storage::Bucket(log.reader(from)),
                Storage::Folder(log) => Storage::Folder(log.reader(from)),
            },
        }
    }

    /// True if the log has no commit. Cost in a bucket: one list.
    pub async fn is_empty(&self) -> Result<bool> {
        match &self.storage {
            Storage::Bucket(log) => log.is_empty().await,
            Storage::Folder(log) => log.is_empty().await,
        }
    }

    /// Reads every commit after `from`, and returns what is missing or corrupt. `on_commit` gets the commits before the
    /// first fault; its error is a fault, too.
    ///
    /// A fault is one only if the lease, read after this, still names the snapshot that `from` belongs to (B12).
    ///
    /// Cost in a bucket: one list for every thousand commits, and one get for each.
    pub async fn check(
        &self,
        from: LogPosition,
        mut on_commit: impl FnMut(Commit) -> Result<()> + Send,
    ) -> Result<Vec<LogFault>> {
        match &self.storage {
            Storage::Bucket(log) => log.check(from, &mut on_commit).await,
            Storage::Folder(log) => log.check(from, &mut on_commit).await,
        }
    }

    /// True if the process that took the log over last is alive, false if it has ended; none in a bucket, whose log
    /// cannot tell. A process that is stopped is alive.
    pub async fn holder_is_alive(&self) -> Result<Option<bool>> {
        match &self.storage {
            Storage::Bucket(_) => Ok(None),
            Storage::Folder(log) => log.holder_is_alive().await.map(Some),
        }
    }
}

/// Takeover in progress.
struct Replay<'a> {
    holder: &'a LogHolder,
    from: LogPosition,
    fence: &'a mut (dyn FnMut() -> Result<Fence> + Send),
    on_commit: &'a mut (dyn FnMut(Commit) -> Result<()> + Send),
}

/// Log with our fence as its last commit, before the lease is confirmed.
#[derive(Debug)]
pub struct FencedLog {
    writer: LogWriter,
}

impl FencedLog {
    fn new(storage: Storage<BucketWriter, FolderWriter>) -> Self {
        Self { writer: LogWriter { storage } }
    }

    /// Position after the fence.
    #[must_use]
    pub fn position(&self) -> LogPosition {
        self.writer.position()
    }

    /// Confirms the lease; none if it is no longer held.
    ///
    /// `is_held` renews the lease, or reads it, and returns true if it shows our epoch and instance (B2). It is called
    /// here, and not before: an earlier confirmation says nothing about the moment of the fence (B3).
    pub async fn confirm<C>(self, is_held: impl FnOnce() -> C) -> Result<Option<LogWriter>>
    where
        C: Future<Output = Result<bool>>,
    {
        let is_held = breaks("log-unconfirmed") || is_held().await?;
        Ok(is_held.then_some(self.writer))
    }
}

/// Thread on which the log of a folder is written and synced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogThread {
    /// One of those that may block, so that the caller does other work meanwhile.
    #[default]
    Blocking,
    /// That of the caller, which has nothing else to do. To wake another thread and to be woken by it takes about as long
    /// as a sync of a fast disk.
    Caller,
}

/// Log that this process may write.
#[derive(Debug)]
pub struct LogWriter {
    storage: Storage<BucketWriter, FolderWriter>,
}

impl LogWriter {
    /// Writes records, one JSON line each, as the next commit. Returns when the outcome is certain.
    ///
    /// An error of [`Kind::Invalid`] concerns the records alone. After any other error whose
    /// [outcome is unknown](Error::outcome_is_unknown) the writer is poisoned; otherwise the commit was surely not written,
    /// and never will be. In a folder every other error poisons the writer.
    ///
    /// # Cancel safety
    ///
    /// Not cancel safe: a dropped call poisons the writer.
    pub async fn commit(&mut self, records: Bytes, count: u32) -> Result<CommitOutcome> {
        match &mut self.storage {
            Storage::Bucket(writer) => writer.commit(&records, count).await,
            Storage::Folder(writer) => writer.commit(records, count).await,
        }
    }

    /// True if no other process has acknowledged a commit that this one does not know: for refusals, and for reads that
    /// must be current (B8, F11). Call it after the request arrived; one call serves all requests that wait. False if
    /// another process has taken the log over; an error of [`Kind::Corrupt`] is to be judged by the lease (B12).
    ///
    /// Cost: one get in a bucket, one read of a small file in a folder.
    pub async fn is_current(&mut self) -> Result<bool> {
        if breaks("log-current-unread") {
            return Ok(true);
        }
        match &mut self.storage {
            Storage::Bucket(writer) => writer.is_current().await,
            Storage::Folder(writer) => writer.is_current().await,
        }
    }

    /// Chooses the thread of the next calls. In a bucket nothing blocks.
    pub fn set_thread(&mut self, thread: LogThread) {
        if let Storage::Folder(writer) = &mut self.storage {
            writer.set_thread(thread);
        }
    }

    /// Position after the last confirmed commit.
    #[must_use]
    pub fn position(&self) -> LogPosition {
        match &self.storage {
            Storage::Bucket(writer) => writer.position(),
            Storage::Folder(writer) => writer.position(),
        }
    }

    /// Returns a handle that deletes old commits, beside the writer.
    #[must_use]
    pub fn trimmer(&self) -> LogTrimmer {
        LogTrimmer {
            storage: match &self.storage {
                Storage::Bucket(writer) => Storage::Bucket(writer.trimmer()),
                Storage::Folder(writer) => Storage::Folder(writer.trimmer()),
            },
        }
    }
}

/// Deletes commits that a snapshot covers.
#[derive(Debug, Clone)]
pub struct LogTrimmer {
    storage: Storage<BucketTrimmer, FolderTrimmer>,
}

impl LogTrimmer {
    /// Deletes commits with a number below `floor`, and returns the number of deleted objects or segments. Call it only
    /// after a lease with this floor was confirmed (B7): the next broker then begins at the floor or later.
    ///
    /// In a bucket these are the commits after `deleted_to` that are not in `fences`: a broker that lost its lease finds
    /// its next slot taken, however late it wakes up (B1). In a folder whole segments are deleted, and the files of
    /// takeovers before this one.
    pub async fn delete_below(&self, floor: Seq, deleted_to: Seq, fences: &BTreeSet<Seq>) -> Result<u64> {
        match &self.storage {
            Storage::Bucket(trimmer) => trimmer.delete_below(floor, deleted_to, fences).await,
            Storage::Folder(trimmer) => trimmer.delete_below(floor).await,
        }
    }
}

/// Reads a log without the lease.
///
/// It reads what the next broker would replay. That may include a commit that is not acknowledged yet, which in a folder
/// a power loss can remove. Commits below the floor are deleted, and a deleted slot looks like the end of the log: a
/// process that follows for longer reads the lease from time to time, and starts over if the floor has passed its
/// position.
#[derive(Debug)]
pub struct LogReader {
    storage: Storage<BucketReader, FolderReader>,
}

impl LogReader {
    /// Reads the commits up to the current end, in order. After an error, or a mismatch, the reader continues after the
    /// last commit that `on_commit` has got.
    pub async fn read(&mut self, mut on_commit: impl FnMut(Commit) -> Result<()> + Send) -> Result<Followed> {
        match &mut self.storage {
            Storage::Bucket(reader) => reader.read(&mut on_commit).await,
            Storage::Folder(reader) => reader.read(&mut on_commit).await,
        }
    }

    /// Position after the last commit that was read.
    #[must_use]
    pub fn position(&self) -> LogPosition {
        match &self.storage {
            Storage::Bucket(reader) => reader.position(),
            Storage::Folder(reader) => reader.position(),
        }
    }
}

/// Error of a writer that is poisoned.
fn poisoned() -> Error {
    Error::new(Kind::Lost, "this broker has stopped, because the outcome of a commit is unknown; retry")
}
