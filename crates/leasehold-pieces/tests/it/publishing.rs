//! Publishing of results of tasks.

use bytes::Bytes;
use leasehold_core::Status;
use leasehold_pieces::ArtifactStore;
use leasehold_queue::{ObjectQueue, QueueConfig};
use leasehold_store::store::{Answer, PartId, UploadId};
use leasehold_store::{Client, DelegatingStore, MemoryStore, Store, SystemHost};
use leasehold_worker::{Context, Shutdown, TaskError, Worker};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use tokio::sync::Notify;

use crate::support::TestCluster;

/// Accepts one part of an upload and never answers the next.
#[derive(Debug)]
struct Stuck {
    inner: Arc<MemoryStore>,
    silent: Notify,
    aborted: AtomicU32,
}

impl DelegatingStore for Stuck {
    fn inner(&self) -> &dyn Store {
        &*self.inner
    }

    fn upload_part<'a>(
        &'a self,
        key: &'a str,
        upload: &'a UploadId,
        number: usize,
        body: Bytes,
    ) -> Answer<'a, PartId> {
        if number == 0 {
            return self.inner.upload_part(key, upload, number, body);
        }
        self.silent.notify_one();
        Box::pin(futures::future::pending())
    }

    fn upload_abort<'a>(&'a self, key: &'a str, upload: &'a UploadId) -> Answer<'a, ()> {
        self.aborted.fetch_add(1, Relaxed);
        self.inner.upload_abort(key, upload)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_stops_while_it_publishes_leaves_no_parts_and_releases_the_task() {
    let cluster = TestCluster::new();
    let store =
        Arc::new(Stuck { inner: cluster.store.clone(), silent: Notify::new(), aborted: AtomicU32::new(0) });
    let client = Client::new(store.clone(), Arc::new(SystemHost));
    let queue = ObjectQueue::with_config(client.clone(), QueueConfig::default()).await.unwrap();
    let id = queue.submit("make", ()).await.unwrap().id;
    let (result, _) = cluster.file(20 << 20);
    let worker = Worker::new(queue.clone(), "w", None).unwrap();
    let worker = worker.artifact_io(Arc::new(ArtifactStore::new(client, cluster.cache("w"))));
    let worker = worker.handle("make", move |context: Context, (): ()| {
        let given = context.publish("result", result.clone());
        async move { given.map_err(TaskError::from) }
    });
    let shutdown = Shutdown::default();
    let stop = async {
        store.silent.notified().await;
        shutdown.abort();
    };
    let (counts, ()) = tokio::join!(worker.unwrap().run(shutdown.clone()), stop);
    assert_eq!(counts.unwrap().requeued, 1);
    assert_eq!(store.aborted.load(Relaxed), 1, "parts are left in the store");
    let task = queue.get(&id).await.unwrap();
    assert_eq!((task.status(), task.attempt), (Status::Pending, 0), "{:?}", task.error);
}
