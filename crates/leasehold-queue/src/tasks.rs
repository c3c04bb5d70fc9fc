//! Reading a task and moving it on: load, decide, store, then act.

use bytes::Bytes;
use leasehold_core::step::{Order, Step};
use leasehold_core::{Act, Entry, Event, Rejected, Result, Task, TaskId, record, step};
use leasehold_store::{Decision, Object, Purpose, Standing, Version, update_from};

use crate::connect::Queue;

/// A task as it was read or written, with the version for the next condition.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Loaded {
    /// The task.
    pub(crate) task: Task,
    /// Its version in the store.
    pub(crate) version: Version,
    /// Its bytes, for the update loop.
    pub(crate) body: Bytes,
}

/// What became of an event.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Moved {
    /// It happened; this is the task now.
    Done(Loaded),
    /// It happened, and others have moved the task on since: this is what they made of it.
    Overtaken(Loaded),
    /// It cannot happen to the task as it stands.
    Rejected(Rejected, Loaded),
    /// There is no such task.
    Missing,
}

impl Loaded {
    pub(crate) fn read(key: &str, object: Object) -> Result<Self> {
        let task = record::read(key, &object.body)?;
        Ok(Self { task, version: object.version, body: object.body })
    }

    fn object(&self) -> Object {
        Object { body: self.body.clone(), version: self.version.clone() }
    }
}

/// What becomes of a task's entries after a change.
#[derive(Debug, Clone)]
pub(crate) enum Follow {
    /// What the change itself calls for.
    Change,
    /// Nothing: the entry by which the task was found stays, and covers it.
    Nothing,
    /// What the change calls for, but these are removed instead: the entries that are really there.
    Removing(Vec<Entry>),
}

impl Queue {
    pub(crate) async fn load(&self, purpose: Purpose, id: &TaskId) -> Result<Option<Loaded>> {
        let key = self.task_key(id);
        let object = self.client.get(purpose, &key).await?;
        object.map(|object| Loaded::read(&key, object)).transpose()
    }

    /// Moves a task on, and carries out what follows for its index entries.
    pub(crate) async fn change(
        &self,
        purpose: Purpose,
        id: &TaskId,
        event: &Event,
        by: &str,
    ) -> Result<Moved> {
        let found = self.client.get(purpose, &self.task_key(id)).await?;
        self.change_from(purpose, id, found, event, by, (false, Follow::Change)).await
    }

    /// The same from a state that was read before.
    pub(crate) async fn change_loaded(
        &self,
        purpose: Purpose,
        loaded: &Loaded,
        event: &Event,
        by: &str,
    ) -> Result<Moved> {
        self.change_and(purpose, loaded, event, by, Follow::Change).await
    }

    /// The same, with a say in what becomes of the entries.
    pub(crate) async fn change_and(
        &self,
        purpose: Purpose,
        loaded: &Loaded,
        event: &Event,
        by: &str,
        follow: Follow,
    ) -> Result<Moved> {
        self.change_from(purpose, &loaded.task.id, Some(loaded.object()), event, by, (false, follow)).await
    }

    /// The same, but only if the task has not moved since: for whoever has decided by more than the event itself does.
    pub(crate) async fn change_unmoved(
        &self,
        purpose: Purpose,
        loaded: &Loaded,
        event: &Event,
        by: &str,
    ) -> Result<Moved> {
        let how = (true, Follow::Change);
        self.change_from(purpose, &loaded.task.id, Some(loaded.object()), event, by, how).await
    }

    async fn change_from(
        &self,
        purpose: Purpose,
        id: &TaskId,
        found: Option<Object>,
        event: &Event,
        by: &str,
        (unmoved, follow): (bool, Follow),
    ) -> Result<Moved> {
        let key = self.task_key(id);
        let only = if unmoved { found.as_ref().map(|object| object.version.clone()) } else { None };
        let updated = update_from(&self.client, purpose, &key, found, |found| {
            let Some(object) = found else { return Ok(Decision::Leave(Err(Moved::Missing))) };
            let loaded = Loaded::read(&key, object.clone())?;
            if only.as_ref().is_some_and(|only| loaded.version != *only) {
                let rejected = Rejected::Status(loaded.task.status());
                return Ok(Decision::Leave(Err(Moved::Rejected(rejected, loaded))));
            }
            let act = self.act_as(by)?;
            Ok(match step(&loaded.task, event, &act) {
                Err(rejected) => Decision::Leave(Err(Moved::Rejected(rejected, loaded))),
                Ok(step) => decision(&key, step, &act),
            })
        });
        let updated = updated.await?;
        let (step, body) = match updated.result {
            Ok(written) => written,
            Err(moved) => return Ok(moved),
        };
        match updated.now {
            Standing::Left => Ok(Moved::Missing),
            Standing::Written(version) => {
                self.follow(purpose, &step, &follow).await;
                Ok(Moved::Done(Loaded { task: step.task, version, body }))
            }
            // Whoever went on from our write also saw to its entries, or left them to be swept.
            Standing::Overtaken(object) => Ok(Moved::Overtaken(Loaded::read(&key, object)?)),
        }
    }

    /// Carries out what follows from a change that was written. Every part may fail without harm: what is missing
    /// then is found through the entry that was not removed.
    async fn follow(&self, purpose: Purpose, step: &Step, follow: &Follow) {
        let (write, remove) = match (&step.order, follow) {
            (Order::TaskOnly, _) | (_, Follow::Nothing) => return,
            (Order::TaskFirst { write, remove }, _) => (write.as_ref(), remove.as_slice()),
            (Order::EntryFirst { remove, .. }, _) => (None, remove.as_slice()),
        };
        let remove = if let Follow::Removing(entries) = follow { entries } else { remove };
        if let Some(write) = write
            && let Err(error) = self.put_entry(purpose, write).await
        {
            tracing::debug!(task = %step.task.id, "index entry was not written, the old one stays: {error}");
            return;
        }
        if step.task.status() == leasehold_core::Status::Pending {
            // Only now: before this there was nothing to be found.
            self.ring(purpose).await;
        }
        for entry in remove {
            self.remove_entry(purpose, entry).await;
        }
    }

    pub(crate) async fn put_entry(&self, purpose: Purpose, entry: &Entry) -> Result<()> {
        self.client.put_always(purpose, &entry.key(), Bytes::new()).await.map(|_| ())
    }

    /// Removes an entry; one that stays is met again and swept.
    pub(crate) async fn remove_entry(&self, purpose: Purpose, entry: &Entry) {
        if let Err(error) = self.client.delete(purpose, &entry.key()).await {
            tracing::debug!("index entry {entry} was not removed: {error}");
        }
    }
}

type Written = std::result::Result<(Step, Bytes), Moved>;

fn decision(key: &str, step: Step, act: &Act) -> Decision<Written> {
    let body = Bytes::from(record::write(&step.task));
    let first = match &step.order {
        Order::EntryFirst { write, .. } => Some(write.key()),
        _ => None,
    };
    let (key, write_id) = (key.to_owned(), act.write_id.clone());
    // A renewal leaves no trace in the history; one that is not recognised is simply decided again, by its claim.
    let ours =
        Box::new(move |found: &[u8]| record::read(&key, found).is_ok_and(|task| task.has_write(&write_id)));
    Decision::Write { body: body.clone(), ours, first, result: Ok((step, body)) }
}
