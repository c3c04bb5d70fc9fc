//! The bill: the real producers and workers for a day of virtual time, with nothing going wrong, and every request counted.
//! The same can be played in real time on a real store, to see that it makes the same requests there.
//!
//! Tasks come at random moments, evenly over the time, from a few producers; workers are started at the beginning and
//! stay. What is counted is everything from the first connection to the last settlement, as the provider would.

use leasehold_core::{Error, NewTask, Result, ShardLen, keys};
use leasehold_queue::{DirectDispatch, Queue, QueueConfig};
use leasehold_store::{Client, Host, List, Prices, Purpose, SystemHost, Verb};
use leasehold_worker::{Context, InboxLease, ShardLeasing, Shutdown, TaskError, Worker, WorkerOptions};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::chance::Chance;
use crate::faults::Faults;
use crate::world::World;

/// Tasks come from so many processes.
const PRODUCERS: u64 = 4;
/// What is still under way at the end of the time is waited for.
const REST: Duration = Duration::from_mins(10);
const SETTLE: Duration = Duration::from_secs(10);
/// What workers need to take their names.
const HEAD_START: Duration = Duration::from_secs(5);

/// How workers find work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// All look at all shards.
    Shared,
    /// They divide the shards among themselves.
    Leased,
    /// Producers put tasks into their inboxes.
    Direct,
}

impl Mode {
    /// The mode of this name.
    pub fn named(name: &str) -> Result<Self> {
        match name {
            "shared" => Ok(Self::Shared),
            "leased" => Ok(Self::Leased),
            "direct" => Ok(Self::Direct),
            _ => Err(Error::invalid(format!(
                "mode `{name}` is not known; there are shared, leased and direct"
            ))),
        }
    }

    /// What was estimated for a month with 50 workers and 100,000 tasks a day on AWS, before anything was built.
    #[must_use]
    pub fn estimate(self) -> f64 {
        match self {
            Self::Shared => 56.0,
            Self::Leased => 77.0,
            Self::Direct => 1_630.0,
        }
    }
}

/// What a cluster does all day.
#[derive(Debug, Clone)]
pub struct Workload {
    /// How many workers there are.
    pub workers: u64,
    /// How many tasks are submitted each day.
    pub tasks_per_day: u64,
    /// For how long.
    pub days: f64,
    /// How work is found.
    pub mode: Mode,
    /// How many digits name a shard.
    pub shard_len: ShardLen,
    /// How long a handler takes.
    pub handler: Duration,
}

/// What was counted.
#[derive(Debug, Clone, PartialEq)]
pub struct Bill {
    /// Requests by purpose and verb.
    pub requests: BTreeMap<(Purpose, Verb), u64>,
    /// Tasks that were completed.
    pub tasks: u64,
    /// How long it was, in virtual time.
    pub days: f64,
    /// Steps of the simulator.
    pub steps: u64,
}

impl Bill {
    /// All requests with a verb.
    #[must_use]
    pub fn verb(&self, verb: Verb) -> u64 {
        self.requests.iter().filter(|((_, of), _)| *of == verb).map(|(_, count)| count).sum()
    }

    /// US dollars for a month of 30 days.
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

    /// How many tasks are submitted in all.
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

    /// Refuses what makes no sense, or would take for ever.
    pub fn check(&self) -> Result<()> {
        if self.workers == 0 || self.workers > 10_000 {
            return Err(Error::invalid("a bill is made for 1 to 10,000 workers"));
        }
        if !(self.days > 0.0 && self.days <= 31.0) {
            return Err(Error::invalid("a bill is made for up to 31 days"));
        }
        if self.tasks() > 10_000_000 {
            return Err(Error::invalid("more than ten million tasks: take fewer days"));
        }
        Ok(())
    }

    /// Plays it; `progress` is told how many tasks are done.
    pub fn play(&self, seed: u64, mut progress: impl FnMut(u64)) -> Result<Bill> {
        self.check()?;
        let mut world = World::new(seed, Faults::none()).called("cost");
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
        // What the last handlers have done is still to be written down.
        world.run_for(SETTLE).map_err(failed)?;
        let days = world.now().as_secs_f64() / 86_400.0;
        Ok(Bill { requests: counted(&clients), tasks: done.load(Relaxed), days, steps: world.steps() })
    }

    /// Plays it in real time on a real store; each process gets a client of its own. Tasks come at the same moments as
    /// in [`Workload::play`] with this seed.
    pub async fn play_really(&self, seed: u64, open: impl Fn() -> Result<Client>) -> Result<Bill> {
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
            self.see_inboxes(&open()?).await?;
        }
        for moments in self.moments(seed) {
            clients.push(open()?);
            let client = clients[clients.len() - 1].clone();
            running.push(host.spawn(Box::pin(produce(self.clone(), moments, host.clone(), client))));
        }
        while done.load(Relaxed) < self.tasks() {
            if host.instant().since(began) > self.duration() + REST {
                return Err(Error::new(leasehold_core::Kind::Unavailable, "the tasks were not done in time"));
            }
            host.sleep(Duration::from_millis(100)).await;
        }
        host.sleep(SETTLE).await;
        let days = host.instant().since(began).as_secs_f64() / 86_400.0;
        drop(running);
        Ok(Bill { requests: counted(&clients), tasks: done.load(Relaxed), days, steps: 0 })
    }

    /// Waits until every worker has its inbox, which on a busy machine takes longer than the producers' head start. What
    /// this asks is on nobody's bill.
    async fn see_inboxes(&self, client: &Client) -> Result<()> {
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

    /// When each producer submits.
    fn moments(&self, seed: u64) -> Vec<Vec<Duration>> {
        let mut chance = Chance::derived(seed, "moments");
        let of_one = |number| {
            let tasks = self.tasks() / PRODUCERS + u64::from(number < self.tasks() % PRODUCERS);
            let mut moments: Vec<_> =
                (0..tasks).map(|_| chance.between(Duration::ZERO, self.duration())).collect();
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

async fn connect(workload: &Workload, client: Client) -> Queue {
    let direct = (workload.mode == Mode::Direct).then(DirectDispatch::default);
    let config =
        QueueConfig { shard_prefix_len: workload.shard_len.digits(), direct, ..QueueConfig::default() };
    Queue::with_config(client, config).await.expect("nothing goes wrong here")
}

async fn produce(workload: Workload, moments: Vec<Duration>, host: Arc<dyn Host>, client: Client) {
    let queue = connect(&workload, client).await;
    if workload.mode == Mode::Direct {
        // The workers are there first: who finds none with an inbox does not ask again for half a minute.
        host.sleep(HEAD_START).await;
    }
    let began = host.instant();
    for moment in moments {
        let passed = host.instant().since(began);
        host.sleep(moment.saturating_sub(passed)).await;
        let order = NewTask::new("work", Value::Null).expect("it is a good name");
        queue.submit_task(order).await.expect("nothing goes wrong here");
    }
}

async fn work(workload: Workload, number: u64, host: Arc<dyn Host>, client: Client, done: Arc<AtomicU64>) {
    let queue = connect(&workload, client).await;
    let leasing = (workload.mode == Mode::Leased).then(ShardLeasing::default);
    let inbox = (workload.mode == Mode::Direct).then(InboxLease::default);
    let options = WorkerOptions { leasing, inbox, ..WorkerOptions::default() };
    let worker =
        Worker::new(queue, &format!("w{number:05}"), None).expect("it is a good name").options(options);
    let worker = worker.handle("work", move |_: Context, _: Value| {
        let (asleep, done) = (host.sleep(workload.handler), done.clone());
        async move {
            asleep.await;
            done.fetch_add(1, Relaxed);
            Ok::<_, TaskError>(())
        }
    });
    let worker = worker.expect("it is a good name");
    worker.run(Shutdown::default()).await.expect("its options are good");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small(mode: Mode) -> Bill {
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

    fn count(bill: &Bill, purpose: Purpose, verb: Verb) -> u64 {
        bill.requests.get(&(purpose, verb)).copied().unwrap_or(0)
    }

    #[test]
    fn an_hour_of_a_thousand_tasks_costs_what_the_protocol_says() {
        for (mode, claim_puts) in [(Mode::Shared, 2), (Mode::Leased, 1), (Mode::Direct, 1)] {
            let bill = small(mode);
            assert_eq!(bill.tasks, 1_000);
            let rings = count(&bill, Purpose::Submit, Verb::Put) - 2 * bill.tasks;
            assert!(rings <= bill.tasks, "{mode:?}: {rings} rings");
            let claims = count(&bill, Purpose::Claim, Verb::Put);
            // Workers that meet at a task lose a put and read once more.
            assert!(
                (1_000 * claim_puts..1_200 * claim_puts).contains(&claims),
                "{mode:?}: {claims} puts to claim"
            );
            assert_eq!(count(&bill, Purpose::Settle, Verb::Put), 1_000, "{mode:?}");
        }
    }

    #[test]
    fn one_seed_gives_one_bill() {
        assert_eq!(small(Mode::Leased), small(Mode::Leased));
    }
}
