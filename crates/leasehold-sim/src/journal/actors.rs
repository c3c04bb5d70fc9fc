//! Actors of the scenario: nodes, each with producers, a worker and an operator in one process; a reader; and an operator
//! who breaks the lease.

use futures::TryStreamExt;
use leasehold_core::{Error, Event, Kind, TaskId, keys};
use leasehold_queue::{Filter, LayoutName, Queue, QueueConfig, UniqueKey, break_lease};
use leasehold_store::{Client, Host, HostExt};
use leasehold_worker::{Polling, Shutdown, Worker, WorkerOptions};
use serde_json::Value;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::checker::JournalChecker;
use super::pace::Pace;
use super::paused_fence::pause_before_fences;
use super::source::{RecordedSource, Recorder};
use super::wiring::Wiring;
use crate::alarm::Alarm;
use crate::executor::ProcessId;
use crate::faults::Faults;
use crate::host::SimHost;
use crate::queue::planned_submit::{KEYS, PlannedSubmit, REPEAT_OFFSET, planned_key};
use crate::random::SimRandom;
use crate::trace::Trace;
use crate::world::World;

pub(super) const NODES: usize = 3;
/// Name of the process that only reads.
pub(super) const READER: &str = "reader";
/// Node that is the broker first, in a world with a slow takeover.
const FIRST_BROKER: usize = 0;
pub(super) const SECOND: Duration = Duration::from_secs(1);
/// Earliest time of the slow takeover of a world that has one.
const SLOW_TAKEOVER_AT: Duration = Duration::from_secs(20);
/// Maximum pause between two sessions, and between two reads without the lease.
const REST_MAX: Duration = Duration::from_secs(8);
/// Maximum time for which a task is waited for.
const WAIT_MAX: Duration = Duration::from_secs(15);
/// Maximum time for which a node works before it hands over, after faults have stopped.
const CALM_SESSION_MAX: Duration = Duration::from_mins(1);
/// Maximum time between two cuts of a link, and the longest of them: longer than the lease on the journal and a claim.
const CUT_EVERY_MAX: Duration = Duration::from_mins(2);
const CUT_MAX: Duration = Duration::from_secs(90);

/// All actors, and the state they share.
#[derive(Clone)]
pub(super) struct JournalActors {
    pub(super) checker: JournalChecker,
    pub(super) alarm: Alarm,
    trace: Trace,
    pub(super) pace: Pace,
    wiring: Wiring,
    has_faults: bool,
    /// Submits that each node still has to make, newest last.
    orders: Arc<[Mutex<NodeSubmits>; NODES]>,
}

#[derive(Default)]
struct NodeSubmits {
    left: Vec<PlannedSubmit>,
    /// True if a submit was begun and its outcome is not yet known.
    is_open: bool,
}

/// End of a session of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SessionEnd {
    /// Running tasks finish, then the queue is closed.
    Drained,
    /// Running tasks are released, then the queue is closed.
    Aborted,
    /// The queue is closed while tasks run, and the next request opens it again; then as above.
    ClosedBefore,
    /// Everything is dropped, as if the program had forgotten it. The lease is left to expire.
    Dropped,
}

impl JournalActors {
    pub(super) fn new(world: &World, checker: JournalChecker, rng: &mut SimRandom) -> Self {
        let orders: [Mutex<NodeSubmits>; NODES] = Default::default();
        let (mut pace, mut wiring) = (Pace::random(rng), Wiring::default());
        // Clients of the first broker would not take over.
        if !pace.has_slow_takeover
            && let Some(connected) = Wiring::random(world)
        {
            (pace, wiring) = (Pace::of_connected(rng), connected);
        }
        for number in 0..pace.submits {
            let (order, node) = (pace.submit(number, rng), rng.index(NODES));
            let is_there = !world.omissions().without.contains(&node_name(node));
            if is_there && world.omissions().tasks.is_none_or(|tasks| number < tasks) {
                checker.expect(1);
                lock(&orders[node]).left.push(order);
            }
        }
        Self {
            checker,
            alarm: world.alarm().clone(),
            trace: world.trace().clone(),
            pace,
            wiring,
            has_faults: world.faults() != Faults::none(),
            orders: Arc::new(orders),
        }
    }

    /// Starts all actors.
    pub(super) fn start(&self, world: &World) {
        if self.has_faults && self.pace.has_slow_takeover {
            pause_before_fences(world, &self.checker);
        }
        for node in 0..NODES {
            let actors = self.clone();
            world.actor(&node_name(node), move |host, client| {
                Box::pin(actors.clone().live(node, host, client))
            });
        }
        let actors = self.clone();
        world.actor(READER, move |host, client| Box::pin(actors.clone().follow(host, client)));
        if self.has_faults {
            let actors = self.clone();
            world.actor("breaker", move |host, client| Box::pin(actors.clone().break_leases(host, client)));
            if !self.pace.has_slow_takeover {
                self.cut_links(world);
                self.wiring.part_nodes(world, self.checker.clone());
            }
        }
    }

    /// Cuts a node off from the bucket now and then: it cannot renew its lease, and does not know what others do.
    fn cut_links(&self, world: &World) {
        let (links, executor, mut rng) = (world.links(), world.executor().clone(), world.rng("links"));
        let checker = self.checker.clone();
        world.spawn(ProcessId::WORLD, async move {
            while !checker.is_calm() {
                executor.sleep(rng.between(Duration::ZERO, CUT_EVERY_MAX)).await;
                let (node, duration) = (node_name(rng.index(NODES)), rng.between(SECOND, CUT_MAX));
                links.cut(&node, duration);
            }
        });
    }

    /// Life of a node: it opens the queue, works for a while, hands over, and rests.
    async fn live(self, node: usize, host: Arc<SimHost>, client: Client) {
        if std::mem::take(&mut lock(&self.orders[node]).is_open) {
            self.checker.count_unanswered();
        }
        if self.pace.has_slow_takeover && node != FIRST_BROKER {
            host.sleep(SECOND * 10).await;
        }
        loop {
            let queue = self.connect(&host, client.clone(), &node_name(node)).await;
            self.session(node, &host, queue).await;
            host.sleep(host.random_below(REST_MAX)).await;
            // Nothing is left to do, but delayed requests still arrive.
            while self.checker.is_at_rest() {
                host.sleep(Duration::from_mins(1)).await;
            }
        }
    }

    pub(super) async fn connect(&self, host: &Arc<SimHost>, client: Client, by: &str) -> Queue {
        let layout = Some(LayoutName::Journal);
        loop {
            let config = QueueConfig {
                layout,
                by: by.to_owned(),
                snapshots: self.pace.snapshots,
                transport: self.wiring.transport(host, by),
                ..QueueConfig::default()
            };
            match Queue::with_config(client.clone(), config).await {
                Ok(queue) => return queue,
                Err(error) => {
                    self.note(host, format!("failed to connect: {error}"));
                    self.alarm.check(self.checker.check_error(&error));
                }
            }
            host.sleep(SECOND).await;
        }
    }

    async fn session(&self, node: usize, host: &Arc<SimHost>, queue: Queue) {
        let shutdown = Shutdown::default();
        let (actors, own, producing) = (self.clone(), host.clone(), queue.clone());
        let producer = host.spawn(Box::pin(async move { actors.produce(node, &own, &producing).await }));
        let (actors, own, operating) = (self.clone(), host.clone(), queue.clone());
        let operator = host.spawn(Box::pin(async move { actors.operate(node, &own, &operating).await }));
        let (actors, own, working, stop) = (self.clone(), host.clone(), queue.clone(), shutdown.clone());
        let worker = host.spawn(Box::pin(async move { actors.work(node, &own, &working, stop).await }));
        let end = self.random_end(host);
        host.sleep(host.random_below(self.session_max())).await;
        self.note(host, format!("ends its session: {end:?}"));
        if end == SessionEnd::ClosedBefore {
            self.close(host, &queue).await;
            host.sleep(host.random_below(self.session_max())).await;
        }
        drop((producer, operator));
        if std::mem::take(&mut lock(&self.orders[node]).is_open) {
            self.checker.count_unanswered();
        }
        match end {
            SessionEnd::Dropped => return,
            SessionEnd::Aborted => shutdown.abort(),
            SessionEnd::Drained | SessionEnd::ClosedBefore => shutdown.drain(),
        }
        worker.await;
        self.close(host, &queue).await;
    }

    /// Without faults every node gets its turn soon.
    fn session_max(&self) -> Duration {
        if self.checker.is_calm() { self.pace.session.min(CALM_SESSION_MAX) } else { self.pace.session }
    }

    fn random_end(&self, host: &SimHost) -> SessionEnd {
        let ends = [SessionEnd::Drained, SessionEnd::Aborted, SessionEnd::ClosedBefore, SessionEnd::Dropped];
        let most = if self.checker.is_calm() { 2 } else { ends.len() as u64 };
        ends[usize::try_from(host.random() % most).unwrap_or(0)]
    }

    async fn close(&self, host: &SimHost, queue: &Queue) {
        if let Err(error) = queue.close().await {
            self.note(host, format!("failed to close: {error}"));
            self.alarm.check(self.checker.check_error(&error));
        }
    }

    async fn produce(&self, node: usize, host: &SimHost, queue: &Queue) {
        loop {
            host.sleep(host.random_below(self.pace.submit_every)).await;
            let order = {
                let mut orders = lock(&self.orders[node]);
                let Some(order) = orders.left.pop() else { return };
                orders.is_open = true;
                order
            };
            let sent = self.checker.sent();
            let submit = queue.submit_task(order.task());
            let answer = match order.key {
                None => submit.await,
                Some(key) => submit.key(unique_key(key)).await,
            };
            self.note(host, format!("got for submit {}: {answer:?}", order.number));
            lock(&self.orders[node]).is_open = false;
            self.alarm.check(self.checker.check_submitted((order.number, order.key), &answer, sent));
            // Another process is the broker: this one tries again.
            if answer.is_err_and(|error| !error.outcome_is_unknown()) {
                self.checker.expect(1);
                let number = order.number + REPEAT_OFFSET;
                lock(&self.orders[node]).left.push(PlannedSubmit { number, ..order });
            }
        }
    }

    async fn work(&self, node: usize, host: &Arc<SimHost>, queue: &Queue, shutdown: Shutdown) {
        let Some(source) = queue.task_source_factory() else { return };
        let record =
            Recorder { queue: queue.clone(), checker: self.checker.clone(), alarm: self.alarm.clone() };
        let source = Arc::new(RecordedSource { source, record });
        while !shutdown.is_requested() {
            match self.run_worker(node, host, source.clone(), shutdown.clone()).await {
                Ok(()) => {}
                Err(error) if error.kind() == Kind::Unavailable => {
                    self.note(host, format!("cannot work: {error}"));
                    host.sleep(SECOND).await;
                }
                Err(error) => self.alarm.raise(format!("{} ended: {error}", host.name())),
            }
        }
    }

    async fn run_worker(
        &self,
        node: usize,
        host: &Arc<SimHost>,
        source: Arc<RecordedSource>,
        shutdown: Shutdown,
    ) -> leasehold_core::Result<()> {
        let (actors, own) = (self.clone(), host.clone());
        let options = WorkerOptions {
            concurrency: 3,
            lease: self.pace.lease,
            polling: Polling { min: SECOND, ..Polling::default() },
            drain: Duration::from_secs(8),
            ..WorkerOptions::default()
        };
        let worker = Worker::from_source(source, host.clone(), &node_name(node))?.options(options);
        let worker =
            worker.handle("*", move |context, _: Value| actors.clone().handle(own.clone(), context))?;
        let counts = worker.run(shutdown).await?;
        self.note(host, format!("has stopped: {counts:?}"));
        Ok(())
    }

    /// Operates and reads through the queue of a node.
    async fn operate(&self, node: usize, host: &SimHost, queue: &Queue) {
        while !self.checker.is_calm() {
            host.sleep(host.random_below(self.pace.operate_every)).await;
            let Some(id) = self.random_task(host) else { continue };
            match host.random() % 7 {
                0 => self.operate_once(node, host, queue, id, Event::Cancel).await,
                1 | 2 => self.operate_once(node, host, queue, id, Event::Retry).await,
                3 => {
                    let Ok(now) = queue.now() else { continue };
                    let at = now.earliest.plus(host.random_below(Duration::from_mins(3)));
                    self.operate_once(node, host, queue, id, Event::Reschedule { at }).await;
                }
                4 => self.read_one(host, queue, id).await,
                5 => self.wait_for_one(host, queue, id).await,
                _ => self.read_all(host, queue).await,
            }
        }
    }

    async fn operate_once(&self, node: usize, host: &SimHost, queue: &Queue, id: TaskId, event: Event) {
        let (name, sent) = (event.name(), self.checker.sent());
        let done = queue.operate(&id, event).await;
        let text: String = format!("{done:?}").chars().take(120).collect();
        self.note(host, format!("got for {name} of {id}: {text}"));
        self.alarm.check(self.checker.check_operated((id, name, &node_name(node)), &done, sent));
    }

    pub(super) async fn read_one(&self, host: &SimHost, queue: &Queue, id: TaskId) {
        let sent = self.checker.sent();
        let read = queue.get(&id).await;
        self.note(host, format!("reads {id}: {}", describe(read.as_ref().map(|task| task.rev))));
        self.alarm.check(self.checker.check_read(id, &read, sent));
    }

    async fn wait_for_one(&self, host: &SimHost, queue: &Queue, id: TaskId) {
        let waited = queue.wait(&id, Some(WAIT_MAX)).await;
        self.note(host, format!("waits for {id}: {}", describe(waited.as_ref().map(|task| task.rev))));
        self.alarm.check(self.checker.check_waited(id, &waited));
    }

    pub(super) async fn read_all(&self, host: &SimHost, queue: &Queue) {
        let sent = self.checker.sent();
        let list = queue.list(Filter::default()).try_collect::<Vec<_>>().await;
        self.note(host, format!("lists: {}", describe(list.as_ref().map(Vec::len))));
        self.alarm.check(self.checker.check_list(&list, sent));
    }

    /// Reads without the lease.
    async fn follow(self, host: Arc<SimHost>, client: Client) {
        let queue = self.connect(&host, client, READER).await;
        while !self.checker.is_calm() {
            host.sleep(host.random_below(REST_MAX * 2)).await;
            match self.random_task(&host) {
                Some(id) if host.random().is_multiple_of(2) => self.read_one(&host, &queue, id).await,
                _ => self.read_all(&host, &queue).await,
            }
        }
    }

    /// Breaks the lease of the broker, although it may live.
    async fn break_leases(self, host: Arc<SimHost>, client: Client) {
        // The first request teaches the clock.
        drop(self.connect(&host, client.clone(), "breaker").await);
        loop {
            let pause = host.random_below(self.pace.break_every);
            host.sleep(if self.pace.has_slow_takeover { SLOW_TAKEOVER_AT + pause } else { pause }).await;
            if self.checker.is_calm()
                || (self.pace.has_slow_takeover && self.checker.now() > SLOW_TAKEOVER_AT * 2)
            {
                return;
            }
            let broken = break_lease(&client, keys::JOURNAL_LEASE, &serde_json::Map::new()).await;
            self.note(
                &host,
                format!(
                    "breaks the lease: {}",
                    describe(broken.map(|lease| lease.and_then(|info| info.lease).map(|lease| lease.epoch)))
                ),
            );
        }
    }

    fn random_task(&self, host: &SimHost) -> Option<TaskId> {
        let known = self.checker.acknowledged();
        let at = host.random() % known.len().max(1) as u64;
        known.get(usize::try_from(at).unwrap_or(0)).copied()
    }

    pub(super) fn note(&self, host: &SimHost, what: String) {
        self.trace.line(self.checker.now(), host.name(), what);
    }
}

fn describe(result: Result<impl std::fmt::Debug, impl std::borrow::Borrow<Error>>) -> String {
    match result {
        Ok(value) => format!("{value:?}"),
        Err(error) => error.borrow().to_string(),
    }
}

/// One of the keys retries a task that has failed.
fn unique_key(key: u64) -> UniqueKey {
    UniqueKey { retry_failed: key == KEYS - 1, ..planned_key(key) }
}

pub(super) fn node_name(node: usize) -> String {
    format!("n{}", node + 1)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
