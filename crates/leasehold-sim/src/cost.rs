//! Request costs: runs the real producers and workers for a day of virtual time without faults, and counts
//! every request. The same workload can run in real time on a real store, to verify that it makes the same
//! requests.
//!
//! Tasks are submitted at random moments, evenly distributed, by a few producers. Workers start at the
//! beginning and stay. Every request from the first connection to the last settlement is counted, as a
//! provider would.
//!
//! In the object layout every worker and every producer is a process of its own. In the journal layout one
//! process contains all of them, since a broker serves its own process only.

use futures::FutureExt as _;
use futures::future::FusedFuture as _;
use futures::stream::{FuturesUnordered, StreamExt as _};
use leasehold_core::{Error, NewTask, Result, ShardLen, keys};
use leasehold_queue::{DirectDispatch, LayoutName, Queue, QueueConfig};
use leasehold_store::{Client, Host, List, Prices, Purpose, SystemHost, Verb};
use leasehold_worker::{
    Context, InboxLeaseOptions, ShardLeasing, Shutdown, TaskError, Worker, WorkerOptions,
};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::sync::OnceCell;

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
    /// The queue has the journal layout: workers wait for tasks in its broker.
    Journal,
}

impl Mode {
    /// Returns the mode of the object layout with this name.
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
        let shared = (self.mode == Mode::Journal).then(|| world.process("broker"));
        let broker = shared.as_ref().map(|(host, client)| self.connection(host.clone(), client.clone()));
        let mut process = |name: &str| {
            let (host, client) = shared.clone().unwrap_or_else(|| world.process(name));
            let connection = broker.clone().unwrap_or_else(|| self.connection(host.clone(), client.clone()));
            clients.push(client);
            (host.process(), connection)
        };
        let workers: Vec<_> = (0..self.workers).map(|number| process(&format!("worker {number}"))).collect();
        let producers: Vec<_> =
            self.moments(seed).into_iter().map(|moments| (process("producer"), moments)).collect();
        for (number, (process, connection)) in workers.into_iter().enumerate() {
            world.spawn(process, work(connection, number, done.clone()));
        }
        for ((process, connection), moments) in producers {
            world.spawn(process, produce(connection, moments));
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
        self.forget_shared(&mut clients);
        Ok(CostReport { requests: counted(&clients), tasks: done.load(Relaxed), days, steps: world.steps() })
    }

    /// Runs the workload in real time on a real store, with a client per process. Tasks are submitted at the
    /// same moments as in [`Workload::play`] with this seed.
    pub async fn run_on_store(&self, seed: u64, open: impl Fn() -> Result<Client>) -> Result<CostReport> {
        self.check()?;
        let host: Arc<dyn Host> = Arc::new(SystemHost);
        let began = host.instant();
        let (done, mut clients, mut running) = (Arc::new(AtomicU64::new(0)), Vec::new(), Vec::new());
        let shared = (self.mode == Mode::Journal).then(&open).transpose()?;
        let broker = shared.clone().map(|client| self.connection(host.clone(), client));
        let mut connection = || {
            clients.push(shared.clone().map_or_else(&open, Ok)?);
            let client = clients[clients.len() - 1].clone();
            Ok::<_, Error>(broker.clone().unwrap_or_else(|| self.connection(host.clone(), client)))
        };
        for number in 0..self.workers {
            let number = usize::try_from(number).unwrap_or(usize::MAX);
            running.push(host.spawn(Box::pin(work(connection()?, number, done.clone()))));
        }
        if self.mode == Mode::Direct {
            self.wait_for_inboxes(&open()?).await?;
        }
        for moments in self.moments(seed) {
            running.push(host.spawn(Box::pin(produce(connection()?, moments))));
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
        self.forget_shared(&mut clients);
        Ok(CostReport { requests: counted(&clients), tasks: done.load(Relaxed), days, steps: 0 })
    }

    fn connection(&self, host: Arc<dyn Host>, client: Client) -> Connection {
        Connection { workload: self.clone(), host, client, queue: Arc::default() }
    }

    /// Keeps one of the clients if all of them are the one of the broker.
    fn forget_shared(&self, clients: &mut Vec<Client>) {
        if self.mode == Mode::Journal {
            clients.truncate(1);
        }
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

/// Connection of a worker or a producer to the queue. Clones share it, as those in one process do.
#[derive(Clone)]
struct Connection {
    workload: Workload,
    host: Arc<dyn Host>,
    client: Client,
    queue: Arc<OnceCell<Queue>>,
}

impl Connection {
    async fn open(&self) -> Queue {
        let connect = || async {
            let Workload { mode, shard_len, .. } = self.workload;
            let direct = (mode == Mode::Direct).then(DirectDispatch::default);
            let is_journal = mode == Mode::Journal;
            let layout = if is_journal { LayoutName::Journal } else { LayoutName::Objects };
            let config = QueueConfig {
                shard_prefix_len: (!is_journal).then_some(shard_len.digits()),
                direct,
                layout: Some(layout),
                transport: None,
                ..QueueConfig::default()
            };
            Queue::with_config(self.client.clone(), config).await.expect("no faults are injected")
        };
        self.queue.get_or_init(connect).await.clone()
    }
}

async fn produce(connection: Connection, moments: Vec<Duration>) {
    let (queue, host) = (connection.open().await, connection.host);
    if connection.workload.mode == Mode::Direct {
        // Workers start first: a producer that finds no inbox does not list them again for half a minute.
        host.sleep(HEAD_START).await;
    }
    let began = host.instant();
    // A producer does not wait for one submit before it begins the next: it is a server with requests of many users.
    let mut submits = FuturesUnordered::new();
    for moment in moments {
        let mut due = host.sleep(moment.saturating_sub(host.instant().since(began))).fuse();
        while !due.is_terminated() {
            futures::select_biased! {
                () = due => submits.push(submit(queue.clone())),
                () = submits.select_next_some() => {}
            }
        }
    }
    submits.collect::<()>().await;
}

async fn submit(queue: Queue) {
    let order = NewTask::new("work", Value::Null).expect("the name is valid");
    queue.submit_task(order).await.expect("no faults are injected");
}

async fn work(connection: Connection, number: usize, done: Arc<AtomicU64>) {
    let queue = connection.open().await;
    let Connection { workload, host, .. } = connection;
    let leasing = (workload.mode == Mode::Leased).then(ShardLeasing::default);
    let inbox = (workload.mode == Mode::Direct).then(InboxLeaseOptions::default);
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

    const VERBS: [Verb; 4] = [Verb::Put, Verb::Get, Verb::List, Verb::Delete];

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
        for mode in [Mode::Leased, Mode::Journal] {
            assert_eq!(small(mode), small(mode));
        }
    }

    #[test]
    fn an_hour_of_a_thousand_tasks_in_a_journal_makes_one_or_two_puts_per_task() {
        let report = small(Mode::Journal);
        assert_eq!(report.tasks, 1_000);
        let commits = count(&report, Purpose::Journal, Verb::Put);
        assert!((1_000..=2_100).contains(&commits), "a submit with its claim, and most results: {commits}");
        assert!(count(&report, Purpose::Journal, Verb::Get) < 20, "nothing is read while it serves");
        let renewals = count(&report, Purpose::Lease, Verb::Put);
        assert!((360..=380).contains(&renewals), "the lease, every 10 s: {renewals}");
        for purpose in [Purpose::Submit, Purpose::Discover, Purpose::Claim, Purpose::Settle, Purpose::Renew] {
            assert!(VERBS.iter().all(|verb| count(&report, purpose, *verb) == 0), "{purpose:?}");
        }
    }

    /// Upper bounds for the journal layout, in US dollars per month.
    #[test]
    fn in_a_journal_the_reference_workload_costs_at_most_24_dollars_and_an_idle_queue_3() {
        let prices = Prices::of("aws").unwrap();
        let reference = Workload {
            workers: 50,
            tasks_per_day: 100_000,
            days: 1.0 / 48.0,
            mode: Mode::Journal,
            shard_len: ShardLen::DEFAULT,
            handler: Duration::from_secs(1),
        };
        let busy = reference.play(1, |_| {}).unwrap();
        assert_eq!(busy.tasks, reference.tasks());
        let cost = busy.per_month(&prices);
        assert!(cost <= 24.0, "US$ {cost:.2}");
        let idle = Workload { tasks_per_day: 0, ..reference }.play(1, |_| {}).unwrap();
        let cost = idle.per_month(&prices);
        assert!(cost <= 3.0, "US$ {cost:.2}");
    }

    /// The commits that are saved up at first would be a large part of a short run, so two runs are compared.
    #[test]
    fn in_a_journal_a_thousand_tasks_a_second_cost_at_most_60_dollars() {
        let run = |minutes: f64| {
            let workload = Workload {
                // With fewer slots than tasks need for their commits, tasks wait for slots, and commits are not delayed.
                workers: 100,
                tasks_per_day: 86_400_000,
                days: minutes / (24.0 * 60.0),
                mode: Mode::Journal,
                shard_len: ShardLen::DEFAULT,
                handler: Duration::from_millis(100),
            };
            let report = workload.play(1, |_| {}).unwrap();
            assert_eq!(report.tasks, workload.tasks());
            report.per_month(&Prices::of("aws").unwrap()) * report.days
        };
        let cost = (run(4.0) - run(2.0)) * 24.0 * 60.0 / 2.0;
        assert!(cost <= 60.0, "US$ {cost:.2}");
    }
}
