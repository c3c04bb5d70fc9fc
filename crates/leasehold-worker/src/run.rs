//! A worker from start to end.

use futures::future::{Either, select};
use leasehold_core::{
    Entry, Error, Index, Kind, Now, Result, Shard, ShardRange, Status, StoreTime, Task, TaskId, Where,
    ids::Name,
};
use leasehold_queue::Queue;
use leasehold_queue::discover::Stretch;
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

use crate::crew::{Crew, Provider};
use crate::duties;
use crate::handler::{Context, Handler, TaskError, typed};
use crate::hold::Stop;
use crate::inbox::Inbox;
use crate::options::WorkerOptions;
use crate::poll::{Poller, SOON};
use crate::renew::{self, Held};
use crate::served::Served;
use crate::shards;
use crate::shutdown::{Shutdown, Stage};
use crate::staging::Carrier;

/// So many odd objects are reported once each before the list is forgotten.
const REPORTED_MAX: usize = 10_000;
/// So many failed requests in a row make the whole worker wait; one or two happen every day.
const OUTAGE_FAILURES: u32 = 3;

/// Runs handlers for the tasks of a queue.
pub struct Worker {
    source: Source,
    crew: Crew,
    served: Arc<OnceLock<Arc<Served>>>,
    inbox: Arc<OnceLock<Arc<Inbox>>>,
    drain_wait: Arc<Mutex<Option<DrainWait>>>,
}

/// Where tasks come from.
#[derive(Clone)]
enum Source {
    Queue(Queue),
    Provider(Arc<dyn Provider>),
}

/// What a worker has done so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Runs of handlers that were started.
    pub started: u64,
    /// Tasks that were completed.
    pub completed: u64,
    /// Tasks that have failed for good.
    pub failed: u64,
    /// Tasks that were stopped because they were cancelled.
    pub cancelled: u64,
    /// Tasks that were put back: for another attempt, for later, or unused.
    pub put_back: u64,
    /// Claims that were lost.
    pub lost: u64,
    /// Tasks of lost workers that were put back.
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

/// Tells what a worker has done so far, while it runs.
#[derive(Debug, Clone)]
pub struct Monitor {
    /// None for a worker that has its tasks from elsewhere: that has no shards and no inbox.
    queue: Option<Queue>,
    counts: Arc<Counters>,
    served: Arc<OnceLock<Arc<Served>>>,
    inbox: Arc<OnceLock<Arc<Inbox>>>,
    drain_wait: Arc<Mutex<Option<DrainWait>>>,
}

impl Monitor {
    /// What it waits for, if it has nothing to run and stops when there is nothing left
    /// ([`WorkerOptions::until_empty`]).
    #[must_use]
    pub fn drain_wait(&self) -> Option<DrainWait> {
        *self.drain_wait.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it has an inbox that is its own at this moment.
    #[must_use]
    pub fn has_inbox(&self) -> bool {
        let (Some(inbox), Some(now)) = (self.inbox.get(), self.now()) else { return false };
        inbox.is_ours(now)
    }

    /// What it has done so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts.read()
    }

    /// How many handlers run at this moment.
    #[must_use]
    pub fn running(&self) -> u64 {
        self.counts.running.load(Relaxed)
    }

    /// The shards that it serves at this moment; none before it runs.
    #[must_use]
    pub fn shards(&self) -> Vec<ShardRange> {
        let (Some(served), Some(now)) = (self.served.get(), self.now()) else { return Vec::new() };
        served.ranges(now)
    }

    fn now(&self) -> Option<Now> {
        self.queue.as_ref()?.now().ok()
    }
}

impl Worker {
    /// A worker with this name for these shards, or for all.
    pub fn new(queue: Queue, id: &str, shards: Option<Vec<Shard>>) -> Result<Self> {
        let id = Name::checked("worker id", id)?;
        let queue = queue.acting_as(id.as_str());
        let mut crew = Crew::new(id, queue.client().host().clone());
        crew.options.shards = shards;
        Ok(Self::of(Source::Queue(queue), crew))
    }

    /// A worker with this name that has its tasks from elsewhere, with the same handlers and options. Those about shards
    /// and inboxes, which only a bucket has, must not be set; of the others, the provider says which it heeds.
    pub fn at(provider: Arc<dyn Provider>, host: Arc<dyn Host>, id: &str) -> Result<Self> {
        let crew = Crew::new(Name::checked("worker id", id)?, host);
        Ok(Self::of(Source::Provider(provider), crew))
    }

    fn of(source: Source, crew: Crew) -> Self {
        Self { source, crew, served: Arc::default(), inbox: Arc::default(), drain_wait: Arc::default() }
    }

    /// Changes how it behaves; the shards stay as they are unless named.
    #[must_use]
    pub fn options(mut self, options: WorkerOptions) -> Self {
        let shards = self.crew.options.shards.take();
        self.crew.options = options;
        self.crew.options.shards = self.crew.options.shards.or(shards);
        self
    }

    /// Lets it run tasks with artifacts, which are brought here and published so.
    #[must_use]
    pub fn carrier(mut self, carrier: Arc<dyn Carrier>) -> Self {
        self.crew.carrier = Some(carrier);
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
        self.crew.handlers.add(task_type, Handler { run: typed(run), is_awaited: false })?;
        Ok(self)
    }

    /// The same for a function that has begun something which does not end when its future is dropped, such as a thread.
    /// It is told to stop by [`Context::cancelled`] and must end by itself: nothing is written about the task before
    /// that. If it does not end in [`WorkerOptions::stop_wait`], the claim is left to run out.
    pub fn handle_awaited<I, O, F, R>(mut self, task_type: &str, run: F) -> Result<Self>
    where
        I: DeserializeOwned + Send + 'static,
        O: Serialize + Send + 'static,
        F: Fn(Context, I) -> R + Send + Sync + 'static,
        R: Future<Output = std::result::Result<O, TaskError>> + Send + 'static,
    {
        self.crew.handlers.add(task_type, Handler { run: typed(run), is_awaited: true })?;
        Ok(self)
    }

    /// A view of what it does.
    #[must_use]
    pub fn monitor(&self) -> Monitor {
        let queue = match &self.source {
            Source::Queue(queue) => Some(queue.clone()),
            Source::Provider(_) => None,
        };
        let counts = self.crew.counts.clone();
        let (served, inbox) = (self.served.clone(), self.inbox.clone());
        Monitor { queue, counts, served, inbox, drain_wait: self.drain_wait.clone() }
    }

    /// Works until told to stop. What was under way has ended, or was given back, when this returns.
    pub async fn run(self, shutdown: Shutdown) -> Result<Counts> {
        self.crew.options.check()?;
        if self.crew.handlers.is_empty() {
            return Err(Error::invalid(
                "the worker has no handlers; add one for each task type it is to run",
            ));
        }
        // What makes this worker stop leaves others alone that are stopped together with it.
        let shutdown = shutdown.below();
        match self.source.clone() {
            Source::Queue(queue) => Box::pin(self.run_over(queue, shutdown)).await,
            Source::Provider(provider) => {
                let WorkerOptions { shards, leasing, inbox, .. } = &self.crew.options;
                if shards.is_some() || leasing.is_some() || inbox.is_some() {
                    return Err(Error::invalid(
                        "shards and inboxes are those of a bucket; leave them out here",
                    ));
                }
                provider.work(self.crew, shutdown).await
            }
        }
    }

    async fn run_over(self, queue: Queue, shutdown: Shutdown) -> Result<Counts> {
        let opened = match self.crew.options.inbox.clone() {
            Some(options) => Some(Inbox::open(queue.apart(), &self.crew.id, options).await?),
            None => None,
        };
        let (inbox, name) = opened.map(|(inbox, name)| (Arc::new(inbox), name)).unzip();
        let (engine, renewing) = Engine::start(self, queue, inbox);
        let host = engine.host().clone();
        let naming = name.map(|name| engine.keep_name(name, &shutdown));
        let duties = duties::run(engine.clone(), shutdown.clone());
        let duties = host.spawn(Box::pin(async move {
            if let Err(error) = duties.await {
                // The poller fails with the same, or these duties are left to others.
                tracing::warn!("lost claims are looked for no more: {error}");
            }
        }));
        let sharing = engine.share_shards(&shutdown);
        let mut poller = Poller::new(engine.clone());
        let ended = poller.run(&shutdown).await;
        engine.drain(&mut poller, &shutdown).await;
        // Recovery may be in the middle of something that is not to be cut.
        shutdown.drain();
        duties.await;
        for apart in sharing.into_iter().chain(naming) {
            apart.await;
        }
        let counts = engine.crew.counts();
        let ended = ended.and_then(|()| engine.inbox.as_ref().map_or(Ok(()), |inbox| inbox.check()));
        drop((poller, engine));
        renewing.await;
        ended.map(|()| counts)
    }

    /// Works until there is nothing left to do: see [`WorkerOptions::until_empty`].
    pub async fn run_until_empty(mut self) -> Result<Counts> {
        self.crew.options.until_empty = true;
        self.run(Shutdown::default()).await
    }

    /// Only the duties of the monitor, until told to stop. Shards are not leased for that: whoever holds some is to run
    /// their tasks, which a monitor does not.
    pub async fn run_duties(mut self, shutdown: Shutdown) -> Result<Counts> {
        self.crew.options.check()?;
        self.crew.options.leasing = None;
        let Source::Queue(queue) = self.source.clone() else {
            return Err(Error::invalid("the duties of a monitor are done in a bucket; there is none here"));
        };
        let (engine, renewing) = Engine::start(self, queue, None);
        let done = duties::run(engine.clone(), shutdown).await;
        let counts = engine.crew.counts();
        drop(engine);
        renewing.await;
        done.map(|()| counts)
    }
}

/// Logs a request that failed. What is reported of a store that fails as a whole is not repeated for every request.
pub(crate) fn request_failed(client: &Client, operation: &'static str, error: &Error) {
    if client.health().outage().is_some() {
        tracing::debug!(operation, %error, "store request failed");
    } else {
        tracing::warn!(operation, %error, "store request failed");
    }
}

/// What all parts of a worker share.
pub(crate) struct Engine {
    pub(crate) queue: Queue,
    pub(crate) crew: Crew,
    pub(crate) served: Arc<Served>,
    pub(crate) inbox: Option<Arc<Inbox>>,
    held: Mutex<BTreeMap<TaskId, Arc<Held>>>,
    renewals: mpsc::UnboundedSender<Arc<Held>>,
    reported: Mutex<HashSet<String>>,
    drain_wait: Arc<Mutex<Option<DrainWait>>>,
}

impl Engine {
    fn start(worker: Worker, queue: Queue, inbox: Option<Arc<Inbox>>) -> (Arc<Self>, Running) {
        let (renewals, claims) = mpsc::unbounded_channel();
        let crew = worker.crew;
        let renewer = renew::run(queue.apart(), crew.options.lease, claims);
        let renewing = crew.host.spawn_apart("leasehold-renew", Box::pin(renewer));
        let len = queue.shard_len();
        let served = match crew.options.leasing {
            Some(_) => Served::none(len),
            None => Served::new(len, crew.options.shards.as_deref()),
        };
        let served = worker.served.get_or_init(|| Arc::new(served)).clone();
        let inbox = inbox.map(|inbox| worker.inbox.get_or_init(|| inbox).clone());
        let (held, reported, drain_wait) = (Mutex::default(), Mutex::default(), worker.drain_wait);
        (Arc::new(Self { queue, crew, served, inbox, held, renewals, reported, drain_wait }), renewing)
    }

    /// Divides the shards with others, if it was asked to: apart, because a busy handler must not cost us our shards.
    fn share_shards(&self, shutdown: &Shutdown) -> Option<Running> {
        let leasing = self.crew.options.leasing.clone()?;
        let (queue, id, served) = (self.queue.apart(), self.crew.id.clone(), self.served.clone());
        let sharing = shards::run(queue, id, leasing, served, shutdown.clone());
        Some(self.host().spawn_apart("leasehold-shards", Box::pin(sharing)))
    }

    /// Keeps the name: apart, because a busy handler must not cost us our inbox.
    fn keep_name(&self, name: HeldLease, shutdown: &Shutdown) -> Running {
        let (inbox, shutdown) = (self.inbox.clone(), shutdown.clone());
        let keep = async move {
            if let Some(inbox) = inbox {
                inbox.keep(name, shutdown).await;
            }
        };
        self.host().spawn_apart("leasehold-inbox", Box::pin(keep))
    }

    /// Whether what lies there is for us to look at.
    pub(crate) fn may_look_at(&self, place: &Where, now: Now) -> bool {
        match place {
            Where::Ready(shard) | Where::Lease(shard) => self.served.contains(shard, now),
            Where::Inbox(_) => self.inbox.as_ref().is_some_and(|inbox| inbox.is_ours(now)),
            Where::Overflow => !breaks(Rule::OverflowUnread),
        }
    }

    /// Whether nobody else looks there, because we hold the lease on it.
    pub(crate) fn is_owner(&self, place: &Where, now: Now) -> bool {
        match place {
            Where::Ready(shard) | Where::Lease(shard) => self.served.holds(shard, now),
            Where::Inbox(_) => self.may_look_at(place, now),
            Where::Overflow => false,
        }
    }

    pub(crate) fn host(&self) -> &Arc<dyn Host> {
        &self.crew.host
    }

    pub(crate) fn set_drain_wait(&self, wait: Option<DrainWait>) {
        *self.drain_wait.lock().unwrap_or_else(PoisonError::into_inner) = wait;
    }

    /// A task of these shards that could be run here and that another worker holds.
    pub(crate) async fn held_by_others(&self) -> Result<Option<TaskId>> {
        let mut stretches = self.served.stretches(Index::Lease, self.queue.now()?, None);
        // Also what waits for a worker that may be dead.
        stretches.extend([Stretch::inboxes(), Stretch::at(&Where::Overflow)]);
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
                Ok(is_unfinished && self.crew.handles(&task.task_type))
            }
            // Gone, or making no sense: not something that will come back.
            Err(error) if matches!(error.kind(), Kind::Invalid | Kind::Corrupt) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Registers a claim for renewal.
    pub(crate) fn keep(&self, held: &Arc<Held>) {
        self.held().insert(held.hold.id, held.clone());
        // The renewer ends only after the last sender is gone.
        let _ = self.renewals.send(held.clone());
    }

    pub(crate) fn forget(&self, held: &Held) {
        self.held().remove(&held.hold.id);
    }

    pub(crate) fn holds(&self, id: &TaskId) -> bool {
        self.held().contains_key(id)
    }

    fn held(&self) -> std::sync::MutexGuard<'_, BTreeMap<TaskId, Arc<Held>>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Logs a request that failed.
    pub(crate) fn request_failed(&self, operation: &'static str, error: &Error) {
        request_failed(self.queue.client(), operation, error);
    }

    /// The outage of the store, once so many requests have failed that it makes sense to wait.
    pub(crate) fn outage(&self) -> Option<Outage> {
        self.queue.client().health().outage().filter(|outage| outage.failures >= OUTAGE_FAILURES)
    }

    /// Reports something that is left for a person, once.
    pub(crate) fn report(&self, what: &str) {
        let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        if reported.len() >= REPORTED_MAX {
            reported.clear();
        }
        if reported.insert(what.to_owned()) {
            tracing::error!("{what}");
        }
    }

    /// Notes that the task of a lost worker was moved on; a task that expired had none.
    pub(crate) fn recovered(&self, task: &Task) {
        if task.status() != Status::Expired {
            tracing::warn!(task = %task.id, to = %task.status(), "its worker was lost");
            self.crew.counts.recovered.fetch_add(1, Relaxed);
        }
    }

    /// Lets what runs finish; after the drain time, or when told to abort, stops it and gives it back.
    async fn drain(&self, poller: &mut Poller, shutdown: &Shutdown) {
        let late = self.host().sleep(self.crew.options.drain);
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
