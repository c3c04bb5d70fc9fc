//! Direct dispatch: inboxes, worker ids, and recovery of both when a worker crashes.

use leasehold_core::{Index, IndexLocation, Kind, Status, WorkerId};
use leasehold_queue::discover::KeyRange;
use leasehold_queue::{DirectDispatch, ObjectQueue, QueueConfig, QueueLayout, Selection};
use leasehold_store::{Client, Host, MemoryStore, Purpose, SystemHost, Verb};
use leasehold_worker::{InboxLeaseOptions, Shutdown, Worker, WorkerOptions};
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::{options, status, submit, work};

/// A store, and queues that dispatch directly: one for producers, one for workers.
async fn queues(selection: Selection) -> (ObjectQueue, ObjectQueue) {
    let host: Arc<dyn Host> = Arc::new(SystemHost);
    let store = Arc::new(MemoryStore::new(&host));
    let client = || Client::new(store.clone(), host.clone());
    // Workers that start or stop are seen at once.
    let direct = DirectDispatch { discovery_ttl: Duration::ZERO, selection };
    let config = QueueConfig { direct: Some(direct), ..QueueConfig::default() };
    let producer = ObjectQueue::with_config(client(), config).await.unwrap();
    (producer, ObjectQueue::connect(client()).await.unwrap())
}

fn worker(queue: &ObjectQueue, name: &str) -> Worker {
    let worker = Worker::new(queue.clone(), name, None).unwrap();
    worker.handle("echo", |_, number: u64| async move { Ok(number) }).unwrap()
}

fn direct() -> WorkerOptions {
    let lease = InboxLeaseOptions { ttl: Duration::from_secs(3), renew_every: Duration::from_secs(1) };
    WorkerOptions { inbox: Some(lease), until_empty: false, ..options() }
}

/// A worker with an inbox that runs until it is stopped, and has its id.
async fn started(
    queue: &ObjectQueue,
    name: &str,
    options: WorkerOptions,
) -> (Shutdown, tokio::task::JoinHandle<leasehold_core::Result<leasehold_worker::Counts>>) {
    let shutdown = Shutdown::default();
    let running = tokio::spawn(worker(queue, name).options(options).run(shutdown.clone()));
    let key = leasehold_core::keys::inbox_lease(&WorkerId::checked("worker id", name).unwrap());
    while leasehold_queue::read_lease(queue.client(), &key).await.unwrap().is_none() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    (shutdown, running)
}

async fn count_entries(queue: &ObjectQueue, place: &IndexLocation) -> usize {
    queue.discover(Purpose::Admin, vec![KeyRange::at(place)]).await.unwrap().due.len()
}

fn inbox(name: &str) -> IndexLocation {
    IndexLocation::Inbox(WorkerId::checked("worker id", name).unwrap())
}

async fn all_done(queue: &ObjectQueue, ids: &[leasehold_core::TaskId]) {
    for id in ids {
        let task =
            leasehold_queue::Queue::from(queue.clone()).wait(id, Some(Duration::from_mins(1))).await.unwrap();
        assert_eq!(task.status(), Status::Completed);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_go_to_the_inboxes_of_live_workers_one_after_the_other() {
    let (producer, queue) = queues(Selection::RoundRobin).await;
    let (a_stops, a) = started(&queue, "a", direct()).await;
    let (b_stops, b) = started(&queue, "b", direct()).await;
    let mut ids = Vec::new();
    for number in 0..20 {
        ids.push(submit(&producer, "echo", json!(number)).await);
    }
    all_done(&producer, &ids).await;
    let mut by_worker = BTreeMap::new();
    for id in &ids {
        let task = producer.get(id).await.unwrap();
        let by = task.history.events().find(|event| event.event == "claim").unwrap().by.clone();
        *by_worker.entry(by).or_insert(0) += 1;
    }
    assert_eq!(by_worker, BTreeMap::from([("a".to_owned(), 10), ("b".to_owned(), 10)]));
    a_stops.drain();
    b_stops.drain();
    assert_eq!(a.await.unwrap().unwrap().completed + b.await.unwrap().unwrap().completed, 20);
    assert_eq!((count_entries(&queue, &inbox("a")).await, count_entries(&queue, &inbox("b")).await), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_live_worker_any_worker_may_take_a_task() {
    let (producer, queue) = queues(Selection::Random).await;
    let id = submit(&producer, "echo", json!(1)).await;
    let page = queue.discover(Purpose::Admin, vec![KeyRange::whole(Index::Ready)]).await.unwrap();
    assert_eq!(page.due.len(), 1);
    assert_eq!(work(worker(&queue, "shared")).await.completed, 1);
    assert_eq!(status(&queue, &id).await, Status::Completed);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_without_a_handler_leaves_the_inbox_for_any_worker() {
    let (producer, queue) = queues(Selection::Hash).await;
    let (stops, running) = started(&queue, "a", direct()).await;
    let id = submit(&producer, "other", json!(1)).await;
    let ready = || queue.discover(Purpose::Admin, vec![KeyRange::whole(Index::Ready)]);
    while ready().await.unwrap().due.is_empty() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    while count_entries(&queue, &inbox("a")).await > 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(status(&queue, &id).await, Status::Pending);
    stops.drain();
    running.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_id_has_one_worker_at_a_time() {
    let (_, queue) = queues(Selection::Random).await;
    let (stops, first) = started(&queue, "a", direct()).await;
    let error = worker(&queue, "a").options(direct()).run(Shutdown::default()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    assert!(error.to_string().starts_with("worker id `a` is in use until "), "{error}");
    stops.drain();
    first.await.unwrap().unwrap();
    // Released: it can be taken at once.
    let (stops, second) = started(&queue, "a", direct()).await;
    stops.drain();
    second.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_loses_its_id_stops_its_tasks_with_an_error() {
    let (producer, queue) = queues(Selection::Random).await;
    let shutdown = Shutdown::default();
    let name = WorkerId::checked("worker id", "a").unwrap();
    let (sender, mut started) = tokio::sync::mpsc::unbounded_channel();
    let endless = Worker::new(queue.clone(), "a", None).unwrap();
    let endless = endless
        .handle("endless", move |_, (): ()| {
            sender.send(()).unwrap();
            std::future::pending::<Result<(), leasehold_worker::TaskError>>()
        })
        .unwrap();
    let running = tokio::spawn(endless.options(direct()).run(shutdown.clone()));
    let id = submit(&producer, "endless", json!(null)).await;
    started.recv().await.unwrap();
    let key = leasehold_core::keys::inbox_lease(&name);
    leasehold_queue::break_lease(queue.client(), &key, &serde_json::Map::new()).await.unwrap();
    let error = running.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), Kind::Lost);
    assert!(error.to_string().contains("lease on the inbox of worker `a` was lost"), "{error}");
    let task = queue.get(&id).await.unwrap();
    assert_eq!((task.status(), task.attempt), (Status::Pending, 0), "it was released unused");
    // Other workers with the same shutdown continue.
    assert!(!shutdown.is_requested());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_for_a_live_worker_costs_four_puts_and_a_get() {
    let (producer, queue) = queues(Selection::RoundRobin).await;
    let (stops, running) = started(&queue, "a", direct()).await;
    let id = submit(&producer, "echo", json!(1)).await;
    all_done(&queue, &[id]).await;
    stops.drain();
    running.await.unwrap().unwrap();
    let count = |queue: &ObjectQueue, verb, purpose| {
        queue.client().ledger().snapshot().count(|line| line.verb == verb && line.purpose == purpose)
    };
    assert_eq!(count(&producer, Verb::Put, Purpose::Submit), 3, "entry, task, bell");
    assert_eq!(count(&producer, Verb::List, Purpose::Submit), 1, "live workers");
    assert_eq!(count(&queue, Verb::Get, Purpose::Claim), 1);
    assert_eq!(count(&queue, Verb::Put, Purpose::Claim), 1);
    assert_eq!(count(&queue, Verb::Put, Purpose::Settle), 1);
    assert_eq!(count(&queue, Verb::Delete, Purpose::Settle), 1, "the entry");
}

/// The worker has crashed: its lease expires, and its inbox stays.
#[tokio::test(flavor = "multi_thread")]
async fn the_inbox_of_a_crashed_worker_is_emptied_by_another_worker() {
    let (producer, queue) = queues(Selection::RoundRobin).await;
    let (_, running) = started(&queue, "dead", direct()).await;
    running.abort();
    let mut ids = Vec::new();
    for number in 0..50 {
        ids.push(submit(&producer, "echo", json!(number)).await);
    }
    let overflow_every = Duration::from_secs(1);
    let shared =
        worker(&queue, "shared").options(WorkerOptions { overflow_every, until_empty: true, ..options() });
    let counts = shared.run(Shutdown::default()).await.unwrap();
    all_done(&queue, &ids).await;
    assert!(counts.completed > 0);
    // A drain ends with the last task. Entries that were copied to the overflow and not yet removed from the inbox are
    // left to the next worker.
    let shutdown = Shutdown::default();
    let next = worker(&queue, "next").options(WorkerOptions { overflow_every, ..options() });
    let running = tokio::spawn(next.run(shutdown.clone()));
    while count_entries(&queue, &inbox("dead")).await + count_entries(&queue, &IndexLocation::Overflow).await
        > 0
    {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    shutdown.drain();
    running.await.unwrap().unwrap();
}

/// The poll loop hangs, and the lease on the worker id expires, although the thread that renews it is alive. It
/// continues when it can.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_hangs_does_not_keep_its_inbox() {
    let (producer, queue) = queues(Selection::RoundRobin).await;
    let (sender, hangs) = std::sync::mpsc::channel::<()>();
    let (hangs, own, shutdown) = (std::sync::Mutex::new(hangs), queue.clone(), Shutdown::default());
    let stops = shutdown.clone();
    let hung = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let worker = worker(&own.detached(), "a");
        let worker = worker.handle("hangs", move |_, (): ()| {
            // Nothing else runs on this thread meanwhile.
            let _ = hangs.lock().unwrap().recv();
            async { Ok(()) }
        });
        runtime.block_on(worker.unwrap().options(direct()).run(stops))
    });
    let key = leasehold_core::keys::inbox_lease(&WorkerId::checked("worker id", "a").unwrap());
    let lease = || leasehold_queue::read_lease(queue.client(), &key);
    while lease().await.unwrap().is_none() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let first = submit(&producer, "hangs", json!(null)).await;
    while !lease().await.unwrap().unwrap().is_free(queue.now().unwrap()) {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    sender.send(()).unwrap();
    all_done(&queue, &[first]).await;
    while lease().await.unwrap().unwrap().is_free(queue.now().unwrap()) {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let second = submit(&producer, "echo", json!(1)).await;
    all_done(&queue, &[second]).await;
    shutdown.drain();
    hung.join().unwrap().unwrap();
}

/// An outdated entry led to a task that is scheduled for tomorrow, and the worker waited for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_stops_when_empty_does_not_wait_for_tomorrow() {
    let (_, queue) = queues(Selection::Random).await;
    let id = submit(&queue, "echo", json!(1)).await;
    let outdated = queue.get(&id).await.unwrap().entry().unwrap().at_location(IndexLocation::Overflow);
    queue.client().put_always(Purpose::Admin, &outdated.key(), "".into()).await.unwrap();
    let tomorrow = queue.now().unwrap().earliest.plus(Duration::from_hours(24));
    queue.reschedule(&id, tomorrow).await.unwrap();
    let ended = tokio::time::timeout(Duration::from_mins(2), work(worker(&queue, "w"))).await;
    assert_eq!(ended.expect("it waits").completed, 0);
}
