//! Request costs: runs the real producers and workers for a day of virtual time without faults, and counts
//! every request. The same workload can run in real time on a real store, to verify that it makes the same
//! requests.
//!
//! Tasks are submitted at random moments, evenly distributed, by a few producers. Workers start at the
//! beginning and stay. Every request from the first connection to the last settlement is counted, as a
//! provider would.

use leasehold_core::{Error, NewTask, Result, ShardLen, keys};
use leasehold_queue::{DirectDispatch, ObjectQueue, QueueConfig};
use leasehold_store::{Client, Host, List, Prices, Purpose, SystemHost, Verb};
use leasehold_worker::{Context, InboxLease, ShardLeasing, Shutdown, TaskError, Worker, WorkerOptions};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::faults::Faults;
use crate::random::SimRandom;
use crate::world::World;

/// Number of producers.
const PRODUCERS: u64 = 4;
/// Time to wait after the end for tasks that still run.
const REST: Duration = Duration::from_mins(10);
const SETTLE: Duration = Duration::from_secs(10);
/// Time that workers need to take the leases on their ids.
const HEAD_START: Duration = Duration::from_secs(5);

/// Way in which workers find tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// All workers scan all shards.
    Shared,
    /// Workers divide the shards among themselves.
    Leased,
    /// Producers put tasks into the inboxes of workers.
    Direct,
}

impl Mode {
    /// Returns the mode with this name.
    pub fn from_name(name: &str) -> Result<Self> {
        match name {
            "shared" => Ok(Self::Shared),
            "shard-leasing" | "leased" => Ok(Self::Leased),
            "direct" => Ok(Self::Direct),
            _ => Err(Error::invalid(format!("unknown mode `{name}`; use shared, shard-leasing or direct"))),
        }
    }
}

/// Workload of a cluster.
#[derive(Debug, Clone)]
pub struct Workload {
    /// Number of workers.
    pub workers: u64,
    /// Number of tasks submitted each day.
    pub tasks_per_day: u64,
    /// Duration in days.
    pub days: f64,
    /// Way in which workers find tasks.
    pub mode: Mode,
    /// Number of digits that name a shard.
    pub shard_len: ShardLen,
    /// Duration of a handler.
    pub handler: Duration,
}

/// Counted requests.
#[derive(Debug, Clone, PartialEq)]
pub struct CostReport {
    /// Requests by purpose and verb.
    pub requests: BTreeMap<(Purpose, Verb), u64>,
    /// Number of completed tasks.
    pub tasks: u64,
    /// Duration in days of virtual time.
    pub days: f64,
    /// Number of steps of the simulator.
    pub steps: u64,
}

impl CostReport {
    /// Returns the number of requests with a verb.
    #[must_use]
    pub fn verb(&self, verb: Verb) -> u64 {
        self.requests.iter().filter(|((_, of), _)| *of == verb).map(|(_, count)| count).sum()
    }

    /// Returns the price in US dollars for a month of 30 days.
    #[must_use]
    pub fn per_month(&self, prices: &Prices) -> f64 {
        let total: f64 = self.requests.iter().map(|((_, verb), count)| prices.cost(*verb, *count)).sum();
        total / self.days * 30.0
    }
}

impl Workload {
    fn duration(&self) -> Duration {
        Duration::from_hours(24).mul_f64(self.days)
    }

    /// Returns the total number of submitted tasks.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "tasks are counted in millions"
    )]
    pub fn tasks(&self) -> u64 {
        (self.tasks_per_day as f64 * self.days).round() as u64
    }

    /// Refuses a workload that is invalid or too large to simulate.
    pub fn check(&self) -> Result<()> {
        if self.workers == 0 || self.workers > 10_000 {
            return Err(Error::invalid(format!("workers must be 1 to 10,000, got {}", self.workers)));
        }
        if !(self.days > 0.0 && self.days <= 31.0) {
            return Err(Error::invalid(format!("days must be above 0 and at most 31, got {}", self.days)));
        }
        if self.tasks() > 10_000_000 {
            return Err(Error::invalid("the workload has more than 10,000,000 tasks; use fewer days"));
        }
        Ok(())
    }

    /// Simulates the workload. Calls `progress` with the number of completed tasks.
    pub fn play(&self, seed: u64, mut progress: impl FnMut(u64)) -> Result<CostReport> {
        self.check()?;
        let mut world = World::new(seed, Faults::none()).with_scenario("cost");
        world.trace().silence();
        let (done, mut clients) = (Arc::new(AtomicU64::new(0)), Vec::new());
        for number in 0..self.workers {
            let (host, client) = world.process(&format!("worker {number}"));
            clients.push(client.clone());
            world.spawn(host.process(), work(self.clone(), number, host, client, done.clone()));
        }
        for moments in self.moments(seed) {
            let (host, client) = world.process("producer");
            clients.push(client.clone());
            world.spawn(host.process(), produce(self.clone(), moments, host, client));
        }
        let failed = |failed: crate::Failed| Error::new(leasehold_core::Kind::Internal, failed.to_string());
        let part = self.duration() / 100;
        for _ in 0..100 {
            world.run_for(part).map_err(failed)?;
            progress(done.load(Relaxed));
        }
        let all = self.tasks();
        if done.load(Relaxed) < all {
            world.run_until(|| done.load(Relaxed) >= all, REST).map_err(failed)?;
        }
        // Results of the last handlers are still to be recorded.
        world.run_for(SETTLE).map_err(failed)?;
        let days = world.now().as_secs_f64() / 86_400.0;
        Ok(CostReport { requests: counted(&clients), tasks: done.load(Relaxed), days, steps: world.steps() })
    }

    /// Runs the workload in real time on a real store, with a client per process. Tasks are submitted at the
    /// same moments as in [`Workload::play`] with this seed.
    pub async fn run_on_store(&self, seed: u64, open: impl Fn() -> Result<Client>) -> Result<CostReport> {
        self.check()?;
        let host: Arc<dyn Host> = Arc::new(SystemHost);
        let began = host.instant();
        let (done, mut clients, mut running) = (Arc::new(AtomicU64::new(0)), Vec::new(), Vec::new());
        for number in 0..self.workers {
            clients.push(open()?);
            let client = clients[clients.len() - 1].clone();
            running.push(host.spawn(Box::pin(work(
                self.clone(),
                number,
                host.clone(),
                client,
                done.clone(),
            ))));
        }
        if self.mode == Mode::Direct {
            self.wait_for_inboxes(&open()?).await?;
        }
        for moments in self.moments(seed) {
            clients.push(open()?);
            let client = clients[clients.len() - 1].clone();
            running.push(host.spawn(Box::pin(produce(self.clone(), moments, host.clone(), client))));
        }
        while done.load(Relaxed) < self.tasks() {
            if host.instant().since(began) > self.duration() + REST {
                return Err(Error::new(
                    leasehold_core::Kind::Unavailable,
                    "the tasks were not completed in time",
                ));
            }
            host.sleep(Duration::from_millis(100)).await;
        }
        host.sleep(SETTLE).await;
        let days = host.instant().since(began).as_secs_f64() / 86_400.0;
        drop(running);
        Ok(CostReport { requests: counted(&clients), tasks: done.load(Relaxed), days, steps: 0 })
    }

    /// Waits until every worker has its inbox, which on a busy machine takes longer than the producers' head
    /// start. These requests are not counted.
    async fn wait_for_inboxes(&self, client: &Client) -> Result<()> {
        let list = List::all(keys::WORKERS);
        loop {
            let page = client.list(Purpose::Admin, &list).await?;
            let inboxes = page.entries.iter().filter(|entry| keys::parse_inbox_lease(&entry.key).is_some());
            if inboxes.count() as u64 >= self.workers {
                return Ok(());
            }
            client.host().sleep(Duration::from_millis(100)).await;
        }
    }

    /// Draws the moments at which each producer submits.
    fn moments(&self, seed: u64) -> Vec<Vec<Duration>> {
        let mut rng = SimRandom::derived(seed, "moments");
        let of_one = |number| {
            let tasks = self.tasks() / PRODUCERS + u64::from(number < self.tasks() % PRODUCERS);
            let mut moments: Vec<_> =
                (0..tasks).map(|_| rng.between(Duration::ZERO, self.duration())).collect();
            moments.sort_unstable();
            moments
        };
        (0..PRODUCERS).map(of_one).collect()
    }
}

fn counted(clients: &[Client]) -> BTreeMap<(Purpose, Verb), u64> {
    let mut requests = BTreeMap::new();
    for client in clients {
        for (line, count) in client.ledger().snapshot().lines() {
            *requests.entry((line.purpose, line.verb)).or_default() += count.requests;
        }
    }
    requests
}

async fn connect(workload: &Workload, client: Client) -> ObjectQueue {
    let direct = (workload.mode == Mode::Direct).then(DirectDispatch::default);
    let config =
        QueueConfig { shard_prefix_len: Some(workload.shard_len.digits()), direct, ..QueueConfig::default() };
    ObjectQueue::with_config(client, config).await.expect("no faults are injected")
}

async fn produce(workload: Workload, moments: Vec<Duration>, host: Arc<dyn Host>, client: Client) {
    let queue = connect(&workload, client).await;
    if workload.mode == Mode::Direct {
        // Workers start first: a producer that finds no inbox does not list them again for half a minute.
        host.sleep(HEAD_START).await;
    }
    let began = host.instant();
    for moment in moments {
        let passed = host.instant().since(began);
        host.sleep(moment.saturating_sub(passed)).await;
        let order = NewTask::new("work", Value::Null).expect("the name is valid");
        queue.submit_task(order).await.expect("no faults are injected");
    }
}

async fn work(workload: Workload, number: u64, host: Arc<dyn Host>, client: Client, done: Arc<AtomicU64>) {
    let queue = connect(&workload, client).await;
    let leasing = (workload.mode == Mode::Leased).then(ShardLeasing::default);
    let inbox = (workload.mode == Mode::Direct).then(InboxLease::default);
    let options = WorkerOptions { leasing, inbox, ..WorkerOptions::default() };
    let worker =
        Worker::new(queue, &format!("w{number:05}"), None).expect("the name is valid").options(options);
    let worker = worker.handle("work", move |_: Context, _: Value| {
        let (asleep, done) = (host.sleep(workload.handler), done.clone());
        async move {
            asleep.await;
            done.fetch_add(1, Relaxed);
            Ok::<_, TaskError>(())
        }
    });
    let worker = worker.expect("the name is valid");
    worker.run(Shutdown::default()).await.expect("the options are valid");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small(mode: Mode) -> CostReport {
        let workload = Workload {
            workers: 5,
            tasks_per_day: 24_000,
            days: 1.0 / 24.0,
            mode,
            shard_len: ShardLen::DEFAULT,
            handler: Duration::from_secs(1),
        };
        workload.play(1, |_| {}).unwrap()
    }

    fn count(report: &CostReport, purpose: Purpose, verb: Verb) -> u64 {
        report.requests.get(&(purpose, verb)).copied().unwrap_or(0)
    }

    #[test]
    fn an_hour_of_a_thousand_tasks_makes_the_requests_of_the_table_in_the_protocol() {
        for (mode, claim_puts) in [(Mode::Shared, 2), (Mode::Leased, 1), (Mode::Direct, 1)] {
            let report = small(mode);
            assert_eq!(report.tasks, 1_000);
            let rings = count(&report, Purpose::Submit, Verb::Put) - 2 * report.tasks;
            assert!(rings <= report.tasks, "{mode:?}: {rings} rings");
            let claims = count(&report, Purpose::Claim, Verb::Put);
            // Workers that try to claim the same task lose a put and read once more.
            assert!(
                (1_000 * claim_puts..1_200 * claim_puts).contains(&claims),
                "{mode:?}: {claims} puts to claim"
            );
            assert_eq!(count(&report, Purpose::Settle, Verb::Put), 1_000, "{mode:?}");
        }
    }

    #[test]
    fn one_seed_gives_one_bill() {
        assert_eq!(small(Mode::Leased), small(Mode::Leased));
    }
}
