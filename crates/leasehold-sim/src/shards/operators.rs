//! Operators that write into the bucket by hand, against advice, while workers lease shards and run tasks.

use leasehold_core::{NewTask, TaskId};
use leasehold_store::{Purpose, When};

use super::*;
use crate::faults::Faults;
use crate::random::SimRandom;

/// Time until corrupt leases are replaced and taken a round later.
const RECOVERED_WITHIN: Duration = Duration::from_mins(12);
const TASKS: usize = 150;

/// Manual change of a lease.
#[derive(Debug, Clone, Copy)]
enum LeaseEdit {
    Corrupt,
    Empty,
    Delete,
}

struct LeasedCluster {
    world: World,
    checker: ShardChecker,
    /// Number of runs of each task.
    runs: Arc<Mutex<BTreeMap<TaskId, u32>>>,
    clients: Vec<Client>,
}

impl LeasedCluster {
    fn new(seed: u64, workers: usize) -> Self {
        let world = World::new(seed, Faults::none()).with_scenario("shards");
        world.trace().silence();
        let mut cluster =
            Self { checker: ShardChecker::new(&world), world, runs: Arc::default(), clients: Vec::new() };
        for number in 0..workers {
            cluster.start(number);
        }
        let checker = cluster.checker.clone();
        cluster.run_until(|| checker.is_all_served() && checker.is_even(), EVEN_WITHIN);
        cluster
    }

    fn start(&mut self, number: usize) {
        let (host, client) = self.world.process(&format!("m{number}"));
        self.clients.push(client.clone());
        let (checker, runs, name) = (self.checker.clone(), self.runs.clone(), format!("w{number}"));
        self.world.spawn(host.process(), async move {
            let config = QueueConfig { shard_prefix_len: Some(DIGITS), ..QueueConfig::default() };
            let queue = ObjectQueue::with_config(client, config).await.unwrap();
            let options =
                WorkerOptions { leasing: Some(ShardLeasing::default()), ..WorkerOptions::default() };
            let worker = Worker::new(queue, &name, None).unwrap().options(options);
            let run = move |context: Context, _: Value| {
                *runs.lock().unwrap().entry(context.task().id).or_default() += 1;
                async { Ok::<_, TaskError>(Value::Null) }
            };
            let worker = worker.handle("*", run).unwrap();
            checker.add_worker(&host, &name, worker.view());
            worker.run(Shutdown::default()).await.unwrap();
        });
    }

    /// Submits tasks all the time.
    fn produce(&mut self) {
        let (host, client) = self.world.process("producer");
        self.world.spawn(host.process(), async move {
            let config = QueueConfig { shard_prefix_len: Some(DIGITS), ..QueueConfig::default() };
            let queue = ObjectQueue::with_config(client, config).await.unwrap();
            for _ in 0..TASKS {
                queue.submit_task(NewTask::new("t", Value::Null).unwrap()).await.unwrap();
                host.sleep(host.random_below(Duration::from_secs(2))).await;
            }
        });
    }

    /// Applies this change to some of the leases, on shards and on worker ids.
    fn edit_leases(&mut self, edit: LeaseEdit, rng: &mut SimRandom) {
        let keys: Vec<_> = self.world.objects().into_keys().filter(|key| is_lease(key)).collect();
        for key in keys.iter().filter(|_| rng.happens(1_500)) {
            match edit {
                LeaseEdit::Corrupt => drop(self.world.bucket().put(key, "{\"epoch\":".into(), &When::Always)),
                LeaseEdit::Empty => drop(self.world.bucket().put(key, "".into(), &When::Always)),
                LeaseEdit::Delete => self.world.bucket().delete(key),
            }
        }
    }

    fn run_until(&mut self, condition: impl FnMut() -> bool, limit: Duration) {
        run(&mut self.world, &self.checker, condition, limit).unwrap_or_else(|failed| panic!("{failed}"));
    }

    fn advance(&mut self, duration: Duration) {
        self.world.run_for(duration).unwrap_or_else(|failed| panic!("{failed}"));
    }

    /// Returns the number of requests for leases so far.
    fn lease_requests(&self) -> u64 {
        let of = |client: &Client| client.ledger().snapshot().count(|line| line.purpose == Purpose::Lease);
        self.clients.iter().map(of).sum()
    }
}

fn is_lease(key: &str) -> bool {
    key.starts_with("shard-leases/") || key.starts_with("workers/")
}

/// Checks that no task is lost or run twice, and that all leases are held again. Where leases were not
/// deleted, no two processes ever trusted one shard, which `run` checks after every step.
fn play(seed: u64, edit: LeaseEdit) {
    let mut cluster = LeasedCluster::new(seed, 4);
    let mut rng = cluster.world.rng("operator");
    cluster.produce();
    for _ in 0..3 {
        let wait = rng.between(Duration::from_secs(5), Duration::from_secs(40));
        match edit {
            LeaseEdit::Delete => cluster.advance(wait),
            LeaseEdit::Corrupt | LeaseEdit::Empty => {
                let end = cluster.world.now() + wait;
                let executor = cluster.world.executor().clone();
                cluster.run_until(|| executor.now() >= end, wait + Duration::from_secs(5));
            }
        }
        cluster.edit_leases(edit, &mut rng);
    }
    let runs = cluster.runs.clone();
    let (checker, all_done) = (cluster.checker.clone(), || runs.lock().unwrap().len() == TASKS);
    match edit {
        LeaseEdit::Delete => {
            // Both processes may serve a shard until the old holder renews.
            cluster.advance(RENEW_EVERY * 2);
        }
        LeaseEdit::Corrupt | LeaseEdit::Empty => {}
    }
    cluster.run_until(all_done, Duration::from_mins(10));
    cluster.run_until(|| checker.is_all_served() && checker.is_even(), RECOVERED_WITHIN);
    let runs = cluster.runs.lock().unwrap().clone();
    assert_eq!((runs.len(), runs.values().max()), (TASKS, Some(&1)), "seed {seed}, {edit:?}");
}

#[test]
fn corrupt_leases_are_taken_again_and_no_task_is_lost() {
    (0..6).for_each(|seed| play(seed, LeaseEdit::Corrupt));
}

#[test]
fn empty_leases_are_taken_again_and_no_task_is_lost() {
    (10..16).for_each(|seed| play(seed, LeaseEdit::Empty));
}

#[test]
fn deleted_leases_are_taken_again_and_no_task_is_lost() {
    (20..26).for_each(|seed| play(seed, LeaseEdit::Delete));
}

/// Regression: the corrupt lease was read and listed four times a round, for ten minutes.
#[test]
fn a_worker_below_its_quota_leaves_a_corrupt_lease_alone_until_it_is_old_enough() {
    for seed in 0..3 {
        let mut cluster = LeasedCluster::new(seed, 1);
        let idle = {
            let before = cluster.lease_requests();
            cluster.advance(Duration::from_mins(5));
            cluster.lease_requests() - before
        };
        drop(cluster.world.bucket().put("shard-leases/00.json", "{".into(), &When::Always));
        cluster.advance(Duration::from_mins(2));
        let before = cluster.lease_requests();
        cluster.advance(Duration::from_mins(5));
        let spent = cluster.lease_requests() - before;
        // One list a round more, and one renewal a round less.
        assert!(spent <= idle + 66, "seed {seed}: {spent} requests, {idle} without it");
        let checker = cluster.checker.clone();
        cluster.run_until(|| checker.is_all_served(), Duration::from_mins(4));
    }
}
