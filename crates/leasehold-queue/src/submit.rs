//! Submitting tasks: index entry first, then the task (rule 3 of the index).
//!
//! A submit writes the ready entry, then creates the task on condition that no object has its key, and is
//! acknowledged when both are in the store. From then on the task survives the crash of any process (promise P1).
//!
//! ```text
//!   ready entry ──▶ task, put if absent ──▶ acknowledged
//! ```
//!
//! With direct dispatch the entry is in the inbox of one worker ([`crate::inbox`]).
//!
//! A producer that crashes between the two writes leaves an entry without a task, which index cleanup removes after a
//! grace period. A submit whose outcome stays unknown puts a tombstone at its own id. If that succeeds, the task can
//! no longer appear; if it is refused, the read shows whether the task exists. Only if this gets no answer either
//! does the caller get the error `outcome unknown`, with the id.
//!
//! Requests: 2 puts, 1 more with an idempotency key, and at most 1 more per second for the bell.

use bytes::Bytes;
use leasehold_core::forwarding::{self, ForwardingMarker, Stored};
use leasehold_core::{Entry, Error, IndexLocation, Kind, NewTask, Result, Status, Task, TaskId, record};
use leasehold_store::host::Instant;
use leasehold_store::{HostExt, Object, Purpose, PutOutcome, When};
use serde::Serialize;
use std::time::Duration;

use crate::connect::ObjectQueue;
use crate::front::{QueueLayout, Submit, Submitted};
use crate::meta_cache::Intent;
use crate::unique::{Reserved, UniqueKey};

impl ObjectQueue {
    /// Submits a task of this type. The input is any value that serializes to JSON.
    pub fn submit(&self, task_type: &str, input: impl Serialize) -> Submit<'_> {
        Submit::new(self, task_type, input)
    }

    /// Submits a task from a complete [`NewTask`].
    pub fn submit_task(&self, new_task: NewTask) -> Submit<'_> {
        Submit::of(self, Ok(new_task))
    }

    pub(crate) async fn submit_once(&self, new_task: NewTask, key: Option<UniqueKey>) -> Result<Submitted> {
        new_task.check(self.now()?.earliest)?;
        self.ensure_allowed(Intent::Change).await?;
        let started = self.client.host().instant();
        let fresh = TaskId::from_random(self.client.host().random_bits());
        let reserved = match &key {
            Some(key) => self.reserve(key, fresh, &new_task).await?,
            None => Reserved::Unfinished(fresh),
        };
        match reserved {
            Reserved::Exists(id, status) => {
                let is_dead = matches!(status, Status::Failed | Status::Expired);
                let retries = is_dead && key.is_some_and(|key| key.retry_failed);
                // Rejected if another producer has retried it first, which has the same effect.
                let is_retried = retries && self.retry(&id).await?.is_done();
                Ok(Submitted { existing: Some(status), is_retried, ..Submitted::new(id, false) })
            }
            // The producer of another id may have crashed between the two writes, or may just be slow: the first to write
            // creates the task.
            Reserved::Unfinished(id) => {
                let is_new = self.write_task(id, new_task, started, key.is_some()).await?;
                Ok(Submitted::new(id, is_new || id == fresh))
            }
        }
    }

    /// Writes the entry and the task; false if the task existed already. `started` is when this submit began. The id is
    /// shared with other producers through the idempotency key: one may be completing the same task, with the same
    /// entry.
    async fn write_task(
        &self,
        id: TaskId,
        new_task: NewTask,
        started: Instant,
        is_shared: bool,
    ) -> Result<bool> {
        let task = new_task.submitted(id, self.shard_len().shard_of(&id), &self.step_context()?);
        let required =
            task.entry().ok_or_else(|| Error::new(Kind::Internal, "a new task has no index entry"))?;
        let mut inbox = self.inbox_for(&task).await;
        let entry = match &inbox {
            Some(worker) => required.at_location(IndexLocation::Inbox(worker.clone())),
            None => required.clone(),
        };
        // If this fails the entry may exist, which is harmless without its task.
        self.put_entry(Purpose::Submit, &entry).await.map_err(|error| not_submitted(&id, error))?;
        // Without a key the id is private to this submit: if no attempt has an unknown outcome, the record will never be
        // written, so that its entry can never become valid, and is removed without a fence.
        let is_new = self.put_task(&task, started, (!is_shared).then_some(&entry)).await?;
        // A write that took longer than the copy of `queue.json` can be trusted may have been applied at an outdated key.
        self.ensure_meta_current().await.map_err(|error| outcome_unknown(&task, error))?;
        if self.was_suspended(started) {
            // The put took so long that the entry may have been removed meanwhile. It is written again before the
            // task counts as submitted.
            self.put_entry(Purpose::Submit, &required)
                .await
                .map_err(|error| outcome_unknown(&task, error))?;
            inbox = None;
        }
        self.ring(Purpose::Submit, inbox.as_ref()).await;
        Ok(is_new)
    }

    /// Writes the task; false if it existed already. `entry` is removed if the task was definitely not written, now or
    /// later.
    async fn put_task(&self, task: &Task, started: Instant, entry: Option<&Entry>) -> Result<bool> {
        let key = self.task_key(&task.id);
        let body = Bytes::from(record::write(task));
        let write_id = task.write_id.clone();
        let ours = |found: &[u8]| forwarding::has_write(&key, found, &write_id);
        if self.was_suspended(started) {
            let error = Error::new(Kind::Unavailable, "this process was suspended during the submit");
            return self.fence_own(task, &key, &ours, error).await;
        }
        let mut in_doubt = false;
        loop {
            let put = match self.ensure_allowed(Intent::Change).await {
                Ok(()) => self.client.put_if(Purpose::Submit, &key, body.clone(), &When::Absent, &ours).await,
                Err(error) if in_doubt => return Err(outcome_unknown(task, error)),
                Err(error) => Err(error),
            };
            match put {
                Ok(PutOutcome::Written(_) | PutOutcome::Superseded(_)) => return Ok(true),
                Ok(PutOutcome::Lost(found)) => return accept_existing(&key, found),
                // Once an earlier attempt may still be applied, a later definite failure does not make the outcome
                // known.
                Err(error) if !in_doubt && !error.outcome_is_unknown() => {
                    // An internal error may have happened after the write.
                    if error.kind() == Kind::Internal {
                        return Err(error);
                    }
                    if let Some(entry) = entry {
                        self.remove_entry(Purpose::Submit, entry).await;
                    }
                    return Err(not_submitted(&task.id, error));
                }
                Err(error) => {
                    in_doubt = true;
                    let tried = self.client.host().instant().since(started);
                    if tried >= self.config.submit_wait || error.kind() != Kind::Unavailable {
                        return self.fence_own(task, &key, &ours, error).await;
                    }
                }
            }
        }
    }

    /// True if so much time has passed since `started` that other clients may have given up this submit: removed its
    /// entry, put a tombstone at its id, or even purged that. The boot clock includes the time in which a machine was
    /// suspended.
    pub(crate) fn was_suspended(&self, started: Instant) -> bool {
        self.client.host().instant().since(started) > self.config.ahead_grace
    }

    /// Puts a tombstone at the id, so that the submit can no longer succeed, or finds that it has succeeded.
    async fn fence_own(
        &self,
        task: &Task,
        key: &str,
        ours: leasehold_store::client::IsOurWrite<'_>,
        error: Error,
    ) -> Result<bool> {
        let mut client = self.client.clone();
        if client.health().reads_fail() {
            // Probably unreachable. A single attempt: the submit has retried for long enough, and its caller waits.
            client = client.with_timeout(Duration::ZERO);
        }
        match self.put_tombstone(&client, Purpose::Submit, &task.id).await {
            Ok(PutOutcome::Written(_) | PutOutcome::Superseded(_)) => {
                // A tombstone that took so long may be at an outdated key, where it does not fence this id.
                self.ensure_meta_current().await.map_err(|error| outcome_unknown(task, error))?;
                Err(Error::new(Kind::Unavailable, format!("task {} was not submitted", task.id))
                    .because(error))
            }
            Ok(PutOutcome::Lost(Some(object))) if ours(&object.body) => Ok(true),
            Ok(PutOutcome::Lost(found)) => accept_existing(key, found),
            Err(error) => Err(outcome_unknown(task, error)),
        }
    }
}

fn not_submitted(id: &TaskId, error: Error) -> Error {
    let mapped = Error::new(error.kind(), format!("task {id} was not submitted: {error}"));
    let mapped = if let Some(reason) = error.reason() { mapped.with_reason(reason) } else { mapped };
    mapped.because(error)
}

fn outcome_unknown(task: &Task, error: Error) -> Error {
    let message = format!("outcome unknown: task {} may or may not run", task.id);
    Error::new(Kind::Unavailable, message).with_unknown_outcome().because(error)
}

/// Handles an existing object at the id: the task, written by a producer with the same key, or a tombstone.
fn accept_existing(key: &str, found: Option<Object>) -> Result<bool> {
    let body = found.map(|object| object.body).unwrap_or_default();
    let (Stored::Task(task) | Stored::Moved(ForwardingMarker { task })) = forwarding::read(key, &body)?;
    if task.is_tombstone() {
        let message = format!("submit of task {} took too long and was abandoned; submit again", task.id);
        return Err(Error::new(Kind::Lost, message));
    }
    Ok(false)
}
