//! Reading a task and moving it on: load, decide, store, then act.

use bytes::Bytes;
use leasehold_core::moved::{self, Mark, Stored};
use leasehold_core::step::{Order, Step};
use leasehold_core::{Act, Entry, Event, Rejected, Result, Task, TaskId, WriteId, record, step};
use leasehold_store::{Decision, Object, Purpose, Standing, Version, update_from};

use crate::connect::Queue;
use crate::follow::{MARKS_MAX, restless};
use crate::layout::Intent;

/// In the place of a version, for what has none of its own: no store gives such a one.
const IN_MARK: &str = "in a mark";

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

/// What stands at the key of a task.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Place {
    /// The task.
    Here(Loaded),
    /// The mark of a task that has moved to a shard of another length.
    Elsewhere(Mark),
}

impl Loaded {
    pub(crate) fn object(&self) -> Object {
        Object { body: self.body.clone(), version: self.version.clone() }
    }

    /// The task of a mark, which stands nowhere else yet.
    pub(crate) fn in_mark(mark: Mark) -> Self {
        let body = Bytes::from(record::write(&mark.task));
        Self { task: mark.task, version: Version::new(IN_MARK), body }
    }

    pub(crate) fn is_in_mark(&self) -> bool {
        self.version.as_str() == IN_MARK
    }
}

impl Place {
    pub(crate) fn read(key: &str, object: Object) -> Result<Self> {
        Ok(match moved::read(key, &object.body)? {
            Stored::Task(task) => Place::Here(Loaded { task, version: object.version, body: object.body }),
            Stored::Moved(mark) => Place::Elsewhere(mark),
        })
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
        self.load_at(purpose, id, self.task_key(id)).await
    }

    /// Moves a task on, and carries out what follows for its index entries.
    pub(crate) async fn change(
        &self,
        purpose: Purpose,
        id: &TaskId,
        event: &Event,
        by: &str,
    ) -> Result<Moved> {
        self.may(Intent::of(purpose)).await?;
        let key = self.task_key(id);
        let found = self.client.get(purpose, &key).await?;
        self.change_from(purpose, id, (key, found), event, by, (None, Follow::Change)).await
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
        self.may(Intent::of(purpose)).await?;
        let place = self.place_now(purpose, loaded).await?;
        self.change_from(purpose, &loaded.task.id, place, event, by, (None, follow)).await
    }

    /// The same, but only if the task is still the one that was read: for whoever has decided by more than the event itself
    /// does. One that has changed is given as a rejected one, with another write id.
    pub(crate) async fn change_unmoved(
        &self,
        purpose: Purpose,
        loaded: &Loaded,
        event: &Event,
        by: &str,
    ) -> Result<Moved> {
        self.may(Intent::of(purpose)).await?;
        let place = self.place_now(purpose, loaded).await?;
        let only = Some(loaded.task.write_id.clone());
        self.change_from(purpose, &loaded.task.id, place, event, by, (only, Follow::Change)).await
    }

    async fn change_from(
        &self,
        purpose: Purpose,
        id: &TaskId,
        mut place: (String, Option<Object>),
        event: &Event,
        by: &str,
        how: (Option<WriteId>, Follow),
    ) -> Result<Moved> {
        for _ in 0..MARKS_MAX {
            let (key, found) = place;
            match self.change_at(purpose, &key, found, event, by, &how).await? {
                Changed::Here(moved) => return Ok(moved),
                Changed::Elsewhere(mark) => place = self.follow_mark(purpose, mark).await?,
                // What was left behind was removed, but the task itself may be where the queue has it now.
                Changed::Missing if key == self.key_now(id) => return Ok(Moved::Missing),
                Changed::Missing => {
                    let key = self.key_now(id);
                    let found = self.client.get(purpose, &key).await?;
                    place = (key, found);
                }
            }
        }
        Err(restless(id))
    }

    /// The same at one key.
    async fn change_at(
        &self,
        purpose: Purpose,
        key: &str,
        found: Option<Object>,
        event: &Event,
        by: &str,
        (only, follow): &(Option<WriteId>, Follow),
    ) -> Result<Changed> {
        let updated = update_from(&self.client, purpose, key, found, |found| {
            let Some(object) = found else { return Ok(Decision::Leave(Err(Changed::Missing))) };
            let loaded = match Place::read(key, object.clone())? {
                Place::Here(loaded) => loaded,
                Place::Elsewhere(mark) => return Ok(Decision::Leave(Err(Changed::Elsewhere(mark)))),
            };
            self.still_may(Intent::of(purpose))?;
            if only.as_ref().is_some_and(|only| loaded.task.write_id != *only) {
                let rejected = Rejected::Status(loaded.task.status());
                return Ok(Decision::Leave(Err(Changed::Here(Moved::Rejected(rejected, loaded)))));
            }
            let act = self.act_as(by)?;
            Ok(match step(&loaded.task, event, &act) {
                Err(rejected) => Decision::Leave(Err(Changed::Here(Moved::Rejected(rejected, loaded)))),
                Ok(step) => decision(key, step, &act),
            })
        });
        let updated = updated.await?;
        let (step, body) = match updated.result {
            Ok(written) => written,
            Err(changed) => return Ok(changed),
        };
        match updated.now {
            Standing::Left => Ok(Changed::Missing),
            Standing::Written(version) => {
                self.follow(purpose, &step, follow).await;
                Ok(Changed::Here(Moved::Done(Loaded { task: step.task, version, body })))
            }
            // Whoever went on from our write also saw to its entries, or left them to be swept.
            Standing::Overtaken(object) => match Place::read(key, object)? {
                Place::Here(loaded) => Ok(Changed::Here(Moved::Overtaken(loaded))),
                // The event is done, in the record that has moved.
                Place::Elsewhere(mark) => {
                    let loaded = self.load_marked(purpose, mark).await?;
                    Ok(loaded.map_or(Changed::Missing, |loaded| Changed::Here(Moved::Overtaken(loaded))))
                }
            },
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

/// What became of an event at one key.
enum Changed {
    Here(Moved),
    Elsewhere(Mark),
    Missing,
}

type Written = std::result::Result<(Step, Bytes), Changed>;

fn decision(key: &str, step: Step, act: &Act) -> Decision<Written> {
    let body = Bytes::from(record::write(&step.task));
    let first = match &step.order {
        Order::EntryFirst { write, .. } => Some(write.key()),
        _ => None,
    };
    let (key, write_id) = (key.to_owned(), act.write_id.clone());
    // A renewal leaves no trace in the history; one that is not recognised is simply decided again, by its claim.
    let ours = Box::new(move |found: &[u8]| moved::has_write(&key, found, &write_id));
    Decision::Write { body: body.clone(), ours, first, result: Ok((step, body)) }
}
