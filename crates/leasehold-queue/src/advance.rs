//! For whoever decides by a task as it stood, and wants to have decided upon nothing else: an outpost that keeps its node
//! in step with the bucket.
//!
//! [`Queue::see`] gives a task together with the condition under which it is changed; [`Queue::advance`] changes it if it
//! still stands so, and otherwise gives it as it stands now, to be decided upon again; [`Queue::create`] puts in a task
//! that was written down elsewhere, under its own id.
//!
//! All three may be repeated after a lost answer. What was written is known again by its write id in the history, also
//! when others have gone on from it. Only a renewal leaves no trace there: one whose answer is lost *and* that others have
//! gone on from is told as [`Advanced::Changed`], and the claim in the record says whose it is.
//!
//! Requests: to see is 1 get. To advance is 1 put, 1 put more if it calls for an index entry, and 1 delete if it had one;
//! nothing if it is refused, and 1 get more if it has changed. To create is 2 puts, and 1 get more if something stands
//! there. Where a task has moved to another shard, 1 get more for each.

use bytes::Bytes;
use leasehold_core::{Error, Event, Kind, Rejected, Result, Status, Task, TaskId, moved, record};
use leasehold_store::{Purpose, Put, When};

use crate::connect::Queue;
use crate::layout::Intent;
use crate::tasks::{Loaded, Moved, Place};

/// A task as it was read or written, with the condition for the next change.
#[derive(Debug, Clone, PartialEq)]
pub struct Seen {
    loaded: Loaded,
}

impl Seen {
    /// The task.
    #[must_use]
    pub fn task(&self) -> &Task {
        &self.loaded.task
    }
}

/// What became of an event.
#[derive(Debug, Clone, PartialEq)]
pub enum Advanced {
    /// It happened; this is the task now, and others may have moved it on since.
    Done(Seen),
    /// The task has changed since it was seen: this is how it stands.
    Changed(Seen),
    /// It cannot happen to the task as it was seen.
    Refused(Rejected, Seen),
    /// There is no such task any more.
    Missing,
}

/// What became of a task that was to be put in.
#[derive(Debug, Clone, PartialEq)]
pub enum Created {
    /// It is there, by this call or by one before whose answer was lost; others may have moved it on since.
    Done(Seen),
    /// Something else stands at its id: another task, or the mark that its submit was given up. None if that went
    /// before it could be read.
    Exists(Option<Seen>),
}

impl Queue {
    /// Reads a task in order to decide upon it.
    pub async fn see(&self, purpose: Purpose, id: &TaskId) -> Result<Option<Seen>> {
        Ok(self.load(purpose, id).await?.map(seen))
    }

    /// Moves a task on, but only if it still stands as it was seen. What the event carries was checked where it was made.
    pub async fn advance(
        &self,
        purpose: Purpose,
        seen_before: &Seen,
        event: &Event,
        by: &str,
    ) -> Result<Advanced> {
        let before = &seen_before.loaded;
        Ok(match self.change_unmoved(purpose, before, event, by).await? {
            Moved::Done(loaded) | Moved::Overtaken(loaded) => Advanced::Done(seen(loaded)),
            Moved::Rejected(_, now) if now.task.write_id != before.task.write_id => {
                Advanced::Changed(seen(now))
            }
            Moved::Rejected(rejected, now) => Advanced::Refused(rejected, seen(now)),
            Moved::Missing => Advanced::Missing,
        })
    }

    /// Puts in a task in its first revision, whose id and write id its maker has chosen; only its shard is this queue's to
    /// say. A failure leaves at most a pointer to nothing: the call may be repeated at any time, and gives up nothing for
    /// good, unlike a submit, whose caller is told how it ended.
    pub async fn create(&self, purpose: Purpose, task: Task) -> Result<Created> {
        self.create_when(purpose, task, When::Absent).await
    }

    /// The same in the place of the mark that its submit was given up, if that still stands as it was seen. Whoever finds a
    /// pointer to nothing after the grace puts that mark there, as when a link has failed between the two puts of
    /// [`Self::create`] for longer than that; nobody was told that the submit has failed, so it may still succeed. It is a
    /// later revision with a pointer of its own, so that a removal of the old one, which may be under way, takes nothing
    /// away from it.
    pub async fn create_over(&self, purpose: Purpose, mark: &Seen, task: Task) -> Result<Created> {
        if !mark.task().is_tombstone() || mark.task().id != task.id {
            return Err(Error::invalid(format!("there is a task at {}", mark.task().id)));
        }
        let task = Task { rev: mark.task().rev + 1, ..task };
        self.create_when(purpose, task, When::Unchanged(mark.loaded.version.clone())).await
    }

    async fn create_when(&self, purpose: Purpose, task: Task, when: When) -> Result<Created> {
        if task.status() != Status::Pending {
            return Err(Error::invalid(format!("task {} is {}, not new", task.id, task.status())));
        }
        self.may(Intent::Change).await?;
        let started = self.client.host().instant();
        let task = Task { shard: self.shard_len().shard_of(&task.id), ..task };
        let entry =
            task.entry().ok_or_else(|| Error::new(Kind::Internal, "a new task calls for an entry"))?;
        self.put_entry(purpose, &entry).await?;
        self.still_may(Intent::Change)?;
        if self.has_slept(started) {
            // The entry may have been swept, and with it what would lead to the task.
            let message = format!("this process has slept before it could put task {}; try again", task.id);
            return Err(Error::new(Kind::Unavailable, message));
        }
        let created = self.put_created(purpose, &task, &when).await?;
        // What took longer than the layout could be trusted may stand where nobody looks any more.
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
        let put = self.client.put_knowing(purpose, key, body.clone(), when, &ours).await?;
        let object = match put {
            Put::Written(version) => {
                return Ok(Created::Done(seen(Loaded { task: task.clone(), version, body })));
            }
            Put::Overtaken(object) | Put::Lost(Some(object)) => object,
            Put::Lost(None) => return Ok(Created::Exists(None)),
        };
        let loaded = match Place::read(key, object)? {
            Place::Here(loaded) => Some(loaded),
            Place::Elsewhere(mark) => self.load_marked(purpose, mark).await?,
        };
        Ok(match loaded {
            Some(loaded) if loaded.task.has_write(&task.write_id) => Created::Done(seen(loaded)),
            loaded => Created::Exists(loaded.map(seen)),
        })
    }
}

fn seen(loaded: Loaded) -> Seen {
    Seen { loaded }
}
