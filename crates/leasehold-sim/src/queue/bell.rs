//! Scenario `bell`: an idle worker reads one object, the bell, and starts every task within a poll or two.
//!
//! The bell is the notification object that submits write. Two producers trigger everything that must wake
//! the worker at the same time, so that their writes of the bell overwrite each other: two submits within a
//! second, a submit for later, a task that fails and is retried. There are no faults except for mutants.

use leasehold_core::NewTask;
use leasehold_core::new_task::Start;
use leasehold_queue::{ObjectQueue, QueueConfig};
use leasehold_store::{Client, Host, HostExt};
use leasehold_worker::{Context, Polling, ShardLeasing, Shutdown, TaskError, Worker, WorkerOptions};
use serde_json::Value;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::executor::Executor;
use crate::failed::Failed;
use crate::host::SimHost;
use crate::world::World;

/// Pause of an idle worker, fixed so that a poll can be distinguished from a full scan.
const POLL: Duration = Duration::from_secs(2);
/// Time until a full scan finds a task without a notification.
const FULL_SCAN_EVERY: Duration = Duration::from_mins(1);
/// Two polls with their jitter: a task without a notification is found by the second scan, which is made at
/// the first poll at least a second later, the smallest uncertainty of *now*.
const FOUND_WITHIN: Duration = Duration::from_secs(7);
const DIGITS: u8 = 2;
const CALM: &str = "no faults are injected";
const NAMES: &str = "the names are valid";

/// Number of rounds of every producer.
const ROUNDS: u64 = 10;
/// Number of starts in a round of a producer: the last of its four tasks starts twice.
const STARTS: u64 = 5;
const PRODUCERS: [(&str, u64); 2] = [("p1", 1_000), ("p2", 2_000)];
/// Time until all tasks are done.
const DONE_WITHIN: Duration = Duration::from_mins(30);

/// Times at which tasks became due and at which they started, in virtual time.
#[derive(Clone, Default)]
struct Log {
    due: Arc<Mutex<Vec<(u64, Duration)>>>,
    started: Arc<Mutex<Vec<(u64, Duration)>>>,
}

async fn connect(client: Client) -> ObjectQueue {
    let config = QueueConfig { shard_prefix_len: Some(DIGITS), ..QueueConfig::default() };
    ObjectQueue::with_config(client, config).await.expect(CALM)
}

/// An idle worker for all 256 shards. Its handler fails a task of type `twice` at its first attempt.
async fn work(world: Clock, name: &'static str, client: Client, log: Log, leasing: Option<ShardLeasing>) {
    let polling = Polling::fixed(POLL);
    let options =
        WorkerOptions { polling, full_scan_every: FULL_SCAN_EVERY, leasing, ..WorkerOptions::default() };
    let worker = Worker::new(connect(client).await, name, None).expect(NAMES).options(options);
    let worker = worker.handle("*", move |context: Context, number: u64| {
        lock(&log.started).push((number, world.now()));
        let again = context.task().task_type.as_str() == "twice" && context.attempt() == 1;
        if again {
            // The second attempt is due after its backoff, on any worker.
            lock(&log.due).push((number, world.now() + Duration::from_millis(1_200)));
        }
        async move { if again { Err(TaskError::Retry("once more".into())) } else { Ok(Value::Null) } }
    });
    worker.expect(NAMES).run(Shutdown::default()).await.expect(CALM);
}

/// Virtual time, read-only.
#[derive(Clone)]
struct Clock(Executor);

impl Clock {
    fn now(&self) -> Duration {
        self.0.now()
    }
}

async fn submit(
    queue: &ObjectQueue,
    clock: &Clock,
    log: &Log,
    number: u64,
    task_type: &str,
    pause: Duration,
) {
    let mut order = NewTask::new(task_type, number.into()).expect(NAMES);
    order.start = if pause.is_zero() { Start::Now } else { Start::After(pause) };
    lock(&log.due).push((number, clock.now() + pause));
    queue.submit_task(order).await.expect(CALM);
}

async fn produce(clock: Clock, host: Arc<SimHost>, client: Client, log: Log, first: u64) {
    let queue = connect(client).await;
    for round in 0..ROUNDS {
        let number = first + round * 10;
        host.sleep(Duration::from_secs(20) + host.random_below(Duration::from_secs(20))).await;
        submit(&queue, &clock, &log, number, "once", Duration::ZERO).await;
        host.sleep(host.random_below(Duration::from_millis(900))).await;
        submit(&queue, &clock, &log, number + 1, "once", Duration::ZERO).await;
        submit(&queue, &clock, &log, number + 2, "once", host.random_below(Duration::from_secs(100))).await;
        submit(&queue, &clock, &log, number + 3, "twice", Duration::ZERO).await;
    }
}

/// Plays the scenario with one worker for all shards. The summary is the longest wait of a start.
pub(crate) fn play(world: &mut World) -> Result<String, Failed> {
    let waited = longest_wait(world, None)?;
    if waited > FOUND_WITHIN {
        return Err(world.failed(format!("a task started only after {waited:?}")));
    }
    Ok(format!("all tasks started within {waited:?}"))
}

/// Returns the longest wait of a start.
fn longest_wait(world: &mut World, leasing: Option<&ShardLeasing>) -> Result<Duration, Failed> {
    let (log, clock) = (Log::default(), Clock(world.executor().clone()));
    for name in if leasing.is_some() { &["w1", "w2", "w3"][..] } else { &["w1"] } {
        let (host, client) = world.process(name);
        world.spawn(host.process(), work(clock.clone(), name, client, log.clone(), leasing.cloned()));
    }
    for (name, first) in PRODUCERS {
        let (host, client) = world.process(name);
        world.spawn(host.process(), produce(clock.clone(), host.clone(), client, log.clone(), first));
    }
    let done = || lock(&log.started).len() as u64 == PRODUCERS.len() as u64 * ROUNDS * STARTS;
    world.run_until(done, DONE_WITHIN)?;
    let (mut due, mut started) = (lock(&log.due).clone(), lock(&log.started).clone());
    due.sort_unstable();
    started.sort_unstable();
    let waits = due.iter().zip(&started).map(|(due, started)| started.1.saturating_sub(due.1));
    Ok(waits.max().unwrap_or_default())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
