//! Actors of the scenario: producers, workers and an operator.

use leasehold_core::{Error, Kind, StoreTime};
use leasehold_queue::{DirectDispatch, ObjectQueue, QueueConfig, QueueLayout};
use leasehold_store::{Client, Host, HostExt};
use leasehold_worker::{
    Context, InboxLeaseOptions, Polling, ShardLeasing, Shutdown, TaskError, Worker, WorkerOptions,
};
use serde_json::Value;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::checker::QueueChecker;
use super::migration::Migration;
use super::planned_submit::{KEYS, PlannedSubmit, REPEAT_OFFSET, planned_key};
use crate::alarm::Alarm;
use crate::host::SimHost;
use crate::random::SimRandom;
use crate::trace::Trace;
use crate::world::World;

const PRODUCERS: usize = 2;
const WORKERS: usize = 3;
/// Maximum pause between two submits.
const REST_MAX: Duration = Duration::from_secs(12);
/// Maximum pause between two submits while the number of shards changes, so that some submits come
/// afterwards.
const LONG_REST_MAX: Duration = Duration::from_secs(40);
/// Interval at which a handler checks its claim.
const SLICE: Duration = Duration::from_secs(1);

/// All actors, and the state they share.
#[derive(Clone)]
pub(super) struct QueueActors {
    pub(super) checker: QueueChecker,
    pub(super) alarm: Alarm,
    trace: Trace,
    lease: Duration,
    migration: Option<Migration>,
    /// True if operators check, repair and purge the queue, for days.
    upkeep: bool,
    /// Shortened grace period of entries without a task: only the fences make it safe.
    short_grace: Option<Duration>,
    /// Workers that lease their shards; the others serve all shards.
    leased: Vec<String>,
    /// Workers that have an inbox, and producers that dispatch to it.
    direct: Vec<String>,
    /// Submits that each producer still has to make, newest last.
    orders: Arc<[Mutex<PlannedSubmits>; PRODUCERS]>,
}

#[derive(Default)]
struct PlannedSubmits {
    left: Vec<PlannedSubmit>,
    /// True if a submit was begun and its outcome is not yet known.
    is_open: bool,
}

impl QueueActors {
    pub(super) fn new(
        world: &World,
        checker: QueueChecker,
        migration: Option<Migration>,
        upkeep: bool,
        rng: &mut SimRandom,
    ) -> Self {
        let count = 20 + rng.below(20);
        let orders: [Mutex<PlannedSubmits>; PRODUCERS] = Default::default();
        for number in 0..count {
            let (order, producer) = (PlannedSubmit::new(number, rng), rng.index(PRODUCERS));
            if world.omissions().tasks.is_none_or(|tasks| number < tasks) {
                lock(&orders[producer]).left.push(order);
            }
        }
        let is_there = |producer: &usize| !world.omissions().without.contains(&format!("p{}", producer + 1));
        let there = (0..PRODUCERS).filter(is_there).map(|producer| lock(&orders[producer]).left.len());
        checker.expect(there.sum());
        let lease = rng.between(Duration::from_secs(10), Duration::from_secs(20));
        let (alarm, trace) = (world.alarm().clone(), world.trace().clone());
        let mut leasing = world.rng("leasing");
        // Requests are delayed for longer than this grace period: only the fences keep the promises.
        let short_grace = world.rng("haste").happens(5_000).then_some(Duration::from_mins(2));
        let leased =
            (1..=WORKERS).filter(|_| leasing.happens(3_333)).map(|number| format!("w{number}")).collect();
        let mut dispatch = world.rng("direct");
        let names = (1..=WORKERS).map(|number| format!("w{number}"));
        let names = names.chain((1..=PRODUCERS).map(|number| format!("p{number}")));
        let direct = if dispatch.happens(5_000) {
            names.filter(|_| dispatch.happens(6_667)).collect()
        } else {
            Vec::new()
        };
        Self {
            checker,
            alarm,
            trace,
            lease,
            migration,
            upkeep,
            short_grace,
            leased,
            direct,
            orders: Arc::new(orders),
        }
    }

    /// Starts all actors.
    pub(super) fn start(&self, world: &World) {
        self.start_producers(world);
        for number in 1..=WORKERS {
            let (actors, name) = (self.clone(), format!("w{number}"));
            let own = name.clone();
            world.actor(&name, move |host, client| Box::pin(actors.clone().work(own.clone(), host, client)));
        }
        let actors = self.clone();
        world.actor("operator", move |host, client| Box::pin(actors.clone().operate(host, client)));
        if let Some(migration) = &self.migration {
            migration.start(self, world);
        }
    }

    fn start_producers(&self, world: &World) {
        for number in 0..PRODUCERS {
            let actors = self.clone();
            world.actor(&format!("p{}", number + 1), move |host, client| {
                Box::pin(actors.clone().produce(number, host, client))
            });
        }
    }

    pub(super) async fn connect(&self, host: &SimHost, client: Client, by: &str) -> ObjectQueue {
        let usual = QueueConfig { shard_prefix_len: Some(1), ..QueueConfig::default() };
        let mut usual = self.migration.as_ref().map_or(usual, Migration::config);
        by.clone_into(&mut usual.by);
        usual.direct = self.is_direct(by).then(DirectDispatch::default);
        let queue = self.connect_as(host, client.clone(), usual.clone()).await;
        let Some(ahead_grace) = self.short_grace else { return queue };
        let short_grace = QueueConfig { ahead_grace, submit_wait: SLICE, ..usual };
        self.connect_as(host, client.with_timeout(SLICE), short_grace).await
    }

    fn is_direct(&self, name: &str) -> bool {
        self.direct.iter().any(|direct| direct == name)
    }

    async fn connect_as(&self, host: &SimHost, client: Client, mut config: QueueConfig) -> ObjectQueue {
        loop {
            match ObjectQueue::with_config(client.clone(), config.clone()).await {
                Ok(queue) => return queue,
                Err(error) => {
                    self.note(host, format!("failed to connect: {error}"));
                    if self.has_old_shard_len(&error) {
                        config.shard_prefix_len = None;
                    }
                }
            }
            host.sleep(SLICE).await;
        }
    }

    async fn produce(self, producer: usize, host: Arc<SimHost>, client: Client) {
        if std::mem::take(&mut lock(&self.orders[producer]).is_open) {
            self.checker.count_unanswered();
        }
        let name = format!("p{}", producer + 1);
        let mut queue = self.connect(&host, client.clone(), &name).await;
        let rest_max = if self.migration.is_some() { LONG_REST_MAX } else { REST_MAX };
        loop {
            host.sleep(host.random_below(rest_max)).await;
            let order = {
                let mut orders = lock(&self.orders[producer]);
                let Some(order) = orders.left.pop() else { return };
                orders.is_open = true;
                order
            };
            let submit = queue.submit_task(order.task());
            let answer = match order.key {
                None => submit.await,
                Some(key) => submit.key(planned_key(key)).await,
            };
            self.note(&host, format!("got for submit {}: {answer:?}", order.number));
            lock(&self.orders[producer]).is_open = false;
            self.alarm.check(self.checker.check_answer(order.number, order.key, &answer));
            let Err(error) = answer else { continue };
            if self.migration.is_some() && !error.outcome_is_unknown() {
                self.checker.expect_one_more();
                lock(&self.orders[producer])
                    .left
                    .push(PlannedSubmit { number: order.number + REPEAT_OFFSET, ..order });
            }
            if self.has_old_shard_len(&error) {
                queue = self.connect(&host, client.clone(), &name).await;
            }
        }
    }

    /// Makes the existing producers use every key once more.
    pub(super) fn reuse_keys(&self, world: &World) {
        let mut rng = world.rng("again");
        for key in 0..KEYS {
            let order = PlannedSubmit {
                number: REPEAT_OFFSET * REPEAT_OFFSET + key,
                ..PlannedSubmit::new(0, &mut rng).with_key(key)
            };
            lock(&self.orders[rng.index(PRODUCERS)]).left.push(order);
            self.checker.expect_one_more();
        }
        self.start_producers(world);
    }

    /// Returns whether a client was refused because it has the old number of shards.
    pub(super) fn has_old_shard_len(&self, error: &Error) -> bool {
        self.migration.is_some()
            && error.kind() == Kind::Invalid
            && error.to_string().contains("shard_prefix_len")
    }

    async fn work(self, name: String, host: Arc<SimHost>, client: Client) {
        let mut queue = self.connect(&host, client.clone(), &name).await;
        loop {
            let shutdown = Shutdown::default();
            let is_last = self.checker.is_calm() && name == "w1";
            if self.checker.is_calm() && !is_last {
                return;
            }
            let stopping = (!is_last).then(|| {
                let (stop, sleep) = (shutdown.clone(), host.sleep(host.random_below(Duration::from_mins(4))));
                let aborts = host.random().is_multiple_of(2);
                host.spawn(Box::pin(async move {
                    sleep.await;
                    if aborts { stop.abort() } else { stop.drain() }
                }))
            });
            let ran = self.run_worker(&queue, &name, &host, shutdown).await;
            drop(stopping);
            match ran {
                Ok(()) => {}
                Err(error) if self.has_old_shard_len(&error) => {
                    queue = self.connect(&host, client.clone(), &name).await;
                }
                // The name is still held by an earlier process, or could not be renewed.
                Err(error)
                    if self.is_direct(&name) && matches!(error.kind(), Kind::Unavailable | Kind::Lost) =>
                {
                    self.note(&host, format!("failed to take its name: {error}"));
                    host.sleep(SLICE * 5).await;
                }
                Err(error) => self.alarm.raise(format!("{name} ended: {error}")),
            }
        }
    }

    async fn run_worker(
        &self,
        queue: &ObjectQueue,
        name: &str,
        host: &Arc<SimHost>,
        shutdown: Shutdown,
    ) -> leasehold_core::Result<()> {
        let (actors, own) = (self.clone(), host.clone());
        // Without faults little happens.
        let (scan_every, recover_every) = if self.checker.is_calm() { (60, 45) } else { (15, 10) };
        // Days of renewals would add nothing.
        let is_for_days = self.checker.is_calm() && self.upkeep;
        let is_leased = !is_for_days && self.leased.iter().any(|leased| leased == name);
        let polling = Polling { max: Duration::from_secs(scan_every), ..Polling::default() };
        let options = WorkerOptions {
            concurrency: 3,
            lease: self.lease,
            polling,
            drain: Duration::from_secs(8),
            recover_every: Duration::from_secs(recover_every),
            leasing: is_leased.then(ShardLeasing::default),
            inbox: self.is_direct(name).then(InboxLeaseOptions::default),
            ..WorkerOptions::default()
        };
        let worker = Worker::new(queue.clone(), name, None)?.options(options);
        let worker =
            worker.handle("*", move |context, _: Value| actors.clone().handle(own.clone(), context))?;
        let counts = worker.run(shutdown).await?;
        self.note(host, format!("has stopped: {counts:?}"));
        Ok(())
    }

    /// One run of a handler.
    async fn handle(self, host: Arc<SimHost>, context: Context) -> Result<u64, TaskError> {
        let run = match self.checker.begin(&context, host.process()) {
            Ok(run) => run,
            Err(wrong) => {
                self.alarm.raise(wrong);
                return Ok(0);
            }
        };
        let _guard = RunGuard { checker: self.checker.clone(), run };
        let most = if context.task().task_type.as_str() == "long" { self.lease * 3 } else { SLICE * 2 };
        let until = self.checker.now() + host.random_below(most);
        loop {
            self.alarm.check(self.checker.check_running(run));
            if self.checker.now() >= until {
                break;
            }
            host.sleep(SLICE.min(until.saturating_sub(self.checker.now()) + Duration::from_millis(1))).await;
        }
        if let Some(failure) = requested_failure(&context, &host) {
            return Err(failure);
        }
        self.checker.succeed(&context);
        Ok(context.epoch())
    }

    async fn operate(self, host: Arc<SimHost>, client: Client) {
        let mut queue = self.connect(&host, client.clone(), "operator").await;
        while !self.checker.is_calm() {
            host.sleep(host.random_below(REST_MAX)).await;
            let known = self.checker.acknowledged();
            if known.is_empty() {
                continue;
            }
            let id = known[usize::try_from(host.random() % known.len() as u64).unwrap_or(0)];
            let what = host.random() % 4;
            let done = match what {
                0 => queue.cancel(&id).await,
                1 | 2 => queue.retry(&id).await,
                _ => match queue.now() {
                    Ok(now) => queue.reschedule(&id, soon(now.earliest, &host)).await,
                    Err(error) => Err(error),
                },
            };
            let done = done.map(|done| format!("{done:?}").chars().take(60).collect::<String>());
            self.note(&host, format!("made operation {what} on {id}: {done:?}"));
            if done.is_err_and(|error| self.has_old_shard_len(&error)) {
                queue = self.connect(&host, client.clone(), "operator").await;
            }
        }
    }

    pub(super) fn note(&self, host: &SimHost, what: String) {
        self.trace.line(self.checker.now(), host.name(), what);
    }
}

fn soon(now: StoreTime, host: &SimHost) -> StoreTime {
    now.plus(host.random_below(Duration::from_mins(3)))
}

/// Reports the end of a handler to the checker, also when it is dropped.
struct RunGuard {
    checker: QueueChecker,
    run: u64,
}

impl Drop for RunGuard {
    fn drop(&mut self) {
        self.checker.end(self.run);
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Failure of a run that the type of its task asks for, if any.
pub(crate) fn requested_failure(context: &Context, host: &SimHost) -> Option<TaskError> {
    let (kind, attempt) = (context.task().task_type.as_str(), context.attempt());
    match kind {
        "retries" if attempt < 3 => Some(TaskError::Retry("not yet".into())),
        "fatal" => Some(TaskError::Permanent("never".into())),
        "snoozes" if context.epoch() < 3 => {
            Some(TaskError::Snooze(host.random_below(Duration::from_mins(1))))
        }
        // Avoids the message that a normal panic prints.
        "panics" if attempt < 2 => std::panic::resume_unwind(Box::new("as asked")),
        _ => None,
    }
}
