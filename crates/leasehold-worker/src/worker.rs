//! A worker: its handlers, its source of tasks, and a view of it while it runs.

use futures::future::{Either, select};
use leasehold_core::{Error, Result, Shard, ids::Name};
use leasehold_queue::source::{Slots, SourceStatus, TaskSource, TaskSourceFactory, WorkerInfo};
use leasehold_queue::{ObjectQueue, Queue};
use leasehold_store::Host;
use leasehold_store::host::lock;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::future::Future;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock};

use crate::engine;
use crate::handler::{Context, Handler, TaskError, typed};
use crate::objects::ObjectSource;
use crate::options::WorkerOptions;
use crate::runner::TaskRunner;
use crate::shutdown::{Shutdown, Stage};
use crate::staging::ArtifactIo;

/// Runs handlers for the tasks of a queue.
pub struct Worker {
    layout: Layout,
    runner: TaskRunner,
    status: Arc<OnceLock<Arc<dyn SourceStatus>>>,
}

/// Layout of the tasks.
#[derive(Clone)]
enum Layout {
    /// The layout `objects`.
    Objects(ObjectQueue),
    /// Another one, such as a journal or the folder of an outpost.
    Other(Arc<dyn TaskSourceFactory>),
}

/// Counts of a worker so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Runs of handlers that were started.
    pub started: u64,
    /// Tasks that were completed.
    pub completed: u64,
    /// Tasks that have failed permanently.
    pub failed: u64,
    /// Tasks that were stopped because they were cancelled.
    pub cancelled: u64,
    /// Tasks that became pending again: to be retried, snoozed or released. In JSON and Python: `put_back`.
    #[serde(rename = "put_back")]
    pub requeued: u64,
    /// Claims that were lost.
    pub lost: u64,
    /// Tasks of crashed workers that were recovered.
    pub recovered: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    counts: Mutex<Counts>,
    /// Handlers that run at this moment.
    pub(crate) running: AtomicU64,
}

impl Counters {
    /// Adds one to a count.
    pub(crate) fn add(&self, count: fn(&mut Counts) -> &mut u64) {
        *count(&mut lock(&self.counts)) += 1;
    }

    pub(crate) fn read(&self) -> Counts {
        *lock(&self.counts)
    }
}

/// View of a running worker.
#[derive(Debug, Clone)]
pub struct WorkerView {
    counts: Arc<Counters>,
    /// Set when the worker runs.
    status: Arc<OnceLock<Arc<dyn SourceStatus>>>,
}

/// It shows the status of the source of tasks: its shards, its inbox, its reason to wait.
impl Deref for WorkerView {
    type Target = dyn SourceStatus;

    fn deref(&self) -> &Self::Target {
        match self.status.get() {
            Some(status) => &**status,
            None => &(),
        }
    }
}

impl WorkerView {
    /// Counts so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts.read()
    }

    /// Number of running handlers.
    #[must_use]
    pub fn running(&self) -> u64 {
        self.counts.running.load(Relaxed)
    }
}

impl Worker {
    /// Creates a worker with this id for the tasks of a queue; in the object layout for these shards, or for all.
    pub fn new(queue: impl Into<Queue>, id: &str, shards: Option<Vec<Shard>>) -> Result<Self> {
        let queue = queue.into();
        let layout = match queue.task_source_factory() {
            Some(source) => Layout::Other(source),
            None => Layout::Objects(queue.objects()?.clone().acting_as(id)),
        };
        let mut worker = Self::of(layout, queue.host().clone(), id)?;
        worker.runner.options.shards = shards;
        Ok(worker)
    }

    /// Creates a worker with this id on another layout. Options about shards and inboxes, which only the layout `objects`
    /// has, must not be set; the source documents which of the other options it uses.
    pub fn from_source(source: Arc<dyn TaskSourceFactory>, host: Arc<dyn Host>, id: &str) -> Result<Self> {
        Self::of(Layout::Other(source), host, id)
    }

    fn of(layout: Layout, host: Arc<dyn Host>, id: &str) -> Result<Self> {
        let mut runner = TaskRunner::new(Name::checked("worker id", id)?, host);
        if let Layout::Other(source) = &layout
            && let Some(error) = source.artifact_error()
        {
            runner.artifact_io = Err(error);
        }
        Ok(Self { layout, runner, status: Arc::default() })
    }

    /// Sets the options; the shards stay unless the options name some.
    #[must_use]
    pub fn options(mut self, options: WorkerOptions) -> Self {
        let shards = self.runner.options.shards.take();
        self.runner.options = options;
        self.runner.options.shards = self.runner.options.shards.or(shards);
        self
    }

    /// Sets the transfer of artifacts, for tasks that have some.
    #[must_use]
    pub fn artifact_io(mut self, artifact_io: Arc<dyn ArtifactIo>) -> Self {
        self.runner.artifact_io = Ok(artifact_io);
        self
    }

    /// Runs tasks of this type with an async function over serde types.
    pub fn handle<I, O, F, R>(mut self, task_type: &str, run: F) -> Result<Self>
    where
        I: DeserializeOwned + Send + 'static,
        O: Serialize + Send + 'static,
        F: Fn(Context, I) -> R + Send + Sync + 'static,
        R: Future<Output = std::result::Result<O, TaskError>> + Send + 'static,
    {
        self.runner.handlers.add(task_type, Handler { run: typed(run), is_awaited: false })?;
        Ok(self)
    }

    /// Runs tasks of this type with a function whose work does not end when its future is dropped, such as a thread.
    /// It is asked to stop by [`Context::cancelled`] and must end by itself: nothing is recorded for the task before
    /// that. If it does not end within [`WorkerOptions::stop_wait`], the claim is left to expire.
    pub fn handle_awaited<I, O, F, R>(mut self, task_type: &str, run: F) -> Result<Self>
    where
        I: DeserializeOwned + Send + 'static,
        O: Serialize + Send + 'static,
        F: Fn(Context, I) -> R + Send + Sync + 'static,
        R: Future<Output = std::result::Result<O, TaskError>> + Send + 'static,
    {
        self.runner.handlers.add(task_type, Handler { run: typed(run), is_awaited: true })?;
        Ok(self)
    }

    /// Returns a view of the worker while it runs.
    #[must_use]
    pub fn view(&self) -> WorkerView {
        WorkerView { counts: self.runner.counts.clone(), status: self.status.clone() }
    }

    /// Works until shutdown. When this returns, every running task has ended or was released.
    pub async fn run(self, shutdown: Shutdown) -> Result<Counts> {
        self.runner.options.check()?;
        if self.runner.handlers.is_empty() {
            return Err(Error::invalid(
                "the worker has no handlers; add one for each task type that it runs",
            ));
        }
        let (source, slots) = Box::pin(self.open()).await?;
        let counts = self.runner.counts.clone();
        // If this worker stops by itself, other workers with the same shutdown continue.
        engine::run(self.runner, source, slots, shutdown.child()).await.map(|()| counts.read())
    }

    /// Opens the source of its tasks.
    async fn open(&self) -> Result<(Box<dyn TaskSource>, Slots)> {
        let options = &self.runner.options;
        let slots = Slots::new(options.concurrency);
        let worker = WorkerInfo {
            id: self.runner.id.clone(),
            types: self.runner.handlers.types(),
            slots: slots.clone(),
            lease: options.lease,
            polling: options.polling,
            until_empty: options.until_empty,
        };
        let has_object_options =
            options.shards.is_some() || options.leasing.is_some() || options.inbox.is_some();
        let source: Box<dyn TaskSource> = match &self.layout {
            Layout::Objects(queue) => {
                Box::new(ObjectSource::open(queue.clone(), worker, &self.runner).await?)
            }
            Layout::Other(_) if has_object_options => {
                return Err(Error::invalid(
                    "shards and inboxes require the layout `objects`; remove these options, or create a queue with `leasehold \
                     init --layout objects`",
                ));
            }
            Layout::Other(other) => other.open(worker).await?,
        };
        // A worker runs once.
        let _ = self.status.set(source.status());
        Ok((source, slots))
    }

    /// Works until nothing is left to do: see [`WorkerOptions::until_empty`].
    pub async fn run_until_empty(mut self) -> Result<Counts> {
        self.runner.options.until_empty = true;
        self.run(Shutdown::default()).await
    }

    /// Does only the maintenance duties, until shutdown. Shards are not leased for that: the holder of a shard
    /// has to run its tasks, which `leasehold monitor` does not.
    pub async fn run_duties(mut self, shutdown: Shutdown) -> Result<Counts> {
        self.runner.options.check()?;
        (self.runner.options.leasing, self.runner.options.inbox) = (None, None);
        let (source, slots) = self.open().await?;
        let duties = source.duties();
        if duties.is_empty() {
            return Err(Error::invalid(
                "maintenance duties require the layout `objects`; in the layout `journal` the broker does them, so run a worker",
            ));
        }
        let duties =
            Box::pin(engine::run_duties(duties, source.status(), self.runner.host.clone(), slots.clone()));
        let done = match select(duties, Box::pin(shutdown.reached(Stage::Drain))).await {
            Either::Left((done, _)) => done,
            Either::Right(((), duties)) => {
                slots.close();
                duties.await
            }
        };
        source.close().await?;
        done.map(|()| self.runner.counts.read())
    }
}
