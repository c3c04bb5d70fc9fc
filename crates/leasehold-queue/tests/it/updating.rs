//! Updates by an outpost: only the state that it has read is changed, and a lost answer never repeats a change.

use leasehold_core::new_task::Start;
use leasehold_core::{
    Artifacts, Event, HexName, Index, Kind, NewTask, Now, Rejected, ShardLen, State, Status, StepContext,
    Task, TaskId, keys, record,
};
use leasehold_queue::{ObjectQueue, QueueLayout, Settlement, TaskSnapshot, Transition};
use leasehold_store::{Purpose, Verb};
use serde_json::json;

use crate::support::audit::{self, assert_covered};
use crate::support::migrations::switch;
use crate::support::recovery::{LONG, recover};
use crate::support::stage::{Fate, Request};
use crate::support::{LEASE, World, hours, mins, order, requests, secs, worker};

const NODE: &str = "node-7";

fn is_task_put(asked: &Request) -> bool {
    asked.verb == Verb::Put && asked.key.starts_with("tasks/")
}

fn lease(number: u128) -> HexName {
    HexName::from_random(number)
}

fn claim(number: u128) -> Event {
    Event::Claim { worker: worker(NODE), lease_id: lease(number), lease: LEASE }
}

fn renew(number: u128) -> Event {
    Event::Renew { lease_id: lease(number), lease: LEASE, progress: None }
}

fn take_over(number: u128, from: Option<HexName>) -> Event {
    Event::TakeOver { worker: worker(NODE), lease_id: lease(number), lease: LEASE, from, is_unused: false }
}

fn complete_offline(number: u128) -> Event {
    Event::CompleteOffline { lease_id: lease(number), output: json!("done"), results: Artifacts::new() }
}

fn fail_offline(number: u128) -> Event {
    let after = Some(secs(90));
    Event::FailOffline {
        lease_id: lease(number),
        error: "oh".into(),
        retryable: true,
        after,
        max_attempts: None,
    }
}

async fn read(queue: &ObjectQueue, id: &TaskId) -> TaskSnapshot {
    queue.load(Purpose::Sync, id).await.unwrap().expect("the task is there")
}

async fn update(queue: &ObjectQueue, seen: &TaskSnapshot, event: &Event) -> Transition {
    queue.clone().acting_as(NODE).update_if(seen, event).await.unwrap()
}

async fn updated(queue: &ObjectQueue, seen: &TaskSnapshot, event: &Event) -> TaskSnapshot {
    match update(queue, seen, event).await {
        Transition::Done(seen) | Transition::Superseded(seen) => seen,
        other => panic!("{}: {other:?}", event.name()),
    }
}

/// A task as a node has recorded it, in a shard of its own choice.
fn made(world: &World, number: u128, order: NewTask) -> Task {
    let act = StepContext {
        by: NODE.into(),
        now: Now::exactly(world.now()),
        write_id: HexName::from_random(number + 1_000),
        random: 0,
    };
    let id = TaskId::from_random(number);
    order.submitted(id, ShardLen::new(4).unwrap().shard_of(&id), &act)
}

async fn create(queue: &ObjectQueue, task: &Task) -> Transition {
    queue.create(task.clone(), None).await.unwrap()
}

fn last(task: &Task) -> (String, String) {
    let change = task.history.events().next_back().unwrap();
    (change.event.clone(), change.by.clone())
}

#[tokio::test]
async fn a_task_is_changed_step_by_step_from_what_was_read() {
    let world = World::new().await;
    let id = world.submit().await;
    let before = world.ledger();
    let seen = read(&world.queue, &id).await;
    assert_eq!(requests(&world.queue, &before), [0, 1, 0, 0]);
    assert_eq!(seen.task, world.get(&id).await);

    let before = world.ledger();
    let seen = updated(&world.queue, &seen, &claim(1)).await;
    assert_eq!(requests(&world.queue, &before), [2, 0, 0, 1], "task, lease entry; ready entry");
    assert_eq!(seen.task.epoch, 1);
    assert_eq!(last(&seen.task), ("claim".into(), NODE.into()));
    assert_covered(&world.store, "claimed").await;
    assert!(world.entries_of(&id, Index::Ready).await.is_empty());

    world.advance(secs(30));
    let before = world.ledger();
    let seen = updated(&world.queue, &seen, &renew(1)).await;
    assert_eq!(requests(&world.queue, &before), [1, 0, 0, 0]);

    let until = world.now().plus(hours(1));
    let before = world.ledger();
    let seen = updated(&world.queue, &seen, &Event::Snooze { lease_id: lease(1), until }).await;
    assert_eq!(requests(&world.queue, &before), [3, 0, 0, 1], "entry, task, bell; lease entry");
    assert_eq!(seen.task.state, State::Pending { available_at: until });
    assert_eq!(seen.task, world.get(&id).await);
    assert_covered(&world.store, "snoozed").await;
    assert_eq!(world.queue.load(Purpose::Sync, &TaskId::from_random(99)).await.unwrap(), None);
}

#[tokio::test]
async fn a_task_that_has_changed_is_not_overwritten_and_is_returned() {
    let world = World::new().await;
    let id = world.submit().await;
    let seen = read(&world.queue, &id).await;
    let claimed = world.claim(&id).await;
    let before = world.ledger();
    let Transition::Stale(now) = update(&world.queue, &seen, &claim(7)).await else { panic!("not ours") };
    assert_eq!(requests(&world.queue, &before)[3], 0, "nothing is removed");
    assert_eq!(now.task.lease_id.as_ref(), claimed.task().lease_id.as_ref());
    assert_eq!(now.task, world.get(&id).await);

    // A harmless event that would be possible now is not applied either: it was decided on another state.
    let Transition::Stale(_) = update(&world.queue, &seen, &Event::Cancel).await else { panic!("unseen") };
    assert_eq!(world.get(&id).await, now.task);

    world.queue.settle(&claimed, Settlement::complete(json!(1))).await.unwrap().unwrap();
    let Transition::Stale(now) = update(&world.queue, &now, &complete_offline(7)).await else {
        panic!("it would be refused, but it has changed first")
    };
    assert_eq!(now.task.output(), Some(&json!(1)));
    let rejected = Rejected::Status(Status::Completed);
    let refused = update(&world.queue, &now, &complete_offline(7)).await;
    assert_eq!(refused, Transition::Rejected(rejected, now));
}

#[tokio::test]
async fn a_change_between_the_entry_and_the_task_is_not_overwritten() {
    let world = World::new().await;
    let id = world.submit().await;
    let (queue, stage) = world.staged().await;
    let seen = updated(&queue, &read(&queue, &id).await, &claim(1)).await;
    let others = world.clone();
    stage.interrupt(|_, asked| is_task_put(asked), async move { drop(others.queue.cancel(&id).await) });
    let outcome = update(&queue, &seen, &Event::Release { lease_id: lease(1) }).await;
    let Transition::Stale(now) = outcome else { panic!("{outcome:?}") };
    let State::Running(held) = &now.task.state else { panic!("it is running") };
    assert!(held.cancel_requested);
    let ended = updated(&queue, &now, &Event::Release { lease_id: lease(1) }).await;
    assert_eq!(ended.task.status(), Status::Cancelled, "decided again, by what was asked for meanwhile");
    recover(&world, LONG, "interrupted").await;
    assert!(world.entries_of(&id, Index::Ready).await.is_empty());
}

#[tokio::test]
async fn a_task_that_no_longer_exists_is_missing() {
    let world = World::new().await;
    let id = world.submit().await;
    let seen = read(&world.queue, &id).await;
    let key = audit::keys(&world.store, "tasks/").await.pop().unwrap();
    leasehold_store::Store::delete(&*world.store, &key).await.unwrap();
    assert_eq!(update(&world.queue, &seen, &Event::Cancel).await, Transition::Missing);
}

#[tokio::test]
async fn a_change_whose_answer_is_lost_is_done_and_done_once() {
    for event in [claim(1), complete_offline(1), fail_offline(1), Event::Cancel] {
        let world = World::new().await;
        let id = world.submit().await;
        let (queue, stage) = world.staged().await;
        let seen = read(&queue, &id).await;
        stage.play(|_, asked| if is_task_put(asked) { Fate::LoseAnswer } else { Fate::Pass });
        let after = updated(&queue, &seen, &event).await;
        assert_eq!(after.task.rev, seen.task.rev + 1, "{}", event.name());
        assert_eq!(after.task, world.get(&id).await, "{}", event.name());
        assert_covered(&world.store, event.name()).await;
        stage.play(|_, _| Fate::Pass);
        assert!(matches!(update(&queue, &seen, &event).await, Transition::Stale(_)), "{}", event.name());
    }
}

#[tokio::test]
async fn a_change_whose_answer_is_lost_is_done_although_other_changes_follow() {
    let world = World::new().await;
    let id = world.submit().await;
    let (queue, stage) = world.staged().await;
    let seen = read(&queue, &id).await;
    stage.play_at(0, Fate::LoseAnswer);
    let others = world.clone();
    stage.interrupt(|number, _| number == 1, async move { drop(others.queue.cancel(&id).await) });
    let after = updated(&queue, &seen, &claim(1)).await;
    let State::Running(held) = &after.task.state else { panic!("it is running") };
    assert!(held.cancel_requested, "what they made of it is shown");
    assert_eq!(after.task.lease_id, Some(lease(1)));
}

/// It adds nothing to the history, so it cannot be distinguished from one that never arrived; the claim is still in the
/// record.
#[tokio::test]
async fn a_renewal_that_another_change_follows_is_decided_again() {
    let world = World::new().await;
    let id = world.submit().await;
    let (queue, stage) = world.staged().await;
    let seen = updated(&queue, &read(&queue, &id).await, &claim(1)).await;
    stage.play_at(0, Fate::LoseAnswer);
    let others = world.clone();
    stage.interrupt(|number, _| number == 1, async move { drop(others.queue.cancel(&id).await) });
    let Transition::Stale(now) = update(&queue, &seen, &renew(1)).await else { panic!("not recognised") };
    assert_eq!(now.task.lease_id, Some(lease(1)));
    updated(&queue, &now, &renew(1)).await;
}

#[tokio::test]
async fn a_change_without_any_answer_has_an_unknown_outcome() {
    let world = World::new().await;
    let id = world.submit().await;
    let (queue, stage) = world.staged().await;
    let seen = read(&queue, &id).await;
    stage.play(|_, asked| if is_task_put(asked) { Fate::LoseAnswer } else { Fate::LoseRequest });
    let error = queue.update_if(&seen, &complete_offline(1)).await.unwrap_err();
    assert!(error.outcome_is_unknown(), "{error}");
    stage.play(|_, _| Fate::Pass);
    let now = read(&queue, &id).await;
    let again = update(&queue, &now, &complete_offline(1)).await;
    assert_eq!(again, Transition::Rejected(Rejected::AlreadyApplied, now));
}

#[tokio::test]
async fn an_expired_claim_is_taken_over() {
    let world = World::new().await;
    let id = world.submit_this(NewTask { max_attempts: Some(3), ..order() }).await;
    let claimed = world.claim(&id).await;
    let seen = read(&world.queue, &id).await;
    let early = update(&world.queue, &seen, &take_over(2, None)).await;
    assert!(matches!(early, Transition::Rejected(Rejected::NotBefore(_), _)), "{early:?}");
    world.advance(mins(2));
    let seen = updated(&world.queue, &seen, &take_over(2, None)).await;
    assert_eq!((seen.task.epoch, seen.task.attempt), (2, 2));
    assert_eq!(last(&seen.task), ("take over".into(), NODE.into()));
    assert_eq!(world.entries_of(&id, Index::Lease).await, [seen.task.entry().unwrap().key()]);
    let settled = world.queue.settle(&claimed, Settlement::complete(json!(1))).await.unwrap();
    assert_eq!(settled, None, "the one before is fenced off");
    // The node again, after its process has crashed: it need not wait for the lease to expire.
    let seen = updated(&world.queue, &seen, &take_over(3, Some(lease(2)))).await;
    assert_eq!(seen.task.epoch, 3);
    let spent = update(&world.queue, &seen, &take_over(4, Some(lease(3)))).await;
    assert!(matches!(spent, Transition::Rejected(Rejected::Status(Status::Running), _)), "{spent:?}");
    assert_covered(&world.store, "taken over").await;
}

#[tokio::test]
async fn an_offline_completion_is_recorded_once_whatever_its_holder() {
    let world = World::new().await;
    let id = world.submit().await;
    let claimed = world.claim(&id).await;
    let seen = read(&world.queue, &id).await;
    let seen = updated(&world.queue, &seen, &complete_offline(2)).await;
    assert_eq!((seen.task.epoch, seen.task.output()), (2, Some(&json!("done"))));
    assert_eq!(last(&seen.task), ("completed_offline".into(), NODE.into()));
    assert!(world.entries_of(&id, Index::Lease).await.is_empty());
    let twice = update(&world.queue, &seen, &complete_offline(2)).await;
    assert_eq!(twice, Transition::Rejected(Rejected::AlreadyApplied, seen.clone()));
    assert_eq!(world.queue.settle(&claimed, Settlement::complete(json!(1))).await.unwrap(), None);
    assert_eq!(world.get(&id).await, seen.task);
}

#[tokio::test]
async fn an_offline_failure_waits_for_its_next_attempt() {
    let world = World::new().await;
    let id = world.submit().await;
    let seen = read(&world.queue, &id).await;
    let due = world.now().plus(secs(90));
    let seen = updated(&world.queue, &seen, &fail_offline(2)).await;
    assert_eq!((seen.task.epoch, seen.task.attempt), (1, 1));
    assert_eq!(seen.task.state, State::Pending { available_at: due });
    assert_eq!(last(&seen.task), ("failed_offline".into(), NODE.into()));
    assert_eq!(world.entries_of(&id, Index::Ready).await, [seen.task.entry().unwrap().key()]);
    let twice = update(&world.queue, &seen, &fail_offline(2)).await;
    assert!(matches!(twice, Transition::Rejected(Rejected::AlreadyApplied, _)), "{twice:?}");
    world.advance(mins(2));
    world.claim(&id).await;
    let held = update(&world.queue, &read(&world.queue, &id).await, &fail_offline(3)).await;
    assert!(matches!(held, Transition::Rejected(Rejected::Status(Status::Running), _)), "{held:?}");
}

#[tokio::test]
async fn a_task_from_another_place_is_created_under_its_own_id() {
    let world = World::new().await;
    let task = made(&world, 5, NewTask { start: Start::After(mins(5)), ..order() });
    let before = world.ledger();
    let Transition::Done(seen) = create(&world.queue, &task).await else { panic!("nothing is there") };
    assert_eq!(requests(&world.queue, &before), [3, 0, 0, 0], "entry, task, bell");
    assert_eq!(seen.task.shard, world.queue.shard_len().shard_of(&task.id));
    assert_eq!(seen.task, Task { shard: seen.task.shard.clone(), ..task.clone() });
    assert_eq!(world.get(&task.id).await, seen.task);
    assert!(seen.task.has_write(&task.write_id));
    assert_covered(&world.store, "created").await;
    updated(&world.queue, &seen, &Event::Cancel).await;
    let Transition::Done(now) = create(&world.queue, &task).await else { panic!("it was ours") };
    assert_eq!(now.task.status(), Status::Cancelled, "once more changes nothing");
    recover(&world, LONG, "created").await;
    assert!(audit::keys(&world.store, "ready/").await.is_empty());
}

#[tokio::test]
async fn the_entry_is_written_before_the_task() {
    let world = World::new().await;
    let (queue, stage) = world.staged().await;
    let task = made(&world, 5, order());
    stage.play(|_, asked| if is_task_put(asked) { Fate::Refuse } else { Fate::Pass });
    queue.create(task.clone(), None).await.unwrap_err();
    assert_eq!(audit::keys(&world.store, "ready/").await.len(), 1);
    assert!(world.raw(&task.id).await.is_none());
    stage.play(|_, asked| if asked.key.starts_with("ready/") { Fate::Refuse } else { Fate::Pass });
    queue.create(task.clone(), None).await.unwrap_err();
    assert!(world.raw(&task.id).await.is_none(), "no task without an entry");
    stage.play(|_, _| Fate::Pass);
    assert!(matches!(create(&queue, &task).await, Transition::Done(_)));
    recover(&world, LONG, "created").await;
    assert_eq!(world.raw(&task.id).await.unwrap()["status"], "completed");
}

#[tokio::test]
async fn a_task_whose_put_has_no_answer_is_created_once() {
    let world = World::new().await;
    let (queue, stage) = world.staged().await;
    let task = made(&world, 5, order());
    stage.play(|_, asked| if is_task_put(asked) { Fate::LoseAnswer } else { Fate::Pass });
    assert!(matches!(create(&queue, &task).await, Transition::Done(_)), "what is read tells");

    let held = made(&world, 6, order());
    stage.play(|_, asked| match (is_task_put(asked), asked.key.starts_with("tasks/")) {
        (true, _) => Fate::Hold,
        (_, true) => Fate::LoseRequest,
        _ => Fate::Pass,
    });
    let error = queue.create(held.clone(), None).await.unwrap_err();
    assert!(error.outcome_is_unknown(), "{error}");
    assert!(world.raw(&held.id).await.is_none(), "it was not fenced off: it will be tried again");
    stage.play(|_, _| Fate::Pass);
    assert!(matches!(create(&queue, &held).await, Transition::Done(_)));
    updated(&queue, &read(&queue, &held.id).await, &Event::Cancel).await;
    stage.apply_late().await;
    assert_eq!(world.raw(&held.id).await.unwrap()["status"], "cancelled", "the late ones change nothing");
}

#[tokio::test]
async fn an_existing_object_at_the_id_is_kept() {
    let world = World::new().await;
    let task = made(&world, 5, order());
    let other = Task { write_id: HexName::from_random(1), ..made(&world, 5, order()) };
    let other = Task { history: made(&world, 4, order()).history, ..other };
    let Transition::Done(there) = create(&world.queue, &other).await else { panic!("nothing is there") };
    assert_eq!(create(&world.queue, &task).await, Transition::Stale(there));

    let act =
        StepContext { by: "sweeper".into(), now: Now::exactly(world.now()), write_id: lease(2), random: 0 };
    let id = TaskId::from_random(8);
    let tombstone = Task::tombstone(id, world.queue.shard_len().shard_of(&id), "given up", &act);
    world.overwrite(&keys::task(&tombstone.shard, &id), record::write(&tombstone)).await;
    let Transition::Stale(seen) = create(&world.queue, &made(&world, 8, order())).await else {
        panic!("a tombstone")
    };
    assert!(seen.task.is_tombstone());

    let done = updated(&world.queue, &read(&world.queue, &other.id).await, &complete_offline(1)).await;
    let error = world.queue.create(done.task.clone(), None).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid, "{error}");
    recover(&world, LONG, "kept").await;
    assert!(audit::keys(&world.store, "ready/").await.is_empty());
}

/// A link fails between the two puts, and recovers after the entry was removed.
#[tokio::test]
async fn a_task_whose_entry_was_swept_is_created_over_the_tombstone() {
    let world = World::new().await;
    let (queue, stage) = world.staged().await;
    let task = made(&world, 5, order());
    stage.play(|_, asked| if is_task_put(asked) { Fate::Unreached } else { Fate::Pass });
    queue.create(task.clone(), None).await.unwrap_err();
    recover(&world, LONG, "cut off").await;
    assert!(audit::keys(&world.store, "ready/").await.is_empty());
    stage.play(|_, _| Fate::Pass);
    let Transition::Stale(tombstone) = create(&queue, &task).await else { panic!("it was given up for it") };
    assert!(tombstone.task.is_tombstone());

    // Neither a lost answer nor a second call creates a duplicate.
    stage.play(|_, asked| if is_task_put(asked) { Fate::LoseAnswer } else { Fate::Pass });
    let over = queue.create(task.clone(), Some(&tombstone)).await.unwrap();
    let Transition::Done(seen) = over else { panic!("{over:?}") };
    assert_eq!((seen.task.rev, seen.task.is_tombstone()), (tombstone.task.rev + 1, false));
    assert_eq!(seen.task, world.get(&task.id).await);
    assert_covered(&world.store, "over the tombstone").await;
    stage.play(|_, _| Fate::Pass);
    let again = queue.create(task.clone(), Some(&tombstone)).await.unwrap();
    assert_eq!(again, Transition::Done(seen.clone()));
    assert_eq!(create(&queue, &task).await, Transition::Done(seen.clone()));
    let error = queue.create(task.clone(), Some(&seen)).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid, "a task is not replaced");
    recover(&world, LONG, "over the tombstone").await;
    assert_eq!(world.raw(&task.id).await.unwrap()["status"], "completed");
}

/// A concurrent cleanup fences the tombstone again first, because the new entry is old already.
#[tokio::test]
async fn a_tombstone_that_was_fenced_meanwhile_is_not_overwritten() {
    let world = World::new().await;
    let (queue, stage) = world.staged().await;
    let task = made(&world, 5, order());
    stage.play(|_, asked| if is_task_put(asked) { Fate::Unreached } else { Fate::Pass });
    queue.create(task.clone(), None).await.unwrap_err();
    recover(&world, LONG, "cut off").await;
    stage.play(|_, _| Fate::Pass);
    let tombstone = read(&queue, &task.id).await;
    let others = world.clone();
    let fence = tombstone.clone();
    stage.interrupt(|_, asked| is_task_put(asked), async move {
        updated(&others.queue, &fence, &Event::Fence).await;
    });
    let over = queue.create(task.clone(), Some(&tombstone)).await.unwrap();
    let Transition::Stale(now) = over else { panic!("{over:?}") };
    assert!(now.task.is_tombstone());
    assert!(matches!(queue.create(task.clone(), Some(&now)).await.unwrap(), Transition::Done(_)));
    recover(&world, LONG, "over the tombstone").await;
    assert_eq!(world.raw(&task.id).await.unwrap()["status"], "completed");
    assert!(audit::keys(&world.store, "ready/").await.is_empty());
}

/// The node is suspended between the two puts until the entry was removed.
#[tokio::test]
async fn a_node_that_was_suspended_before_the_task_writes_nothing() {
    let world = World::new().await;
    let (queue, stage) = world.staged().await;
    let task = made(&world, 5, order());
    let others = world.clone();
    stage.interrupt(|_, asked| asked.key.starts_with("ready/"), async move { others.advance(hours(24 * 7)) });
    let error = queue.create(task.clone(), None).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable, "{error}");
    assert!(world.raw(&task.id).await.is_none());
    assert!(matches!(create(&queue, &task).await, Transition::Done(_)));
    assert_covered(&world.store, "slept").await;
}

#[tokio::test]
async fn a_task_that_was_moved_to_another_shard_is_read_there_and_has_changed() {
    let world = World::new().await;
    let id = world.submit().await;
    let before = read(&world.queue, &id).await;
    switch(&world.queue, 2).await.unwrap();
    let queue = world.process(world.store.clone()).await;
    let now = read(&queue, &id).await;
    assert_eq!(now.task.shard.as_str().len(), 2);
    let outcome = update(&queue, &before, &Event::Cancel).await;
    assert_eq!(outcome, Transition::Stale(now.clone()), "another revision in another place");
    let after = updated(&queue, &now, &Event::Cancel).await;
    assert_eq!(world.process(world.store.clone()).await.get(&id).await.unwrap(), after.task);
    let error = world.queue.update_if(&before, &Event::Cancel).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid, "{error}");
    let error = world.queue.create(made(&world, 5, order()), None).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid, "{error}");
}

#[tokio::test]
async fn a_task_from_before_a_move_is_recognised_behind_its_forwarding_marker() {
    let world = World::new().await;
    let task = made(&world, 5, order());
    create(&world.queue, &task).await;
    switch(&world.queue, 2).await.unwrap();
    let queue = world.process(world.store.clone()).await;
    let Transition::Done(seen) = create(&queue, &task).await else { panic!("it is ours, elsewhere") };
    assert_eq!(seen.task.shard.as_str().len(), 2);
}
