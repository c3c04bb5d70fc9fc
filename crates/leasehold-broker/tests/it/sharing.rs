//! Processes that share a queue: one of them is the broker.

use futures::TryStreamExt;
use leasehold_core::retention::Retention;
use leasehold_core::{Kind, Reason, Status};
use leasehold_queue::{Filter, Queue, Transition, UniqueKey};
use leasehold_worker::{Shutdown, Worker, WorkerOptions};
use serde_json::{Value, json};
use std::time::Duration;

use crate::SharedFolder;

/// Runs a worker until the returned shutdown is requested.
#[expect(clippy::disallowed_methods, reason = "tests own what they start")]
pub(crate) fn start_worker(queue: &Queue, id: &str) -> (Shutdown, tokio::task::JoinHandle<u64>) {
    let shutdown = Shutdown::default();
    let options = WorkerOptions { concurrency: 4, ..WorkerOptions::default() };
    let worker = Worker::new(queue.clone(), id, None).unwrap().options(options);
    let worker = worker
        .handle("double", |_, number: u64| async move { Ok::<_, leasehold_worker::TaskError>(number * 2) })
        .unwrap();
    let stop = shutdown.clone();
    (shutdown, tokio::spawn(async move { worker.run(stop).await.unwrap().completed }))
}

#[tokio::test]
async fn tasks_of_one_process_are_run_by_another_while_a_third_waits() {
    let folder = SharedFolder::new();
    let (broker, working, waiting) =
        (folder.process("broker").await, folder.process("w").await, folder.process("p").await);
    let first = broker.submit("double", 1).await.unwrap();
    let (shutdown, worker) = start_worker(&working, "w1");
    assert_eq!(broker.wait(&first.id, None).await.unwrap().status(), Status::Completed);
    let submitted = waiting.submit("double", 21).await.unwrap();
    let task = waiting.wait(&submitted.id, Some(Duration::from_secs(30))).await.unwrap();
    assert!(
        matches!(&task.state, leasehold_core::State::Completed { output, .. } if *output == json!(42)),
        "{task:?}"
    );
    shutdown.drain();
    assert_eq!(worker.await.unwrap(), 2);
    for queue in [waiting, working, broker] {
        queue.close().await.unwrap();
    }
}

#[tokio::test]
async fn every_operation_gives_the_same_answer_from_another_process() {
    let folder = SharedFolder::new();
    let (broker, client) = (folder.process("broker").await, folder.process("client").await);
    let known = broker.submit("known", json!({"a": [1, "\ttab"]})).await.unwrap();
    // Keys.
    let submit = || client.submit("once", Value::Null).key(UniqueKey::new("k"));
    let once = submit().await.unwrap();
    assert!(once.is_new);
    let again = submit().await.unwrap();
    assert!(again.id == once.id && !again.is_new && again.existing == Some(Status::Pending));
    // Reads.
    assert_eq!(client.get(&known.id).await.unwrap(), broker.get(&known.id).await.unwrap());
    let unknown = leasehold_core::TaskId::from_random(7);
    let (theirs, ours) = (client.get(&unknown).await.unwrap_err(), broker.get(&unknown).await.unwrap_err());
    assert_eq!((theirs.to_string(), theirs.reason()), (ours.to_string(), Some(Reason::Missing)));
    let list =
        |queue: Queue| async move { queue.list(Filter::default()).try_collect::<Vec<_>>().await.unwrap() };
    assert_eq!(list(client.clone()).await, list(broker.clone()).await);
    let prefix = known.id.to_string()[..20].parse().unwrap();
    assert_eq!(client.find(&prefix).await.unwrap(), known.id);
    assert_eq!(
        format!("{:?}", client.stats().await.unwrap()),
        format!("{:?}", broker.stats().await.unwrap())
    );
    let export = client.export().try_collect::<Vec<_>>().await.unwrap();
    assert_eq!(export, broker.export().try_collect::<Vec<_>>().await.unwrap());
    // Operations.
    assert!(
        matches!(client.cancel(&known.id).await.unwrap(), Transition::Done(task) if task.status() == Status::Cancelled)
    );
    assert!(matches!(client.cancel(&known.id).await.unwrap(), Transition::Rejected(..)));
    assert!(
        matches!(client.retry(&known.id).await.unwrap(), Transition::Done(task) if task.status() == Status::Pending)
    );
    let at = client.now().unwrap().earliest.plus(Duration::from_hours(1));
    assert!(matches!(client.reschedule(&known.id, at).await.unwrap(), Transition::Done(_)));
    let history = client.get_history(&known.id).await.unwrap();
    assert_eq!(history.last().unwrap().by, "client");
    let retention = Retention { statuses: Vec::new(), older_than: Duration::ZERO };
    assert_eq!(client.purge_all(&retention).await.unwrap().deleted, 0);
    assert_eq!(client.submit("", Value::Null).await.unwrap_err().kind(), Kind::Invalid);
    client.close().await.unwrap();
    broker.close().await.unwrap();
}

#[tokio::test]
async fn many_submits_from_another_process_share_commits() {
    let folder = SharedFolder::new();
    let (broker, client) = (folder.process("broker").await, folder.process("client").await);
    broker.submit("first", Value::Null).await.unwrap();
    let submits = (0..3_000).map(|number| client.submit("many", number));
    assert_eq!(client.submit_many(submits).try_collect::<Vec<_>>().await.unwrap().len(), 3_000);
    assert_eq!(broker.stats().await.unwrap().due, 3_001);
    client.close().await.unwrap();
    broker.close().await.unwrap();
}

#[tokio::test]
async fn a_client_becomes_the_broker_when_the_broker_closes() {
    let folder = SharedFolder::new();
    let (broker, client) = (folder.process("broker").await, folder.process("client").await);
    let first = broker.submit("first", Value::Null).await.unwrap();
    client.submit("second", Value::Null).await.unwrap();
    broker.close().await.unwrap();
    client.submit("third", Value::Null).await.unwrap();
    // The roles are exchanged.
    assert_eq!(broker.get(&first.id).await.unwrap().id, first.id);
    broker.submit("fourth", Value::Null).await.unwrap();
    assert_eq!(client.stats().await.unwrap().due, 4);
    broker.close().await.unwrap();
    client.close().await.unwrap();
}

#[tokio::test]
async fn a_worker_goes_on_after_the_broker_was_closed() {
    let folder = SharedFolder::new();
    let (broker, working) = (folder.process("broker").await, folder.process("w").await);
    broker.submit("double", 1).await.unwrap();
    let (shutdown, worker) = start_worker(&working, "w1");
    broker.close().await.unwrap();
    let producer = folder.process("p").await;
    let submitted = producer.submit("double", 2).await.unwrap();
    let task = producer.wait(&submitted.id, Some(Duration::from_mins(1))).await.unwrap();
    assert_eq!(task.status(), Status::Completed);
    shutdown.drain();
    assert_eq!(worker.await.unwrap(), 2);
    producer.close().await.unwrap();
    working.close().await.unwrap();
}

#[tokio::test]
async fn a_process_that_only_reads_does_not_become_the_broker() {
    let folder = SharedFolder::new();
    let (writer, reader) = (folder.process("writer").await, folder.process("reader").await);
    let submitted = writer.submit("first", Value::Null).await.unwrap();
    assert_eq!(reader.get(&submitted.id).await.unwrap().id, submitted.id);
    writer.close().await.unwrap();
    assert_eq!(reader.get(&submitted.id).await.unwrap().id, submitted.id);
    let sockets = std::fs::read_dir(folder.path().join("queue/.leasehold/broker")).unwrap().count();
    assert_eq!(sockets, 0, "no process is the broker");
}

#[tokio::test]
async fn more_open_requests_than_a_connection_may_have_are_answered() {
    let folder = SharedFolder::new();
    let (broker, client) = (folder.process("broker").await, folder.process("client").await);
    broker.submit("first", Value::Null).await.unwrap();
    let submits = (0..5_000).map(|number| client.submit("many", number).into_future());
    let submitted = futures::future::join_all(submits).await;
    assert!(submitted.iter().all(Result::is_ok));
    assert_eq!(broker.stats().await.unwrap().due, 5_001);
    client.close().await.unwrap();
    broker.close().await.unwrap();
}

#[tokio::test]
async fn processes_that_start_together_agree_on_one_broker() {
    for _ in 0..10 {
        let folder = SharedFolder::new();
        let mut queues = Vec::new();
        for number in 0..8 {
            queues.push(folder.process(&format!("p{number}")).await);
        }
        let submits = queues.iter().map(|queue| queue.submit("first", Value::Null).into_future());
        for submitted in futures::future::join_all(submits).await {
            submitted.unwrap();
        }
        assert_eq!(queues[0].stats().await.unwrap().due, 8);
        futures::future::join_all(queues.iter().map(|queue| queue.close())).await;
    }
}
