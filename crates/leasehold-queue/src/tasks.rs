//! Reading and changing a task: load, decide, store, then update the index.
//!
//! Every change of a task goes through here. The record is read, [`step()`] decides by the event, the new record is
//! put if the old one is unchanged, and only then is the index updated. If the condition fails,
//! the new record is read and the event is decided again. A forwarding marker at the key, left by a migration, leads
//! to the task's new key. Updates of the index may fail without harm: an entry is removed only after its successor
//! was written, so the task is always found (promise P9).
//!
//! Requests: 1 put per change, 1 get if the task was not read before, and 1 put and 1 delete per index entry that
//! changes.

use bytes::Bytes;
use leasehold_core::forwarding::{self, ForwardingMarker, Stored};
use leasehold_core::step::{Step, WriteOrder};
use leasehold_core::{Entry, Event, Rejected, Result, StepContext, Task, TaskId, WriteId, record, step};
use leasehold_store::{Decision, Object, Purpose, PutOutcome, Version, update_from};
use std::ops::ControlFlow::{self, Break, Continue};

use crate::connect::ObjectQueue;
use crate::forwarding::{MARKERS_MAX, too_many_moves};
use crate::meta_cache::Intent;

/// Placeholder for the version of a task that is stored only in a forwarding marker. No store returns such a version.
const IN_MARKER: &str = "in a forwarding marker";

/// A task as last read or written, with the condition for its next change.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskSnapshot {
    /// The task.
    pub task: Task,
    pub(crate) version: Version,
}

/// Outcome of an event.
#[derive(Debug, Clone, PartialEq)]
pub enum Transition<T = TaskSnapshot> {
    /// Applied; this is the new task.
    Done(T),
    /// Applied, and changed again by another client since; this is the task as it is now.
    Superseded(T),
    /// Not applied: the task has changed since the caller read it; this is the task as it is now.
    Stale(T),
    /// Not allowed in the task's current state.
    Rejected(Rejected, T),
    /// No such task exists.
    Missing,
}

/// The object at the key of a task.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum TaskObject {
    /// The task.
    Here(TaskSnapshot),
    /// The forwarding marker of a task that was moved to a shard of another length.
    Elsewhere(ForwardingMarker),
}

/// The task that a change starts from.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ChangeFrom<'a> {
    /// A task to be read first.
    Id(&'a TaskId),
    /// A task that was read before; the event is decided again if it has changed since.
    Read(&'a TaskSnapshot),
    /// A task that was read before, and that must be unchanged since: for callers whose decision depends on more than
    /// the event.
    Unchanged(&'a TaskSnapshot),
}

/// Index update after a change of a task.
#[derive(Debug, Clone)]
pub(crate) enum IndexUpdate {
    /// The update that the change requires.
    Change,
    /// None: the entry through which the task was found stays and covers it.
    Nothing,
    /// The update that the change requires, except that these entries are removed: the ones that actually exist.
    Removing(Vec<Entry>),
}

/// Outcome at one key, or the marker of a task that is elsewhere.
type AtKey = std::result::Result<Transition, ForwardingMarker>;

impl TaskSnapshot {
    pub(crate) fn object(&self) -> Object {
        Object { body: Bytes::from(record::write(&self.task)), version: self.version.clone() }
    }

    /// The task inside a forwarding marker, which has not been written to its new key yet.
    pub(crate) fn in_marker(marker: ForwardingMarker) -> Self {
        Self { task: marker.task, version: Version::new(IN_MARKER) }
    }

    pub(crate) fn is_in_marker(&self) -> bool {
        self.version.as_str() == IN_MARKER
    }
}

impl<T> Transition<T> {
    /// True if the event was applied.
    #[must_use]
    pub fn is_done(&self) -> bool {
        matches!(self, Self::Done(_) | Self::Superseded(_))
    }

    /// The task as it is now, if the event was applied.
    #[must_use]
    pub fn done(self) -> Option<T> {
        match self {
            Self::Done(task) | Self::Superseded(task) => Some(task),
            _ => None,
        }
    }
}

impl TaskObject {
    pub(crate) fn read(key: &str, object: Object) -> Result<Self> {
        Ok(match forwarding::read(key, &object.body)? {
            Stored::Task(task) => TaskObject::Here(TaskSnapshot { task, version: object.version }),
            Stored::Moved(marker) => TaskObject::Elsewhere(marker),
        })
    }
}

impl ObjectQueue {
    /// Applies an event to a task, and updates its index entries.
    pub(crate) async fn change(
        &self,
        purpose: Purpose,
        from: ChangeFrom<'_>,
        event: &Event,
        index_update: IndexUpdate,
    ) -> Result<Transition> {
        self.ensure_allowed(Intent::of(purpose)).await?;
        let (id, only, mut place) = match from {
            ChangeFrom::Id(id) => (id, None, self.object_at(purpose, self.task_key(id)).await?),
            ChangeFrom::Read(read) => (&read.task.id, None, self.current_object(purpose, read).await?),
            ChangeFrom::Unchanged(read) => {
                (&read.task.id, Some(&read.task.write_id), self.current_object(purpose, read).await?)
            }
        };
        for _ in 0..MARKERS_MAX {
            let (key, found) = place;
            let changed = self.change_at(purpose, &key, found, event, (only, &index_update)).await?;
            place = match changed {
                Err(marker) => self.follow_marker(purpose, marker).await?,
                // The marker at the old key was removed, but the task may be at its current key.
                Ok(Transition::Missing) if key != self.current_key(id) => {
                    self.object_at(purpose, self.current_key(id)).await?
                }
                Ok(transition) => return Ok(transition),
            };
        }
        Err(too_many_moves(id))
    }

    /// Applies an event to the task at one key.
    async fn change_at(
        &self,
        purpose: Purpose,
        key: &str,
        found: Option<Object>,
        event: &Event,
        (only, index_update): (Option<&WriteId>, &IndexUpdate),
    ) -> Result<AtKey> {
        let updated = update_from(&self.client, purpose, key, found, |found| {
            let Some(object) = found else { return Ok(Decision::Leave(Break(Ok(Transition::Missing)))) };
            let loaded = match TaskObject::read(key, object.clone())? {
                TaskObject::Here(loaded) => loaded,
                TaskObject::Elsewhere(marker) => return Ok(Decision::Leave(Break(Err(marker)))),
            };
            self.check_allowed(Intent::of(purpose))?;
            if only.is_some_and(|only| loaded.task.write_id != *only) {
                return Ok(Decision::Leave(Break(Ok(Transition::Stale(loaded)))));
            }
            let context = self.step_context()?;
            Ok(match step(&loaded.task, event, &context) {
                Err(rejected) => Decision::Leave(Break(Ok(Transition::Rejected(rejected, loaded)))),
                Ok(step) => decision(key, step, &context),
            })
        });
        let updated = updated.await?;
        Ok(match (updated.result, updated.put) {
            (Break(at_key), _) => at_key,
            (Continue(step), Some(PutOutcome::Written(version))) => {
                self.update_index(purpose, &step, index_update).await;
                Ok(Transition::Done(TaskSnapshot { task: step.task, version }))
            }
            // The client that changed the task after our write has also updated its entries, or left them to index
            // cleanup. A task that was moved since was changed before.
            (Continue(_), Some(PutOutcome::Superseded(object))) => {
                let now = self.follow(purpose, TaskObject::read(key, object)?).await?;
                Ok(Transition::Superseded(now))
            }
            (Continue(_), _) => Ok(Transition::Missing),
        })
    }

    /// Updates the index after a change was written. Every step may fail without harm: the task is still found
    /// through the entry that was not removed.
    async fn update_index(&self, purpose: Purpose, step: &Step, index_update: &IndexUpdate) {
        let (write, remove) = match (&step.order, index_update) {
            (WriteOrder::TaskOnly, _) | (_, IndexUpdate::Nothing) => return,
            (WriteOrder::TaskFirst { write, remove }, _) => (write.as_ref(), remove.as_slice()),
            (WriteOrder::EntryFirst { remove, .. }, _) => (None, remove.as_slice()),
        };
        let remove = if let IndexUpdate::Removing(entries) = index_update { entries } else { remove };
        if let Some(write) = write
            && let Err(error) = self.put_entry(purpose, write).await
        {
            tracing::debug!(task = %step.task.id, %error, "failed to write index entry, keeping the old one");
            return;
        }
        if step.task.status() == leasehold_core::Status::Pending {
            // Only now, once workers can find the task.
            self.ring(purpose, None).await;
        }
        for entry in remove {
            self.remove_entry(purpose, entry).await;
        }
    }

    pub(crate) async fn put_entry(&self, purpose: Purpose, entry: &Entry) -> Result<()> {
        self.client.put_always(purpose, &entry.key(), Bytes::new()).await.map(|_| ())
    }

    /// Removes an entry. If that fails, a later scan finds the entry and removes it.
    pub(crate) async fn remove_entry(&self, purpose: Purpose, entry: &Entry) {
        if let Err(error) = self.client.delete(purpose, &entry.key()).await {
            tracing::debug!(%entry, %error, "failed to remove index entry");
        }
    }
}

fn decision(key: &str, step: Step, context: &StepContext) -> Decision<ControlFlow<AtKey, Step>> {
    let body = Bytes::from(record::write(&step.task));
    let first = match &step.order {
        WriteOrder::EntryFirst { write, .. } => Some(write.key()),
        _ => None,
    };
    let (key, write_id) = (key.to_owned(), context.write_id.clone());
    // A renewal adds nothing to the history. One that is not recognised is decided again, by its claim.
    let ours = Box::new(move |found: &[u8]| forwarding::has_write(&key, found, &write_id));
    Decision::Write { body, ours, first, result: Continue(step) }
}
