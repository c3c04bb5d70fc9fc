//! Requests of each operation, as in the table of `docs/protocol/queue.md`: puts, gets, lists, deletes. Every test submits a
//! task first, so that the bell has just been rung and the operations do not ring it again.

use futures::StreamExt;
use leasehold_core::{HexName, Holder, Index, NewTask, TaskId, keys};
use leasehold_queue::QueueLayout as _;
use leasehold_queue::lease::worker_subject;
use leasehold_queue::quarantine::Keep;
use leasehold_queue::{
    Claimed, DirectDispatch, Filter, HeldLease, IndexHit, Leases, ObjectQueue, QueueConfig,
};
use leasehold_queue::{Settlement, Taken, break_lease};
use serde_json::json;

use crate::support::operations::retention;
use crate::support::{LEASE, World, mins, order, requests, secs, worker};

type Requests = [u64; 4];

async fn world() -> World {
    let world = World::new().await;
    world.submit().await;
    world
}

async fn claimed(world: &World) -> (TaskId, Claimed) {
    let id = world.submit().await;
    (id, world.claim(&id).await)
}

async fn hit(world: &World, index: Index, id: &TaskId) -> IndexHit {
    world.due(index).await.into_iter().find(|hit| hit.entry.id == *id).unwrap()
}

fn fail(retryable: bool) -> Settlement {
    Settlement::Fail { error: "no".into(), retryable, after: None }
}

async fn of_settlement(settlement: Settlement, is_renewed: bool) -> Requests {
    let world = world().await;
    let (_, mut claimed) = claimed(&world).await;
    if is_renewed {
        let before = world.ledger();
        claimed = world.queue.renew(&claimed, LEASE * 3, None).await.unwrap().unwrap();
        assert_eq!(requests(&world.queue, &before), [1, 0, 0, 0], "a renewal");
    }
    let before = world.ledger();
    world.queue.settle(&claimed, settlement).await.unwrap().unwrap();
    requests(&world.queue, &before)
}

#[tokio::test]
async fn a_settlement_makes_one_put_and_one_more_if_the_task_is_pending_again() {
    for settlement in [Settlement::complete(json!(1)), fail(false), Settlement::Stop] {
        assert_eq!(of_settlement(settlement.clone(), false).await, [1, 0, 0, 1], "{settlement:?}");
        assert_eq!(of_settlement(settlement.clone(), true).await, [1, 0, 0, 2], "{settlement:?}, renewed");
    }
    for settlement in [fail(true), Settlement::Snooze(mins(9)), Settlement::Release] {
        assert_eq!(of_settlement(settlement.clone(), false).await, [2, 0, 0, 1], "{settlement:?}");
        assert_eq!(of_settlement(settlement.clone(), true).await, [2, 0, 0, 2], "{settlement:?}, renewed");
    }
}

#[tokio::test]
async fn an_operation_makes_one_get_and_the_puts_of_its_task_and_entry() {
    let world = world().await;
    let id = world.submit().await;
    let before = world.ledger();
    world.queue.cancel(&id).await.unwrap();
    assert_eq!(requests(&world.queue, &before), [1, 1, 0, 1], "cancel");
    let before = world.ledger();
    world.queue.retry(&id).await.unwrap();
    assert_eq!(requests(&world.queue, &before), [2, 1, 0, 0], "retry");
    let before = world.ledger();
    world.queue.reschedule(&id, world.now().plus(mins(30))).await.unwrap();
    assert_eq!(requests(&world.queue, &before), [2, 1, 0, 1], "reschedule");
    let (running, _claimed) = claimed(&world).await;
    let before = world.ledger();
    world.queue.cancel(&running).await.unwrap();
    assert_eq!(requests(&world.queue, &before), [1, 1, 0, 0], "cancel of a running task");
}

#[tokio::test]
async fn index_cleanup_makes_one_get_and_the_puts_of_the_change() {
    let world = world().await;
    let (timed_out, _claimed) = claimed(&world).await;
    let expired = world.submit_this(NewTask { expires_in: Some(LEASE), ..order() }).await;
    world.advance(LEASE + secs(2));
    // Rings, and reads `queue.json` again.
    world.submit().await;
    let found = hit(&world, Index::Lease, &timed_out).await;
    let before = world.ledger();
    world.queue.sweep(&found).await.unwrap();
    assert_eq!(requests(&world.queue, &before), [2, 1, 0, 1], "time out");
    let found = hit(&world, Index::Ready, &expired).await;
    let before = world.ledger();
    world.queue.sweep(&found).await.unwrap();
    assert_eq!(requests(&world.queue, &before), [1, 1, 0, 1], "expire");
}

#[tokio::test]
async fn reading_the_queue_makes_the_documented_lists() {
    let world = world().await;
    world.submit().await;
    let before = world.ledger();
    assert_eq!(world.queue.list(Filter::default()).count().await, 2);
    assert_eq!(requests(&world.queue, &before), [0, 2, 1, 0], "list");
    let before = world.ledger();
    world.queue.stats().await.unwrap();
    assert_eq!(requests(&world.queue, &before), [0, 0, 4, 0], "stats: one list per index");
    let before = world.ledger();
    world.queue.check(false).await.unwrap();
    assert_eq!(requests(&world.queue, &before), [0, 3, 14, 0], "check: two tasks and the bell");
    let before = world.ledger();
    world.queue.purge_all(&retention()).await.unwrap();
    assert_eq!(requests(&world.queue, &before), [0, 4, 1, 0], "purge of tasks that stay: each is read twice");
}

#[tokio::test]
async fn a_quarantine_makes_one_get_one_put_and_one_for_the_copy() {
    let world = world().await;
    let id = world.submit().await;
    let task = format!("tasks/{}/{id}.json", world.get(&id).await.shard);
    let rows = [
        (task.as_str(), Keep::Copy, [2, 1, 0, 0]),
        (task.as_str(), Keep::Nothing, [1, 1, 0, 0]),
        ("ready/strange", Keep::Copy, [1, 1, 0, 1]),
        ("ready/strange", Keep::Nothing, [0, 1, 0, 1]),
    ];
    for (key, keep, expected) in rows {
        world.overwrite(key, "{").await;
        let before = world.ledger();
        world.queue.quarantine(key, keep).await.unwrap();
        assert_eq!(requests(&world.queue, &before), expected, "{key}, {keep:?}");
    }
}

fn taken(taken: Taken) -> HeldLease {
    match taken {
        Taken::Ours(held) => held,
        Taken::Others(lease) => panic!("{lease:?}"),
    }
}

/// The table of `docs/protocol/leases.md`.
#[tokio::test]
async fn a_lease_is_changed_with_one_put_and_read_only_if_it_exists() {
    let world = world().await;
    let (queue, id) = (&world.queue, worker("ada"));
    let holder = Holder { worker_id: id.clone(), instance: HexName::from_random(7), ttl: mins(1) };
    let leases = Leases::new(queue.client().clone(), holder).unwrap();
    let (key, subject) = (keys::inbox_lease(&id), worker_subject(&id));
    let before = world.ledger();
    let mut held = taken(leases.take(&key, &subject, None).await.unwrap());
    assert_eq!(requests(queue, &before), [1, 0, 0, 0], "take a lease that does not exist");
    let before = world.ledger();
    leases.renew(&mut held).await.unwrap();
    assert_eq!(requests(queue, &before), [1, 0, 0, 0], "renew");
    let before = world.ledger();
    leases.release(held).await.unwrap();
    assert_eq!(requests(queue, &before), [1, 0, 0, 0], "release");
    let before = world.ledger();
    let held = taken(leases.take(&key, &subject, Some(world.now())).await.unwrap());
    assert_eq!(requests(queue, &before), [1, 1, 0, 0], "take a lease that a list has shown");
    leases.release(held).await.unwrap();
    let before = world.ledger();
    taken(leases.take(&key, &subject, None).await.unwrap());
    assert_eq!(
        requests(queue, &before),
        [2, 1, 0, 0],
        "take a lease that no list has shown: the first put is refused"
    );
    let before = world.ledger();
    break_lease(queue.client(), &key, &subject).await.unwrap();
    assert_eq!(requests(queue, &before), [1, 1, 0, 0], "break");
}

/// The table of `docs/protocol/inboxes.md`.
#[tokio::test]
async fn direct_dispatch_and_the_rescue_of_an_inbox_make_the_documented_requests() {
    const TASKS: u64 = 3;
    let world = world().await;
    let config = QueueConfig { direct: Some(DirectDispatch::default()), ..QueueConfig::default() };
    let producer = ObjectQueue::with_config(world.queue.client().with_own_ledger(), config).await.unwrap();
    let id = worker("ada");
    let holder = Holder { worker_id: id.clone(), instance: HexName::from_random(7), ttl: mins(1) };
    let leases = Leases::new(world.queue.client().clone(), holder).unwrap();
    taken(leases.take(&keys::inbox_lease(&id), &worker_subject(&id), None).await.unwrap());
    let before = producer.client().ledger().snapshot();
    for _ in 0..TASKS {
        producer.submit_task(order()).await.unwrap();
    }
    assert_eq!(
        requests(&producer, &before),
        [2 * TASKS + 1, 0, 1, 0],
        "entries, tasks, one ring; live workers"
    );
    world.advance(secs(62));
    // Reads `queue.json` again.
    world.submit().await;
    let before = world.ledger();
    let rescued = world.queue.rescue_inboxes().await.unwrap();
    assert_eq!(rescued, TASKS);
    // The inboxes and the inbox are listed, its lease is read, and the overflow is announced.
    assert_eq!(requests(&world.queue, &before), [TASKS + 1, TASKS + 1, 2, TASKS]);
}
