//! Putting tasks in: pointer first (rule 3 of the index).
//!
//! ```text
//!   ready entry ──▶ task, on condition absent ──▶ acknowledged
//! ```
//!
//! With direct dispatch the entry is a pointer in the inbox of one worker ([`crate::inbox`]).
//!
//! A producer that dies between the two leaves an entry without a task, which is swept after the grace. A submit whose
//! outcome stays unknown puts a tombstone at its own id: either that succeeds, and the task can never appear any more;
//! or it is refused, and the read shows whether the task is there. Only when even that gets no answer is the caller
//! told `outcome unknown`, with the id.
//!
//! Requests: 2 puts; with an idempotency key 1 more.

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{Stream, StreamExt, stream};
use leasehold_core::moved::{self, Mark, Stored};
use leasehold_core::new_task::Start;
use leasehold_core::{
    ArtifactId, Error, Kind, Name, NewTask, Priority, Result, RetryPolicy, Status, StoreTime, Task, TaskId,
    Where, record,
};
use leasehold_store::host::Instant;
use leasehold_store::{HostExt, Purpose, Put, When};
use serde::Serialize;
use std::future::IntoFuture;
use std::time::Duration;
use tracing::Instrument;

use crate::connect::Queue;
use crate::layout::Intent;
use crate::operate::Operated;
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
    /// The status in which that task was found.
    pub existing: Option<Status>,
    /// Whether it was retried ([`UniqueKey::retry_failed`]).
    pub is_retried: bool,
}

impl Submitted {
    fn new(id: TaskId, is_new: bool) -> Self {
        Self { id, is_new, existing: None, is_retried: false }
    }
}

/// A task on its way into a queue: say what is special about it, then await it.
#[derive(Debug)]
#[must_use = "nothing is submitted until this is awaited"]
pub struct Submit<'a> {
    queue: &'a Queue,
    /// The first mistake is told when it is awaited, so that the calls can be chained.
    order: Result<NewTask>,
    key: Option<UniqueKey>,
}

impl Submit<'_> {
    /// Starts it after a while.
    pub fn delay(self, delay: Duration) -> Self {
        self.with(|order| order.start = Start::After(delay))
    }

    /// Starts it at this moment of the store's time.
    pub fn at(self, at: StoreTime) -> Self {
        self.with(|order| order.start = Start::At(at))
    }

    /// Submits it only once under this key: text is a key for the whole queue and a day, a [`UniqueKey`] says otherwise.
    pub fn key(self, key: impl Into<UniqueKey>) -> Self {
        Self { key: Some(key.into()), ..self }
    }

    /// How many attempts it has.
    pub fn max_attempts(self, attempts: u32) -> Self {
        self.with(|order| order.max_attempts = attempts)
    }

    /// How long to wait between attempts.
    pub fn retry_policy(self, policy: RetryPolicy) -> Self {
        self.with(|order| order.retry_policy = policy)
    }

    /// How long one run of the handler may take, in whole seconds; a part of one counts as one.
    pub fn timeout(self, timeout: Duration) -> Self {
        let secs = timeout.as_secs().saturating_add(u64::from(timeout.subsec_nanos() > 0));
        self.with(|order| order.timeout_secs = Some(secs))
    }

    /// So long after its submission it is not worth starting any more.
    pub fn expires_in(self, after: Duration) -> Self {
        self.with(|order| order.expires_in = Some(after))
    }

    /// Which of the tasks of one minute goes first: 0 to 9, 9 first, 5 by default.
    pub fn priority(self, priority: u8) -> Self {
        let prioritised = |order| Ok(NewTask { priority: Priority::new(priority)?, ..order });
        Self { order: self.order.and_then(prioritised), ..self }
    }

    /// For finding it; can be called several times.
    pub fn tag(self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.with(|order| drop(order.tags.insert(name.into(), value.into())))
    }

    /// Brings a file to the worker before the handler runs, which finds it under this name; can be called several times.
    pub fn artifact(self, name: &str, artifact: ArtifactId) -> Self {
        let given = |mut order: NewTask| {
            order.artifacts.insert(Name::checked("name of an artifact", name)?, artifact);
            Ok(order)
        };
        Self { order: self.order.and_then(given), ..self }
    }

    fn with(mut self, change: impl FnOnce(&mut NewTask)) -> Self {
        if let Ok(order) = &mut self.order {
            change(order);
        }
        self
    }
}

impl<'a> IntoFuture for Submit<'a> {
    type Output = Result<Submitted>;
    type IntoFuture = BoxFuture<'a, Result<Submitted>>;

    /// Submits it. Once this returns, the task survives the crash of any process (promise P1).
    fn into_future(self) -> Self::IntoFuture {
        let submit = async move { self.queue.submit_as(self.order?, self.key).await };
        Box::pin(submit.instrument(tracing::debug_span!("submit")))
    }
}

impl Queue {
    /// Submits a task of this type with this input, which is anything that can be written as JSON.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold_core::Result<()> {
    /// use leasehold_queue::Queue;
    /// use serde_json::json;
    /// use std::time::Duration;
    ///
    /// let queue = Queue::connect("memory://").await?;
    /// let resize = || queue.submit("resize", json!({"url": "a.png"})).delay(Duration::from_secs(5)).key("img-1");
    /// let submitted = resize().await?;
    /// assert!(submitted.is_new);
    /// assert_eq!(resize().await?.id, submitted.id);
    /// # Ok(())
    /// # }
    /// ```
    pub fn submit(&self, task_type: &str, input: impl Serialize) -> Submit<'_> {
        let input = serde_json::to_value(input)
            .map_err(|error| Error::invalid("the input cannot be written as JSON").because(error));
        let order = input.and_then(|input| NewTask::new(task_type, input));
        Submit { queue: self, order, key: None }
    }

    /// Submits a task that was put together before.
    pub fn submit_task(&self, order: NewTask) -> Submit<'_> {
        Submit { queue: self, order: Ok(order), key: None }
    }

    async fn submit_as(&self, mut order: NewTask, key: Option<UniqueKey>) -> Result<Submitted> {
        let key = key.or_else(|| order.idempotency_key.take().map(UniqueKey::new));
        order.idempotency_key = key.as_ref().map(|key| key.key.clone());
        order.check(self.now()?.earliest)?;
        self.may(Intent::Change).await?;
        let started = self.client.host().instant();
        let fresh = TaskId::from_random(self.client.host().random_bits());
        let Some(key) = key else {
            self.write_task(fresh, order, started, OwnId::Yes).await?;
            return Ok(Submitted::new(fresh, true));
        };
        match self.reserve(&key, fresh, &order).await? {
            Reserved::Ours => {
                self.write_task(fresh, order, started, OwnId::No).await?;
                Ok(Submitted::new(fresh, true))
            }
            Reserved::Exists(id, status) => {
                let is_dead = matches!(status, Status::Failed | Status::Expired);
                // Refused if another producer was faster: then it is retried all the same.
                let is_retried =
                    is_dead && key.retry_failed && matches!(self.retry(&id).await?, Operated::Done(_));
                Ok(Submitted { existing: Some(status), is_retried, ..Submitted::new(id, false) })
            }
            // Its producer may have died in between, or may just be slow: whoever comes first creates it.
            Reserved::Unfinished(id) => {
                let is_new = self.write_task(id, order, started, OwnId::No).await?;
                Ok(Submitted::new(id, is_new))
            }
        }
    }

    /// Submits many tasks, several at once; the results come in the order of the tasks.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold_core::Result<()> {
    /// use futures::TryStreamExt;
    /// use leasehold_queue::Queue;
    ///
    /// let queue = Queue::connect("memory://").await?;
    /// let numbers = (0..100).map(|number| queue.submit("count", number).key(format!("number {number}")));
    /// let submitted: Vec<_> = queue.submit_many(numbers).try_collect().await?;
    /// assert_eq!(submitted.len(), 100);
    /// # Ok(())
    /// # }
    /// ```
    pub fn submit_many<'a>(
        &'a self,
        submits: impl IntoIterator<Item = Submit<'a>, IntoIter: Send + 'a>,
    ) -> impl Stream<Item = Result<Submitted>> + Send + 'a {
        let here = |submit| Submit { queue: self, ..submit }.into_future();
        stream::iter(submits).map(here).buffered(SUBMITS_AT_ONCE)
    }

    /// Writes the entry and the task; false if the task was there already. `started` is when this submit began.
    async fn write_task(&self, id: TaskId, order: NewTask, started: Instant, own_id: OwnId) -> Result<bool> {
        let task = order.submitted(id, self.shard_len().shard_of(&id), &self.act()?);
        let called_for =
            task.entry().ok_or_else(|| Error::new(Kind::Internal, "a new task calls for an entry"))?;
        let inbox = self.inbox_for(&task).await;
        let entry = match &inbox {
            Some(worker) => called_for.moved(Where::Inbox(worker.clone())),
            None => called_for.clone(),
        };
        // Whether the entry is there or not: without its task it means nothing.
        let put = self.put_entry(Purpose::Submit, &entry).await;
        put.map_err(|error| not_submitted(&id, error))?;
        let is_new = match self.put_task(&task, started).await {
            Ok(is_new) => is_new,
            Err(NotPut::Surely(error)) => {
                if own_id == OwnId::Yes {
                    self.remove_entry(Purpose::Submit, &entry).await;
                }
                return Err(not_submitted(&id, error));
            }
            Err(NotPut::Perhaps(error)) => return Err(error),
        };
        // What took longer than the layout could be trusted may stand where nobody looks any more.
        self.still_agreed().await.map_err(|error| unknown(&task, error))?;
        if self.has_slept(started) {
            // The put was on its way for so long that the entry may have been swept. It is written again before the
            // task counts as submitted.
            let put = self.put_entry(Purpose::Submit, &called_for).await;
            put.map_err(|error| unknown(&task, error))?;
            self.ring(Purpose::Submit).await;
            return Ok(is_new);
        }
        match &inbox {
            Some(worker) => self.ring_inbox(Purpose::Submit, worker).await,
            None => self.ring(Purpose::Submit).await,
        }
        Ok(is_new)
    }

    async fn put_task(&self, task: &Task, started: Instant) -> Result<bool, NotPut> {
        let key = self.task_key(&task.id);
        let body = Bytes::from(record::write(task));
        let write_id = task.write_id.clone();
        let ours = |found: &[u8]| moved::has_write(&key, found, &write_id);
        if self.has_slept(started) {
            let error = Error::new(Kind::Unavailable, "this process has slept in the middle of the submit");
            return self.fence_own(task, &key, &ours, error).await.map_err(NotPut::Perhaps);
        }
        let mut in_doubt = false;
        loop {
            if let Err(error) = self.may(Intent::Change).await {
                return Err(if in_doubt {
                    NotPut::Perhaps(unknown(task, error))
                } else {
                    NotPut::Surely(error)
                });
            }
            let put =
                self.client.put_knowing(Purpose::Submit, &key, body.clone(), &When::Absent, &ours).await;
            match put {
                Ok(Put::Written(_) | Put::Overtaken(_)) => return Ok(true),
                Ok(Put::Lost(found)) => {
                    let found = found.as_ref().map(|o| &o.body[..]);
                    return stands_already(&key, found).map_err(NotPut::Perhaps);
                }
                // Once a try may still land, no later one that surely failed takes that back.
                Err(error) if !in_doubt && !error.outcome_is_unknown() => {
                    // A bug of ours may have struck after the write.
                    let is_sure = error.kind() != Kind::Internal;
                    return Err(if is_sure { NotPut::Surely(error) } else { NotPut::Perhaps(error) });
                }
                Err(error) => {
                    in_doubt = true;
                    let tried = self.client.host().instant().since(started);
                    if tried >= self.config.submit_wait || error.kind() != Kind::Unavailable {
                        return self.fence_own(task, &key, &ours, error).await.map_err(NotPut::Perhaps);
                    }
                }
            }
        }
    }

    /// Whether so much time has passed that others may have given up this submit: swept its entry, put a tombstone at
    /// its id, even purged that. The boot clock counts the time in which a machine was asleep.
    pub(crate) fn has_slept(&self, started: Instant) -> bool {
        self.client.host().instant().since(started) > self.config.ahead_grace
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

/// Who may know the id of a task that is being submitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OwnId {
    /// Nobody else: it is random and was not told to anyone. If the record surely was not written, it never will be, because no
    /// try is in doubt and nobody sends another one. Its entry can then never become true, and needs no fence to be removed.
    Yes,
    /// Other producers, by the idempotency key: one may be completing the same task at this moment, with the same entry.
    No,
}

/// Why the record of a task is not known to be written.
enum NotPut {
    /// It was not, and never will be.
    Surely(Error),
    /// Something else is the case, or may be: the error tells.
    Perhaps(Error),
}

fn not_submitted(id: &TaskId, error: Error) -> Error {
    let told = Error::new(error.kind(), format!("task {id} was not submitted: {error}"));
    let told = if let Some(matter) = error.matter() { told.about(matter) } else { told };
    told.because(error)
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
