//! Artifacts in the life of one task, in a world without faults except for those of the test.

use leasehold_core::{ArtifactId, Name, NewTask, Status, Task, TaskId};
use leasehold_pieces::{ArtifactStore, PublishOptions};
use leasehold_queue::{Queue, QueueConfig};
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
struct Stage {
    world: World,
    disk: SimDisk,
    runs: Arc<AtomicU64>,
    /// Delay of the data of artifacts.
    held_back: Arc<Mutex<Duration>>,
}

#[derive(Debug)]
struct Slow {
    store: Arc<dyn Store>,
    host: Arc<SimHost>,
    held_back: Arc<Mutex<Duration>>,
}

impl DelegatingStore for Slow {
    fn inner(&self) -> &dyn Store {
        &*self.store
    }

    fn get_range<'a>(
        &'a self,
        key: &'a str,
        range: Range<u64>,
        unchanged: Option<&'a Version>,
    ) -> Answer<'a, Ranged> {
        let pause = *self.held_back.lock().unwrap();
        Box::pin(async move {
            self.host.sleep(pause).await;
            self.store.get_range(key, range, unchanged).await
        })
    }
}

impl Stage {
    fn new() -> Self {
        let world = World::new(1, Faults::none()).called("staging");
        world.trace().keep_all();
        let disk = SimDisk::new(&mut world.chance("staging")).unwrap();
        let held_back = Arc::<Mutex<Duration>>::default();
        let slow = held_back.clone();
        world.wrap_on_hosts(Arc::new(move |store, host| {
            Arc::new(Slow { store, host: host.clone(), held_back: slow.clone() })
        }));
        Self { world, disk, runs: Arc::default(), held_back }
    }

    /// Runs a future in a process of its own until it is done.
    fn once<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
        &mut self,
        name: &str,
        work: impl FnOnce(Arc<SimHost>, Queue, ArtifactStore) -> F + Send + 'static,
    ) -> T {
        let (host, client) = self.world.process(name);
        let (disk, done, machine) = (self.disk.clone(), Arc::<Mutex<Option<T>>>::default(), name.to_owned());
        let slot = done.clone();
        self.world.spawn(host.process(), async move {
            let queue = Queue::with_config(client.clone(), QueueConfig::default()).await.unwrap();
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
            bucket.look(|objects| {
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
    fn run_until_told(&mut self, what: &str) {
        let trace = self.world.trace().clone();
        let is_told = || trace.lines().last().is_some_and(|line| line.contains(what));
        self.world.run_until(is_told, Duration::from_hours(1)).unwrap_or_else(|failed| panic!("{failed}"));
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
    let queue = Queue::with_config(client.clone(), QueueConfig::default()).await.unwrap();
    let options =
        WorkerOptions { lease: LEASE, polling: Polling::fixed(SECOND * 5), ..WorkerOptions::default() };
    let mut worker = Worker::new(queue, name, None).unwrap().options(options);
    if let Some(cache) = cache {
        let publishing = PublishOptions { piece_bytes: Some(1_024), ..PublishOptions::default() };
        let artifacts = ArtifactStore::new(client, cache.cache(name).unwrap()).publishing(publishing);
        worker = worker.carrier(Arc::new(artifacts));
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
    let mut stage = Stage::new();
    let id = stage.submit(None);
    stage.worker("w1", true);
    let task = stage.run_until_final(id);
    assert_eq!((task.status(), task.attempt, stage.runs()), (Status::Completed, 1, 1));
    let result = stage.result();
    assert_eq!(task.results().unwrap().values().collect::<Vec<_>>(), [&result]);
    let claimed = stage.line(&format!("w1 put {}", task_key(&stage, id)));
    let (data, manifest) =
        (format!("w1 put artifacts/{result}/data"), format!("w1 put artifacts/{result}/mani"));
    let staged = stage.line("w1 get artifacts/");
    let (data, manifest) = (stage.line(&data), stage.line(&manifest));
    assert!(claimed < staged && staged < data && data < manifest);
    let lines = stage.world.trace().lines();
    let completed = lines.iter().rposition(|line| line.contains(&format!("w1 put {}", task_key(&stage, id))));
    assert!(manifest < completed.unwrap(), "completed before its result was published");
}

fn task_key(stage: &Stage, id: TaskId) -> String {
    let objects = stage.world.objects();
    objects.keys().find(|key| task_id(key) == Some(id.to_string().as_str())).unwrap().clone()
}

#[test]
fn a_claim_is_renewed_while_its_files_are_on_their_way() {
    let mut stage = Stage::new();
    *stage.held_back.lock().unwrap() = LEASE * 2;
    let id = stage.submit(Some(3));
    stage.worker("w1", true);
    stage.worker("w2", true);
    let task = stage.run_until_final(id);
    // The handler's timeout must not begin before it runs.
    assert_eq!((task.status(), task.attempt, task.epoch), (Status::Completed, 1, 1));
}

#[test]
fn a_task_that_is_cancelled_while_it_is_staged_never_runs() {
    let mut stage = Stage::new();
    *stage.held_back.lock().unwrap() = LEASE * 2;
    let id = stage.submit(None);
    stage.worker("w1", true);
    stage.run_until_told("w1 get artifacts/");
    stage.once("operator", move |_, queue, _| async move { queue.cancel(&id).await.map(|_| ()) }).unwrap();
    let task = stage.run_until_final(id);
    stage.run_for(LEASE * 4);
    assert_eq!((task.status(), stage.runs()), (Status::Cancelled, 0));
    assert!(!stage.world.trace().lines().iter().any(|line| line.contains("w1 put artifacts/")));
}

#[test]
fn a_claim_that_is_lost_while_it_is_staged_is_given_up() {
    let mut stage = Stage::new();
    *stage.held_back.lock().unwrap() = LEASE * 2;
    let id = stage.submit(None);
    let process = stage.worker("w1", true);
    stage.run_until_told("w1 get artifacts/");
    *stage.held_back.lock().unwrap() = Duration::ZERO;
    stage.worker("w2", true);
    stage.world.executor().pause(process, LEASE * 6);
    let task = stage.run_until_final(id);
    stage.run_for(LEASE * 12);
    assert_eq!((task.status(), task.epoch, stage.runs()), (Status::Completed, 2, 1));
    assert!(!stage.world.trace().lines().iter().any(|line| line.contains("w1 put artifacts/")));
}

#[test]
fn a_worker_that_dies_between_publishing_and_completing_leaves_a_task_that_another_completes() {
    let mut stage = Stage::new();
    let id = stage.submit(None);
    let process = stage.worker("w1", true);
    let manifest = format!("artifacts/{}/manifest.json", stage.result());
    let bucket = stage.world.bucket_handle();
    let is_published = || bucket.look(|objects| objects.contains_key(&manifest));
    stage.world.run_until(is_published, Duration::from_hours(1)).unwrap_or_else(|failed| panic!("{failed}"));
    stage.world.executor().kill(process);
    stage.run_for(SECOND);
    assert_eq!(stage.task(id).status(), Status::Running);
    stage.worker("w2", true);
    let task = stage.run_until_final(id);
    assert_eq!((task.status(), task.epoch, stage.runs()), (Status::Completed, 2, 2));
    let result = stage.result();
    assert_eq!(task.results().unwrap().values().collect::<Vec<_>>(), [&result]);
}

#[test]
fn a_missing_file_fails_its_task_permanently() {
    let mut stage = Stage::new();
    let nowhere = name_of(b"never published").unwrap();
    let id = stage.once("producer", move |_, queue, _| async move {
        queue.submit_task(task(nowhere, None)).await.unwrap().id
    });
    stage.worker("w1", true);
    let task = stage.run_until_final(id);
    assert_eq!((task.status(), task.attempt, stage.runs()), (Status::Failed, 1, 0));
    let error = task.error.unwrap();
    assert!(error.starts_with("artifact `file` was not fetched: there is no artifact"), "{error}");
}

#[test]
fn a_worker_without_a_cache_releases_a_task_with_files() {
    let mut stage = Stage::new();
    let id = stage.submit(None);
    let process = stage.worker("w1", false);
    stage.run_until_told("w1 put tasks/");
    stage.run_for(SECOND / 2);
    let task = stage.task(id);
    assert_eq!((task.status(), stage.runs()), (Status::Pending, 0));
    let error = task.error.unwrap();
    assert!(error.contains("this worker has no artifact cache; configure one to use artifacts"), "{error}");
    stage.world.executor().kill(process);
    stage.worker("w2", true);
    assert_eq!(stage.run_until_final(id).status(), Status::Completed);
}
