//! Tasks start on time: scheduled tasks at their time by the store's clock, whatever the local clocks say;
//! other tasks at once, whatever entries precede them in the index.

use leasehold_core::new_task::Start;
use leasehold_core::{Index, NewTask, StoreTime};
use leasehold_queue::discover::KeyRange;
use leasehold_queue::{ObjectQueue, QueueLayout};
use leasehold_store::{Client, HostExt, Purpose, Verb};
use leasehold_worker::{Context, Polling, Shutdown, Worker, WorkerOptions};
use serde_json::Value;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::bucket::SimBucket;
use crate::faults::Faults;
use crate::host::SimHost;
use crate::world::World;

const DAY_NS: i64 = 86_400_000_000_000;
const TASKS: u64 = 100;
/// Maximum pause of the worker between two scans.
const POLL: Duration = Duration::from_secs(5);
/// Maximum delay of a start: less than a poll, because a worker remembers scheduled tasks; more than zero,
/// because the store reports its time in whole seconds, so that it is known only to a second or two.
const LATE_MAX: Duration = Duration::from_secs(3);

/// Scheduled and actual start, both by the store's own clock.
type Starts = Arc<Mutex<Vec<(StoreTime, StoreTime)>>>;

async fn connect(client: Client) -> ObjectQueue {
    ObjectQueue::connect(client).await.unwrap()
}

/// Submits tasks that are all due within one minute, half of them with a time and half with a delay.
async fn produce(host: Arc<SimHost>, client: Client, bucket: Arc<SimBucket>) {
    let queue = connect(client).await;
    for number in 0..TASKS {
        let pause = Duration::from_secs(30) + host.random_below(Duration::from_mins(1));
        let planned = time(&bucket).plus(pause);
        let mut order = NewTask::new("planned", planned.to_string().into()).unwrap();
        order.start = if number % 2 == 0 { Start::At(planned) } else { Start::After(pause) };
        queue.submit_task(order).await.unwrap();
    }
}

async fn work(concurrency: usize, client: Client, bucket: Arc<SimBucket>, starts: Starts) {
    let queue = connect(client).await;
    let polling = Polling { max: POLL, ..Polling::default() };
    let options = WorkerOptions { concurrency, polling, ..WorkerOptions::default() };
    let worker = Worker::new(queue.clone(), "w1", None).unwrap().options(options);
    let worker = worker.handle("planned", move |_: Context, planned: String| {
        starts.lock().unwrap().push((planned.parse().unwrap(), time(&bucket)));
        async { Ok::<_, leasehold_worker::TaskError>(Value::Null) }
    });
    worker.unwrap().run(Shutdown::default()).await.unwrap();
}

fn time(bucket: &SimBucket) -> StoreTime {
    StoreTime::from_millis(bucket.time_ns().div_euclid(1_000_000))
}

/// Returns the starts of a hundred scheduled tasks, and the number of lists that the worker made.
fn play(seed: u64) -> (Vec<(StoreTime, StoreTime)>, u64) {
    let mut world = World::new(seed, Faults::none()).with_scenario("planned");
    let (bucket, starts) = (world.bucket_handle(), Starts::default());
    let (ahead, producer) = world.process("producer");
    ahead.machine().jump_wall(DAY_NS);
    let (behind, worker) = world.process("worker");
    behind.machine().jump_wall(-DAY_NS);
    let counting = worker.clone();
    world.spawn(ahead.process(), produce(ahead.clone(), producer, bucket.clone()));
    world.spawn(behind.process(), work(100, worker, bucket, starts.clone()));
    let done = || starts.lock().unwrap().len() as u64 == TASKS;
    world.run_until(done, Duration::from_mins(5)).unwrap_or_else(|failed| panic!("{failed}"));
    let ledger = counting.ledger().snapshot();
    let lists = ledger.count(|line| line.verb == Verb::List && line.purpose == Purpose::Discover);
    let starts = starts.lock().unwrap().clone();
    (starts, lists)
}

#[test]
fn scheduled_tasks_start_neither_early_nor_more_than_a_poll_late() {
    for seed in crate::seeds(0..20) {
        let (starts, lists) = play(seed);
        for (planned, started) in &starts {
            assert!(started >= planned, "seed {seed}: planned for {planned}, started at {started}");
            let late = started.since(*planned);
            assert!(late <= LATE_MAX, "seed {seed}: {late:?} late");
        }
        // One list per poll; none for entries read before.
        assert!(lists <= 150, "seed {seed}: {lists} lists");
    }
}

/// Leaves entries of yesterday: ten of producers that crashed between their two writes, and ten of workers that
/// crashed before they removed them. Then submits a task of today.
async fn leave_entries_behind(client: Client) {
    let queue = connect(client).await;
    for _ in 0..10 {
        let order = || NewTask::new("yesterday", Value::Null).unwrap();
        let (ended, lost) =
            (queue.submit_task(order()).await.unwrap(), queue.submit_task(order()).await.unwrap());
        let entry = queue.get(&ended.id).await.unwrap().entry().unwrap();
        queue.cancel(&ended.id).await.unwrap();
        queue.client().put_always(Purpose::Submit, &entry.key(), "".into()).await.unwrap();
        let key = leasehold_core::keys::task(&queue.shard_len().shard_of(&lost.id), &lost.id);
        queue.client().delete(Purpose::Submit, &key).await.unwrap();
    }
    let left =
        queue.discover(Purpose::Discover, vec![KeyRange::whole(Index::Ready)]).await.unwrap().due.len();
    assert_eq!(left, 20);
}

async fn produce_one(client: Client, bucket: Arc<SimBucket>) {
    let queue = connect(client).await;
    queue.submit_task(NewTask::new("planned", time(&bucket).to_string().into()).unwrap()).await.unwrap();
}

#[test]
fn entries_left_over_from_yesterday_do_not_delay_a_task_of_today() {
    for seed in crate::seeds(0..20) {
        let mut world = World::new(seed, Faults::none()).with_scenario("leftovers");
        let (bucket, starts) = (world.bucket_handle(), Starts::default());
        let (host, client) = world.process("producer");
        world.spawn(host.process(), leave_entries_behind(client));
        world.run_for(Duration::from_hours(24)).unwrap_or_else(|failed| panic!("{failed}"));
        let (host, client) = world.process("producer");
        world.spawn(host.process(), produce_one(client, bucket.clone()));
        world.run_for(Duration::from_secs(5)).unwrap_or_else(|failed| panic!("{failed}"));
        let (host, client) = world.process("worker");
        let began = time(&bucket);
        world.spawn(host.process(), work(1, client, bucket, starts.clone()));
        let done = || !starts.lock().unwrap().is_empty();
        world.run_until(done, Duration::from_mins(5)).unwrap_or_else(|failed| panic!("{failed}"));
        let waited = starts.lock().unwrap()[0].1.since(began);
        assert!(waited <= POLL, "seed {seed}: it waited for {waited:?}");
    }
}
