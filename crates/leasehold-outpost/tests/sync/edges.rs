//! Edge cases: crashes between two writes, two workers that claim one task in the same moment, tasks that cannot be sent,
//! tasks of types that no worker here handles.

use leasehold_core::ids::TaskTypes;
use leasehold_core::outpost::Consistency::{Relaxed, Strict};
use leasehold_core::outpost::{ClockSource, Op, OpKind};
use leasehold_core::settlement::Settlement;
use leasehold_core::{Event, HexName, Name, NewTask, State, Status, StoreTime, Task, TaskId};
use leasehold_outpost::{HeldTask, Spool};
use leasehold_queue::{QueueLayout, Transition};
use leasehold_store::store::{Store, When};
use leasehold_store::{Purpose, Verb};
use leasehold_worker::Shutdown;
use serde_json::json;
use std::time::Duration;

use crate::cluster::{Node, TestCluster, minutes, order};

/// A node with a copy of the only task of the bucket.
pub(crate) async fn one_task(
    consistency: leasehold_core::outpost::Consistency,
) -> (TestCluster, Node, TaskId) {
    let cluster = TestCluster::new(consistency).await;
    let id = cluster.submit().await;
    let mut node = cluster.node("pi-1");
    node.sync().await;
    (cluster, node, id)
}

pub(crate) async fn check_out(cluster: &TestCluster, node: &mut Node, duration: Duration) -> u64 {
    let until = cluster.queue.now().unwrap().earliest.plus(duration);
    node.supervisor.check_out(10, &[], until).await.unwrap()
}

/// Writes a change of another client to the bucket.
pub(crate) async fn write(cluster: &TestCluster, id: &TaskId, event: Event) -> Task {
    let snapshot = cluster.queue.load(Purpose::Admin, id).await.unwrap().unwrap();
    match cluster.queue.update_if(&snapshot, &event).await.unwrap() {
        Transition::Done(snapshot) | Transition::Superseded(snapshot) => snapshot.task.clone(),
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
        clock: ClockSource::Bucket,
        kind: OpKind::Claim { lease_id, from: None, is_unused: false },
    };
    node.spool.append(&op).unwrap();
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
    let (cluster, mut node, id) = one_task(Strict).await;
    let mut held = node.claim(&id).unwrap();
    // The put has landed, then the machine is suspended.
    write(&cluster, &id, claim_of("pi-1", held.lease.lease_id.clone(), minutes(10))).await;
    cluster.advance(minutes(9));
    node.spool.heartbeat(&mut held).unwrap();
    cluster.advance(minutes(5));
    node.sync().await;
    assert!(node.spool.lease_status(&held).unwrap().confirmed);
    assert!(cluster.queue.now().unwrap().is_before(expiry(&cluster.get(&id).await)));
}

#[tokio::test]
async fn a_cancel_between_a_claim_and_its_end_keeps_its_place() {
    let (cluster, mut node, id) = one_task(Relaxed).await;
    node.cut();
    let held = node.claim(&id).unwrap();
    node.spool.cancel(&id).unwrap();
    node.complete(&held, 7);
    node.reconnect();
    node.sync().await;
    assert_eq!(cluster.get(&id).await.output(), Some(&json!(7)));
}

#[tokio::test]
async fn attempts_of_processes_that_crashed_without_the_bucket_count() {
    let (cluster, mut node, id) = one_task(Relaxed).await;
    node.cut();
    for _ in 0..3 {
        node.claim(&id).unwrap();
        cluster.advance(minutes(11));
    }
    let held = node.claim(&id).unwrap();
    assert_eq!(held.lease.attempt, 4);
    node.reconnect();
    node.sync().await;
    let task = cluster.get(&id).await;
    assert_eq!((task.status(), task.attempt, task.epoch), (Status::Running, 4, 4));
}

/// Counts the requests of a supervisor in ten minutes.
async fn requests_of_ten_minutes(cluster: &TestCluster, node: Node) -> u64 {
    let (client, shutdown) = (node.client.clone(), Shutdown::default());
    let before = client.ledger().snapshot();
    let running = node.supervisor.run(shutdown.clone());
    let ten_minutes = async {
        cluster.run_for(minutes(10)).await;
        shutdown.drain();
    };
    let (synced, ()) = futures::join!(running, ten_minutes);
    synced.unwrap();
    client.ledger().snapshot().since(&before).requests()
}

#[tokio::test]
async fn an_undecided_operation_is_retried_once_per_cycle() {
    let (cluster, node, id) = one_task(Relaxed).await;
    node.cut();
    node.claim(&id).unwrap();
    let at = cluster.queue.now().unwrap().earliest.plus(minutes(600));
    write(&cluster, &id, Event::Reschedule { at }).await;
    node.reconnect();
    let requests = Box::pin(requests_of_ten_minutes(&cluster, node)).await;
    assert!(requests < 60, "{requests} requests");
    assert_eq!(cluster.get(&id).await.status(), Status::Pending);
}

#[tokio::test]
async fn a_corrupt_record_does_not_block_other_tasks() {
    let (cluster, mut node, id) = one_task(Strict).await;
    let held = node.claim(&id).unwrap();
    node.sync().await;
    let key = cluster.store_key(&id).await;
    cluster.store.put(&key, bytes::Bytes::from_static(b"{"), &When::Always).await.unwrap();
    let mut fresh = cluster.node("pi-1");
    let good = cluster.submit().await;
    fresh.sync().await;
    let other = fresh.claim(&good).unwrap();
    fresh.sync().await;
    assert!(fresh.spool.lease_status(&other).unwrap().confirmed);
    node.complete(&held, 7);
    fresh.complete(&other, 8);
    fresh.sync().await;
    assert_eq!(cluster.get(&good).await.output(), Some(&json!(8)));
    // An operation that cannot be sent is kept, and costs at most one get per cycle.
    assert_eq!(fresh.spool.outbox().unwrap().len(), 1);
    let requests = Box::pin(requests_of_ten_minutes(&cluster, fresh)).await;
    assert!(requests < 60, "{requests} requests");
}

#[tokio::test]
async fn a_supervisor_recovers_after_its_credentials_were_refused() {
    let (cluster, node, id) = one_task(Strict).await;
    let link = node.link.clone();
    let held = node.claim(&id).unwrap();
    let (spool, shutdown) = (node.spool.clone(), Shutdown::default());
    let running = node.supervisor.run(shutdown.clone());
    let story = async {
        cluster.run_for(Duration::from_secs(5)).await;
        assert!(spool.lease_status(&held).unwrap().confirmed);
        link.refuse();
        cluster.run_for(minutes(3)).await;
        let output = json!(7);
        spool.settle(&held, Settlement::complete(output)).unwrap();
        link.allow();
        cluster.run_for(minutes(2)).await;
        shutdown.drain();
    };
    let (ran, ()) = futures::join!(running, story);
    ran.unwrap();
    assert_eq!(cluster.get(&id).await.output(), Some(&json!(7)));
}

#[tokio::test]
async fn tasks_of_unhandled_types_do_not_block_others() {
    let cluster = TestCluster::new(Strict).await;
    let mut node = cluster.node("pi-1");
    for _ in 0..40 {
        cluster.submit().await;
    }
    node.sync().await;
    let other = NewTask::new("other", json!(1)).unwrap();
    let id = cluster.queue.submit_task(other).await.unwrap().id;
    let types = vec![Name::checked("task type", "other").unwrap()];
    node.spool.subscribe(&HexName::from_random(1), Some(types)).unwrap();
    cluster.advance(minutes(1));
    node.sync().await;
    assert!(node.spool.get(&id).unwrap().is_some());
    // Tasks of unhandled types are not read again and again.
    cluster.advance(minutes(1));
    let before = node.client.ledger().snapshot();
    node.sync().await;
    assert!(node.client.ledger().snapshot().since(&before).verb(Verb::Get) <= 2);
    // A worker for the other types starts.
    node.spool.subscribe(&HexName::from_random(2), Some(vec![order().task_type])).unwrap();
    cluster.advance(minutes(1));
    node.sync().await;
    let free = node.spool.free().unwrap();
    assert_eq!((free.len(), free.get(&order().task_type)), (2, Some(&32)));
}

#[tokio::test]
async fn tasks_of_a_newly_handled_type_are_mirrored_although_they_were_skipped() {
    let cluster = TestCluster::new(Strict).await;
    let mut node = cluster.node("pi-1");
    let other = NewTask::new("other", json!(1)).unwrap();
    node.spool.subscribe(&HexName::from_random(1), Some(vec![order().task_type])).unwrap();
    let id = cluster.queue.submit_task(other.clone()).await.unwrap().id;
    node.sync().await;
    assert!(node.spool.get(&id).unwrap().is_none());
    node.spool.subscribe(&HexName::from_random(2), Some(vec![other.task_type])).unwrap();
    cluster.advance(minutes(1));
    node.sync().await;
    assert!(node.spool.get(&id).unwrap().is_some());
}

#[tokio::test]
async fn a_task_whose_entry_was_read_before_the_task_existed_is_copied_later() {
    let cluster = TestCluster::new(Strict).await;
    let (mut a, mut b) = (cluster.node("a"), cluster.node("b"));
    let id = a.spool.submit(order()).unwrap();
    a.supervisor.now().await.unwrap();
    // The link is cut between the put of the entry and that of the task.
    let (first, second) = (a.link.clone(), a.link.clone());
    a.link.on_put(move || first.on_put(move || second.cut()));
    a.supervisor.sync().await.unwrap_err();
    assert_eq!(cluster.queue.stats().await.unwrap().due, 1);
    assert_eq!(b.sync().await.mirrored, 0);
    a.reconnect();
    a.sync().await;
    cluster.advance(minutes(1));
    b.sync().await;
    assert!(b.spool.get(&id).unwrap().is_some());
}

#[tokio::test]
async fn a_result_does_not_wait_until_its_claim_could_be_made() {
    let (cluster, mut node, id) = one_task(Relaxed).await;
    node.claim(&id).unwrap();
    node.sync().await;
    node.cut();
    cluster.advance(minutes(11));
    write(&cluster, &id, Event::TimeOut).await;
    let at = cluster.queue.now().unwrap().earliest.plus(Duration::from_hours(48));
    write(&cluster, &id, Event::Reschedule { at }).await;
    let second = node.claim(&id).unwrap();
    node.complete(&second, 7);
    node.reconnect();
    node.sync().await;
    assert_eq!(cluster.get(&id).await.output(), Some(&json!(7)));
}

#[tokio::test]
async fn a_task_that_is_rescheduled_earlier_in_the_bucket_is_due_earlier_here() {
    let (cluster, mut node, id) = one_task(Strict).await;
    let held = node.claim(&id).unwrap();
    node.sync().await;
    let now = cluster.queue.now().unwrap().earliest;
    node.spool.settle(&held, Settlement::Snooze(Duration::from_hours(48))).unwrap();
    node.sync().await;
    assert!(node.claim(&id).is_none());
    cluster.queue.reschedule(&id, now).await.unwrap();
    cluster.advance(minutes(1));
    node.sync().await;
    assert!(node.claim(&id).is_some());
}

#[tokio::test]
async fn a_task_that_is_due_soon_does_not_cause_constant_scans() {
    let cluster = TestCluster::new(Strict).await;
    let now = cluster.queue.now().unwrap().earliest;
    let minute = leasehold_core::Minute::of(now).start();
    let start = leasehold_core::new_task::Start::At(minute.plus(Duration::from_secs(59)));
    for _ in 0..100 {
        cluster.queue.submit_task(NewTask { start, ..order() }).await.unwrap();
    }
    let mut node = cluster.node("pi-1");
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
    let (cluster, mut node, id) = one_task(Strict).await;
    let held = node.claim(&id).unwrap();
    let host = cluster.host.clone();
    node.link.on_put(move || host.advance(minutes(11)));
    node.sync().await;
    node.sync().await;
    let is_confirmed = node.spool.lease_status(&held).is_ok_and(|beat| beat.confirmed);
    let task = cluster.get(&id).await;
    let is_live = task.status() == Status::Running && cluster.queue.now().unwrap().is_before(expiry(&task));
    assert_eq!(is_confirmed, is_live);
}

#[tokio::test]
async fn an_expired_task_ends_in_the_bucket() {
    let cluster = TestCluster::new(Strict).await;
    let expires_in = Some(minutes(5));
    let id = cluster.queue.submit_task(NewTask { expires_in, ..order() }).await.unwrap().id;
    cluster.advance(minutes(6));
    let mut node = cluster.node("pi-1");
    node.sync().await;
    assert_eq!(cluster.get(&id).await.status(), Status::Expired);
    assert!(node.spool.get(&id).unwrap().is_none());
}

#[tokio::test]
async fn delayed_tasks_do_not_block_others() {
    let cluster = TestCluster::new(Strict).await;
    let mut node = cluster.node("pi-1");
    let mut held = Vec::new();
    for _ in 0..32 {
        cluster.submit().await;
    }
    node.sync().await;
    for id in node.spool.poll(32, &TaskTypes::all()).unwrap() {
        held.extend(node.claim(&id));
    }
    assert_eq!(held.len(), 32);
    node.sync().await;
    for held in &held {
        node.spool.settle(held, Settlement::Snooze(Duration::from_hours(48))).unwrap();
    }
    node.sync().await;
    let id = cluster.submit().await;
    cluster.advance(minutes(1));
    node.sync().await;
    assert!(node.spool.get(&id).unwrap().is_some());
}

#[tokio::test]
async fn a_copy_whose_submit_was_sent_by_a_dead_supervisor_follows_the_bucket() {
    let cluster = TestCluster::new(Strict).await;
    let mut node = cluster.node("pi-1");
    let id = node.spool.submit(order()).unwrap();
    node.sync().await;
    // As if the supervisor had crashed after it had sent the submit, before it updated the copy.
    let path = node.spool.root().join(format!("pending/{id}/task.json"));
    let mut record: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    record["outpost"]["base_rev"] = json!(0);
    std::fs::write(&path, record.to_string()).unwrap();
    let mut other = cluster.node("pi-2");
    other.sync().await;
    let held = other.claim(&id).unwrap();
    other.sync().await;
    other.complete(&held, 7);
    other.sync().await;
    cluster.advance(minutes(61));
    node.sync().await;
    assert!(node.spool.get(&id).unwrap().is_none());
}

#[tokio::test]
async fn a_corrupt_lease_of_an_unhandled_type_is_removed_too() {
    let (cluster, mut node, id) = one_task(Strict).await;
    std::fs::write(node.spool.root().join(format!("pending/{id}/lease.json")), b"").unwrap();
    let mut other = cluster.node("pi-2");
    other.sync().await;
    let held = other.claim(&id).unwrap();
    other.sync().await;
    other.complete(&held, 7);
    other.sync().await;
    for _ in 0..3 {
        cluster.advance(minutes(61));
        node.sync().await;
    }
    assert!(node.spool.get(&id).unwrap().is_none());
}

#[tokio::test]
async fn a_date_may_be_given_before_the_buckets_time_is_known() {
    let cluster = TestCluster::new(Strict).await;
    let mut node = cluster.node("pi-1");
    let date = cluster.queue.now().unwrap().earliest.plus(Duration::from_hours(24));
    let start = leasehold_core::new_task::Start::At(date);
    let id = node.spool.submit(NewTask { start, ..order() }).unwrap();
    assert!(node.claim(&id).is_none());
    node.sync().await;
    assert_eq!(cluster.get(&id).await.state, State::Pending { available_at: date });
}
