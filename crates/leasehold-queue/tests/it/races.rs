//! Races of two operations: one stops before each of its requests, another runs as a whole, and the first continues.
//! Also with a long pause in between, in which workers do their usual work.

use leasehold_core::TaskId;
use leasehold_queue::QueueLayout;

use crate::support::audit::{self, assert_covered, is_tombstone};
use crate::support::operations::{ALL, Operation, Ready, retention};
use crate::support::recovery::{LONG, recover};
use crate::support::stage::Fate;
use crate::support::{World, hours};

/// Event while the first operation is suspended.
#[derive(Debug, Clone, Copy)]
enum Meanwhile {
    /// Another process runs the same operation.
    Twin,
    /// The task is cancelled.
    Cancelled,
    /// The task is retried.
    Retried,
    /// A worker claims what can be claimed, and dies.
    Claimed,
    /// A healthy worker runs for this many minutes.
    Minutes(u64),
    /// Days pass, with retention in force.
    Days,
}

const MEANWHILES: [Meanwhile; 8] = [
    Meanwhile::Twin,
    Meanwhile::Cancelled,
    Meanwhile::Retried,
    Meanwhile::Claimed,
    Meanwhile::Minutes(1),
    Meanwhile::Minutes(3),
    Meanwhile::Minutes(LONG),
    Meanwhile::Days,
];

async fn happens(world: World, ready: Ready, meanwhile: Meanwhile, context: String) {
    // Most of these may be refused, depending on how far the first operation is.
    match (meanwhile, ready.id) {
        (Meanwhile::Twin, _) => drop(ready.run(&world, &world.queue).await),
        (Meanwhile::Cancelled, Some(id)) => drop(world.queue.cancel(&id).await),
        (Meanwhile::Retried, Some(id)) => drop(world.queue.retry(&id).await),
        (Meanwhile::Claimed, Some(id)) => claim_and_die(&world, id).await,
        (Meanwhile::Minutes(minutes), _) => recover(&world, minutes, &context).await,
        (Meanwhile::Days, _) => {
            for _ in 0..4 {
                recover(&world, LONG, &context).await;
                world.advance(hours(25));
                purge_all(&world).await;
            }
        }
        (_, None) => {}
    }
    assert_covered(&world.store, &context).await;
}

async fn claim_and_die(world: &World, id: TaskId) {
    let due = world.due(leasehold_core::Index::Ready).await;
    if due.iter().any(|found| found.entry.id == id) {
        let (queue, stage) = world.staged().await;
        stage.play_at(1, Fate::PassThenDie);
        let found = due.iter().find(|found| found.entry.id == id).unwrap();
        let lease = crate::support::LEASE;
        let worker = crate::support::worker("w2");
        drop(queue.claim(found, &worker, lease, &crate::support::any_type(), false).await);
    }
}

async fn purge_all(world: &World) {
    for path in audit::keys(&world.store, "unique/").await {
        world.queue.remove_expired_key(&path).await.unwrap();
    }
    for key in audit::keys(&world.store, "tasks/").await {
        let (_, id) = leasehold_core::keys::parse_task(&key).unwrap();
        if let Ok(task) = world.queue.get(&id).await {
            world.queue.purge(&task, &retention()).await.unwrap();
        }
    }
}

async fn race(op: Operation, number: usize, meanwhile: Meanwhile) -> bool {
    let context = format!("{op:?}, before request {number}: {meanwhile:?}");
    let world = World::new().await;
    let ready = Ready::prepare(&world, op).await;
    let (queue, stage) = world.staged().await;
    let other = happens(world.clone(), ready.clone(), meanwhile, context.clone());
    stage.interrupt(move |n, _| n == number, other);
    let result = ready.run(&world, &queue).await;
    let came_so_far = stage.asked().len() > number;
    assert_covered(&world.store, &context).await;
    recover(&world, LONG, &context).await;
    let submits = matches!(op, Operation::Submit | Operation::SubmitOnce | Operation::SubmitAgain);
    for key in audit::keys(&world.store, "tasks/").await {
        let task = audit::value(&world.store, &key).await.unwrap();
        let is_final = !["pending", "running"].contains(&task["status"].as_str().unwrap());
        assert!(is_final, "{context}: still {}", task["status"]);
    }
    if let (true, Ok(Some(id))) = (submits, result) {
        if let Some(task) = world.raw(&id).await {
            assert!(!is_tombstone(&task), "{context}: acknowledged and yet abandoned");
        } else {
            assert!(matches!(meanwhile, Meanwhile::Days), "{context}: the task is gone");
        }
    }
    for index in ["ready/", "leases/"] {
        assert_eq!(audit::keys(&world.store, index).await, Vec::<String>::new(), "{context}");
    }
    came_so_far
}

#[tokio::test]
async fn every_operation_may_be_suspended_before_every_request() {
    for op in ALL {
        for meanwhile in MEANWHILES {
            let mut number = 0;
            while race(op, number, meanwhile).await {
                number += 1;
                assert!(number < 100, "{op:?} never ends");
            }
        }
    }
}
