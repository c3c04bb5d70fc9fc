//! The bell: an idle worker asks for one object, and misses nothing for longer than a poll.

use leasehold_core::NewTask;
use leasehold_core::new_task::Start;
use leasehold_queue::{Queue, QueueConfig};
use leasehold_store::{Client, Host, HostExt, Purpose, Verb};
use leasehold_worker::{Context, Polling, ShardLeasing, Shutdown, TaskError, Worker, WorkerOptions};
use serde_json::Value;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::mutants::Broken;
use crate::faults::Faults;
use crate::host::SimHost;
use crate::world::World;

/// The pause of an idle worker, fixed so that it can be told from the sweep.
const POLL: Duration = Duration::from_secs(2);
/// What is not rung for is seen after this.
const SWEEP: Duration = Duration::from_mins(1);
/// Two polls with their jitter: what was not rung for is seen by the second look, which is made at the next poll that is
/// a second later by the narrowest that *now* can be known.
const SEEN_WITHIN: Duration = Duration::from_secs(7);
const DIGITS: u8 = 2;

/// When tasks were made due, and when they started, by virtual time.
#[derive(Clone, Default)]
struct Log {
    due: Arc<Mutex<Vec<(u64, Duration)>>>,
    started: Arc<Mutex<Vec<(u64, Duration)>>>,
}

async fn connect(client: Client) -> Queue {
    let config = QueueConfig { shard_prefix_len: DIGITS, ..QueueConfig::default() };
    Queue::with_config(client, config).await.unwrap()
}

/// An idle worker for all 256 shards. Its handler fails a task of type `twice` at its first attempt.
async fn work(world: Clock, name: &'static str, client: Client, log: Log, leasing: Option<ShardLeasing>) {
    let polling = Polling::fixed(POLL);
    let options = WorkerOptions { polling, sweep_every: SWEEP, leasing, ..WorkerOptions::default() };
    let worker = Worker::new(connect(client).await, name, None).unwrap().options(options);
    let worker = worker.handle("*", move |context: Context, number: u64| {
        log.started.lock().unwrap().push((number, world.now()));
        let again = context.task().task_type.as_str() == "twice" && context.attempt() == 1;
        if again {
            // Its second attempt is due after its backoff, whoever runs it.
            log.due.lock().unwrap().push((number, world.now() + Duration::from_millis(1_200)));
        }
        async move { if again { Err(TaskError::Retry("once more".into())) } else { Ok(Value::Null) } }
    });
    worker.unwrap().run(Shutdown::default()).await.unwrap();
}

/// Virtual time, for those who only look at it.
#[derive(Clone)]
struct Clock(crate::executor::Executor);

impl Clock {
    fn now(&self) -> Duration {
        self.0.now()
    }
}

async fn submit(queue: &Queue, clock: &Clock, log: &Log, number: u64, task_type: &str, pause: Duration) {
    let mut order = NewTask::new(task_type, number.into()).unwrap();
    order.start = if pause.is_zero() { Start::Now } else { Start::After(pause) };
    log.due.lock().unwrap().push((number, clock.now() + pause));
    queue.submit_task(order).await.unwrap();
}

/// Everything that must wake an idle worker: two submits within a second, a submit for later, one that fails and is tried
/// again; from two processes at once, so that rings overwrite each other.
async fn produce(clock: Clock, host: Arc<SimHost>, client: Client, log: Log, first: u64) {
    let queue = connect(client).await;
    for round in 0..10 {
        let number = first + round * 10;
        host.sleep(Duration::from_secs(20) + host.random_below(Duration::from_secs(20))).await;
        submit(&queue, &clock, &log, number, "once", Duration::ZERO).await;
        host.sleep(host.random_below(Duration::from_millis(900))).await;
        submit(&queue, &clock, &log, number + 1, "once", Duration::ZERO).await;
        submit(&queue, &clock, &log, number + 2, "once", host.random_below(Duration::from_secs(100))).await;
        submit(&queue, &clock, &log, number + 3, "twice", Duration::ZERO).await;
    }
}

/// Plays it, and says how long each start was waited for, at most.
fn longest_wait(
    seed: u64,
    broken: Option<Broken>,
    limit: Duration,
    leasing: Option<&ShardLeasing>,
) -> Duration {
    let mut world = World::new(seed, Faults::none()).called("bell");
    if let Some(broken) = broken {
        world.wrap_stores(Arc::new(move |store| broken.wrap(store)));
    }
    let (log, clock) = (Log::default(), Clock(world.executor().clone()));
    for name in if leasing.is_some() { &["w1", "w2", "w3"][..] } else { &["w1"] } {
        let (host, client) = world.process(name);
        world.spawn(host.process(), work(clock.clone(), name, client, log.clone(), leasing.cloned()));
    }
    for (name, first) in [("p1", 1_000), ("p2", 2_000)] {
        let (host, client) = world.process(name);
        world.spawn(host.process(), produce(clock.clone(), host.clone(), client, log.clone(), first));
    }
    let done = || log.started.lock().unwrap().len() == 2 * 10 * 5;
    world.run_until(done, Duration::from_mins(30) + limit).unwrap_or_else(|failed| panic!("{failed}"));
    let (mut due, mut started) = (log.due.lock().unwrap().clone(), log.started.lock().unwrap().clone());
    due.sort_unstable();
    started.sort_unstable();
    let waits = due.iter().zip(&started).map(|(due, started)| started.1.saturating_sub(due.1));
    waits.max().unwrap_or_default()
}

#[test]
fn nothing_waits_for_longer_than_a_poll() {
    for seed in 0..30 {
        let waited = longest_wait(seed, None, Duration::ZERO, None);
        assert!(waited <= SEEN_WITHIN, "seed {seed}: {waited:?}");
    }
}

/// The same when three workers have divided the shards among themselves.
#[test]
fn nothing_waits_for_longer_than_a_poll_in_leased_shards() {
    for seed in 0..15 {
        let waited = longest_wait(seed, None, Duration::ZERO, Some(&ShardLeasing::default()));
        assert!(waited <= SEEN_WITHIN, "seed {seed}: {waited:?}");
    }
}

#[test]
fn with_every_ring_lost_everything_is_seen_by_the_sweep() {
    let mut longest = Duration::ZERO;
    for seed in 0..10 {
        let waited = longest_wait(seed, Some(Broken::NoRing), SWEEP, None);
        assert!(waited <= SWEEP + SEEN_WITHIN, "seed {seed}: {waited:?}");
        longest = longest.max(waited);
    }
    assert!(longest > SEEN_WITHIN, "the rings were not lost");
}

/// Fifty idle workers with 256 shards, for an hour.
#[test]
fn an_idle_cluster_makes_few_requests() {
    const WORKERS: u64 = 50;
    let mut world = World::new(1, Faults::none()).called("idle");
    let (log, clock) = (Log::default(), Clock(world.executor().clone()));
    let mut clients = Vec::new();
    for number in 0..WORKERS {
        let (host, client) = world.process(&format!("worker {number}"));
        clients.push(client.clone());
        world.spawn(host.process(), work(clock.clone(), "w", client, log.clone(), None));
    }
    world.run_for(Duration::from_mins(5)).unwrap_or_else(|failed| panic!("{failed}"));
    let before: Vec<_> = clients.iter().map(|client| client.ledger().snapshot()).collect();
    world.run_for(Duration::from_hours(1)).unwrap_or_else(|failed| panic!("{failed}"));
    let (polls, sweeps) = (1_800 * WORKERS, 60 * WORKERS);
    let (mut gets, mut lists, mut all) = (0, 0, 0);
    for (client, before) in clients.iter().zip(&before) {
        let spent = client.ledger().snapshot().since(before);
        gets += spent.count(|line| line.verb == Verb::Get && line.purpose == Purpose::Discover);
        lists += spent.verb(Verb::List);
        all += spent.requests();
    }
    // One get a poll; one list of each index a sweep, and one of the expired keys each half hour; `queue.json` is asked for
    // every half minute.
    assert!(gets <= polls * 11 / 10, "{gets} gets for {polls} polls");
    assert!(lists <= 2 * sweeps + 3 * WORKERS, "{lists} lists for {sweeps} sweeps");
    let layout = 130 * WORKERS;
    assert!(all <= gets + lists + layout, "{all} requests, {gets} gets, {lists} lists");
}
