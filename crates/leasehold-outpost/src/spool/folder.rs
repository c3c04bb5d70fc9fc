//! A task's directory under its lock.

use leasehold_core::limits::DISK_LEASE_STALE;
use leasehold_core::outpost::{DiskLease, NodeNow, SpoolFile};
use leasehold_core::{Act, Error, Kind, Result, State, StoreTime, Task, TaskId};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use super::Spool;
use super::change::{Change, Then};
use super::kept::{Kept, Note};
use crate::disk::{self, Lasting};

/// The directory of a task, which nobody else changes meanwhile.
#[derive(Debug)]
pub(super) struct Folder<'a> {
    pub(super) spool: &'a Spool,
    pub(super) id: TaskId,
    pub(super) path: PathBuf,
    pub(super) _lock: File,
}

/// What lies where a lease would.
#[derive(Debug)]
pub(super) enum Found {
    /// Nothing: the task is free.
    Free,
    /// A lease.
    Lease(DiskLease),
    /// Something that cannot be read; `is_old` if it has been so for ten minutes.
    Torn { is_old: bool },
}

/// When a lease was first seen that cannot be read, by the clock that cannot be set.
#[derive(Serialize, Deserialize, PartialEq)]
struct Sight {
    boot_id: String,
    at: StoreTime,
    /// Which file it was: number, size, time of its last change.
    file: (u64, u64, i64),
}

impl Spool {
    /// The directory of a task, with whatever was under way in it carried out; nothing if the task does not lie there.
    pub(super) fn locked(&self, id: &TaskId) -> Result<Option<Folder<'_>>> {
        let path = self.folder_of(id);
        let lock = disk::locked(&path)?;
        in_order(lock.map(|lock| Folder { spool: self, id: *id, path, _lock: lock }))
    }

    /// The same without waiting for others who are at it.
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
    /// The record; nothing if it cannot be read, and then the task has gone to `failed/`.
    pub(super) fn kept(&self) -> Result<Option<Kept>> {
        let body = disk::read(&self.spool.path(&SpoolFile::Task(self.id)))?;
        let read = match &body {
            Some(body) => Kept::read(&self.id, body),
            None => Err(Error::new(Kind::Corrupt, "there is no task.json")),
        };
        match read {
            Ok(kept) => Ok(Some(kept)),
            Err(error) => self.give_up(&body.unwrap_or_default(), &error.to_string()).map(|()| None),
        }
    }

    /// A record that makes no sense is kept as text, where a person finds it with the reason.
    fn give_up(&self, body: &[u8], why: &str) -> Result<()> {
        let now = self.spool.now();
        let act = self.spool.act(&now);
        let kept = unreadable(&self.id, body, why, &act, &now);
        tracing::warn!(task = %self.id, "goes to failed/: {why}");
        self.make(Change { op: None, then: Then::End { record: kept.value() } }, Lasting::Yes)
    }

    /// Who has it.
    pub(super) fn lease(&self, now: &NodeNow) -> Result<Found> {
        let path = self.spool.path(&SpoolFile::Lease(self.id));
        let Some(body) = disk::read(&path)? else { return Ok(Found::Free) };
        match serde_json::from_slice(&body) {
            Ok(lease) => Ok(Found::Lease(lease)),
            Err(_) => Ok(Found::Torn { is_old: self.spool.is_long_torn(&self.id, now)?.unwrap_or(false) }),
        }
    }

    /// Notes that the lease cannot be read, unless that was noted.
    pub(super) fn note_torn(&self, now: &NodeNow) -> Result<()> {
        if self.spool.is_long_torn(&self.id, now)?.is_some() {
            return Ok(());
        }
        let Some(file) = self.spool.lease_stamp(&self.id) else { return Ok(()) };
        let sight = Sight { boot_id: now.boot_id.clone(), at: now.boot, file };
        let body = serde_json::to_vec(&sight).expect("names and numbers");
        self.spool.disk.replace(&self.path.join(TORN), &body, Lasting::No)
    }

    /// The change is written down, and carried out.
    pub(super) fn make(&self, change: Change, lasting: Lasting) -> Result<()> {
        self.write_down(&change, lasting)?;
        self.carry_out(change, false).map(|_| ())
    }
}

impl Spool {
    /// Whether the lease of a task has been unreadable for more than ten minutes; nothing if that was not noted yet.
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

/// A note beside a lease that cannot be read.
const TORN: &str = "torn.json";

/// Longest part of an unreadable record that is kept in the task that stands for it.
const TEXT_BYTES_MAX: usize = 64 * 1_024;

fn unreadable(id: &TaskId, body: &[u8], why: &str, act: &Act, now: &NodeNow) -> Kept {
    let shard = leasehold_core::ShardLen::DEFAULT.shard_of(id);
    let mut task = Task::tombstone(*id, shard, why, act);
    let text = String::from_utf8_lossy(&body[..body.len().min(TEXT_BYTES_MAX)]);
    task.input = text.into_owned().into();
    task.error = Some(why.to_owned());
    task.state = State::Failed { finished_at: act.now.earliest };
    Kept { task, note: Note::of_bucket(0, None).stamped(now) }
}
