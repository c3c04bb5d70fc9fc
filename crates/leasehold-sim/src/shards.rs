//! Scenario `shards`: workers divide the shards among themselves, under all faults.
//!
//! Up to eight workers lease 256 shards. They are killed, paused and stalled, they leave and come back, two
//! of them may use one worker id, and requests and answers are lost. After every step no two processes may trust
//! one shard. After faults have stopped, all shards must soon be served, evenly, and then no lease may move.

use leasehold_core::{ShardLen, ShardRange};
use leasehold_queue::{ObjectQueue, QueueConfig};
use leasehold_store::{Client, Host, HostExt};
use leasehold_worker::{
    Context, Polling, ShardLeasing, Shutdown, TaskError, Worker, WorkerOptions, WorkerView,
};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::alarm::Alarm;
use crate::bucket::{BucketObjects, SimBucket};
use crate::executor::{Executor, ProcessId};
use crate::failed::Failed;
use crate::host::SimHost;
use crate::trace::Trace;
use crate::world::World;

const DIGITS: u8 = 2;
const WORKERS_MAX: u64 = 8;
const TTL: Duration = Duration::from_secs(30);
const RENEW_EVERY: Duration = Duration::from_secs(10);
/// Time after which faults stop.
const FAULTS_FOR: Duration = Duration::from_mins(4);
/// Time until a process that was killed or paused is back.
const BACK_WITHIN: Duration = Duration::from_mins(8);
/// Time from then on until every shard is served.
const SERVED_WITHIN: Duration = Duration::from_secs(50);
/// Time until the shards are divided evenly. A worker that restarts with its old id waits until its old lease
/// expires; the others see it a round later.
const EVEN_WITHIN: Duration = Duration::from_secs(50);
/// Time to divide them if the store's time was set back by hours: no lease expires for that long.
const EVEN_AFTER_JUMPS: Duration = Duration::from_hours(8);
/// Time until the last delayed request has arrived.
const LATE_WITHIN: Duration = Duration::from_mins(22);
/// Time in which no lease may move.
const IDLE_FOR: Duration = Duration::from_mins(10);

/// Plays the scenario. The summary counts leases taken.
pub(crate) fn play(world: &mut World) -> Result<String, Failed> {
    let mut rng = world.rng("shards");
    let checker = ShardChecker::new(world);
    world.check(|change, _| crate::leases::check_change(change));
    world.stop_faults_at(FAULTS_FOR);
    let count = 1 + rng.below(WORKERS_MAX);
    for number in 1..=count {
        // A worker with the name of another serves nothing while that one lives.
        let is_twin = number > 1 && rng.happens(1_000);
        let name = format!("w{}", if is_twin { number - 1 } else { number });
        // Some leave permanently, in the middle of the faults.
        let leaves_at =
            (number > 1 && rng.happens(2_000)).then(|| rng.between(Duration::from_secs(20), FAULTS_FOR));
        let actor = ShardWorker { name, leaves_at, checker: checker.clone() };
        world.actor(&format!("m{number}"), move |host, client| Box::pin(actor.clone().play(host, client)));
    }
    let executor = world.executor().clone();
    let everyone_is_back = || executor.now() > FAULTS_FOR && checker.is_everyone_back();
    run(world, &checker, everyone_is_back, FAULTS_FOR + BACK_WITHIN)?;
    let calm_at = world.now();
    let has_jumped = world.bucket().jumped_at().is_some();
    let limits = if has_jumped { [EVEN_AFTER_JUMPS; 2] } else { [SERVED_WITHIN, EVEN_WITHIN] };
    run(world, &checker, || checker.is_all_served(), limits[0])?;
    let served_after = world.now().saturating_sub(calm_at);
    run(world, &checker, || checker.is_even(), limits[1].saturating_sub(served_after))?;
    let even_after = world.now().saturating_sub(calm_at);
    // Delayed requests arrive, and have no lasting effect.
    advance(world, &checker, LATE_WITHIN)?;
    run(world, &checker, || checker.is_all_served() && checker.is_even(), limits[1])?;
    checker.record_baseline();
    advance(world, &checker, IDLE_FOR)?;
    checker.check_unmoved().map_err(|message| world.failed(message))?;
    let epochs = checker.epochs().values().sum::<u64>();
    let (served, even) = (served_after.as_secs(), even_after.as_secs());
    Ok(format!(
        "{count} workers took leases {epochs} times; all served after {served} s, even after {even} s"
    ))
}

/// Runs until the condition holds, with a check of all processes after each step.
fn run(
    world: &mut World,
    checker: &ShardChecker,
    mut condition: impl FnMut() -> bool,
    limit: Duration,
) -> Result<(), Failed> {
    let condition_after_check = || {
        checker.alarm.check(checker.check_trust());
        condition()
    };
    world.run_until(condition_after_check, limit).map_err(|mut failed| {
        failed.message = format!("{}; {}", failed.message, checker.describe());
        failed
    })
}

/// Lets time pass, with a check of all processes every second: a violation lasts for longer.
fn advance(world: &mut World, checker: &ShardChecker, duration: Duration) -> Result<(), Failed> {
    let end = world.now() + duration;
    while world.now() < end {
        world.run_for(Duration::from_secs(1))?;
        checker.check_trust().map_err(|message| world.failed(message))?;
    }
    Ok(())
}

/// Worker on one machine, and the time at which it leaves permanently.
#[derive(Clone)]
struct ShardWorker {
    name: String,
    leaves_at: Option<Duration>,
    checker: ShardChecker,
}

impl ShardWorker {
    async fn play(self, host: Arc<SimHost>, client: Client) {
        let queue = self.connect(&host, client).await;
        while !self.has_left() {
            let shutdown = Shutdown::default();
            let stay = self.time_until_drain(&host);
            let stopping = stay.map(|stay| {
                let (stop, asleep) = (shutdown.clone(), host.sleep(stay));
                host.spawn(Box::pin(async move {
                    asleep.await;
                    stop.drain();
                }))
            });
            if let Err(error) = self.work(&queue, &host, shutdown).await {
                self.checker.alarm.raise(format!("{} ended: {error}", host.name()));
            }
            drop(stopping);
            host.sleep(host.random_below(RENEW_EVERY * 2)).await;
        }
        self.checker.remove_machine(&host);
    }

    /// Returns the time until it drains: none once faults have stopped.
    fn time_until_drain(&self, host: &SimHost) -> Option<Duration> {
        let now = self.checker.executor.now();
        let random_stay = (now < FAULTS_FOR && host.random().is_multiple_of(3))
            .then(|| host.random_below(FAULTS_FOR.saturating_sub(now)));
        let final_stay = self.leaves_at.map(|at| at.saturating_sub(now));
        random_stay.into_iter().chain(final_stay).min()
    }

    fn has_left(&self) -> bool {
        self.leaves_at.is_some_and(|at| self.checker.executor.now() >= at)
    }

    async fn connect(&self, host: &SimHost, client: Client) -> ObjectQueue {
        loop {
            let config = QueueConfig { shard_prefix_len: Some(DIGITS), ..QueueConfig::default() };
            match ObjectQueue::with_config(client.clone(), config).await {
                Ok(queue) => return queue,
                Err(error) => self.checker.note(host, &format!("failed to connect: {error}")),
            }
            host.sleep(Duration::from_secs(1)).await;
        }
    }

    async fn work(
        &self,
        queue: &ObjectQueue,
        host: &SimHost,
        shutdown: Shutdown,
    ) -> leasehold_core::Result<()> {
        let leasing = ShardLeasing { ttl: TTL, renew_every: RENEW_EVERY, ..ShardLeasing::default() };
        let options = WorkerOptions {
            leasing: Some(leasing),
            // There are no tasks: scanning for some only makes the run longer.
            polling: Polling::fixed(Duration::from_mins(2)),
            recover_every: Duration::from_mins(2),
            full_scan_every: Duration::from_mins(10),
            ..WorkerOptions::default()
        };
        let worker = Worker::new(queue.clone(), &self.name, None)?.options(options);
        let worker = worker.handle("*", |_: Context, _: Value| async { Ok::<_, TaskError>(Value::Null) })?;
        self.checker.add_worker(host, &self.name, worker.view());
        worker.run(shutdown).await?;
        self.checker.remove_worker(host);
        Ok(())
    }
}

/// Tracks all processes, and checks which shards they trust.
#[derive(Clone)]
struct ShardChecker {
    executor: Executor,
    bucket: Arc<SimBucket>,
    alarm: Alarm,
    trace: Trace,
    observed: Arc<Mutex<Observed>>,
}

/// Shards that each process serves, and the epoch of each lease.
type LeaseBaseline = (BTreeMap<ProcessId, Vec<ShardRange>>, BTreeMap<String, u64>);

#[derive(Default)]
struct Observed {
    /// Machines that have ever started, and the process that each runs now; none if it has left permanently.
    machines: BTreeMap<String, Option<ProcessId>>,
    workers: BTreeMap<ProcessId, (String, WorkerView)>,
    /// Shards and epochs at the time from which no lease may move.
    baseline: Option<LeaseBaseline>,
}

impl ShardChecker {
    fn new(world: &World) -> Self {
        Self {
            executor: world.executor().clone(),
            bucket: world.bucket_handle(),
            alarm: world.alarm().clone(),
            trace: world.trace().clone(),
            observed: Arc::default(),
        }
    }

    fn note(&self, host: &SimHost, what: &str) {
        self.trace.line(self.executor.now(), host.name(), what);
    }

    fn add_worker(&self, host: &SimHost, name: &str, view: WorkerView) {
        let mut observed = self.observed();
        observed.machines.insert(machine(host), Some(host.process()));
        observed.workers.insert(host.process(), (name.to_owned(), view));
    }

    /// Records that a process does not work at this moment.
    fn remove_worker(&self, host: &SimHost) {
        self.observed().workers.remove(&host.process());
    }

    fn remove_machine(&self, host: &SimHost) {
        self.remove_worker(host);
        self.observed().machines.insert(machine(host), None);
    }

    /// Returns the running processes, with the shards they trust.
    fn served(&self) -> BTreeMap<ProcessId, (String, Vec<ShardRange>)> {
        let observed = self.observed();
        let runs =
            |process: &&ProcessId| self.executor.is_alive(**process) && !self.executor.is_paused(**process);
        let running = observed.workers.iter().filter(|(process, _)| runs(process));
        running.map(|(process, (name, view))| (*process, (name.clone(), view.shards()))).collect()
    }

    /// Checks that no two processes trust one shard. After a jump of the store's time any process may be
    /// mistaken.
    fn check_trust(&self) -> Result<(), String> {
        if self.bucket.jumped_at().is_some() {
            return Ok(());
        }
        let mut all: Vec<_> = Vec::new();
        for (process, (name, ranges)) in self.served() {
            all.extend(ranges.into_iter().map(|range| (range, process, name.clone())));
        }
        all.sort();
        for pair in all.windows(2) {
            let [(one, _, first), (other, _, second)] = pair else { continue };
            if other.first <= one.last {
                return Err(format!("{first} trusts {one} while {second} trusts {other}"));
            }
        }
        let has_baseline = self.observed().baseline.is_some();
        if has_baseline && !self.is_all_served() {
            return Err(format!("some shards are no longer served: {}", self.describe()));
        }
        Ok(())
    }

    fn is_everyone_back(&self) -> bool {
        let observed = self.observed();
        let is_back = |process: &ProcessId| {
            self.executor.is_alive(*process)
                && !self.executor.is_paused(*process)
                && observed.workers.contains_key(process)
        };
        !observed.machines.is_empty() && observed.machines.values().flatten().all(is_back)
    }

    fn is_all_served(&self) -> bool {
        let served: usize =
            self.served().values().flat_map(|(_, ranges)| ranges).map(ShardRange::count).sum();
        served == shards()
    }

    /// Returns whether shares differ by at most one group; of two processes with one worker id, only one has a
    /// share.
    fn is_even(&self) -> bool {
        let mut counts = BTreeMap::<String, usize>::new();
        for (name, ranges) in self.served().into_values() {
            *counts.entry(name).or_default() += ranges.iter().map(ShardRange::count).sum::<usize>();
        }
        let group = ShardLen::new(DIGITS).map_or(1, |len| len.groups()[0].count());
        match (counts.values().min(), counts.values().max()) {
            (Some(least), Some(most)) => most - least <= group,
            _ => false,
        }
    }

    fn record_baseline(&self) {
        let served = self.served().into_iter().map(|(process, (_, ranges))| (process, ranges)).collect();
        let epochs = self.epochs();
        self.observed().baseline = Some((served, epochs));
    }

    fn check_unmoved(&self) -> Result<(), String> {
        let served: BTreeMap<_, _> =
            self.served().into_iter().map(|(process, (_, ranges))| (process, ranges)).collect();
        match self.observed().baseline.clone() {
            Some(baseline) if baseline != (served, self.epochs()) => {
                Err(format!("a lease has moved; before: {baseline:?}; now: {}", self.describe()))
            }
            _ => Ok(()),
        }
    }

    /// Returns the epoch of each lease.
    fn epochs(&self) -> BTreeMap<String, u64> {
        let epoch = |objects: &BucketObjects| {
            let leases = objects.iter().filter(|(key, _)| key.starts_with("shard-leases/"));
            let read = leases.filter_map(|(key, stored)| {
                let lease: Value = serde_json::from_slice(&stored.object.body).ok()?;
                Some((key.clone(), lease["epoch"].as_u64()?))
            });
            read.collect()
        };
        self.bucket.with_objects(epoch)
    }

    fn describe(&self) -> String {
        let served = self.served().into_iter().map(|(process, (name, ranges))| {
            let count = ranges.iter().map(ShardRange::count).sum::<usize>();
            format!("{process:?} {name} serves {count} shards")
        });
        served.collect::<Vec<_>>().join(", ")
    }

    fn observed(&self) -> MutexGuard<'_, Observed> {
        self.observed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn shards() -> usize {
    ShardLen::new(DIGITS).map_or(0, ShardLen::count)
}

/// Returns the machine of a process: its name without the number of the start.
fn machine(host: &SimHost) -> String {
    host.name().split('.').next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod changes;
#[cfg(test)]
mod costs;
#[cfg(test)]
mod operators;
#[cfg(test)]
mod tests;
