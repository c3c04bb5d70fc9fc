//! Optimistic updates of a task, for callers whose decision depends on the state that they read: an outpost that
//! syncs its node with the bucket.
//!
//! [`Queue::see`] reads a task with the condition under which it is changed. [`Queue::advance`] changes it if it is
//! unchanged, and otherwise returns it as it is now, to be decided again. [`Queue::create`] adds a task that was
//! submitted elsewhere, under its own id.
//!
//! All three may be repeated after a lost answer. A write is recognised by its write id in the history, also when
//! other clients have changed the task since. Only a renewal adds nothing to the history: one whose answer is lost
//! *and* that another change follows is returned as [`UpdateOutcome::Changed`], and the claim in the record shows its
//! holder.
//!
//! Requests: a read is 1 get. An update is 1 put, 1 more put if it requires an index entry, and 1 delete if the task
//! had one; none if it is rejected, and 1 more get if the task has changed. A create is 2 puts, and 1 more get if the
//! id exists. Each forwarding marker costs 1 more get.

use bytes::Bytes;
use leasehold_core::{Error, Event, Kind, Rejected, Result, Status, Task, TaskId, moved, record};
use leasehold_store::{Purpose, PutOutcome, When};

use crate::connect::Queue;
use crate::layout::Intent;
use crate::tasks::{Loaded, TaskObject, Transition};

/// A task as last read or written, with the condition for the next change.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskSnapshot {
    loaded: Loaded,
}

impl TaskSnapshot {
    /// The task.
    #[must_use]
    pub fn task(&self) -> &Task {
        &self.loaded.task
    }
}

/// Outcome of an event.
#[derive(Debug, Clone, PartialEq)]
pub enum UpdateOutcome {
    /// Applied; this is the task now, which other clients may have changed since.
    Done(TaskSnapshot),
    /// The task has changed since it was read; this is the task now.
    Changed(TaskSnapshot),
    /// Not allowed in the state that was read.
    Refused(Rejected, TaskSnapshot),
    /// The task no longer exists.
    Missing,
}

/// Outcome of a create.
#[derive(Debug, Clone, PartialEq)]
pub enum Created {
    /// The task exists, by this call or by an earlier one whose answer was lost; other clients may have changed it
    /// since.
    Done(TaskSnapshot),
    /// The id is in use: by another task, or by the tombstone of its abandoned submit. None if that was removed
    /// before it could be read.
    Exists(Option<TaskSnapshot>),
}

impl Queue {
    /// Reads a task with the condition for a change.
    pub async fn see(&self, purpose: Purpose, id: &TaskId) -> Result<Option<TaskSnapshot>> {
        Ok(self.load(purpose, id).await?.map(seen))
    }

    /// Applies an event only if the task is unchanged since it was read. The caller has validated the event.
    pub async fn advance(
        &self,
        purpose: Purpose,
        seen_before: &TaskSnapshot,
        event: &Event,
        by: &str,
    ) -> Result<UpdateOutcome> {
        let before = &seen_before.loaded;
        Ok(match self.change_unmoved(purpose, before, event, by).await? {
            Transition::Done(loaded) | Transition::Overtaken(loaded) => UpdateOutcome::Done(seen(loaded)),
            Transition::Rejected(_, now) if now.task.write_id != before.task.write_id => {
                UpdateOutcome::Changed(seen(now))
            }
            Transition::Rejected(rejected, now) => UpdateOutcome::Refused(rejected, seen(now)),
            Transition::Missing => UpdateOutcome::Missing,
        })
    }

    /// Creates a task in its first revision, with the id and write id that the caller chose; only the shard is set by
    /// this queue. A failure leaves at most a pointer without a task. The call may be repeated at any time: unlike a
    /// submit, it never puts a tombstone at the id.
    pub async fn create(&self, purpose: Purpose, task: Task) -> Result<Created> {
        self.create_when(purpose, task, When::Absent).await
    }

    /// Creates a task in place of the tombstone of its abandoned submit, if that is unchanged since it was read.
    /// Index cleanup puts a tombstone where it finds a pointer without a task after the grace period, as when a link
    /// fails between the two puts of [`Self::create`] for longer than that. No caller was informed that the submit
    /// failed, so it may still succeed. The new task has a later revision with a pointer of its own, so that a
    /// concurrent removal of the old pointer does not affect it.
    pub async fn create_over(&self, purpose: Purpose, mark: &TaskSnapshot, task: Task) -> Result<Created> {
        if !mark.task().is_tombstone() || mark.task().id != task.id {
            return Err(Error::invalid(format!("task {} is not an abandoned submit", mark.task().id)));
        }
        let task = Task { rev: mark.task().rev + 1, ..task };
        self.create_when(purpose, task, When::Unchanged(mark.loaded.version.clone())).await
    }

    async fn create_when(&self, purpose: Purpose, task: Task, when: When) -> Result<Created> {
        if task.status() != Status::Pending {
            return Err(Error::invalid(format!(
                "task {} is {}; only a pending task can be created",
                task.id,
                task.status()
            )));
        }
        self.ensure_allowed(Intent::Change).await?;
        let started = self.client.host().instant();
        let task = Task { shard: self.shard_len().shard_of(&task.id), ..task };
        let entry =
            task.entry().ok_or_else(|| Error::new(Kind::Internal, "a new task has no index entry"))?;
        self.put_entry(purpose, &entry).await?;
        self.check_allowed(Intent::Change)?;
        if self.has_slept(started) {
            // The entry may have been removed meanwhile, and the task would not be found.
            let message = format!("this process was suspended before it wrote task {}; try again", task.id);
            return Err(Error::new(Kind::Unavailable, message));
        }
        let created = self.put_created(purpose, &task, &when).await?;
        // A write that took longer than the layout can be trusted may have been applied at an outdated key.
        self.still_agreed().await.map_err(Error::with_unknown_outcome)?;
        if matches!(created, Created::Done(_)) {
            if self.has_slept(started) {
                self.put_entry(purpose, &entry).await.map_err(Error::with_unknown_outcome)?;
            }
            self.ring(purpose).await;
        }
        Ok(created)
    }

    async fn put_created(&self, purpose: Purpose, task: &Task, when: &When) -> Result<Created> {
        let key = &self.task_key(&task.id);
        let body = Bytes::from(record::write(task));
        let ours = |found: &[u8]| moved::has_write(key, found, &task.write_id);
        let put = self.client.put_if(purpose, key, body.clone(), when, &ours).await?;
        let object = match put {
            PutOutcome::Written(version) => {
                return Ok(Created::Done(seen(Loaded { task: task.clone(), version, body })));
            }
            PutOutcome::Overtaken(object) | PutOutcome::Lost(Some(object)) => object,
            PutOutcome::Lost(None) => return Ok(Created::Exists(None)),
        };
        let loaded = match TaskObject::read(key, object)? {
            TaskObject::Here(loaded) => Some(loaded),
            TaskObject::Elsewhere(mark) => self.load_marked(purpose, mark).await?,
        };
        Ok(match loaded {
            Some(loaded) if loaded.task.has_write(&task.write_id) => Created::Done(seen(loaded)),
            loaded => Created::Exists(loaded.map(seen)),
        })
    }
}

fn seen(loaded: Loaded) -> TaskSnapshot {
    TaskSnapshot { loaded }
}
