//! Finding a task that has moved, and helping it there.
//!
//! A mark at the key where a task was holds the record as it is to stand elsewhere ([`moved`]). Whoever meets one may
//! do what the migration does next: the entry of that record, then the record, on condition that nothing stands there
//! or an older mark does. It is always the same bytes, so it makes no difference who puts them, or how often it is
//! tried. A *task* that stands there is never overwritten: it is the one that has moved and gone on, or one that was
//! submitted under the same idempotency key since.
//!
//! ```text
//!   old key: mark, rev 7                              old key: mark, rev 7
//!   new key: nothing          put entry, put record   new key: task, rev 7 or later       there
//!   new key: mark, rev 6      put entry, put record   new key: mark, rev 8 or later       follow that one
//! ```
//!
//! Requests: 1 get where the mark leads; 2 puts more if the task is not there yet.

use bytes::Bytes;
use leasehold_core::moved::Mark;
use leasehold_core::{Error, Kind, Result, TaskId, keys, record};
use leasehold_store::{Decision, Object, Purpose, Standing, update_from};

use crate::connect::Queue;
use crate::tasks::{Loaded, Place};

/// Marks that lead on are followed so often. A task has one in each direction, unless it is moved back meanwhile.
pub(crate) const MARKS_MAX: usize = 8;

impl Queue {
    /// Reads a task that is to be looked for at this key first.
    pub(crate) async fn load_at(&self, purpose: Purpose, id: &TaskId, key: String) -> Result<Option<Loaded>> {
        let place = self.read_place(purpose, &key).await?;
        self.load_place(purpose, id, &key, place).await
    }

    /// The same from what stands there.
    pub(crate) async fn load_place(
        &self,
        purpose: Purpose,
        id: &TaskId,
        key: &str,
        place: Option<Place>,
    ) -> Result<Option<Loaded>> {
        let place = match place {
            Some(place) => Some(place),
            // This client may have connected so long ago that it looks in the wrong place.
            None => self.read_if_migrated(purpose, id, key).await?,
        };
        match place {
            Some(Place::Here(loaded)) => Ok(Some(loaded)),
            Some(Place::Elsewhere(mark)) => self.load_marked(purpose, mark).await,
            None => Ok(None),
        }
    }

    async fn read_if_migrated(&self, purpose: Purpose, id: &TaskId, missing: &str) -> Result<Option<Place>> {
        self.ask_if_old().await?;
        let key = self.key_now(id);
        if key == missing { Ok(None) } else { self.read_place(purpose, &key).await }
    }

    pub(crate) async fn read_place(&self, purpose: Purpose, key: &str) -> Result<Option<Place>> {
        let object = self.client.get(purpose, key).await?;
        object.map(|object| Place::read(key, object)).transpose()
    }

    /// Reads the task of a mark, without writing anything: what is not there yet is in the mark itself.
    pub(crate) async fn load_marked(&self, purpose: Purpose, mut mark: Mark) -> Result<Option<Loaded>> {
        for _ in 0..MARKS_MAX {
            let key = mark.key();
            let Some(object) = self.client.get(purpose, &key).await? else {
                // No version fits it, so nothing can be written on its condition; whoever tries reads again.
                return Ok(Some(Loaded::in_mark(mark)));
            };
            match Place::read(&key, object)? {
                Place::Here(loaded) => return Ok(Some(loaded)),
                Place::Elsewhere(next) if next.task.rev > mark.task.rev => mark = next,
                Place::Elsewhere(_) => return Ok(Some(Loaded::in_mark(mark))),
            }
        }
        Err(restless(&mark.task.id))
    }

    /// Where to change the task of a mark; puts it there if need be.
    pub(crate) async fn follow_mark(
        &self,
        purpose: Purpose,
        mut mark: Mark,
    ) -> Result<(String, Option<Object>)> {
        for _ in 0..MARKS_MAX {
            let key = mark.key();
            let found = self.client.get(purpose, &key).await?;
            match self.land(purpose, &mark, found).await? {
                Place::Here(loaded) => return Ok((key, Some(loaded.object()))),
                Place::Elsewhere(next) => mark = next,
            }
        }
        Err(restless(&mark.task.id))
    }

    /// Puts the task of a mark where it belongs, its entry first, unless it is there, or was. `found` is what stands
    /// there. Gives what stands there then: the task, or the newer mark that it has left in turn.
    pub(crate) async fn land(&self, purpose: Purpose, mark: &Mark, found: Option<Object>) -> Result<Place> {
        let key = mark.key();
        let body = Bytes::from(record::write(&mark.task));
        let landed = update_from(&self.client, purpose, &key, found, |found| {
            let place = found.map(|object| Place::read(&key, object.clone())).transpose()?;
            Ok(match place {
                Some(Place::Elsewhere(older)) if older.task.rev < mark.task.rev => landing(mark, &body),
                None => landing(mark, &body),
                Some(place) => Decision::Leave(Some(place)),
            })
        });
        let landed = landed.await?;
        match (landed.now, landed.result) {
            (Standing::Overtaken(object), _) => Place::read(&key, object),
            (Standing::Written(version), _) => {
                Ok(Place::Here(Loaded { task: mark.task.clone(), version, body }))
            }
            (Standing::Left, Some(place)) => Ok(place),
            (Standing::Left, None) => {
                Err(Error::new(Kind::Internal, "nothing was written, and nothing is there"))
            }
        }
    }

    /// A task that was read before, as the object from which it is changed. One that lies where the queue has it no more
    /// is read again where it has it now, so that no entry is written in a place that was left.
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

fn landing(mark: &Mark, body: &Bytes) -> Decision<Option<Place>> {
    let first = mark.task.entry().map(|entry| entry.key());
    Decision::Write { body: body.clone(), ours: Box::new(|_| false), first, result: None }
}

pub(crate) fn restless(id: &TaskId) -> Error {
    Error::new(Kind::Unavailable, format!("task {id} is being moved to and fro; try again"))
}
