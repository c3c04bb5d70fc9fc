//! The journal layout over a store in memory, in tokio's paused time.

#![expect(clippy::disallowed_methods, reason = "the time of these tests is tokio's, which is paused")]
mod archive;
mod damage;
mod memory;
mod operating;
mod pacing;
mod snapshots;
mod transfers;

use futures::TryStreamExt;
use futures::future::BoxFuture;
use leasehold_core::ids::TaskTypes;
use leasehold_core::new_task::Start;
use leasehold_core::{Kind, NewTask, Reason, Status, Task, TaskId};
use leasehold_queue::inspect::Filter;
use leasehold_queue::source::{ClaimStatus, DrainWait, Slots, TaskInSlot, TaskSource, WorkerInfo};
use leasehold_queue::{LayoutName, Queue, QueueConfig, Settlement, Transition, UniqueKey, break_lease};
use leasehold_store::host::{Instant, Running, TokioTimeHost};
use leasehold_store::{Client, Host, MemoryStore, Store, When};
use serde_json::json;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use crate::support::{audit, mins, order, secs, worker};

const LEASE: Duration = Duration::from_secs(30);

/// A store in memory, and the processes that use it.
struct Journal {
    host: Arc<dyn Host>,
    store: Arc<MemoryStore>,
}

impl Journal {
    fn new() -> Self {
        let host: Arc<dyn Host> = Arc::new(TokioTimeHost::new());
        Self { store: Arc::new(MemoryStore::new(&host)), host }
    }

    fn client(&self) -> Client {
        Client::new(self.store.clone(), self.host.clone())
    }

    /// A process with a broker of its own.
    async fn process(&self) -> Queue {
        self.process_over(self.store.clone()).await
    }

    async fn process_over(&self, store: Arc<dyn Store>) -> Queue {
        let config =
            QueueConfig { layout: Some(LayoutName::Journal), transport: None, ..QueueConfig::default() };
        Queue::with_config(Client::new(store, self.host.clone()), config).await.unwrap()
    }

    /// Puts an object, whatever is there.
    async fn overwrite(&self, key: &str, body: Vec<u8>) {
        self.store.put(key, body.into(), &When::Always).await.unwrap();
    }

    async fn commits(&self) -> usize {
        audit::keys(&self.store, "journal/0/log/").await.len()
    }
}

/// A worker that takes tasks as they come.
struct TestWorker {
    source: Box<dyn TaskSource>,
    slots: Slots,
}

impl TestWorker {
    fn info(slots: usize, until_empty: bool) -> WorkerInfo {
        WorkerInfo {
            id: worker("w1"),
            types: TaskTypes::all(),
            slots: Slots::new(slots),
            lease: LEASE,
            polling: leasehold_core::scan::Polling::default(),
            until_empty,
        }
    }

    async fn new(queue: &Queue, slots: usize, until_empty: bool) -> Self {
        let info = Self::info(slots, until_empty);
        let slots = info.slots.clone();
        Self { source: queue.task_source_factory().unwrap().open(info).await.unwrap(), slots }
    }

    async fn next(&mut self) -> Option<TaskInSlot> {
        self.source.next().await.unwrap()
    }

    async fn one(&mut self) -> TaskInSlot {
        self.next().await.unwrap()
    }
}

async fn submit(queue: &Queue) -> TaskId {
    queue.submit_task(order()).await.unwrap().id
}

async fn listed(queue: &Queue, filter: Filter) -> Vec<Task> {
    queue.list(filter).try_collect().await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn tasks_are_submitted_read_and_changed() {
    let journal = Journal::new();
    let queue = journal.process().await;
    let id = submit(&queue).await;
    let task = queue.get(&id).await.unwrap();
    assert_eq!((task.status(), task.input), (Status::Pending, json!({"url": "x"})));
    assert_eq!(queue.get_history(&id).await.unwrap().len(), 1);
    let at = queue.now().unwrap().earliest.plus(mins(10));
    assert!(queue.reschedule(&id, at).await.unwrap().is_done());
    let stats = queue.stats().await.unwrap();
    assert_eq!((stats.due, stats.scheduled, stats.running), (0, 1, 0));
    assert!(queue.cancel(&id).await.unwrap().is_done());
    assert!(matches!(queue.cancel(&id).await.unwrap(), Transition::Rejected(..)));
    assert!(queue.retry(&id).await.unwrap().is_done());
    let unknown = TaskId::from_random(7);
    assert_eq!(queue.get(&unknown).await.unwrap_err().reason(), Some(Reason::Missing));
    assert_eq!(queue.cancel(&unknown).await.unwrap_err().reason(), Some(Reason::Missing));
    let invalid = NewTask { start: Start::After(Duration::from_hours(1_000_000)), ..order() };
    assert_eq!(queue.submit_task(invalid).await.unwrap_err().kind(), Kind::Invalid);
    let prefix = id.to_string()[..30].parse().unwrap();
    assert_eq!(queue.find(&prefix).await.unwrap(), id);
    assert_eq!(listed(&queue, Filter::default()).await.len(), 1);
    assert_eq!(listed(&queue, Filter { status: Some(Status::Failed), ..Filter::default() }).await, []);
    let by_timestamp = queue.list_timestamps().try_collect::<Vec<_>>().await.unwrap_err();
    assert!(
        by_timestamp.to_string().ends_with("cannot list tasks by timestamp; use `list`"),
        "{by_timestamp}"
    );
}

#[tokio::test(start_paused = true)]
async fn submits_at_once_share_a_commit() {
    let journal = Journal::new();
    let queue = journal.process().await;
    submit(&queue).await;
    let before = journal.commits().await;
    let submits = (0..500).map(|number| queue.submit("count", number));
    let submitted: Vec<_> = queue.submit_many(submits).try_collect().await.unwrap();
    assert_eq!(journal.commits().await, before + 1);
    let listed = listed(&queue, Filter::default()).await;
    assert_eq!(listed.len(), 501);
    assert!(submitted.iter().all(|submitted| listed.iter().any(|task| task.id == submitted.id)));
}

#[tokio::test(start_paused = true)]
async fn a_key_is_submitted_once() {
    let journal = Journal::new();
    let queue = journal.process().await;
    let first = queue.submit("work", 1).key("k").await.unwrap();
    let again = queue.submit("work", 1).key("k").await.unwrap();
    assert_eq!((again.id, again.is_new, again.existing), (first.id, false, Some(Status::Pending)));
    let other = queue.submit("work", 2).key("k").await.unwrap_err();
    assert_eq!(other.reason(), Some(Reason::Conflict));
    queue.close().await.unwrap();
    // The next broker knows the key, too.
    let next = journal.process().await;
    assert_eq!(next.submit("work", 1).key(UniqueKey::new("k")).await.unwrap().id, first.id);
}

#[tokio::test(start_paused = true)]
async fn a_submit_that_finds_a_waiting_worker_is_claimed_in_its_commit() {
    let journal = Journal::new();
    let queue = journal.process().await;
    let mut worker = TestWorker::new(&queue, 2, false).await;
    let before = journal.commits().await;
    let (id, claimed) = futures::join!(submit(&queue), worker.one());
    assert_eq!(claimed.task.task().id, id);
    assert_eq!(journal.commits().await, before + 1);
    let mut claim = claimed.task;
    let settled = claim.finish(Settlement::complete(json!(3))).await.unwrap().unwrap();
    assert_eq!(settled.output(), Some(&json!(3)));
    assert_eq!(queue.get(&id).await.unwrap().status(), Status::Completed);
    assert_eq!(
        claim.finish(Settlement::complete(json!(3))).await.unwrap().unwrap().rev,
        settled.rev,
        "repeated"
    );
    assert_eq!(journal.commits().await, before + 2);
}

#[tokio::test(start_paused = true)]
async fn results_that_nothing_waits_for_share_a_commit_and_a_waiting_reader_hurries_it() {
    let journal = Journal::new();
    let queue = journal.process().await;
    for _ in 0..3 {
        submit(&queue).await;
    }
    let mut worker = TestWorker::new(&queue, 3, false).await;
    let (one, two, last) = (worker.one().await, worker.one().await, worker.one().await);
    let (before, started) = (journal.commits().await, journal.host.instant());
    let (mut one, mut two, mut last) = (one.task, two.task, last.task);
    let (first, second) = futures::join!(
        one.finish(Settlement::complete(json!(1))),
        two.finish(Settlement::complete(json!(2)))
    );
    assert!(first.unwrap().is_some() && second.unwrap().is_some());
    assert_eq!(journal.commits().await, before + 1);
    assert_eq!(journal.host.instant().since(started), secs(1));
    let (started, id) = (journal.host.instant(), last.task().id);
    let finishing = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        last.finish(Settlement::complete(json!(3))).await
    };
    let (waited, finished) = futures::join!(queue.wait(&id, None), finishing);
    assert_eq!((waited.unwrap().status(), finished.unwrap().is_some()), (Status::Completed, true));
    assert_eq!(journal.host.instant().since(started), Duration::from_millis(550), "no poll, no lazy second");
}

#[tokio::test(start_paused = true)]
async fn a_claim_is_renewed_in_memory_and_times_out_without_renewal() {
    let journal = Journal::new();
    let queue = journal.process().await;
    let id = submit(&queue).await;
    let mut worker = TestWorker::new(&queue, 1, false).await;
    let mut claim = worker.one().await.task;
    let before = journal.commits().await;
    for _ in 0..10 {
        tokio::time::sleep(LEASE / 2).await;
        assert_eq!(claim.renew(Some(json!("half")), false).await.unwrap(), ClaimStatus::Held);
    }
    assert_eq!(journal.commits().await, before, "renewals are not logged");
    assert_eq!(queue.get(&id).await.unwrap().progress, Some(json!("half")));
    assert!(queue.cancel(&id).await.unwrap().is_done());
    assert_eq!(claim.renew(None, false).await.unwrap(), ClaimStatus::Cancelled);
    tokio::time::sleep(LEASE + secs(1)).await;
    assert_eq!(queue.get(&id).await.unwrap().status(), Status::Cancelled);
    assert_eq!(claim.renew(None, false).await.unwrap(), ClaimStatus::Lost);
    assert_eq!(claim.finish(Settlement::complete(json!(null))).await.unwrap(), None);
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_stops_while_its_broker_is_opening_ends() {
    let journal = Journal::new();
    let queue = journal.process().await;
    let mut worker = TestWorker::new(&queue, 1, false).await;
    // Its broker ends, and the next one waits for the lease of another process.
    break_lease(&journal.client(), "journal/0/lease.json", &serde_json::Map::new()).await.unwrap();
    let other = journal.process().await;
    tokio::time::sleep(mins(1)).await;
    let id = submit(&other).await;
    assert!(other.cancel(&id).await.unwrap().is_done());
    let slots = worker.slots.clone();
    let stopped = async {
        tokio::time::sleep(secs(3)).await;
        slots.close();
        other.close().await.unwrap();
    };
    let ended = async { while worker.next().await.is_some() {} };
    let ended = tokio::time::timeout(mins(10), futures::future::join(ended, stopped)).await;
    assert!(ended.is_ok(), "the worker waits for claims that nobody stops");
}

/// A host on which every timer fires late, so that requests arrive between a deadline and its timer.
#[derive(Debug)]
struct LateTimers(TokioTimeHost);

impl Host for LateTimers {
    fn instant(&self) -> Instant {
        self.0.instant()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.0.sleep(duration + secs(2))
    }

    fn random(&self) -> u64 {
        self.0.random()
    }

    fn spawn(&self, work: BoxFuture<'static, ()>) -> Running {
        self.0.spawn(work)
    }

    fn spawn_thread(&self, name: &str, work: BoxFuture<'static, ()>) -> Running {
        self.0.spawn_thread(name, work)
    }
}

#[tokio::test(start_paused = true)]
async fn a_task_that_becomes_due_by_the_time_of_a_read_is_claimed_by_a_worker_that_waits() {
    let host: Arc<dyn Host> = Arc::new(LateTimers(TokioTimeHost::new()));
    let journal = Journal { store: Arc::new(MemoryStore::new(&host)), host };
    let queue = journal.process().await;
    let mut worker = TestWorker::new(&queue, 1, false).await;
    let id = queue.submit("later", 1).delay(secs(60)).await.unwrap().id;
    let reads = async {
        loop {
            tokio::time::sleep(secs(1)).await;
            queue.get(&id).await.unwrap();
        }
    };
    let (claimed, reads) = (pin!(worker.one()), pin!(reads));
    let claimed = tokio::time::timeout(mins(2), futures::future::select(claimed, reads)).await;
    assert!(claimed.is_ok(), "the worker waits although a task is due");
}

#[tokio::test(start_paused = true)]
async fn scheduled_and_expiring_tasks_need_no_request() {
    let journal = Journal::new();
    let queue = journal.process().await;
    let mut worker = TestWorker::new(&queue, 1, false).await;
    let id = queue.submit("later", 1).delay(mins(5)).await.unwrap().id;
    let started = journal.host.instant();
    assert_eq!(worker.one().await.task.task().id, id);
    let waited = journal.host.instant().since(started);
    assert!(waited + secs(1) >= mins(5) && waited < mins(5) + secs(1), "{waited:?}");
    let expiring = queue.submit("short", 1).expires_in(mins(1)).await.unwrap().id;
    tokio::time::sleep(mins(2)).await;
    assert_eq!(queue.get(&expiring).await.unwrap().status(), Status::Expired);
}

#[tokio::test(start_paused = true)]
async fn a_second_process_reads_and_is_told_who_the_broker_is() {
    let journal = Journal::new();
    let (one, two) = (journal.process().await, journal.process().await);
    let id = submit(&one).await;
    assert_eq!(two.get(&id).await.unwrap(), one.get(&id).await.unwrap());
    assert_eq!(two.stats().await.unwrap().due, 1);
    assert_eq!(listed(&two, Filter::default()).await.len(), 1);
    let error = two.submit_task(order()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    let message = error.to_string();
    assert!(message.starts_with("the broker of this queue is process 0 on host localhost, "), "{message}");
    let later = submit(&one).await;
    assert_eq!(two.get(&later).await.unwrap().id, later, "it follows the log");
    one.close().await.unwrap();
    let started = journal.host.instant();
    let third = submit(&two).await;
    assert!(journal.host.instant().since(started) < secs(1), "a released lease is taken at once");
    assert_eq!(one.get(&third).await.unwrap().id, third);
    assert_eq!(listed(&two, Filter::default()).await.len(), 3);
}

#[tokio::test(start_paused = true)]
async fn the_lease_of_a_crashed_broker_is_waited_for() {
    let journal = Journal::new();
    let one = journal.process().await;
    let id = submit(&one).await;
    let mut worker = TestWorker::new(&one, 1, false).await;
    let claim = worker.one().await;
    drop((one, worker, claim));
    let (two, started) = (journal.process().await, journal.host.instant());
    submit(&two).await;
    let waited = journal.host.instant().since(started);
    assert!(waited > secs(25) && waited < secs(35), "{waited:?}");
    // The claim is extended from the latest time at which the first broker may have trusted its lease.
    let task = two.get(&id).await.unwrap();
    assert_eq!(task.status(), Status::Running);
    tokio::time::sleep(LEASE + secs(1)).await;
    assert_eq!(two.get(&id).await.unwrap().status(), Status::Pending);
}

#[tokio::test(start_paused = true)]
async fn a_broker_that_lost_its_lease_acknowledges_nothing() {
    let journal = Journal::new();
    let (one, two) = (journal.process().await, journal.process().await);
    let id = submit(&one).await;
    break_lease(&journal.client(), leasehold_core::keys::JOURNAL_LEASE, &serde_json::Map::new())
        .await
        .unwrap();
    let other = submit(&two).await;
    let error = one.submit_task(order()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable, "{error}");
    assert!(error.outcome_is_unknown(), "{error}");
    // The caller learns the id to ask for, and the reason.
    let message = error.to_string();
    let (unknown, why) = message
        .strip_prefix("outcome unknown: task ")
        .and_then(|rest| rest.split_once(" may or may not run: "))
        .unwrap_or_else(|| panic!("{message}"));
    assert!(!why.is_empty() && !why.contains("outcome unknown"), "{message}");
    let read = two.get(&unknown.parse().unwrap()).await.unwrap_err();
    assert_eq!(read.reason(), Some(Reason::Missing));
    assert_eq!(listed(&two, Filter::default()).await.len(), 2);
    // Reads follow the other broker from then on.
    assert_eq!(one.get(&other).await.unwrap().id, other);
    assert_eq!(one.get(&id).await.unwrap().id, id);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_by_a_broker_that_lost_its_lease_is_not_answered() {
    let journal = Journal::new();
    let (one, two) = (journal.process().await, journal.process().await);
    submit(&one).await;
    break_lease(&journal.client(), leasehold_core::keys::JOURNAL_LEASE, &serde_json::Map::new())
        .await
        .unwrap();
    let id = submit(&two).await;
    // The state of the first broker does not have the task.
    let cancelled = one.cancel(&id).await.unwrap_err();
    assert_eq!((cancelled.kind(), cancelled.reason()), (Kind::Unavailable, None), "{cancelled}");
    assert_eq!(one.get(&id).await.unwrap().id, id);
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_drains_the_queue_ends_when_nothing_is_left() {
    let journal = Journal::new();
    let queue = journal.process().await;
    let soon = queue.submit("later", 1).delay(secs(20)).await.unwrap().id;
    queue.submit("later", 1).delay(mins(20)).await.unwrap();
    let mut worker = TestWorker::new(&queue, 2, true).await;
    let mut claimed = worker.one().await;
    assert_eq!(claimed.task.task().id, soon);
    claimed.task.finish(Settlement::complete(json!(null))).await.unwrap();
    drop(claimed);
    assert!(worker.next().await.is_none());
    assert_eq!(worker.source.status().drain_wait(), None);
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_drains_waits_for_tasks_that_others_hold() {
    let journal = Journal::new();
    let queue = journal.process().await;
    let id = submit(&queue).await;
    let mut holder = TestWorker::new(&queue, 1, false).await;
    let held = holder.one().await;
    let mut worker = TestWorker::new(&queue, 1, true).await;
    let (status, started) = (worker.source.status(), journal.host.instant());
    let next = tokio::time::timeout(secs(10), worker.next()).await;
    assert!(next.is_err(), "it waits");
    assert_eq!(status.drain_wait(), Some(DrainWait::Held(id)));
    let taken = worker.one().await;
    assert_eq!((taken.task.task().id, taken.task.task().attempt), (id, 2));
    assert!(journal.host.instant().since(started) >= LEASE, "when its claim has timed out");
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn a_stopped_worker_leaves_no_claims() {
    let journal = Journal::new();
    let queue = journal.process().await;
    let mut worker = TestWorker::new(&queue, 4, false).await;
    assert!(tokio::time::timeout(secs(1), worker.next()).await.is_err(), "it waits for tasks");
    let id = submit(&queue).await;
    worker.slots.close();
    assert!(worker.next().await.is_none());
    let task = queue.get(&id).await.unwrap();
    assert_eq!((task.status(), task.attempt), (Status::Pending, 0), "a claim that came too late is released");
    worker.source.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn finished_tasks_are_purged() {
    let journal = Journal::new();
    let queue = journal.process().await;
    let ids = [submit(&queue).await, submit(&queue).await];
    queue.cancel(&ids[0]).await.unwrap();
    tokio::time::sleep(Duration::from_hours(48)).await;
    let retention =
        leasehold_queue::purge::Retention { statuses: vec![], older_than: Duration::from_hours(1) };
    assert_eq!(queue.purge_all(&retention).await.unwrap().deleted, 1);
    assert_eq!(queue.get(&ids[0]).await.unwrap_err().reason(), Some(Reason::Missing));
    assert_eq!(queue.get(&ids[1]).await.unwrap().id, ids[1]);
}
