//! Export and import: moving tasks to another queue, of any layout.
//!
//! A task is exported with its state, its history and the reservation of its idempotency key. An import writes it as it was,
//! under its id: a final task stays final, a waiting one waits, and one that was running is free when its claim has expired.
//! A task that exists is left as it is, so that an import that was interrupted is repeated.
//!
//! In the object layout a task is imported by the writes of a submit, in their order: idempotency record, index entry, task. An
//! import that dies in between leaves an entry without a task, which index cleanup removes, or a key that is reserved for the
//! task; the next import completes both.
//!
//! Requests of an export: those of a list, and 2 gets per task with an idempotency key. Of an import: 1 get and 2 puts per task,
//! 1 put per idempotency key, and at most 1 more per second for the bell. In the journal layout an export is a read, and
//! imports share commits.

use bytes::Bytes;
use futures::{Stream, StreamExt, TryStreamExt};
use leasehold_core::journal::{LoggedClaim, check_same_task};
use leasehold_core::task::State;
use leasehold_core::{Result, Status, Task, record};
use leasehold_store::{Purpose, PutOutcome, When};
use std::future::ready;

use crate::connect::ObjectQueue;
use crate::front::ExportedTask;
use crate::inspect::READS_AT_ONCE;
use crate::meta_cache::Intent;

impl ObjectQueue {
    /// Exports all tasks. A corrupt object is an item with an error of kind corrupt, and the export continues.
    pub fn export(&self) -> impl Stream<Item = Result<ExportedTask>> + Send + '_ {
        let is_kept = |task: &Task| ready(!task.is_tombstone() && task.status() != Status::Purged);
        let tasks = self.records().try_filter(is_kept);
        tasks.map(move |task| async move { self.exported(task?).await }).buffered(READS_AT_ONCE)
    }

    async fn exported(&self, task: Task) -> Result<ExportedTask> {
        let key = self.key_reservation(&task).await?;
        let claim = match &task.state {
            State::Running(claim) => {
                let renewed_at = claim.renewed_at.unwrap_or(task.updated_at);
                Some(LoggedClaim { lease: claim.expires_at.since(renewed_at), is_heard: false })
            }
            _ => None,
        };
        Ok(ExportedTask { task, key, claim })
    }

    /// Imports a task; false if it exists.
    pub async fn import(&self, imported: ExportedTask) -> Result<bool> {
        let ExportedTask { mut task, key, .. } = imported;
        self.ensure_allowed(Intent::Change).await?;
        task.shard = self.shard_len().shard_of(&task.id);
        if self.is_imported(&task).await? {
            return Ok(false);
        }
        if let Some(key) = key {
            self.import_key(&task, key).await?;
        }
        if let Some(entry) = task.entry() {
            self.put_entry(Purpose::Submit, &entry).await?;
        }
        let body = Bytes::from(record::write(&task));
        let put = self.client.put(Purpose::Submit, &self.task_key(&task.id), body, &When::Absent).await?;
        // A write that took longer than `queue.json` can be trusted may have been applied at an outdated key.
        self.ensure_meta_current().await?;
        let is_new = match put {
            PutOutcome::Written(_) | PutOutcome::Superseded(_) => true,
            PutOutcome::Lost(_) => !self.is_imported(&task).await?,
        };
        self.ring(Purpose::Submit, None).await;
        Ok(is_new)
    }

    /// True if the task exists. Another task with its id is an error.
    async fn is_imported(&self, task: &Task) -> Result<bool> {
        let Some(existing) = self.load(Purpose::Submit, &task.id).await? else { return Ok(false) };
        check_same_task(&existing.task, task)?;
        Ok(true)
    }
}
