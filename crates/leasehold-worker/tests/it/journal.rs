//! The suite of workers over the journal layout: over a store in memory, and in a folder.

use futures::future::BoxFuture;
use leasehold_core::{Name, NewTask, Task, TaskId};
use leasehold_queue::source::{Slots, TaskTypes, WorkerInfo};
use leasehold_queue::testing::journal::end_claim;
use leasehold_queue::{JournalQueue, LayoutName, Queue, QueueConfig, Settlement};
use leasehold_store::{Client, Host, MemoryStore, SystemHost};
use leasehold_worker::{Polling, Worker, WorkerOptions};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

use crate::suite::{self, Fixture};

/// A queue in the journal layout, whose broker is this process.
struct Journal {
    queue: JournalQueue,
    _folder: Option<TempDir>,
}

fn config() -> QueueConfig {
    QueueConfig { layout: Some(LayoutName::Journal), transport: None, ..QueueConfig::default() }
}

impl Journal {
    async fn in_memory() -> Arc<dyn Fixture> {
        let host: Arc<dyn Host> = Arc::new(SystemHost);
        let client = Client::new(Arc::new(MemoryStore::new(&host)), host);
        let queue = JournalQueue::with_config(client, config()).await.unwrap();
        Arc::new(Self { queue, _folder: None })
    }

    async fn in_folder() -> Arc<dyn Fixture> {
        let folder = tempfile::tempdir().unwrap();
        let queue = JournalQueue::with_config(folder.path(), config()).await.unwrap();
        Arc::new(Self { queue, _folder: Some(folder) })
    }

    fn queue(&self) -> Queue {
        self.queue.clone().into()
    }
}

impl Fixture for Journal {
    fn worker(&self, id: &str) -> Worker {
        Worker::new(self.queue(), id, None).unwrap()
    }

    fn options(&self) -> WorkerOptions {
        // Renewed after four seconds, and not lost if the machine then needs as long again.
        WorkerOptions { lease: Duration::from_secs(12), until_empty: false, ..crate::options() }
    }

    fn submit(&self, task: NewTask) -> BoxFuture<'_, TaskId> {
        Box::pin(async { self.queue().submit_task(task).await.unwrap().id })
    }

    fn get(&self, id: TaskId) -> BoxFuture<'_, Task> {
        Box::pin(async move { self.queue().get(&id).await.unwrap() })
    }

    fn cancel(&self, id: TaskId) -> BoxFuture<'_, ()> {
        Box::pin(async move { drop(self.queue().cancel(&id).await.unwrap()) })
    }

    fn hold(&self, id: TaskId) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let worker = WorkerInfo {
                id: Name::checked("worker id", "other").unwrap(),
                types: TaskTypes::all(),
                slots: Slots::new(100),
                lease: Duration::from_mins(10),
                polling: Polling::default(),
                until_empty: true,
            };
            let mut source = self.queue().task_source_factory().unwrap().open(worker).await.unwrap();
            let mut claim = source.next().await.unwrap().expect("a task is due");
            while claim.task.task().id != id {
                claim.task.finish(Settlement::Release).await.unwrap();
                claim = source.next().await.unwrap().expect("the task is due");
            }
            source.close().await.unwrap();
        })
    }

    fn revoke(&self, id: TaskId) -> BoxFuture<'_, ()> {
        Box::pin(async move { end_claim(&self.queue, &id, Settlement::complete(json!(null))).await.unwrap() })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn over_a_journal_in_memory() {
    suite::run(|| Box::pin(Journal::in_memory())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn over_a_journal_in_a_folder() {
    suite::run(|| Box::pin(Journal::in_folder())).await;
}
