//! Edge cases: crashes between two writes, two workers that claim one task in the same moment, tasks that cannot be sent,
//! tasks of types that no worker here handles.

use leasehold_core::outpost::Consistency::{Relaxed, Strict};
use leasehold_core::outpost::{ClockMark, Op, OpKind};
use leasehold_core::{Event, HexName, Name, NewTask, State, Status, StoreTime, Task, TaskId};
use leasehold_outpost::{HeldTask, Spool};
use leasehold_queue::UpdateOutcome;
use leasehold_store::store::{Store, When};
use leasehold_store::{Purpose, Verb};
use leasehold_worker::Shutdown;
use serde_json::json;
use std::time::Duration;

use crate::field::{Field, Node, minutes, order};

/// A node with a copy of the only task of the bucket.
pub(crate) async fn one_task(consistency: leasehold_core::outpost::Consistency) -> (Field, Node, TaskId) {
    let field = Field::new(consistency).await;
    let id = field.submit().await;
    let mut node = field.node("pi-1");
    node.sync().await;
    (field, node, id)
}

pub(crate) async fn check_out(field: &Field, node: &mut Node, lasting: Duration) -> u64 {
    let until = field.queue.now().unwrap().earliest.plus(lasting);
    node.supervisor.check_out(10, None, until).await.unwrap()
}

/// Writes a change of another client to the bucket.
pub(crate) async fn write(field: &Field, id: &TaskId, event: Event) -> Task {
    let seen = field.queue.see(Purpose::Admin, id).await.unwrap().unwrap();
    match field.queue.advance(Purpose::Admin, &seen, &event, "others").await.unwrap() {
        UpdateOutcome::Done(seen) => seen.task().clone(),
        other => panic!("{other:?}"),
    }
}

/// A claim of this node that was written to the bucket, and whose answer was lost.
pub(crate) fn note_claim(node: &Node, task: &Task, epoch: u64, lease_id: HexName) {
    let op = Op {
        task: task.id,
        generation: task.generation,
        epoch,
        base_rev: 1,
        at: task.updated_at,
        clock: ClockMark::Bucket,
        deed: OpKind::Claim { lease_id, from: None, is_unused: false },
    };
    node.spool.note(&op).unwrap();
}

pub(crate) fn take(spool: &Spool, id: &TaskId) -> Option<HeldTask> {
    spool.claim(id, &Name::checked("worker id", "w").unwrap(), &HexName::from_random(77)).unwrap()
}

pub(crate) fn claim_of(node: &str, lease_id: HexName, lease: Duration) -> Event {
    Event::Claim { worker: Name::checked("worker id", node).unwrap(), lease_id, lease }
}

pub(crate) fn expiry(task: &Task) -> StoreTime {
    match &task.state {
        State::Running(claim) => claim.expires_at,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn an_expired_claim_is_renewed_before_it_is_confirmed() {
    let (field, mut node, id) = one_task(Strict).await;
    let mut held = node.claim(&id).unwrap();
    // The put has landed, then the machine is suspended.
    write(&field, &id, claim_of("pi-1", held.lease.lease_id.clone(), minutes(10))).await;
    field.pass(minutes(9));
    node.spool.heartbeat(&mut held).unwrap();
    field.pass(minutes(5));
    node.sync().await;
    assert!(node.spool.standing(&held).unwrap().confirmed);
    assert!(field.queue.now().unwrap().is_before(expiry(&field.get(&id).await)));
}

#[tokio::test]
async fn a_cancel_between_a_claim_and_its_end_keeps_its_place() {
    let (field, mut node, id) = one_task(Relaxed).await;
    node.cut();
    let held = node.claim(&id).unwrap();
    node.spool.cancel(&id).unwrap();
    node.complete(&held, 7);
    node.mend();
    node.sync().await;
    assert_eq!(field.get(&id).await.output(), Some(&json!(7)));
}

#[tokio::test]
async fn attempts_of_processes_that_died_without_the_bucket_count() {
    let (field, mut node, id) = one_task(Relaxed).await;
    node.cut();
    for _ in 0..3 {
        node.claim(&id).unwrap();
        field.pass(minutes(11));
    }
    let held = node.claim(&id).unwrap();
    assert_eq!(held.lease.attempt, 4);
    node.mend();
    node.sync().await;
    let task = field.get(&id).await;
    assert_eq!((task.status(), task.attempt, task.epoch), (Status::Running, 4, 4));
}

/// Counts the requests of a supervisor in ten minutes.
async fn requests_of_ten_minutes(field: &Field, node: Node) -> u64 {
    let (client, shutdown) = (node.client.clone(), Shutdown::default());
    let before = client.ledger().snapshot();
    let running = node.supervisor.run(shutdown.clone());
    let ten_minutes = async {
        field.let_pass(minutes(10)).await;
        shutdown.drain();
    };
    let (synced, ()) = futures::join!(running, ten_minutes);
    synced.unwrap();
    client.ledger().snapshot().since(&before).requests()
}

#[tokio::test]
async fn an_undecided_operation_is_retried_once_per_cycle() {
    let (field, node, id) = one_task(Relaxed).await;
    node.cut();
    node.claim(&id).unwrap();
    let at = field.queue.now().unwrap().earliest.plus(minutes(600));
    write(&field, &id, Event::Reschedule { at }).await;
    node.mend();
    let requests = Box::pin(requests_of_ten_minutes(&field, node)).await;
    assert!(requests < 60, "{requests} requests");
    assert_eq!(field.get(&id).await.status(), Status::Pending);
}

#[tokio::test]
async fn a_corrupt_record_does_not_block_other_tasks() {
    let (field, mut node, id) = one_task(Strict).await;
    let held = node.claim(&id).unwrap();
    node.sync().await;
    let key = field.store_key(&id).await;
    field.store.put(&key, bytes::Bytes::from_static(b"{"), &When::Always).await.unwrap();
    let mut fresh = field.node("pi-1");
    let good = field.submit().await;
    fresh.sync().await;
    let other = fresh.claim(&good).unwrap();
    fresh.sync().await;
    assert!(fresh.spool.standing(&other).unwrap().confirmed);
    node.complete(&held, 7);
    fresh.complete(&other, 8);
    fresh.sync().await;
    assert_eq!(field.get(&good).await.output(), Some(&json!(8)));
    // An operation that cannot be sent is kept, and costs at most one get per cycle.
    assert_eq!(fresh.spool.outbox().unwrap().len(), 1);
    let requests = Box::pin(requests_of_ten_minutes(&field, fresh)).await;
    assert!(requests < 60, "{requests} requests");
}

#[tokio::test]
async fn a_supervisor_whose_credentials_are_refused_for_a_while_goes_on_afterwards() {
    let (field, node, id) = one_task(Strict).await;
    let link = node.link.clone();
    let held = node.claim(&id).unwrap();
    let (spool, shutdown) = (node.spool.clone(), Shutdown::default());
    let running = node.supervisor.run(shutdown.clone());
    let story = async {
        field.let_pass(Duration::from_secs(5)).await;
        assert!(spool.standing(&held).unwrap().confirmed);
        link.refuse();
        field.let_pass(minutes(3)).await;
        let output = json!(7);
        spool.complete(&held, output, leasehold_core::Artifacts::new()).unwrap();
        link.allow();
        field.let_pass(minutes(2)).await;
        shutdown.drain();
    };
    let (ran, ()) = futures::join!(running, story);
    ran.unwrap();
    assert_eq!(field.get(&id).await.output(), Some(&json!(7)));
}

#[tokio::test]
async fn tasks_of_unhandled_types_do_not_block_others() {
    let field = Field::new(Strict).await;
    let mut node = field.node("pi-1");
    for _ in 0..40 {
        field.submit().await;
    }
    node.sync().await;
    let other = NewTask::new("other", json!(1)).unwrap();
    let id = field.queue.submit_task(other).await.unwrap().id;
    let types = vec![Name::checked("task type", "other").unwrap()];
    node.spool.want(&HexName::from_random(1), Some(types)).unwrap();
    field.pass(minutes(1));
    node.sync().await;
    assert!(node.spool.get(&id).unwrap().is_some());
    // Tasks of unhandled types are not read again and again.
    field.pass(minutes(1));
    let before = node.client.ledger().snapshot();
    node.sync().await;
    assert!(node.client.ledger().snapshot().since(&before).verb(Verb::Get) <= 2);
    // A worker for the other types starts.
    node.spool.want(&HexName::from_random(2), Some(vec![order().task_type])).unwrap();
    field.pass(minutes(1));
    node.sync().await;
    let free = node.spool.free().unwrap();
    assert_eq!((free.len(), free.get(&order().task_type)), (2, Some(&32)));
}

#[tokio::test]
async fn tasks_of_a_newly_handled_type_are_mirrored_although_they_were_skipped() {
    let field = Field::new(Strict).await;
    let mut node = field.node("pi-1");
    let other = NewTask::new("other", json!(1)).unwrap();
    node.spool.want(&HexName::from_random(1), Some(vec![order().task_type])).unwrap();
    let id = field.queue.submit_task(other.clone()).await.unwrap().id;
    node.sync().await;
    assert!(node.spool.get(&id).unwrap().is_none());
    node.spool.want(&HexName::from_random(2), Some(vec![other.task_type])).unwrap();
    field.pass(minutes(1));
    node.sync().await;
    assert!(node.spool.get(&id).unwrap().is_some());
}

#[tokio::test]
async fn a_task_that_was_looked_for_before_it_was_there_comes_later() {
    let field = Field::new(Strict).await;
    let (mut a, mut b) = (field.node("a"), field.node("b"));
    let id = a.spool.submit(order()).unwrap();
    a.supervisor.now().await.unwrap();
    // The link is cut between the put of the entry and that of the task.
    let (first, second) = (a.link.clone(), a.link.clone());
    a.link.on_put(move || first.on_put(move || second.cut()));
    a.supervisor.sync().await.unwrap_err();
    assert_eq!(field.queue.stats().await.unwrap().due, 1);
    assert_eq!(b.sync().await.mirrored, 0);
    a.mend();
    a.sync().await;
    field.pass(minutes(1));
    b.sync().await;
    assert!(b.spool.get(&id).unwrap().is_some());
}

#[tokio::test]
async fn a_result_does_not_wait_until_its_claim_could_be_made() {
    let (field, mut node, id) = one_task(Relaxed).await;
    node.claim(&id).unwrap();
    node.sync().await;
    node.cut();
    field.pass(minutes(11));
    write(&field, &id, Event::TimeOut).await;
    let at = field.queue.now().unwrap().earliest.plus(Duration::from_hours(48));
    write(&field, &id, Event::Reschedule { at }).await;
    let second = node.claim(&id).unwrap();
    node.complete(&second, 7);
    node.mend();
    node.sync().await;
    assert_eq!(field.get(&id).await.output(), Some(&json!(7)));
}

#[tokio::test]
async fn a_task_that_is_rescheduled_earlier_in_the_bucket_is_due_earlier_here() {
    let (field, mut node, id) = one_task(Strict).await;
    let held = node.claim(&id).unwrap();
    node.sync().await;
    let now = field.queue.now().unwrap().earliest;
    node.spool.release(&held, Some(now.plus(Duration::from_hours(48)))).unwrap();
    node.sync().await;
    assert!(node.claim(&id).is_none());
    field.queue.reschedule(&id, now).await.unwrap();
    field.pass(minutes(1));
    node.sync().await;
    assert!(node.claim(&id).is_some());
}

#[tokio::test]
async fn a_task_that_is_due_soon_does_not_cause_constant_scans() {
    let field = Field::new(Strict).await;
    let now = field.queue.now().unwrap().earliest;
    let minute = leasehold_core::Minute::of(now).start();
    let start = leasehold_core::new_task::Start::At(minute.plus(Duration::from_secs(59)));
    for _ in 0..100 {
        field.queue.submit_task(NewTask { start, ..order() }).await.unwrap();
    }
    let mut node = field.node("pi-1");
    assert_eq!(node.sync().await.mirrored, 32);
    let before = node.client.ledger().snapshot();
    for _ in 0..5 {
        assert_eq!(node.sync().await.mirrored, 0);
    }
    let asked = node.client.ledger().snapshot().since(&before).requests();
    assert!(asked <= 5 * 3, "{asked} requests");
}

#[tokio::test]
async fn a_claim_that_expired_before_its_answer_is_renewed_before_it_is_confirmed() {
    let (field, mut node, id) = one_task(Strict).await;
    let held = node.claim(&id).unwrap();
    let host = field.host.clone();
    node.link.on_put(move || host.advance(minutes(11)));
    node.sync().await;
    node.sync().await;
    let is_confirmed = node.spool.standing(&held).is_ok_and(|beat| beat.confirmed);
    let task = field.get(&id).await;
    let is_live = task.status() == Status::Running && field.queue.now().unwrap().is_before(expiry(&task));
    assert_eq!(is_confirmed, is_live);
}

#[tokio::test]
async fn an_expired_task_ends_in_the_bucket() {
    let field = Field::new(Strict).await;
    let expires_in = Some(minutes(5));
    let id = field.queue.submit_task(NewTask { expires_in, ..order() }).await.unwrap().id;
    field.pass(minutes(6));
    let mut node = field.node("pi-1");
    node.sync().await;
    assert_eq!(field.get(&id).await.status(), Status::Expired);
    assert!(node.spool.get(&id).unwrap().is_none());
}

#[tokio::test]
async fn delayed_tasks_do_not_block_others() {
    let field = Field::new(Strict).await;
    let mut node = field.node("pi-1");
    let mut held = Vec::new();
    for _ in 0..32 {
        field.submit().await;
    }
    node.sync().await;
    for id in node.spool.poll(32, &|_| true).unwrap() {
        held.extend(node.claim(&id));
    }
    assert_eq!(held.len(), 32);
    node.sync().await;
    let until = field.queue.now().unwrap().earliest.plus(Duration::from_hours(48));
    for held in &held {
        node.spool.release(held, Some(until)).unwrap();
    }
    node.sync().await;
    let id = field.submit().await;
    field.pass(minutes(1));
    node.sync().await;
    assert!(node.spool.get(&id).unwrap().is_some());
}

#[tokio::test]
async fn a_copy_whose_submit_was_sent_by_a_dead_supervisor_follows_the_bucket() {
    let field = Field::new(Strict).await;
    let mut node = field.node("pi-1");
    let id = node.spool.submit(order()).unwrap();
    node.sync().await;
    // As if the supervisor had died after it had sent the submit, before it updated the copy.
    let path = node.spool.root().join(format!("pending/{id}/task.json"));
    let mut record: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    record["outpost"]["base_rev"] = json!(0);
    std::fs::write(&path, record.to_string()).unwrap();
    let mut other = field.node("pi-2");
    other.sync().await;
    let held = other.claim(&id).unwrap();
    other.sync().await;
    other.complete(&held, 7);
    other.sync().await;
    field.pass(minutes(61));
    node.sync().await;
    assert!(node.spool.get(&id).unwrap().is_none());
}

#[tokio::test]
async fn a_torn_lease_of_an_unhandled_type_is_removed_too() {
    let (field, mut node, id) = one_task(Strict).await;
    std::fs::write(node.spool.root().join(format!("pending/{id}/lease.json")), b"").unwrap();
    let mut other = field.node("pi-2");
    other.sync().await;
    let held = other.claim(&id).unwrap();
    other.sync().await;
    other.complete(&held, 7);
    other.sync().await;
    for _ in 0..3 {
        field.pass(minutes(61));
        node.sync().await;
    }
    assert!(node.spool.get(&id).unwrap().is_none());
}

#[tokio::test]
async fn a_date_may_be_given_before_the_buckets_time_is_known() {
    let field = Field::new(Strict).await;
    let mut node = field.node("pi-1");
    let date = field.queue.now().unwrap().earliest.plus(Duration::from_hours(24));
    let start = leasehold_core::new_task::Start::At(date);
    let id = node.spool.submit(NewTask { start, ..order() }).unwrap();
    assert!(node.claim(&id).is_none());
    node.sync().await;
    assert_eq!(field.get(&id).await.state, State::Pending { available_at: date });
}
