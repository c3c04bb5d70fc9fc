//! Artifacts in the life of one task, in a world without faults except for those of the test.

use leasehold_core::{ArtifactId, Name, NewTask, Status, Task, TaskId};
use leasehold_pieces::{ArtifactStore, PublishOptions};
use leasehold_queue::{ObjectQueue, QueueConfig, QueueLayout};
use leasehold_store::store::{Answer, Ranged, Store, Version};
use leasehold_store::{Client, DelegatingStore, Host};
use leasehold_worker::{Context, Polling, Shutdown, TaskError, Worker, WorkerOptions};
use serde_json::Value;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::disk::{SimDisk, derive, name_of};
use crate::executor::ProcessId;
use crate::faults::Faults;
use crate::host::SimHost;
use crate::queue::raw::{Raw, task_id};
use crate::world::World;

const SECOND: Duration = Duration::from_secs(1);
const LEASE: Duration = Duration::from_secs(4);
/// Index of the input file of tasks: three pieces.
const FILE: usize = 5;

/// A world, its disks, and the runs of handlers.
struct Fixture {
    world: World,
    disk: SimDisk,
    runs: Arc<AtomicU64>,
    /// Delay of the data of artifacts.
    read_delay: Arc<Mutex<Duration>>,
}

#[derive(Debug)]
struct SlowStore {
    store: Arc<dyn Store>,
    host: Arc<SimHost>,
    read_delay: Arc<Mutex<Duration>>,
}

impl DelegatingStore for SlowStore {
    fn inner(&self) -> &dyn Store {
        &*self.store
    }

    fn get_range<'a>(
        &'a self,
        key: &'a str,
        range: Range<u64>,
        unchanged: Option<&'a Version>,
    ) -> Answer<'a, Ranged> {
        let pause = *self.read_delay.lock().unwrap();
        Box::pin(async move {
            self.host.sleep(pause).await;
            self.store.get_range(key, range, unchanged).await
        })
    }
}

impl Fixture {
    fn new() -> Self {
        let world = World::new(1, Faults::none()).with_scenario("staging");
        world.trace().keep_all();
        let disk = SimDisk::new(&mut world.rng("staging")).unwrap();
        let read_delay = Arc::<Mutex<Duration>>::default();
        let slow = read_delay.clone();
        world.wrap_on_hosts(Arc::new(move |store, host| {
            Arc::new(SlowStore { store, host: host.clone(), read_delay: slow.clone() })
        }));
        Self { world, disk, runs: Arc::default(), read_delay }
    }

    /// Runs a future in a process of its own until it is done.
    fn once<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
        &mut self,
        name: &str,
        work: impl FnOnce(Arc<SimHost>, ObjectQueue, ArtifactStore) -> F + Send + 'static,
    ) -> T {
        let (host, client) = self.world.process(name);
        let (disk, done, machine) = (self.disk.clone(), Arc::<Mutex<Option<T>>>::default(), name.to_owned());
        let slot = done.clone();
        self.world.spawn(host.process(), async move {
            let queue = ObjectQueue::with_config(client.clone(), QueueConfig::default()).await.unwrap();
            let artifacts = ArtifactStore::new(client, disk.cache(&machine).unwrap());
            let result = work(host, queue, artifacts).await;
            *slot.lock().unwrap() = Some(result);
        });
        let is_done = || done.lock().unwrap().is_some();
        self.world.run_until(is_done, Duration::from_hours(1)).unwrap_or_else(|failed| panic!("{failed}"));
        done.lock().unwrap().take().unwrap()
    }

    /// Publishes the file and submits a task that needs it.
    fn submit(&mut self, timeout_secs: Option<u64>) -> TaskId {
        let path = self.disk.input(FILE);
        self.once("producer", move |_, queue, artifacts| async move {
            let options = PublishOptions { piece_bytes: Some(1_024), ..PublishOptions::default() };
            let published = artifacts.publish(&path, &options).await.unwrap();
            queue.submit_task(task(published.manifest.artifact, timeout_secs)).await.unwrap().id
        })
    }

    /// Starts a worker whose result is derived from the file.
    fn worker(&self, name: &'static str, has_cache: bool) -> ProcessId {
        let (host, client) = self.world.process(name);
        let process = host.process();
        let (disk, runs) = (self.disk.clone(), self.runs.clone());
        self.world.spawn(process, work(name, has_cache.then_some(disk.clone()), disk, runs, client));
        drop(host);
        process
    }

    fn task(&mut self, id: TaskId) -> Task {
        self.once("looker", move |_, queue, _| async move { queue.get(&id).await.unwrap() })
    }

    fn run_until_final(&mut self, id: TaskId) -> Task {
        let bucket = self.world.bucket_handle();
        let is_final = || {
            let is_it = |(key, _): &(&String, &_)| task_id(key) == Some(id.to_string().as_str());
            bucket.with_objects(|objects| {
                objects.iter().find(is_it).is_some_and(|(_, stored)| Raw::read(stored).unwrap().is_final())
            })
        };
        self.world.run_until(is_final, Duration::from_hours(2)).unwrap_or_else(|failed| panic!("{failed}"));
        self.task(id)
    }

    fn run_for(&mut self, duration: Duration) {
        self.world.run_for(duration).unwrap_or_else(|failed| panic!("{failed}"));
    }

    /// Runs until a line of the trace contains `what`.
    fn run_until_traced(&mut self, what: &str) {
        let trace = self.world.trace().clone();
        let is_traced = || trace.lines().last().is_some_and(|line| line.contains(what));
        self.world.run_until(is_traced, Duration::from_hours(1)).unwrap_or_else(|failed| panic!("{failed}"));
    }

    fn runs(&self) -> u64 {
        self.runs.load(Relaxed)
    }

    /// Returns the number of the first line of the trace that contains `what`.
    fn line(&self, what: &str) -> usize {
        let lines = self.world.trace().lines();
        lines.iter().position(|line| line.contains(what)).unwrap_or_else(|| panic!("no line contains {what}"))
    }

    fn result(&self) -> ArtifactId {
        name_of(&derive(&std::fs::read(self.disk.input(FILE)).unwrap())).unwrap()
    }
}

fn task(artifact: ArtifactId, timeout_secs: Option<u64>) -> NewTask {
    let artifacts = BTreeMap::from([(Name::checked("name", "file").unwrap(), artifact)]);
    NewTask { artifacts, timeout_secs, ..NewTask::new("t", Value::Null).unwrap() }
}

async fn work(
    name: &'static str,
    cache: Option<SimDisk>,
    disk: SimDisk,
    runs: Arc<AtomicU64>,
    client: Client,
) {
    let queue = ObjectQueue::with_config(client.clone(), QueueConfig::default()).await.unwrap();
    let options =
        WorkerOptions { lease: LEASE, polling: Polling::fixed(SECOND * 5), ..WorkerOptions::default() };
    let mut worker = Worker::new(queue, name, None).unwrap().options(options);
    if let Some(cache) = cache {
        let publishing = PublishOptions { piece_bytes: Some(1_024), ..PublishOptions::default() };
        let artifacts =
            ArtifactStore::new(client, cache.cache(name).unwrap()).with_publish_options(publishing);
        worker = worker.artifact_io(Arc::new(artifacts));
    }
    let handle = move |context: Context, _: Value| {
        let bytes = std::fs::read(context.artifact("file").unwrap()).unwrap();
        let path = disk.write_result(&format!("{}-{}", context.task().id, context.epoch()), &derive(&bytes));
        runs.fetch_add(1, Relaxed);
        async move {
            context.publish("result", path.unwrap())?;
            Ok::<_, TaskError>(bytes.len())
        }
    };
    worker.handle("t", handle).unwrap().run(Shutdown::default()).await.unwrap();
}

#[test]
fn a_task_is_staged_run_published_and_completed_in_this_order() {
    let mut fixture = Fixture::new();
    let id = fixture.submit(None);
    fixture.worker("w1", true);
    let task = fixture.run_until_final(id);
    assert_eq!((task.status(), task.attempt, fixture.runs()), (Status::Completed, 1, 1));
    let result = fixture.result();
    assert_eq!(task.results().unwrap().values().collect::<Vec<_>>(), [&result]);
    let claimed = fixture.line(&format!("w1 put {}", task_key(&fixture, id)));
    let (data, manifest) =
        (format!("w1 put artifacts/{result}/data"), format!("w1 put artifacts/{result}/mani"));
    let staged = fixture.line("w1 get artifacts/");
    let (data, manifest) = (fixture.line(&data), fixture.line(&manifest));
    assert!(claimed < staged && staged < data && data < manifest);
    let lines = fixture.world.trace().lines();
    let completed =
        lines.iter().rposition(|line| line.contains(&format!("w1 put {}", task_key(&fixture, id))));
    assert!(manifest < completed.unwrap(), "completed before its result was published");
}

fn task_key(fixture: &Fixture, id: TaskId) -> String {
    let objects = fixture.world.objects();
    objects.keys().find(|key| task_id(key) == Some(id.to_string().as_str())).unwrap().clone()
}

#[test]
fn a_claim_is_renewed_while_its_files_are_fetched() {
    let mut fixture = Fixture::new();
    *fixture.read_delay.lock().unwrap() = LEASE * 2;
    let id = fixture.submit(Some(3));
    fixture.worker("w1", true);
    fixture.worker("w2", true);
    let task = fixture.run_until_final(id);
    // The handler's timeout must not begin before it runs.
    assert_eq!((task.status(), task.attempt, task.epoch), (Status::Completed, 1, 1));
}

#[test]
fn a_task_that_is_cancelled_while_it_is_staged_never_runs() {
    let mut fixture = Fixture::new();
    *fixture.read_delay.lock().unwrap() = LEASE * 2;
    let id = fixture.submit(None);
    fixture.worker("w1", true);
    fixture.run_until_traced("w1 get artifacts/");
    fixture.once("operator", move |_, queue, _| async move { queue.cancel(&id).await.map(|_| ()) }).unwrap();
    let task = fixture.run_until_final(id);
    fixture.run_for(LEASE * 4);
    assert_eq!((task.status(), fixture.runs()), (Status::Cancelled, 0));
    assert!(!fixture.world.trace().lines().iter().any(|line| line.contains("w1 put artifacts/")));
}

#[test]
fn a_claim_that_is_lost_while_it_is_staged_is_abandoned() {
    let mut fixture = Fixture::new();
    *fixture.read_delay.lock().unwrap() = LEASE * 2;
    let id = fixture.submit(None);
    let process = fixture.worker("w1", true);
    fixture.run_until_traced("w1 get artifacts/");
    *fixture.read_delay.lock().unwrap() = Duration::ZERO;
    fixture.worker("w2", true);
    fixture.world.executor().pause(process, LEASE * 6);
    let task = fixture.run_until_final(id);
    fixture.run_for(LEASE * 12);
    assert_eq!((task.status(), task.epoch, fixture.runs()), (Status::Completed, 2, 1));
    assert!(!fixture.world.trace().lines().iter().any(|line| line.contains("w1 put artifacts/")));
}

#[test]
fn a_worker_that_crashes_between_publishing_and_completing_leaves_a_task_that_another_completes() {
    let mut fixture = Fixture::new();
    let id = fixture.submit(None);
    let process = fixture.worker("w1", true);
    let manifest = format!("artifacts/{}/manifest.json", fixture.result());
    let bucket = fixture.world.bucket_handle();
    let is_published = || bucket.with_objects(|objects| objects.contains_key(&manifest));
    fixture
        .world
        .run_until(is_published, Duration::from_hours(1))
        .unwrap_or_else(|failed| panic!("{failed}"));
    fixture.world.executor().kill(process);
    fixture.run_for(SECOND);
    assert_eq!(fixture.task(id).status(), Status::Running);
    fixture.worker("w2", true);
    let task = fixture.run_until_final(id);
    assert_eq!((task.status(), task.epoch, fixture.runs()), (Status::Completed, 2, 2));
    let result = fixture.result();
    assert_eq!(task.results().unwrap().values().collect::<Vec<_>>(), [&result]);
}

#[test]
fn a_missing_file_fails_its_task_permanently() {
    let mut fixture = Fixture::new();
    let nowhere = name_of(b"never published").unwrap();
    let id = fixture.once("producer", move |_, queue, _| async move {
        queue.submit_task(task(nowhere, None)).await.unwrap().id
    });
    fixture.worker("w1", true);
    let task = fixture.run_until_final(id);
    assert_eq!((task.status(), task.attempt, fixture.runs()), (Status::Failed, 1, 0));
    let error = task.error.unwrap();
    assert!(error.starts_with("artifact `file` was not fetched: there is no artifact"), "{error}");
}

#[test]
fn a_worker_without_a_cache_releases_a_task_with_files() {
    let mut fixture = Fixture::new();
    let id = fixture.submit(None);
    let process = fixture.worker("w1", false);
    fixture.run_until_traced("w1 put tasks/");
    fixture.run_for(SECOND / 2);
    let task = fixture.task(id);
    assert_eq!((task.status(), fixture.runs()), (Status::Pending, 0));
    let error = task.error.unwrap();
    assert!(error.contains("this worker has no artifact cache; configure one to use artifacts"), "{error}");
    fixture.world.executor().kill(process);
    fixture.worker("w2", true);
    assert_eq!(fixture.run_until_final(id).status(), Status::Completed);
}
