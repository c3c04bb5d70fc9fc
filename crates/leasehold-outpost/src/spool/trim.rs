//! Completed tasks go after a while, and when there are too many. What has failed waits for a person.

use leasehold_core::outpost::SpoolFile;
use leasehold_core::{Result, StoreTime, TaskId};

use super::Spool;
use super::kept::Kept;
use crate::disk::{self, Lasting};

impl Spool {
    /// Removes completed tasks that are older than is kept, by the bucket's time, and the oldest of those that are too
    /// many; how many went. What the bucket has not heard of stays.
    pub fn trim(&self) -> Result<u64> {
        let now = self.now();
        let mut kept = Vec::new();
        let mut trimmed = 0;
        for id in self.completed_ids()? {
            let body = disk::read(&self.path(&SpoolFile::Completed(id)))?.unwrap_or_default();
            // What cannot be read is left for a person.
            let Ok(task) = Kept::read(&id, &body) else { continue };
            if task.ended_before(self.config.completed_keep, &now) && self.trim_one(&id)? {
                trimmed += 1;
            } else {
                kept.push((task.task.state.finished_at().unwrap_or(StoreTime::NEVER), id));
            }
        }
        kept.sort();
        let most = usize::try_from(self.config.completed_max).unwrap_or(usize::MAX);
        let too_many = kept.len().saturating_sub(most);
        for (_, id) in &kept[..too_many] {
            trimmed += u64::from(self.trim_one(id)?);
        }
        Ok(trimmed)
    }

    fn trim_one(&self, id: &TaskId) -> Result<bool> {
        if self.has_ops(id)? {
            return Ok(false);
        }
        self.disk.remove(&self.path(&SpoolFile::Completed(*id)), Lasting::No)
    }

    fn completed_ids(&self) -> Result<Vec<TaskId>> {
        let names = disk::names(&self.root.join("completed"))?;
        Ok(names.iter().filter_map(|name| name.strip_suffix(".json")?.parse().ok()).collect())
    }
}
