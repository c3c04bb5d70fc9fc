//! A task's life: submitted, claimed, settled in every way, taken over, fenced.

use leasehold_core::{Index, NewTask, RetryPolicy, Status};
use leasehold_queue::sweep::Swept;
use leasehold_queue::{QueueLayout, Settlement, Unclaimed};
use serde_json::json;
use std::time::Duration;

use crate::support::audit::assert_covered;
use crate::support::{LEASE, World, is_requeued, mins, order, requests, secs};

fn fail(retryable: bool) -> Settlement {
    Settlement::Fail { error: "oh".into(), retryable, after: None }
}

#[tokio::test]
async fn a_task_costs_five_puts_a_get_and_two_deletes() {
    let world = World::new().await;
    let before = world.ledger();
    world.queue.cancel(&world.submit().await).await.unwrap();
    assert_eq!(requests(&world.queue, &before), [2 + 1 + 1, 1, 0, 1], "submit, ring, cancel");
    let before = world.ledger();
    let id = world.submit().await;
    assert_eq!(requests(&world.queue, &before), [2, 0, 0, 0], "submit within a second of a ring");

    let due = world.due(Index::Ready).await;
    let before = world.ledger();
    let worker = crate::support::worker("w1");
    let outcome =
        world.queue.claim(&due[0], &worker, LEASE, &crate::support::any_type(), false).await.unwrap();
    let Ok(claimed) = outcome else { panic!("{outcome:?}") };
    assert_eq!(requests(&world.queue, &before), [2, 1, 0, 1], "claim");
    let task = world.queue.settle(&claimed, Settlement::complete(json!({"ok": true}))).await.unwrap();
    assert_eq!(requests(&world.queue, &before), [3, 1, 0, 2], "claim to settled");

    assert_eq!(task.unwrap().status(), Status::Completed);
    let raw = world.raw(&id).await.unwrap();
    assert_eq!(raw["output"], json!({"ok": true}));
    assert_eq!(
        (raw["rev"].as_u64(), raw["epoch"].as_u64(), raw["attempt"].as_u64()),
        (Some(3), Some(1), Some(1))
    );
    let events: Vec<_> = raw["history"].as_array().unwrap().iter().map(|change| &change["event"]).collect();
    assert_eq!(events, ["submit", "claim", "complete"]);
    assert!(world.entries_of(&id, Index::Ready).await.is_empty());
    assert!(world.entries_of(&id, Index::Lease).await.is_empty());
}

#[tokio::test]
async fn a_failure_comes_back_after_a_pause_until_the_attempts_are_used_up() {
    let world = World::new().await;
    let policy = RetryPolicy { initial_secs: 60.0, jitter: 0.0, ..RetryPolicy::default() };
    let id =
        world.submit_this(NewTask { max_attempts: Some(3), retry_policy: Some(policy), ..order() }).await;
    for (attempt, pause) in [(1, 60), (2, 120)] {
        let claimed = world.claim(&id).await;
        assert_eq!(claimed.task().attempt, attempt);
        let task = world.queue.settle(&claimed, fail(true)).await.unwrap().unwrap();
        let leasehold_core::State::Pending { available_at } = task.state else { panic!("{task:?}") };
        assert_eq!(available_at.since(world.now()), secs(pause));
        assert_covered(&world.store, "after a failure").await;
        world.advance(secs(pause - 1));
        assert!(
            world.due(Index::Ready).await.is_empty()
                || matches!(world.try_claim(&id).await, Err(Unclaimed::NotDue(at)) if at == available_at)
        );
        world.advance(secs(1));
    }
    let claimed = world.claim(&id).await;
    let task = world.queue.settle(&claimed, fail(true)).await.unwrap().unwrap();
    assert_eq!((task.status(), task.attempt, task.error.as_deref()), (Status::Failed, 3, Some("oh")));
    assert!(world.entries_of(&id, Index::Ready).await.is_empty());
}

#[tokio::test]
async fn a_permanent_failure_is_final_at_once() {
    let world = World::new().await;
    let id = world.submit().await;
    let claimed = world.claim(&id).await;
    let task = world.queue.settle(&claimed, fail(false)).await.unwrap().unwrap();
    assert_eq!((task.status(), task.attempt), (Status::Failed, 1));
}

#[tokio::test]
async fn a_released_task_costs_no_attempt() {
    let world = World::new().await;
    let id = world.submit().await;
    let claimed = world.claim(&id).await;
    let task = world.queue.settle(&claimed, Settlement::Release).await.unwrap().unwrap();
    assert_eq!((task.status(), task.attempt, task.epoch), (Status::Pending, 0, 1));
    assert_covered(&world.store, "released").await;

    let claimed = world.claim(&id).await;
    let task = world.queue.settle(&claimed, Settlement::Snooze(mins(5))).await.unwrap().unwrap();
    assert_eq!((task.attempt, task.epoch), (0, 2));
    assert_covered(&world.store, "snoozed").await;
    assert!(world.due(Index::Ready).await.is_empty());
    world.advance(mins(5));
    assert_eq!(world.claim(&id).await.task().attempt, 1);
}

#[tokio::test]
async fn a_cancelled_task_is_stopped_at_its_renewal_and_never_runs_again() {
    for settlement in [fail(true), Settlement::Release, Settlement::Stop, Settlement::Snooze(mins(0))] {
        let world = World::new().await;
        let id = world.submit().await;
        let claimed = world.claim(&id).await;
        assert!(world.queue.cancel(&id).await.unwrap().is_done());
        assert_covered(&world.store, "cancel requested").await;
        let Some(claimed) = world.queue.renew(&claimed, LEASE, None).await.unwrap() else {
            panic!("it is still held")
        };
        assert!(claimed.task().is_cancel_requested());
        let task = world.queue.settle(&claimed, settlement).await.unwrap().unwrap();
        assert_eq!(task.status(), Status::Cancelled);
        crate::support::recovery::recover(&world, 5, "cancelled").await;
        assert_eq!(world.get(&id).await.status(), Status::Cancelled);
    }
}

#[tokio::test]
async fn a_renewal_is_one_put_and_keeps_progress_out_of_the_history() {
    let world = World::new().await;
    let id = world.submit().await;
    let claimed = world.claim(&id).await;
    world.advance(secs(20));
    let before = world.ledger();
    let Some(renewed) = world.queue.renew(&claimed, LEASE, Some(json!(0.5))).await.unwrap() else {
        panic!("it is still held")
    };
    assert_eq!(requests(&world.queue, &before), [1, 0, 0, 0]);
    assert_eq!(renewed.expires_at(), world.now().plus(LEASE));
    let raw = world.raw(&id).await.unwrap();
    assert_eq!((raw["progress"].as_f64(), raw["history"].as_array().unwrap().len()), (Some(0.5), 2));
    assert_covered(&world.store, "renewed").await;
}

#[tokio::test]
async fn no_claim_is_timed_out_before_its_lease_has_certainly_expired() {
    let world = World::new().await;
    let id = world.submit().await;
    let claimed = world.claim(&id).await;
    world.advance(claimed.expires_at().since(world.now()));
    for index in [Index::Ready, Index::Lease] {
        for found in world.due(index).await {
            let swept = world.queue.sweep(&found).await.unwrap();
            assert!(!matches!(swept, Swept::Changed(_)), "{swept:?} at the very moment of expiry");
        }
    }
    assert_eq!(world.get(&id).await.status(), Status::Running);
    world.advance(secs(1));
    let found = world.due(Index::Lease).await.pop().unwrap();
    let swept = world.queue.sweep(&found).await.unwrap();
    assert!(is_requeued(&swept), "{swept:?}");
    let task = world.get(&id).await;
    assert_eq!((task.status(), task.attempt), (Status::Pending, 1));
}

#[tokio::test]
async fn a_takeover_raises_the_epoch_and_fences_the_previous_holder() {
    let world = World::new().await;
    let id = world.submit().await;
    let first = world.claim(&id).await;
    crate::support::recovery::recover(&world, 0, "").await;
    world.advance(mins(2));
    let found = world.due(Index::Lease).await.pop().unwrap();
    assert!(is_requeued(&world.queue.sweep(&found).await.unwrap()));
    world.advance(mins(1));
    let second = world.claim(&id).await;
    assert_eq!((first.task().epoch, second.task().epoch), (1, 2));

    let before = world.raw(&id).await;
    for settlement in
        [Settlement::complete(json!(1)), fail(true), fail(false), Settlement::Release, Settlement::Stop]
    {
        assert_eq!(world.queue.settle(&first, settlement).await.unwrap(), None);
    }
    assert_eq!(world.queue.renew(&first, LEASE, None).await.unwrap(), None);
    assert_eq!(world.raw(&id).await, before, "a fenced worker has changed the task");
    world.queue.settle(&second, Settlement::complete(json!(2))).await.unwrap().unwrap();
    assert_eq!(world.raw(&id).await.unwrap()["output"], 2);
}

/// Between the time-out and the next claim the task still has its last lease id: that must not count as a settlement.
#[tokio::test]
async fn a_timed_out_worker_cannot_settle() {
    let world = World::new().await;
    let id = world.submit().await;
    let claimed = world.claim(&id).await;
    world.advance(mins(2));
    let found = world.due(Index::Lease).await.pop().unwrap();
    assert!(is_requeued(&world.queue.sweep(&found).await.unwrap()));
    let settled = world.queue.settle(&claimed, Settlement::complete(json!(1))).await.unwrap();
    assert_eq!(settled, None, "the claim was lost");
    assert_eq!(world.get(&id).await.status(), Status::Pending);
}

#[tokio::test]
async fn settling_twice_answers_already_so() {
    let world = World::new().await;
    let id = world.submit().await;
    let claimed = world.claim(&id).await;
    world.queue.settle(&claimed, Settlement::complete(json!(1))).await.unwrap().unwrap();
    let again = world.queue.settle(&claimed, Settlement::complete(json!(2))).await.unwrap().unwrap();
    assert_eq!((again.status(), again.rev), (Status::Completed, 3));
}

#[tokio::test]
async fn a_task_that_starts_too_late_expires() {
    let world = World::new().await;
    let id = world.submit_this(NewTask { expires_in: Some(mins(2)), ..order() }).await;
    world.advance(mins(3));
    assert!(matches!(world.try_claim(&id).await, Err(Unclaimed::Expired)));
    let found = world.due(Index::Ready).await.pop().unwrap();
    let Swept::Changed(task) = world.queue.sweep(&found).await.unwrap() else { panic!("it has expired") };
    assert_eq!(task.status(), Status::Expired);
    assert!(world.entries_of(&id, Index::Ready).await.is_empty());
}

#[tokio::test]
async fn types_without_a_handler_are_not_claimed() {
    let world = World::new().await;
    let id = world.submit().await;
    let found = world.due(Index::Ready).await.pop().unwrap();
    let (worker, no_types) = (crate::support::worker("w1"), std::iter::empty().collect());
    let outcome = world.queue.claim(&found, &worker, LEASE, &no_types, false).await.unwrap();
    assert!(matches!(outcome, Err(Unclaimed::NoHandler)));
    assert_eq!(world.get(&id).await.rev, 1);
}

#[tokio::test]
async fn an_output_that_cannot_be_kept_fails_the_task_and_says_so() {
    let deep = (0..127).fold(json!(1), |inner, _| json!([inner]));
    for output in [json!("x".repeat(300_000)), deep] {
        let world = World::new().await;
        let id = world.submit().await;
        let claimed = world.claim(&id).await;
        let task = world.queue.settle(&claimed, Settlement::complete(output)).await.unwrap().unwrap();
        assert_eq!(task.status(), Status::Failed);
        assert_eq!(world.get(&id).await.status(), Status::Failed, "the record can be read");
    }
}

/// A record that cannot be read again is a lost task.
#[tokio::test]
async fn no_settlement_or_renewal_makes_a_record_unreadable() {
    let deep = (0..127).fold(json!(1), |inner, _| json!([inner]));
    let world = World::new().await;
    let id = world.submit().await;
    let claimed = world.claim(&id).await;
    for progress in [deep, json!("x".repeat(300_000))] {
        let renewed = world.queue.renew(&claimed, LEASE, Some(progress)).await.unwrap();
        assert!(renewed.is_some(), "progress that is too large does not cost the claim");
        let task = world.get(&id).await;
        assert_eq!(task.progress, None);
    }
    let Some(claimed) = world.queue.renew(&claimed, Duration::MAX, None).await.unwrap() else {
        panic!("it is still held")
    };
    world.get(&id).await;
    let settled = world.queue.settle(&claimed, Settlement::Snooze(Duration::MAX)).await.unwrap().unwrap();
    assert_eq!(settled.status(), Status::Failed);
    assert!(settled.error.unwrap().contains("ten years"));
    world.get(&id).await;
}
