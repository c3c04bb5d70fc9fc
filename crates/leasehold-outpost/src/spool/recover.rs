//! Order, after others have died: what they began is carried out, and what they left behind goes.

use leasehold_core::outpost::SpoolFile;
use leasehold_core::{Result, TaskId};

use super::Spool;
use super::kept::Kept;
use crate::disk::{self, Lasting};

/// What was put in order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Recovered {
    /// Changes that were carried out for those who had begun them.
    pub finished: u64,
    /// Tasks that make no sense, which have gone to `failed/`.
    pub unreadable: u64,
    /// Files in the making whose makers have died.
    pub swept: u64,
}

impl Spool {
    /// Carries out what others have begun and not ended, and removes what they left behind. It does no harm while others
    /// work: what somebody is at is left to them.
    pub fn recover(&self) -> Result<Recovered> {
        let mut recovered = Recovered { swept: self.disk.sweep()?, ..Recovered::default() };
        self.count_on()?;
        for id in self.pending_ids()? {
            self.recover_one(&id, &mut recovered)?;
        }
        self.recover_ends()?;
        Ok(recovered)
    }

    fn recover_one(&self, id: &TaskId, recovered: &mut Recovered) -> Result<()> {
        let is_under_way = self.folder_of(id).join("change.json").exists();
        let task = self.path(&SpoolFile::Task(*id));
        let is_readable =
            || -> Result<bool> { Ok(disk::read(&task)?.is_some_and(|body| Kept::read(id, &body).is_ok())) };
        if !is_under_way && is_readable()? {
            return Ok(());
        }
        let folder = self.locked_at_once(id)?;
        recovered.finished += u64::from(is_under_way);
        if let Some(folder) = folder
            && folder.kept()?.is_none()
        {
            recovered.unreadable += 1;
        }
        Ok(())
    }

    /// A task that has ended two ways was being corrected by what the bucket says: that stays.
    fn recover_ends(&self) -> Result<()> {
        let ids = disk::names(&self.root.join("failed"))?;
        for id in ids.iter().filter_map(|name| name.strip_suffix(".json")?.parse::<TaskId>().ok()) {
            let ends = [SpoolFile::Completed(id), SpoolFile::Failed(id)].map(|file| self.path(&file));
            if !ends[0].exists() {
                continue;
            }
            let _lock = self.locked_failed()?;
            let mut kept = Vec::new();
            for path in ends {
                let body = disk::read(&path)?.unwrap_or_default();
                let order =
                    Kept::read(&id, &body).map_or((0, 0), |kept| (kept.task.generation, kept.note.base_rev));
                kept.push((order, path));
            }
            kept.sort();
            if let [(_, older), (_, newer)] = &kept[..]
                && newer.exists()
            {
                self.disk.remove(older, Lasting::Yes)?;
            }
        }
        Ok(())
    }
}
