//! The broker, as seen from another process.

use futures::TryStreamExt;
use leasehold_core::Status;
use leasehold_queue::{
    ArchiveLimits, BrokerRole, BrokerStatus, FoundBroker, JournalQueue, JournalWorkerState, Queue,
    QueueLayout, SnapshotLimits,
};
use leasehold_worker::{Shutdown, Worker, WorkerOptions};
use serde_json::Value;
use std::time::Duration;

use crate::SharedFolder;

fn requests(queue: &Queue) -> u64 {
    queue.client().unwrap().ledger().snapshot().requests()
}

#[tokio::test]
async fn another_process_is_told_the_state_of_the_broker_for_one_request_to_the_store() {
    let folder = SharedFolder::new();
    let (broker, client) = (folder.process("broker").await, folder.process("client").await);
    broker.submit("first", Value::Null).await.unwrap();
    let before = requests(&client);
    for _ in 0..3 {
        let found = client.journal().unwrap().find_broker().await.unwrap();
        let FoundBroker::Reached(status) = found else { panic!("{found:?}") };
        assert_eq!((status.live_tasks, status.clients, status.commits.commits), (1, 1, 1));
        assert_eq!(status.holder.pid, std::process::id());
        assert_eq!(status.holder.addresses, [format!("unix:{}", folder.socket().display())]);
        assert!(status.resident_bytes.is_some_and(|bytes| bytes > 1_000_000), "{status:?}");
    }
    assert_eq!(requests(&client) - before, 1, "1 get of the lease");
    client.close().await.unwrap();
    broker.close().await.unwrap();
}

#[tokio::test]
async fn another_process_samples_the_queue_for_the_request_that_finds_the_broker() {
    let folder = SharedFolder::new();
    let limits = SnapshotLimits {
        interval: Duration::ZERO,
        archive: ArchiveLimits { age: Duration::ZERO, ..ArchiveLimits::default() },
        ..SnapshotLimits::default()
    };
    let broker = folder.process_with_snapshots("broker", limits).await;
    let done = broker.submit("first", Value::Null).await.unwrap().id;
    broker.cancel(&done).await.unwrap();
    let waiting = broker.submit("second", Value::Null).await.unwrap().id;
    let client = folder.process("client").await;
    let viewer = client.journal().unwrap().with_own_ledger();
    let start = viewer.sample(None).await.unwrap();
    assert!(start.changes.is_gap && start.changes.tasks.is_empty(), "{start:?}");
    // With every commit, the tasks that have ended before it may be archived.
    let archived = || async { broker_status(&viewer).await.archived_tasks };
    while archived().await == 0 {
        broker.submit("more", Value::Null).await.unwrap();
    }
    broker.cancel(&waiting).await.unwrap();
    let sample = viewer.sample(Some(&start.changes.position)).await.unwrap();
    assert_eq!(sample.stats.finished.unwrap()[&Status::Cancelled], 2);
    assert!(sample.changes.tasks.iter().any(|task| task.id == waiting && task.status() == Status::Cancelled));
    let ledger = || viewer.client().unwrap().ledger().snapshot().requests();
    assert_eq!(ledger(), 1, "1 get of the lease, by the handle that asked first");
    let tasks: Vec<_> = viewer.newest_archived(10).try_collect().await.unwrap();
    assert!(tasks.iter().any(|task| task.id == done), "{tasks:?}");
    assert!(viewer.newest_archived(0).try_collect::<Vec<_>>().await.unwrap().is_empty());
    assert!(ledger() >= 2, "1 get per object of the archive");
    client.close().await.unwrap();
    broker.close().await.unwrap();
}

async fn broker_status(queue: &JournalQueue) -> BrokerStatus {
    match queue.find_broker().await.unwrap() {
        FoundBroker::Reached(status) => *status,
        FoundBroker::Unreached(last) => panic!("{last:?}"),
    }
}

#[tokio::test]
async fn a_process_that_waits_becomes_the_broker_when_the_broker_closes() {
    let folder = SharedFolder::new();
    let first = folder.process_as("first", BrokerRole::Only).await;
    let second = folder.process_as("second", BrokerRole::Only).await;
    let term = first.journal().unwrap().join_broker().await.unwrap();
    let waiting = second.journal().unwrap().join_broker().await.unwrap();
    assert!(term.is_broker() && !waiting.is_broker());
    first.close().await.unwrap();
    term.ended().await;
    waiting.ended().await;
    assert!(second.journal().unwrap().join_broker().await.unwrap().is_broker());
    second.close().await.unwrap();
}

#[tokio::test]
#[expect(clippy::disallowed_methods, reason = "tests own what they start")]
async fn a_process_that_never_becomes_the_broker_works_through_one() {
    let folder = SharedFolder::new();
    let broker = folder.process_as("broker", BrokerRole::Only).await;
    broker.journal().unwrap().join_broker().await.unwrap();
    let client = folder.process_as("client", BrokerRole::Never).await;
    let shutdown = Shutdown::default();
    let worker = Worker::new(client.clone(), "w1", None).unwrap();
    let worker = worker.options(WorkerOptions { concurrency: 3, ..WorkerOptions::default() });
    let worker = worker
        .handle("double", |_, number: u64| async move { Ok::<_, leasehold_worker::TaskError>(number * 2) })
        .unwrap();
    let stop = shutdown.clone();
    let running = tokio::spawn(async move { worker.run(stop).await.unwrap().completed });
    let submitted = client.submit("double", 21).await.unwrap();
    client.wait(&submitted.id, None).await.unwrap();
    let workers = client.journal().unwrap().workers().await.unwrap().unwrap();
    let [worker] = workers.as_slice() else { panic!("{workers:?}") };
    assert_eq!(
        (worker.worker_id.as_str(), worker.slots, worker.state),
        ("w1", Some(3), JournalWorkerState::Alive)
    );
    assert_eq!(worker.types.names().unwrap().len(), 1);
    shutdown.drain();
    assert_eq!(running.await.unwrap(), 1);
    assert_eq!(client.journal().unwrap().workers().await.unwrap().unwrap(), []);
    client.close().await.unwrap();
    broker.close().await.unwrap();
}
