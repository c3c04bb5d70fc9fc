//! Workers of a queue whose number of shards changes.

use leasehold_core::{Kind, NewTask, Status, TaskId};
use leasehold_queue::{MigrateOptions, ObjectQueue, QueueConfig};
use leasehold_store::{Client, Host, MemoryStore, Store, SystemHost, When};
use leasehold_worker::{Context, Counts, Shutdown, TaskError, Worker, WorkerOptions};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

use crate::options;

struct World {
    host: Arc<dyn Host>,
    store: Arc<MemoryStore>,
}

type Running = tokio::task::JoinHandle<leasehold_core::Result<Counts>>;

impl World {
    fn new() -> Self {
        let host: Arc<dyn Host> = Arc::new(SystemHost);
        let store = Arc::new(MemoryStore::new(&host));
        Self { host, store }
    }

    /// A client that reads the layout far more often than usual.
    async fn connect(&self) -> ObjectQueue {
        let client = Client::new(self.store.clone(), self.host.clone());
        let (meta_refresh_interval, meta_max_age) = (Duration::from_millis(100), Duration::from_secs(1));
        let options = QueueConfig { meta_refresh_interval, meta_max_age, ..QueueConfig::default() };
        ObjectQueue::with_config(client, options).await.unwrap()
    }

    /// A client that trusts its layout for the usual time: it must not fail when the machine is slow.
    async fn migrator(&self) -> ObjectQueue {
        ObjectQueue::connect(Client::new(self.store.clone(), self.host.clone())).await.unwrap()
    }

    /// A worker whose handler notifies when it has begun, and waits for a signal to finish.
    async fn worker(&self, shutdown: &Shutdown) -> (Running, watch::Receiver<bool>, watch::Sender<bool>) {
        let ((begins, has_begun), (finish, may_finish)) = (watch::channel(false), watch::channel(false));
        let worker = Worker::new(self.connect().await, "w1", None).unwrap();
        let worker = worker.handle("slow", move |_: Context, (): ()| {
            begins.send_replace(true);
            let mut may_finish = may_finish.clone();
            async move {
                may_finish.wait_for(|may_finish| *may_finish).await.unwrap();
                Ok::<_, TaskError>("done")
            }
        });
        let worker = worker.unwrap().options(WorkerOptions { until_empty: false, ..options() });
        (tokio::spawn(worker.run(shutdown.clone())), has_begun, finish)
    }
}

fn quick() -> MigrateOptions {
    MigrateOptions {
        until_known: Duration::from_millis(1_500),
        grace: Duration::from_millis(500),
        ..MigrateOptions::default()
    }
}

async fn submit(queue: &ObjectQueue) -> TaskId {
    queue.submit_task(NewTask::new("slow", json!(null)).unwrap()).await.unwrap().id
}

/// A task is claimed, the queue is migrated meanwhile, and only then does the handler continue.
#[tokio::test(flavor = "multi_thread")]
async fn a_task_held_through_a_migration_is_completed_and_the_worker_then_stops_with_an_error() {
    let world = World::new();
    let held = submit(&world.connect().await).await;
    let (running, mut begun, finish) = world.worker(&Shutdown::default()).await;
    begun.wait_for(|begun| *begun).await.unwrap();
    world.migrator().await.migrate(2, &quick(), &|_| ()).await.unwrap();
    finish.send_replace(true);
    let error = running.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid);
    let refused =
        "shard_prefix_len was 1 when this client connected, but this queue has 2 now; connect again";
    assert_eq!(error.to_string(), refused);
    let task = world.connect().await.get(&held).await.unwrap();
    assert_eq!((task.status(), task.epoch, task.shard.as_str().len()), (Status::Completed, 1, 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_pauses_during_a_migration_and_continues_when_it_was_aborted() {
    let world = World::new();
    let waiting = submit(&world.connect().await).await;
    let (migrator, usual) = (world.migrator().await, quick());
    // Stopped during its wait, as if it had crashed.
    let has_begun = watch::Sender::new(false);
    let report = |_| {
        has_begun.send_replace(true);
    };
    let mut announced = has_begun.subscribe();
    let migration = std::pin::pin!(migrator.migrate(2, &usual, &report));
    futures::future::select(migration, std::pin::pin!(announced.wait_for(|begun| *begun))).await;
    let shutdown = Shutdown::default();
    let (running, mut begun, finish) = world.worker(&shutdown).await;
    finish.send_replace(true);
    world.host.sleep(Duration::from_secs(1)).await;
    assert!(!*begun.borrow_and_update(), "nothing is claimed during a migration");
    migrator.abort_migration(&usual, &|_| ()).await.unwrap();
    let task = leasehold_queue::Queue::from(world.connect().await).wait(&waiting, None).await.unwrap();
    assert_eq!((task.status(), task.shard.as_str().len()), (Status::Completed, 1));
    shutdown.drain();
    running.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_claims_nothing_while_queue_json_is_missing_and_continues_when_it_is_back() {
    let (world, shutdown) = (World::new(), Shutdown::default());
    let queue = world.connect().await;
    let (running, begun, finish) = world.worker(&shutdown).await;
    let kept = world.store.get("queue.json", None).await.unwrap().found().unwrap();
    world.store.delete("queue.json").await.unwrap();
    while queue.ensure_writable().await.map_err(|error| error.kind()) != Err(Kind::Corrupt) {
        tokio::task::yield_now().await;
    }
    world.store.put("queue.json", kept.body, &When::Always).await.unwrap();
    let id = submit(&queue).await;
    let mut begun = begun;
    begun.wait_for(|begun| *begun).await.unwrap();
    finish.send_replace(true);
    shutdown.drain();
    assert_eq!(running.await.unwrap().unwrap().completed, 1);
    assert_eq!(queue.get(&id).await.unwrap().status(), Status::Completed);
}
