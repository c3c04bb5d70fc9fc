//! Submitting once: idempotency keys.

use leasehold_core::{Kind, NewTask, Status};
use leasehold_queue::unique::{LIFETIME, MARK_GRACE};
use leasehold_queue::{QueueLayout, Scope, Settlement, UniqueKey};
use leasehold_store::Verb;
use serde_json::json;
use std::collections::BTreeSet;
use std::time::Duration;

use crate::support::audit::{self, is_tombstone};
use crate::support::recovery::{LONG, recover};
use crate::support::stage::Fate;
use crate::support::{World, hours, mins, order, requests, secs};

fn key() -> UniqueKey {
    UniqueKey::new("order-17")
}

#[tokio::test]
async fn twenty_keys_submitted_eight_times_at_once_make_twenty_tasks() {
    let world = World::new().await;
    let submits = (0..160).map(|n| {
        let queue = world.queue.clone();
        async move {
            let order = NewTask { input: json!(n % 20), ..order() };
            queue.submit_task(order).key(format!("key-{}", n % 20)).await.unwrap()
        }
    });
    let submitted = futures::future::join_all(submits).await;
    let ids: BTreeSet<_> = submitted.iter().map(|submitted| submitted.id).collect();
    assert_eq!(ids.len(), 20);
    assert_eq!(submitted.iter().filter(|submitted| submitted.is_new).count(), 20);
    assert_eq!(audit::keys(&world.store, "tasks/").await.len(), 20);
}

#[tokio::test]
async fn a_key_costs_one_put_more() {
    let world = World::new().await;
    world.submit().await;
    let before = world.ledger();
    world.queue.submit_task(order()).key(key()).await.unwrap();
    assert_eq!(requests(&world.queue, &before), [3, 0, 0, 0]);
}

#[tokio::test]
async fn a_submit_that_died_before_its_task_is_completed_by_the_next() {
    for at in [1, 2] {
        let world = World::new().await;
        let (queue, stage) = world.staged().await;
        stage.play_at(at, Fate::Die);
        queue.submit_task(order()).key(key()).await.unwrap_err();
        assert!(audit::keys(&world.store, "tasks/").await.is_empty());
        let second = world.queue.submit_task(order()).key(key()).await.unwrap();
        let third = world.queue.submit_task(order()).key(key()).await.unwrap();
        assert_eq!((second.is_new, third.is_new, third.id), (true, false, second.id));
        recover(&world, LONG, "completed by the next").await;
        assert_eq!(world.raw(&second.id).await.unwrap()["status"], "completed");
    }
}

#[tokio::test]
async fn a_key_whose_submit_was_abandoned_is_free_again() {
    let world = World::new().await;
    let (queue, stage) = world.staged().await;
    stage.play_at(2, Fate::Die);
    queue.submit_task(order()).key(key()).await.unwrap_err();
    recover(&world, LONG, "buried").await;
    let again = world.queue.submit_task(order()).key(key()).await.unwrap();
    assert!(again.is_new);
    recover(&world, 1, "again").await;
    assert_eq!(world.raw(&again.id).await.unwrap()["status"], "completed");
}

#[tokio::test]
async fn another_input_or_type_under_the_same_key_is_a_conflict_that_names_the_task() {
    let world = World::new().await;
    let first = world.queue.submit_task(order()).key(key()).await.unwrap();
    for other in [NewTask { input: json!(2), ..order() }, NewTask::new("shrink", order().input).unwrap()] {
        let error = world.queue.submit_task(other).key(key()).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid);
        assert!(error.to_string().contains(&first.id.to_string()), "{error}");
    }
    assert_eq!(audit::keys(&world.store, "tasks/").await.len(), 1);
}

/// JSON objects are unordered: another language, or another run, may serialize them differently.
#[tokio::test]
async fn the_same_input_in_another_order_is_the_same_input() {
    let world = World::new().await;
    let submit = |text: &str| {
        let order = NewTask { input: serde_json::from_str(text).unwrap(), ..order() };
        world.queue.submit_task(order).key(key())
    };
    let first = submit(r#"{"a": 1, "b": [{"c": 2, "d": 3}]}"#).await.unwrap();
    let second = submit(r#"{"b": [{"d": 3, "c": 2}], "a": 1}"#).await.unwrap();
    assert_eq!(first.id, second.id);
    submit(r#"{"a": 1, "b": [{"c": 3, "d": 2}]}"#).await.unwrap_err();
}

#[tokio::test]
async fn a_key_in_the_order_counts_as_well() {
    let world = World::new().await;
    let order = || NewTask { idempotency_key: Some("order-17".into()), ..order() };
    let first = world.queue.submit_task(order()).await.unwrap();
    let second = world.queue.submit_task(order()).await.unwrap();
    assert_eq!((second.id, second.is_new), (first.id, false));
}

#[tokio::test]
async fn the_two_scopes_are_separate() {
    let world = World::new().await;
    let typed = || UniqueKey { scope: Scope::TaskType, ..key() };
    let shrink = || NewTask::new("shrink", json!(1)).unwrap();
    let whole = world.queue.submit_task(order()).key(key()).await.unwrap();
    let resize = world.queue.submit_task(order()).key(typed()).await.unwrap();
    let other = world.queue.submit_task(shrink()).key(typed()).await.unwrap();
    assert_eq!(BTreeSet::from([whole.id, resize.id, other.id]).len(), 3);
    assert_eq!(world.queue.submit_task(shrink()).key(typed()).await.unwrap().id, other.id);
}

#[tokio::test]
async fn an_invalid_lifetime_is_refused() {
    let world = World::new().await;
    for lifetime in [Duration::ZERO, mins(59), Duration::MAX] {
        let error = world.queue.submit_task(order()).key(UniqueKey { lifetime, ..key() }).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid, "{error}");
    }
    assert!(audit::keys(&world.store, "unique/").await.is_empty());
    world.queue.submit_task(order()).key(UniqueKey { lifetime: hours(1), ..key() }).await.unwrap();
}

#[tokio::test]
async fn a_finished_task_is_already_done_until_the_key_expires() {
    let world = World::new().await;
    let first = world.queue.submit_task(order()).key(key()).await.unwrap();
    let claimed = world.claim(&first.id).await;
    world.queue.settle(&claimed, Settlement::complete(json!(1))).await.unwrap().unwrap();
    world.advance(LIFETIME);
    let again = world.queue.submit_task(order()).key(key()).await.unwrap();
    assert_eq!((again.id, again.is_new), (first.id, false));
    world.advance(secs(1));
    let next = world.queue.submit_task(order()).key(key()).await.unwrap();
    assert!(next.is_new && next.id != first.id);
}

#[tokio::test]
async fn replacing_an_expired_record_fences_its_task_first() {
    let world = World::new().await;
    let (stalled, stage) = world.staged().await;
    // The put of the task stays in flight.
    stage.play_at(2, Fate::HoldThenDie);
    stalled.submit_task(order()).key(key()).await.unwrap_err();
    let old = audit::value(&world.store, &audit::keys(&world.store, "unique/").await[0]).await.unwrap();
    world.advance(LIFETIME + secs(1));

    let (queue, stage) = world.staged().await;
    let next = queue.submit_task(order()).key(key()).await.unwrap();
    assert!(next.is_new);
    let puts: Vec<_> = stage.asked().into_iter().filter(|asked| asked.verb == Verb::Put).collect();
    let tombstone = puts.iter().position(|put| put.body_has("\"abandon\"")).unwrap();
    let replaced = puts.iter().rposition(|put| put.key.starts_with("unique/")).unwrap();
    assert!(tombstone < replaced, "the tombstone comes first");
    let id = old["task_id"].as_str().unwrap().parse().unwrap();
    assert!(is_tombstone(&world.raw(&id).await.unwrap()));
}

#[tokio::test]
async fn an_expired_key_is_removed_and_others_stay() {
    let world = World::new().await;
    let first = world.queue.submit_task(order()).key(key()).await.unwrap();
    let path = audit::keys(&world.store, "unique/").await.pop().unwrap();
    assert!(!world.queue.remove_expired_key(&path).await.unwrap());
    world.advance(LIFETIME + secs(1));
    assert!(world.queue.remove_expired_key(&path).await.unwrap());
    assert!(audit::keys(&world.store, "unique/").await.is_empty());
    assert!(!is_tombstone(&world.raw(&first.id).await.unwrap()));
    assert!(!world.queue.remove_expired_key(&path).await.unwrap());
}

#[tokio::test]
async fn a_marked_record_is_not_overwritten_for_half_an_hour() {
    let world = World::new().await;
    world.queue.submit_task(order()).key(key()).await.unwrap();
    let path = audit::keys(&world.store, "unique/").await.pop().unwrap();
    world.advance(LIFETIME + secs(1));
    let (queue, stage) = world.staged().await;
    stage.play(|_, asked| if asked.verb == Verb::Delete { Fate::Hold } else { Fate::Pass });
    queue.remove_expired_key(&path).await.unwrap_err();
    for _ in 0..2 {
        let error = world.queue.submit_task(order()).key(key()).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Unavailable);
        assert!(error.to_string().contains("try again after"), "{error}");
        assert!(!world.queue.remove_expired_key(&path).await.unwrap());
        world.advance(MARK_GRACE / 2);
    }
    world.advance(secs(1));
    assert!(world.queue.submit_task(order()).key(key()).await.unwrap().is_new);
}

/// Its remover died between the mark and the delete, or the delete was lost.
#[tokio::test]
async fn a_record_that_stayed_marked_is_removed_in_the_end() {
    let world = World::new().await;
    world.queue.submit_task(order()).key(key()).await.unwrap();
    let path = audit::keys(&world.store, "unique/").await.pop().unwrap();
    world.advance(LIFETIME + secs(1));
    let (queue, stage) = world.staged().await;
    stage.play(|_, asked| if asked.verb == Verb::Delete { Fate::Die } else { Fate::Pass });
    queue.remove_expired_key(&path).await.unwrap_err();
    world.advance(MARK_GRACE + secs(1));
    assert!(world.queue.remove_expired_key(&path).await.unwrap());
    assert!(audit::keys(&world.store, "unique/").await.is_empty());
}

/// The remover's machine is suspended while its mark is in flight: by then the mark is old, and the key in use again.
#[tokio::test]
async fn a_remover_that_was_suspended_does_not_delete_a_newer_record() {
    let world = World::new().await;
    world.queue.submit_task(order()).key(key()).await.unwrap();
    let path = audit::keys(&world.store, "unique/").await.pop().unwrap();
    world.advance(LIFETIME + secs(1));
    let (queue, stage) = world.staged().await;
    let others = world.clone();
    stage.interrupt(|_, asked| asked.verb == Verb::Put && asked.key.starts_with("unique/"), async move {
        others.advance(mins(31));
    });
    assert!(!queue.remove_expired_key(&path).await.unwrap());
    let submitted = world.queue.submit_task(order()).key(key()).await.unwrap();
    let record = audit::value(&world.store, &path).await.unwrap();
    assert_eq!(record["task_id"], submitted.id.to_string());
    let deletes = stage.asked().into_iter().filter(|asked| asked.verb == Verb::Delete).count();
    assert_eq!(deletes, 0, "its mark was too old to delete by");
}

#[tokio::test]
async fn fields_of_a_newer_program_outlive_the_mark() {
    let world = World::new().await;
    world.queue.submit_task(order()).key(key()).await.unwrap();
    let path = audit::keys(&world.store, "unique/").await.pop().unwrap();
    let mut record = audit::value(&world.store, &path).await.unwrap();
    record["colour"] = json!("blue");
    world.overwrite(&path, record.to_string()).await;
    world.advance(LIFETIME + secs(1));
    let (queue, stage) = world.staged().await;
    stage.play(|_, asked| if asked.verb == Verb::Delete { Fate::Die } else { Fate::Pass });
    queue.remove_expired_key(&path).await.unwrap_err();
    let marked = audit::value(&world.store, &path).await.unwrap();
    assert_eq!(marked["colour"], "blue");

    record["format"] = json!(2);
    world.overwrite(&path, record.to_string()).await;
    let error = world.queue.submit_task(order()).key(key()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Corrupt, "{error}");
}

#[tokio::test]
async fn a_submit_with_the_key_of_a_failed_task_reports_it_and_can_retry_it() {
    let world = World::new().await;
    let submit = |retry_failed| {
        let key = UniqueKey { retry_failed, ..key() };
        async { world.queue.submit_task(order()).key(key).await.unwrap() }
    };
    let id = submit(true).await.id;
    let pending = submit(true).await;
    assert_eq!((pending.existing, pending.is_retried), (Some(Status::Pending), false));
    let claimed = world.claim(&id).await;
    let failed = Settlement::Fail { error: "no".into(), retryable: false, after: None };
    world.queue.settle(&claimed, failed).await.unwrap();
    let before = world.ledger();
    let told = submit(false).await;
    assert_eq!(
        (told.id, told.is_new, told.existing, told.is_retried),
        (id, false, Some(Status::Failed), false)
    );
    assert_eq!(requests(&world.queue, &before), [1, 2, 0, 0], "no more than for any other task");
    assert_eq!(world.get(&id).await.status(), Status::Failed);
    let retried = submit(true).await;
    assert_eq!((retried.existing, retried.is_retried), (Some(Status::Failed), true));
    assert_eq!(world.get(&id).await.status(), Status::Pending);
    world.queue.cancel(&id).await.unwrap();
    let cancelled = submit(true).await;
    assert_eq!((cancelled.existing, cancelled.is_retried), (Some(Status::Cancelled), false));
}
