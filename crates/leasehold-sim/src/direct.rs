//! Scenario `direct`: direct dispatch under all faults.
//!
//! Producers put tasks into inboxes, and rely on their list of workers for minutes. Workers have inboxes,
//! share all shards or lease some; two of those with inboxes use one name. Handlers are slow, so that inboxes
//! fill up, and all processes are killed, paused and stalled, also while they empty the inbox of another
//! worker. After every step no two processes may trust one inbox. After faults have stopped, every
//! acknowledged task must be completed once, and no pointer may be left.

use leasehold_core::{Error, Kind, NewTask};
use leasehold_queue::{DirectDispatch, Queue, QueueConfig, Selection};
use leasehold_store::{Client, Host, HostExt};
use leasehold_worker::{
    Context, InboxLease, Monitor, ShardLeasing, Shutdown, TaskError, Worker, WorkerOptions,
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
const WORKERS: [(&str, &str, Kindred); 5] = [
    ("m1", "d1", Kindred::Direct),
    ("m2", "d1", Kindred::Direct),
    ("m3", "d2", Kindred::Direct),
    ("m4", "s1", Kindred::Shared),
    ("m5", "l1", Kindred::Leased),
];
/// Name of a worker that leaves for good, drained or not: other workers must empty its inbox.
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
enum Kindred {
    Direct,
    Shared,
    Leased,
}

/// Plays the scenario. The summary counts tasks.
pub(crate) fn play(world: &mut World) -> Result<String, Failed> {
    let mut chance = world.chance("direct");
    let watch = Watch::new(world);
    let watching = watch.clone();
    world.check(move |change, _| watching.changed(change));
    world.stop_faults_at(FAULTS_FOR);
    let discovery_ttl = chance.between(Duration::ZERO, Duration::from_mins(3));
    let direct = DirectDispatch { discovery_ttl, selection: SELECTIONS[chance.index(SELECTIONS.len())] };
    for number in 0..PRODUCERS {
        let (tasks, name) = (10 + chance.below(TASKS_MAX), format!("p{}", number + 1));
        watch.seen().producing += tasks;
        let part = Producer {
            number,
            left: Arc::new(Mutex::new((tasks, false))),
            direct: direct.clone(),
            watch: watch.clone(),
        };
        world.actor(&name, move |host, client| Box::pin(part.clone().play(host, client)));
    }
    for (machine, name, kindred) in WORKERS {
        let watch = watch.clone();
        world.actor(machine, move |host, client| Box::pin(work(watch.clone(), name, kindred, host, client)));
    }
    let executor = world.executor().clone();
    let is_at_rest = || {
        watch.alarm.check(watch.look());
        executor.now() > FAULTS_FOR && watch.is_at_rest()
    };
    world.run_until(is_at_rest, FAULTS_FOR + REST_WITHIN)?;
    world.run_for(LATE_WITHIN)?;
    world.run_until(|| watch.is_at_rest(), REST_WITHIN)?;
    watch.sum_up(&world.objects()).map_err(|message| world.failed(message))
}

/// Remaining submits of one producer. A restarted producer continues where the last one was.
#[derive(Clone)]
struct Producer {
    number: u64,
    /// Number of submits, and whether one was begun whose outcome is not yet known.
    left: Arc<Mutex<(u64, bool)>>,
    direct: DirectDispatch,
    watch: Watch,
}

impl Producer {
    async fn play(self, host: Arc<SimHost>, client: Client) {
        if std::mem::take(&mut lock(&self.left).1) {
            self.watch.seen().producing -= 1;
        }
        let config = QueueConfig { direct: Some(self.direct.clone()), ..QueueConfig::default() };
        let queue = self.watch.connect(&host, client, config).await;
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
            let mut seen = self.watch.seen();
            seen.producing -= 1;
            seen.acknowledged.extend(answer.ok().map(|submitted| submitted.id.to_string()));
        }
    }
}

async fn work(watch: Watch, name: &'static str, kindred: Kindred, host: Arc<SimHost>, client: Client) {
    let queue = watch.connect(&host, client, QueueConfig::default()).await;
    loop {
        let shutdown = Shutdown::default();
        let is_calm = watch.executor.now() > FAULTS_FOR;
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
        let ran = run(&watch, &queue, name, kindred, &host, shutdown).await;
        drop(stopping);
        watch.seen().workers.remove(&host.process());
        match ran {
            Ok(()) => {}
            // Another worker holds the name, or took it over.
            Err(error) if kindred == Kindred::Direct && is_about_names(&error) => {
                watch.note(&host, &format!("failed to take its name: {error}"));
            }
            Err(error) => watch.alarm.raise(format!("{name} ended: {error}")),
        }
        host.sleep(Duration::from_secs(1) + host.random_below(Duration::from_secs(20))).await;
    }
}

fn is_about_names(error: &Error) -> bool {
    matches!(error.kind(), Kind::Unavailable | Kind::Lost)
}

async fn run(
    watch: &Watch,
    queue: &Queue,
    name: &str,
    kindred: Kindred,
    host: &Arc<SimHost>,
    shutdown: Shutdown,
) -> leasehold_core::Result<()> {
    let options = WorkerOptions {
        concurrency: 2,
        lease: Duration::from_secs(20),
        drain: Duration::from_secs(5),
        inbox: (kindred == Kindred::Direct).then(InboxLease::default),
        leasing: (kindred == Kindred::Leased).then(ShardLeasing::default),
        ..WorkerOptions::default()
    };
    let worker = Worker::new(queue.clone(), name, None)?.options(options);
    let (own, times) = (host.clone(), watch.clone());
    let worker = worker.handle("*", move |_: Context, _: Value| {
        // Inboxes must fill up while there are faults.
        let is_calm = times.executor.now() > FAULTS_FOR;
        let asleep = own.sleep(own.random_below(Duration::from_secs(if is_calm { 1 } else { 40 })));
        async move {
            asleep.await;
            Ok::<_, TaskError>(Value::Null)
        }
    })?;
    watch.seen().workers.insert(host.process(), (name.to_owned(), worker.monitor()));
    worker.run(shutdown).await.map(|_| ())
}

/// Tracks all processes and tasks, and checks which inboxes they trust.
#[derive(Clone)]
struct Watch {
    executor: Executor,
    bucket: Arc<SimBucket>,
    alarm: Alarm,
    trace: Trace,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Default)]
struct Seen {
    workers: BTreeMap<ProcessId, (String, Monitor)>,
    /// Number of submits still to be made.
    producing: u64,
    acknowledged: BTreeSet<String>,
    /// Tasks that are not final.
    open: BTreeSet<String>,
    /// Number of pointers written to the overflow.
    rescued: u64,
    /// Number of pointers written to an inbox.
    dispatched: u64,
}

impl Watch {
    fn new(world: &World) -> Self {
        Self {
            executor: world.executor().clone(),
            bucket: world.bucket_handle(),
            alarm: world.alarm().clone(),
            trace: world.trace().clone(),
            seen: Arc::default(),
        }
    }

    async fn connect(&self, host: &SimHost, client: Client, config: QueueConfig) -> Queue {
        loop {
            match Queue::with_config(client.clone(), config.clone()).await {
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
        crate::leases::watch(change)?;
        let mut seen = self.seen();
        seen.rescued += u64::from(change.key.starts_with("overflow/") && change.before.is_none());
        seen.dispatched += u64::from(change.key.starts_with("inbox/") && change.before.is_none());
        let Some(id) = task_id(&change.key) else { return Ok(()) };
        let Some(after) = &change.after else { return Err(format!("P1: task {id} was deleted")) };
        if Raw::read(after)?.is_final() {
            seen.open.remove(id);
        } else {
            seen.open.insert(id.to_owned());
        }
        Ok(())
    }

    /// Checks that no two processes trust one inbox. After a jump of the store's time any process may be
    /// mistaken.
    fn look(&self) -> Result<(), String> {
        if self.bucket.jumped_at().is_some() {
            return Ok(());
        }
        let seen = self.seen();
        let mut owners = BTreeMap::<&str, ProcessId>::new();
        for (process, (name, monitor)) in &seen.workers {
            let runs = self.executor.is_alive(*process) && !self.executor.is_paused(*process);
            if runs
                && monitor.has_inbox()
                && let Some(other) = owners.insert(name, *process)
            {
                return Err(format!("P2: {other:?} and {process:?} both trust the inbox of {name}"));
            }
        }
        Ok(())
    }

    fn is_at_rest(&self) -> bool {
        let seen = self.seen();
        // This runs after every step, so the scan of all objects comes last.
        seen.producing == 0 && seen.open.is_empty() && !self.has_pointers()
    }

    fn has_pointers(&self) -> bool {
        self.bucket.look(|objects| objects.keys().any(|key| RawEntry::read(key).is_some()))
    }

    /// Returns a summary. Fails if a task was not completed, or completed twice.
    fn sum_up(&self, objects: &BucketObjects) -> Result<String, String> {
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
        let seen = self.seen();
        // An attempt may be lost with its worker, and the number of attempts is limited.
        let lost: Vec<_> = seen.acknowledged.iter().filter(|id| !is_ended(objects, id)).collect();
        if !lost.is_empty() {
            return Err(format!("P1: tasks were acknowledged, but have not ended: {lost:?}"));
        }
        let Seen { acknowledged, rescued, dispatched, .. } = &*seen;
        Ok(format!(
            "{} acknowledged, {dispatched} dispatched, {rescued} rescued, {} completed",
            acknowledged.len(),
            completed.len()
        ))
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        lock(&self.seen)
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
