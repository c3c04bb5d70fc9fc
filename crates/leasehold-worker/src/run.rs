//! A worker from start to stop.

use futures::future::{Either, select};
use leasehold_core::{
    Entry, Error, Index, IndexLocation, Kind, Now, Result, Shard, ShardRange, Status, StoreTime, Task,
    TaskId, ids::Name,
};
use leasehold_queue::Queue;
use leasehold_queue::discover::KeyRange;
use leasehold_queue::lease::HeldLease;
use leasehold_store::host::Running;
use leasehold_store::mutant::{Rule, breaks};
use leasehold_store::{Client, Host, Outage, Purpose};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use tokio::sync::mpsc;

use crate::duties;
use crate::handler::{Context, Handler, TaskError, typed};
use crate::inbox::Inbox;
use crate::options::WorkerOptions;
use crate::poll::{Poller, SOON};
use crate::renew::{self, ActiveClaim};
use crate::run_handle::Stop;
use crate::runner::{TaskRunner, TaskSource};
use crate::shard_assignment::ShardAssignment;
use crate::shards;
use crate::shutdown::{Shutdown, Stage};
use crate::staging::ArtifactIo;

/// Maximum number of objects that are reported once each before the list is cleared.
const REPORTED_MAX: usize = 10_000;
/// Number of consecutive failed requests after which the whole worker waits; one or two are common.
const OUTAGE_FAILURES: u32 = 3;

/// Runs handlers for the tasks of a queue.
pub struct Worker {
    source: Source,
    runner: TaskRunner,
    assignment: Arc<OnceLock<Arc<ShardAssignment>>>,
    inbox: Arc<OnceLock<Arc<Inbox>>>,
    drain_wait: Arc<Mutex<Option<DrainWait>>>,
}

/// Source of the tasks.
#[derive(Clone)]
enum Source {
    Queue(Queue),
    Provider(Arc<dyn TaskSource>),
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
    /// Tasks that are pending again: to be retried, snoozed, or released.
    pub put_back: u64,
    /// Claims that were lost.
    pub lost: u64,
    /// Tasks of dead workers that were recovered.
    pub recovered: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) started: AtomicU64,
    pub(crate) completed: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) cancelled: AtomicU64,
    pub(crate) put_back: AtomicU64,
    pub(crate) lost: AtomicU64,
    pub(crate) recovered: AtomicU64,
    /// Handlers that run at this moment.
    running: AtomicU64,
}

/// A handler that runs.
pub(crate) struct RunningHandler<'a>(&'a Counters);

impl Drop for RunningHandler<'_> {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Relaxed);
    }
}

impl Counters {
    /// Counts a handler as running until the result is dropped.
    pub(crate) fn run(&self) -> RunningHandler<'_> {
        self.running.fetch_add(1, Relaxed);
        RunningHandler(self)
    }

    pub(crate) fn read(&self) -> Counts {
        Counts {
            started: self.started.load(Relaxed),
            completed: self.completed.load(Relaxed),
            failed: self.failed.load(Relaxed),
            cancelled: self.cancelled.load(Relaxed),
            put_back: self.put_back.load(Relaxed),
            lost: self.lost.load(Relaxed),
            recovered: self.recovered.load(Relaxed),
        }
    }
}

/// Reason why a worker that stops when the queue is empty goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DrainWait {
    /// A task becomes due within a minute.
    Due(StoreTime),
    /// Another worker holds a task, or it is in the inbox of another worker.
    Held(TaskId),
    /// The shards that this worker is to lease are not leased yet.
    ShardLeases,
    /// The store has not answered.
    Store,
}

impl fmt::Display for DrainWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Due(at) => write!(f, "a task that is due at {at}"),
            Self::Held(id) => write!(f, "task {id}, which another worker holds"),
            Self::ShardLeases => f.write_str("leases on shards"),
            Self::Store => f.write_str("an answer from the store"),
        }
    }
}

/// View of a running worker.
#[derive(Debug, Clone)]
pub struct Monitor {
    /// None for a worker with another source of tasks, which has no shards and no inbox.
    queue: Option<Queue>,
    counts: Arc<Counters>,
    assignment: Arc<OnceLock<Arc<ShardAssignment>>>,
    inbox: Arc<OnceLock<Arc<Inbox>>>,
    drain_wait: Arc<Mutex<Option<DrainWait>>>,
}

impl Monitor {
    /// Reason why it waits, if it has nothing to run and stops when nothing is left ([`WorkerOptions::until_empty`]).
    #[must_use]
    pub fn drain_wait(&self) -> Option<DrainWait> {
        *self.drain_wait.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if it has an inbox and certainly holds it.
    #[must_use]
    pub fn has_inbox(&self) -> bool {
        let (Some(inbox), Some(now)) = (self.inbox.get(), self.now()) else { return false };
        inbox.is_ours(now)
    }

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

    /// Shards that it serves now; none before it runs.
    #[must_use]
    pub fn shards(&self) -> Vec<ShardRange> {
        let (Some(assignment), Some(now)) = (self.assignment.get(), self.now()) else { return Vec::new() };
        assignment.ranges(now)
    }

    fn now(&self) -> Option<Now> {
        self.queue.as_ref()?.now().ok()
    }
}

impl Worker {
    /// Creates a worker with this id for these shards, or for all.
    pub fn new(queue: Queue, id: &str, shards: Option<Vec<Shard>>) -> Result<Self> {
        let id = Name::checked("worker id", id)?;
        let queue = queue.acting_as(id.as_str());
        let mut runner = TaskRunner::new(id, queue.client().host().clone());
        runner.options.shards = shards;
        Ok(Self::of(Source::Queue(queue), runner))
    }

    /// Creates a worker with this id and another source of tasks. Options about shards and inboxes, which only a
    /// bucket has, must not be set; the source documents which of the other options it uses.
    pub fn at(provider: Arc<dyn TaskSource>, host: Arc<dyn Host>, id: &str) -> Result<Self> {
        let runner = TaskRunner::new(Name::checked("worker id", id)?, host);
        Ok(Self::of(Source::Provider(provider), runner))
    }

    fn of(source: Source, runner: TaskRunner) -> Self {
        Self { source, runner, assignment: Arc::default(), inbox: Arc::default(), drain_wait: Arc::default() }
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
    pub fn carrier(mut self, carrier: Arc<dyn ArtifactIo>) -> Self {
        self.runner.carrier = Some(carrier);
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
    pub fn monitor(&self) -> Monitor {
        let queue = match &self.source {
            Source::Queue(queue) => Some(queue.clone()),
            Source::Provider(_) => None,
        };
        let counts = self.runner.counts.clone();
        let (assignment, inbox) = (self.assignment.clone(), self.inbox.clone());
        Monitor { queue, counts, assignment, inbox, drain_wait: self.drain_wait.clone() }
    }

    /// Works until shutdown. When this returns, every running task has ended or was released.
    pub async fn run(self, shutdown: Shutdown) -> Result<Counts> {
        self.runner.options.check()?;
        if self.runner.handlers.is_empty() {
            return Err(Error::invalid(
                "the worker has no handlers; add one for each task type that it runs",
            ));
        }
        // If this worker stops by itself, other workers with the same shutdown continue.
        let shutdown = shutdown.below();
        match self.source.clone() {
            Source::Queue(queue) => Box::pin(self.run_over(queue, shutdown)).await,
            Source::Provider(provider) => {
                let WorkerOptions { shards, leasing, inbox, .. } = &self.runner.options;
                if shards.is_some() || leasing.is_some() || inbox.is_some() {
                    return Err(Error::invalid("shards and inboxes require a bucket; remove these options"));
                }
                provider.work(self.runner, shutdown).await
            }
        }
    }

    async fn run_over(self, queue: Queue, shutdown: Shutdown) -> Result<Counts> {
        let opened = match self.runner.options.inbox.clone() {
            Some(options) => Some(Inbox::open(queue.detached(), &self.runner.id, options).await?),
            None => None,
        };
        let (inbox, name) = opened.map(|(inbox, name)| (Arc::new(inbox), name)).unzip();
        let (engine, renewing) = Engine::start(self, queue, inbox);
        let host = engine.host().clone();
        let naming = name.map(|name| engine.keep_name(name, &shutdown));
        let duties = duties::run(engine.clone(), shutdown.clone());
        let duties = host.spawn(Box::pin(async move {
            if let Err(error) = duties.await {
                // The poller fails with the same error, or other workers do these duties.
                tracing::warn!(%error, "duties stopped, lost claims are no longer recovered by this worker");
            }
        }));
        let sharing = engine.share_shards(&shutdown);
        let mut poller = Poller::new(engine.clone());
        let ended = poller.run(&shutdown).await;
        engine.drain(&mut poller, &shutdown).await;
        // Recovery must not be interrupted in the middle of a change.
        shutdown.drain();
        duties.await;
        for detached in sharing.into_iter().chain(naming) {
            detached.await;
        }
        let counts = engine.runner.counts();
        let ended = ended.and_then(|()| engine.inbox.as_ref().map_or(Ok(()), |inbox| inbox.check()));
        drop((poller, engine));
        renewing.await;
        ended.map(|()| counts)
    }

    /// Works until nothing is left to do: see [`WorkerOptions::until_empty`].
    pub async fn run_until_empty(mut self) -> Result<Counts> {
        self.runner.options.until_empty = true;
        self.run(Shutdown::default()).await
    }

    /// Does only the maintenance duties, until shutdown. Shards are not leased for that: the holder of a shard
    /// has to run its tasks, which a monitor does not.
    pub async fn run_duties(mut self, shutdown: Shutdown) -> Result<Counts> {
        self.runner.options.check()?;
        self.runner.options.leasing = None;
        let Source::Queue(queue) = self.source.clone() else {
            return Err(Error::invalid("maintenance duties require a bucket"));
        };
        let (engine, renewing) = Engine::start(self, queue, None);
        let done = duties::run(engine.clone(), shutdown).await;
        let counts = engine.runner.counts();
        drop(engine);
        renewing.await;
        done.map(|()| counts)
    }
}

/// Logs a request that failed. During an outage of the store, which is reported as a whole, only at debug level.
pub(crate) fn request_failed(client: &Client, operation: &'static str, error: &Error) {
    if client.health().outage().is_some() {
        tracing::debug!(operation, %error, "store request failed");
    } else {
        tracing::warn!(operation, %error, "store request failed");
    }
}

/// State shared by all parts of a worker.
pub(crate) struct Engine {
    pub(crate) queue: Queue,
    pub(crate) runner: TaskRunner,
    pub(crate) assignment: Arc<ShardAssignment>,
    pub(crate) inbox: Option<Arc<Inbox>>,
    held: Mutex<BTreeMap<TaskId, Arc<ActiveClaim>>>,
    renewals: mpsc::UnboundedSender<Arc<ActiveClaim>>,
    reported: Mutex<HashSet<String>>,
    drain_wait: Arc<Mutex<Option<DrainWait>>>,
}

impl Engine {
    fn start(worker: Worker, queue: Queue, inbox: Option<Arc<Inbox>>) -> (Arc<Self>, Running) {
        let (renewals, claims) = mpsc::unbounded_channel();
        let runner = worker.runner;
        let renewer = renew::run(queue.detached(), runner.options.lease, claims);
        let renewing = runner.host.spawn_apart("leasehold-renew", Box::pin(renewer));
        let len = queue.shard_len();
        let assignment = match runner.options.leasing {
            Some(_) => ShardAssignment::none(len),
            None => ShardAssignment::new(len, runner.options.shards.as_deref()),
        };
        let assignment = worker.assignment.get_or_init(|| Arc::new(assignment)).clone();
        let inbox = inbox.map(|inbox| worker.inbox.get_or_init(|| inbox).clone());
        let (held, reported, drain_wait) = (Mutex::default(), Mutex::default(), worker.drain_wait);
        (Arc::new(Self { queue, runner, assignment, inbox, held, renewals, reported, drain_wait }), renewing)
    }

    /// Starts shard leasing if it is configured, on a thread of its own, because a busy handler must not cost the
    /// shards.
    fn share_shards(&self, shutdown: &Shutdown) -> Option<Running> {
        let leasing = self.runner.options.leasing.clone()?;
        let (queue, id, assignment) =
            (self.queue.detached(), self.runner.id.clone(), self.assignment.clone());
        let sharing = shards::run(queue, id, leasing, assignment, shutdown.clone());
        Some(self.host().spawn_apart("leasehold-shards", Box::pin(sharing)))
    }

    /// Renews the lease on the worker id on a thread of its own, because a busy handler must not cost the inbox.
    fn keep_name(&self, name: HeldLease, shutdown: &Shutdown) -> Running {
        let (inbox, shutdown) = (self.inbox.clone(), shutdown.clone());
        let keep = async move {
            if let Some(inbox) = inbox {
                inbox.keep(name, shutdown).await;
            }
        };
        self.host().spawn_apart("leasehold-inbox", Box::pin(keep))
    }

    /// True if this worker scans this part of the index.
    pub(crate) fn may_look_at(&self, place: &IndexLocation, now: Now) -> bool {
        match place {
            IndexLocation::Ready(shard) | IndexLocation::Lease(shard) => self.assignment.contains(shard, now),
            IndexLocation::Inbox(_) => self.inbox.as_ref().is_some_and(|inbox| inbox.is_ours(now)),
            IndexLocation::Overflow => !breaks(Rule::OverflowUnread),
        }
    }

    /// True if only this worker scans this part of the index, because it holds the lease on it.
    pub(crate) fn is_owner(&self, place: &IndexLocation, now: Now) -> bool {
        match place {
            IndexLocation::Ready(shard) | IndexLocation::Lease(shard) => self.assignment.holds(shard, now),
            IndexLocation::Inbox(_) => self.may_look_at(place, now),
            IndexLocation::Overflow => false,
        }
    }

    pub(crate) fn host(&self) -> &Arc<dyn Host> {
        &self.runner.host
    }

    pub(crate) fn set_drain_wait(&self, wait: Option<DrainWait>) {
        *self.drain_wait.lock().unwrap_or_else(PoisonError::into_inner) = wait;
    }

    /// A task of these shards that this worker could run and that another worker holds.
    pub(crate) async fn held_by_others(&self) -> Result<Option<TaskId>> {
        let mut stretches = self.assignment.stretches(Index::Lease, self.queue.now()?, None);
        // Also tasks that wait for a worker that may be dead.
        stretches.extend([KeyRange::inboxes(), KeyRange::at(&IndexLocation::Overflow)]);
        for stretch in stretches {
            let mut next = Some(stretch);
            while let Some(stretch) = next {
                let (entries, beyond) = self.queue.entries_in(Purpose::Discover, stretch).await?;
                for entry in entries {
                    if self.is_unfinished_and_ours(&entry).await? {
                        return Ok(Some(entry.id));
                    }
                }
                next = beyond;
            }
        }
        Ok(None)
    }

    async fn is_unfinished_and_ours(&self, entry: &Entry) -> Result<bool> {
        let soon = self.queue.now()?.latest_known().plus(SOON);
        if entry.shard().is_none() && entry.bucket.start() > soon {
            return Ok(false);
        }
        match self.queue.get(&entry.id).await {
            Ok(task) => {
                let is_due_soon = task.entry().is_some_and(|entry| entry.bucket.start() <= soon);
                let waits = entry.shard().is_none() && task.status() == Status::Pending && is_due_soon;
                let is_unfinished = waits || task.status() == Status::Running;
                Ok(is_unfinished && self.runner.handles(&task.task_type))
            }
            // Removed, or corrupt: it will not become pending again.
            Err(error) if matches!(error.kind(), Kind::Invalid | Kind::Corrupt) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Registers a claim for renewal.
    pub(crate) fn keep(&self, held: &Arc<ActiveClaim>) {
        self.held().insert(held.hold.id, held.clone());
        // The renewer ends only after the last sender was dropped.
        let _ = self.renewals.send(held.clone());
    }

    pub(crate) fn forget(&self, held: &ActiveClaim) {
        self.held().remove(&held.hold.id);
    }

    pub(crate) fn holds(&self, id: &TaskId) -> bool {
        self.held().contains_key(id)
    }

    fn held(&self) -> std::sync::MutexGuard<'_, BTreeMap<TaskId, Arc<ActiveClaim>>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Logs a request that failed.
    pub(crate) fn request_failed(&self, operation: &'static str, error: &Error) {
        request_failed(self.queue.client(), operation, error);
    }

    /// The outage of the store, once enough requests have failed to wait.
    pub(crate) fn outage(&self) -> Option<Outage> {
        self.queue.client().health().outage().filter(|outage| outage.failures >= OUTAGE_FAILURES)
    }

    /// Logs a problem that is left for an operator, once.
    pub(crate) fn report(&self, what: &str) {
        let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        if reported.len() >= REPORTED_MAX {
            reported.clear();
        }
        if reported.insert(what.to_owned()) {
            tracing::error!(error = what, "corrupt object found, run `leasehold check`");
        }
    }

    /// Logs and counts the recovery of a task of a dead worker; a task that expired had none.
    pub(crate) fn recovered(&self, task: &Task) {
        if task.status() != Status::Expired {
            tracing::warn!(task = %task.id, status = %task.status(), "task recovered, its worker was lost");
            self.runner.counts.recovered.fetch_add(1, Relaxed);
        }
    }

    /// Lets running tasks finish; after the drain time, or on abort, stops and releases them.
    async fn drain(&self, poller: &mut Poller, shutdown: &Shutdown) {
        let late = self.host().sleep(self.runner.options.drain);
        let impatient = Box::pin(select(late, Box::pin(shutdown.reached(Stage::Abort))));
        let is_done = matches!(select(Box::pin(poller.finish()), impatient).await, Either::Left(_));
        if is_done {
            return;
        }
        for held in self.held().values() {
            held.hold.stop(Stop::Shutdown);
        }
        poller.finish().await;
    }
}
