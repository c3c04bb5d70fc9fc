//! Directory of a task under its lock.

use leasehold_core::limits::DISK_LEASE_STALE;
use leasehold_core::outpost::{DiskLease, NodeNow, Op, SpoolFile};
use leasehold_core::{Error, Kind, Result, ShardLen, State, StoreTime, Task, TaskId};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::path::{Path, PathBuf};

use super::Spool;
use super::change::{FileChange, LeaseChange, SpoolChange};
use super::record::{Note, NotedRecord};
use crate::disk::{self, Durable, FileStamp};

/// Directory of a task, locked against changes by other processes.
#[derive(Debug)]
pub(super) struct TaskFolder<'a> {
    pub(super) spool: &'a Spool,
    pub(super) id: TaskId,
    pub(super) path: PathBuf,
    pub(super) _lock: File,
}

/// State of a task's lease file.
#[derive(Debug)]
pub(super) enum LeaseFile {
    /// Missing: the task is free.
    Free,
    /// A valid lease.
    Lease(DiskLease),
    /// Corrupt; `is_old` if it has been so for ten minutes, and `None` if the time was not recorded yet.
    Corrupt { is_old: Option<bool> },
}

/// Time at which a corrupt lease was first read, by the boot clock.
#[derive(Serialize, Deserialize, PartialEq)]
struct CorruptSince {
    boot_id: String,
    at: StoreTime,
    file: FileStamp,
}

impl Spool {
    /// Locks the directory of a task and finishes an unfinished change; `None` if the task is not there.
    pub(super) fn lock_task(&self, id: &TaskId) -> Result<Option<TaskFolder<'_>>> {
        self.locked_task(id, disk::lock)
    }

    /// Locks the directory of a task in this way; `None` also if that would have to wait and may not.
    pub(super) fn locked_task(
        &self,
        id: &TaskId,
        lock: impl FnOnce(&Path) -> Result<Option<File>>,
    ) -> Result<Option<TaskFolder<'_>>> {
        let path = self.folder_of(id);
        let Some(lock) = lock(&path)? else { return Ok(None) };
        let folder = TaskFolder { spool: self, id: *id, path, _lock: lock };
        // That may remove the directory.
        Ok(if folder.finish_change()? { Some(folder) } else { None })
    }

    /// Reads the lease of a task, also without its lock.
    pub(super) fn lease_file(&self, id: &TaskId, now: &NodeNow) -> Result<LeaseFile> {
        let path = self.path(&SpoolFile::Lease(*id));
        let Some(body) = disk::read(&path)? else { return Ok(LeaseFile::Free) };
        if let Ok(lease) = serde_json::from_slice(&body) {
            return Ok(LeaseFile::Lease(lease));
        }
        let body = disk::read(&self.folder_of(id).join(CORRUPT_SINCE))?;
        let since: Option<CorruptSince> = body.and_then(|body| serde_json::from_slice(&body).ok());
        let file = disk::stamp(&path);
        let is_it = |since: &CorruptSince| since.boot_id == now.boot_id && Some(since.file) == file;
        let is_old = since.filter(is_it).map(|since| since.at.plus(DISK_LEASE_STALE) < now.boot);
        Ok(LeaseFile::Corrupt { is_old })
    }
}

impl TaskFolder<'_> {
    /// Reads the record; `None` if it is corrupt, and then the task was moved to `failed/`.
    pub(super) fn record(&self) -> Result<Option<NotedRecord>> {
        let body = disk::read(&self.spool.path(&SpoolFile::Task(self.id)))?;
        let read = match &body {
            Some(body) => NotedRecord::read(&self.id, body),
            None => Err(Error::new(Kind::Corrupt, "task.json is missing")),
        };
        match read {
            Ok(noted) => Ok(Some(noted)),
            Err(error) => self.move_to_failed(&body.unwrap_or_default(), &error.to_string()).map(|()| None),
        }
    }

    /// Moves a corrupt record to `failed/`, as text with the reason, for an operator.
    fn move_to_failed(&self, body: &[u8], why: &str) -> Result<()> {
        tracing::warn!(task = %self.id, reason = why, "task record is corrupt, moving it to failed/");
        let now = self.spool.now();
        let context = self.spool.step_context(&now);
        let mut task = Task::tombstone(self.id, ShardLen::DEFAULT.shard_of(&self.id), why, &context);
        let text = String::from_utf8_lossy(&body[..body.len().min(TEXT_BYTES_MAX)]);
        task.input = text.into_owned().into();
        task.error = Some(why.to_owned());
        task.state = State::Failed { finished_at: context.now.earliest };
        self.end_with(&NotedRecord { task, note: Note::of_bucket(0, None).stamped(&now) }, None)
    }

    /// Reads the lease. The time at which a corrupt one is first read is recorded.
    pub(super) fn lease(&self, now: &NodeNow) -> Result<LeaseFile> {
        let lease = self.spool.lease_file(&self.id, now)?;
        if let LeaseFile::Corrupt { is_old: None } = lease
            && let Some(file) = disk::stamp(&self.spool.path(&SpoolFile::Lease(self.id)))
        {
            let since = CorruptSince { boot_id: now.boot_id.clone(), at: now.boot, file };
            let body = serde_json::to_vec(&since).expect("names and numbers");
            self.spool.disk.replace(&self.path.join(CORRUPT_SINCE), &body, Durable::No)?;
        }
        Ok(lease)
    }

    /// Replaces the record of a task that stays where it is.
    pub(super) fn rewrite(&self, noted: &NotedRecord, op: Option<Op>, lease: LeaseChange) -> Result<()> {
        let record = Some(noted.value());
        self.apply(SpoolChange { op, then: FileChange::Stay { record, lease } }, Durable::Yes)
    }

    /// Ends a task with this record: it moves to `completed/` or `failed/`.
    pub(super) fn end_with(&self, noted: &NotedRecord, op: Option<Op>) -> Result<()> {
        self.apply(SpoolChange { op, then: FileChange::End { record: noted.value() } }, Durable::Yes)
    }

    /// Records a change and executes it.
    pub(super) fn apply(&self, change: SpoolChange, durable: Durable) -> Result<()> {
        self.record_change(&change, durable)?;
        self.execute(change, false).map(|_| ())
    }
}

/// File beside a corrupt lease, with the time since which it is corrupt.
const CORRUPT_SINCE: &str = "torn.json";

/// Longest part of a corrupt record that is kept in the task that replaces it.
const TEXT_BYTES_MAX: usize = 64 * 1_024;
