//! Attempts, delays between them, and generations.

use leasehold_core::{Kind, Reason, Status};
use leasehold_outpost::{NodeLocation, Spool};
use serde_json::json;
use std::collections::HashSet;
use std::time::Duration;

use crate::support::{any, bucket, claim, complete, op_names, ops, order, places, stand};

#[test]
fn pauses_double_from_ten_seconds_and_after_five_attempts_it_has_failed() {
    for knows_bucket in [false, true] {
        let stand = stand();
        if knows_bucket {
            stand.spool.learn_time(bucket(0)).unwrap();
        }
        let id = stand.spool.submit(order()).unwrap();
        for pause in [10, 20, 40, 80] {
            let held = claim(&stand.spool, &id, "w").unwrap();
            let task = stand.spool.fail(&held, "it broke", true, None).unwrap();
            assert_eq!((task.status(), task.error.as_deref()), (Status::Pending, Some("it broke")));
            stand.advance(pause - 1);
            assert!(claim(&stand.spool, &id, "w").is_none(), "pause {pause}");
            // The range of the bucket's time widens with time: nothing starts early.
            stand.advance(2);
        }
        let held = claim(&stand.spool, &id, "w").unwrap();
        assert_eq!(held.task.attempt, 5);
        let task = stand.spool.fail(&held, "it broke again", true, None).unwrap();
        assert_eq!(task.status(), Status::Failed);
        let there = stand.spool.get(&id).unwrap().unwrap();
        assert_eq!(
            (there.place, there.task.error.as_deref()),
            (NodeLocation::Failed, Some("it broke again"))
        );
        let names: HashSet<_> = ops(&stand.spool).iter().map(|op| op.name().to_string()).collect();
        assert_eq!(names.len(), 11, "a submit, five claims, five failures");
    }
}

#[test]
fn pauses_are_never_longer_than_ten_minutes() {
    let stand = stand();
    let id = stand.spool.submit(order()).unwrap();
    let task = stand.spool.get(&id).unwrap().unwrap().task;
    let pauses: Vec<_> = (1..=9).map(|n| task.retry_policy.backoff(n, 0).as_secs()).collect();
    assert_eq!(pauses, [10, 20, 40, 80, 160, 320, 600, 600, 600]);
    assert_eq!(task.max_attempts, 5);
    let mut asked = order();
    asked.max_attempts = 2;
    let id = stand.spool.submit(asked).unwrap();
    assert_eq!(stand.spool.get(&id).unwrap().unwrap().task.max_attempts, 2);
}

#[test]
fn a_task_that_was_not_started_in_time_has_expired() {
    let stand = stand();
    let mut brief = order();
    brief.expires_in = Some(Duration::from_mins(1));
    let id = stand.spool.submit(brief).unwrap();
    stand.advance(61);
    assert_eq!(stand.spool.poll(9, &any).unwrap(), [id]);
    assert!(claim(&stand.spool, &id, "w").is_none());
    assert_eq!(stand.spool.get(&id).unwrap().unwrap().task.status(), Status::Expired);
    assert_eq!(places(&stand.spool, &id), ["failed"]);
    stand.spool.requeue(&id).unwrap();
    complete(&stand.spool, &claim(&stand.spool, &id, "w").unwrap()).unwrap();
}

#[test]
fn a_failure_may_say_when_to_try_again() {
    let stand = stand();
    let id = stand.spool.submit(order()).unwrap();
    let held = claim(&stand.spool, &id, "w").unwrap();
    stand.spool.fail(&held, "busy", true, Some(Duration::from_secs(3))).unwrap();
    stand.advance(3);
    assert_eq!(claim(&stand.spool, &id, "w").unwrap().lease.attempt, 2);
}

#[test]
fn a_requeue_is_another_generation_whose_operations_have_other_names() {
    let stand = stand();
    let id = stand.spool.submit(order()).unwrap();
    for generation in 0..3 {
        let held = claim(&stand.spool, &id, "w").unwrap();
        assert_eq!((held.task.generation, held.task.attempt), (generation, 1));
        stand.spool.fail(&held, "it broke", false, None).unwrap();
        assert_eq!(places(&stand.spool, &id), ["failed"]);
        let task = stand.spool.requeue(&id).unwrap();
        assert_eq!((task.generation, task.status()), (generation + 1, Status::Pending));
        assert_eq!(places(&stand.spool, &id), ["pending"]);
        let again = stand.spool.requeue(&id).unwrap_err();
        assert_eq!(again.matter(), Some(Reason::Conflict), "{again}");
    }
    let names: Vec<_> = ops(&stand.spool).iter().map(|op| op.name().to_string()).collect();
    assert_eq!(names.iter().collect::<HashSet<_>>().len(), names.len(), "{names:?}");
    assert_eq!(names[..4], ["0-0-submit", "0-1-claim", "0-1-fail", "0-1-requeue"]);
    assert_eq!(names[4..7], ["1-2-claim", "1-2-fail", "1-2-requeue"]);
}

#[test]
fn a_released_task_has_used_no_attempt() {
    let stand = stand();
    stand.spool.learn_time(bucket(0)).unwrap();
    let id = stand.spool.submit(order()).unwrap();
    let held = claim(&stand.spool, &id, "w").unwrap();
    assert_eq!(stand.spool.release(&held, None).unwrap().attempt, 0);
    let held = claim(&stand.spool, &id, "w").unwrap();
    assert_eq!((held.lease.attempt, held.lease.epoch), (1, 2));
    let later = stand.spool.now().present().earliest.plus(Duration::from_mins(30));
    stand.spool.release(&held, Some(later)).unwrap();
    stand.advance(29 * 60);
    assert!(claim(&stand.spool, &id, "w").is_none());
    stand.advance(65);
    assert_eq!(claim(&stand.spool, &id, "w").unwrap().lease.attempt, 1);
}

#[test]
fn a_cancelled_task_is_stopped_by_its_holder() {
    let stand = stand();
    let id = stand.spool.submit(order()).unwrap();
    let mut held = claim(&stand.spool, &id, "w").unwrap();
    assert!(!stand.spool.heartbeat(&mut held).unwrap().cancelled);
    stand.spool.cancel(&id).unwrap();
    stand.spool.cancel(&id).unwrap();
    assert!(stand.spool.heartbeat(&mut held).unwrap().cancelled);
    assert_eq!(stand.spool.stop(&held).unwrap().status(), Status::Cancelled);
    assert_eq!(places(&stand.spool, &id), ["failed"]);
    assert_eq!(op_names(&stand.spool), ["submit", "claim", "cancel", "stop"]);
    assert_eq!(stand.spool.cancel(&id).unwrap_err().matter(), Some(Reason::Conflict));
    assert_eq!(stand.spool.requeue(&id).unwrap().generation, 1);
}

#[test]
fn a_task_that_is_cancelled_while_its_holder_is_dead_does_not_run_again() {
    let stand = stand();
    let id = stand.spool.submit(order()).unwrap();
    claim(&stand.spool, &id, "w").unwrap();
    stand.spool.cancel(&id).unwrap();
    stand.advance(601);
    assert!(claim(&stand.spool, &id, "next").is_none());
    assert_eq!(stand.spool.get(&id).unwrap().unwrap().task.status(), Status::Cancelled);
}

#[test]
fn a_key_gives_the_same_task_whatever_became_of_it() {
    let stand = stand();
    let mut once = order();
    once.idempotency_key = Some("photo-7".into());
    let id = stand.spool.submit(once.clone()).unwrap();
    assert_eq!(stand.other().submit(once.clone()).unwrap(), id);
    let held = claim(&stand.spool, &id, "w").unwrap();
    complete(&stand.spool, &held).unwrap();
    assert_eq!(stand.spool.submit(once.clone()).unwrap(), id);
    assert_eq!(places(&stand.spool, &id), ["completed"]);
    assert_eq!(op_names(&stand.spool), ["submit", "claim", "complete"]);
    once.input = json!("other");
    assert_eq!(stand.spool.submit(once).unwrap_err().matter(), Some(Reason::Conflict));
}

#[test]
fn an_impossible_operation_is_refused() {
    let stand = stand();
    let mut wrong = order();
    wrong.max_attempts = 0;
    assert_eq!(stand.spool.submit(wrong).unwrap_err().kind(), Kind::Invalid);
    let unknown = leasehold_core::TaskId::from_random(1);
    let missing = |spool: &Spool| [spool.cancel(&unknown).unwrap_err(), spool.requeue(&unknown).unwrap_err()];
    assert!(missing(&stand.spool).iter().all(|error| error.matter() == Some(Reason::Missing)));
    let id = stand.spool.submit(order()).unwrap();
    let held = claim(&stand.spool, &id, "w").unwrap();
    let large = json!("x".repeat(300_000));
    assert_eq!(
        stand.spool.complete(&held, large, leasehold_core::Artifacts::new()).unwrap_err().kind(),
        Kind::Invalid
    );
    complete(&stand.spool, &held).unwrap();
}
