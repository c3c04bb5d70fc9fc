//! Retention: removing final tasks after a while.
//!
//! A final task is first set to *purged* by a conditional write. No event leaves that status. It is deleted a day
//! later: by then every write to it that was in flight has been applied or refused. A task stays as long as its
//! idempotency record can still refer to it.
//!
//! Requests: 1 list per thousand tasks, and 2 gets per task, which is read again before anything is decided about it. A
//! task that is marked: 1 put, and up to 2 gets of idempotency records. One that is deleted: 1 delete.

use futures::StreamExt;
pub use leasehold_core::retention::{PURGE_GRACE, Purged, Retention};
use leasehold_core::{Event, Kind, Result, State, Task};
use leasehold_store::Purpose;
use serde::Serialize;

use crate::connect::ObjectQueue;
use crate::meta_cache::Intent;
use crate::tasks::{ChangeFrom, IndexUpdate, Transition};

/// Outcome for all tasks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct PurgedAll {
    /// Number of tasks that were marked, to be deleted by a later purge.
    pub marked: u64,
    /// Number of tasks that were deleted.
    pub deleted: u64,
    /// Corrupt objects with their error; they are kept.
    pub corrupt: Vec<String>,
}

impl ObjectQueue {
    /// Applies the retention to every task.
    pub async fn purge_all(&self, retention: &Retention) -> Result<PurgedAll> {
        let mut purged = PurgedAll::default();
        // Tombstones, too: the submits that they fence were sent long ago.
        let mut tasks = std::pin::pin!(self.records());
        while let Some(task) = tasks.next().await {
            let became = match task {
                Ok(task) => self.purge(&task, retention).await?,
                Err(error) if error.kind() == Kind::Corrupt => {
                    purged.corrupt.push(error.to_string());
                    continue;
                }
                Err(error) => return Err(error),
            };
            purged.marked += u64::from(became == Purged::Marked);
            purged.deleted += u64::from(became == Purged::Deleted);
        }
        Ok(purged)
    }

    /// Applies the retention to one task.
    pub async fn purge(&self, task: &Task, retention: &Retention) -> Result<Purged> {
        let Some(loaded) = self.load(Purpose::Sweep, &task.id).await? else { return Ok(Purged::Kept) };
        let now = self.now()?;
        if !now.is_past(loaded.task.created_at.plus(PURGE_GRACE)) {
            let is_covered = loaded.task.status().is_final() && retention.covers(&loaded.task, now);
            return Ok(if is_covered { Purged::TooNew } else { Purged::Kept });
        }
        if let State::Purged { finished_at } = loaded.task.state {
            if !now.is_past(finished_at.plus(PURGE_GRACE)) {
                return Ok(Purged::TooNew);
            }
            self.ensure_allowed(Intent::Change).await?;
            if self.meta_cache.known().meta.may_have_old_keys() {
                // To a migration, a forwarding marker without a task means that the task has yet to be written.
                return Ok(Purged::Kept);
            }
            self.client.delete(Purpose::Sweep, &self.task_key(&task.id)).await?;
            return Ok(Purged::Deleted);
        }
        if !retention.covers(&loaded.task, now) {
            return Ok(Purged::Kept);
        }
        let key_expiry = self.key_expiry(&loaded.task).await?;
        if key_expiry.is_some_and(|expiry| !now.is_past(expiry.plus(PURGE_GRACE))) {
            return Ok(Purged::Kept);
        }
        let from = ChangeFrom::Unchanged(&loaded);
        let purged = self.change(Purpose::Sweep, from, &Event::Purge, IndexUpdate::Change).await?;
        Ok(if matches!(purged, Transition::Done(_)) { Purged::Marked } else { Purged::Kept })
    }
}
