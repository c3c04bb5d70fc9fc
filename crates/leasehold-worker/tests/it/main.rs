//! Workers on a queue in memory and in a folder.
#![expect(clippy::disallowed_methods, reason = "tests own what they start")]
#![expect(clippy::unwrap_used, reason = "in a test a panic is the report, in its helpers too")]

mod direct;
mod journal;
mod memory_source;
mod migrating;
mod recovering;
mod requests;
mod scanning;
mod sources;
mod staging;
mod suite;

use leasehold_core::{Status, TaskId};
use leasehold_queue::ObjectQueue;
use leasehold_store::{Client, Host, MemoryStore, SystemHost};
use leasehold_worker::{Polling, Shutdown, Worker, WorkerOptions};
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;

async fn queue() -> ObjectQueue {
    let host: Arc<dyn Host> = Arc::new(SystemHost);
    let client = Client::new(Arc::new(MemoryStore::new(&host)), host);
    ObjectQueue::connect(client).await.unwrap()
}

fn options() -> WorkerOptions {
    let polling = Polling { max: Duration::from_millis(200), ..Polling::default() };
    WorkerOptions { polling, until_empty: true, ..WorkerOptions::default() }
}

async fn submit(queue: &ObjectQueue, task_type: &str, input: Value) -> TaskId {
    queue.submit(task_type, input).await.unwrap().id
}

async fn work(worker: Worker) -> leasehold_worker::Counts {
    worker.options(options()).run(Shutdown::default()).await.unwrap()
}

async fn status(queue: &ObjectQueue, id: &TaskId) -> Status {
    queue.get(id).await.unwrap().status()
}
