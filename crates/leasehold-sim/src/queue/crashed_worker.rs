//! A worker crashes while it runs a task: an idle worker finds the task soon after the claim expires,
//! although it does not scan the index while nothing seems to happen.

use leasehold_core::NewTask;
use leasehold_core::new_task::Start;
use leasehold_queue::ObjectQueue;
use leasehold_store::store::{Answer, Cause, Failure};
use leasehold_store::{Client, DelegatingStore, Get, Host, Store, Version};
use leasehold_worker::{Context, Polling, Shutdown, TaskError, Worker, WorkerOptions};
use serde_json::Value;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::executor::ProcessId;
use crate::faults::Faults;
use crate::host::SimHost;
use crate::world::World;

const LEASE: Duration = Duration::from_secs(30);
/// Interval of full scans, far longer than everything else: a task found by a full scan was not found soon.
const FULL_SCAN_EVERY: Duration = Duration::from_mins(10);
/// Time from the loss: the lease, 10 s to notice, the backoff of a retry, a poll, the width of *now*; and a
/// minute for answers that take seconds, by which the second worker may lose its own claim.
const RECOVERED_WITHIN: Duration = Duration::from_secs(30 + 10 + 2 + 2 + 3 + 60);

/// Processes that have started the task, in order.
type Starts = Arc<Mutex<Vec<ProcessId>>>;

/// A worker whose handler never ends.
async fn work(host: Arc<SimHost>, client: Client, name: &'static str, poll: Duration, starts: Starts) {
    let queue = ObjectQueue::connect(client).await.unwrap();
    let options = WorkerOptions {
        polling: Polling::fixed(poll),
        lease: LEASE,
        full_scan_every: FULL_SCAN_EVERY,
        ..WorkerOptions::default()
    };
    let worker = Worker::new(queue, name, None).unwrap().options(options);
    let worker = worker.handle("*", move |_: Context, _: Value| {
        starts.lock().unwrap().push(host.process());
        let asleep = host.sleep(Duration::from_hours(1));
        async move {
            asleep.await;
            Ok::<_, TaskError>(Value::Null)
        }
    });
    worker.unwrap().run(Shutdown::default()).await.unwrap();
}

async fn produce(host: Arc<SimHost>, client: Client, at: Duration, start: Start) {
    let queue = ObjectQueue::connect(client).await.unwrap();
    host.sleep(at).await;
    let mut order = NewTask::new("t", Value::Null).unwrap();
    order.start = start;
    // Answers are so slow that claims expire.
    order.max_attempts = Some(100);
    // An answer may be so slow that nothing was sent at all.
    while let Err(error) = queue.submit_task(order.clone()).await {
        assert!(!error.outcome_is_unknown(), "{error}");
    }
}

/// Returns the time from the loss of the first worker until the second has the task, or `None` if the second
/// was first.
fn recovery_time(seed: u64, start: Start) -> Option<Duration> {
    let mut world = World::new(seed, Faults { slow: 1_500, ..Faults::none() }).with_scenario("lost");
    let starts = Starts::default();
    let (quick, client) = world.process("quick");
    world.spawn(
        quick.process(),
        work(quick.clone(), client, "w1", Duration::from_millis(100), starts.clone()),
    );
    let (slow, client) = world.process("slow");
    world.spawn(slow.process(), work(slow.clone(), client, "w2", Duration::from_secs(2), starts.clone()));
    let (host, client) = world.process("producer");
    let at = Duration::from_millis(90_000 + seed % 40 * 777);
    world.spawn(host.process(), produce(host.clone(), client, at, start));
    let failed = |failed| panic!("{failed}");
    world.run_until(|| !starts.lock().unwrap().is_empty(), Duration::from_mins(10)).unwrap_or_else(failed);
    if starts.lock().unwrap()[0] == slow.process() {
        return None;
    }
    world.executor().kill(quick.process());
    let lost_at = world.now();
    world.run_until(|| starts.lock().unwrap().len() > 1, FULL_SCAN_EVERY * 2).unwrap_or_else(failed);
    Some(world.now().saturating_sub(lost_at))
}

fn all_are_recovered_soon(start: Start) {
    let recovered: Vec<_> = (0..300).filter_map(|seed| Some((seed, recovery_time(seed, start)?))).collect();
    assert!(recovered.len() >= 10, "the quick worker was first in only {} runs", recovered.len());
    let late: Vec<_> = recovered.iter().filter(|(_, after)| *after > RECOVERED_WITHIN).collect();
    assert!(late.is_empty(), "{} of {} were late: {late:?}", late.len(), recovered.len());
}

#[test]
fn the_task_of_a_crashed_worker_is_recovered_soon() {
    all_are_recovered_soon(Start::Now);
}

/// No bell is written when a scheduled task becomes due.
#[test]
fn a_scheduled_task_of_a_crashed_worker_is_recovered_soon() {
    all_are_recovered_soon(Start::After(Duration::from_secs(100)));
}

/// A store that fails reads of one object.
#[derive(Debug)]
struct UnreadableObjectStore {
    store: Arc<dyn Store>,
    /// End of the object's key, once it is known.
    key: Arc<Mutex<Option<String>>>,
}

impl DelegatingStore for UnreadableObjectStore {
    fn inner(&self) -> &dyn Store {
        &*self.store
    }

    fn get<'a>(&'a self, key: &'a str, unless: Option<&'a Version>) -> Answer<'a, Get> {
        if self.key.lock().unwrap().as_ref().is_some_and(|stuck| key.ends_with(stuck)) {
            return Box::pin(async { Err(Failure::transient(Cause::Unreached, "stuck")) });
        }
        self.store.get(key, unless)
    }
}

/// Regression: entries after an unreadable task in the index were not scanned, because the first failure
/// ended the round.
#[test]
fn an_unreadable_task_does_not_hide_other_tasks() {
    let mut world = World::new(1, Faults::none()).with_scenario("lost");
    let (starts, stuck) = (Starts::default(), Arc::<Mutex<Option<String>>>::default());
    let key = stuck.clone();
    world.wrap_stores(Arc::new(move |store| Arc::new(UnreadableObjectStore { store, key: key.clone() })));
    let (quick, client) = world.process("quick");
    let poll = Duration::from_millis(100);
    world.spawn(quick.process(), work(quick.clone(), client, "w1", poll, starts.clone()));
    for name in ["p1", "p2"] {
        let (host, client) = world.process(name);
        world.spawn(host.process(), produce(host.clone(), client, Duration::from_secs(20), Start::Now));
    }
    let failed = |failed| panic!("{failed}");
    world.run_until(|| starts.lock().unwrap().len() == 2, Duration::from_mins(1)).unwrap_or_else(failed);
    world.run_for(Duration::from_secs(1)).unwrap_or_else(failed);
    world.executor().kill(quick.process());
    let first = world.objects().into_keys().find(|key| key.starts_with("tasks/")).unwrap();
    *stuck.lock().unwrap() = Some(first);
    let (slow, client) = world.process("slow");
    world.spawn(slow.process(), work(slow.clone(), client, "w2", Duration::from_secs(2), starts.clone()));
    world.run_until(|| starts.lock().unwrap().len() == 3, RECOVERED_WITHIN).unwrap_or_else(failed);
}
