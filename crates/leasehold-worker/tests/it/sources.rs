//! The suite of workers over each source of this crate.

use futures::future::BoxFuture;
use leasehold_core::{Index, IndexLocation, Kind, NewTask, Task, TaskId, WorkerId, keys};
use leasehold_queue::discover::KeyRange;
use leasehold_queue::source::TaskTypes;
use leasehold_queue::{DirectDispatch, Queue, QueueConfig, Selection};
use leasehold_store::{Client, Host, MemoryStore, Purpose, SystemHost};
use leasehold_worker::{
    Context, Counts, InboxLeaseOptions, ShardLeasing, Shutdown, TaskError, Worker, WorkerOptions, WorkerView,
};
use std::sync::Arc;
use std::time::Duration;

use crate::memory_source::MemoryQueue;
use crate::suite::{self, Fixture};

/// A queue in a bucket.
struct Objects {
    /// The queue of producers.
    producer: Queue,
    queue: Queue,
    options: WorkerOptions,
}

impl Objects {
    async fn open(direct: Option<DirectDispatch>, options: WorkerOptions) -> Arc<dyn Fixture> {
        let host: Arc<dyn Host> = Arc::new(SystemHost);
        let store = Arc::new(MemoryStore::new(&host));
        let client = || Client::new(store.clone(), host.clone());
        let config = QueueConfig { direct, ..QueueConfig::default() };
        let producer = Queue::with_config(client(), config).await.unwrap();
        let queue = Queue::connect(client()).await.unwrap();
        // Renewed after four seconds, and not lost if the machine then needs as long again.
        let options = WorkerOptions { lease: Duration::from_secs(12), until_empty: false, ..options };
        Arc::new(Self { producer, queue, options })
    }
}

impl Fixture for Objects {
    fn worker(&self, id: &str) -> Worker {
        Worker::new(self.queue.clone(), id, None).unwrap()
    }

    fn options(&self) -> WorkerOptions {
        self.options.clone()
    }

    fn is_ready(&self, view: &WorkerView) -> bool {
        !view.shards().is_empty() && (self.options.inbox.is_none() || view.has_inbox())
    }

    fn submit(&self, task: NewTask) -> BoxFuture<'_, TaskId> {
        Box::pin(async { self.producer.submit_task(task).await.unwrap().id })
    }

    fn get(&self, id: TaskId) -> BoxFuture<'_, Task> {
        Box::pin(async move { self.queue.get(&id).await.unwrap() })
    }

    fn cancel(&self, id: TaskId) -> BoxFuture<'_, ()> {
        Box::pin(async move { drop(self.queue.cancel(&id).await.unwrap()) })
    }

    fn hold(&self, id: TaskId) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let ranges = vec![KeyRange::whole(Index::Ready), KeyRange::at(&IndexLocation::Overflow)];
            let found = self.queue.objects().unwrap().discover(Purpose::Admin, ranges).await.unwrap().due;
            let found = found.into_iter().find(|found| found.entry.id == id).unwrap();
            let other = WorkerId::checked("worker id", "other").unwrap();
            let (objects, lease) = (self.queue.objects().unwrap(), Duration::from_mins(10));
            objects.claim(&found, &other, lease, &TaskTypes::all(), false).await.unwrap().unwrap();
        })
    }

    fn revoke(&self, id: TaskId) -> BoxFuture<'_, ()> {
        let key = keys::task(&self.queue.objects().unwrap().shard_len().shard_of(&id), &id);
        Box::pin(async move { self.queue.client().unwrap().delete(Purpose::Admin, &key).await.unwrap() })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn over_memory() {
    suite::run(|| Box::pin(async { Arc::new(MemoryQueue::default()) as Arc<dyn Fixture> })).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn over_the_shared_index() {
    suite::run(|| Box::pin(Objects::open(None, crate::options()))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn over_leased_shards() {
    suite::run(|| {
        let (ttl, renew_every) = (Duration::from_secs(9), Duration::from_secs(3));
        let leasing = Some(ShardLeasing { ttl, renew_every, ..ShardLeasing::default() });
        Box::pin(Objects::open(None, WorkerOptions { leasing, ..crate::options() }))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn over_inboxes() {
    suite::run(|| {
        let direct = DirectDispatch { discovery_ttl: Duration::ZERO, selection: Selection::default() };
        let inbox = Some(InboxLeaseOptions::default());
        Box::pin(Objects::open(Some(direct), WorkerOptions { inbox, ..crate::options() }))
    })
    .await;
}

#[tokio::test]
async fn options_of_the_object_layout_are_refused() {
    let worker = || {
        let worker = MemoryQueue::default().worker("w1");
        worker.handle("any", async |_: Context, (): ()| Ok::<_, TaskError>(())).unwrap()
    };
    let leasing = WorkerOptions { leasing: Some(ShardLeasing::default()), ..WorkerOptions::default() };
    let running = worker().options(leasing).run(Shutdown::default());
    assert_eq!(running.await.unwrap_err().kind(), Kind::Invalid);
    assert_eq!(worker().run_duties(Shutdown::default()).await.unwrap_err().kind(), Kind::Invalid);
    let idle = MemoryQueue::default().worker("w1").run(Shutdown::default());
    assert!(idle.await.unwrap_err().to_string().contains("no handlers"));
    let (worker, shutdown) = (worker(), Shutdown::default());
    let view = worker.view();
    shutdown.drain();
    assert_eq!(worker.run(shutdown).await.unwrap(), Counts::default());
    assert!(!view.has_inbox() && view.shards().is_empty());
}
