//! Optimistic updates of a task, for callers whose decision depends on the state that they read: an outpost that
//! syncs its node with the bucket.
//!
//! [`ObjectQueue::load`] reads a task with the condition for a change. [`ObjectQueue::update_if`] changes the task if
//! it is unchanged, and otherwise returns its current state, to be decided again. [`ObjectQueue::create`] adds a task that
//! was submitted elsewhere, under its own id.
//!
//! All three may be repeated after a lost answer. A write is recognised by its write id in the history, also when
//! other clients have changed the task since. Only a renewal adds nothing to the history: one whose answer is lost
//! *and* that another change follows is returned as [`Transition::Stale`], and the claim in the record shows its
//! holder.
//!
//! Requests: a read is 1 get. An update is 1 put, 1 more put if it requires an index entry, and 1 delete if the task
//! had one; none if it is rejected, and 1 more get if the task has changed. A create is 2 puts, and 1 more get if the
//! id exists. Each forwarding marker costs 1 more get.

use bytes::Bytes;
use leasehold_core::{Error, Event, Kind, Result, Status, Task, forwarding, record};
use leasehold_store::{Purpose, PutOutcome, When};

use crate::connect::ObjectQueue;
use crate::meta_cache::Intent;
use crate::tasks::{ChangeFrom, IndexUpdate, TaskObject, TaskSnapshot, Transition};

impl ObjectQueue {
    /// Applies an event only if the task is unchanged since it was read. The caller has validated the event.
    pub async fn update_if(&self, snapshot: &TaskSnapshot, event: &Event) -> Result<Transition> {
        self.change(Purpose::Sync, ChangeFrom::Unchanged(snapshot), event, IndexUpdate::Change).await
    }

    /// Creates a task in its first revision, with the id and write id that the caller chose; only the shard is set by
    /// this queue. *Done* means that the task exists, by this call or by an earlier one whose answer was lost;
    /// *changed* that its id is in use, by another task or by the tombstone of its abandoned submit; *missing* that
    /// the latter was removed before it could be read. A failure leaves at most an entry without a task. The call may
    /// be repeated at any time: unlike a submit, it never puts a tombstone at the id.
    ///
    /// `tombstone` is that of its abandoned submit, which the task replaces if it is unchanged since it was read. Index
    /// cleanup puts a tombstone where it finds an entry without a task after the grace period, as when a link fails
    /// between the two puts of this call for longer than that. No caller was informed that the submit failed, so it may
    /// still succeed. The new task has a later revision with an entry of its own, so that a concurrent removal of the
    /// old entry does not affect it.
    pub async fn create(&self, mut task: Task, tombstone: Option<&TaskSnapshot>) -> Result<Transition> {
        let (purpose, mut when) = (Purpose::Sync, When::Absent);
        if let Some(TaskSnapshot { task: there, version }) = tombstone {
            if !there.is_tombstone() || there.id != task.id {
                return Err(Error::invalid(format!("task {} is not an abandoned submit", there.id)));
            }
            (task.rev, when) = (there.rev + 1, When::Unchanged(version.clone()));
        }
        if task.status() != Status::Pending {
            return Err(Error::invalid(format!(
                "task {} is {}; only a pending task can be created",
                task.id,
                task.status()
            )));
        }
        self.ensure_allowed(Intent::Change).await?;
        let started = self.client.host().instant();
        task.shard = self.shard_len().shard_of(&task.id);
        let entry =
            task.entry().ok_or_else(|| Error::new(Kind::Internal, "a new task has no index entry"))?;
        self.put_entry(purpose, &entry).await?;
        self.check_allowed(Intent::Change)?;
        if self.was_suspended(started) {
            // The entry may have been removed meanwhile, and the task would not be found.
            let message = format!("this process was suspended before it wrote task {}; try again", task.id);
            return Err(Error::new(Kind::Unavailable, message));
        }
        let created = self.put_created(&task, &when).await?;
        // A write that took longer than the copy of `queue.json` can be trusted may have been applied at an outdated key.
        self.ensure_meta_current().await.map_err(Error::with_unknown_outcome)?;
        if created.is_done() {
            if self.was_suspended(started) {
                self.put_entry(purpose, &entry).await.map_err(Error::with_unknown_outcome)?;
            }
            self.ring(purpose, None).await;
        }
        Ok(created)
    }

    async fn put_created(&self, task: &Task, when: &When) -> Result<Transition> {
        let key = &self.task_key(&task.id);
        let body = Bytes::from(record::write(task));
        let ours = |found: &[u8]| forwarding::has_write(key, found, &task.write_id);
        let object = match self.client.put_if(Purpose::Sync, key, body, when, &ours).await? {
            PutOutcome::Written(version) => {
                return Ok(Transition::Done(TaskSnapshot { task: task.clone(), version }));
            }
            PutOutcome::Superseded(object) | PutOutcome::Lost(Some(object)) => object,
            PutOutcome::Lost(None) => return Ok(Transition::Missing),
        };
        let now = self.follow(Purpose::Sync, TaskObject::read(key, object)?).await?;
        let is_ours = now.task.has_write(&task.write_id);
        Ok(if is_ours { Transition::Done(now) } else { Transition::Stale(now) })
    }
}
