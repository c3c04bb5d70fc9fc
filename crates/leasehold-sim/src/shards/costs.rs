//! Cost of leasing, by the ledger: renewals of an idle cluster, and lists of a busy one.

use leasehold_core::NewTask;
use leasehold_store::{Purpose, Verb};

use std::collections::BTreeSet;

use super::*;
use crate::faults::Faults;

/// Some workers, and their requests.
struct Cluster {
    world: World,
    clients: Vec<Client>,
    digits: u8,
}

impl Cluster {
    fn new(digits: u8) -> Self {
        let world = World::new(1, Faults::none()).with_scenario("shards");
        world.trace().silence();
        Self { world, clients: Vec::new(), digits }
    }

    fn start(&mut self, workers: usize, leasing: Option<&ShardLeasing>) {
        for number in 0..workers {
            let (host, client) = self.world.process(&format!("m{number}"));
            self.clients.push(client.clone());
            let options = WorkerOptions {
                leasing: leasing.cloned(),
                polling: Polling::fixed(Duration::from_secs(2)),
                full_scan_every: Duration::from_hours(1),
                // Lists of the overflow are counted elsewhere.
                overflow_every: Duration::from_hours(24),
                ..WorkerOptions::default()
            };
            let digits = self.digits;
            self.world.spawn(host.process(), async move {
                let queue = connected(client, digits).await;
                let worker = Worker::new(queue, &format!("w{number:02}"), None).unwrap().options(options);
                let run = |_: Context, _: Value| async { Ok::<_, TaskError>(Value::Null) };
                worker.handle("known", run).unwrap().run(Shutdown::default()).await.unwrap();
            });
        }
        self.advance(Duration::from_mins(2));
    }

    /// Submits tasks that no worker here can run, so that they stay.
    fn submit(&mut self, count: usize) {
        let (host, client) = self.world.process("producer");
        let (digits, done) = (self.digits, Arc::<Mutex<bool>>::default());
        let flag = done.clone();
        self.world.spawn(host.process(), async move {
            let queue = connected(client, digits).await;
            for _ in 0..count {
                queue.submit_task(NewTask::new("unknown", Value::Null).unwrap()).await.unwrap();
            }
            *flag.lock().unwrap() = true;
        });
        let is_done = || *done.lock().unwrap();
        self.world.run_until(is_done, Duration::from_hours(1)).unwrap_or_else(|failed| panic!("{failed}"));
    }

    fn advance(&mut self, duration: Duration) {
        self.world.run_for(duration).unwrap_or_else(|failed| panic!("{failed}"));
    }

    fn count(&self, verb: Verb, purpose: Purpose) -> u64 {
        let of = |client: &Client| {
            client.ledger().snapshot().count(|line| line.verb == verb && line.purpose == purpose)
        };
        self.clients.iter().map(of).sum()
    }
}

async fn connected(client: Client, digits: u8) -> ObjectQueue {
    let config = QueueConfig { shard_prefix_len: Some(digits), ..QueueConfig::default() };
    ObjectQueue::with_config(client, config).await.unwrap()
}

/// Returns puts, gets and lists for leases in ten idle minutes of the whole cluster.
fn idle(digits: u8, workers: usize) -> [u64; 3] {
    let mut cluster = Cluster::new(digits);
    cluster.start(workers, Some(&ShardLeasing::default()));
    let counts = |cluster: &Cluster| {
        [Verb::Put, Verb::Get, Verb::List].map(|verb| cluster.count(verb, Purpose::Lease))
    };
    let before = counts(&cluster);
    cluster.advance(IDLE_FOR);
    let after = counts(&cluster);
    std::array::from_fn(|nth| after[nth] - before[nth])
}

#[test]
fn renewals_do_not_grow_with_the_number_of_shards() {
    for workers in [1, 4] {
        let spent = [1, 2, 3].map(|digits| idle(digits, workers));
        for (digits, [puts, gets, lists]) in [1, 2, 3].into_iter().zip(spent) {
            let shards = ShardLen::new(digits).unwrap().count();
            println!(
                "{workers} workers, {shards} shards, 10 idle minutes: {puts} puts, {gets} gets, {lists} lists"
            );
        }
        let [_, some, many] = spent;
        // The times of the rounds are random, so that one more or less falls into the period.
        for (some, many) in some.into_iter().zip(many) {
            assert!(some.abs_diff(many) <= 68 * workers as u64, "{some} for 256 shards, {many} for 4,096");
        }
        let rounds = 600 / 9;
        assert!(many[0] <= (64 + workers as u64) * (rounds + 1), "{} puts", many[0]);
        assert_eq!(many[1], 0, "an idle cluster must read no lease");
        assert!(many[2] <= workers as u64 * (rounds + 1), "{} lists", many[2]);
    }
}

/// Returns the lists for discovery in the whole cluster per scan, of which there are two for each bell, while
/// tasks wait in all shards.
fn lists_per_scan(waiting: usize, leasing: Option<&ShardLeasing>) -> u64 {
    const RINGS: u64 = 5;
    let mut cluster = Cluster::new(DIGITS);
    cluster.submit(waiting);
    let entries = cluster.world.objects().into_keys().filter(|key| key.starts_with("ready/"));
    let non_empty: BTreeSet<_> = entries.filter_map(|key| key.split('/').nth(1).map(str::to_owned)).collect();
    assert!(non_empty.len() > 240, "{}", non_empty.len());
    cluster.start(16, leasing);
    let before = cluster.count(Verb::List, Purpose::Discover);
    for _ in 0..RINGS {
        cluster.submit(1);
        cluster.advance(Duration::from_secs(20));
    }
    (cluster.count(Verb::List, Purpose::Discover) - before) / (2 * RINGS)
}

/// The entries of neighbouring shards are adjacent: one list returns those of all shards, or of a group. So
/// every worker needs one list as long as a page returns all entries. Beyond that, a worker that serves all
/// shards needs one list per thousand entries, and workers that divide them at most one per group, and one
/// each to find the shards with entries.
#[test]
fn lists_do_not_grow_with_workers_times_shards() {
    let leasing = ShardLeasing::default();
    for (waiting, shared_least, shared_most, leased_most) in [(900, 16, 16, 16), (5_000, 80, 200, 64 + 16)] {
        let shared = lists_per_scan(waiting, None);
        let leased = lists_per_scan(waiting, Some(&leasing));
        println!(
            "16 workers, 256 shards, {waiting} waiting: {shared} lists per scan shared, {leased} leased"
        );
        assert!((shared_least..=shared_most).contains(&shared), "{shared} lists per scan");
        assert!((1..=leased_most).contains(&leased), "{leased} lists per scan");
    }
}
