//! The rules of index cleanup.

use leasehold_core::{Entry, Index, Status, TaskId};
use leasehold_queue::sweep::Swept;
use leasehold_queue::{IndexHit, QueueLayout, Transition, Unclaimed};
use leasehold_store::{Store, Verb, When};
use std::time::Duration;

use crate::support::audit::{self, assert_covered, is_tombstone};
use crate::support::stage::Fate;
use crate::support::{LEASE, World, any_type, is_requeued, mins, order, secs, worker};

const GRACE: Duration = Duration::from_mins(30);

/// An entry without a task, left by a producer that crashed between its two writes; also its put that is still in
/// flight.
async fn unneeded(world: &World) -> (TaskId, std::sync::Arc<crate::support::stage::Stage>) {
    let (queue, stage) = world.staged().await;
    stage.play_at(1, Fate::HoldThenDie);
    queue.submit_task(order()).await.unwrap_err();
    let key = audit::keys(&world.store, "ready/").await.pop().unwrap();
    (Entry::parse(&key).unwrap().id, stage)
}

async fn sweep_ready(world: &World, id: &TaskId) -> Swept {
    let due = world.due(Index::Ready).await;
    let found = due.iter().find(|found| found.entry.id == *id).expect("a ready entry");
    world.queue.sweep(found).await.unwrap()
}

#[tokio::test]
async fn an_unneeded_entry_is_removed_after_the_grace_and_never_before() {
    let world = World::new().await;
    let (id, _) = unneeded(&world).await;
    let due_at = world.now().plus(GRACE);
    for _ in 0..30 {
        assert!(matches!(world.try_claim(&id).await, Err(Unclaimed::Ahead)));
        assert!(matches!(sweep_ready(&world, &id).await, Swept::Later(at) if at == due_at));
        world.advance(mins(1));
    }
    assert!(
        matches!(sweep_ready(&world, &id).await, Swept::Later(_)),
        "half an hour is not over beyond doubt"
    );
    assert!(world.raw(&id).await.is_none());
    world.advance(secs(1));
    assert!(matches!(sweep_ready(&world, &id).await, Swept::Removed));
    assert!(world.entries_of(&id, Index::Ready).await.is_empty());
    assert!(is_tombstone(&world.raw(&id).await.unwrap()));
}

#[tokio::test]
async fn a_task_that_arrives_after_its_tombstone_is_refused() {
    let world = World::new().await;
    let (id, stage) = unneeded(&world).await;
    world.advance(GRACE + secs(1));
    sweep_ready(&world, &id).await;
    stage.apply_late().await;
    let raw = world.raw(&id).await.unwrap();
    assert!(is_tombstone(&raw), "{raw}");
    let refused = world.queue.retry(&id).await.unwrap();
    assert!(matches!(refused, Transition::Rejected(leasehold_core::Rejected::Tombstone(_), _)));
}

#[tokio::test]
async fn a_task_that_arrives_before_its_tombstone_wins() {
    let world = World::new().await;
    let (id, stage) = unneeded(&world).await;
    world.advance(GRACE + secs(1));
    let found = world.due(Index::Ready).await.pop().unwrap();
    let (queue, second) = world.staged().await;
    // It is applied right before the tombstone.
    second.interrupt(|_, asked| asked.verb == Verb::Put, async move { stage.apply_late().await });
    assert!(matches!(queue.sweep(&found).await.unwrap(), Swept::Fine));
    assert_covered(&world.store, "landed").await;
    assert!(world.try_claim(&id).await.is_ok());
}

#[tokio::test]
async fn a_claim_without_its_lease_entry_is_recovered_as_soon_as_it_has_expired() {
    let world = World::new().await;
    let id = world.submit().await;
    let (queue, stage) = world.staged().await;
    stage.play_at(2, Fate::Die);
    let found = world.due(Index::Ready).await.pop().unwrap();
    drop(queue.claim(&found, &worker("w0"), secs(10), &any_type(), false).await.unwrap());
    let Swept::Held(at) = sweep_ready(&world, &id).await else { panic!("it is held") };
    assert_eq!(at, world.now().plus(secs(10)), "not only when the entry may be removed");
    world.advance(secs(11));
    assert!(is_requeued(&sweep_ready(&world, &id).await));
}

#[tokio::test]
async fn an_outdated_entry_is_covered_before_it_is_removed() {
    let world = World::new().await;
    let id = world.submit().await;
    let (queue, stage) = world.staged().await;
    stage.play_at(2, Fate::Die);
    let found = world.due(Index::Ready).await.pop().unwrap();
    drop(queue.claim(&found, &worker("w0"), mins(10), &any_type(), false).await.unwrap());
    assert!(matches!(world.try_claim(&id).await, Err(Unclaimed::Held(_))));
    assert!(
        matches!(sweep_ready(&world, &id).await, Swept::Held(_)),
        "its claimer may be about to remove it"
    );
    assert!(world.entries_of(&id, Index::Lease).await.is_empty());
    world.advance(secs(61));
    let (queue, stage) = world.staged().await;
    stage.play_at(usize::MAX, Fate::Pass);
    assert!(matches!(queue.sweep(&found).await.unwrap(), Swept::Removed));
    let asked: Vec<_> = stage
        .asked()
        .iter()
        .map(|asked| (asked.verb, asked.key.split('/').next().unwrap().to_owned()))
        .collect();
    let expected = [(Verb::Get, "tasks"), (Verb::Put, "leases"), (Verb::Delete, "ready")];
    assert_eq!(asked, expected.map(|(verb, index)| (verb, index.to_owned())));
    assert!(world.entries_of(&id, Index::Ready).await.is_empty());
}

#[tokio::test]
async fn a_failed_cover_removes_nothing() {
    let world = World::new().await;
    let id = world.submit().await;
    let (queue, stage) = world.staged().await;
    stage.play_at(2, Fate::Die);
    let found = world.due(Index::Ready).await.pop().unwrap();
    drop(queue.claim(&found, &worker("w0"), mins(10), &any_type(), false).await.unwrap());
    world.advance(secs(61));
    let (queue, stage) = world.staged().await;
    stage.play_at(1, Fate::Refuse);
    queue.sweep(&found).await.unwrap_err();
    assert_eq!(world.entries_of(&id, Index::Ready).await.len(), 1);
}

#[tokio::test]
async fn a_renewed_claim_is_moved_when_its_old_minute_is_swept() {
    let world = World::new().await;
    let id = world.submit().await;
    let claimed = world.claim(&id).await;
    assert!(world.queue.renew(&claimed, mins(20), None).await.unwrap().is_some());
    let old = world.entries_of(&id, Index::Lease).await;
    world.advance(mins(3));
    let found = world.due(Index::Lease).await.pop().unwrap();
    assert!(matches!(world.queue.sweep(&found).await.unwrap(), Swept::Removed));
    let new = world.entries_of(&id, Index::Lease).await;
    assert!(new.len() == 1 && new != old, "{new:?}");
    assert_covered(&world.store, "moved").await;
}

#[tokio::test]
async fn an_entry_ahead_of_a_final_task_is_removed_only_after_a_fence() {
    let world = World::new().await;
    let id = world.submit().await;
    world.queue.cancel(&id).await.unwrap();
    let (queue, stage) = world.staged().await;
    // The entry of the retry exists, its task is still in flight.
    stage.play_at(2, Fate::HoldThenDie);
    queue.retry(&id).await.unwrap_err();
    world.advance(GRACE);
    assert!(matches!(sweep_ready(&world, &id).await, Swept::Later(_)));
    world.advance(secs(1));
    assert!(matches!(sweep_ready(&world, &id).await, Swept::Removed));
    let raw = world.raw(&id).await.unwrap();
    assert_eq!((raw["rev"].as_u64(), raw["history"].as_array().unwrap().len()), (Some(3), 2));
    stage.apply_late().await;
    assert_eq!(world.raw(&id).await.unwrap(), raw, "a late retry came through the fence");
}

#[tokio::test]
async fn an_entry_ahead_of_a_pending_task_stays() {
    let world = World::new().await;
    let id = world.submit().await;
    let (queue, stage) = world.staged().await;
    stage.play_at(2, Fate::Die);
    queue.reschedule(&id, world.now()).await.unwrap_err();
    world.advance(GRACE + mins(5));
    let due = world.due(Index::Ready).await;
    let ahead = due.iter().find(|found| found.entry.rev == 2).unwrap();
    assert!(matches!(world.queue.sweep(ahead).await.unwrap(), Swept::Fine));
    assert_eq!(world.entries_of(&id, Index::Ready).await.len(), 2);
}

#[tokio::test]
async fn a_later_entry_without_a_task_belonged_to_a_purged_one() {
    let world = World::new().await;
    let id = world.submit().await;
    let key = world.entries_of(&id, Index::Ready).await[0].replace(".0000000001", ".0000000004");
    world
        .store
        .delete(&leasehold_core::keys::task(&world.queue.shard_len().shard_of(&id), &id))
        .await
        .unwrap();
    world.store.put(&key, bytes::Bytes::new(), &When::Always).await.unwrap();
    world.advance(GRACE + secs(1));
    let due = world.due(Index::Ready).await;
    let found = due.iter().find(|found| found.entry.rev == 4).unwrap();
    assert!(matches!(world.queue.sweep(found).await.unwrap(), Swept::Removed));
    assert!(world.raw(&id).await.is_none(), "nothing is put where a task was purged");
}

/// After a migration, or by another program: the tombstone is put where the task would be.
#[tokio::test]
async fn an_entry_in_a_shard_of_another_length_is_fenced_at_the_right_key() {
    let world = World::new().await;
    let id = TaskId::from_random(0xabcd << 112);
    let key = format!("ready/ab/20231114-2213/5{id}.0000000001");
    world.store.put(&key, bytes::Bytes::new(), &When::Always).await.unwrap();
    let found = IndexHit { entry: Entry::parse(&key).unwrap(), written_at: world.now() };
    world.advance(GRACE + secs(1));
    assert!(matches!(world.queue.sweep(&found).await.unwrap(), Swept::Removed));
    assert_eq!(world.get(&id).await.status(), Status::Cancelled);
}

/// Also those that subscribe only right before the entry is written: before that there was nothing to find.
#[tokio::test]
async fn workers_of_this_process_are_notified_of_a_requeued_task_once_it_can_be_found() {
    let world = World::new().await;
    let id = world.submit().await;
    world.claim(&id).await;
    world.advance(LEASE + mins(1));
    let found = world.due(Index::Lease).await.pop().unwrap();
    let (queue, stage) = world.staged().await;
    let listener = queue.clone();
    let (hand_over, handed) = std::sync::mpsc::channel();
    stage.interrupt(|_, asked| asked.verb == Verb::Put && asked.key.starts_with("ready/"), async move {
        let mut signal = listener.subscribe();
        let mut notified = Box::pin(async move { signal.changed().await });
        assert!(futures::poll!(&mut notified).is_pending());
        hand_over.send(notified).unwrap();
    });
    assert!(is_requeued(&queue.sweep(&found).await.unwrap()));
    let notified = handed.recv().unwrap();
    assert!(futures::FutureExt::now_or_never(notified).is_some(), "it was rung too early");
}

#[tokio::test]
async fn notifications_are_not_missed_between_scanning_and_waiting() {
    let world = World::new().await;
    let mut signal = world.queue.subscribe();
    let notified = signal.changed();
    world.submit().await;
    assert!(futures::FutureExt::now_or_never(notified).is_some());
}

#[tokio::test]
async fn a_retry_that_lands_right_before_the_fence_keeps_its_entry() {
    let world = World::new().await;
    let id = world.submit().await;
    world.queue.cancel(&id).await.unwrap();
    let (queue, stage) = world.staged().await;
    stage.play_at(2, Fate::HoldThenDie);
    queue.retry(&id).await.unwrap_err();
    world.advance(GRACE + secs(1));
    let found = world.due(Index::Ready).await.pop().unwrap();
    let (sweeper, second) = world.staged().await;
    second.interrupt(|_, asked| asked.verb == Verb::Put, async move { stage.apply_late().await });
    assert!(matches!(sweeper.sweep(&found).await.unwrap(), Swept::Fine));
    assert_covered(&world.store, "retried after all").await;
    assert!(world.try_claim(&id).await.is_ok());
}

/// The claim had expired when it was read, but its holder renewed just in time.
#[tokio::test]
async fn a_renewal_that_lands_right_before_the_time_out_keeps_the_claim() {
    let world = World::new().await;
    let id = world.submit().await;
    let claimed = world.claim(&id).await;
    world.advance(LEASE + mins(1));
    let found = world.due(Index::Lease).await.pop().unwrap();
    let (sweeper, stage) = world.staged().await;
    let holder = world.clone();
    stage.interrupt(|_, asked| asked.verb == Verb::Put, async move {
        let renewed = holder.queue.renew(&claimed, LEASE, None).await.unwrap();
        assert!(renewed.is_some());
    });
    assert!(!matches!(sweeper.sweep(&found).await.unwrap(), Swept::Changed(_)));
    let task = world.get(&id).await;
    assert_eq!((task.status(), task.epoch), (Status::Running, 1));
    assert_covered(&world.store, "renewed").await;
}
