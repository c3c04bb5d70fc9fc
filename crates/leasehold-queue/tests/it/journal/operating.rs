//! The broker, as people see it: its role, its state, and the workers that it knows.

use futures::TryStreamExt;
use leasehold_core::{Kind, Status};
use leasehold_queue::{
    BrokerRole, FoundBroker, JournalWorkerState, LayoutName, LeaseState, Queue, QueueConfig,
};
use leasehold_store::Client;

use super::{Journal, LEASE, TestWorker, submit};
use crate::support::{mins, secs};

impl Journal {
    async fn process_as(&self, broker_role: BrokerRole) -> Queue {
        let layout = Some(LayoutName::Journal);
        let config = QueueConfig { layout, broker_role, transport: None, ..QueueConfig::default() };
        Queue::with_config(Client::new(self.store.clone(), self.host.clone()), config).await.unwrap()
    }
}

/// Number of requests of a queue.
fn requests(queue: &Queue) -> u64 {
    queue.client().unwrap().ledger().snapshot().requests()
}

#[tokio::test(start_paused = true)]
async fn the_state_of_a_broker_counts_its_commits_and_tasks() {
    let journal = Journal::new();
    let queue = journal.process().await;
    let reader = journal.process().await;
    let before = requests(&reader);
    assert_eq!(reader.journal().unwrap().find_broker().await.unwrap(), FoundBroker::Unreached(None));
    assert_eq!(requests(&reader) - before, 1, "1 get of the lease");
    for _ in 0..3 {
        submit(&queue).await;
    }
    let mut worker = TestWorker::new(&queue, 1, false).await;
    let _held = worker.one().await;
    let before = requests(&queue);
    let found = queue.journal().unwrap().find_broker().await.unwrap();
    assert_eq!(requests(&queue), before, "the broker of this process answers");
    let FoundBroker::Reached(status) = found else { panic!("{found:?}") };
    assert_eq!((status.live_tasks, status.archived_tasks, status.clients, status.holder.epoch), (3, 0, 0, 1));
    assert_eq!((status.commits.commits, status.commits.records), (4, 4), "{status:?}");
    // The fence counts as a commit that the next broker replays.
    assert_eq!(status.snapshot_lag, 5);
    assert!(status.body_bytes > 0 && status.commits.bytes > 0 && status.commits.p99_us.is_some());
    assert!(status.commits.per_second() > 0.0, "{status:?}");
    assert_eq!(status.holder.lease_state(queue.now().unwrap()), LeaseState::Held);
    let FoundBroker::Unreached(Some(seen)) = reader.journal().unwrap().find_broker().await.unwrap() else {
        panic!("without a transport")
    };
    assert_eq!((seen.instance, seen.is_released), (status.holder.instance, false));
    queue.close().await.unwrap();
    let FoundBroker::Unreached(Some(last)) = reader.journal().unwrap().find_broker().await.unwrap() else {
        panic!("it has released the lease")
    };
    assert_eq!(last.lease_state(reader.now().unwrap()), LeaseState::Free);
}

#[tokio::test(start_paused = true)]
async fn a_process_that_never_becomes_the_broker_only_reads() {
    let journal = Journal::new();
    let broker = journal.process().await;
    let id = submit(&broker).await;
    broker.close().await.unwrap();
    let queue = journal.process_as(BrokerRole::Never).await;
    assert_eq!(queue.get(&id).await.unwrap().status(), Status::Pending);
    let refused = queue.cancel(&id).await.unwrap_err();
    assert_eq!(refused.kind(), Kind::Unavailable);
    assert!(refused.to_string().contains("`broker.role` of this process is `never`"), "{refused}");
    let FoundBroker::Unreached(Some(last)) = queue.journal().unwrap().find_broker().await.unwrap() else {
        panic!("it did not become the broker")
    };
    assert_eq!((last.epoch, last.is_released), (1, true));
}

#[tokio::test(start_paused = true)]
async fn a_process_for_the_broker_only_runs_no_handlers() {
    let journal = Journal::new();
    let queue = journal.process_as(BrokerRole::Only).await;
    let term = queue.journal().unwrap().join_broker().await.unwrap();
    assert!(term.is_broker());
    submit(&queue).await;
    let info = TestWorker::info(1, false);
    let Err(refused) = queue.task_source_factory().unwrap().open(info).await else {
        panic!("it runs handlers")
    };
    assert_eq!(refused.kind(), Kind::Invalid);
    queue.close().await.unwrap();
    term.ended().await;
    assert!(!term.is_broker());
}

#[tokio::test(start_paused = true)]
async fn a_process_that_waits_for_the_lease_of_another_one_can_be_closed() {
    let journal = Journal::new();
    let (holder, waiting) = (journal.process().await, journal.process().await);
    submit(&holder).await;
    // It no longer renews its lease, and does not release it.
    drop(holder);
    let began = tokio::time::Instant::now();
    let (joined, ()) = tokio::join!(waiting.journal().unwrap().join_broker(), async {
        tokio::time::sleep(secs(3)).await;
        waiting.close().await.unwrap();
    });
    assert_eq!(joined.unwrap_err().kind(), Kind::Unavailable);
    assert!(began.elapsed() < secs(5), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn workers_are_known_until_they_end_and_dead_when_they_are_silent() {
    let journal = Journal::new();
    let queue = journal.process().await;
    submit(&queue).await;
    let mut working = TestWorker::new(&queue, 2, false).await;
    let held = working.one().await;
    let listed = async || queue.journal().unwrap().workers().await.unwrap().unwrap();
    let workers = listed().await;
    let [worker] = workers.as_slice() else { panic!("{workers:?}") };
    assert_eq!((worker.worker_id.as_str(), worker.slots, worker.running), ("w1", Some(2), 1));
    assert_eq!((worker.state, worker.pid.is_some()), (JournalWorkerState::Alive, true));
    let process = queue.host().process();
    assert_eq!((worker.host.as_ref(), worker.pid), (Some(&process.host), Some(process.pid)));
    // Its claim waits, and it reports itself meanwhile.
    tokio::select! {
        _ = working.source.next() => panic!("there is no other task"),
        () = tokio::time::sleep(LEASE * 3) => {}
    }
    assert_eq!(listed().await[0].state, JournalWorkerState::Alive);
    tokio::time::sleep(LEASE * 2).await;
    assert_eq!(listed().await[0].state, JournalWorkerState::Dead);
    // Renewals count.
    drop(held);
    let TestWorker { source, slots } = working;
    slots.close();
    source.close().await.unwrap();
    assert!(listed().await.iter().all(|worker| worker.state == JournalWorkerState::Unknown));
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_holds_tasks_is_listed_by_a_broker_that_it_has_not_reported_to() {
    let journal = Journal::new();
    let first = journal.process().await;
    submit(&first).await;
    let mut worker = TestWorker::new(&first, 1, false).await;
    let _held = worker.one().await;
    first.close().await.unwrap();
    let second = journal.process().await;
    submit(&second).await;
    let workers = second.journal().unwrap().workers().await.unwrap().unwrap();
    let [worker] = workers.as_slice() else { panic!("{workers:?}") };
    assert_eq!((worker.state, worker.running, worker.slots), (JournalWorkerState::Unknown, 1, None));
}

#[tokio::test(start_paused = true)]
async fn changes_are_read_after_a_position_without_a_request_to_the_store() {
    let journal = Journal::new();
    let queue = journal.process().await;
    let before = submit(&queue).await;
    let broker = queue.journal().unwrap();
    let start = broker.changes(None).await.unwrap();
    assert!(start.is_gap && start.tasks.is_empty() && !start.has_more);
    let id = submit(&queue).await;
    queue.cancel(&id).await.unwrap();
    queue.cancel(&before).await.unwrap();
    let sent = requests(&queue);
    let page = broker.changes(Some(&start.position)).await.unwrap();
    assert_eq!(requests(&queue), sent);
    let seen: Vec<_> = page.tasks.iter().map(|task| (task.id, task.status())).collect();
    assert_eq!(seen, [(id, Status::Cancelled), (before, Status::Cancelled)]);
    assert!(!page.is_gap && !page.has_more);
    let page = broker.changes(Some(&page.position)).await.unwrap();
    assert!(!page.is_gap && page.tasks.is_empty());
    let live: Vec<_> = broker.live_tasks().try_collect().await.unwrap();
    assert_eq!(live.len(), 2);
    // A page has a thousand changes.
    let submits = (0..1_500).map(|number| queue.submit("count", number));
    let submitted: Vec<_> = queue.submit_many(submits).try_collect().await.unwrap();
    let first = broker.changes(Some(&page.position)).await.unwrap();
    let second = broker.changes(Some(&first.position)).await.unwrap();
    assert!(first.has_more && !second.has_more);
    assert_eq!(first.tasks.len() + second.tasks.len(), submitted.len());
    // The next broker knows nothing of the place.
    queue.close().await.unwrap();
    submit(&queue).await;
    assert!(broker.changes(Some(&second.position)).await.unwrap().is_gap);
}

#[tokio::test(start_paused = true)]
async fn changes_are_read_from_the_log_without_a_broker() {
    let journal = Journal::new();
    let (writer, reader) = (journal.process().await, journal.process().await);
    submit(&writer).await;
    let reading = reader.journal().unwrap();
    let start = reading.changes(None).await.unwrap();
    let id = submit(&writer).await;
    let sent = requests(&reader);
    let page = reading.changes(Some(&start.position)).await.unwrap();
    assert_eq!(page.tasks.iter().map(|task| task.id).collect::<Vec<_>>(), [id]);
    assert!(requests(&reader) - sent <= 4, "{} requests", requests(&reader) - sent);
}

#[tokio::test(start_paused = true)]
async fn a_changed_task_that_was_archived_since_is_gone() {
    let journal = Journal::new();
    let queue = journal.process().await;
    let id = submit(&queue).await;
    let broker = queue.journal().unwrap();
    let start = broker.changes(None).await.unwrap();
    queue.cancel(&id).await.unwrap();
    tokio::time::sleep(mins(6)).await;
    // A snapshot is due only after a change, and before it tasks are archived.
    let later = submit(&queue).await;
    tokio::time::sleep(mins(10)).await;
    let page = broker.changes(Some(&start.position)).await.unwrap();
    assert_eq!((page.is_gap, page.gone), (false, vec![id]));
    assert_eq!(page.tasks.iter().map(|task| task.id).collect::<Vec<_>>(), [later]);
    let FoundBroker::Reached(status) = broker.find_broker().await.unwrap() else { panic!("it serves") };
    assert_eq!((status.live_tasks, status.archived_tasks), (1, 1));
}
