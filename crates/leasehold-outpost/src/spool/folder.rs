//! Directory of a task under its lock.

use leasehold_core::limits::DISK_LEASE_STALE;
use leasehold_core::outpost::{DiskLease, NodeNow, SpoolFile};
use leasehold_core::{Error, Kind, Result, State, StepContext, StoreTime, Task, TaskId};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use super::Spool;
use super::change::{FileChange, SpoolChange};
use super::kept::{Note, NotedRecord};
use crate::disk::{self, Lasting};

/// Directory of a task, locked against changes by other processes.
#[derive(Debug)]
pub(super) struct Folder<'a> {
    pub(super) spool: &'a Spool,
    pub(super) id: TaskId,
    pub(super) path: PathBuf,
    pub(super) _lock: File,
}

/// State of a task's lease file.
#[derive(Debug)]
pub(super) enum Found {
    /// Missing: the task is free.
    Free,
    /// A valid lease.
    Lease(DiskLease),
    /// Corrupt; `is_old` if it has been so for ten minutes.
    Torn { is_old: bool },
}

/// Time at which a corrupt lease was first read, by the boot clock.
#[derive(Serialize, Deserialize, PartialEq)]
struct Sight {
    boot_id: String,
    at: StoreTime,
    /// Identity of the file: inode, size, modification time.
    file: (u64, u64, i64),
}

impl Spool {
    /// Locks the directory of a task and finishes an unfinished change; `None` if the task is not there.
    pub(super) fn locked(&self, id: &TaskId) -> Result<Option<Folder<'_>>> {
        let path = self.folder_of(id);
        let lock = disk::locked(&path)?;
        in_order(lock.map(|lock| Folder { spool: self, id: *id, path, _lock: lock }))
    }

    /// Locks the directory without waiting; `None` also if another process holds the lock.
    pub(super) fn locked_at_once(&self, id: &TaskId) -> Result<Option<Folder<'_>>> {
        let path = self.folder_of(id);
        let lock = disk::locked_at_once(&path)?;
        in_order(lock.map(|lock| Folder { spool: self, id: *id, path, _lock: lock }))
    }
}

fn in_order(folder: Option<Folder<'_>>) -> Result<Option<Folder<'_>>> {
    match folder {
        Some(folder) if folder.catch_up()? => Ok(Some(folder)),
        _ => Ok(None),
    }
}

impl Folder<'_> {
    /// Reads the record; `None` if it is corrupt, and then the task was moved to `failed/`.
    pub(super) fn kept(&self) -> Result<Option<NotedRecord>> {
        let body = disk::read(&self.spool.path(&SpoolFile::Task(self.id)))?;
        let read = match &body {
            Some(body) => NotedRecord::read(&self.id, body),
            None => Err(Error::new(Kind::Corrupt, "task.json is missing")),
        };
        match read {
            Ok(kept) => Ok(Some(kept)),
            Err(error) => self.give_up(&body.unwrap_or_default(), &error.to_string()).map(|()| None),
        }
    }

    /// Moves a corrupt record to `failed/`, as text with the reason, for an operator.
    fn give_up(&self, body: &[u8], why: &str) -> Result<()> {
        let now = self.spool.now();
        let act = self.spool.act(&now);
        let kept = unreadable(&self.id, body, why, &act, &now);
        tracing::warn!(task = %self.id, reason = why, "task record is corrupt, moving it to failed/");
        self.make(SpoolChange { op: None, then: FileChange::End { record: kept.value() } }, Lasting::Yes)
    }

    /// Reads the lease.
    pub(super) fn lease(&self, now: &NodeNow) -> Result<Found> {
        let path = self.spool.path(&SpoolFile::Lease(self.id));
        let Some(body) = disk::read(&path)? else { return Ok(Found::Free) };
        match serde_json::from_slice(&body) {
            Ok(lease) => Ok(Found::Lease(lease)),
            Err(_) => Ok(Found::Torn { is_old: self.spool.is_long_torn(&self.id, now)?.unwrap_or(false) }),
        }
    }

    /// Records that the lease is corrupt, unless that was recorded.
    pub(super) fn note_torn(&self, now: &NodeNow) -> Result<()> {
        if self.spool.is_long_torn(&self.id, now)?.is_some() {
            return Ok(());
        }
        let Some(file) = self.spool.lease_stamp(&self.id) else { return Ok(()) };
        let sight = Sight { boot_id: now.boot_id.clone(), at: now.boot, file };
        let body = serde_json::to_vec(&sight).expect("names and numbers");
        self.spool.disk.replace(&self.path.join(TORN), &body, Lasting::No)
    }

    /// Records a change and executes it.
    pub(super) fn make(&self, change: SpoolChange, lasting: Lasting) -> Result<()> {
        self.write_down(&change, lasting)?;
        self.carry_out(change, false).map(|_| ())
    }
}

impl Spool {
    /// Returns whether the lease of a task has been corrupt for more than ten minutes; `None` if that was not recorded yet.
    pub(super) fn is_long_torn(&self, id: &TaskId, now: &NodeNow) -> Result<Option<bool>> {
        let body = disk::read(&self.folder_of(id).join(TORN))?;
        let sight: Option<Sight> = body.and_then(|body| serde_json::from_slice(&body).ok());
        let is_it = |sight: &Sight| sight.boot_id == now.boot_id && Some(sight.file) == self.lease_stamp(id);
        Ok(sight.filter(is_it).map(|sight| sight.at.plus(DISK_LEASE_STALE) < now.boot))
    }

    fn lease_stamp(&self, id: &TaskId) -> Option<(u64, u64, i64)> {
        let found = fs::metadata(self.path(&SpoolFile::Lease(*id))).ok()?;
        Some((
            found.ino(),
            found.len(),
            found.mtime().wrapping_mul(1_000_000_000).wrapping_add(found.mtime_nsec()),
        ))
    }
}

/// File beside a corrupt lease.
const TORN: &str = "torn.json";

/// Longest part of a corrupt record that is kept in the task that replaces it.
const TEXT_BYTES_MAX: usize = 64 * 1_024;

fn unreadable(id: &TaskId, body: &[u8], why: &str, act: &StepContext, now: &NodeNow) -> NotedRecord {
    let shard = leasehold_core::ShardLen::DEFAULT.shard_of(id);
    let mut task = Task::tombstone(*id, shard, why, act);
    let text = String::from_utf8_lossy(&body[..body.len().min(TEXT_BYTES_MAX)]);
    task.input = text.into_owned().into();
    task.error = Some(why.to_owned());
    task.state = State::Failed { finished_at: act.now.earliest };
    NotedRecord { task, note: Note::of_bucket(0, None).stamped(now) }
}
