//! Stopping: by the worker's own shutdown, by a cancel, by losing the claim; and recovery by other workers.

use leasehold_core::ids::Name;
use leasehold_core::{Index, Status, TaskId, keys};
use leasehold_queue::discover::KeyRange;
use leasehold_queue::{ClaimOutcome, Operated};
use leasehold_store::Purpose;
use leasehold_worker::{DrainWait, ShardLeasing, Shutdown, TaskError, Worker, WorkerOptions};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, mpsc};

use crate::{options, queue, status, submit, work};

/// Renewed after four seconds, and not lost if the machine then needs as long again.
const LEASE: Duration = Duration::from_secs(12);

/// A worker whose handler notifies when it starts and then waits for ever, or for a signal to finish.
fn patient(
    queue: &leasehold_queue::Queue,
    name: &str,
    finish: &Arc<Notify>,
) -> (Worker, mpsc::UnboundedReceiver<TaskId>) {
    let (tell, told) = mpsc::unbounded_channel();
    let finish = finish.clone();
    let worker = Worker::new(queue.clone(), name, None).unwrap();
    let worker = worker
        .handle("patient", move |context: leasehold_worker::Context, (): ()| {
            tell.send(context.task().id).unwrap();
            let finish = finish.clone();
            async move {
                finish.notified().await;
                Ok::<_, TaskError>(())
            }
        })
        .unwrap();
    (worker, told)
}

#[tokio::test(flavor = "multi_thread")]
async fn draining_lets_handlers_finish() {
    let (queue, finish, shutdown) = (queue().await, Arc::new(Notify::new()), Shutdown::default());
    let id = submit(&queue, "patient", json!(null)).await;
    let (worker, mut started) = patient(&queue, "w1", &finish);
    let running =
        tokio::spawn(worker.options(WorkerOptions { until_empty: false, ..options() }).run(shutdown.clone()));
    started.recv().await.unwrap();
    shutdown.drain();
    finish.notify_one();
    assert_eq!(running.await.unwrap().unwrap().completed, 1);
    assert_eq!(status(&queue, &id).await, Status::Completed);
}

#[tokio::test(flavor = "multi_thread")]
async fn aborting_releases_without_using_an_attempt_and_another_worker_runs_it_at_once() {
    let (queue, never, shutdown) = (queue().await, Arc::new(Notify::new()), Shutdown::default());
    let id = submit(&queue, "patient", json!(null)).await;
    let (worker, mut started) = patient(&queue, "w1", &never);
    let running =
        tokio::spawn(worker.options(WorkerOptions { until_empty: false, ..options() }).run(shutdown.clone()));
    started.recv().await.unwrap();
    shutdown.abort();
    assert_eq!(running.await.unwrap().unwrap().put_back, 1);
    let task = queue.get(&id).await.unwrap();
    assert_eq!((task.status(), task.attempt, task.epoch), (Status::Pending, 0, 1));
    let finish = Arc::new(Notify::new());
    let (other, mut started) = patient(&queue, "w2", &finish);
    let running = tokio::spawn(other.options(options()).run(Shutdown::default()));
    assert_eq!(started.recv().await, Some(id));
    finish.notify_one();
    assert_eq!(running.await.unwrap().unwrap().completed, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_task_is_stopped_at_the_next_renewal() {
    let (queue, never) = (queue().await, Arc::new(Notify::new()));
    let id = submit(&queue, "patient", json!(null)).await;
    let (worker, mut started) = patient(&queue, "w1", &never);
    let lease = LEASE;
    let running = tokio::spawn(worker.options(WorkerOptions { lease, ..options() }).run(Shutdown::default()));
    started.recv().await.unwrap();
    assert!(matches!(queue.cancel(&id).await.unwrap(), Operated::Done(_)));
    assert_eq!(running.await.unwrap().unwrap().cancelled, 1);
    assert_eq!(status(&queue, &id).await, Status::Cancelled);
}

/// A worker whose handler starts work that does not end with its future: it notifies when it is asked to stop, and
/// ends on a signal.
fn unstoppable(
    queue: &leasehold_queue::Queue,
    let_go: &Arc<Notify>,
) -> (Worker, mpsc::UnboundedReceiver<&'static str>) {
    let (tell, told) = mpsc::unbounded_channel();
    let let_go = let_go.clone();
    let worker = Worker::new(queue.clone(), "w1", None).unwrap();
    let handler = move |context: leasehold_worker::Context, (): ()| {
        let (tell, let_go) = (tell.clone(), let_go.clone());
        async move {
            tell.send("started").unwrap();
            context.cancelled().await;
            tell.send("asked to stop").unwrap();
            let_go.notified().await;
            Ok::<_, TaskError>("ended")
        }
    };
    (worker.handle_awaited("unstoppable", handler).unwrap(), told)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_awaited_handler_has_ended_before_anything_is_written() {
    let (queue, let_go) = (queue().await, Arc::new(Notify::new()));
    let id = submit(&queue, "unstoppable", json!(null)).await;
    let (worker, mut told) = unstoppable(&queue, &let_go);
    let lease = LEASE;
    let running = tokio::spawn(worker.options(WorkerOptions { lease, ..options() }).run(Shutdown::default()));
    assert_eq!(told.recv().await, Some("started"));
    queue.cancel(&id).await.unwrap();
    assert_eq!(told.recv().await, Some("asked to stop"));
    assert_eq!(status(&queue, &id).await, Status::Running);
    let_go.notify_one();
    assert_eq!(running.await.unwrap().unwrap().cancelled, 1);
    assert_eq!(status(&queue, &id).await, Status::Cancelled);
}

/// The handler is asked to stop at the same time as its worker, and may have ended before the worker is polled.
#[tokio::test(flavor = "multi_thread")]
async fn handlers_that_end_at_once_when_cancelled_are_cancelled_all_the_same() {
    let queue = queue().await;
    let (tell, mut started) = mpsc::unbounded_channel();
    let handler = move |context: leasehold_worker::Context, (): ()| {
        let tell = tell.clone();
        async move {
            tell.send(()).unwrap();
            context.cancelled().await;
            Ok::<_, TaskError>("stopped in time")
        }
    };
    let worker = Worker::new(queue.clone(), "w1", None).unwrap();
    let worker = worker.handle("prompt", handler.clone()).unwrap().handle_awaited("waited", handler).unwrap();
    let options = WorkerOptions { lease: LEASE, concurrency: 64, ..options() };
    let mut ids = Vec::new();
    for task_type in ["prompt", "waited"].repeat(32) {
        ids.push(submit(&queue, task_type, json!(null)).await);
    }
    let running = tokio::spawn(worker.options(options).run(Shutdown::default()));
    for _ in &ids {
        started.recv().await.unwrap();
    }
    for id in &ids {
        queue.cancel(id).await.unwrap();
    }
    assert_eq!(running.await.unwrap().unwrap().cancelled, 64);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_finishes_after_being_asked_to_stop_completes_its_task() {
    let (queue, let_go, shutdown) = (queue().await, Arc::new(Notify::new()), Shutdown::default());
    let id = submit(&queue, "unstoppable", json!(null)).await;
    let (worker, mut told) = unstoppable(&queue, &let_go);
    let running = tokio::spawn(worker.options(options()).run(shutdown.clone()));
    assert_eq!(told.recv().await, Some("started"));
    shutdown.abort();
    assert_eq!(told.recv().await, Some("asked to stop"));
    let_go.notify_one();
    assert_eq!(running.await.unwrap().unwrap().completed, 1);
    assert_eq!(queue.get(&id).await.unwrap().output(), Some(&json!("ended")));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_claim_of_a_handler_that_does_not_stop_is_left_to_expire() {
    let (queue, never) = (queue().await, Arc::new(Notify::new()));
    let order = queue.submit("unstoppable", json!(null)).timeout(Duration::from_secs(1)).max_attempts(1);
    let id = order.await.unwrap().id;
    let (worker, mut told) = unstoppable(&queue, &never);
    let options =
        WorkerOptions { lease: Duration::from_secs(3), stop_wait: Duration::from_millis(50), ..options() };
    let running = tokio::spawn(worker.options(options).run(Shutdown::default()));
    assert_eq!(told.recv().await, Some("started"));
    assert_eq!(told.recv().await, Some("asked to stop"), "its time is over");
    let counts = running.await.unwrap().unwrap();
    assert_eq!((counts.lost, counts.recovered), (1, 1));
    let task = queue.get(&id).await.unwrap();
    assert_eq!((task.status(), task.error.as_deref()), (Status::Failed, Some("lease of worker w1 expired")));
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
    let look = queue.discover(Purpose::Discover, vec![KeyRange::whole(Index::Ready)]).await.unwrap();
    let [found] = &look.due[..] else { panic!("{look:?}") };
    let (lost, lease) = (Name::checked("worker id", "lost").unwrap(), Duration::from_secs(2));
    let ClaimOutcome::Claimed(claimed) = queue.claim(found, &lost, lease, &|_| true).await.unwrap() else {
        panic!()
    };
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
    let look = queue.discover(Purpose::Discover, vec![KeyRange::whole(Index::Ready)]).await.unwrap();
    let (lost, lease) = (Name::checked("worker id", "lost").unwrap(), Duration::from_millis(100));
    queue.claim(&look.due[0], &lost, lease, &|_| true).await.unwrap();

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

/// The rest of a producer that dies between its two writes. It is removed half an hour later.
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

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_ends_when_the_queue_is_empty_reports_what_it_waits_for() {
    let queue = queue().await;
    let id = submit(&queue, "patient", json!(null)).await;
    let found =
        queue.discover(Purpose::Discover, vec![KeyRange::whole(Index::Ready)]).await.unwrap().due.remove(0);
    let other = Name::checked("worker id", "other").unwrap();
    let met = queue.claim(&found, &other, Duration::from_mins(10), &|_| true).await.unwrap();
    assert!(matches!(met, ClaimOutcome::Claimed(_)));
    let (worker, _started) = patient(&queue, "w1", &Arc::new(Notify::new()));
    let (monitor, shutdown) = (worker.monitor(), Shutdown::default());
    assert_eq!(monitor.drain_wait(), None);
    let running = tokio::spawn(worker.options(options()).run(shutdown.clone()));
    while monitor.drain_wait() != Some(DrainWait::Held(id)) {
        assert!(!running.is_finished(), "it does not leave the task behind");
        tokio::task::yield_now().await;
    }
    shutdown.drain();
    running.await.unwrap().unwrap();
}
