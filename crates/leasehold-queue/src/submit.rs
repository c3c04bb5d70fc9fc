//! Submitting tasks: index entry first, then the task (rule 3 of the index).
//!
//! A submit writes the ready entry, then creates the task on condition that no object has its key, and is
//! acknowledged when both are in the store. From then on the task survives the crash of any process (promise P1).
//!
//! ```text
//!   ready entry ──▶ task, on condition absent ──▶ acknowledged
//! ```
//!
//! With direct dispatch the entry is a pointer in the inbox of one worker ([`crate::inbox`]).
//!
//! A producer that dies between the two writes leaves an entry without a task, which index cleanup removes after a
//! grace period. A submit whose outcome stays unknown puts a tombstone at its own id. If that succeeds, the task can
//! no longer appear; if it is refused, the read shows whether the task exists. Only if this gets no answer either
//! does the caller get the error `outcome unknown`, with the id.
//!
//! Requests: 2 puts, 1 more with an idempotency key, and at most 1 more per second for the bell.

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{Stream, StreamExt, stream};
use leasehold_core::moved::{self, ForwardingMarker, Stored};
use leasehold_core::new_task::Start;
use leasehold_core::{
    ArtifactId, Error, IndexLocation, Kind, Name, NewTask, Priority, Result, RetryPolicy, Status, StoreTime,
    Task, TaskId, record,
};
use leasehold_store::host::Instant;
use leasehold_store::{HostExt, Purpose, PutOutcome, When};
use serde::Serialize;
use std::future::IntoFuture;
use std::time::Duration;
use tracing::Instrument;

use crate::connect::Queue;
use crate::layout::Intent;
use crate::operate::Operated;
use crate::unique::{Reserved, UniqueKey};

/// Number of concurrent submits of [`Queue::submit_many`].
pub const SUBMITS_AT_ONCE: usize = 32;

/// Result of a submit.
#[derive(Debug, Clone, PartialEq)]
pub struct Submitted {
    /// Id of the task.
    pub id: TaskId,
    /// False if a task with this idempotency key existed already.
    pub is_new: bool,
    /// Status of the existing task.
    pub existing: Option<Status>,
    /// True if the existing task was retried ([`UniqueKey::retry_failed`]).
    pub is_retried: bool,
}

impl Submitted {
    fn new(id: TaskId, is_new: bool) -> Self {
        Self { id, is_new, existing: None, is_retried: false }
    }
}

/// A task to be submitted: set its options, then await it.
#[derive(Debug)]
#[must_use = "nothing is submitted until this is awaited"]
pub struct Submit<'a> {
    queue: &'a Queue,
    /// The first invalid option is reported when this is awaited, so that calls can be chained.
    order: Result<NewTask>,
    key: Option<UniqueKey>,
}

impl Submit<'_> {
    /// Starts the task after a delay.
    pub fn delay(self, delay: Duration) -> Self {
        self.with(|order| order.start = Start::After(delay))
    }

    /// Starts the task at this time of the store.
    pub fn at(self, at: StoreTime) -> Self {
        self.with(|order| order.start = Start::At(at))
    }

    /// Submits the task only once under this idempotency key. Text is a key for the whole queue with a lifetime of a
    /// day; use a [`UniqueKey`] for another scope or lifetime.
    pub fn key(self, key: impl Into<UniqueKey>) -> Self {
        Self { key: Some(key.into()), ..self }
    }

    /// Maximum number of attempts.
    pub fn max_attempts(self, attempts: u32) -> Self {
        self.with(|order| order.max_attempts = attempts)
    }

    /// Pauses between attempts.
    pub fn retry_policy(self, policy: RetryPolicy) -> Self {
        self.with(|order| order.retry_policy = policy)
    }

    /// Time limit of one run of the handler, rounded up to whole seconds.
    pub fn timeout(self, timeout: Duration) -> Self {
        let secs = timeout.as_secs().saturating_add(u64::from(timeout.subsec_nanos() > 0));
        self.with(|order| order.timeout_secs = Some(secs))
    }

    /// Lets the task expire if it has not started within this time of its submission.
    pub fn expires_in(self, after: Duration) -> Self {
        self.with(|order| order.expires_in = Some(after))
    }

    /// Priority among the tasks of one minute, 0 to 9, 9 first. The default is 5.
    pub fn priority(self, priority: u8) -> Self {
        let prioritised = |order| Ok(NewTask { priority: Priority::new(priority)?, ..order });
        Self { order: self.order.and_then(prioritised), ..self }
    }

    /// Adds a tag, by which tasks can be listed. Can be called several times.
    pub fn tag(self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.with(|order| drop(order.tags.insert(name.into(), value.into())))
    }

    /// Fetches an artifact before the handler runs, which finds the file under this name. Can be called several
    /// times.
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

    /// Submits the task. Once this returns, it survives the crash of any process (promise P1).
    fn into_future(self) -> Self::IntoFuture {
        let submit = async move { self.queue.submit_as(self.order?, self.key).await };
        Box::pin(submit.instrument(tracing::debug_span!("submit")))
    }
}

impl Queue {
    /// Submits a task of this type. The input is any value that serializes to JSON.
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

    /// Submits a task from a complete [`NewTask`].
    pub fn submit_task(&self, order: NewTask) -> Submit<'_> {
        Submit { queue: self, order: Ok(order), key: None }
    }

    async fn submit_as(&self, mut order: NewTask, key: Option<UniqueKey>) -> Result<Submitted> {
        let key = key.or_else(|| order.idempotency_key.take().map(UniqueKey::new));
        order.idempotency_key = key.as_ref().map(|key| key.key.clone());
        order.check(self.now()?.earliest)?;
        self.ensure_allowed(Intent::Change).await?;
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
                // Rejected if another producer has retried it first, which has the same effect.
                let is_retried =
                    is_dead && key.retry_failed && matches!(self.retry(&id).await?, Operated::Done(_));
                Ok(Submitted { existing: Some(status), is_retried, ..Submitted::new(id, false) })
            }
            // Its producer may have died between the two writes, or may just be slow: the first to write creates the
            // task.
            Reserved::Unfinished(id) => {
                let is_new = self.write_task(id, order, started, OwnId::No).await?;
                Ok(Submitted::new(id, is_new))
            }
        }
    }

    /// Submits many tasks concurrently. The results are in the order of the tasks.
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

    /// Writes the entry and the task; false if the task existed already. `started` is when this submit began.
    async fn write_task(&self, id: TaskId, order: NewTask, started: Instant, own_id: OwnId) -> Result<bool> {
        let task = order.submitted(id, self.shard_len().shard_of(&id), &self.act()?);
        let called_for =
            task.entry().ok_or_else(|| Error::new(Kind::Internal, "a new task has no index entry"))?;
        let inbox = self.inbox_for(&task).await;
        let entry = match &inbox {
            Some(worker) => called_for.moved(IndexLocation::Inbox(worker.clone())),
            None => called_for.clone(),
        };
        // If this fails the entry may exist, which is harmless without its task.
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
        // A write that took longer than the layout can be trusted may have been applied at an outdated key.
        self.still_agreed().await.map_err(|error| unknown(&task, error))?;
        if self.has_slept(started) {
            // The put took so long that the entry may have been removed meanwhile. It is written again before the
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
            let error = Error::new(Kind::Unavailable, "this process was suspended during the submit");
            return self.fence_own(task, &key, &ours, error).await.map_err(NotPut::Perhaps);
        }
        let mut in_doubt = false;
        loop {
            if let Err(error) = self.ensure_allowed(Intent::Change).await {
                return Err(if in_doubt {
                    NotPut::Perhaps(unknown(task, error))
                } else {
                    NotPut::Surely(error)
                });
            }
            let put = self.client.put_if(Purpose::Submit, &key, body.clone(), &When::Absent, &ours).await;
            match put {
                Ok(PutOutcome::Written(_) | PutOutcome::Overtaken(_)) => return Ok(true),
                Ok(PutOutcome::Lost(found)) => {
                    let found = found.as_ref().map(|o| &o.body[..]);
                    return stands_already(&key, found).map_err(NotPut::Perhaps);
                }
                // Once an earlier attempt may still be applied, a later definite failure does not make the outcome
                // known.
                Err(error) if !in_doubt && !error.outcome_is_unknown() => {
                    // An internal error may have happened after the write.
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

    /// True if so much time has passed since `started` that other clients may have given up this submit: removed its
    /// entry, put a tombstone at its id, or even purged that. The boot clock includes the time in which a machine was
    /// suspended.
    pub(crate) fn has_slept(&self, started: Instant) -> bool {
        self.client.host().instant().since(started) > self.config.ahead_grace
    }

    /// Puts a tombstone at the id, so that the submit can no longer succeed, or finds that it has succeeded.
    async fn fence_own(
        &self,
        task: &Task,
        key: &str,
        ours: leasehold_store::client::IsOurWrite<'_>,
        error: Error,
    ) -> Result<bool> {
        self.ensure_allowed(Intent::Change).await.map_err(|error| unknown(task, error))?;
        let tombstone = Task::tombstone(task.id, task.shard.clone(), "submit abandoned", &self.act()?);
        let body = Bytes::from(record::write(&tombstone));
        match self.client.put(Purpose::Submit, key, body, &When::Absent).await {
            Ok(PutOutcome::Written(_) | PutOutcome::Overtaken(_)) => {
                // A tombstone that took so long may be at an outdated key, where it does not fence this id.
                self.still_agreed().await.map_err(|error| unknown(task, error))?;
                Err(Error::new(Kind::Unavailable, format!("task {} was not submitted", task.id))
                    .because(error))
            }
            Ok(PutOutcome::Lost(Some(object))) if ours(&object.body) => Ok(true),
            Ok(PutOutcome::Lost(found)) => stands_already(key, found.as_ref().map(|o| &o.body[..])),
            Err(error) => Err(unknown(task, error)),
        }
    }
}

/// Visibility of the id of a task that is being submitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OwnId {
    /// Private to this submit: the id is random and was not shared. If no attempt has an unknown outcome, the record
    /// will never be written, because no other client writes it. Its entry can then never become valid, and is
    /// removed without a fence.
    Yes,
    /// Shared with other producers through the idempotency key: one may be completing the same task, with the same
    /// entry.
    No,
}

/// Failure to write the record of a task.
enum NotPut {
    /// Definitely not written, now or later.
    Surely(Error),
    /// Possibly written, or another object has the key: see the error.
    Perhaps(Error),
}

fn not_submitted(id: &TaskId, error: Error) -> Error {
    let mapped = Error::new(error.kind(), format!("task {id} was not submitted: {error}"));
    let mapped = if let Some(matter) = error.matter() { mapped.about(matter) } else { mapped };
    mapped.because(error)
}

fn unknown(task: &Task, error: Error) -> Error {
    let message = format!("outcome unknown: task {} may or may not run", task.id);
    Error::new(Kind::Unavailable, message).with_unknown_outcome().because(error)
}

/// Handles an existing object at the id: the task, written by a producer with the same key, or a tombstone.
fn stands_already(key: &str, found: Option<&[u8]>) -> Result<bool> {
    let (Stored::Task(task) | Stored::Moved(ForwardingMarker { task })) =
        moved::read(key, found.unwrap_or_default())?;
    if task.is_tombstone() {
        let message = format!("submit of task {} took too long and was abandoned; submit again", task.id);
        return Err(Error::new(Kind::Lost, message));
    }
    Ok(false)
}
