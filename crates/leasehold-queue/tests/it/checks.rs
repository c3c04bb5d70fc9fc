//! The audit finds what the rules exclude, and repairs it.

use leasehold_core::new_task::Start;
use leasehold_core::{Index, NewTask};
use leasehold_store::{Store, When};

use crate::support::audit::{self, assert_covered};
use crate::support::operations::{ALL, Ready};
use crate::support::recovery::recover;
use crate::support::stage::Fate;
use crate::support::{World, mins, order, secs};

#[tokio::test]
async fn a_healthy_queue_has_nothing_to_repair() {
    for op in ALL {
        let world = World::new().await;
        Ready::prepare(&world, op).await;
        let checked = world.queue.check(false).await.unwrap();
        assert!(checked.uncovered.is_empty() && checked.corrupt.is_empty(), "{op:?}: {checked:?}");
    }
}

#[tokio::test]
async fn a_task_that_lost_its_entry_is_found_and_covered() {
    let world = World::new().await;
    let waiting = world.submit().await;
    let running = world.submit().await;
    world.claim(&running).await;
    for key in
        [audit::keys(&world.store, "ready/").await, audit::keys(&world.store, "leases/").await].concat()
    {
        world.store.delete(&key).await.unwrap();
    }
    let checked = world.queue.check(false).await.unwrap();
    assert_eq!((checked.uncovered.len(), checked.repaired), (2, 0));
    let checked = world.queue.check(true).await.unwrap();
    assert_eq!((checked.uncovered.len(), checked.repaired), (2, 2));
    assert_covered(&world.store, "repaired").await;
    assert_eq!(world.queue.check(true).await.unwrap().uncovered.len(), 0);
    recover(&world, 4, "repaired").await;
    for id in [waiting, running] {
        assert_eq!(world.raw(&id).await.unwrap()["status"], "completed");
    }
}

#[tokio::test]
async fn tasks_whose_entries_were_deleted_by_hand_wait_until_they_are_repaired() {
    let world = World::new().await;
    let mut ids = Vec::new();
    for _ in 0..40 {
        ids.push(world.submit().await);
    }
    for key in audit::keys(&world.store, "ready/").await {
        world.store.delete(&key).await.unwrap();
    }
    assert_eq!(world.queue.stats().await.unwrap().due, 0);
    assert_eq!(world.queue.check(true).await.unwrap().repaired, 40);
    recover(&world, 40, "repaired").await;
    for id in ids {
        assert_eq!(world.raw(&id).await.unwrap()["status"], "completed");
    }
}

/// An entry that workers do not follow, or only much later, covers nothing.
#[tokio::test]
async fn an_entry_that_is_ahead_or_too_late_does_not_cover() {
    let world = World::new().await;
    let id = world.submit().await;
    let entry = world.entries_of(&id, Index::Ready).await.pop().unwrap();
    world.store.delete(&entry).await.unwrap();
    let ahead = entry.replace(".0000000001", ".0000000002");
    let late = entry.replace("/20231114-2213/", "/20991231-2359/");
    for other in [ahead, late] {
        world.store.put(&other, bytes::Bytes::new(), &When::Always).await.unwrap();
        let checked = world.queue.check(false).await.unwrap();
        assert_eq!(checked.uncovered.len(), 1, "{other} covers nothing");
        world.store.delete(&other).await.unwrap();
    }
}

#[tokio::test]
async fn a_dangling_entry_is_reported_at_once_and_removed_by_the_rules() {
    let world = World::new().await;
    let (queue, stage) = world.staged().await;
    stage.play_at(1, Fate::Die);
    queue.submit_task(order()).await.unwrap_err();
    let checked = world.queue.check(true).await.unwrap();
    assert_eq!((checked.dangling.len(), checked.repaired), (1, 0), "the producer may just be slow");
    world.advance(mins(30) + secs(1));
    let checked = world.queue.check(true).await.unwrap();
    assert_eq!((checked.dangling.len(), checked.repaired), (1, 1));
    let checked = world.queue.check(true).await.unwrap();
    assert_eq!((checked.dangling.len(), checked.entries), (0, 0));
}

/// A task that moves while the audit looks must not be called uncovered.
#[tokio::test]
async fn a_task_that_moves_during_the_audit_is_not_reported() {
    let world = World::new().await;
    let id = world.submit_this(NewTask { start: Start::After(mins(60)), ..order() }).await;
    let (queue, stage) = world.staged().await;
    let others = world.clone();
    stage.interrupt(|_, asked| asked.key == "tasks/", async move {
        others.queue.reschedule(&id, others.now()).await.unwrap();
    });
    let checked = queue.check(false).await.unwrap();
    assert_eq!(checked.uncovered, Vec::<String>::new());
}
