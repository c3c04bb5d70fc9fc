//! Retention: a task is marked, deleted a day later, and never recreated.

use leasehold_core::{Rejected, Status, TaskId};
use leasehold_queue::purge::{PURGE_GRACE, Purged, Retention};
use leasehold_queue::unique::LIFETIME;
use leasehold_queue::{QueueLayout, Settlement, Transition, UniqueKey};
use leasehold_store::Verb;
use serde_json::json;

use crate::support::operations::retention;
use crate::support::{World, audit, hours, order, secs};

async fn purge(world: &World, id: &TaskId) -> Purged {
    let task = world.get(id).await;
    world.queue.purge(&task, &retention()).await.unwrap()
}

#[tokio::test]
async fn a_final_task_is_marked_and_deleted_a_day_later() {
    let world = World::new().await;
    let id = world.submit().await;
    world.queue.cancel(&id).await.unwrap();
    world.advance(PURGE_GRACE);
    assert_eq!(purge(&world, &id).await, Purged::TooNew, "a day old, but not beyond doubt");
    world.advance(secs(1));
    assert_eq!(purge(&world, &id).await, Purged::Marked);
    assert_eq!(world.get(&id).await.status(), Status::Purged);
    let refused = world.queue.retry(&id).await.unwrap();
    assert!(
        matches!(refused, Transition::Rejected(Rejected::Status(Status::Purged), _)),
        "nothing leaves that state"
    );
    world.advance(PURGE_GRACE);
    assert_eq!(purge(&world, &id).await, Purged::TooNew);
    world.advance(secs(1));
    assert_eq!(purge(&world, &id).await, Purged::Deleted);
    assert_eq!(world.raw(&id).await, None);
}

#[tokio::test]
async fn a_task_that_the_retention_covers_is_kept_for_a_day_and_said_to_be_too_new() {
    let world = World::new().await;
    let (waiting, cancelled) = (world.submit().await, world.submit().await);
    world.queue.cancel(&cancelled).await.unwrap();
    world.advance(secs(60));
    let purge = async |id: &TaskId, retention: Retention| {
        world.queue.purge(&world.get(id).await, &retention).await.unwrap()
    };
    let at_once = || Retention { older_than: std::time::Duration::ZERO, ..retention() };
    assert_eq!(purge(&cancelled, at_once()).await, Purged::TooNew);
    assert_eq!(purge(&waiting, at_once()).await, Purged::Kept);
    let others = Retention { statuses: vec![Status::Completed], ..at_once() };
    assert_eq!(purge(&cancelled, others).await, Purged::Kept);
    assert_eq!(purge(&cancelled, Retention { older_than: hours(1), ..retention() }).await, Purged::Kept);
}

#[tokio::test]
async fn a_task_that_is_not_final_or_not_covered_stays() {
    let world = World::new().await;
    let waiting = world.submit().await;
    let running = world.submit().await;
    let cancelled = world.submit().await;
    world.queue.cancel(&cancelled).await.unwrap();
    world.advance(hours(25));
    world.claim(&running).await;
    for id in [waiting, running] {
        assert_eq!(purge(&world, &id).await, Purged::Kept);
    }
    let task = world.get(&cancelled).await;
    let others = Retention { statuses: vec![Status::Completed], ..retention() };
    assert_eq!(world.queue.purge(&task, &others).await.unwrap(), Purged::Kept);
    let longer = Retention { older_than: hours(48), ..retention() };
    assert_eq!(world.queue.purge(&task, &longer).await.unwrap(), Purged::Kept);
}

#[tokio::test]
async fn a_task_stays_until_its_key_has_been_expired_for_a_day() {
    for key in
        [UniqueKey::new("k"), UniqueKey { scope: leasehold_queue::Scope::TaskType, ..UniqueKey::new("k") }]
    {
        let world = World::new().await;
        let submitted = world.queue.submit_task(order()).key(key.clone()).await.unwrap();
        world.queue.cancel(&submitted.id).await.unwrap();
        world.advance(LIFETIME + PURGE_GRACE);
        assert_eq!(purge(&world, &submitted.id).await, Purged::Kept);
        world.advance(secs(2));
        assert_eq!(purge(&world, &submitted.id).await, Purged::Marked);
    }
}

/// Between reading a task and marking it, the task may have been retried and completed again: that is another result,
/// which has not been kept for long enough.
#[tokio::test]
async fn a_task_that_has_changed_since_it_was_read_is_not_purged() {
    let world = World::new().await;
    let id = world.submit().await;
    world.queue.cancel(&id).await.unwrap();
    world.advance(hours(25));
    let (queue, stage) = world.staged().await;
    let others = world.clone();
    stage.interrupt(|_, asked| asked.verb == Verb::Put, async move {
        others.queue.retry(&id).await.unwrap();
        let claimed = others.claim(&id).await;
        others.queue.settle(&claimed, Settlement::complete(json!(7))).await.unwrap().unwrap();
    });
    let task = world.get(&id).await;
    assert_eq!(queue.purge(&task, &retention()).await.unwrap(), Purged::Kept);
    assert_eq!(world.get(&id).await.status(), Status::Completed);
}

#[tokio::test]
async fn a_purge_of_everything_counts_and_keeps_corrupt_objects() {
    let world = World::new().await;
    let waiting = world.submit().await;
    for _ in 0..3 {
        let id = world.submit().await;
        world.queue.cancel(&id).await.unwrap();
    }
    world.overwrite("tasks/0/nonsense.json", "{".to_owned()).await;
    for (marked, deleted) in [(3, 0), (0, 3), (0, 0)] {
        world.advance(PURGE_GRACE + secs(1));
        let purged = world.queue.purge_all(&retention()).await.unwrap();
        assert_eq!((purged.marked, purged.deleted, purged.corrupt.len()), (marked, deleted, 1));
    }
    assert_eq!(world.get(&waiting).await.status(), Status::Pending);
    assert_eq!(audit::keys(&world.store, "tasks/").await.len(), 2);
}
