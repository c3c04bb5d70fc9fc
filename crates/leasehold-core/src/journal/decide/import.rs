//! Imports: tasks of another queue, with their state and history.

use super::{JournalContext, JournalDecision};
use crate::error::{Error, Reason, Result};
use crate::journal::record::JournalRecord;
use crate::journal::state::JournalState;
use crate::journal::task::JournalTask;
use crate::limits::COMMIT_BYTES_FULL;
use crate::shard::ShardLen;
use crate::task::{Status, Task};

/// Rejects a task that differs from the one that has its id.
pub fn check_same_task(existing: &Task, imported: &Task) -> Result<()> {
    let same = |task: &Task| (task.task_type.clone(), task.created_at, task.input.clone());
    if same(existing) == same(imported) {
        return Ok(());
    }
    let message = format!("task id {} is in use by a task with another type, input or time", imported.id);
    Err(Error::invalid(message).with_reason(Reason::Conflict))
}

impl JournalState {
    /// Decides an import. The answer is false if the task exists: it is left as it is, so that an import can be repeated.
    pub fn import(&self, mut imported: JournalTask, context: &JournalContext) -> JournalDecision<bool> {
        // A reservation that has expired would replace that of another task.
        imported.key = imported.key.filter(|key| !context.now.is_past(key.expires_at));
        // No broker of this journal has renewed its claim, so no fence extends it (C5).
        if let Some(claim) = &mut imported.claim {
            claim.is_heard = false;
        }
        // The journal has no shards.
        imported.task.shard = ShardLen::DEFAULT.shard_of(&imported.task.id);
        match self.is_new(&imported, context) {
            Err(error) => JournalDecision::refused(Err(error)),
            Ok(false) => JournalDecision::refused(Ok(false)),
            Ok(true) => {
                let encoded = imported.encode();
                let bytes = encoded.body().len();
                if bytes >= COMMIT_BYTES_FULL {
                    let (id, most) = (imported.task.id, COMMIT_BYTES_FULL);
                    let message = format!("task {id} must have less than {most} bytes, got {bytes}");
                    return JournalDecision::invalid(Error::invalid(message));
                }
                JournalDecision::done(vec![JournalRecord::Submit(encoded)], true)
            }
        }
    }

    fn is_new(&self, imported: &JournalTask, context: &JournalContext) -> Result<bool> {
        let task = &imported.task;
        if task.status() == Status::Purged {
            return Err(Error::invalid(format!("task {} is purged", task.id)));
        }
        if let Some(existing) = self.load(&task.id)? {
            check_same_task(&existing.logged.task, task)?;
            return Ok(false);
        }
        let Some(key) = imported.reserved_key() else { return Ok(true) };
        match self.indexes.owner(key.hash) {
            Some((other, expires_at)) if !context.now.is_past(expires_at) => {
                let message = format!("idempotency key of task {} belongs to task {other}", task.id);
                Err(Error::invalid(message).with_reason(Reason::Conflict))
            }
            _ => Ok(true),
        }
    }
}
