//! Recovery after the crash of other processes: finishes their changes, and removes their temporary files. Also removes
//! completed tasks that are old, or too many. Failed tasks and rejected results stay for an operator; the record of a
//! duplicate run is removed like a completed task.

use leasehold_core::outpost::{ClockSource, NodeNow, OpKind, SpoolFile};
use leasehold_core::{Now, Result, StoreTime, TaskId};
use std::time::Duration;

use super::Spool;
use super::change::CHANGE;
use super::record::NotedRecord;
use crate::disk::{self, Durable};

/// Result of a recovery.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Recovered {
    /// Unfinished changes that were finished.
    pub finished: u64,
    /// Corrupt tasks that were moved to `failed/`. In JSON: `unreadable`.
    #[serde(rename = "unreadable")]
    pub corrupt: u64,
    /// Number of deleted temporary files of processes that have ended. In JSON: `swept`.
    #[serde(rename = "swept")]
    pub deleted: u64,
}

impl Spool {
    /// Finishes the changes of processes that have crashed, and removes their temporary files. It is safe while other processes
    /// work: it skips what they have locked.
    pub fn recover(&self) -> Result<Recovered> {
        let mut recovered = Recovered { deleted: self.disk.sweep_tmp()?, ..Recovered::default() };
        self.restore_last_seq()?;
        for id in self.ids_in("pending")? {
            let is_under_way = self.folder_of(&id).join(CHANGE).exists();
            if !is_under_way && self.local_task(&id)?.is_some() {
                continue;
            }
            recovered.finished += u64::from(is_under_way);
            if let Some(folder) = self.locked_task(&id, disk::try_lock)? {
                recovered.corrupt += u64::from(folder.record()?.is_none());
            }
        }
        self.recover_ends()?;
        Ok(recovered)
    }

    /// Removes the older record of a task that is in `completed/` and `failed/`: it was being replaced by the bucket's
    /// record.
    fn recover_ends(&self) -> Result<()> {
        for id in self.ids_in("failed")? {
            let ends = [SpoolFile::Completed(id), SpoolFile::Failed(id)].map(|file| self.path(&file));
            if !ends[0].exists() {
                continue;
            }
            let _lock = self.lock_folder("failed")?;
            let mut kept = Vec::new();
            for path in ends {
                let body = disk::read(&path)?.unwrap_or_default();
                let order = NotedRecord::read(&id, &body)
                    .map_or((0, 0), |kept| (kept.task.generation, kept.note.base_rev));
                kept.push((order, path));
            }
            kept.sort();
            if let [(_, older), (_, newer)] = &kept[..]
                && newer.exists()
            {
                self.disk.remove(older, Durable::Yes)?;
            }
        }
        Ok(())
    }
}

impl Spool {
    /// Removes completed tasks that are older than `completed_keep_secs`, by the bucket's time, and the oldest ones beyond
    /// `completed_max`; returns how many were removed. Tasks with unsent operations stay.
    pub fn trim(&self) -> Result<u64> {
        let (now, keep) = (self.now(), Duration::from_secs(self.config.completed_keep_secs));
        let mut kept = Vec::new();
        let mut trimmed = 0;
        for id in self.ids_in("completed")? {
            let body = disk::read(&self.path(&SpoolFile::Completed(id)))?.unwrap_or_default();
            // A corrupt record is left for an operator.
            let Ok(noted) = NotedRecord::read(&id, &body) else { continue };
            let ended_at = noted.task.state.finished_at().unwrap_or(StoreTime::NEVER);
            let is_over = |now: Now| now.is_past(ended_at.plus(keep));
            if noted.now_by_clock_of(ended_at, &now).is_some_and(is_over) && self.trim_one(&id)? {
                trimmed += 1;
            } else {
                kept.push((ended_at, id));
            }
        }
        kept.sort();
        let most = usize::try_from(self.config.completed_max).unwrap_or(usize::MAX);
        let too_many = kept.len().saturating_sub(most);
        for (_, id) in &kept[..too_many] {
            trimmed += u64::from(self.trim_one(id)?);
        }
        self.trim_notes(keep, &now)?;
        Ok(trimmed)
    }

    fn trim_notes(&self, keep: Duration, now: &NodeNow) -> Result<()> {
        for (path, note) in self.conflicts()? {
            let is_old = |now: Now| now.is_past(note.at.plus(keep));
            let is_over = note.clock == ClockSource::Bucket && now.bucket.is_some_and(is_old);
            if is_over && matches!(note.op.kind, OpKind::Claim { .. }) {
                self.disk.remove(&path, Durable::No)?;
            }
        }
        Ok(())
    }

    fn trim_one(&self, id: &TaskId) -> Result<bool> {
        if self.has_other_ops(id, None)? {
            return Ok(false);
        }
        self.disk.remove(&self.path(&SpoolFile::Completed(*id)), Durable::No)
    }
}
