use leasehold_core::{Entry, IndexLocation, NewTask, WorkerId, keys};
use leasehold_queue::{DirectDispatch, ObjectQueue, QueueConfig};
use leasehold_store::{Client, Host, Purpose, Verb};
use leasehold_worker::{
    Context, InboxLeaseOptions, Polling, ShardLeasing, Shutdown, TaskError, Worker, WorkerOptions,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::lock;
use crate::faults::Faults;
use crate::host::SimHost;
use crate::queue::raw::{Raw, RawEntry, task_id};
use crate::scenario::{Options, Scenario};
use crate::world::World;

fn play(seed: u64, options: &Options) {
    Scenario::Direct.play(seed, options).unwrap_or_else(|failed| panic!("{failed}"));
}

#[test]
fn inboxes_keep_their_promises_under_wild_faults() {
    for seed in crate::seeds(0..100) {
        play(seed, &Options::default());
    }
}

#[test]
fn inboxes_keep_their_promises_on_bad_and_on_good_days() {
    for seed in crate::seeds(0..40) {
        play(seed, &Options { faults: Faults::mild(), ..Options::default() });
        play(seed, &Options { faults: Faults::none(), ..Options::default() });
    }
}

/// Workers that ran each task.
type Runs = Arc<Mutex<BTreeMap<u64, Vec<String>>>>;

/// Source of a worker's tasks.
#[derive(Clone, Copy)]
enum TaskOrigin {
    Shared,
    Leased,
    Direct,
}

/// A world without faults except for those of the test.
struct Fixture {
    world: World,
    runs: Runs,
}

impl Fixture {
    fn new(seed: u64, faults: Faults) -> Self {
        Self { world: World::new(seed, faults).with_scenario("inboxes"), runs: Runs::default() }
    }

    fn worker(&self, name: &'static str, origin: TaskOrigin, slow: Duration) -> (Arc<SimHost>, Client) {
        let (host, client) = self.world.process(name);
        let (own, counted, runs) = (host.clone(), client.clone(), self.runs.clone());
        let work = async move {
            let queue = connect(&own, client, None).await;
            let options = WorkerOptions {
                concurrency: 4,
                polling: Polling::fixed(Duration::from_secs(2)),
                inbox: matches!(origin, TaskOrigin::Direct).then(InboxLeaseOptions::default),
                leasing: matches!(origin, TaskOrigin::Leased).then(ShardLeasing::default),
                ..WorkerOptions::default()
            };
            let worker = Worker::new(queue, name, None).unwrap().options(options);
            let handler_host = own.clone();
            let worker = worker.handle("*", move |context: Context, number: u64| {
                lock(&runs).entry(number).or_default().push(name.to_owned());
                let asleep = handler_host.sleep(slow);
                let fails = context.task().task_type.as_str() == "fails" && context.attempt() == 1;
                async move {
                    asleep.await;
                    if fails { Err(TaskError::Retry("once".into())) } else { Ok(Value::Null) }
                }
            });
            let ended = worker.unwrap().run(Shutdown::default()).await;
            panic!("{name} ended: {ended:?}");
        };
        self.world.spawn(host.process(), work);
        (host, counted)
    }

    /// Submits tasks, with these pauses between them; relies on its list of workers forever.
    fn producer(
        &self,
        task_type: &'static str,
        numbers: std::ops::Range<u64>,
        pause: Duration,
    ) -> Arc<Mutex<u64>> {
        let (host, client) = self.world.process("producer");
        let (own, done) = (host.clone(), Arc::new(Mutex::new(0)));
        let counter = done.clone();
        let produce = async move {
            let direct =
                DirectDispatch { discovery_ttl: Duration::from_hours(1_000), ..DirectDispatch::default() };
            let queue = connect(&own, client, Some(direct)).await;
            for number in numbers {
                while queue.submit_task(NewTask::new(task_type, json!(number)).unwrap()).await.is_err() {}
                *lock(&counter) += 1;
                own.sleep(pause).await;
            }
        };
        self.world.spawn(host.process(), produce);
        done
    }

    fn run_for(&mut self, duration: Duration) {
        self.world.run_for(duration).unwrap_or_else(|failed| panic!("{failed}"));
    }

    fn run_until(&mut self, condition: impl FnMut() -> bool, limit: Duration) {
        self.world.run_until(condition, limit).unwrap_or_else(|failed| panic!("{failed}"));
    }

    fn count(&self, prefix: &str) -> usize {
        self.world.objects().keys().filter(|key| key.starts_with(prefix)).count()
    }

    /// Waits until all tasks are completed, each once, and no entry to them is left.
    fn assert_all_completed(&mut self, tasks: usize, limit: Duration) {
        let bucket = self.world.bucket_handle();
        let is_done = || {
            bucket.with_objects(|objects| {
                let is_open = |key: &String| RawEntry::read(key).is_some();
                objects.keys().filter(|key| task_id(key).is_some()).count() >= tasks
                    && !objects.keys().any(is_open)
            })
        };
        self.run_until(is_done, limit);
        let objects = self.world.objects();
        let records = objects.iter().filter(|(key, _)| task_id(key).is_some());
        let records: Vec<_> = records
            .map(|(_, stored)| Raw::read(stored).unwrap())
            .filter(|task| !task.is_tombstone())
            .collect();
        assert_eq!(records.len(), tasks);
        for task in records {
            let ends = task.history().iter().filter(|event| event["event"] == "complete").count();
            assert_eq!((task.status(), ends), ("completed", 1), "{}", task.0);
        }
    }
}

async fn connect(host: &SimHost, client: Client, direct: Option<DirectDispatch>) -> ObjectQueue {
    let config = QueueConfig { direct, ..QueueConfig::default() };
    loop {
        match ObjectQueue::with_config(client.clone(), config.clone()).await {
            Ok(queue) => return queue,
            Err(_) => host.sleep(Duration::from_secs(1)).await,
        }
    }
}

/// Hundreds of minutes of entries from a producer with an outdated list; no other worker is there to rescue
/// them.
#[test]
fn a_worker_that_was_away_for_three_days_runs_every_task_in_its_inbox() {
    for seed in 0..5 {
        let mut fixture = Fixture::new(seed, Faults::none());
        let (host, _) = fixture.worker("w1", TaskOrigin::Direct, Duration::ZERO);
        fixture.run_for(Duration::from_mins(1));
        let done = fixture.producer("t", 0..300, Duration::from_mins(2));
        fixture.run_until(|| *lock(&done) == 20, Duration::from_hours(1));
        fixture.world.executor().kill(host.process());
        fixture.run_until(|| *lock(&done) == 300, Duration::from_hours(24));
        fixture.run_for(Duration::from_hours(60));
        assert!(fixture.count("inbox/w1/") >= 279);
        fixture.worker("w1", TaskOrigin::Direct, Duration::ZERO);
        fixture.assert_all_completed(300, Duration::from_mins(10));
    }
}

/// A slow producer writes into a minute that the worker has long passed.
#[test]
fn an_entry_written_late_into_an_old_minute_is_found() {
    let mut fixture = Fixture::new(1, Faults::none());
    fixture.worker("w1", TaskOrigin::Direct, Duration::ZERO);
    fixture.producer("t", 0..10, Duration::from_secs(20));
    fixture.run_for(Duration::from_mins(10));
    let (host, client) = fixture.world.process("late");
    let (own, worker) = (host.clone(), WorkerId::checked("worker id", "w1").unwrap());
    let late = async move {
        let queue = connect(&own, client, None).await;
        // The only entry is eight minutes old, and its bell was lost.
        let id = queue.submit_task(NewTask::new("t", json!(10)).unwrap()).await.unwrap().id;
        let ready = queue.get(&id).await.unwrap().entry().unwrap();
        queue.client().delete(Purpose::Admin, &ready.key()).await.unwrap();
        let early = queue.now().unwrap().earliest.as_millis() - 480_000;
        let minute = leasehold_core::Minute::of(leasehold_core::StoreTime::from_millis(early));
        let entry = Entry { location: IndexLocation::Inbox(worker), minute, ..ready };
        queue.client().put_always(Purpose::Admin, &entry.key(), "".into()).await.unwrap();
    };
    fixture.world.spawn(host.process(), late);
    fixture.run_for(Duration::from_secs(1));
    fixture.assert_all_completed(11, Duration::from_mins(3));
}

#[test]
fn an_idle_worker_with_an_empty_inbox_pays_two_gets_a_poll_and_few_lists() {
    let mut fixture = Fixture::new(1, Faults::none());
    let (_, client) = fixture.worker("w1", TaskOrigin::Direct, Duration::ZERO);
    fixture.run_for(Duration::from_secs(5));
    let began = client.ledger().snapshot();
    let lists = began.count(|line| line.verb == Verb::List && line.purpose == Purpose::Discover);
    assert_eq!(lists, 3, "the inbox, the shards, the overflow");
    fixture.run_for(Duration::from_mins(10));
    let spent = client.ledger().snapshot().since(&began);
    let discover = |verb| spent.count(|line| line.purpose == Purpose::Discover && line.verb == verb);
    let polls = 10 * 60 / 2;
    let gets = discover(Verb::Get);
    assert!((2 * polls - 60..2 * polls + 60).contains(&gets), "{gets} gets in about {polls} polls");
    // The inbox and the shards once a minute, the overflow every other.
    let lists = discover(Verb::List);
    assert!((22..=26).contains(&lists), "{lists} lists");
    let renewals = spent.count(|line| line.purpose == Purpose::Lease && line.verb == Verb::Put);
    // Its name every 40 s while nothing arrives, and the lease of the duty that rescues inboxes of dead
    // workers.
    assert!((23..=29).contains(&renewals), "{renewals} renewals");
}

/// A thousand entries, and a rescuer that is killed in the middle, so that its own inbox must be rescued,
/// too.
#[test]
fn a_worker_killed_with_a_thousand_entries_in_its_inbox_loses_none() {
    for seed in 0..3 {
        let mut fixture = Fixture::new(seed, Faults { slow: 100, ..Faults::none() });
        let (host, _) = fixture.worker("dead", TaskOrigin::Direct, Duration::from_secs(10));
        fixture.run_for(Duration::from_mins(1));
        let done = fixture.producer("t", 0..1_000, Duration::from_millis(1));
        fixture.run_until(|| *lock(&done) >= 900, Duration::from_hours(1));
        fixture.world.executor().kill(host.process());
        let (first, _) = fixture.worker("first", TaskOrigin::Direct, Duration::from_secs(1));
        let bucket = fixture.world.bucket_handle();
        let in_overflow = || {
            bucket.with_objects(|objects| objects.keys().filter(|key| key.starts_with("overflow/")).count())
        };
        fixture.run_until(|| in_overflow() > 100, Duration::from_mins(10));
        assert!(fixture.count("inbox/dead/") > 0, "the rescuer must be killed in the middle");
        fixture.world.executor().kill(first.process());
        for (name, origin) in
            [("shared", TaskOrigin::Shared), ("leased", TaskOrigin::Leased), ("dead", TaskOrigin::Direct)]
        {
            fixture.worker(name, origin, Duration::ZERO);
        }
        fixture.assert_all_completed(1_000, Duration::from_mins(20));
    }
}

#[test]
fn a_task_that_fails_on_one_worker_is_retried_by_any() {
    let mut fixture = Fixture::new(1, Faults::none());
    fixture.worker("direct", TaskOrigin::Direct, Duration::from_secs(3));
    fixture.run_for(Duration::from_mins(1));
    for name in ["shared", "other"] {
        fixture.worker(name, TaskOrigin::Shared, Duration::ZERO);
    }
    fixture.producer("fails", 0..40, Duration::from_millis(100));
    fixture.run_for(Duration::from_secs(30));
    fixture.assert_all_completed(40, Duration::from_mins(5));
    let runs = lock(&fixture.runs);
    assert!(runs.values().all(|by| by.len() == 2 && by[0] == "direct"), "{runs:?}");
    let by_others = runs.values().filter(|by| by[1] != "direct").count();
    assert!(by_others > 0, "{runs:?}");
}

/// Names are leased, but do not count as workers among which the shards are divided.
#[test]
fn workers_with_inboxes_have_no_share_of_the_shards() {
    let mut fixture = Fixture::new(1, Faults::none());
    fixture.worker("direct", TaskOrigin::Direct, Duration::ZERO);
    fixture.worker("leased", TaskOrigin::Leased, Duration::ZERO);
    fixture.run_for(Duration::from_mins(2));
    let held = fixture.world.objects();
    let held = held.iter().filter(|(key, _)| key.starts_with(keys::SHARD_LEASES));
    let holders: Vec<_> =
        held.map(|(_, stored)| Raw::read(stored).unwrap().text("worker_id").to_owned()).collect();
    assert_eq!(holders, vec!["leased"; 16]);
}

/// Workers with random names would leave two objects each forever.
#[test]
fn names_and_bells_of_workers_long_gone_are_removed() {
    let mut fixture = Fixture::new(1, Faults::none());
    let (host, _) = fixture.worker("old", TaskOrigin::Direct, Duration::ZERO);
    fixture.run_for(Duration::from_mins(1));
    fixture.producer("t", 0..1, Duration::ZERO);
    fixture.assert_all_completed(1, Duration::from_mins(1));
    fixture.world.executor().kill(host.process());
    assert_eq!((fixture.count("workers/old"), fixture.count("index/bells/old")), (1, 1));
    fixture.run_for(Duration::from_hours(8 * 24));
    fixture.worker("new", TaskOrigin::Shared, Duration::ZERO);
    fixture.run_for(Duration::from_mins(3));
    assert_eq!((fixture.count("workers/old"), fixture.count("index/bells/old")), (0, 0));
}

/// Regression: a busy worker kept its name, and tasks in its inbox waited as long as its handlers ran.
#[test]
fn a_worker_that_is_busy_for_long_passes_on_pending_tasks() {
    let mut fixture = Fixture::new(1, Faults::none());
    fixture.worker("full", TaskOrigin::Direct, Duration::from_hours(1_000));
    fixture.run_for(Duration::from_mins(1));
    let done = fixture.producer("t", 0..24, Duration::from_millis(100));
    fixture.run_until(|| *lock(&done) == 24, Duration::from_mins(1));
    fixture.worker("idle", TaskOrigin::Shared, Duration::ZERO);
    fixture.run_for(Duration::from_mins(5));
    let by_idle = lock(&fixture.runs).values().filter(|by| by.contains(&"idle".to_owned())).count();
    assert_eq!(by_idle, 20, "all but the four that run");
}
