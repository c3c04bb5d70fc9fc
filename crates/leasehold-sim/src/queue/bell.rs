//! The bell: an idle worker asks for one object, and misses nothing for longer than a poll.
//!
//! Everything that must wake it is done by two producers at once, so that rings overwrite each other: two submits within
//! a second, a submit for later, a task that fails and is tried again. Nothing goes wrong here but what is broken on
//! purpose.

use leasehold_core::NewTask;
use leasehold_core::new_task::Start;
use leasehold_queue::{Queue, QueueConfig};
use leasehold_store::{Client, Host, HostExt};
use leasehold_worker::{Context, Polling, ShardLeasing, Shutdown, TaskError, Worker, WorkerOptions};
use serde_json::Value;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::executor::Executor;
use crate::failed::Failed;
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
const CALM: &str = "nothing goes wrong here";
const NAMES: &str = "the names are good";

/// So many rounds of every producer.
const ROUNDS: u64 = 10;
/// What a round of a producer starts: the last of its four tasks is started twice.
const STARTS: u64 = 5;
const PRODUCERS: [(&str, u64); 2] = [("p1", 1_000), ("p2", 2_000)];
/// Everything is done after this.
const DONE_WITHIN: Duration = Duration::from_mins(30);

/// When tasks were made due, and when they started, by virtual time.
#[derive(Clone, Default)]
struct Log {
    due: Arc<Mutex<Vec<(u64, Duration)>>>,
    started: Arc<Mutex<Vec<(u64, Duration)>>>,
}

async fn connect(client: Client) -> Queue {
    let config = QueueConfig { shard_prefix_len: DIGITS, ..QueueConfig::default() };
    Queue::with_config(client, config).await.expect(CALM)
}

/// An idle worker for all 256 shards. Its handler fails a task of type `twice` at its first attempt.
async fn work(world: Clock, name: &'static str, client: Client, log: Log, leasing: Option<ShardLeasing>) {
    let polling = Polling::fixed(POLL);
    let options = WorkerOptions { polling, sweep_every: SWEEP, leasing, ..WorkerOptions::default() };
    let worker = Worker::new(connect(client).await, name, None).expect(NAMES).options(options);
    let worker = worker.handle("*", move |context: Context, number: u64| {
        lock(&log.started).push((number, world.now()));
        let again = context.task().task_type.as_str() == "twice" && context.attempt() == 1;
        if again {
            // Its second attempt is due after its backoff, whoever runs it.
            lock(&log.due).push((number, world.now() + Duration::from_millis(1_200)));
        }
        async move { if again { Err(TaskError::Retry("once more".into())) } else { Ok(Value::Null) } }
    });
    worker.expect(NAMES).run(Shutdown::default()).await.expect(CALM);
}

/// Virtual time, for those who only look at it.
#[derive(Clone)]
struct Clock(Executor);

impl Clock {
    fn now(&self) -> Duration {
        self.0.now()
    }
}

async fn submit(queue: &Queue, clock: &Clock, log: &Log, number: u64, task_type: &str, pause: Duration) {
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

/// Plays it with one worker for all shards; the summary says how long each start was waited for, at most.
pub(crate) fn play(world: &mut World) -> Result<String, Failed> {
    let waited = longest_wait(world, None)?;
    if waited > SEEN_WITHIN {
        return Err(world.failed(format!("something was seen after {waited:?} only")));
    }
    Ok(format!("everything was seen within {waited:?}"))
}

/// How long each start was waited for, at most.
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
