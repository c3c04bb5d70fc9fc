//! Following forwarding markers to a task that a migration has moved, and completing the move.
//!
//! A *forwarding marker* at the old key of a task contains the record for the new key
//! ([`moved`](leasehold_core::moved)). Any client that reads one may do the next step of the migration: write the
//! entry of that record, then the record, on condition that the new key has no object or an older marker. The bytes
//! are always the same, so it does not matter which client writes them, or how often. A *task* at the new key is
//! never overwritten: it is the moved one in a later revision, or one that was submitted under the same idempotency
//! key since.
//!
//! ```text
//!   old key: marker, rev 7                            old key: marker, rev 7
//!   new key: nothing          put entry, put record   new key: task, rev 7 or later       done
//!   new key: marker, rev 6    put entry, put record   new key: marker, rev 8 or later     follow that one
//! ```
//!
//! Requests: 1 get at the new key; 2 puts more if the task is not there yet.

use bytes::Bytes;
use leasehold_core::moved::ForwardingMarker;
use leasehold_core::{Error, Kind, Result, TaskId, keys, record};
use leasehold_store::{Decision, Object, Purpose, StoredState, update_from};

use crate::connect::Queue;
use crate::tasks::{Loaded, TaskObject};

/// Maximum number of markers that are followed. A task has one in each direction, unless it is moved back meanwhile.
pub(crate) const MARKS_MAX: usize = 8;

impl Queue {
    /// Reads a task, starting at this key.
    pub(crate) async fn load_at(&self, purpose: Purpose, id: &TaskId, key: String) -> Result<Option<Loaded>> {
        let place = self.read_place(purpose, &key).await?;
        self.load_place(purpose, id, &key, place).await
    }

    /// Reads a task, starting from the object at this key.
    pub(crate) async fn load_place(
        &self,
        purpose: Purpose,
        id: &TaskId,
        key: &str,
        place: Option<TaskObject>,
    ) -> Result<Option<Loaded>> {
        let place = match place {
            Some(place) => Some(place),
            // This client may have connected so long ago that it uses an outdated key.
            None => self.read_if_migrated(purpose, id, key).await?,
        };
        match place {
            Some(TaskObject::Here(loaded)) => Ok(Some(loaded)),
            Some(TaskObject::Elsewhere(mark)) => self.load_marked(purpose, mark).await,
            None => Ok(None),
        }
    }

    async fn read_if_migrated(
        &self,
        purpose: Purpose,
        id: &TaskId,
        missing: &str,
    ) -> Result<Option<TaskObject>> {
        self.ask_if_old().await?;
        let key = self.key_now(id);
        if key == missing { Ok(None) } else { self.read_place(purpose, &key).await }
    }

    pub(crate) async fn read_place(&self, purpose: Purpose, key: &str) -> Result<Option<TaskObject>> {
        let object = self.client.get(purpose, key).await?;
        object.map(|object| TaskObject::read(key, object)).transpose()
    }

    /// Reads the task of a marker without writing anything: if it is not at its new key yet, the marker contains it.
    pub(crate) async fn load_marked(
        &self,
        purpose: Purpose,
        mut mark: ForwardingMarker,
    ) -> Result<Option<Loaded>> {
        for _ in 0..MARKS_MAX {
            let key = mark.key();
            let Some(object) = self.client.get(purpose, &key).await? else {
                // Its version matches no object, so no write on its condition succeeds; the caller reads again.
                return Ok(Some(Loaded::in_mark(mark)));
            };
            match TaskObject::read(&key, object)? {
                TaskObject::Here(loaded) => return Ok(Some(loaded)),
                TaskObject::Elsewhere(next) if next.task.rev > mark.task.rev => mark = next,
                TaskObject::Elsewhere(_) => return Ok(Some(Loaded::in_mark(mark))),
            }
        }
        Err(restless(&mark.task.id))
    }

    /// Returns the key and object at which the task of a marker is changed; writes it there if needed.
    pub(crate) async fn follow_mark(
        &self,
        purpose: Purpose,
        mut mark: ForwardingMarker,
    ) -> Result<(String, Option<Object>)> {
        for _ in 0..MARKS_MAX {
            let key = mark.key();
            let found = self.client.get(purpose, &key).await?;
            match self.land(purpose, &mark, found).await? {
                TaskObject::Here(loaded) => return Ok((key, Some(loaded.object()))),
                TaskObject::Elsewhere(next) => mark = next,
            }
        }
        Err(restless(&mark.task.id))
    }

    /// Writes the task of a marker to its new key, entry first, unless it is there, or was. `found` is the object
    /// there. Returns the object there afterwards: the task, or a newer marker.
    pub(crate) async fn land(
        &self,
        purpose: Purpose,
        mark: &ForwardingMarker,
        found: Option<Object>,
    ) -> Result<TaskObject> {
        let key = mark.key();
        let body = Bytes::from(record::write(&mark.task));
        let landed = update_from(&self.client, purpose, &key, found, |found| {
            let place = found.map(|object| TaskObject::read(&key, object.clone())).transpose()?;
            Ok(match place {
                Some(TaskObject::Elsewhere(older)) if older.task.rev < mark.task.rev => landing(mark, &body),
                None => landing(mark, &body),
                Some(place) => Decision::Leave(Some(place)),
            })
        });
        let landed = landed.await?;
        match (landed.now, landed.result) {
            (StoredState::Overtaken(object), _) => TaskObject::read(&key, object),
            (StoredState::Written(version), _) => {
                Ok(TaskObject::Here(Loaded { task: mark.task.clone(), version, body }))
            }
            (StoredState::Left, Some(place)) => Ok(place),
            (StoredState::Left, None) => {
                Err(Error::new(Kind::Internal, "a move left no object at the new key"))
            }
        }
    }

    /// The key and object from which a task that was read before is changed. A task at an outdated key is read again
    /// at its current key, so that no entry is written for the old layout.
    pub(crate) async fn place_now(
        &self,
        purpose: Purpose,
        loaded: &Loaded,
    ) -> Result<(String, Option<Object>)> {
        let (shard, agreement) = (&loaded.task.shard, self.layout.known().agreement);
        if shard.len() == agreement.shard_prefix_len || agreement.migrating.is_some() {
            return Ok((keys::task(shard, &loaded.task.id), Some(loaded.object())));
        }
        let key = self.key_now(&loaded.task.id);
        let found = self.client.get(purpose, &key).await?;
        Ok((key, found))
    }
}

fn landing(mark: &ForwardingMarker, body: &Bytes) -> Decision<Option<TaskObject>> {
    let first = mark.task.entry().map(|entry| entry.key());
    Decision::Write { body: body.clone(), ours: Box::new(|_| false), first, result: None }
}

pub(crate) fn restless(id: &TaskId) -> Error {
    Error::new(Kind::Unavailable, format!("task {id} is being moved by a migration; try again"))
}
