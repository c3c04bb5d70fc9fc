//! Recovery after the death of other processes: finishes their changes, and removes their temporary files.

use leasehold_core::outpost::SpoolFile;
use leasehold_core::{Result, TaskId};

use super::Spool;
use super::record::NotedRecord;
use crate::disk::{self, Durable};

/// Result of a recovery.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Recovered {
    /// Unfinished changes that were finished.
    pub finished: u64,
    /// Corrupt tasks that were moved to `failed/`.
    pub unreadable: u64,
    /// Temporary files of dead processes that were removed.
    pub swept: u64,
}

impl Spool {
    /// Finishes the changes of processes that have died, and removes their temporary files. It is safe while other processes
    /// work: it skips what they have locked.
    pub fn recover(&self) -> Result<Recovered> {
        let mut recovered = Recovered { swept: self.disk.sweep_tmp()?, ..Recovered::default() };
        self.restore_last_seq()?;
        for id in self.pending_ids()? {
            self.recover_one(&id, &mut recovered)?;
        }
        self.recover_ends()?;
        Ok(recovered)
    }

    fn recover_one(&self, id: &TaskId, recovered: &mut Recovered) -> Result<()> {
        let is_under_way = self.folder_of(id).join("change.json").exists();
        let task = self.path(&SpoolFile::Task(*id));
        let is_readable = || -> Result<bool> {
            Ok(disk::read(&task)?.is_some_and(|body| NotedRecord::read(id, &body).is_ok()))
        };
        if !is_under_way && is_readable()? {
            return Ok(());
        }
        let folder = self.try_lock_task(id)?;
        recovered.finished += u64::from(is_under_way);
        if let Some(folder) = folder
            && folder.record()?.is_none()
        {
            recovered.unreadable += 1;
        }
        Ok(())
    }

    /// Removes the older record of a task that is in `completed/` and `failed/`: it was being replaced by the bucket's
    /// record.
    fn recover_ends(&self) -> Result<()> {
        for id in self.ended_ids("failed")? {
            let ends = [SpoolFile::Completed(id), SpoolFile::Failed(id)].map(|file| self.path(&file));
            if !ends[0].exists() {
                continue;
            }
            let _lock = self.lock_failed()?;
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
