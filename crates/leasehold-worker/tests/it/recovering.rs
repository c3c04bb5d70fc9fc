//! Waking up, ending when nothing is left, and recovery of expired claims.

use leasehold_core::ids::Name;
use leasehold_core::{Index, Status, TaskId, keys};
use leasehold_queue::discover::KeyRange;
use leasehold_queue::source::TaskTypes;
use leasehold_store::Purpose;
use leasehold_worker::{ShardLeasing, Shutdown, TaskError, Worker, WorkerOptions};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, mpsc};

use crate::{options, queue, status, submit, work};

/// A worker whose handler notifies when it starts and then waits for ever, or for a signal to finish.
fn patient(
    queue: &leasehold_queue::ObjectQueue,
    name: &str,
    finish: &Arc<Notify>,
) -> (Worker, mpsc::UnboundedReceiver<TaskId>) {
    let (sender, events) = mpsc::unbounded_channel();
    let finish = finish.clone();
    let worker = Worker::new(queue.clone(), name, None).unwrap();
    let worker = worker
        .handle("patient", move |context: leasehold_worker::Context, (): ()| {
            sender.send(context.task().id).unwrap();
            let finish = finish.clone();
            async move {
                finish.notified().await;
                Ok::<_, TaskError>(())
            }
        })
        .unwrap();
    (worker, events)
}

/// A worker whose handler starts work that does not end with its future: it notifies when it is asked to stop, and
/// ends on a signal.
fn unstoppable(
    queue: &leasehold_queue::ObjectQueue,
    finish: &Arc<Notify>,
) -> (Worker, mpsc::UnboundedReceiver<&'static str>) {
    let (sender, events) = mpsc::unbounded_channel();
    let finish = finish.clone();
    let worker = Worker::new(queue.clone(), "w1", None).unwrap();
    let handler = move |context: leasehold_worker::Context, (): ()| {
        let (sender, finish) = (sender.clone(), finish.clone());
        async move {
            sender.send("started").unwrap();
            context.cancelled().await;
            sender.send("asked to stop").unwrap();
            finish.notified().await;
            Ok::<_, TaskError>("ended")
        }
    };
    (worker.handle_awaited("unstoppable", handler).unwrap(), events)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_claim_of_a_handler_that_does_not_stop_is_left_to_expire() {
    let (queue, never) = (queue().await, Arc::new(Notify::new()));
    let order = queue.submit("unstoppable", json!(null)).timeout(Duration::from_secs(1)).max_attempts(1);
    let id = order.await.unwrap().id;
    let (worker, mut events) = unstoppable(&queue, &never);
    let options =
        WorkerOptions { lease: Duration::from_secs(3), stop_wait: Duration::from_millis(50), ..options() };
    let running = tokio::spawn(worker.options(options).run(Shutdown::default()));
    assert_eq!(events.recv().await, Some("started"));
    assert_eq!(events.recv().await, Some("asked to stop"), "it exceeds its time limit");
    let counts = running.await.unwrap().unwrap();
    assert_eq!((counts.lost, counts.recovered), (1, 1));
    let task = queue.get(&id).await.unwrap();
    assert_eq!((task.status(), task.error.as_deref()), (Status::Failed, Some("claim of worker w1 expired")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_submitted_in_the_same_process_wakes_an_idle_worker() {
    let (queue, finish, shutdown) = (queue().await, Arc::new(Notify::new()), Shutdown::default());
    let (worker, mut started) = patient(&queue, "w1", &finish);
    // Without the wake-up it would scan again only after an hour.
    let polling = leasehold_worker::Polling::fixed(Duration::from_hours(1));
    let options = WorkerOptions { polling, until_empty: false, ..options() };
    let running = tokio::spawn(worker.options(options).run(shutdown.clone()));
    finish.notify_one();
    loop {
        submit(&queue, "patient", json!(null)).await;
        // The first may come before the first scan; some later one finds the worker asleep.
        if let Ok(Some(_)) = tokio::time::timeout(Duration::from_millis(500), started.recv()).await {
            break;
        }
    }
    shutdown.abort();
    running.await.unwrap().unwrap();
}

/// The worst time to be killed: the claim is written, its lease entry is not, and the ready entry still exists.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_stops_when_empty_waits_for_a_claim_that_left_only_its_ready_entry() {
    let queue = queue().await;
    let id = submit(&queue, "patient", json!(null)).await;
    let page = queue.discover(Purpose::Discover, vec![KeyRange::whole(Index::Ready)]).await.unwrap();
    let [found] = &page.due[..] else { panic!("{page:?}") };
    let (lost, lease) = (Name::checked("worker id", "lost").unwrap(), Duration::from_secs(2));
    let claimed = queue.claim(found, &lost, lease, &TaskTypes::all(), false).await.unwrap().unwrap();
    let lease_entry = claimed.task().entry().unwrap();
    queue.client().delete(Purpose::Claim, &lease_entry.key()).await.unwrap();
    queue.client().put_always(Purpose::Claim, &found.entry.key(), "".into()).await.unwrap();

    let finish = Arc::new(Notify::new());
    finish.notify_one();
    let (worker, _started) = patient(&queue, "w1", &finish);
    let counts = worker.options(options()).run(Shutdown::default()).await.unwrap();
    assert_eq!((counts.recovered, counts.completed), (1, 1));
    assert_eq!(status(&queue, &id).await, Status::Completed);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_monitor_recovers_from_all_shards_where_workers_divide_them() {
    let (queue, shutdown) = (queue().await, Shutdown::default());
    let id = submit(&queue, "patient", json!(null)).await;
    let page = queue.discover(Purpose::Discover, vec![KeyRange::whole(Index::Ready)]).await.unwrap();
    let (lost, lease) = (Name::checked("worker id", "lost").unwrap(), Duration::from_millis(100));
    queue.claim(&page.due[0], &lost, lease, &TaskTypes::all(), false).await.unwrap().unwrap();

    let monitor = Worker::new(queue.clone(), "monitor", None).unwrap();
    let (leasing, recover_every) = (Some(ShardLeasing::default()), Duration::from_millis(50));
    let monitor = monitor.options(WorkerOptions { leasing, recover_every, ..options() });
    let running = tokio::spawn(monitor.run_duties(shutdown.clone()));
    let recovered = async {
        while status(&queue, &id).await != Status::Pending {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_mins(1), recovered).await.expect("the task stays where it is");
    shutdown.drain();
    assert_eq!(running.await.unwrap().unwrap().recovered, 1);
}

/// The rest of a producer that crashes between its two writes. It is removed half an hour later.
#[tokio::test(flavor = "multi_thread")]
async fn an_entry_without_a_task_does_not_keep_a_worker_from_ending() {
    let queue = queue().await;
    let (lost, id) = (submit(&queue, "a", json!(1)).await, submit(&queue, "a", json!(2)).await);
    let key = keys::task(&queue.shard_len().shard_of(&lost), &lost);
    queue.client().delete(Purpose::Admin, &key).await.unwrap();
    let worker = Worker::new(queue.clone(), "w1", None).unwrap();
    let worker = worker.handle("a", |_, _: u64| async { Ok::<_, TaskError>(()) }).unwrap();
    let counts = tokio::time::timeout(Duration::from_secs(20), work(worker)).await.expect("it ends");
    assert_eq!(counts.completed, 1);
    assert_eq!(status(&queue, &id).await, Status::Completed);
}
