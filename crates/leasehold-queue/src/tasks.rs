//! Reading and changing a task: load, decide, store, then update the index.
//!
//! Every change of a task goes through here. The record is read, [`step()`] decides by the event, the new record is
//! written on condition that the old one is unchanged, and only then is the index updated. If the condition fails,
//! the new record is read and the event is decided again. A forwarding marker at the key, left by a migration, leads
//! to the task's new key. Updates of the index may fail without harm: an entry is removed only after its successor
//! was written, so the task is always found (promise P9).
//!
//! Requests: 1 put per change, 1 get if the task was not read before, and 1 put and 1 delete per index entry that
//! changes.

use bytes::Bytes;
use leasehold_core::moved::{self, ForwardingMarker, Stored};
use leasehold_core::step::{Order, Step};
use leasehold_core::{Entry, Event, Rejected, Result, StepContext, Task, TaskId, WriteId, record, step};
use leasehold_store::{Decision, Object, Purpose, StoredState, Version, update_from};

use crate::connect::Queue;
use crate::forwarding::{MARKS_MAX, restless};
use crate::layout::Intent;

/// Placeholder for the version of a task that is stored only in a forwarding marker. No store returns such a version.
const IN_MARK: &str = "in a mark";

/// A task as last read or written, with the version for the next condition.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Loaded {
    /// The task.
    pub(crate) task: Task,
    /// Its version in the store.
    pub(crate) version: Version,
    /// Its serialized form, for the update loop.
    pub(crate) body: Bytes,
}

/// Outcome of an event.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Transition {
    /// Written; this is the new task.
    Done(Loaded),
    /// Written, and changed again by another client since; this is the task as it is now.
    Overtaken(Loaded),
    /// Not allowed in the task's current state.
    Rejected(Rejected, Loaded),
    /// No such task exists.
    Missing,
}

/// The object at the key of a task.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum TaskObject {
    /// The task.
    Here(Loaded),
    /// The forwarding marker of a task that was moved to a shard of another length.
    Elsewhere(ForwardingMarker),
}

impl Loaded {
    pub(crate) fn object(&self) -> Object {
        Object { body: self.body.clone(), version: self.version.clone() }
    }

    /// The task inside a forwarding marker, which has not been written to its new key yet.
    pub(crate) fn in_mark(mark: ForwardingMarker) -> Self {
        let body = Bytes::from(record::write(&mark.task));
        Self { task: mark.task, version: Version::new(IN_MARK), body }
    }

    pub(crate) fn is_in_mark(&self) -> bool {
        self.version.as_str() == IN_MARK
    }
}

impl TaskObject {
    pub(crate) fn read(key: &str, object: Object) -> Result<Self> {
        Ok(match moved::read(key, &object.body)? {
            Stored::Task(task) => {
                TaskObject::Here(Loaded { task, version: object.version, body: object.body })
            }
            Stored::Moved(mark) => TaskObject::Elsewhere(mark),
        })
    }
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

impl Queue {
    pub(crate) async fn load(&self, purpose: Purpose, id: &TaskId) -> Result<Option<Loaded>> {
        self.load_at(purpose, id, self.task_key(id)).await
    }

    /// Applies an event to a task, and updates its index entries.
    pub(crate) async fn change(
        &self,
        purpose: Purpose,
        id: &TaskId,
        event: &Event,
        by: &str,
    ) -> Result<Transition> {
        self.ensure_allowed(Intent::of(purpose)).await?;
        let key = self.task_key(id);
        let found = self.client.get(purpose, &key).await?;
        self.change_from(purpose, id, (key, found), event, by, (None, IndexUpdate::Change)).await
    }

    /// Applies an event to a task that was read before.
    pub(crate) async fn change_loaded(
        &self,
        purpose: Purpose,
        loaded: &Loaded,
        event: &Event,
        by: &str,
    ) -> Result<Transition> {
        self.change_and(purpose, loaded, event, by, IndexUpdate::Change).await
    }

    /// Applies an event to a task that was read before, with this index update.
    pub(crate) async fn change_and(
        &self,
        purpose: Purpose,
        loaded: &Loaded,
        event: &Event,
        by: &str,
        follow: IndexUpdate,
    ) -> Result<Transition> {
        self.ensure_allowed(Intent::of(purpose)).await?;
        let place = self.place_now(purpose, loaded).await?;
        self.change_from(purpose, &loaded.task.id, place, event, by, (None, follow)).await
    }

    /// Applies an event only if the task is unchanged since it was read: for callers whose decision depends on more
    /// than the event. A task that has changed is returned as rejected, with its new write id.
    pub(crate) async fn change_unmoved(
        &self,
        purpose: Purpose,
        loaded: &Loaded,
        event: &Event,
        by: &str,
    ) -> Result<Transition> {
        self.ensure_allowed(Intent::of(purpose)).await?;
        let place = self.place_now(purpose, loaded).await?;
        let only = Some(loaded.task.write_id.clone());
        self.change_from(purpose, &loaded.task.id, place, event, by, (only, IndexUpdate::Change)).await
    }

    async fn change_from(
        &self,
        purpose: Purpose,
        id: &TaskId,
        mut place: (String, Option<Object>),
        event: &Event,
        by: &str,
        how: (Option<WriteId>, IndexUpdate),
    ) -> Result<Transition> {
        for _ in 0..MARKS_MAX {
            let (key, found) = place;
            match self.change_at(purpose, &key, found, event, by, &how).await? {
                TransitionAt::Here(moved) => return Ok(moved),
                TransitionAt::Elsewhere(mark) => place = self.follow_mark(purpose, mark).await?,
                // The marker at the old key was removed, but the task may be at its current key.
                TransitionAt::Missing if key == self.key_now(id) => return Ok(Transition::Missing),
                TransitionAt::Missing => {
                    let key = self.key_now(id);
                    let found = self.client.get(purpose, &key).await?;
                    place = (key, found);
                }
            }
        }
        Err(restless(id))
    }

    /// Applies an event to the task at one key.
    async fn change_at(
        &self,
        purpose: Purpose,
        key: &str,
        found: Option<Object>,
        event: &Event,
        by: &str,
        (only, follow): &(Option<WriteId>, IndexUpdate),
    ) -> Result<TransitionAt> {
        let updated = update_from(&self.client, purpose, key, found, |found| {
            let Some(object) = found else { return Ok(Decision::Leave(Err(TransitionAt::Missing))) };
            let loaded = match TaskObject::read(key, object.clone())? {
                TaskObject::Here(loaded) => loaded,
                TaskObject::Elsewhere(mark) => {
                    return Ok(Decision::Leave(Err(TransitionAt::Elsewhere(mark))));
                }
            };
            self.check_allowed(Intent::of(purpose))?;
            if only.as_ref().is_some_and(|only| loaded.task.write_id != *only) {
                let rejected = Rejected::Status(loaded.task.status());
                return Ok(Decision::Leave(Err(TransitionAt::Here(Transition::Rejected(rejected, loaded)))));
            }
            let act = self.act_as(by)?;
            Ok(match step(&loaded.task, event, &act) {
                Err(rejected) => {
                    Decision::Leave(Err(TransitionAt::Here(Transition::Rejected(rejected, loaded))))
                }
                Ok(step) => decision(key, step, &act),
            })
        });
        let updated = updated.await?;
        let (step, body) = match updated.result {
            Ok(written) => written,
            Err(changed) => return Ok(changed),
        };
        match updated.now {
            StoredState::Left => Ok(TransitionAt::Missing),
            StoredState::Written(version) => {
                self.follow(purpose, &step, follow).await;
                Ok(TransitionAt::Here(Transition::Done(Loaded { task: step.task, version, body })))
            }
            // The client that changed the task after our write has also updated its entries, or left them to index
            // cleanup.
            StoredState::Overtaken(object) => match TaskObject::read(key, object)? {
                TaskObject::Here(loaded) => Ok(TransitionAt::Here(Transition::Overtaken(loaded))),
                // The event was applied before the record was moved.
                TaskObject::Elsewhere(mark) => {
                    let loaded = self.load_marked(purpose, mark).await?;
                    Ok(loaded.map_or(TransitionAt::Missing, |loaded| {
                        TransitionAt::Here(Transition::Overtaken(loaded))
                    }))
                }
            },
        }
    }

    /// Updates the index after a change was written. Every step may fail without harm: the task is still found
    /// through the entry that was not removed.
    async fn follow(&self, purpose: Purpose, step: &Step, follow: &IndexUpdate) {
        let (write, remove) = match (&step.order, follow) {
            (Order::TaskOnly, _) | (_, IndexUpdate::Nothing) => return,
            (Order::TaskFirst { write, remove }, _) => (write.as_ref(), remove.as_slice()),
            (Order::EntryFirst { remove, .. }, _) => (None, remove.as_slice()),
        };
        let remove = if let IndexUpdate::Removing(entries) = follow { entries } else { remove };
        if let Some(write) = write
            && let Err(error) = self.put_entry(purpose, write).await
        {
            tracing::debug!(task = %step.task.id, %error, "failed to write index entry, keeping the old one");
            return;
        }
        if step.task.status() == leasehold_core::Status::Pending {
            // Only now, once workers can find the task.
            self.ring(purpose).await;
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

/// Outcome of an event at one key.
enum TransitionAt {
    Here(Transition),
    Elsewhere(ForwardingMarker),
    Missing,
}

type Written = std::result::Result<(Step, Bytes), TransitionAt>;

fn decision(key: &str, step: Step, act: &StepContext) -> Decision<Written> {
    let body = Bytes::from(record::write(&step.task));
    let first = match &step.order {
        Order::EntryFirst { write, .. } => Some(write.key()),
        _ => None,
    };
    let (key, write_id) = (key.to_owned(), act.write_id.clone());
    // A renewal adds nothing to the history. One that is not recognised is decided again, by its claim.
    let ours = Box::new(move |found: &[u8]| moved::has_write(&key, found, &write_id));
    Decision::Write { body: body.clone(), ours, first, result: Ok((step, body)) }
}
