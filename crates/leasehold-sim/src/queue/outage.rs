//! A store that refuses or does not answer costs a worker one probe per pause, however many tasks wait, and
//! work resumes within one pause.

use bytes::Bytes;
use leasehold_core::{Kind, NewTask, Status, keys};
use leasehold_queue::ObjectQueue;
use leasehold_store::store::{Answer, Cause, Failure};
use leasehold_store::{Client, DelegatingStore, Get, List, Page, Purpose, PutAnswer, Store, Version, When};
use leasehold_worker::{Context, Shutdown, TaskError, Worker};
use serde_json::Value;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::faults::Faults;
use crate::world::World;

const TASKS: u64 = 1_000;
/// The longest pause between two probes, and a few seconds for the first task to be claimed.
const RESUMED_WITHIN: Duration = Duration::from_secs(30 + 5);

/// Kind of failure of a store.
#[derive(Debug, Clone, Copy)]
enum Refusal {
    /// Writes fail; reads succeed.
    Writes(Kind),
    /// Every answer is unusable, as those of a captive portal.
    All(Kind),
    /// No request reaches the store.
    Unreached,
}

impl Refusal {
    fn failure(self) -> Failure {
        match self {
            Self::Writes(kind) | Self::All(kind) => Failure::permanent(kind, "refused"),
            Self::Unreached => Failure::transient(Cause::Unreached, "unreached"),
        }
    }
}

type Switch = Arc<Mutex<Option<Refusal>>>;

/// A store that fails on demand.
#[derive(Debug)]
struct OutageStore {
    store: Arc<dyn Store>,
    switch: Switch,
}

impl OutageStore {
    fn refuses<T: Send>(&self, is_write: bool) -> Option<Answer<'_, T>> {
        let refusal = (*self.switch.lock().unwrap())?;
        let is_refused = is_write || !matches!(refusal, Refusal::Writes(_));
        is_refused.then(|| -> Answer<'_, T> { Box::pin(async move { Err(refusal.failure()) }) })
    }
}

impl DelegatingStore for OutageStore {
    fn inner(&self) -> &dyn Store {
        &*self.store
    }

    fn get<'a>(&'a self, key: &'a str, unless: Option<&'a Version>) -> Answer<'a, Get> {
        self.refuses(false).unwrap_or_else(|| self.store.get(key, unless))
    }

    fn list<'a>(&'a self, list: &'a List) -> Answer<'a, Page> {
        self.refuses(false).unwrap_or_else(|| self.store.list(list))
    }

    fn put<'a>(&'a self, key: &'a str, body: Bytes, when: &'a When) -> Answer<'a, PutAnswer> {
        self.refuses(true).unwrap_or_else(|| self.store.put(key, body, when))
    }

    fn delete<'a>(&'a self, key: &'a str) -> Answer<'a, ()> {
        self.refuses(true).unwrap_or_else(|| self.store.delete(key))
    }
}

async fn produce(client: Client, submitted: Arc<AtomicU64>) {
    let queue = ObjectQueue::connect(client).await.unwrap();
    for _ in 0..TASKS {
        queue.submit_task(NewTask::new("t", Value::Null).unwrap()).await.unwrap();
        submitted.fetch_add(1, Relaxed);
    }
}

/// Runs a worker; the store begins to fail as soon as the worker is connected.
async fn work(client: Client, refusal: Refusal, switch: Switch, started: Arc<AtomicU64>) {
    let queue = ObjectQueue::connect(client).await.unwrap();
    *switch.lock().unwrap() = Some(refusal);
    let worker = Worker::new(queue, "w1", None).unwrap().handle("t", move |_: Context, _: Value| {
        started.fetch_add(1, Relaxed);
        async { Ok::<_, TaskError>(Value::Null) }
    });
    worker.unwrap().run(Shutdown::default()).await.unwrap();
}

/// Returns the requests of the worker in each minute of failure, and then until all tasks have started.
fn play(seed: u64, refusal: Refusal, minutes: usize) -> (Vec<u64>, u64) {
    let mut world = World::new(seed, Faults::none()).with_scenario("outage");
    let (switch, submitted, started) = (Switch::default(), Arc::default(), Arc::<AtomicU64>::default());
    let shared = switch.clone();
    world.wrap_stores(Arc::new(move |store| Arc::new(OutageStore { store, switch: shared.clone() })));
    let (host, client) = world.process("producer");
    world.spawn(host.process(), produce(client, Arc::clone(&submitted)));
    let failed = |failed| panic!("seed {seed}, {refusal:?}: {failed}");
    world.run_until(|| submitted.load(Relaxed) == TASKS, Duration::from_hours(1)).unwrap_or_else(failed);
    let (host, client) = world.process("worker");
    let ledger = client.clone();
    world.spawn(host.process(), work(client, refusal, switch.clone(), started.clone()));
    let spent = (0..minutes).map(|_| {
        let before = ledger.ledger().snapshot();
        world.run_for(Duration::from_mins(1)).unwrap_or_else(failed);
        ledger.ledger().snapshot().since(&before).requests()
    });
    let spent = spent.collect();
    assert_eq!(started.load(Relaxed), 0);
    *switch.lock().unwrap() = None;
    let before = ledger.ledger().snapshot();
    world.run_until(|| started.load(Relaxed) > 100, RESUMED_WITHIN).unwrap_or_else(failed);
    world.run_until(|| started.load(Relaxed) == TASKS, Duration::from_hours(1)).unwrap_or_else(failed);
    world.run_for(Duration::from_mins(2)).unwrap_or_else(failed);
    (spent, ledger.ledger().snapshot().since(&before).requests())
}

#[test]
fn a_store_that_fails_costs_a_probe_now_and_then_and_work_resumes_within_a_pause() {
    let refusals = [
        Refusal::Writes(Kind::Denied),
        Refusal::Writes(Kind::Unavailable),
        Refusal::All(Kind::Denied),
        Refusal::Unreached,
    ];
    for refusal in refusals {
        let (spent, _) = play(1, refusal, 2);
        assert!(spent[0] <= 150 && spent[1] <= 50, "{refusal:?}: {spent:?} requests while the store fails");
    }
}

/// `queue.json` is read again after a minute, and a portal's answer does not end the worker.
#[test]
fn a_worker_outlives_the_answers_of_a_captive_portal() {
    let (spent, _) = play(2, Refusal::All(Kind::Invalid), 4);
    assert!(spent.iter().skip(1).all(|spent| *spent <= 50), "{spent:?} requests while the store fails");
}

/// Every probe reads the index, which lists all pending tasks again.
#[test]
fn a_long_refusal_of_writes_does_not_make_tasks_wait_twice() {
    let (_, after_short) = play(3, Refusal::Writes(Kind::Denied), 1);
    let (_, after_long) = play(3, Refusal::Writes(Kind::Denied), 10);
    assert!(
        after_long <= after_short + 200,
        "{after_long} requests after ten minutes, {after_short} after one"
    );
}

/// Kind of failure of a store while a task ends.
#[derive(Debug, Clone, Copy)]
enum Ending {
    /// Every answer is unusable for five seconds.
    Portal(Kind),
    /// `queue.json` is missing for so long that the copy that was read before is no longer trusted.
    NoLayout,
}

impl Ending {
    /// Duration of the task.
    fn runs(self) -> Duration {
        match self {
            Self::Portal(_) => Duration::from_secs(2),
            Self::NoLayout => Duration::from_secs(65),
        }
    }
}

/// Runs one task that ends while the store fails. Returns how often it was started until it is complete.
fn end_during(seed: u64, ending: Ending) -> u64 {
    let mut world = World::new(seed, Faults::none()).with_scenario("ending");
    let (switch, started) = (Switch::default(), Arc::<AtomicU64>::default());
    let shared = switch.clone();
    world.wrap_stores(Arc::new(move |store| Arc::new(OutageStore { store, switch: shared.clone() })));
    let (host, client) = world.process("operator");
    let completed = Arc::new(AtomicBool::new(false));
    world.spawn(host.process(), operate(client, ending, switch, started.clone(), completed.clone()));
    let (host, client) = world.process("worker");
    let starts = started.clone();
    world.spawn(host.process(), async move {
        let clock = client.host().clone();
        let queue = ObjectQueue::connect(client).await.unwrap();
        let worker = Worker::new(queue, "w1", None).unwrap().handle("t", move |_: Context, _: Value| {
            starts.fetch_add(1, Relaxed);
            let runs = clock.sleep(ending.runs());
            async move {
                runs.await;
                Ok::<_, TaskError>(Value::Null)
            }
        });
        worker.unwrap().run(Shutdown::default()).await.unwrap();
    });
    let failed = |failed| panic!("seed {seed}, {ending:?}: {failed}");
    world.run_until(|| completed.load(Relaxed), Duration::from_mins(30)).unwrap_or_else(failed);
    started.load(Relaxed)
}

/// Submits the task, lets the store fail while it runs until after its end, and waits for it to be completed.
async fn operate(
    client: Client,
    ending: Ending,
    switch: Switch,
    started: Arc<AtomicU64>,
    completed: Arc<AtomicBool>,
) {
    let host = client.host().clone();
    let queue = ObjectQueue::connect(client.clone()).await.unwrap();
    let id = queue.submit_task(NewTask::new("t", Value::Null).unwrap()).await.unwrap().id;
    let kept = client.get(Purpose::Admin, keys::QUEUE).await.unwrap().unwrap();
    while started.load(Relaxed) == 0 {
        host.sleep(Duration::from_millis(100)).await;
    }
    match ending {
        Ending::Portal(kind) => *switch.lock().unwrap() = Some(Refusal::All(kind)),
        Ending::NoLayout => client.delete(Purpose::Admin, keys::QUEUE).await.unwrap(),
    }
    host.sleep(ending.runs() + Duration::from_secs(5)).await;
    match ending {
        Ending::Portal(_) => *switch.lock().unwrap() = None,
        Ending::NoLayout => {
            client.put_always(Purpose::Admin, keys::QUEUE, kept.body).await.unwrap();
        }
    }
    while queue.get(&id).await.unwrap().status() != Status::Completed {
        host.sleep(Duration::from_secs(1)).await;
    }
    completed.store(true, Relaxed);
}

#[test]
fn a_result_is_recorded_when_the_store_fails_for_a_moment_as_the_task_ends() {
    for ending in [
        Ending::Portal(Kind::Invalid),
        Ending::Portal(Kind::Corrupt),
        Ending::Portal(Kind::Denied),
        Ending::NoLayout,
    ] {
        for seed in 1..4 {
            assert_eq!(end_during(seed, ending), 1, "{ending:?}, seed {seed}: the task ran again");
        }
    }
}
