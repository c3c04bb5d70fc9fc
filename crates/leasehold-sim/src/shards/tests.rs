use bytes::Bytes;
use leasehold_core::lease::RELEASED_BYTES;
use leasehold_core::new_task::Start;
use leasehold_core::{HexName, Holder, NewTask, TaskId, keys};
use leasehold_queue::lease::{Leases, break_lease};
use leasehold_store::store::{Answer, Cause, Failure};
use leasehold_store::{DelegatingStore, Get, List, Page, Purpose, PutAnswer, Store, Verb, Version, When};
use serde_json::Map;

use super::*;
use crate::faults::{Faults, ProcessFaults};
use crate::scenario::{Options, Report, Scenario};

fn play(seed: u64, options: &Options) -> Report {
    Scenario::Shards.play(seed, options).unwrap_or_else(|failed| panic!("{failed}"))
}

/// Wild faults without jumps of the store's time: after a jump no bound holds for hours.
fn wild() -> Faults {
    let wild = Faults::wild();
    Faults { process_faults: ProcessFaults { date_jump: 0, ..wild.process_faults }, ..wild }
}

#[test]
fn one_seed_gives_one_trace() {
    let options = Options { full: true, ..Options::default() };
    for seed in 0..1 {
        let (first, second) = (play(seed, &options), play(seed, &options));
        assert!(first.trace == second.trace, "seed {seed} gave two traces");
        assert_eq!(first, second);
    }
}

#[test]
fn shards_have_one_holder_and_are_shared_evenly_under_wild_faults() {
    let options = Options { faults: wild(), ..Options::default() };
    for seed in crate::seeds(0..10) {
        play(seed, &options);
    }
}

/// Regression: a machine that stalled while it was paused missed the same time twice. Its boot clock went
/// back, and for minutes it waited for a renewal that was not due.
#[test]
fn a_boot_clock_does_not_go_back() {
    play(2_084, &Options::default());
}

#[test]
fn shards_are_served_again_after_the_time_of_the_store_has_jumped() {
    for seed in 100..104 {
        play(seed, &Options::default());
    }
}

#[test]
fn shards_have_one_holder_and_are_shared_evenly_under_mild_faults() {
    let options = Options { faults: Faults::mild(), ..Options::default() };
    for seed in 200..206 {
        play(seed, &options);
    }
}

#[test]
fn shards_are_shared_evenly_without_faults() {
    let options = Options { faults: Faults::none(), ..Options::default() };
    for seed in 300..302 {
        play(seed, &options);
    }
}

/// Takes the lease on a worker id as a second process of that name would.
async fn take_name(client: Client, name: &'static str) {
    let worker_id = leasehold_core::ids::Name::checked("worker id", name).unwrap();
    let key = keys::worker_lease(&worker_id);
    break_lease(&client, &key, &Map::new()).await.unwrap();
    let holder = Holder { worker_id, instance: HexName::from_random(7), ttl: Duration::from_mins(5) };
    Leases::new(client, holder).unwrap().take(&key, &Map::new(), None).await.unwrap();
}

/// Regression: it kept its shards forever. It was not counted as a worker, so its share was missing from
/// those of the others.
#[test]
fn a_worker_that_lost_its_name_releases_its_shards() {
    let mut world = World::new(1, Faults::none()).with_scenario("shards");
    let checker = ShardChecker::new(&world);
    for name in ["w1", "w2"] {
        let actor = ShardWorker { name: name.to_owned(), leaves_at: None, checker: checker.clone() };
        world.actor(name, move |host, client| Box::pin(actor.clone().play(host, client)));
    }
    let failed = |failed| panic!("{failed}");
    run(&mut world, &checker, || checker.is_all_served() && checker.is_even(), EVEN_WITHIN)
        .unwrap_or_else(failed);
    let (host, client) = world.process("twin");
    world.spawn(host.process(), take_name(client, "w2"));
    let serves_none = || checker.served().values().any(|(name, ranges)| name == "w2" && ranges.is_empty());
    run(&mut world, &checker, serves_none, RENEW_EVERY * 2).unwrap_or_else(failed);
}

/// A store that fails puts under a prefix, or never answers there. A list of a prefix is written as that
/// prefix with a question mark.
#[derive(Debug)]
struct FailingStore {
    store: Arc<dyn Store>,
    failing: PrefixSwitch,
    hanging: PrefixSwitch,
}

impl FailingStore {
    fn hangs(&self, key: &str) -> bool {
        self.hanging.lock().unwrap().is_some_and(|prefix| key.starts_with(prefix))
    }
}

/// Stands for every delete instead of a prefix.
const DELETES: &str = "deletes";

/// The prefix, if there is one at this moment.
type PrefixSwitch = Arc<Mutex<Option<&'static str>>>;

impl DelegatingStore for FailingStore {
    fn inner(&self) -> &dyn Store {
        &*self.store
    }

    fn get<'a>(&'a self, key: &'a str, unless: Option<&'a Version>) -> Answer<'a, Get> {
        if self.hangs(key) { Box::pin(std::future::pending()) } else { self.store.get(key, unless) }
    }

    fn put<'a>(&'a self, key: &'a str, body: Bytes, when: &'a When) -> Answer<'a, PutAnswer> {
        let fails = self.failing.lock().unwrap().is_some_and(|prefix| key.starts_with(prefix));
        if fails {
            return Box::pin(async { Err(Failure::transient(Cause::Unreached, "failing")) });
        }
        if self.hangs(key) { Box::pin(std::future::pending()) } else { self.store.put(key, body, when) }
    }

    fn delete<'a>(&'a self, key: &'a str) -> Answer<'a, ()> {
        if *self.failing.lock().unwrap() == Some(DELETES) {
            return Box::pin(async { Err(Failure::transient(Cause::Unreached, "failing")) });
        }
        self.store.delete(key)
    }

    fn list<'a>(&'a self, list: &'a List) -> Answer<'a, Page> {
        if self.hangs(&format!("{}?", list.prefix)) {
            return Box::pin(std::future::pending());
        }
        self.store.list(list)
    }
}

/// One worker that leases all shards, and counts the tasks it runs.
struct LoneWorker {
    world: World,
    failing: PrefixSwitch,
    hanging: PrefixSwitch,
    view: Arc<Mutex<Option<WorkerView>>>,
}

impl LoneWorker {
    fn new(seed: u64) -> Self {
        let world = World::new(seed, Faults::none()).with_scenario("shards");
        let (failing, hanging) = (PrefixSwitch::default(), PrefixSwitch::default());
        let view = Arc::<Mutex<Option<WorkerView>>>::default();
        let gates = (failing.clone(), hanging.clone());
        world.wrap_stores(Arc::new(move |store| {
            Arc::new(FailingStore { store, failing: gates.0.clone(), hanging: gates.1.clone() })
        }));
        let (host, client) = world.process("worker");
        let slot = view.clone();
        world.spawn(host.process(), async move {
            let worker = lone_worker(client).await;
            *slot.lock().unwrap() = Some(worker.view());
            worker.run(Shutdown::default()).await.unwrap();
        });
        let mut lone = Self { world, failing, hanging, view };
        lone.until(serves_all, EVEN_WITHIN);
        lone
    }

    fn until(&mut self, condition: impl Fn(&WorkerView) -> bool, limit: Duration) -> Duration {
        let (view, began) = (self.view.clone(), self.world.now());
        let holds = || view.lock().unwrap().as_ref().is_some_and(&condition);
        self.world.run_until(holds, limit).unwrap_or_else(|failed| panic!("{failed}"));
        self.world.now().saturating_sub(began)
    }

    /// Checks every second, for this number of seconds, that at most one group is not served.
    fn assert_others_kept(&mut self, secs: u64) {
        for _ in 0..secs {
            self.advance(Duration::from_secs(1));
            let view = self.view.lock().unwrap().clone().unwrap();
            let served = view.shards().iter().map(ShardRange::count).sum::<usize>();
            assert!(served >= shards() - 4, "only {served} are served at {:?}", self.world.now());
        }
    }

    fn advance(&mut self, duration: Duration) {
        self.world.run_for(duration).unwrap_or_else(|failed| panic!("{failed}"));
    }
}

async fn connected(client: Client) -> ObjectQueue {
    let config = QueueConfig { shard_prefix_len: Some(DIGITS), ..QueueConfig::default() };
    ObjectQueue::with_config(client, config).await.unwrap()
}

/// Worker with full scans so rare that a task found by one was missed.
async fn lone_worker(client: Client) -> Worker {
    let options = WorkerOptions {
        leasing: Some(ShardLeasing::default()),
        polling: Polling::fixed(Duration::from_secs(2)),
        full_scan_every: Duration::from_mins(10),
        ..WorkerOptions::default()
    };
    let worker = Worker::new(connected(client).await, "w1", None).unwrap().options(options);
    worker.handle("*", |_: Context, _: Value| async { Ok::<_, TaskError>(Value::Null) }).unwrap()
}

async fn submit(client: Client, count: usize, pause: Duration) {
    let queue = connected(client).await;
    for _ in 0..count {
        let mut order = NewTask::new("t", Value::Null).unwrap();
        order.start = if pause.is_zero() { Start::Now } else { Start::After(pause) };
        queue.submit_task(order).await.unwrap();
    }
}

/// Works until no task is left, and records how many it ran.
async fn empty(client: Client, done: Arc<Mutex<Option<u64>>>) {
    let counts = lone_worker(client).await.run_until_empty().await.unwrap();
    *done.lock().unwrap() = Some(counts.completed);
}

fn serves_all(view: &WorkerView) -> bool {
    view.shards().iter().map(ShardRange::count).sum::<usize>() == shards()
}

/// Regression: the bell was read while no shard was served, and was not read again when the shards were
/// served again.
#[test]
fn a_task_submitted_while_no_lease_is_trusted_starts_once_one_is() {
    for seed in 0..5 {
        let mut lone = LoneWorker::new(seed);
        *lone.failing.lock().unwrap() = Some("shard-leases/");
        lone.until(|view| view.shards().is_empty(), Duration::from_mins(2));
        let (host, client) = lone.world.process("producer");
        lone.world.spawn(host.process(), submit(client, 1, Duration::ZERO));
        lone.advance(Duration::from_secs(20));
        *lone.failing.lock().unwrap() = None;
        lone.until(serves_all, Duration::from_mins(2));
        let waited = lone.until(|view| view.counts().completed == 1, Duration::from_mins(20));
        assert!(waited <= Duration::from_secs(6), "seed {seed}: it was missed for {waited:?}");
    }
}

/// A worker that renews all leases at once must not wait for the slowest: the others would expire meanwhile.
#[test]
fn a_lease_that_cannot_be_renewed_costs_no_other() {
    for seed in 0..5 {
        let mut lone = LoneWorker::new(seed);
        *lone.failing.lock().unwrap() = Some("shard-leases/00.json");
        lone.assert_others_kept(120);
    }
}

/// Regression: the worker waited for an unanswered take, or list of leases, until half of its leases had
/// expired.
#[test]
fn a_take_that_is_never_answered_costs_no_lease() {
    for (seed, hanging) in [(0, "shard-leases/00.json"), (1, "shard-leases/00.json"), (2, "shard-leases/?")] {
        let mut lone = LoneWorker::new(seed);
        let (host, client) = lone.world.process("operator");
        lone.world.spawn(host.process(), async move {
            drop(break_lease(&client, "shard-leases/00.json", &Map::new()).await.unwrap());
        });
        // The lease is lost with the next renewal, and requested from then on.
        lone.until(|view| !serves_all(view), RENEW_EVERY * 2);
        *lone.hanging.lock().unwrap() = Some(hanging);
        lone.assert_others_kept(120);
    }
}

/// Regression: it stopped before it had scanned most of the shards: at first it takes only part of them, and
/// none while its name is in use.
#[test]
fn a_worker_that_stops_when_idle_has_scanned_all_shards() {
    for is_restart in [false, true] {
        let mut world = World::new(1, Faults::none()).with_scenario("shards");
        let (host, client) = world.process("producer");
        world.spawn(host.process(), submit(client, 40, Duration::ZERO));
        world.run_for(Duration::from_secs(20)).unwrap_or_else(|failed| panic!("{failed}"));
        if is_restart {
            let (host, client) = world.process("before");
            world.spawn(host.process(), take_name(client, "w1"));
            world.run_for(Duration::from_secs(1)).unwrap_or_else(|failed| panic!("{failed}"));
        }
        let ended = Arc::<Mutex<Option<u64>>>::default();
        let (host, client) = world.process("worker");
        world.spawn(host.process(), empty(client, ended.clone()));
        let done = || ended.lock().unwrap().is_some();
        world.run_until(done, Duration::from_mins(30)).unwrap_or_else(|failed| panic!("{failed}"));
        assert_eq!(*ended.lock().unwrap(), Some(40), "restarted: {is_restart}");
    }
}

/// Regression: no lease could be trusted for a while, so no shard was served, and the worker took that for no
/// tasks left.
#[test]
fn a_worker_that_stops_when_idle_does_not_stop_because_it_serves_nothing() {
    let mut world = World::new(1, Faults::none()).with_scenario("shards");
    let failing = PrefixSwitch::default();
    let gate = failing.clone();
    world.wrap_stores(Arc::new(move |store| {
        Arc::new(FailingStore { store, failing: gate.clone(), hanging: PrefixSwitch::default() })
    }));
    let (host, client) = world.process("producer");
    world.spawn(host.process(), submit(client, 1, Duration::from_secs(75)));
    world.run_for(Duration::from_secs(20)).unwrap_or_else(|failed| panic!("{failed}"));
    let ended = Arc::<Mutex<Option<u64>>>::default();
    let (host, client) = world.process("worker");
    world.spawn(host.process(), empty(client, ended.clone()));
    world.run_for(Duration::from_secs(20)).unwrap_or_else(|failed| panic!("{failed}"));
    *failing.lock().unwrap() = Some("shard-leases/");
    world.run_for(Duration::from_mins(1)).unwrap_or_else(|failed| panic!("{failed}"));
    *failing.lock().unwrap() = None;
    let done = || ended.lock().unwrap().is_some();
    world.run_until(done, Duration::from_mins(30)).unwrap_or_else(|failed| panic!("{failed}"));
    assert_eq!(*ended.lock().unwrap(), Some(1));
}

/// Takes a number of names and never renews them.
async fn take_names(client: Client, count: usize) {
    for number in 0..count {
        let worker_id = leasehold_core::ids::Name::checked("worker id", &format!("gone-{number}")).unwrap();
        let key = keys::worker_lease(&worker_id);
        let holder = Holder { worker_id, instance: HexName::from_random(7), ttl: TTL };
        Leases::new(client.clone(), holder).unwrap().take(&key, &Map::new(), None).await.unwrap();
    }
}

/// Starts a worker some time after other workers are gone.
fn start_worker_after(
    names: usize,
    after: Duration,
    failing: Option<&'static str>,
) -> (World, Client, Arc<Mutex<Option<WorkerView>>>) {
    let mut world = World::new(1, Faults::none()).with_scenario("shards");
    let gate: PrefixSwitch = Arc::new(Mutex::new(failing));
    world.wrap_stores(Arc::new(move |store| {
        Arc::new(FailingStore { store, failing: gate.clone(), hanging: PrefixSwitch::default() })
    }));
    let (host, client) = world.process("gone");
    world.spawn(host.process(), async move {
        connected(client.clone()).await;
        take_names(client, names).await;
    });
    world.run_for(after).unwrap_or_else(|failed| panic!("{failed}"));
    let (host, client) = world.process("worker");
    let (own, view) = (client.clone(), Arc::<Mutex<Option<WorkerView>>>::default());
    let slot = view.clone();
    world.spawn(host.process(), async move {
        let worker = lone_worker(client).await;
        *slot.lock().unwrap() = Some(worker.view());
        worker.run(Shutdown::default()).await.unwrap();
    });
    (world, own, view)
}

/// Regression: a name with a removal mark counted as alive, and its share was not served for half an hour.
#[test]
fn a_name_that_is_being_removed_has_no_share() {
    let (mut world, _, view) = start_worker_after(3, Duration::from_hours(8 * 24), Some(DELETES));
    world.run_for(Duration::from_mins(4)).unwrap_or_else(|failed| panic!("{failed}"));
    assert!(serves_all(view.lock().unwrap().as_ref().unwrap()));
}

/// Regression: each of them was read, one after the other, before any shard was served.
#[test]
fn expired_worker_leases_cost_nothing() {
    let (mut world, client, view) = start_worker_after(500, Duration::from_hours(1), None);
    world.run_for(Duration::from_secs(30)).unwrap_or_else(|failed| panic!("{failed}"));
    assert!(serves_all(view.lock().unwrap().as_ref().unwrap()));
    let gets =
        client.ledger().snapshot().count(|line| line.verb == Verb::Get && line.purpose == Purpose::Lease);
    assert_eq!(gets, 0);
}

/// From claim to settlement: one get and two puts, and the removal of the remaining entry.
#[test]
fn a_task_in_a_leased_shard_costs_a_get_and_two_puts() {
    const TASKS: usize = 300;
    let mut world = World::new(1, Faults::none()).with_scenario("shards");
    let (host, client) = world.process("worker");
    let (own, view) = (client.clone(), Arc::<Mutex<Option<WorkerView>>>::default());
    let slot = view.clone();
    world.spawn(host.process(), async move {
        let worker = lone_worker(client).await;
        *slot.lock().unwrap() = Some(worker.view());
        worker.run(Shutdown::default()).await.unwrap();
    });
    let of = |condition: fn(&WorkerView) -> bool| {
        let view = view.clone();
        move || view.lock().unwrap().as_ref().is_some_and(condition)
    };
    world.run_until(of(serves_all), EVEN_WITHIN).unwrap_or_else(|failed| panic!("{failed}"));
    let before = own.ledger().snapshot();
    let (host, client) = world.process("producer");
    world.spawn(host.process(), submit(client, TASKS, Duration::ZERO));
    let done = of(|view| view.counts().completed == TASKS as u64);
    world.run_until(done, Duration::from_mins(10)).unwrap_or_else(|failed| panic!("{failed}"));
    world.run_for(Duration::from_mins(2)).unwrap_or_else(|failed| panic!("{failed}"));
    let spent = own.ledger().snapshot().since(&before);
    let tasks = |verb: Verb| {
        spent.count(|line| {
            line.verb == verb && matches!(line.purpose, Purpose::Claim | Purpose::Settle | Purpose::Sweep)
        })
    };
    assert_eq!((tasks(Verb::Put), tasks(Verb::Delete)), (2 * TASKS as u64, TASKS as u64));
    // An entry may be listed before its task exists.
    let gets = tasks(Verb::Get);
    assert!(gets <= TASKS as u64 * 102 / 100, "{gets} gets");
}

/// Regression: one key that was never answered kept a worker from taking any other, forever.
#[test]
fn a_take_that_is_never_answered_does_not_delay_others() {
    for seed in 0..3 {
        let mut lone = LoneWorker::new(seed);
        let is_without = |groups: usize| {
            move |view: &WorkerView| {
                let served = view.shards().iter().map(ShardRange::count).sum::<usize>();
                served == shards() - 4 * groups
            }
        };
        let (host, client) = lone.world.process("operator");
        let (process, other) = (host.process(), client.clone());
        lone.world.spawn(process, async move {
            drop(break_lease(&client, "shard-leases/00.json", &Map::new()).await.unwrap());
        });
        lone.until(is_without(1), RENEW_EVERY * 2);
        *lone.hanging.lock().unwrap() = Some("shard-leases/00.json");
        lone.advance(RENEW_EVERY * 2);
        lone.world.spawn(process, async move {
            drop(break_lease(&other, "shard-leases/04.json", &Map::new()).await.unwrap());
        });
        lone.until(is_without(2), RENEW_EVERY * 2);
        lone.until(is_without(1), RENEW_EVERY * 2);
    }
}

/// A store that carries out puts under a prefix, but does not answer.
#[derive(Debug)]
struct SilentStore {
    store: Arc<dyn Store>,
    mute: PrefixSwitch,
}

impl DelegatingStore for SilentStore {
    fn inner(&self) -> &dyn Store {
        &*self.store
    }

    fn put<'a>(&'a self, key: &'a str, body: Bytes, when: &'a When) -> Answer<'a, PutAnswer> {
        let is_mute = self.mute.lock().unwrap().is_some_and(|prefix| key.starts_with(prefix));
        Box::pin(async move {
            let answer = self.store.put(key, body, when).await;
            if is_mute { std::future::pending().await } else { answer }
        })
    }
}

/// Runs a worker whose puts under a prefix get no answer for a number of seconds, and which is then stopped.
fn stopped_after(prefix: &'static str, secs: u64) -> World {
    let mut world = World::new(1, Faults::none()).with_scenario("shards");
    let mute: PrefixSwitch = Arc::new(Mutex::new(Some(prefix)));
    let gate = mute.clone();
    world.wrap_stores(Arc::new(move |store| Arc::new(SilentStore { store, mute: gate.clone() })));
    let (host, client) = world.process("worker");
    let (shutdown, ended) = (Shutdown::default(), Arc::<Mutex<bool>>::default());
    let (stop, slot) = (shutdown.clone(), ended.clone());
    world.spawn(host.process(), async move {
        lone_worker(client).await.run(stop).await.unwrap();
        *slot.lock().unwrap() = true;
    });
    world.run_for(Duration::from_secs(secs)).unwrap_or_else(|failed| panic!("{failed}"));
    assert!(held(&world, prefix) > 0, "{prefix} after {secs} s: nothing was taken yet");
    *mute.lock().unwrap() = None;
    shutdown.drain();
    let done = || *ended.lock().unwrap();
    world.run_until(done, RENEW_EVERY * 2).unwrap_or_else(|failed| panic!("{failed}"));
    world
}

/// Returns the number of leases under a prefix that were not released.
fn held(world: &World, prefix: &str) -> usize {
    let leases = world.objects().into_iter().filter(|(key, _)| key.starts_with(prefix));
    leases.filter(|(_, stored)| (stored.object.body.len() as u64) < RELEASED_BYTES).count()
}

/// Regression: a lease taken without an answer was held until it expired, so that no worker served it or
/// could restart under that name.
#[test]
fn a_worker_that_stops_releases_leases_of_unknown_outcome() {
    for (prefix, secs) in [("shard-leases/", 2), ("shard-leases/", 4), ("workers/", 2), ("workers/", 4)] {
        let world = stopped_after(prefix, secs);
        assert_eq!(held(&world, prefix), 0, "{prefix} after {secs} s");
    }
}

/// Regression: requests that were given up before their answer came were not counted.
#[test]
fn an_abandoned_request_is_counted() {
    stopped_after("shard-leases/", 4).every_request_is_counted().unwrap();
}

/// Regression: a worker that needed longer for a page than from one full scan to the next never got beyond
/// the first page.
#[test]
fn no_shard_waits_forever_behind_those_before_it() {
    let mut world = World::new(1, Faults::none()).with_scenario("shards");
    world.trace().silence();
    for number in 0..20 {
        let (host, client) = world.process(&format!("producer{number}"));
        world.spawn(host.process(), async move {
            let queue = connected(client).await;
            for number in 0.. {
                queue.submit_task(NewTask::new("t", Value::Null).unwrap()).await.unwrap();
                // Many at first, then about as many as are completed.
                let pause = Duration::from_millis(if number < 120 { 0 } else { 1_800 });
                host.sleep(pause).await;
            }
        });
    }
    world.run_for(Duration::from_mins(1)).unwrap_or_else(|failed| panic!("{failed}"));
    let runs = Arc::<Mutex<Vec<TaskId>>>::default();
    let (host, client) = world.process("worker");
    let done = runs.clone();
    world.spawn(host.process(), async move {
        let leasing = Some(ShardLeasing::default());
        let options = WorkerOptions { leasing, concurrency: 10, ..WorkerOptions::default() };
        let worker = Worker::new(connected(client).await, "w1", None).unwrap().options(options);
        let run = move |context: Context, _: Value| {
            let (host, done) = (host.clone(), done.clone());
            async move {
                host.sleep(Duration::from_secs(1)).await;
                done.lock().unwrap().push(context.task().id);
                Ok::<_, TaskError>(Value::Null)
            }
        };
        worker.handle("*", run).unwrap().run(Shutdown::default()).await.unwrap();
    });
    world.run_for(Duration::from_mins(3)).unwrap_or_else(|failed| panic!("{failed}"));
    runs.lock().unwrap().clear();
    // About fifteen scans, each with a random start.
    world.run_for(Duration::from_mins(30)).unwrap_or_else(|failed| panic!("{failed}"));
    let runs = runs.lock().unwrap();
    let last = runs.iter().filter(|id| id.to_string().starts_with(['c', 'd', 'e', 'f'])).count();
    assert!(last > runs.len() / 20, "of {} runs, {last} were in the last quarter of the shards", runs.len());
}
