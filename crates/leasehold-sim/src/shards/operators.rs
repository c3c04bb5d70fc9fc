//! Operators that write into the bucket by hand, against advice, while workers lease shards and run tasks.

use leasehold_core::{NewTask, TaskId};
use leasehold_store::{Purpose, When};

use super::*;
use crate::chance::SimRandom;
use crate::faults::Faults;

/// Time until corrupt leases are replaced and taken a round later.
const HEALED_WITHIN: Duration = Duration::from_mins(12);
const TASKS: usize = 150;

/// Manual change of a lease.
#[derive(Debug, Clone, Copy)]
enum Deed {
    Corrupt,
    Empty,
    Delete,
}

struct Yard {
    world: World,
    watch: Watch,
    /// Number of runs of each task.
    runs: Arc<Mutex<BTreeMap<TaskId, u32>>>,
    clients: Vec<Client>,
}

impl Yard {
    fn new(seed: u64, workers: usize) -> Self {
        let world = World::new(seed, Faults::none()).called("shards");
        world.trace().silence();
        let mut yard = Self { watch: Watch::new(&world), world, runs: Arc::default(), clients: Vec::new() };
        for number in 0..workers {
            yard.start(number);
        }
        let watch = yard.watch.clone();
        yard.until(|| watch.is_all_served() && watch.is_even(), EVEN_WITHIN);
        yard
    }

    fn start(&mut self, number: usize) {
        let (host, client) = self.world.process(&format!("m{number}"));
        self.clients.push(client.clone());
        let (watch, runs, name) = (self.watch.clone(), self.runs.clone(), format!("w{number}"));
        self.world.spawn(host.process(), async move {
            let config = QueueConfig { shard_prefix_len: DIGITS, ..QueueConfig::default() };
            let queue = Queue::with_config(client, config).await.unwrap();
            let options =
                WorkerOptions { leasing: Some(ShardLeasing::default()), ..WorkerOptions::default() };
            let worker = Worker::new(queue, &name, None).unwrap().options(options);
            let run = move |context: Context, _: Value| {
                *runs.lock().unwrap().entry(context.task().id).or_default() += 1;
                async { Ok::<_, TaskError>(Value::Null) }
            };
            let worker = worker.handle("*", run).unwrap();
            watch.enter(&host, &name, worker.monitor());
            worker.run(Shutdown::default()).await.unwrap();
        });
    }

    /// Submits tasks all the time.
    fn produce(&mut self) {
        let (host, client) = self.world.process("producer");
        self.world.spawn(host.process(), async move {
            let config = QueueConfig { shard_prefix_len: DIGITS, ..QueueConfig::default() };
            let queue = Queue::with_config(client, config).await.unwrap();
            for _ in 0..TASKS {
                queue.submit_task(NewTask::new("t", Value::Null).unwrap()).await.unwrap();
                host.sleep(host.random_below(Duration::from_secs(2))).await;
            }
        });
    }

    /// Applies this change to some of the leases, on shards and on names.
    fn meddle(&mut self, deed: Deed, chance: &mut SimRandom) {
        let keys: Vec<_> = self.world.objects().into_keys().filter(|key| is_lease(key)).collect();
        for key in keys.iter().filter(|_| chance.happens(1_500)) {
            match deed {
                Deed::Corrupt => drop(self.world.bucket().put(key, "{\"epoch\":".into(), &When::Always)),
                Deed::Empty => drop(self.world.bucket().put(key, "".into(), &When::Always)),
                Deed::Delete => self.world.bucket().delete(key),
            }
        }
    }

    fn until(&mut self, condition: impl FnMut() -> bool, limit: Duration) {
        run(&mut self.world, &self.watch, condition, limit).unwrap_or_else(|failed| panic!("{failed}"));
    }

    fn pass(&mut self, duration: Duration) {
        self.world.run_for(duration).unwrap_or_else(|failed| panic!("{failed}"));
    }

    /// Returns the number of requests for leases so far.
    fn asked(&self) -> u64 {
        let of = |client: &Client| client.ledger().snapshot().count(|line| line.purpose == Purpose::Lease);
        self.clients.iter().map(of).sum()
    }
}

fn is_lease(key: &str) -> bool {
    key.starts_with("shard-leases/") || key.starts_with("workers/")
}

/// Checks that no task is lost or run twice, and that all leases are held again. Where leases were not
/// deleted, no two processes ever trusted one shard, which `run` checks after every step.
fn play(seed: u64, deed: Deed) {
    let mut yard = Yard::new(seed, 4);
    let mut chance = yard.world.chance("operator");
    yard.produce();
    for _ in 0..3 {
        let wait = chance.between(Duration::from_secs(5), Duration::from_secs(40));
        match deed {
            Deed::Delete => yard.pass(wait),
            Deed::Corrupt | Deed::Empty => {
                let end = yard.world.now() + wait;
                let executor = yard.world.executor().clone();
                yard.until(|| executor.now() >= end, wait + Duration::from_secs(5));
            }
        }
        yard.meddle(deed, &mut chance);
    }
    let runs = yard.runs.clone();
    let (watch, all_done) = (yard.watch.clone(), || runs.lock().unwrap().len() == TASKS);
    match deed {
        Deed::Delete => {
            // Both processes may serve a shard until the old holder renews.
            yard.pass(RENEW_EVERY * 2);
        }
        Deed::Corrupt | Deed::Empty => {}
    }
    yard.until(all_done, Duration::from_mins(10));
    yard.until(|| watch.is_all_served() && watch.is_even(), HEALED_WITHIN);
    let runs = yard.runs.lock().unwrap().clone();
    assert_eq!((runs.len(), runs.values().max()), (TASKS, Some(&1)), "seed {seed}, {deed:?}");
}

#[test]
fn corrupt_leases_are_taken_again_and_no_task_is_lost() {
    (0..6).for_each(|seed| play(seed, Deed::Corrupt));
}

#[test]
fn empty_leases_are_taken_again_and_no_task_is_lost() {
    (10..16).for_each(|seed| play(seed, Deed::Empty));
}

#[test]
fn deleted_leases_are_taken_again_and_no_task_is_lost() {
    (20..26).for_each(|seed| play(seed, Deed::Delete));
}

/// Regression: the corrupt lease was read and listed four times a round, for ten minutes.
#[test]
fn a_worker_below_its_quota_leaves_a_corrupt_lease_alone_until_it_is_old_enough() {
    for seed in 0..3 {
        let mut yard = Yard::new(seed, 1);
        let idle = {
            let before = yard.asked();
            yard.pass(Duration::from_mins(5));
            yard.asked() - before
        };
        drop(yard.world.bucket().put("shard-leases/00.json", "{".into(), &When::Always));
        yard.pass(Duration::from_mins(2));
        let before = yard.asked();
        yard.pass(Duration::from_mins(5));
        let spent = yard.asked() - before;
        // One list a round more, and one renewal a round less.
        assert!(spent <= idle + 66, "seed {seed}: {spent} requests, {idle} without it");
        let watch = yard.watch.clone();
        yard.until(|| watch.is_all_served(), Duration::from_mins(4));
    }
}
