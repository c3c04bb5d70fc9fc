//! Actors of the scenario: producers, workers, an operator, a consumer and pruners.

use leasehold_core::{ArtifactId, Name, NewTask, Reason, TaskId};
use leasehold_pieces::{ArtifactStore, PublishOptions, prune};
use leasehold_queue::{ObjectQueue, QueueConfig, QueueLayout};
use leasehold_store::{Client, Host, HostExt};
use leasehold_worker::{ArtifactIo, Context, Polling, Shutdown, TaskError, Worker, WorkerOptions};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::checker::ArtifactChecker;
use super::disk::{PowerLossIo, SimDisk, derive};
use crate::alarm::Alarm;
use crate::executor::{Executor, ProcessId};
use crate::host::SimHost;
use crate::queue::checker::QueueChecker;
use crate::random::SimRandom;
use crate::trace::Trace;
use crate::world::World;

/// Producers, and the piece sizes of what they publish.
const PRODUCERS: [(&str, u32); 2] = [("p1", 1_024), ("p2", 2_048)];
/// Workers, and the disk each uses.
const WORKERS: [(&str, &str); 3] = [("w1", "shared"), ("w2", "shared"), ("w3", "own")];
/// Disk of a machine that may lose its last writes, or the whole disk; no other worker uses it.
const UNRELIABLE_DISK: &str = "own";
const PRUNERS: [&str; 2] = ["r1", "r2"];
const TASKS_MIN: u64 = 8;
const TASKS_MAX: u64 = 20;
/// Number of files published in one round; the others grow old.
const FILES_A_ROUND: u64 = 4;
/// Retentions of artifacts.
const KEEP: [Duration; 3] = [Duration::from_hours(1), Duration::from_hours(6), Duration::from_hours(24)];
/// Number of tries to publish: an artifact that is being removed cannot be published for an hour, which no
/// producer waits for here.
const PUBLISH_TRIES: u32 = 8;
/// Maximum pause between two tasks of a producer.
const REST_MAX: Duration = Duration::from_secs(15);
const SLICE: Duration = Duration::from_secs(1);

/// State that all actors share, in all rounds.
#[derive(Clone)]
pub(super) struct ArtifactActors {
    checker: QueueChecker,
    artifact_checker: ArtifactChecker,
    disk: SimDisk,
    alarm: Alarm,
    trace: Trace,
    executor: Executor,
    lease: Duration,
    keep: Duration,
    tasks_max: Option<u64>,
    kill: Arc<dyn Fn(ProcessId) -> bool + Send + Sync>,
    /// Number of submits begun.
    submits: Arc<Mutex<u64>>,
    /// Machines on which a worker has run before.
    used: Arc<Mutex<BTreeSet<String>>>,
}

/// State of one round. Clones share it.
#[derive(Clone)]
pub(super) struct Round {
    number: u64,
    calm_after: Duration,
    /// Remaining submits of each producer.
    orders: Arc<[Mutex<PlannedSubmits>; PRODUCERS.len()]>,
    ending: Arc<Mutex<RoundEnd>>,
}

#[derive(Default)]
struct PlannedSubmits {
    left: Vec<PlannedSubmit>,
    /// True if a submit was begun and its outcome is not yet known.
    is_open: bool,
    is_done: bool,
}

#[derive(Debug, Clone)]
struct PlannedSubmit {
    /// Files that the task needs.
    files: Vec<usize>,
    kind: &'static str,
    keep: Duration,
    timeout_secs: Option<u64>,
}

#[derive(Default)]
struct RoundEnd {
    is_requested: bool,
    stops: Vec<Shutdown>,
    /// Running workers.
    working: BTreeSet<&'static str>,
}

impl Round {
    pub(super) fn new(
        number: u64,
        calm_after: Duration,
        actors: &ArtifactActors,
        rng: &mut SimRandom,
    ) -> Self {
        let files: Vec<_> = (0..FILES_A_ROUND).map(|_| rng.index(SimDisk::INPUTS)).collect();
        let orders: [Mutex<PlannedSubmits>; PRODUCERS.len()] = Default::default();
        let count = TASKS_MIN + rng.below(TASKS_MAX - TASKS_MIN);
        for task in 0..count {
            let (order, producer) = (PlannedSubmit::new(&files, rng), rng.index(PRODUCERS.len()));
            if actors.tasks_max.is_none_or(|most| task < most) {
                lock(&orders[producer]).left.push(order);
            }
        }
        Self { number, calm_after, orders: Arc::new(orders), ending: Arc::default() }
    }

    /// Returns whether the producers have finished.
    pub(super) fn is_produced(&self) -> bool {
        self.orders.iter().all(|orders| lock(orders).is_done)
    }

    /// Asks the workers to stop.
    pub(super) fn end(&self) {
        let mut ending = lock(&self.ending);
        ending.is_requested = true;
        ending.stops.iter().for_each(Shutdown::drain);
    }

    /// Returns whether the workers have stopped.
    pub(super) fn is_over(&self) -> bool {
        lock(&self.ending).working.is_empty()
    }
}

impl PlannedSubmit {
    fn new(files: &[usize], rng: &mut SimRandom) -> Self {
        let mut file = || files[rng.index(files.len())];
        let mut files = vec![file(), file()];
        files.truncate(1 + rng.index(2));
        let kind = ["dropped", "awaited"][rng.index(2)];
        let keep = KEEP[rng.index(KEEP.len())];
        let timeout_secs = rng.happens(1_500).then(|| 2 + rng.below(20));
        Self { files, kind, keep, timeout_secs }
    }
}

impl ArtifactActors {
    pub(super) fn new(
        world: &World,
        checker: QueueChecker,
        artifact_checker: ArtifactChecker,
        disk: SimDisk,
        rng: &mut SimRandom,
    ) -> Self {
        let keep = KEEP[rng.index(KEEP.len())];
        artifact_checker.keep_results(keep);
        Self {
            checker,
            artifact_checker,
            disk,
            alarm: world.alarm().clone(),
            trace: world.trace().clone(),
            executor: world.executor().clone(),
            lease: rng.between(Duration::from_secs(10), Duration::from_secs(20)),
            keep,
            tasks_max: world.omissions().tasks,
            kill: world.process_killer(),
            submits: Arc::default(),
            used: Arc::default(),
        }
    }

    /// Starts all actors of a round.
    pub(super) fn start(&self, world: &World, round: &Round) {
        let is_there = |name: &str| !world.omissions().without.contains(name);
        for (number, (name, _)) in PRODUCERS.iter().enumerate() {
            lock(&round.orders[number]).is_done = !is_there(name);
            let (actors, round) = (self.clone(), round.clone());
            world.actor(name, move |host, client| {
                Box::pin(actors.clone().produce(round.clone(), number, host, client))
            });
        }
        for (name, machine) in WORKERS {
            let (actors, round) = (self.clone(), round.clone());
            if is_there(name) {
                lock(&round.ending).working.insert(name);
            }
            world.actor(name, move |host, client| {
                Box::pin(actors.clone().work(round.clone(), name, machine, host, client))
            });
        }
        for name in PRUNERS {
            let (actors, round) = (self.clone(), round.clone());
            world
                .actor(name, move |host, client| Box::pin(actors.clone().prune(round.clone(), host, client)));
        }
        let (actors, cancelling) = (self.clone(), round.clone());
        world.actor("operator", move |host, client| {
            Box::pin(actors.clone().operate(cancelling.clone(), host, client))
        });
        let (actors, reading) = (self.clone(), round.clone());
        world
            .actor("c1", move |host, client| Box::pin(actors.clone().consume(reading.clone(), host, client)));
    }

    fn is_calm(&self, round: &Round) -> bool {
        self.executor.now() > round.calm_after
    }

    async fn connect(&self, host: &SimHost, client: Client) -> ObjectQueue {
        loop {
            match ObjectQueue::with_config(client.clone(), QueueConfig::default()).await {
                Ok(queue) => return queue,
                Err(error) => self.note(host, format!("failed to connect: {error}")),
            }
            host.sleep(SLICE).await;
        }
    }

    async fn produce(self, round: Round, producer: usize, host: Arc<SimHost>, client: Client) {
        let orders = &round.orders[producer];
        if std::mem::take(&mut lock(orders).is_open) {
            self.checker.count_unanswered();
        }
        let queue = self.connect(&host, client.clone()).await;
        let Some(artifacts) = self.artifacts(client, "producers") else { return };
        loop {
            let Some(order) = lock(orders).left.pop() else { break };
            host.sleep(host.random_below(REST_MAX)).await;
            let Some(published) = self.publish_all(&host, &artifacts, producer, &order).await else {
                continue;
            };
            let number = {
                let mut submits = lock(&self.submits);
                *submits += 1;
                *submits
            };
            let mut task = NewTask::new(order.kind, json!({ "submit": number })).expect("the name is valid");
            task.timeout_secs = order.timeout_secs;
            task.artifacts = published.into_iter().collect();
            self.checker.expect_one_more();
            lock(orders).is_open = true;
            let answer = queue.submit_task(task).await;
            lock(orders).is_open = false;
            self.alarm.check(self.checker.check_answer(number, None, &answer));
        }
        lock(orders).is_done = true;
    }

    /// Publishes the files of a task. Returns `None` if one of them cannot be published for now.
    async fn publish_all(
        &self,
        host: &SimHost,
        artifacts: &ArtifactStore,
        producer: usize,
        order: &PlannedSubmit,
    ) -> Option<Vec<(Name, ArtifactId)>> {
        let piece_bytes = Some(PRODUCERS[producer].1);
        let options = PublishOptions { piece_bytes, keep: order.keep, ..PublishOptions::default() };
        let mut published = Vec::new();
        for (number, file) in order.files.iter().enumerate() {
            let name = Name::checked("name", &format!("file-{number}")).expect("the name is valid");
            let artifact = self.publish(host, artifacts, &self.disk.input(*file), &options).await?;
            published.push((name, artifact));
        }
        Some(published)
    }

    async fn publish(
        &self,
        host: &SimHost,
        artifacts: &ArtifactStore,
        path: &Path,
        options: &PublishOptions,
    ) -> Option<ArtifactId> {
        for _ in 0..PUBLISH_TRIES {
            match artifacts.publish(path, options).await {
                Ok(published) => {
                    let artifact = published.manifest.artifact;
                    self.note(host, format!("published {artifact}"));
                    self.alarm.check(self.artifact_checker.published(&artifact, options.keep));
                    return Some(artifact);
                }
                Err(error) => self.note(host, format!("failed to publish: {error}")),
            }
            host.sleep(host.random_below(SLICE * 5)).await;
        }
        None
    }

    fn artifacts(&self, client: Client, machine: &str) -> Option<ArtifactStore> {
        let cache = match self.disk.cache(machine) {
            Ok(cache) => cache,
            Err(error) => {
                self.alarm.raise(format!("failed to open the cache: {error}"));
                return None;
            }
        };
        let publishing =
            PublishOptions { keep: self.keep, piece_bytes: Some(1_024), ..PublishOptions::default() };
        Some(ArtifactStore::new(client, cache).with_publish_options(publishing))
    }

    async fn work(
        self,
        round: Round,
        name: &'static str,
        machine: &'static str,
        host: Arc<SimHost>,
        client: Client,
    ) {
        self.after_power_cut(&host, machine);
        let queue = self.connect(&host, client.clone()).await;
        let Some(artifacts) = self.artifacts(client, machine) else { return };
        loop {
            let shutdown = Shutdown::default();
            {
                let mut ending = lock(&round.ending);
                if ending.is_requested {
                    ending.working.remove(name);
                    return;
                }
                ending.stops.push(shutdown.clone());
            }
            let stopping = (!self.is_calm(&round)).then(|| {
                let (stop, asleep) = (shutdown.clone(), host.sleep(host.random_below(SLICE * 240)));
                let aborts = host.random().is_multiple_of(2);
                host.spawn(Box::pin(async move {
                    asleep.await;
                    if aborts { stop.abort() } else { stop.drain() }
                }))
            });
            let ran = self.run_worker(&round, &queue, &artifacts, (name, machine), &host, shutdown).await;
            drop(stopping);
            if let Err(error) = ran {
                self.alarm.raise(format!("{name} ended: {error}"));
            }
        }
    }

    /// Damages the disk of a machine that was restarted.
    fn after_power_cut(&self, host: &SimHost, machine: &str) {
        if machine != UNRELIABLE_DISK || lock(&self.used).insert(machine.to_owned()) {
            return;
        }
        match host.random() % 8 {
            0 => self.disk.wipe(machine),
            1..=4 => match self.disk.cut_power(machine) {
                Ok(torn) => self.artifact_checker.count(|counts| counts.torn += torn),
                Err(error) => self.alarm.raise(format!("failed to simulate a power cut: {error}")),
            },
            _ => {}
        }
    }

    async fn run_worker(
        &self,
        round: &Round,
        queue: &ObjectQueue,
        artifacts: &ArtifactStore,
        (name, machine): (&str, &str),
        host: &Arc<SimHost>,
        shutdown: Shutdown,
    ) -> leasehold_core::Result<()> {
        let (scan_every, recover_every) = if self.is_calm(round) { (60, 45) } else { (15, 10) };
        let options = WorkerOptions {
            concurrency: 3,
            lease: self.lease,
            polling: Polling { max: SLICE * scan_every, ..Polling::default() },
            drain: SLICE * 8,
            recover_every: SLICE * recover_every,
            ..WorkerOptions::default()
        };
        let worker = Worker::new(queue.clone(), name, None)?.options(options);
        let artifact_io: Arc<dyn ArtifactIo> = if machine == UNRELIABLE_DISK {
            let (artifacts, host, kill) = (artifacts.clone(), host.clone(), self.kill.clone());
            Arc::new(PowerLossIo { artifacts, host, kill })
        } else {
            Arc::new(artifacts.clone())
        };
        let worker = worker.artifact_io(artifact_io);
        let run = |actors: &Self, host: &Arc<SimHost>| {
            let (actors, host) = (actors.clone(), host.clone());
            move |context: Context, _: Value| actors.clone().handle(host.clone(), context)
        };
        let worker = worker.handle("dropped", run(self, host))?.handle_awaited("awaited", run(self, host))?;
        let counts = worker.run(shutdown).await?;
        self.note(host, format!("has stopped: {counts:?}"));
        Ok(())
    }

    /// One run of a handler.
    async fn handle(self, host: Arc<SimHost>, context: Context) -> Result<u64, TaskError> {
        let run = match self.checker.begin(&context, host.process()) {
            Ok(run) => run,
            Err(wrong) => {
                self.alarm.raise(wrong);
                return Ok(0);
            }
        };
        let _guard = RunGuard { checker: self.checker.clone(), run };
        self.alarm.check(self.checker.check_start(run));
        let first = self.read_inputs(&context)?;
        let until = self.executor.now() + host.random_below(SLICE * 3);
        while self.executor.now() < until && !context.is_cancelled() {
            self.alarm.check(self.checker.check_running(run));
            host.sleep(Duration::from_millis(500)).await;
        }
        let (id, epoch) = (context.task().id, context.epoch());
        let path = self.disk.write_result(&format!("{id}-{epoch}"), &derive(&first))?;
        context.publish("result", path)?;
        if first.len().is_multiple_of(2)
            && let Some(path) = context.artifact("file-0")
        {
            // An input is published again as a result: its producer publishes it, too.
            context.publish("copy", path)?;
        }
        self.checker.succeed(&context);
        Ok(epoch)
    }

    /// Returns the bytes of the first file. All files must have the promised content.
    fn read_inputs(&self, context: &Context) -> Result<Vec<u8>, TaskError> {
        let id = context.task().id;
        let mut first = None;
        for (name, artifact) in &context.task().artifacts {
            let read = context.artifact(name.as_str()).map(std::fs::read);
            match read {
                Some(Ok(bytes)) if self.disk.bytes_of(artifact) == Some(&bytes) => {
                    first.get_or_insert(bytes);
                }
                other => {
                    let found = other.map(|read| read.map(|bytes| bytes.len()).map_err(|error| error.kind()));
                    self.alarm.raise(format!("files: {id} was given {found:?} for {name}, {artifact}"));
                }
            }
            self.artifact_checker.count(|counts| counts.staged += 1);
        }
        first.ok_or_else(|| TaskError::Permanent("it has no file".into()))
    }

    async fn prune(self, round: Round, host: Arc<SimHost>, client: Client) {
        // Before the first answer of the store the time is unknown, and with it which artifacts are past
        // their retention.
        drop(self.connect(&host, client.clone()).await);
        let is_over = || lock(&round.ending).is_requested;
        while !is_over() {
            let most = if self.is_calm(&round) { SLICE * 600 } else { SLICE * 30 };
            host.sleep(host.random_below(most)).await;
            let pruned = prune(&client).await;
            self.note(&host, format!("pruned in round {}: {pruned:?}", round.number));
        }
    }

    async fn operate(self, round: Round, host: Arc<SimHost>, client: Client) {
        let queue = self.connect(&host, client).await;
        while !self.is_calm(&round) {
            host.sleep(host.random_below(SLICE * 20)).await;
            let known = self.checker.acknowledged();
            if let Some(id) = newest(&known, host.random()) {
                let done = queue.cancel(&id).await.is_ok();
                self.note(&host, format!("cancels {id}: {done}"));
            }
        }
    }

    async fn consume(self, round: Round, host: Arc<SimHost>, client: Client) {
        drop(self.connect(&host, client.clone()).await);
        while !self.is_calm(&round) {
            host.sleep(host.random_below(SLICE * 10)).await;
            if host.random().is_multiple_of(3) {
                self.disk.wipe("consumer");
            }
            let Some(artifacts) = self.artifacts(client.clone(), "consumer") else { return };
            let results = self.artifact_checker.results();
            let Some(one) = results.get(usize::try_from(host.random() % 64).unwrap_or(0)) else { continue };
            if let Err(error) = self.fetch(&artifacts, one).await {
                self.note(&host, format!("failed to fetch {one}: {error}"));
            }
        }
    }

    /// Fetches all promised artifacts, and fails if one is missing or wrong.
    pub(super) async fn read_everything(&self, host: &SimHost, client: Client) {
        drop(self.connect(host, client.clone()).await);
        self.disk.wipe("reader");
        let Some(artifacts) = self.artifacts(client, "reader") else { return };
        for artifact in self.artifact_checker.results() {
            if let Err(error) = self.fetch(&artifacts, &artifact).await {
                self.alarm.raise(format!("files: {artifact} was promised but cannot be fetched: {error}"));
            }
        }
    }

    async fn fetch(&self, artifacts: &ArtifactStore, artifact: &ArtifactId) -> leasehold_core::Result<()> {
        let fetched = artifacts.fetch(artifact, &|_| ()).await;
        let is_missing = |error: &leasehold_core::Error| error.reason() == Some(Reason::Missing);
        match &fetched {
            Ok((cached, _)) => {
                let read = std::fs::read(cached.path()).ok();
                if read.as_deref() != self.disk.bytes_of(artifact) {
                    self.alarm.raise(format!("files: {artifact} was fetched with wrong content"));
                }
                self.artifact_checker.count(|counts| counts.fetched += 1);
            }
            Err(error) if is_missing(error) && self.artifact_checker.is_promised(artifact) => {
                self.alarm.raise(format!("files: {artifact} was promised but is missing: {error}"));
            }
            Err(_) => {}
        }
        fetched.map(|_| ())
    }

    fn note(&self, host: &SimHost, what: String) {
        self.trace.line(self.executor.now(), host.name(), what);
    }
}

/// Returns one of the last tasks, which may still be staged.
fn newest(known: &[TaskId], random: u64) -> Option<TaskId> {
    let back = usize::try_from(random % 4).unwrap_or(0);
    known.iter().rev().nth(back).copied()
}

/// Reports the end of a handler to the checker, also when it is dropped.
struct RunGuard {
    checker: QueueChecker,
    run: u64,
}

impl Drop for RunGuard {
    fn drop(&mut self) {
        self.checker.end(self.run);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
