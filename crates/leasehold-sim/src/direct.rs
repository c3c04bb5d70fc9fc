//! Scenario `direct`: direct dispatch under all faults.
//!
//! Producers put tasks into inboxes, and rely on their list of workers for minutes. Workers have inboxes,
//! share all shards or lease some; two of those with inboxes use one worker id. Handlers are slow, so that inboxes
//! fill up, and all processes are killed, paused and stalled, also while they empty the inbox of another
//! worker. After every step no two processes may trust one inbox. After faults have stopped, every
//! acknowledged task must be completed once, and no entry may be left.

use leasehold_core::{Error, Kind, NewTask};
use leasehold_queue::{DirectDispatch, ObjectQueue, QueueConfig, Selection};
use leasehold_store::{Client, Host, HostExt};
use leasehold_worker::{
    Context, InboxLeaseOptions, ShardLeasing, Shutdown, TaskError, Worker, WorkerOptions, WorkerView,
};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::alarm::Alarm;
use crate::bucket::{BucketChange, BucketObjects, SimBucket};
use crate::executor::{Executor, ProcessId};
use crate::failed::Failed;
use crate::host::SimHost;
use crate::queue::raw::{Raw, RawEntry, task_id};
use crate::trace::Trace;
use crate::world::World;

/// Workers, and how they find tasks.
const WORKERS: [(&str, &str, WorkerKind); 5] = [
    ("m1", "d1", WorkerKind::Direct),
    ("m2", "d1", WorkerKind::Direct),
    ("m3", "d2", WorkerKind::Direct),
    ("m4", "s1", WorkerKind::Shared),
    ("m5", "l1", WorkerKind::Leased),
];
/// Worker that leaves permanently, drained or not: other workers must empty its inbox.
const LEAVES: &str = "d2";
const PRODUCERS: u64 = 2;
const TASKS_MAX: u64 = 60;
const SELECTIONS: [Selection; 3] = [Selection::RoundRobin, Selection::Hash, Selection::Random];
/// Time after which faults stop.
const FAULTS_FOR: Duration = Duration::from_mins(6);
/// Time until all tasks have ended; the store's time may have been set back by hours.
const REST_WITHIN: Duration = Duration::from_hours(8);
/// Time until the last delayed request has arrived, and the grace periods of what it left have passed.
const LATE_WITHIN: Duration = Duration::from_mins(62);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WorkerKind {
    Direct,
    Shared,
    Leased,
}

/// Plays the scenario. The summary counts tasks.
pub(crate) fn play(world: &mut World) -> Result<String, Failed> {
    let mut rng = world.rng("direct");
    let checker = InboxChecker::new(world);
    let checking = checker.clone();
    world.check(move |change, _| checking.changed(change));
    world.stop_faults_at(FAULTS_FOR);
    let discovery_ttl = rng.between(Duration::ZERO, Duration::from_mins(3));
    let direct = DirectDispatch { discovery_ttl, selection: SELECTIONS[rng.index(SELECTIONS.len())] };
    for number in 0..PRODUCERS {
        let (tasks, name) = (10 + rng.below(TASKS_MAX), format!("p{}", number + 1));
        checker.observed().producing += tasks;
        let producer = Producer {
            number,
            left: Arc::new(Mutex::new((tasks, false))),
            direct: direct.clone(),
            checker: checker.clone(),
        };
        world.actor(&name, move |host, client| Box::pin(producer.clone().play(host, client)));
    }
    for (machine, name, kind) in WORKERS {
        let checker = checker.clone();
        world.actor(machine, move |host, client| Box::pin(work(checker.clone(), name, kind, host, client)));
    }
    let executor = world.executor().clone();
    let is_at_rest = || {
        checker.alarm.check(checker.check_trust());
        executor.now() > FAULTS_FOR && checker.is_at_rest()
    };
    world.run_until(is_at_rest, FAULTS_FOR + REST_WITHIN)?;
    world.run_for(LATE_WITHIN)?;
    world.run_until(|| checker.is_at_rest(), REST_WITHIN)?;
    checker.summary(&world.objects()).map_err(|message| world.failed(message))
}

/// Remaining submits of one producer. A restarted producer continues where the last one was.
#[derive(Clone)]
struct Producer {
    number: u64,
    /// Number of submits, and whether one was begun whose outcome is not yet known.
    left: Arc<Mutex<(u64, bool)>>,
    direct: DirectDispatch,
    checker: InboxChecker,
}

impl Producer {
    async fn play(self, host: Arc<SimHost>, client: Client) {
        if std::mem::take(&mut lock(&self.left).1) {
            self.checker.observed().producing -= 1;
        }
        let config = QueueConfig { direct: Some(self.direct.clone()), ..QueueConfig::default() };
        let queue = self.checker.connect(&host, client, config).await;
        loop {
            host.sleep(host.random_below(Duration::from_secs(8))).await;
            {
                let mut left = lock(&self.left);
                if left.0 == 0 {
                    return;
                }
                *left = (left.0 - 1, true);
            }
            let answer =
                queue.submit_task(NewTask::new("t", self.number.into()).expect("the name is valid")).await;
            lock(&self.left).1 = false;
            let mut observed = self.checker.observed();
            observed.producing -= 1;
            observed.acknowledged.extend(answer.ok().map(|submitted| submitted.id.to_string()));
        }
    }
}

async fn work(
    checker: InboxChecker,
    name: &'static str,
    kind: WorkerKind,
    host: Arc<SimHost>,
    client: Client,
) {
    let queue = checker.connect(&host, client, QueueConfig::default()).await;
    loop {
        let shutdown = Shutdown::default();
        let is_calm = checker.executor.now() > FAULTS_FOR;
        if is_calm && name == LEAVES {
            return;
        }
        let stopping = (!is_calm).then(|| {
            let (stop, asleep) = (shutdown.clone(), host.sleep(host.random_below(FAULTS_FOR)));
            host.spawn(Box::pin(async move {
                asleep.await;
                stop.drain();
            }))
        });
        let ran = run(&checker, &queue, name, kind, &host, shutdown).await;
        drop(stopping);
        checker.observed().workers.remove(&host.process());
        match ran {
            Ok(()) => {}
            // Another worker holds the name, or took it over.
            Err(error) if kind == WorkerKind::Direct && is_name_conflict(&error) => {
                checker.note(&host, &format!("failed to take its name: {error}"));
            }
            Err(error) => checker.alarm.raise(format!("{name} ended: {error}")),
        }
        host.sleep(Duration::from_secs(1) + host.random_below(Duration::from_secs(20))).await;
    }
}

fn is_name_conflict(error: &Error) -> bool {
    matches!(error.kind(), Kind::Unavailable | Kind::Lost)
}

async fn run(
    checker: &InboxChecker,
    queue: &ObjectQueue,
    name: &str,
    kind: WorkerKind,
    host: &Arc<SimHost>,
    shutdown: Shutdown,
) -> leasehold_core::Result<()> {
    let options = WorkerOptions {
        concurrency: 2,
        lease: Duration::from_secs(20),
        drain: Duration::from_secs(5),
        inbox: (kind == WorkerKind::Direct).then(InboxLeaseOptions::default),
        leasing: (kind == WorkerKind::Leased).then(ShardLeasing::default),
        ..WorkerOptions::default()
    };
    let worker = Worker::new(queue.clone(), name, None)?.options(options);
    let (own, times) = (host.clone(), checker.clone());
    let worker = worker.handle("*", move |_: Context, _: Value| {
        // Inboxes must fill up while there are faults.
        let is_calm = times.executor.now() > FAULTS_FOR;
        let asleep = own.sleep(own.random_below(Duration::from_secs(if is_calm { 1 } else { 40 })));
        async move {
            asleep.await;
            Ok::<_, TaskError>(Value::Null)
        }
    })?;
    checker.observed().workers.insert(host.process(), (name.to_owned(), worker.view()));
    worker.run(shutdown).await.map(|_| ())
}

/// Tracks all processes and tasks, and checks which inboxes they trust.
#[derive(Clone)]
struct InboxChecker {
    executor: Executor,
    bucket: Arc<SimBucket>,
    alarm: Alarm,
    trace: Trace,
    observed: Arc<Mutex<Observed>>,
}

#[derive(Default)]
struct Observed {
    workers: BTreeMap<ProcessId, (String, WorkerView)>,
    /// Number of submits still to be made.
    producing: u64,
    acknowledged: BTreeSet<String>,
    /// Tasks that are not final.
    open: BTreeSet<String>,
    /// Number of entries written to the overflow.
    rescued: u64,
    /// Number of entries written to an inbox.
    dispatched: u64,
}

impl InboxChecker {
    fn new(world: &World) -> Self {
        Self {
            executor: world.executor().clone(),
            bucket: world.bucket_handle(),
            alarm: world.alarm().clone(),
            trace: world.trace().clone(),
            observed: Arc::default(),
        }
    }

    async fn connect(&self, host: &SimHost, client: Client, config: QueueConfig) -> ObjectQueue {
        loop {
            match ObjectQueue::with_config(client.clone(), config.clone()).await {
                Ok(queue) => return queue,
                Err(error) => self.note(host, &format!("failed to connect: {error}")),
            }
            host.sleep(Duration::from_secs(1)).await;
        }
    }

    fn note(&self, host: &SimHost, what: &str) {
        self.trace.line(self.executor.now(), host.name(), what);
    }

    fn changed(&self, change: &BucketChange) -> Result<(), String> {
        crate::leases::check_change(change)?;
        let mut observed = self.observed();
        observed.rescued += u64::from(change.key.starts_with("overflow/") && change.before.is_none());
        observed.dispatched += u64::from(change.key.starts_with("inbox/") && change.before.is_none());
        let Some(id) = task_id(&change.key) else { return Ok(()) };
        let Some(after) = &change.after else { return Err(format!("P1: task {id} was deleted")) };
        if Raw::read(after)?.is_final() {
            observed.open.remove(id);
        } else {
            observed.open.insert(id.to_owned());
        }
        Ok(())
    }

    /// Checks that no two processes trust one inbox. After a jump of the store's time any process may be
    /// mistaken.
    fn check_trust(&self) -> Result<(), String> {
        if self.bucket.jumped_at().is_some() {
            return Ok(());
        }
        let observed = self.observed();
        let mut owners = BTreeMap::<&str, ProcessId>::new();
        for (process, (name, view)) in &observed.workers {
            let runs = self.executor.is_alive(*process) && !self.executor.is_paused(*process);
            if runs
                && view.has_inbox()
                && let Some(other) = owners.insert(name, *process)
            {
                let (one, other) = (other.number(), process.number());
                return Err(format!("P2: processes {one} and {other} both trust the inbox of {name}"));
            }
        }
        Ok(())
    }

    fn is_at_rest(&self) -> bool {
        let observed = self.observed();
        // This runs after every step, so the scan of all objects comes last.
        observed.producing == 0 && observed.open.is_empty() && !self.has_entries()
    }

    fn has_entries(&self) -> bool {
        self.bucket.with_objects(|objects| objects.keys().any(|key| RawEntry::read(key).is_some()))
    }

    /// Returns a summary. Fails if a task was not completed, or completed twice.
    fn summary(&self, objects: &BucketObjects) -> Result<String, String> {
        let mut completed = BTreeSet::new();
        for (key, stored) in objects {
            let Some(id) = task_id(key) else { continue };
            let task = Raw::read(stored)?;
            let ends = task.history().iter().filter(|event| event["event"] == "complete").count();
            if task.status() == "completed" && ends != 1 {
                return Err(format!("P3: task {id} was completed {ends} times"));
            }
            if task.status() == "completed" {
                completed.insert(id.to_owned());
            }
        }
        let observed = self.observed();
        // An attempt may be lost with its worker, and the number of attempts is limited.
        let lost: Vec<_> = observed.acknowledged.iter().filter(|id| !is_ended(objects, id)).collect();
        if !lost.is_empty() {
            return Err(format!("P1: tasks were acknowledged, but have not ended: {lost:?}"));
        }
        let Observed { acknowledged, rescued, dispatched, .. } = &*observed;
        Ok(format!(
            "{} acknowledged, {dispatched} dispatched, {rescued} rescued, {} completed",
            acknowledged.len(),
            completed.len()
        ))
    }

    fn observed(&self) -> MutexGuard<'_, Observed> {
        lock(&self.observed)
    }
}

fn is_ended(objects: &BucketObjects, id: &str) -> bool {
    let of_task = objects.iter().find(|(key, _)| task_id(key) == Some(id));
    let task = of_task.and_then(|(_, stored)| Raw::read(stored).ok());
    task.is_some_and(|task| matches!(task.status(), "completed" | "failed") && !task.is_tombstone())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
