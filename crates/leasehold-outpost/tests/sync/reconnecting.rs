//! The reconnect table, row by row: real files, a real supervisor, a bucket in memory, a link that is cut and restored.

use leasehold_core::outpost::Consistency::{self, Relaxed, Strict};
use leasehold_core::{Event, HexName, Kind, Name, Status, Task, TaskId};
use leasehold_outpost::NodeLocation;
use leasehold_queue::{Operated, TaskSnapshot, UpdateOutcome};
use leasehold_store::Purpose;
use serde_json::{Value, json};
use std::time::Duration;

use crate::field::{Field, Node, minutes, order};

/// Claims the task as a worker on the bucket.
async fn taken_by_others(field: &Field, id: &TaskId) -> TaskSnapshot {
    let seen = field.queue.see(Purpose::Admin, id).await.unwrap().unwrap();
    let worker = Name::checked("worker id", "others").unwrap();
    let lease_id = HexName::from_random(0xbeef);
    advanced(field, &seen, &Event::Claim { worker, lease_id, lease: minutes(30) }).await
}

async fn advanced(field: &Field, seen: &TaskSnapshot, event: &Event) -> TaskSnapshot {
    match field.queue.advance(Purpose::Admin, seen, event, "others").await.unwrap() {
        UpdateOutcome::Done(seen) => seen,
        other => panic!("{event:?}: {other:?}"),
    }
}

async fn completed_by_others(field: &Field, id: &TaskId) {
    let seen = taken_by_others(field, id).await;
    let lease_id = seen.task().lease_id.clone().unwrap();
    let output = json!("others");
    advanced(field, &seen, &Event::Complete { lease_id, output, results: leasehold_core::Artifacts::new() })
        .await;
}

async fn failed_by_others(field: &Field, id: &TaskId) {
    let seen = taken_by_others(field, id).await;
    let lease_id = seen.task().lease_id.clone().unwrap();
    let fail = Event::Fail { lease_id, error: "broken".into(), retryable: false, after: None };
    advanced(field, &seen, &fail).await;
}

async fn cancelled(field: &Field, id: &TaskId) {
    assert!(matches!(field.queue.cancel(id).await.unwrap(), Operated::Done(_)));
}

/// A node that has a copy of one task, and no link.
async fn alone(consistency: Consistency) -> (Field, Node, TaskId) {
    let field = Field::new(consistency).await;
    let id = field.submit().await;
    let mut node = field.node("pi-1");
    assert_eq!(node.sync().await.mirrored, 1);
    node.cut();
    assert_eq!(node.supervisor.sync().await.unwrap_err().kind(), Kind::Unavailable);
    (field, node, id)
}

fn completions(task: &Task) -> usize {
    task.history.events().filter(|change| change.to == Status::Completed).count()
}

#[tokio::test]
async fn new_tasks_are_created_and_duplicates_and_tombstones_reported() {
    let field = Field::new(Relaxed).await;
    let mut node = field.node("pi-1");
    node.cut();
    let id = node.spool.submit(order()).unwrap();
    assert_eq!(node.supervisor.sync().await.unwrap_err().kind(), Kind::Unavailable);
    node.mend();
    assert_eq!(node.sync().await.sent, 1);
    let task = field.get(&id).await;
    assert_eq!((task.status(), &task.input), (Status::Pending, &json!({"picture": 1})));
    assert!(task.unknown.is_empty(), "what only the node needs stays there: {:?}", task.unknown);
    assert!(node.has_nothing_to_send());
    assert_eq!(node.sync().await.sent, 0);
    // An equal key on another node gives the same task.
    let mut other = field.node("pi-2");
    let keyed = || leasehold_core::NewTask { idempotency_key: Some("k".into()), ..order() };
    let (first, second) = (node.spool.submit(keyed()).unwrap(), other.spool.submit(keyed()).unwrap());
    assert_eq!(first, second);
    node.sync().await;
    other.sync().await;
    assert_eq!(field.get(&first).await.rev, 1, "the bucket's stays");
    assert!(other.has_nothing_to_send());
}

#[tokio::test]
async fn a_check_out_continues_is_claimed_again_or_dropped() {
    let (field, mut node, id) = alone(Strict).await;
    node.mend();
    let until = field.queue.now().unwrap().earliest.plus(minutes(60));
    assert_eq!(node.supervisor.check_out(10, None, until).await.unwrap(), 1);
    let epoch = field.get(&id).await.epoch;
    assert_eq!(field.get(&id).await.status(), Status::Running);
    // Live: no request to the bucket.
    node.cut();
    let held = node.claim(&id).unwrap();
    assert!(!held.lease.tentative);
    node.spool.release(&held, None).unwrap();
    node.mend();
    node.sync().await;
    // Released: any worker may claim it.
    assert_eq!(field.get(&id).await.status(), Status::Pending);
    // Expired and still ours: claimed again, with a new epoch.
    let until = field.queue.now().unwrap().earliest.plus(minutes(5));
    node.supervisor.check_out(10, None, until).await.unwrap();
    field.pass(minutes(6));
    node.sync().await;
    let again = field.get(&id).await;
    assert_eq!(again.status(), Status::Running);
    assert!(again.epoch > epoch + 1);
    assert_eq!(again.attempt, 1, "no worker has started it");
    // Only once: a node that does not start it releases it.
    field.pass(minutes(11));
    node.sync().await;
    assert_eq!(field.get(&id).await.status(), Status::Pending);
    // Held by another worker: removed.
    let until = field.queue.now().unwrap().earliest.plus(minutes(5));
    node.supervisor.check_out(10, None, until).await.unwrap();
    node.cut();
    field.pass(minutes(6));
    let seen = field.queue.see(Purpose::Admin, &id).await.unwrap().unwrap();
    let worker = Name::checked("worker id", "others").unwrap();
    let lease_id = HexName::from_random(7);
    let (lease, from) = (minutes(30), None);
    advanced(&field, &seen, &Event::TakeOver { worker, lease_id, lease, from, is_unused: false }).await;
    node.mend();
    node.sync().await;
    assert!(node.spool.get(&id).unwrap().is_none());
    assert_eq!(field.get(&id).await.lease_id, Some(HexName::from_random(7)));
}

#[tokio::test]
async fn a_tentative_claim_is_confirmed_or_taken_away() {
    let (field, mut node, id) = alone(Strict).await;
    let mut held = node.claim(&id).unwrap();
    assert!(held.lease.tentative);
    assert!(!node.spool.standing(&held).unwrap().confirmed);
    node.mend();
    assert_eq!(node.sync().await.confirmed, 1);
    assert!(node.spool.heartbeat(&mut held).unwrap().confirmed);
    let task = field.get(&id).await;
    assert_eq!((task.status(), task.epoch), (Status::Running, held.lease.epoch));
    node.complete(&held, 1);
    node.sync().await;
    assert_eq!(field.get(&id).await.output(), Some(&json!(1)));

    for others in 0..3 {
        let (field, mut node, id) = alone(Strict).await;
        let held = node.claim(&id).unwrap();
        match others {
            0 => drop(taken_by_others(&field, &id).await),
            1 => completed_by_others(&field, &id).await,
            _ => cancelled(&field, &id).await,
        }
        node.mend();
        assert_eq!(node.sync().await.refused, 1, "{others}");
        assert_eq!(node.spool.standing(&held).unwrap_err().kind(), Kind::Lost);
        assert!(node.has_nothing_to_send());
    }
}

#[tokio::test]
async fn a_running_task_is_claimed_renewed_taken_over_or_stopped() {
    // Pending: claimed. Ours: renewed. A lost answer is recognized by the lease id.
    let (field, mut node, id) = alone(Relaxed).await;
    let mut held = node.claim(&id).unwrap();
    node.mend();
    assert_eq!(node.sync().await.confirmed, 1);
    for _ in 0..6 {
        field.pass(minutes(5));
        node.spool.heartbeat(&mut held).unwrap();
        node.sync().await;
    }
    let task = field.get(&id).await;
    assert_eq!((task.status(), task.epoch, task.attempt), (Status::Running, 1, 1));
    node.complete(&held, 1);
    node.sync().await;
    assert_eq!(completions(&field.get(&id).await), 1);

    // Held by another worker: stopped, unless the setting allows it to finish.
    let (field, mut node, id) = alone(Relaxed).await;
    let held = node.claim(&id).unwrap();
    taken_by_others(&field, &id).await;
    node.mend();
    node.sync().await;
    assert_eq!(node.spool.standing(&held).unwrap_err().kind(), Kind::Lost);

    // Held by another worker that has died: taken over.
    let (field, mut node, id) = alone(Relaxed).await;
    let mut held = node.claim(&id).unwrap();
    taken_by_others(&field, &id).await;
    for _ in 0..4 {
        field.pass(minutes(8));
        node.spool.heartbeat(&mut held).unwrap();
    }
    node.mend();
    node.sync().await;
    let task = field.get(&id).await;
    assert_eq!(
        (task.status(), task.epoch, task.lease_id),
        (Status::Running, 2, Some(held.lease.lease_id.clone()))
    );

    // Completed by another worker: stopped, and counted.
    let (field, mut node, id) = alone(Relaxed).await;
    let held = node.claim(&id).unwrap();
    completed_by_others(&field, &id).await;
    node.mend();
    assert_eq!(node.sync().await.duplicates, 1);
    assert_eq!(node.spool.standing(&held).unwrap_err().kind(), Kind::Lost);
    assert_eq!(node.spool.count().unwrap().duplicates, 1);

    // Failed or cancelled: stopped.
    for is_failed in [true, false] {
        let (field, mut node, id) = alone(Relaxed).await;
        let held = node.claim(&id).unwrap();
        if is_failed {
            failed_by_others(&field, &id).await;
        } else {
            cancelled(&field, &id).await;
        }
        node.mend();
        node.sync().await;
        assert_eq!(node.spool.standing(&held).unwrap_err().kind(), Kind::Lost);
    }
}

#[tokio::test]
async fn a_completion_is_recorded_once_and_never_discarded() {
    for consistency in [Strict, Relaxed] {
        for case in ["pending", "others", "completed", "failed", "cancelled"] {
            let (field, mut node, id) = match consistency {
                Relaxed => alone(Relaxed).await,
                Strict => {
                    // The check-out has expired.
                    let (field, mut node, id) = alone(Strict).await;
                    node.mend();
                    let until = field.queue.now().unwrap().earliest.plus(minutes(5));
                    node.supervisor.check_out(1, None, until).await.unwrap();
                    node.cut();
                    (field, node, id)
                }
            };
            let held = node.claim(&id).unwrap();
            if consistency == Strict {
                field.pass(minutes(6));
                let seen = field.queue.see(Purpose::Admin, &id).await.unwrap().unwrap();
                advanced(&field, &seen, &Event::TimeOut).await;
                field.pass(minutes(5));
            }
            match case {
                "others" => drop(taken_by_others(&field, &id).await),
                "completed" => completed_by_others(&field, &id).await,
                "failed" => failed_by_others(&field, &id).await,
                "cancelled" => cancelled(&field, &id).await,
                _ => {}
            }
            node.complete(&held, 42);
            node.mend();
            node.sync().await;
            let task = field.get(&id).await;
            let is_ours = match case {
                "pending" => true,
                "others" | "failed" => consistency == Relaxed,
                _ => false,
            };
            let told = format!("{consistency:?} {case}: {task:?}");
            assert_eq!(task.output() == Some(&json!(42)), is_ours, "{told}");
            assert_eq!(node.conflicts(), usize::from(!is_ours), "{told}");
            assert!(completions(&task) <= 1, "{told}");
            if is_ours {
                assert_eq!(task.history.events().last().unwrap().event, "completed_offline", "{told}");
            }
            assert!(node.has_nothing_to_send(), "{told}");
            // Sent again, as after a lost answer, it changes nothing.
            node.sync().await;
            assert_eq!(field.get(&id).await.rev, task.rev);
        }
    }
}

#[tokio::test]
async fn a_failed_attempt_counts_unless_another_worker_has_claimed_it() {
    let (field, mut node, id) = alone(Relaxed).await;
    let held = node.claim(&id).unwrap();
    node.spool.fail(&held, "no film", true, None).unwrap();
    node.mend();
    node.sync().await;
    let task = field.get(&id).await;
    assert_eq!((task.status(), task.attempt, task.error.as_deref()), (Status::Pending, 1, Some("no film")));

    let (field, mut node, id) = alone(Relaxed).await;
    let held = node.claim(&id).unwrap();
    node.spool.fail(&held, "no film", true, None).unwrap();
    let others = taken_by_others(&field, &id).await;
    node.mend();
    node.sync().await;
    assert_eq!(field.get(&id).await, *others.task());
    assert!(node.has_nothing_to_send());
}

#[tokio::test]
async fn a_released_or_snoozed_task_is_released_in_the_bucket() {
    let (field, mut node, id) = alone(Relaxed).await;
    let held = node.claim(&id).unwrap();
    node.mend();
    node.sync().await;
    node.cut();
    let until = field.queue.now().unwrap().earliest.plus(minutes(30));
    node.spool.release(&held, Some(until)).unwrap();
    node.mend();
    node.sync().await;
    let task = field.get(&id).await;
    assert_eq!((task.status(), task.attempt), (Status::Pending, 0));
    assert_eq!(task.state, leasehold_core::State::Pending { available_at: until });
}

#[tokio::test]
async fn a_requeue_makes_another_generation_unless_another_client_was_faster() {
    for case in ["failed", "retried", "completed"] {
        let (field, mut node, id) = alone(Relaxed).await;
        let held = node.claim(&id).unwrap();
        node.spool.fail(&held, "broken", false, None).unwrap();
        node.mend();
        node.sync().await;
        assert_eq!(field.get(&id).await.status(), Status::Failed);
        node.cut();
        assert_eq!(node.spool.requeue(&id).unwrap().generation, 1);
        if case != "failed" {
            field.queue.retry(&id).await.unwrap();
        }
        if case == "completed" {
            completed_by_others(&field, &id).await;
        }
        node.mend();
        node.sync().await;
        let task = field.get(&id).await;
        assert_eq!(task.generation, 1, "{case}");
        assert_eq!(task.status() == Status::Pending, case != "completed", "{case}");
        assert!(node.has_nothing_to_send());
        if case == "failed" {
            // In the new generation there is one more completion.
            let held = node.claim(&id).unwrap();
            node.complete(&held, 2);
            node.sync().await;
            assert_eq!(completions(&field.get(&id).await), 1);
        }
    }
}

#[tokio::test]
async fn a_cancel_is_passed_on_as_far_as_it_still_means_something() {
    let (field, mut node, id) = alone(Relaxed).await;
    node.spool.cancel(&id).unwrap();
    node.mend();
    node.sync().await;
    assert_eq!(field.get(&id).await.status(), Status::Cancelled);

    let (field, mut node, id) = alone(Relaxed).await;
    taken_by_others(&field, &id).await;
    node.spool.cancel(&id).unwrap();
    node.mend();
    node.sync().await;
    let task = field.get(&id).await;
    let leasehold_core::State::Running(claim) = &task.state else { panic!("{task:?}") };
    assert!(claim.cancel_requested);

    let (field, mut node, id) = alone(Relaxed).await;
    completed_by_others(&field, &id).await;
    node.spool.cancel(&id).unwrap();
    node.mend();
    node.sync().await;
    assert_eq!(field.get(&id).await.output(), Some(&Value::from("others")));
    assert!(node.has_nothing_to_send());
}

#[tokio::test]
async fn a_cancel_from_another_client_reaches_the_worker_that_runs_the_task() {
    let (field, mut node, id) = alone(Relaxed).await;
    let mut held = node.claim(&id).unwrap();
    node.mend();
    node.sync().await;
    cancelled(&field, &id).await;
    field.pass(minutes(5));
    node.spool.heartbeat(&mut held).unwrap();
    node.sync().await;
    assert!(node.spool.standing(&held).unwrap().cancelled);
    node.spool.stop(&held).unwrap();
    node.sync().await;
    assert_eq!(field.get(&id).await.status(), Status::Cancelled);
    assert!(matches!(node.spool.get(&id).unwrap().unwrap().place, NodeLocation::Failed));
}

#[tokio::test]
async fn a_task_that_was_submitted_before_the_first_connection_gets_the_buckets_time() {
    let field = Field::new(Relaxed).await;
    let mut node = field.node("pi-1");
    node.cut();
    let delayed =
        leasehold_core::NewTask { start: leasehold_core::new_task::Start::After(minutes(90)), ..order() };
    let (now, later) = (node.spool.submit(order()).unwrap(), node.spool.submit(delayed).unwrap());
    let created_at = node.spool.get(&now).unwrap().unwrap().task.created_at;
    assert!(field.queue.now().unwrap().earliest.since(created_at) > minutes(600), "in a time of its own");
    node.mend();
    node.sync().await;
    let sent_at = field.queue.now().unwrap().earliest;
    let [first, second] = [field.get(&now).await, field.get(&later).await];
    assert_eq!((first.created_at, first.history.events().next().unwrap().at), (sent_at, sent_at));
    assert_eq!(second.state, leasehold_core::State::Pending { available_at: sent_at.plus(minutes(90)) });
}

#[tokio::test]
async fn a_check_out_whose_process_has_died_is_released() {
    let (field, mut node, id) = alone(Strict).await;
    node.mend();
    // The operations before it records that it holds the task.
    let op = leasehold_core::outpost::Op {
        task: id,
        generation: 0,
        epoch: 1,
        base_rev: 1,
        at: field.queue.now().unwrap().earliest,
        clock: leasehold_core::outpost::ClockMark::Bucket,
        deed: leasehold_core::outpost::OpKind::Claim {
            lease_id: HexName::from_random(5),
            from: None,
            is_unused: false,
        },
    };
    node.spool.note(&op).unwrap();
    let seen = field.queue.see(Purpose::Admin, &id).await.unwrap().unwrap();
    let worker = Name::checked("worker id", "pi-1").unwrap();
    let claim = Event::Claim { worker, lease_id: HexName::from_random(5), lease: minutes(600) };
    advanced(&field, &seen, &claim).await;
    node.sync().await;
    assert_eq!(field.get(&id).await.status(), Status::Pending);
    assert!(node.has_nothing_to_send());
}

#[tokio::test]
async fn a_supervisor_that_dies_between_two_writes_is_made_up_for() {
    // The claim is in the bucket, and the node has not received the answer.
    let (field, mut node, id) = alone(Strict).await;
    let held = node.claim(&id).unwrap();
    node.mend();
    let ops = node.spool.outbox().unwrap();
    node.sync().await;
    // As if its end had not been recorded: the operation is there again.
    for (_, op) in ops {
        node.spool.note(&op).unwrap();
    }
    node.sync().await;
    assert!(node.spool.standing(&held).unwrap().confirmed);
    let task = field.get(&id).await;
    assert_eq!((task.status(), task.epoch), (Status::Running, 1));
    field.pass(Duration::from_secs(1));
}

#[tokio::test]
async fn a_retry_that_the_bucket_has_refused_does_not_count() {
    let (field, mut node, id) = alone(Relaxed).await;
    node.spool.cancel(&id).unwrap();
    taken_by_others(&field, &id).await;
    assert_eq!(node.spool.requeue(&id).unwrap().generation, 1);
    let held = node.claim(&id).unwrap();
    node.complete(&held, 7);
    node.mend();
    node.sync().await;
    let task = field.get(&id).await;
    assert_eq!((task.status(), task.generation), (Status::Running, 0));
    assert_eq!(node.conflicts(), 1);
    assert!(node.has_nothing_to_send());
}

#[tokio::test]
async fn the_bucket_keeps_the_bound_of_attempts_of_a_handler() {
    for is_claimed_before in [true, false] {
        let (field, mut node, id) = alone(Relaxed).await;
        let held = node.claim(&id).unwrap();
        if is_claimed_before {
            node.mend();
            node.sync().await;
            assert_eq!(field.get(&id).await.status(), Status::Running);
            node.cut();
        }
        let failed = node.spool.exhaust(&held, "no more", 1).unwrap();
        assert_eq!((failed.attempt, failed.max_attempts), (1, 1));
        node.mend();
        node.sync().await;
        let task = field.get(&id).await;
        assert_eq!((task.status(), task.attempt, task.max_attempts), (Status::Failed, 1, 1));
    }
}
