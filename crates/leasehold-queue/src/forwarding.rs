//! Following forwarding markers to a task that a migration has moved, and completing the move.
//!
//! A *forwarding marker* at the old key of a task contains the record for the new key
//! ([`forwarding`](leasehold_core::forwarding)). Any client that reads one may do the next step of the migration:
//! write the entry of that record, then the record, on condition that the new key has no object or an older marker.
//! The bytes are always the same, so it does not matter which client writes them, or how often. A *task* at the new
//! key is never overwritten: it is the moved one in a later revision, or one that was submitted under the same
//! idempotency key since.
//!
//! ```text
//!   old key: marker, rev 7                            old key: marker, rev 7
//!   new key: nothing          put entry, put record   new key: task, rev 7 or later       done
//!   new key: marker, rev 6    put entry, put record   new key: marker, rev 8 or later     follow that one
//! ```
//!
//! Requests: 1 get at the new key; 2 puts more if the task is not there yet.

use bytes::Bytes;
use leasehold_core::forwarding::ForwardingMarker;
use leasehold_core::{Error, Kind, Result, TaskId, keys, record};
use leasehold_store::{Decision, Object, Purpose, PutOutcome, update_from};

use crate::connect::ObjectQueue;
use crate::tasks::{TaskObject, TaskSnapshot};

/// Maximum number of markers that are followed. A task has one in each direction, unless it is moved back meanwhile.
pub(crate) const MARKERS_MAX: usize = 8;

impl ObjectQueue {
    /// Reads a task with the condition for its next change.
    pub async fn load(&self, purpose: Purpose, id: &TaskId) -> Result<Option<TaskSnapshot>> {
        self.load_at(purpose, id, self.task_key(id)).await
    }

    /// Reads a task, starting at this key.
    pub(crate) async fn load_at(
        &self,
        purpose: Purpose,
        id: &TaskId,
        key: String,
    ) -> Result<Option<TaskSnapshot>> {
        let object = self.client.get(purpose, &key).await?;
        self.load_from(purpose, id, &key, object).await
    }

    /// Reads a task, starting from the object at this key.
    pub(crate) async fn load_from(
        &self,
        purpose: Purpose,
        id: &TaskId,
        key: &str,
        object: Option<Object>,
    ) -> Result<Option<TaskSnapshot>> {
        let mut place = object.map(|object| TaskObject::read(key, object)).transpose()?;
        if place.is_none() {
            // This client may have connected so long ago that it uses an outdated key.
            self.refresh_meta_if_old().await?;
            let current = self.current_key(id);
            if current != key {
                place = self.read_task_object(purpose, &current).await?;
            }
        }
        match place {
            Some(place) => self.follow(purpose, place).await.map(Some),
            None => Ok(None),
        }
    }

    /// The task of an object, wherever a migration has moved it.
    pub(crate) async fn follow(&self, purpose: Purpose, place: TaskObject) -> Result<TaskSnapshot> {
        match place {
            TaskObject::Here(loaded) => Ok(loaded),
            TaskObject::Elsewhere(marker) => self.load_forwarded(purpose, marker).await,
        }
    }

    pub(crate) async fn read_task_object(&self, purpose: Purpose, key: &str) -> Result<Option<TaskObject>> {
        let object = self.client.get(purpose, key).await?;
        object.map(|object| TaskObject::read(key, object)).transpose()
    }

    /// Reads the task of a marker without writing anything: if it is not at its new key yet, the marker contains it.
    pub(crate) async fn load_forwarded(
        &self,
        purpose: Purpose,
        mut marker: ForwardingMarker,
    ) -> Result<TaskSnapshot> {
        for _ in 0..MARKERS_MAX {
            let key = marker.key();
            let Some(object) = self.client.get(purpose, &key).await? else {
                // Its version matches no object, so no write on its condition succeeds; the caller reads again.
                return Ok(TaskSnapshot::in_marker(marker));
            };
            match TaskObject::read(&key, object)? {
                TaskObject::Here(loaded) => return Ok(loaded),
                TaskObject::Elsewhere(next) if next.task.rev > marker.task.rev => marker = next,
                TaskObject::Elsewhere(_) => return Ok(TaskSnapshot::in_marker(marker)),
            }
        }
        Err(too_many_moves(&marker.task.id))
    }

    /// Returns the key and object at which the task of a marker is changed; writes it there if needed.
    pub(crate) async fn follow_marker(
        &self,
        purpose: Purpose,
        mut marker: ForwardingMarker,
    ) -> Result<(String, Option<Object>)> {
        for _ in 0..MARKERS_MAX {
            let (key, found) = self.object_at(purpose, marker.key()).await?;
            match self.complete_move(purpose, &marker, found).await? {
                TaskObject::Here(loaded) => return Ok((key, Some(loaded.object()))),
                TaskObject::Elsewhere(next) => marker = next,
            }
        }
        Err(too_many_moves(&marker.task.id))
    }

    /// Writes the task of a marker to its new key, entry first, unless it is there, or was. `found` is the object
    /// there. Returns the object there afterwards: the task, or a newer marker.
    pub(crate) async fn complete_move(
        &self,
        purpose: Purpose,
        marker: &ForwardingMarker,
        found: Option<Object>,
    ) -> Result<TaskObject> {
        let key = marker.key();
        let body = Bytes::from(record::write(&marker.task));
        let completed = update_from(&self.client, purpose, &key, found, |found| {
            let place = found.map(|object| TaskObject::read(&key, object.clone())).transpose()?;
            let is_kept = |place: &TaskObject| match place {
                TaskObject::Here(_) => true,
                TaskObject::Elsewhere(there) => there.task.rev >= marker.task.rev,
            };
            if let Some(place) = place.filter(is_kept) {
                return Ok(Decision::Leave(Some(place)));
            }
            let first = marker.task.entry().map(|entry| entry.key());
            Ok(Decision::Write { body: body.clone(), ours: Box::new(|_| false), first, result: None })
        });
        let completed = completed.await?;
        match (completed.put, completed.result) {
            (Some(PutOutcome::Superseded(object)), _) => TaskObject::read(&key, object),
            (Some(PutOutcome::Written(version)), _) => {
                Ok(TaskObject::Here(TaskSnapshot { task: marker.task.clone(), version }))
            }
            (_, Some(place)) => Ok(place),
            (_, None) => Err(Error::new(Kind::Internal, "a move left no object at the new key")),
        }
    }

    /// The key and object from which a task that was read before is changed. A task at an outdated key is read again
    /// at its current key, so that no entry is written for the old shard length.
    pub(crate) async fn current_object(
        &self,
        purpose: Purpose,
        loaded: &TaskSnapshot,
    ) -> Result<(String, Option<Object>)> {
        let (shard, meta) = (&loaded.task.shard, self.meta_cache.known().meta);
        if shard.len() == meta.shard_prefix_len || meta.migrating.is_some() {
            return Ok((keys::task(shard, &loaded.task.id), Some(loaded.object())));
        }
        self.object_at(purpose, self.current_key(&loaded.task.id)).await
    }

    pub(crate) async fn object_at(&self, purpose: Purpose, key: String) -> Result<(String, Option<Object>)> {
        let found = self.client.get(purpose, &key).await?;
        Ok((key, found))
    }
}

pub(crate) fn too_many_moves(id: &TaskId) -> Error {
    Error::new(Kind::Unavailable, format!("task {id} is being moved by a migration; try again"))
}
