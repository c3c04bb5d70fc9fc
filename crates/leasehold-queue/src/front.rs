//! The front of a queue: what applications, the command line, Python and the dashboard call, for every layout.
//!
//! A *layout* decides where the tasks are kept and how they are changed. `queue.json` names the layout of a queue:
//!
//! | layout | tasks are | implemented by |
//! | --- | --- | --- |
//! | `objects`, the default in a bucket | objects of a bucket or a folder | [`ObjectQueue`] |
//! | `journal`, the default in a folder of one host | records of a log, written by one process for all | [`JournalQueue`] |
//! | outpost, without a `queue.json` | files of one node, synced with a bucket | `Spool` of `leasehold-outpost` |
//!
//! [`Queue`] dereferences to its [`QueueLayout`] and adds what all layouts share: the options of a submit ([`Submit`])
//! and the loop that waits for a task. Shards, leases, quarantine and migration, which only the layout `objects` has, are
//! reached by [`QueueLayout::objects`]. The requests of an operation are those of its layout.

mod builder;
mod objects;

pub use builder::{SUBMITS_AT_ONCE, Submit, Submitted};

use futures::future::{BoxFuture, ready};
use futures::stream::BoxStream;
use futures::{Stream, StreamExt, TryStreamExt, stream};
/// A task with its state, its history and the reservation of its idempotency key, as it is exported and imported.
pub use leasehold_core::journal::JournalTask as ExportedTask;
use leasehold_core::new_task::check_time;
use leasehold_core::task::Change;
use leasehold_core::{
    Error, Event, Kind, NewTask, Now, Reason, Result, StoreTime, Task, TaskId, TaskIdPrefix,
};
use leasehold_store::{Client, Host, Version};
use serde::Serialize;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use crate::check::Checked;
use crate::connect::{ObjectQueue, QueueConfig, QueueLocation};
use crate::create::restored;
use crate::inspect::{Filter, ListedTask, Stats};
use crate::journal::JournalQueue;
use crate::meta::{LayoutName, QueueMeta, open_meta};
use crate::purge::{Purged, PurgedAll, Retention};
use crate::source::TaskSourceFactory;
use crate::tasks::{TaskSnapshot, Transition};
use crate::unique::UniqueKey;

/// Pauses between two reads of a task that is waited for.
const WAIT_MIN: Duration = Duration::from_millis(100);
const WAIT_MAX: Duration = Duration::from_secs(5);

/// A layout of a queue. A default that calls [`objects_for`](Self::objects_for) returns the
/// [`unsupported`](Self::unsupported) error in layouts that do not override it; the other defaults work in every layout.
pub trait QueueLayout: fmt::Debug + Send + Sync + 'static {
    /// Location of the tasks, for messages.
    fn describe(&self) -> String;

    /// Clock, random numbers and spawned tasks of this process.
    fn host(&self) -> &Arc<dyn Host>;

    /// Current time by the clock that stamps the tasks.
    fn now(&self) -> Result<Now>;

    /// Error for an operation that this layout does not have; says what to use instead.
    fn unsupported(&self, operation: &str) -> Error {
        Error::invalid(format!("the queue at {} cannot {operation}", self.describe()))
    }

    /// Submits a task; `key` is its idempotency key, which the task has, too.
    fn submit_once(&self, new_task: NewTask, key: Option<UniqueKey>) -> BoxFuture<'_, Result<Submitted>>;

    /// Number of concurrent submits of [`Queue::submit_many`].
    fn submits_at_once(&self) -> usize {
        SUBMITS_AT_ONCE
    }

    /// Reads a task. A task that does not exist is an error with [`Reason::Missing`].
    fn get<'a>(&'a self, id: &'a TaskId) -> BoxFuture<'a, Result<Task>>;

    /// Applies an event of an operator: cancel, retry, reschedule. Only `Done` and `Rejected` are returned.
    fn operate<'a>(&'a self, id: &'a TaskId, event: Event) -> BoxFuture<'a, Result<Transition<Task>>>;

    /// Cancels a task: at once if it is pending; a running one is stopped by its worker at the next renewal.
    fn cancel<'a>(&'a self, id: &'a TaskId) -> BoxFuture<'a, Result<Transition<Task>>> {
        self.operate(id, Event::Cancel)
    }

    /// Retries a task that has failed, was cancelled or has expired.
    fn retry<'a>(&'a self, id: &'a TaskId) -> BoxFuture<'a, Result<Transition<Task>>> {
        self.operate(id, Event::Retry)
    }

    /// Reschedules a pending task.
    fn reschedule<'a>(&'a self, id: &'a TaskId, at: StoreTime) -> BoxFuture<'a, Result<Transition<Task>>> {
        Box::pin(async move {
            check_time("time", at, self.now()?.earliest)?;
            self.operate(id, Event::Reschedule { at }).await
        })
    }

    /// Reads a task again; none if it is unchanged since it was read.
    fn poll<'a>(
        &'a self,
        id: &'a TaskId,
        known: Option<&'a TaskSnapshot>,
    ) -> BoxFuture<'a, Result<Option<TaskSnapshot>>> {
        Box::pin(async move {
            let task = self.get(id).await?;
            let version = Version::new(task.write_id.as_str());
            Ok(Some(TaskSnapshot { task, version }).filter(|read| known != Some(read)))
        })
    }

    /// Waits until a task may have changed since it was read, at most for `pause`.
    fn until_changed<'a>(
        &'a self,
        _id: &'a TaskId,
        _known: Option<&'a TaskSnapshot>,
        pause: Duration,
    ) -> BoxFuture<'a, ()> {
        self.host().sleep(pause)
    }

    /// The queue in the object layout: its shards, leases, index, quarantine and migration.
    fn objects(&self) -> Result<&ObjectQueue> {
        Err(self.unsupported(
            "give access to shards, leases or index entries; only the layout `objects` has them",
        ))
    }

    /// The queue in the journal layout: its broker, and the workers that it knows.
    fn journal(&self) -> Result<&JournalQueue> {
        Err(self.unsupported("give access to a broker, which only the layout `journal` has"))
    }

    /// `queue.json` as it was when this client connected; none in a layout without one.
    fn meta(&self) -> Option<&QueueMeta> {
        None
    }

    /// Opens a task source for each worker; none in the object layout, for which the worker has one of its own.
    fn task_source_factory(&self) -> Option<Arc<dyn TaskSourceFactory>> {
        None
    }

    /// Returns the object queue, or the [`unsupported`](Self::unsupported) error of this operation. For the default
    /// implementations below.
    fn objects_for(&self, operation: &str) -> Result<&ObjectQueue> {
        self.objects().map_err(|_| self.unsupported(operation))
    }

    /// Client of the store, with its request counts.
    fn client(&self) -> Result<&Client> {
        Ok(self.objects_for("give access to a store")?.client())
    }

    /// Finds the only task whose id begins with these characters. No task is read.
    fn find<'a>(&'a self, prefix: &'a TaskIdPrefix) -> BoxFuture<'a, Result<TaskId>> {
        Box::pin(async { self.objects_for("find tasks by a part of their id")?.find(prefix).await })
    }

    /// Lists tasks as they are read. A corrupt object is an item with an error of kind corrupt, and the list continues.
    fn list(&self, filter: Filter) -> BoxStream<'_, Result<Task>> {
        let tasks = self.objects_for("list tasks").map(|objects| objects.list(filter));
        stream::once(ready(tasks)).try_flatten().boxed()
    }

    /// Lists the keys and timestamps of all tasks, without reading them. A caller that caches tasks reads only those whose
    /// timestamp has changed.
    fn list_timestamps(&self) -> BoxStream<'_, Result<ListedTask>> {
        let listed =
            self.objects_for("list tasks by timestamp; use `list`").map(ObjectQueue::list_timestamps);
        stream::once(ready(listed)).try_flatten().boxed()
    }

    /// Reads a listed task; none if it no longer exists, or if it is the forwarding marker of a task that is
    /// also listed at its new key.
    fn read_listed<'a>(&'a self, listed: &'a ListedTask) -> BoxFuture<'a, Result<Option<Task>>> {
        Box::pin(async { self.objects_for("list tasks by timestamp; use `list`")?.read_listed(listed).await })
    }

    /// Applies a retention to one task.
    fn purge<'a>(&'a self, task: &'a Task, retention: &'a Retention) -> BoxFuture<'a, Result<Purged>> {
        Box::pin(async { self.objects_for("purge tasks")?.purge(task, retention).await })
    }

    /// Applies a retention to every task.
    fn purge_all<'a>(&'a self, retention: &'a Retention) -> BoxFuture<'a, Result<PurgedAll>> {
        Box::pin(async { self.objects_for("purge tasks")?.purge_all(retention).await })
    }

    /// Exports all tasks with their state, their history and the reservations of their idempotency keys. Tasks that change
    /// meanwhile may be exported before or after the change.
    fn export(&self) -> BoxStream<'_, Result<ExportedTask>> {
        let tasks = self.objects_for("export tasks").map(ObjectQueue::export);
        stream::once(ready(tasks)).try_flatten().boxed()
    }

    /// Imports a task as it was exported; false if it exists, in which case it is left as it is. A task that was running is
    /// free when its claim has expired. Another task with its id, or with its idempotency key, is an error with
    /// [`Reason::Conflict`].
    fn import(&self, task: ExportedTask) -> BoxFuture<'_, Result<bool>> {
        Box::pin(async { self.objects_for("import tasks")?.import(task).await })
    }

    /// Counts pending and running tasks; in the journal layout, final ones, too.
    fn stats(&self) -> BoxFuture<'_, Result<Stats>> {
        Box::pin(async { self.objects_for("count tasks")?.stats().await })
    }

    /// Reports inconsistencies; with `repair`, repairs those that can be repaired safely.
    fn check(&self, repair: bool) -> BoxFuture<'_, Result<Checked>> {
        Box::pin(async move { self.objects_for("be checked")?.check(repair).await })
    }

    /// Ends the background work of this process for the queue, such as a broker, so that another process need not wait for
    /// a lease to expire. Later requests begin it again.
    fn close(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(ready(Ok(())))
    }
}

/// A task queue, in any layout. Cheap to clone. Its methods are those below, and those of [`QueueLayout`].
#[derive(Debug, Clone)]
pub struct Queue {
    layout: Arc<dyn QueueLayout>,
}

impl Deref for Queue {
    type Target = dyn QueueLayout;

    fn deref(&self) -> &Self::Target {
        &*self.layout
    }
}

impl<L: QueueLayout> From<L> for Queue {
    fn from(layout: L) -> Self {
        Self { layout: Arc::new(layout) }
    }
}

impl Queue {
    /// Opens the queue at an address, in a folder or in an open store, and creates it if it does not exist
    /// ([`QueueConfig::layout`] says in which layout). A store without a queue is probed first: one that ignores conditions is refused, and so is one that has keys of a
    /// queue but no `queue.json` (see [`Queue::restore`]).
    ///
    /// Buckets are configured by the usual environment variables and files (`AWS_ACCESS_KEY_ID`, `AWS_REGION`,
    /// `AWS_ENDPOINT_URL`, …), as for the command line.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold_core::Result<()> {
    /// use leasehold_queue::Queue;
    ///
    /// let queue = Queue::connect("memory://").await?;
    /// assert_eq!(queue.stats().await?.due, 0);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn connect(place: impl Into<QueueLocation>) -> Result<Self> {
        Self::with_config(place, QueueConfig::default()).await
    }

    /// Opens a queue with explicit configuration. A queue whose layout this program does not know is refused (promise
    /// P8).
    pub async fn with_config(place: impl Into<QueueLocation>, config: QueueConfig) -> Result<Self> {
        let (client, known) = open_meta(place.into(), &config).await?;
        Ok(match known.meta.layout {
            LayoutName::Objects => ObjectQueue::new(client, known, config).into(),
            LayoutName::Journal => JournalQueue::new(client, known.meta, &config).into(),
        })
    }

    /// Opens a queue and restores its `queue.json` if it is missing, with the layout that its keys show, and the number of
    /// digits that the keys of its tasks have. An existing `queue.json` is not changed. Connected clients have to connect
    /// again.
    ///
    /// Requests: 2 lists, 1 list per 1,000 shards, 1 get, 1 put, and those of the probe.
    pub async fn restore(place: impl Into<QueueLocation>, config: QueueConfig) -> Result<Self> {
        let client = restored(place.into(), &config).await?;
        Self::with_config(client, config).await
    }

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
        Submit::new(&*self.layout, task_type, input)
    }

    /// Submits a task from a complete [`NewTask`].
    pub fn submit_task(&self, new_task: NewTask) -> Submit<'_> {
        Submit::of(&*self.layout, Ok(new_task))
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
        let here = |submit| Submit { layout: &*self.layout, ..submit }.into_future();
        stream::iter(submits).map(here).buffered(self.submits_at_once())
    }

    /// Reads the history of a task.
    pub async fn get_history(&self, id: &TaskId) -> Result<Vec<Change>> {
        Ok(self.get(id).await?.history.events().cloned().collect())
    }

    /// Waits until a task is final, and returns it. `timeout` is the time limit.
    pub async fn wait(&self, id: &TaskId, timeout: Option<Duration>) -> Result<Task> {
        let host = self.host();
        let started = host.instant();
        let (mut known, mut pause) = (None, WAIT_MIN);
        loop {
            if let Some(read) = self.poll(id, known.as_ref()).await? {
                if read.task.status().is_final() {
                    return Ok(read.task);
                }
                // It has changed: poll at the shortest interval again.
                (known, pause) = (Some(read), WAIT_MIN);
            }
            let left = timeout.map(|timeout| timeout.saturating_sub(host.instant().since(started)));
            if left.is_some_and(|left| left.is_zero()) {
                let waited = timeout.unwrap_or_default();
                let message = format!("task {id} is still not final after {waited:?}");
                return Err(Error::new(Kind::Unavailable, message).with_reason(Reason::NotYet));
            }
            let pause_max = left.map_or(pause, |left| left.min(pause));
            self.until_changed(id, known.as_ref(), pause_max).await;
            pause = (pause * 2).min(WAIT_MAX);
        }
    }
}
