//! Submits, above all those with an unknown outcome: acknowledged, fenced, or unknown with the id; never wrong.

use futures::StreamExt;
use leasehold_core::new_task::Start;
use leasehold_core::{Entry, Index, Kind, NewTask, RetryPolicy, State, StoreTime, TaskId};
use leasehold_queue::{Queue, QueueConfig};
use leasehold_store::Verb;
use serde_json::json;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use crate::support::audit::{self, assert_covered, is_tombstone};
use crate::support::recovery::{LONG, recover};
use crate::support::stage::{Fate, Request};
use crate::support::{World, hours, order};

fn is_task_put(asked: &Request) -> bool {
    asked.verb == Verb::Put && asked.key.starts_with("tasks/")
}

async fn only_id(world: &World) -> TaskId {
    let key = audit::keys(&world.store, "ready/").await.pop().unwrap();
    Entry::parse(&key).unwrap().id
}

#[tokio::test]
async fn a_submit_whose_answers_are_all_lost_is_acknowledged_by_what_it_reads() {
    let world = World::new().await;
    let (queue, stage) = world.staged().await;
    stage.play(|_, asked| if is_task_put(asked) { Fate::LoseAnswer } else { Fate::Pass });
    let submitted = queue.submit_task(order()).await.unwrap();
    assert!(submitted.is_new);
    recover(&world, 1, "acknowledged").await;
    assert_eq!(world.raw(&submitted.id).await.unwrap()["status"], "completed");
}

#[tokio::test]
async fn a_submit_that_never_succeeds_puts_a_tombstone() {
    let world = World::new().await;
    let (queue, stage) = world.staged().await;
    // The tombstone is another write to the same key: it is not blocked. It is retried, because the store answers reads.
    let tombstones = AtomicUsize::new(0);
    stage.play(move |_, asked| match (is_task_put(asked), asked.body_has("\"abandon\"")) {
        (true, false) => Fate::Hold,
        (true, true) if tombstones.fetch_add(1, Relaxed) == 0 => Fate::LoseRequest,
        _ => Fate::Pass,
    });
    let started = world.now();
    let error = queue.submit_task(order()).await.unwrap_err();
    assert!(!error.outcome_is_unknown(), "{error}");
    assert!(world.now().since(started) >= std::time::Duration::from_mins(15));
    let id = only_id(&world).await;
    assert!(is_tombstone(&world.raw(&id).await.unwrap()));
    stage.apply_late().await;
    assert!(is_tombstone(&world.raw(&id).await.unwrap()), "a late put has undone the fence");
    recover(&world, LONG, "fenced").await;
    assert!(audit::keys(&world.store, "ready/").await.is_empty());
}

#[tokio::test]
async fn a_submit_without_any_answer_fails_with_unknown_outcome_and_the_id() {
    for lands in [false, true] {
        let world = World::new().await;
        let (queue, stage) = world.staged().await;
        stage.play(|_, asked| match (is_task_put(asked), asked.key.starts_with("tasks/")) {
            (true, _) => Fate::Hold,
            (_, true) => Fate::LoseRequest,
            _ => Fate::Pass,
        });
        let error = queue.submit_task(order()).await.unwrap_err();
        assert!(error.outcome_is_unknown());
        let id = only_id(&world).await;
        assert_eq!(error.to_string(), format!("outcome unknown: task {id} may or may not run"));
        if lands {
            stage.apply_late().await;
        }
        assert_covered(&world.store, "unknown").await;
        recover(&world, LONG, "unknown").await;
        let task = world.raw(&id).await.unwrap();
        assert_eq!(is_tombstone(&task), !lands);
        if lands {
            assert_eq!(task["status"], "completed");
        }
    }
}

#[tokio::test]
async fn a_submit_that_definitely_failed_removes_its_entry_unless_another_may_complete_it() {
    for fate in [Fate::Refuse, Fate::Unreached] {
        let world = World::new().await;
        let (queue, stage) = world.staged().await;
        stage.play(move |_, asked| if is_task_put(asked) { fate } else { Fate::Pass });
        let error = queue.submit_task(order()).await.unwrap_err();
        assert!(!error.outcome_is_unknown() && error.to_string().contains("was not submitted"), "{error}");
        assert!(audit::keys(&world.store, "ready/").await.is_empty(), "{fate:?}");
        let error = queue.submit_task(order()).key("k").await.unwrap_err();
        assert!(!error.outcome_is_unknown() && error.to_string().contains("was not submitted"), "{error}");
        assert_eq!(audit::keys(&world.store, "ready/").await.len(), 1, "another producer may be using it");
    }
}

/// It has retried for as long as it was configured to, and the tombstone could be retried no more successfully.
#[tokio::test]
async fn a_submit_to_a_store_that_answers_nothing_does_not_wait_for_its_tombstone() {
    for fate in [Fate::LoseRequest, Fate::Unreached] {
        let world = World::new().await;
        let submit_wait = Duration::from_secs(30);
        let (queue, stage) = world.staged_with(QueueConfig { submit_wait, ..QueueConfig::default() }).await;
        let is_dead = AtomicBool::new(false);
        stage.play(move |_, asked| {
            let is_first = is_task_put(asked) && !is_dead.swap(true, Relaxed);
            match is_first {
                true => Fate::Hold,
                false if is_dead.load(Relaxed) => fate,
                false => Fate::Pass,
            }
        });
        let started = world.now();
        let error = queue.submit_task(order()).await.unwrap_err();
        let id = only_id(&world).await;
        assert_eq!(error.to_string(), format!("outcome unknown: task {id} may or may not run"));
        let took = world.now().since(started);
        assert!(took >= submit_wait && took < submit_wait + Duration::from_secs(15), "{fate:?}: {took:?}");
        stage.apply_late().await;
        recover(&world, 5, "landed").await;
        assert_eq!(world.raw(&id).await.unwrap()["status"], "completed");
    }
}

/// The first attempt may still be applied, whatever the outcome of those after it.
#[tokio::test]
async fn an_unknown_outcome_stays_unknown_when_a_later_attempt_definitely_fails() {
    for fate in [Fate::Refuse, Fate::Unreached] {
        let world = World::new().await;
        let (queue, stage) = world.staged().await;
        let puts = AtomicUsize::new(0);
        stage.play(move |_, asked| {
            if is_task_put(asked) {
                if puts.fetch_add(1, Relaxed) == 0 { Fate::Hold } else { fate }
            } else if asked.key.starts_with("tasks/") {
                // The reads that could resolve it are lost until the time limit of the first put has passed.
                Fate::LoseRequest
            } else {
                Fate::Pass
            }
        });
        let error = queue.submit_task(order()).await.unwrap_err();
        let id = only_id(&world).await;
        assert!(error.outcome_is_unknown(), "{fate:?}: {error}");
        assert!(error.to_string().contains(&id.to_string()), "{error}");
        stage.apply_late().await;
        recover(&world, 5, "landed").await;
        assert_eq!(world.raw(&id).await.unwrap()["status"], "completed");
    }
}

/// A laptop is closed between the entry and the task, for days: the entry was removed, the id fenced and purged.
#[tokio::test]
async fn a_producer_that_was_suspended_for_days_does_not_create_a_task_without_an_entry() {
    let world = World::new().await;
    let (queue, stage) = world.staged().await;
    let others = world.clone();
    stage.interrupt(|_, asked| asked.verb == Verb::Put && asked.key.starts_with("ready/"), async move {
        others.advance(hours(24 * 7));
    });
    let error = queue.submit_task(order()).await.unwrap_err();
    assert!(!error.outcome_is_unknown(), "{error}");
    recover(&world, LONG, "slept").await;
    assert!(audit::keys(&world.store, "ready/").await.is_empty());
}

#[tokio::test]
async fn bad_input_is_refused_and_nothing_is_written() {
    let world = World::new().await;
    // As deep as JSON can be read, but a record adds a level of its own.
    let deep = (0..127).fold(json!(1), |inner, _| json!([inner]));
    for order in [
        NewTask { input: json!("x".repeat(300_000)), ..order() },
        NewTask { input: deep, ..order() },
        NewTask { max_attempts: Some(0), ..order() },
        NewTask { start: Start::At(StoreTime::NEVER), ..order() },
        NewTask { idempotency_key: Some(String::new()), ..order() },
    ] {
        let error = world.queue.submit_task(order).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid, "{error}");
    }
    for key in [String::new(), "x".repeat(300)] {
        let error = world.queue.submit_task(order()).key(key).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid, "{error}");
    }
    assert_eq!(audit::keys(&world.store, "").await, ["queue.json"]);
}

#[tokio::test]
async fn all_options_of_a_task_are_recorded() {
    let world = World::new().await;
    let (queue, at) = (&world.queue, world.queue.now().unwrap().earliest.plus(hours(2)));
    let retry_policy = RetryPolicy { factor: 3.0, ..RetryPolicy::default() };
    let submit = queue.submit("resize", json!({"b": 1, "a": 2})).at(at).key("img-1").max_attempts(7);
    let submit = submit.retry_policy(retry_policy.clone()).timeout(Duration::from_millis(1_500));
    let submit = submit.expires_in(hours(3)).priority(9).tag("colour", "red").tag("size", "s");
    let task = world.get(&submit.await.unwrap().id).await;
    assert_eq!((task.task_type.as_str(), &task.input), ("resize", &json!({"b": 1, "a": 2})));
    assert_eq!(task.state, State::Pending { available_at: at });
    assert_eq!(task.idempotency_key.as_deref(), Some("img-1"));
    assert_eq!((task.max_attempts, task.timeout_secs, &task.retry_policy), (7, Some(2), &retry_policy));
    assert_eq!(task.expires_at, Some(task.created_at.plus(hours(3))));
    assert_eq!((u8::from(task.priority), task.tags.len()), (9, 2));
    let delayed = queue.submit("resize", ()).delay(hours(1)).await.unwrap();
    let task = world.get(&delayed.id).await;
    assert_eq!(task.state, State::Pending { available_at: task.created_at.plus(hours(1)) });
}

#[tokio::test]
async fn the_first_invalid_option_of_a_chain_is_reported_at_its_end() {
    let world = World::new().await;
    let submit = |task_type| world.queue.submit(task_type, ());
    for (submit, word) in [
        (submit("no such type!").priority(10).delay(hours(1)), "task type"),
        (submit("resize").priority(10).max_attempts(0), "priority must be 0 to 9, got 10"),
        (submit("resize").timeout(Duration::ZERO), "timeout must be at least 1 second, got 0"),
        (world.queue.submit("resize", HashMap::from([((1, 2), 3)])), "the input cannot be written as JSON"),
    ] {
        let error = submit.await.unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid);
        assert!(error.to_string().contains(word), "{error}");
    }
    assert_eq!(audit::keys(&world.store, "").await, ["queue.json"]);
}

#[tokio::test]
async fn many_submits_keep_their_order_and_fail_one_by_one() {
    let world = World::new().await;
    let submits = (0..100).map(|n| {
        let max_attempts = u32::from(n % 10 != 3);
        world.queue.submit(order().task_type.as_str(), n).max_attempts(max_attempts)
    });
    let results: Vec<_> = Queue::from(world.queue.clone()).submit_many(submits).collect().await;
    assert_eq!(results.len(), 100);
    for (n, result) in results.into_iter().enumerate() {
        match result {
            Ok(submitted) => assert_eq!(world.get(&submitted.id).await.input, json!(n)),
            Err(error) => assert_eq!((n % 10, error.kind()), (3, Kind::Invalid)),
        }
    }
    assert_eq!(world.due(Index::Ready).await.len(), 90);
}
