//! The broker, as seen from another process.

use leasehold_queue::{BrokerRole, FoundBroker, JournalWorkerState, Queue};
use leasehold_worker::{Shutdown, Worker, WorkerOptions};
use serde_json::Value;

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
