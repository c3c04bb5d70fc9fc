//! Producers and workers that keep running while a queue is migrated: they pause during the migration, and reconnect when
//! they are refused.

use leasehold_core::{Kind, Result, TaskId};
use leasehold_queue::{ObjectQueue, QueueConfig};
use leasehold_store::{Client, HostExt, Purpose, SystemHost};
use leasehold_worker::shutdown::Stage;
use leasehold_worker::{Context, Polling, Shutdown, TaskError, Worker, WorkerOptions};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::task::JoinSet;

use super::crashes::{ATTEMPTS, TestStore, audit_task};
use super::migrating::raw_tasks;

/// Time for which these clients trust their copy of `queue.json`, instead of a minute.
const QUEUE_META_MAX_AGE: Duration = Duration::from_secs(1);
const PRODUCERS: u64 = 2;
const WORKERS: u64 = 2;
/// Maximum run time of every other task: some are running while they are moved.
const RUN_MAX: Duration = Duration::from_secs(12);

/// Running producers and workers.
pub(crate) struct Live {
    producers: JoinSet<()>,
    workers: JoinSet<()>,
    records: Arc<LiveRecords>,
}

/// Records of the producers and workers.
#[derive(Default)]
struct LiveRecords {
    enough: Shutdown,
    shutdown: Shutdown,
    acknowledged: Mutex<BTreeSet<TaskId>>,
    /// Number of completed runs of each task.
    runs: Mutex<BTreeMap<TaskId, u32>>,
    /// Submits that had to wait for a migration, runs that ended during one, clients that had to reconnect.
    had_to_wait: AtomicU64,
    ended_meanwhile: AtomicU64,
    refused: AtomicU64,
}

impl fmt::Display for Live {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LiveRecords { acknowledged, had_to_wait, ended_meanwhile, refused, .. } = &*self.records;
        write!(
            f,
            "{} submitted meanwhile, {} had to wait, {} runs ended while tasks were moved, {} reconnected",
            acknowledged.lock().unwrap().len(),
            had_to_wait.load(Relaxed),
            ended_meanwhile.load(Relaxed),
            refused.load(Relaxed)
        )
    }
}

impl Live {
    pub(crate) async fn start(test_store: &TestStore) -> Self {
        let (mut producers, mut workers, records) =
            (JoinSet::new(), JoinSet::new(), Arc::<LiveRecords>::default());
        for number in 0..PRODUCERS {
            let (queue, records) = (Connector::new(test_store), records.clone());
            producers.spawn(async move { produce(queue, number, &records).await });
        }
        for number in 0..WORKERS {
            let (queue, records) = (Connector::new(test_store), records.clone());
            workers.spawn(async move { work(queue, number, &records).await });
        }
        let live = Self { producers, workers, records };
        live.until_submitting(Duration::from_secs(1)).await;
        live
    }

    /// Waits until tasks are submitted again, and then for a time.
    async fn until_submitting(&self, then: Duration) {
        let count = || self.records.acknowledged.lock().unwrap().len();
        let before = count();
        while count() <= before {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        tokio::time::sleep(then).await;
    }

    /// Waits until every client has reconnected after this many migrations, and tasks are submitted again.
    pub(crate) async fn until_reconnected(&self, migrations: u64) {
        while self.records.refused.load(Relaxed) < migrations * (PRODUCERS + WORKERS) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        self.until_submitting(QUEUE_META_MAX_AGE).await;
    }

    /// Waits until all tasks are final and checks them: every acknowledged task exists once and was completed once, by its
    /// history; no other task exists.
    pub(crate) async fn end(self, client: &Client) {
        let records = &self.records;
        records.enough.drain();
        self.producers.join_all().await;
        records.shutdown.drain();
        self.workers.join_all().await;
        let tasks = raw_tasks(client).await;
        let live: Vec<_> = tasks.values().filter(|task| task["task_type"] == "live").collect();
        let ids: Vec<TaskId> =
            live.iter().map(|task| task["id"].as_str().unwrap().parse().unwrap()).collect();
        assert_eq!(ids.len(), ids.iter().collect::<BTreeSet<_>>().len(), "a task is there twice");
        assert_eq!(ids.into_iter().collect::<BTreeSet<_>>(), *records.acknowledged.lock().unwrap());
        for task in &live {
            audit_task(task);
        }
        let runs = records.runs.lock().unwrap();
        assert!(live.iter().all(|task| runs.contains_key(&task["id"].as_str().unwrap().parse().unwrap())));
        assert!(records.had_to_wait.load(Relaxed) > 0, "no submit while tasks were moved");
        assert!(records.ended_meanwhile.load(Relaxed) > 0, "no run while tasks were moved");
        // Every client after each migration.
        assert!(records.refused.load(Relaxed) >= 2 * (PRODUCERS + WORKERS));
    }
}

/// Reopens the queue after a refusal.
struct Connector {
    store: String,
    options: leasehold_store::OpenOptions,
}

impl Connector {
    fn new(test_store: &TestStore) -> Self {
        Self { store: test_store.store.clone(), options: test_store.options.clone() }
    }

    async fn queue(&self) -> ObjectQueue {
        let config = QueueConfig {
            meta_refresh_interval: QUEUE_META_MAX_AGE / 2,
            meta_max_age: QUEUE_META_MAX_AGE,
            ..QueueConfig::default()
        };
        ObjectQueue::with_config(Client::open(&self.store, &self.options).unwrap(), config).await.unwrap()
    }
}

/// Submits one task after the other, each until it is acknowledged: its key makes that safe.
async fn produce(queues: Connector, producer: u64, records: &LiveRecords) {
    let mut queue = queues.queue().await;
    let mut number = 0;
    // Stops only between two tasks, so that the outcome of each submit is known.
    loop {
        tokio::time::sleep(Duration::from_millis(250)).await;
        let submit = queue.submit("live", number).max_attempts(ATTEMPTS).key(format!("{producer} {number}"));
        match submit.await {
            Ok(submitted) => {
                assert!(records.acknowledged.lock().unwrap().insert(submitted.id), "one task for two keys");
                number += 1;
                if records.enough.stage() != Stage::Running {
                    return;
                }
            }
            Err(error) if error.kind() == Kind::Invalid => {
                records.refused.fetch_add(1, Relaxed);
                queue = queues.queue().await;
            }
            Err(error) => {
                assert_eq!(error.kind(), Kind::Unavailable, "{error}");
                records.had_to_wait.fetch_add(1, Relaxed);
            }
        }
    }
}

/// Runs tasks until it is stopped and no task is left.
async fn work(queues: Connector, worker: u64, records: &Arc<LiveRecords>) {
    loop {
        let is_last = records.shutdown.stage() != Stage::Running;
        let ran = run(queues.queue().await, worker, records, is_last).await;
        match ran {
            Ok(()) if is_last => return,
            Ok(()) => {}
            Err(error) => {
                assert_eq!(error.kind(), Kind::Invalid, "{error}");
                records.refused.fetch_add(1, Relaxed);
            }
        }
    }
}

async fn run(queue: ObjectQueue, number: u64, records: &Arc<LiveRecords>, until_empty: bool) -> Result<()> {
    let options = WorkerOptions {
        lease: Duration::from_secs(6),
        recover_every: Duration::from_secs(1),
        polling: Polling { max: Duration::from_millis(500), ..Polling::default() },
        until_empty,
        ..WorkerOptions::default()
    };
    let (client, own) = (queue.client().clone(), records.clone());
    let worker = Worker::new(queue, &format!("live-{number}"), None)?.options(options);
    let worker = worker.handle("live", move |context: Context, number: u64| {
        let (client, records) = (client.clone(), own.clone());
        async move {
            let most = if number.is_multiple_of(2) { RUN_MAX } else { RUN_MAX / 24 };
            tokio::time::sleep(SystemHost.random_below(most)).await;
            let object = client.get(Purpose::Admin, "queue.json").await.unwrap().unwrap();
            let agreement: Value = serde_json::from_slice(&object.body).unwrap();
            if agreement["migrating"]["phase"] == "moving" {
                records.ended_meanwhile.fetch_add(1, Relaxed);
            }
            *records.runs.lock().unwrap().entry(context.task().id).or_default() += 1;
            Ok::<_, TaskError>(())
        }
    })?;
    // A worker that ends signals only its own shutdown: the other workers continue.
    let shutdown = Shutdown::default();
    let enough = if until_empty { Shutdown::default() } else { records.shutdown.clone() };
    let stop = shutdown.clone();
    let stopping = tokio::spawn(async move {
        enough.reached(Stage::Drain).await;
        stop.drain();
    });
    let ran = worker.run(shutdown).await;
    stopping.abort();
    ran.map(drop)
}
