//! Log in a folder of one host: segments to which commits are appended, and an epoch file that fences.
//!
//! ```text
//! journal/0/log/epoch                            number of takeovers, replaced as a whole
//! journal/0/log/epoch-{epoch}.lock               locked by the process that took this epoch, as long as it lives
//! journal/0/log/{first}-{epoch}.log              segment: header, copy of one commit, commits
//! journal/0/log/{…}.new                          file that is not complete yet
//! ```
//!
//! Here the *epoch* counts the takeovers of this log, so it goes up by one each time, under the kernel lock of the new
//! epoch (F1, F2). Commits contain the epoch of the lease as they do in a bucket. The two are different numbers: a process
//! that took the lease and crashed has not taken the log over.
//!
//! The steps of a takeover and of a commit are in `docs/protocol/journal.md`, and in the modules:
//!
//! | module | contents |
//! | --- | --- |
//! | `directory` | system calls, behind a trait: tests fail them, and lose power between them |
//! | `epoch` | epoch file and its locks |
//! | `segment` | names and bytes of segments, and torn commits |
//! | `walk` | reads the segments in order |
//! | `writer` | creates segments, appends commits |
//! | `reader` | follows without the lease |
//! | `trim` | deletes segments |

mod directory;
mod epoch;
mod reader;
mod segment;
mod trim;
mod walk;
mod writer;

pub use directory::{FolderLogDirectory, HeldLock, LogDirectory, LogFile};
pub(super) use reader::FolderReader;
pub(super) use trim::FolderTrimmer;
pub(super) use writer::FolderWriter;

use futures::future::BoxFuture;
use leasehold_core::journal::LogPosition;
use leasehold_core::limits::SEGMENT_BYTES;
use leasehold_core::{Error, Kind, Result};
use std::io;
use std::sync::Arc;

use super::{FencedLog, Replay, Storage, TakeOver};
use crate::folder::failure;
use crate::host::{Host, HostExt};
use crate::mutant::breaks;
use epoch::TakenEpoch;
use walk::{Walk, WalkStop};
use writer::OpenLog;

#[derive(Debug, Clone)]
pub(super) struct FolderLog {
    directory: Arc<dyn LogDirectory>,
    host: Arc<dyn Host>,
    segment_bytes: u64,
}

impl FolderLog {
    pub(super) fn new(directory: Arc<dyn LogDirectory>, host: Arc<dyn Host>) -> Self {
        Self { directory, host, segment_bytes: SEGMENT_BYTES }
    }

    pub(super) fn set_segment_bytes(&mut self, bytes: u64) {
        self.segment_bytes = bytes;
    }

    pub(super) fn reader(&self, from: LogPosition) -> FolderReader {
        FolderReader::new(self.clone(), from)
    }

    /// True if there is no segment.
    pub(super) async fn is_empty(&self) -> Result<bool> {
        self.blocking(|directory| Ok(walk::newest(&walk::names(directory)?).is_none())).await
    }

    /// Reports a missing or corrupt epoch file.
    pub(super) async fn check_epoch(&self) -> Result<()> {
        self.blocking(|directory| epoch::check(directory).map(drop)).await
    }

    pub(super) async fn holder_is_alive(&self) -> Result<bool> {
        self.blocking(|directory| {
            let epoch = epoch::read(directory)?;
            Ok(epoch > 0 && directory.is_locked(&epoch::lock_name(epoch)).map_err(of(directory))?)
        })
        .await
    }

    pub(super) async fn take_over(&self, replay: Replay<'_>) -> Result<TakeOver> {
        let Some(taken) = self.blocking(epoch::lock_next).await? else { return Ok(TakeOver::Superseded) };
        let epoch = taken.epoch;
        match self.fence(taken, replay).await {
            Ok(writer) => Ok(TakeOver::Fenced(FencedLog::new(Storage::Folder(writer)))),
            Err(WalkStop::Newer) => Ok(TakeOver::Superseded),
            Err(WalkStop::Failed(error)) => Err(error),
            // A process that took over after us may have deleted segments that we were still reading.
            Err(WalkStop::Mismatch(error)) => {
                Ok(if self.is_epoch(epoch).await? { TakeOver::Mismatch(error) } else { TakeOver::Superseded })
            }
        }
    }

    /// Writes the epoch, replays, creates a segment and appends the fence.
    async fn fence(&self, taken: TakenEpoch, replay: Replay<'_>) -> Result<FolderWriter, WalkStop> {
        let Replay { holder, from, fence, on_commit } = replay;
        let epoch = taken.epoch;
        // Before the end is read: the old broker acknowledges commits until then (F3).
        if !breaks("log-end-read-first") {
            self.blocking(move |directory| epoch::write(directory, epoch)).await?;
        }
        let mut walk = Walk::new(from, Some(holder.epoch), on_commit);
        let end = self.walk_all(&mut walk, Some(epoch)).await?;
        if breaks("log-end-read-first") {
            self.blocking(move |directory| epoch::write(directory, epoch)).await?;
        }
        let (log, holder) = (self.clone(), holder.clone());
        let open = self.host.blocking(move || OpenLog::create(&log, taken, holder, end)).await?;
        // A broker that took over since then may not have seen our segment (F12). The append of the fence would show the
        // same: this stops earlier.
        if !self.is_epoch(epoch).await? {
            return Err(WalkStop::Newer);
        }
        let mut writer = FolderWriter::new(self.clone(), open);
        let put = writer.append_fence(fence()?).await?.ok_or(WalkStop::Newer)?;
        walk.pass_on(put)?;
        Ok(writer)
    }

    async fn is_epoch(&self, epoch: u64) -> Result<bool> {
        self.blocking(move |directory| Ok(epoch::read(directory)? == epoch)).await
    }

    /// Runs system calls on a thread that may block.
    fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&dyn LogDirectory) -> Result<T> + Send + 'static,
    ) -> BoxFuture<'static, Result<T>> {
        let directory = self.directory.clone();
        self.host.blocking(move || work(&*directory))
    }
}

/// Converts the error of a system call.
fn of(directory: &dyn LogDirectory) -> impl Fn(io::Error) -> Error + '_ {
    |error| failure(directory.path(), error).error
}

/// Error of a file that no process of ours can have left behind.
fn corrupt(directory: &dyn LogDirectory, name: &str, why: &str) -> Error {
    Error::new(Kind::Corrupt, format!("{} is corrupt: {why}", directory.path().join(name).display()))
}
