//! Actors of the scenario, on the nodes and beside them.

use futures::FutureExt;
use leasehold_core::new_task::Start;
use leasehold_core::outpost::Consistency;
use leasehold_core::{Error, NewTask, TaskId};
use leasehold_outpost::{Connect, Spool, Supervisor, SupervisorOptions};
use leasehold_queue::{ObjectQueue, QueueConfig};
use leasehold_store::{Client, Host, HostExt};
use leasehold_worker::{Context, Polling, Shutdown, TaskError, Worker, WorkerOptions};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::FAULTS_FOR;
use super::checker::OutpostChecker;
use super::node::Node;
use crate::alarm::Alarm;
use crate::executor::ProcessId;
use crate::host::SimHost;
use crate::random::SimRandom;
use crate::trace::Trace;
use crate::world::World;

pub(super) const SECOND: Duration = Duration::from_secs(1);
/// Interval at which a handler checks its claim.
const SLICE: Duration = Duration::from_secs(5);
/// Maximum time between two cuts of a link; the average is half of it.
const CUT_EVERY_MAX: Duration = Duration::from_mins(10);
const KINDS: [&str; 7] = ["quick", "quick", "long", "very-long", "retries", "fatal", "snoozes"];
/// Number of times the node is searched for the result of a handler.
const SEARCHES_MAX: u32 = 60;
const SEARCH_EVERY: Duration = Duration::from_millis(250);
/// Name of the producer that uses the bucket alone.
pub(super) const BUCKET: &str = "producer";

/// All actors, and the state they share.
#[derive(Clone)]
pub(super) struct OutpostActors {
    pub(super) checker: OutpostChecker,
    pub(super) nodes: Vec<Node>,
    alarm: Alarm,
    trace: Trace,
    workers: Vec<usize>,
    /// Interval at which workers scan the folders.
    pub(super) scan_every: Duration,
    orders: Arc<Mutex<PlannedSubmits>>,
    search_result: ResultSearch,
}

/// Searches the node for the result of a run.
type ResultSearch = Arc<dyn Fn(u64, &str, TaskId) + Send + Sync>;

/// Submits still to be made, by the name of the process.
#[derive(Default)]
pub(super) struct PlannedSubmits {
    left: BTreeMap<String, Vec<NewTask>>,
    /// Producers whose last submit has an outcome that is not yet known.
    pub(super) open: BTreeSet<String>,
}

impl OutpostActors {
    pub(super) fn new(world: &World, rng: &mut SimRandom) -> io::Result<Self> {
        let consistency = if rng.happens(5_000) { Consistency::Strict } else { Consistency::Relaxed };
        let kill_rate = [0, 20, 60][rng.index(3)];
        let count = 2 + rng.index(2);
        let nodes = (1..=count)
            .map(|number| Node::new(format!("n{number}"), consistency, world.process_killer(), kill_rate));
        let nodes: Vec<_> = nodes.collect::<io::Result<_>>()?;
        let checker = OutpostChecker::new(world.executor().clone(), world.bucket_handle(), consistency);
        let workers = nodes.iter().map(|_| 1 + rng.index(2)).collect();
        let scan_every = [SECOND, SECOND * 2, SECOND * 3][rng.index(3)];
        let mut orders = PlannedSubmits::default();
        for number in 0..10 + rng.below(16) {
            let at = rng.index(count + 1);
            let by = nodes.get(at).map_or_else(|| BUCKET.to_owned(), |node| format!("{}/user", node.name));
            let order = order(number, at < count, rng);
            let is_there = world.omissions().tasks.is_none_or(|tasks| number < tasks);
            if is_there && !world.omissions().without.contains(&by) {
                orders.left.entry(by).or_default().push(order);
            }
        }
        let (executor, searching) = (world.executor().clone(), (checker.clone(), nodes.clone()));
        let search_result = move |run: u64, node: &str, id: TaskId| {
            let (checker, nodes) = searching.clone();
            let Some(node) = nodes.into_iter().find(|known| known.name == node) else { return };
            let sleeping = executor.clone();
            let search = async move {
                for _ in 0..SEARCHES_MAX {
                    if node.has_result(&id.to_string(), run) {
                        return checker.record_saved(run);
                    }
                    sleeping.sleep(SEARCH_EVERY).await;
                }
            };
            executor.spawn(ProcessId::WORLD, Box::pin(search));
        };
        let (alarm, trace) = (world.alarm().clone(), world.trace().clone());
        let (orders, search_result) = (Arc::new(Mutex::new(orders)), Arc::new(search_result));
        Ok(Self { checker, nodes, alarm, trace, workers, scan_every, orders, search_result })
    }

    /// Starts all actors.
    pub(super) fn start(&self, world: &World) {
        for (node, workers) in self.nodes.iter().zip(&self.workers) {
            let (actors, own) = (self.clone(), node.clone());
            world.actor(&format!("{}/supervisor", node.name), move |host, client| {
                actors.clone().supervise(own.clone(), host, client).boxed()
            });
            for number in 1..=*workers {
                let (actors, own) = (self.clone(), node.clone());
                world.actor(&format!("{}/w{number}", node.name), move |host, _| {
                    actors.clone().work(own.clone(), number, host).boxed()
                });
            }
            let (actors, own) = (self.clone(), node.clone());
            world.actor(&format!("{}/user", node.name), move |host, client| {
                actors.clone().use_node(own.clone(), host, client).boxed()
            });
        }
        let actors = self.clone();
        world.actor(BUCKET, move |host, client| actors.clone().produce(host, client).boxed());
        let actors = self.clone();
        world.actor("worker", move |host, client| actors.clone().work_at_bucket(host, client).boxed());
        let actors = self.clone();
        world.actor("operator", move |host, client| actors.clone().operate(host, client).boxed());
        let (links, nodes) = (world.links(), self.nodes.clone());
        let (executor, mut rng) = (world.executor().clone(), world.rng("links"));
        let (trace, checker) = (self.trace.clone(), self.checker.clone());
        let cut = async move {
            while executor.now() < FAULTS_FOR {
                executor.sleep(rng.between(Duration::ZERO, CUT_EVERY_MAX)).await;
                let node = &nodes[rng.index(nodes.len())].name;
                let most = if rng.happens(3_000) { 20 } else { 4 };
                let duration = rng.between(SECOND * 10, Duration::from_mins(most));
                if links.cut(node, duration) {
                    trace.line(checker.now(), node, format_args!("is disconnected for {duration:?}"));
                }
            }
        };
        world.spawn(ProcessId::WORLD, cut);
    }

    /// Returns whether all tasks were submitted, or abandoned with their producer.
    pub(super) fn is_produced(&self) -> bool {
        let orders = self.orders();
        orders.open.is_empty() && orders.left.values().all(Vec::is_empty)
    }

    pub(super) fn is_calm(&self) -> bool {
        self.checker.now() > FAULTS_FOR
    }

    async fn supervise(self, node: Node, host: Arc<SimHost>, client: Client) {
        let Some(spool) = self.open(&node, &host).await else { return };
        let options = SupervisorOptions {
            outbox_interval: self.scan_every,
            window: 1 + random_index(&host, 6),
            full_scan_interval: Duration::from_mins(15),
            ..SupervisorOptions::default()
        };
        let supervisor = Supervisor::new(spool, connect(client), options);
        let ended = supervisor.run(Shutdown::default()).await;
        self.alarm.raise(format!("the supervisor of {} ended: {ended:?}", node.name));
    }

    async fn work(self, node: Node, number: usize, host: Arc<SimHost>) {
        let Some(spool) = self.open(&node, &host).await else { return };
        let name = format!("{}-w{number}", node.name);
        loop {
            let shutdown = Shutdown::default();
            let stopping = (!self.is_calm()).then(|| {
                let (stop, sleep) = (shutdown.clone(), host.sleep(host.random_below(FAULTS_FOR)));
                let aborts = host.random().is_multiple_of(2);
                host.spawn(Box::pin(async move {
                    sleep.await;
                    if aborts { stop.abort() } else { stop.drain() }
                }))
            });
            let as_host: Arc<dyn Host> = host.clone();
            let worker = Worker::from_source(Arc::new(spool.clone()), as_host, &name);
            let ran = self.run(worker, Some(node.name.clone()), &host, shutdown).await;
            drop(stopping);
            if let Err(error) = ran {
                self.note(&host, format!("has ended: {error}"));
                host.sleep(SECOND).await;
            }
        }
    }

    async fn work_at_bucket(self, host: Arc<SimHost>, client: Client) {
        let queue = self.queue(&host, client).await;
        let worker = Worker::new(queue, "worker", None);
        let ran = self.run(worker, None, &host, Shutdown::default()).await;
        self.alarm.raise(format!("the worker with the bucket has ended: {ran:?}"));
    }

    async fn run(
        &self,
        worker: Result<Worker, Error>,
        node: Option<String>,
        host: &Arc<SimHost>,
        shutdown: Shutdown,
    ) -> leasehold_core::Result<()> {
        let polling = Polling { min: SECOND * 2, max: SECOND * 30, ..Polling::default() };
        let options = WorkerOptions {
            concurrency: 2,
            lease: SECOND * 90,
            polling,
            drain: SECOND * 8,
            recover_every: SECOND * 60,
            ..WorkerOptions::default()
        };
        let (actors, own) = (self.clone(), host.clone());
        let handle = move |context, _: Value| actors.clone().handle(node.clone(), own.clone(), context);
        let counts = worker?.options(options).handle("*", handle)?.run(shutdown).await?;
        self.note(host, format!("has stopped: {counts:?}"));
        Ok(())
    }

    /// One run of a handler.
    async fn handle(
        self,
        node: Option<String>,
        host: Arc<SimHost>,
        context: Context,
    ) -> Result<Value, TaskError> {
        let run = match self.checker.begin(&context, node.as_deref(), host.process()) {
            Ok(run) => run,
            Err(wrong) => {
                self.alarm.raise(wrong);
                return Ok(Value::Null);
            }
        };
        let _guard = RunGuard { checker: self.checker.clone(), run };
        let (id, kind) = (context.task().id, context.task().task_type.to_string());
        self.note(&host, format!("begins run {run} of {id} in epoch {}", context.epoch()));
        let takes = match kind.as_str() {
            "long" => host.random_below(Duration::from_mins(5)),
            "very-long" => Duration::from_mins(9) + host.random_below(Duration::from_mins(9)),
            _ => host.random_below(SECOND * 20),
        };
        let until = self.checker.now() + takes;
        while self.checker.now() < until {
            host.sleep(SLICE.min(until.saturating_sub(self.checker.now()) + Duration::from_millis(1))).await;
            self.checker.record_active(run);
        }
        match kind.as_str() {
            "retries" if context.attempt() < 3 => Err(TaskError::Retry("not yet".into())),
            "fatal" => Err(TaskError::Permanent("never".into())),
            "snoozes" if context.epoch() < 3 => Err(TaskError::Snooze(host.random_below(SECOND * 60))),
            _ => {
                self.checker.record_result(run);
                if let Some(node) = &node {
                    (self.search_result)(run, node, id);
                }
                Ok(json!({ "run": run }))
            }
        }
    }

    /// Opens the spool, with retries. Returns `None` if the process was killed meanwhile.
    pub(super) async fn open(&self, node: &Node, host: &Arc<SimHost>) -> Option<Spool> {
        match node.open(host) {
            Ok(spool) => Some(spool),
            Err(error) => {
                self.note(host, format!("failed to open its folder: {error}"));
                // The process is killed in this very step.
                host.sleep(SECOND).await;
                self.alarm.raise(format!("{} failed to open its folder: {error}", host.name()));
                None
            }
        }
    }

    pub(super) async fn queue(&self, host: &Arc<SimHost>, client: Client) -> ObjectQueue {
        loop {
            match ObjectQueue::with_config(client.clone(), QueueConfig::default()).await {
                Ok(queue) => return queue,
                Err(error) => self.note(host, format!("failed to connect: {error}")),
            }
            host.sleep(SECOND).await;
        }
    }

    pub(super) fn next_submit(&self, name: &str) -> Option<NewTask> {
        let mut orders = self.orders();
        let order = orders.left.get_mut(name)?.pop()?;
        orders.open.insert(name.to_owned());
        Some(order)
    }

    pub(super) fn random_task(&self, host: &Arc<SimHost>) -> Option<TaskId> {
        let known = self.checker.submitted();
        (!known.is_empty()).then(|| known[random_index(host, known.len())])
    }

    pub(super) fn note(&self, host: &SimHost, what: String) {
        self.trace.line(self.checker.now(), host.name(), what);
    }

    pub(super) fn orders(&self) -> MutexGuard<'_, PlannedSubmits> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) fn connect(client: Client) -> Connect {
    Arc::new(move || {
        let client = client.clone();
        async move { ObjectQueue::with_config(client, QueueConfig::default()).await }.boxed()
    })
}

fn order(number: u64, is_on_node: bool, rng: &mut SimRandom) -> NewTask {
    let kind = KINDS[rng.index(KINDS.len())];
    let mut order = NewTask::new(kind, json!({ "order": number })).expect("the kinds are valid names");
    if rng.happens(2_000) {
        order.start = Start::After(rng.between(Duration::ZERO, Duration::from_mins(4)));
    }
    if rng.happens(1_000) {
        order.expires_in = Some(rng.between(Duration::from_mins(5), Duration::from_mins(20)));
    }
    // Two nodes may submit the same task.
    if is_on_node && rng.happens(2_000) {
        order =
            NewTask { input: Value::Null, ..NewTask::new("quick", Value::Null).expect("the name is valid") };
        order.idempotency_key = Some(format!("key {}", rng.below(2)));
    }
    order
}

/// Reports the end of a handler to the checker, also when it is dropped.
struct RunGuard {
    checker: OutpostChecker,
    run: u64,
}

impl Drop for RunGuard {
    fn drop(&mut self) {
        self.checker.end(self.run);
    }
}

/// Returns a random index into a collection of `len` elements.
pub(super) fn random_index(host: &Arc<SimHost>, len: usize) -> usize {
    usize::try_from(host.random() % len as u64).unwrap_or(0)
}
