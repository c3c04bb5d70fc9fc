//! Putting tasks in: pointer first (rule 3 of the index).
//!
//! ```text
//!   ready entry ──▶ task, on condition absent ──▶ acknowledged
//! ```
//!
//! A producer that dies between the two leaves an entry without a task, which is swept after the grace. A submit whose
//! outcome stays unknown puts a tombstone at its own id: either that succeeds, and the task can never appear any more;
//! or it is refused, and the read shows whether the task is there. Only when even that gets no answer is the caller
//! told `outcome unknown`, with the id.
//!
//! Requests: 2 puts; with an idempotency key 1 more.

use bytes::Bytes;
use futures::{Stream, StreamExt};
use leasehold_core::moved::{self, Mark, Stored};
use leasehold_core::{Error, Kind, NewTask, Result, Task, TaskId, record};
use leasehold_store::host::Instant;
use leasehold_store::{HostExt, Purpose, Put, When};

use crate::connect::Queue;
use crate::layout::Intent;
use crate::unique::{Reserved, UniqueKey};

/// How many submits of [`Queue::submit_many`] are under way at once.
pub const SUBMITS_AT_ONCE: usize = 32;

/// A task that was accepted.
#[derive(Debug, Clone, PartialEq)]
pub struct Submitted {
    /// Its id.
    pub id: TaskId,
    /// False if a task with the same idempotency key was there already.
    pub is_new: bool,
}

impl Queue {
    /// Submits a task. Once this returns, the task survives the crash of any process (promise P1).
    pub async fn submit(&self, order: NewTask) -> Result<Submitted> {
        self.submit_as(order, None).await
    }

    /// Submits a task only once under a key.
    pub async fn submit_once(&self, order: NewTask, key: UniqueKey) -> Result<Submitted> {
        self.submit_as(order, Some(key)).await
    }

    async fn submit_as(&self, mut order: NewTask, key: Option<UniqueKey>) -> Result<Submitted> {
        let key = key.or_else(|| order.idempotency_key.take().map(UniqueKey::new));
        order.idempotency_key = key.as_ref().map(|key| key.key.clone());
        order.check(self.now()?.earliest)?;
        self.may(Intent::Change).await?;
        let started = self.client.host().instant();
        let fresh = TaskId::from_random(self.client.host().random_bits());
        let Some(key) = key else {
            self.write_task(fresh, order, started).await?;
            return Ok(Submitted { id: fresh, is_new: true });
        };
        match self.reserve(&key, fresh, &order).await? {
            Reserved::Ours => {
                self.write_task(fresh, order, started).await?;
                Ok(Submitted { id: fresh, is_new: true })
            }
            Reserved::Exists(id) => Ok(Submitted { id, is_new: false }),
            // Its producer may have died in between, or may just be slow: whoever comes first creates it.
            Reserved::Unfinished(id) => {
                let is_new = self.write_task(id, order, started).await?;
                Ok(Submitted { id, is_new })
            }
        }
    }

    /// Submits many tasks, several at once; the results come in the order of the tasks.
    pub fn submit_many<'a>(
        &'a self,
        orders: impl Stream<Item = (NewTask, Option<UniqueKey>)> + Send + 'a,
    ) -> impl Stream<Item = Result<Submitted>> + Send + 'a {
        orders.map(|(order, key)| self.submit_as(order, key)).buffered(SUBMITS_AT_ONCE)
    }

    /// Writes the entry and the task; false if the task was there already. `started` is when this submit began.
    async fn write_task(&self, id: TaskId, order: NewTask, started: Instant) -> Result<bool> {
        let task = order.submitted(id, self.shard_len().shard_of(&id), &self.act()?);
        let entry =
            task.entry().ok_or_else(|| Error::new(Kind::Internal, "a new task calls for an entry"))?;
        self.put_entry(Purpose::Submit, &entry).await.map_err(|error| {
            // Whether the entry is there or not: without its task it means nothing.
            Error::new(error.kind(), format!("task {id} was not submitted: {error}")).because(error)
        })?;
        let is_new = self.put_task(&task, started).await?;
        // What took longer than the layout could be trusted may stand where nobody looks any more.
        self.still_agreed().await.map_err(|error| unknown(&task, error))?;
        if self.has_slept(started) {
            // The put was on its way for so long that the entry may have been swept. It is written again before the
            // task counts as submitted.
            let put = self.put_entry(Purpose::Submit, &entry).await;
            put.map_err(|error| unknown(&task, error))?;
        }
        self.ring();
        Ok(is_new)
    }

    async fn put_task(&self, task: &Task, started: Instant) -> Result<bool> {
        let key = self.task_key(&task.id);
        let body = Bytes::from(record::write(task));
        let write_id = task.write_id.clone();
        let ours = |found: &[u8]| moved::has_write(&key, found, &write_id);
        if self.has_slept(started) {
            let error = Error::new(Kind::Unavailable, "this process has slept in the middle of the submit");
            return self.fence_own(task, &key, &ours, error).await;
        }
        let mut in_doubt = false;
        loop {
            if let Err(error) = self.may(Intent::Change).await {
                return Err(if in_doubt { unknown(task, error) } else { error });
            }
            let put =
                self.client.put_knowing(Purpose::Submit, &key, body.clone(), &When::Absent, &ours).await;
            match put {
                Ok(Put::Written(_) | Put::Overtaken(_)) => return Ok(true),
                Ok(Put::Lost(found)) => {
                    return stands_already(&key, found.as_ref().map(|o| &o.body[..]));
                }
                // Once a try may still land, no later one that surely failed takes that back.
                Err(error) if !in_doubt && !error.outcome_is_unknown() => return Err(error),
                Err(error) => {
                    in_doubt = true;
                    let tried = self.client.host().instant().since(started);
                    if tried >= self.options.submit_wait || error.kind() != Kind::Unavailable {
                        return self.fence_own(task, &key, &ours, error).await;
                    }
                }
            }
        }
    }

    /// Whether so much time has passed that others may have given up this submit: swept its entry, put a tombstone at
    /// its id, even purged that. The boot clock counts the time in which a machine was asleep.
    fn has_slept(&self, started: Instant) -> bool {
        self.client.host().instant().since(started) > self.options.ahead_grace
    }

    /// Makes sure that the submit can not succeed any more, or finds that it has.
    async fn fence_own(
        &self,
        task: &Task,
        key: &str,
        ours: leasehold_store::client::Ours<'_>,
        error: Error,
    ) -> Result<bool> {
        self.may(Intent::Change).await.map_err(|error| unknown(task, error))?;
        let tombstone = Task::tombstone(task.id, task.shard.clone(), "submit abandoned", &self.act()?);
        let body = Bytes::from(record::write(&tombstone));
        match self.client.put(Purpose::Submit, key, body, &When::Absent).await {
            Ok(Put::Written(_) | Put::Overtaken(_)) => {
                // A tombstone that took so long may not be what fences this id.
                self.still_agreed().await.map_err(|error| unknown(task, error))?;
                Err(Error::new(Kind::Unavailable, format!("task {} was not submitted", task.id))
                    .because(error))
            }
            Ok(Put::Lost(Some(object))) if ours(&object.body) => Ok(true),
            Ok(Put::Lost(found)) => stands_already(key, found.as_ref().map(|o| &o.body[..])),
            Err(error) => Err(unknown(task, error)),
        }
    }
}

fn unknown(task: &Task, error: Error) -> Error {
    let message = format!("outcome unknown: task {} may or may not run", task.id);
    Error::new(Kind::Unavailable, message).with_unknown_outcome().because(error)
}

/// Something stands at the id: the task, put there by whoever shares the key, or a tombstone.
fn stands_already(key: &str, found: Option<&[u8]>) -> Result<bool> {
    let (Stored::Task(task) | Stored::Moved(Mark { task })) = moved::read(key, found.unwrap_or_default())?;
    if task.is_tombstone() {
        let message =
            format!("the submit of task {} took so long that it was fenced off; submit again", task.id);
        return Err(Error::new(Kind::Lost, message));
    }
    Ok(false)
}
