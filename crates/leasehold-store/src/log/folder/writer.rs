//! Creates segments and appends commits.
//!
//! ```text
//! append ─▶ sync ─▶ read the epoch ─ unchanged ─▶ committed
//!    │ fails  │ fails            └── changed ───▶ superseded
//!    └────────┴─▶ poisoned
//! ```
//!
//! # A new segment of the same epoch
//!
//! A holder begins a new segment when its own has reached [`SEGMENT_BYTES`](leasehold_core::limits::SEGMENT_BYTES). Its last
//! commit is confirmed at that moment, so every commit in the old segment is durable, and none is copied: the chain names the
//! whole segment. Of two segments of one epoch the newest is the one with the higher first commit, since one process
//! creates them one after the other.
//!
//! The holder never appends to the old segment again, not even if the creation of the new one fails: that one may be
//! visible, and the next broker would take it for the newest, with the end of the old one as it was. A failure poisons the
//! writer.
//!
//! A holder that lost its epoch may create such a segment late. It ranks below those of the later epoch, and no commit in
//! it is acknowledged, because the epoch is read after every sync.

use bytes::Bytes;
use futures::future::BoxFuture;
use leasehold_core::journal::{Commit, CommitHeader, Fence, LogPosition, commit};
use leasehold_core::{Error, HexName, Result};
use std::io::{self, ErrorKind};
use std::sync::Arc;

use super::directory::{HeldLock, LogDirectory, LogFile};
use super::epoch::{self, TakenEpoch};
use super::segment::{self, ChainLink, SegmentName};
use super::trim::FolderTrimmer;
use super::walk::{LogEnd, names};
use super::{FolderLog, corrupt, of};
use crate::host::{Host, HostExt};
use crate::log::{CommitOutcome, LogHolder, LogThread, poisoned};
use crate::mutant::breaks;

/// Writer of a folder's log.
#[derive(Debug)]
pub(in crate::log) struct FolderWriter {
    log: FolderLog,
    epoch: u64,
    thread: LogThread,
    /// Position after the last confirmed commit.
    end: LogPosition,
    /// None while a call is under way, and after one whose outcome is unknown: the writer is poisoned.
    open: Option<Box<OpenLog>>,
}

impl FolderWriter {
    pub(super) fn new(log: FolderLog, open: OpenLog) -> Self {
        Self {
            log,
            epoch: open.epoch,
            thread: LogThread::default(),
            end: open.end,
            open: Some(Box::new(open)),
        }
    }

    pub(in crate::log) fn set_thread(&mut self, thread: LogThread) {
        self.thread = thread;
    }

    pub(in crate::log) fn position(&self) -> LogPosition {
        self.end
    }

    pub(in crate::log) fn trimmer(&self) -> FolderTrimmer {
        FolderTrimmer::new(self.log.clone(), self.epoch)
    }

    pub(in crate::log) async fn commit(&mut self, records: Bytes, count: u32) -> Result<CommitOutcome> {
        Ok(match self.append(records, count, None).await? {
            Some(appended) => CommitOutcome::Committed(appended.header.seq),
            None => CommitOutcome::Superseded,
        })
    }

    /// Appends a fence; none if another process has taken the log over.
    pub(super) async fn append_fence(&mut self, fence: Fence) -> Result<Option<Commit>> {
        self.append(Bytes::new(), 0, Some(fence)).await
    }

    pub(in crate::log) async fn is_current(&mut self) -> Result<bool> {
        if self.open.is_none() {
            return Err(poisoned());
        }
        let (directory, epoch) = (self.log.directory.clone(), self.epoch);
        let is_current = self.run(move || Ok(epoch::read(&*directory)? == epoch)).await?;
        if !is_current {
            self.open = None;
        }
        Ok(is_current)
    }

    /// Runs system calls on the thread that was chosen.
    fn run<T: Send + 'static>(
        &self,
        calls: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> BoxFuture<'static, Result<T>> {
        match self.thread {
            LogThread::Blocking => self.log.host.blocking(calls),
            LogThread::Caller => Box::pin(async { calls() }),
        }
    }

    /// Appends a commit; none if another process has taken the log over.
    async fn append(&mut self, records: Bytes, count: u32, fence: Option<Fence>) -> Result<Option<Commit>> {
        let mut open = self.open.take().ok_or_else(poisoned)?;
        let appending = self.run(move || {
            let header = open.header(count, fence);
            let encoded = match commit::encode(&header, &records) {
                Ok(encoded) => encoded,
                // Nothing was written.
                Err(error) => return Ok((Some(open), Err(error))),
            };
            let appended = open.append(header, records, &encoded);
            let is_usable = matches!(appended, Ok(Some(_)));
            Ok((is_usable.then_some(open), appended))
        });
        let (open, appended) = appending.await.map_err(Error::with_unknown_outcome)?;
        self.end = open.as_ref().map_or(self.end, |open| open.end);
        self.open = open;
        appended
    }
}

/// Segment that is open for appends, with the lock of its epoch.
#[derive(Debug)]
pub(super) struct OpenLog {
    directory: Arc<dyn LogDirectory>,
    host: Arc<dyn Host>,
    holder: LogHolder,
    epoch: u64,
    _lock: Option<HeldLock>,
    segment_bytes: u64,
    name: SegmentName,
    chain: Vec<ChainLink>,
    file: Box<dyn LogFile>,
    size: u64,
    has_commits: bool,
    end: LogPosition,
}

impl OpenLog {
    /// Creates the first segment of an epoch.
    pub(super) fn create(log: &FolderLog, taken: TakenEpoch, holder: LogHolder, end: LogEnd) -> Result<Self> {
        let LogEnd { position, chain, copied, .. } = end;
        let name = SegmentName { epoch: taken.epoch, first: position.seq.next() };
        let (file, chain, size) = create_segment(&*log.directory, name, position, chain, &copied)?;
        Ok(Self {
            directory: log.directory.clone(),
            host: log.host.clone(),
            holder,
            epoch: taken.epoch,
            _lock: taken.lock,
            segment_bytes: log.segment_bytes,
            name,
            chain,
            file,
            size,
            has_commits: false,
            end: position,
        })
    }

    fn header(&self, records: u32, fence: Option<Fence>) -> CommitHeader {
        CommitHeader {
            seq: self.end.seq.next(),
            epoch: self.holder.epoch,
            instance: self.holder.instance.clone(),
            write_id: HexName::from_random(self.host.random_bits()),
            previous: self.end.hash,
            records,
            fence,
        }
    }

    /// Appends a commit; none if another process has taken the log over. After that, and after an error, this must not be
    /// used again.
    fn append(
        &mut self,
        header: CommitHeader,
        records: Bytes,
        encoded: &commit::EncodedCommit,
    ) -> Result<Option<Commit>> {
        if self.size >= self.segment_bytes && self.has_commits {
            self.begin_segment()?;
        }
        let directory = &*self.directory;
        let unknown = |error| of(directory)(error).with_unknown_outcome();
        self.file.append(&encoded.body).map_err(|error| {
            // A commit that is not complete is none, and this process will not complete it.
            if is_full(&error) { of(directory)(error) } else { unknown(error) }
        })?;
        self.size += encoded.body.len() as u64;
        sync(&mut *self.file).map_err(unknown)?;
        // After the sync: the next broker may have read the end of the log before the append (F4).
        let is_current = epoch::read(directory).map_err(Error::with_unknown_outcome)? == self.epoch;
        if !is_current && !breaks("log-epoch-unread") {
            return Ok(None);
        }
        let appended = Commit { header, records, hash: encoded.hash };
        (self.end, self.has_commits) = (appended.position(), true);
        Ok(Some(appended))
    }

    /// Begins a new segment of the same epoch. Nothing is in flight, so every commit is durable.
    fn begin_segment(&mut self) -> Result<()> {
        let mut chain = std::mem::take(&mut self.chain);
        chain.push(ChainLink { segment: self.name.to_string(), end: self.size, last: self.end.seq });
        let name = SegmentName { epoch: self.epoch, first: self.end.seq.next() };
        let (file, chain, size) = create_segment(&*self.directory, name, self.end, chain, &[])?;
        (self.name, self.chain, self.file, self.size, self.has_commits) = (name, chain, file, size, false);
        Ok(())
    }
}

/// Creates a segment durably (F10), and returns its chain and its size. It gets its name when its header is durable.
fn create_segment(
    directory: &dyn LogDirectory,
    name: SegmentName,
    before: LogPosition,
    chain: Vec<ChainLink>,
    copied: &[u8],
) -> Result<(Box<dyn LogFile>, Vec<ChainLink>, u64)> {
    let there = names(directory)?;
    if there.contains(&name.to_string()) {
        return Err(corrupt(
            directory,
            &name.to_string(),
            "it exists although no process has begun this epoch yet",
        ));
    }
    // Deleted segments are below the floor, and no replay needs them.
    let chain: Vec<_> = chain.into_iter().filter(|link| there.contains(&link.segment)).collect();
    let bytes = segment::encode(name, before, chain.clone(), copied);
    let is_durable = !breaks("log-header-not-durable");
    let created = || {
        let mut file = directory.create(&name.new_name())?;
        file.append(&bytes)?;
        if is_durable {
            file.sync()?;
        }
        directory.rename(&name.new_name(), &name.to_string())?;
        if is_durable {
            directory.sync()?;
        }
        io::Result::Ok(file)
    };
    Ok((created().map_err(of(directory))?, chain, bytes.len() as u64))
}

/// Syncs once: after a failure the next sync succeeds without having written the data (F8).
fn sync(file: &mut dyn LogFile) -> io::Result<()> {
    if breaks("log-commit-unsynced") {
        return Ok(());
    }
    match file.sync() {
        Err(_) if breaks("log-sync-retried") => file.sync(),
        done => done,
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge)
}
