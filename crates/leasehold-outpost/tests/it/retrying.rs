//! Attempts, delays between them, and generations.

use leasehold_core::new_task::MAX_ATTEMPTS;
use leasehold_core::settlement::Settlement;
use leasehold_core::{Kind, Reason, RetryPolicy, Status};
use leasehold_outpost::Spool;
use serde_json::json;
use std::collections::HashSet;
use std::time::Duration;

use crate::support::{any, bucket, claim, complete, failure, op_names, ops, order, places, test_spool};

#[test]
fn pauses_double_from_ten_seconds_and_after_five_attempts_it_has_failed() {
    for knows_bucket in [false, true] {
        let test = test_spool();
        if knows_bucket {
            test.spool.record_bucket_time(bucket(0)).unwrap();
        }
        let id = test.spool.submit(order()).unwrap();
        for pause in [10, 20, 40, 80] {
            let held = claim(&test.spool, &id, "w").unwrap();
            let task = test.spool.settle(&held, failure("it broke", true, None)).unwrap();
            assert_eq!((task.status(), task.error.as_deref()), (Status::Pending, Some("it broke")));
            test.advance(pause - 1);
            assert!(claim(&test.spool, &id, "w").is_none(), "pause {pause}");
            // The range of the bucket's time widens with time: nothing starts early.
            test.advance(2);
        }
        let held = claim(&test.spool, &id, "w").unwrap();
        assert_eq!(held.task.attempt, 5);
        let task = test.spool.settle(&held, failure("it broke again", true, None)).unwrap();
        assert_eq!(task.status(), Status::Failed);
        assert_eq!(test.spool.get(&id).unwrap().unwrap().error.as_deref(), Some("it broke again"));
        assert_eq!(places(&test.spool, &id), ["failed"]);
        let names: HashSet<_> = ops(&test.spool).iter().map(|op| op.name().to_string()).collect();
        assert_eq!(names.len(), 11, "a submit, five claims, five failures");
    }
}

#[test]
fn defaults_differ_from_those_of_a_bucket_and_given_values_are_kept() {
    let test = test_spool();
    let id = test.spool.submit(order()).unwrap();
    let task = test.spool.get(&id).unwrap().unwrap();
    let pauses: Vec<_> = (1..=9).map(|n| task.retry_policy.backoff(n, 0).as_secs()).collect();
    assert_eq!(pauses, [10, 20, 40, 80, 160, 320, 600, 600, 600]);
    assert_eq!(task.max_attempts, 5);
    // Also if they are the defaults of a bucket.
    for number in [2, MAX_ATTEMPTS] {
        let mut asked = order();
        asked.max_attempts = Some(number);
        asked.retry_policy = Some(RetryPolicy::default());
        let id = test.spool.submit(asked).unwrap();
        let task = test.spool.get(&id).unwrap().unwrap();
        assert_eq!((task.max_attempts, task.retry_policy), (number, RetryPolicy::default()));
    }
}

#[test]
fn a_task_that_was_not_started_in_time_has_expired() {
    let test = test_spool();
    let mut brief = order();
    brief.expires_in = Some(Duration::from_mins(1));
    let id = test.spool.submit(brief).unwrap();
    test.advance(61);
    assert_eq!(test.spool.poll(9, &any()).unwrap(), [id]);
    assert!(claim(&test.spool, &id, "w").is_none());
    assert_eq!(test.spool.get(&id).unwrap().unwrap().status(), Status::Expired);
    assert_eq!(places(&test.spool, &id), ["failed"]);
    test.spool.requeue(&id).unwrap();
    complete(&test.spool, &claim(&test.spool, &id, "w").unwrap()).unwrap();
}

#[test]
fn a_failure_may_set_the_retry_delay() {
    let test = test_spool();
    let id = test.spool.submit(order()).unwrap();
    let held = claim(&test.spool, &id, "w").unwrap();
    test.spool.settle(&held, failure("busy", true, Some(Duration::from_secs(3)))).unwrap();
    test.advance(3);
    assert_eq!(claim(&test.spool, &id, "w").unwrap().lease.attempt, 2);
}

#[test]
fn a_requeue_is_another_generation_whose_operations_have_other_names() {
    let test = test_spool();
    let id = test.spool.submit(order()).unwrap();
    for generation in 0..3 {
        let held = claim(&test.spool, &id, "w").unwrap();
        assert_eq!((held.task.generation, held.task.attempt), (generation, 1));
        test.spool.settle(&held, failure("it broke", false, None)).unwrap();
        assert_eq!(places(&test.spool, &id), ["failed"]);
        let task = test.spool.requeue(&id).unwrap();
        assert_eq!((task.generation, task.status()), (generation + 1, Status::Pending));
        assert_eq!(places(&test.spool, &id), ["pending"]);
        let again = test.spool.requeue(&id).unwrap_err();
        assert_eq!(again.reason(), Some(Reason::Conflict), "{again}");
    }
    let names: Vec<_> = ops(&test.spool).iter().map(|op| op.name().to_string()).collect();
    assert_eq!(names.iter().collect::<HashSet<_>>().len(), names.len(), "{names:?}");
    assert_eq!(names[..4], ["0-0-submit", "0-1-claim", "0-1-fail", "0-1-requeue"]);
    assert_eq!(names[4..7], ["1-2-claim", "1-2-fail", "1-2-requeue"]);
}

#[test]
fn a_released_task_has_used_no_attempt() {
    let test = test_spool();
    test.spool.record_bucket_time(bucket(0)).unwrap();
    let id = test.spool.submit(order()).unwrap();
    let held = claim(&test.spool, &id, "w").unwrap();
    assert_eq!(test.spool.settle(&held, Settlement::Release).unwrap().attempt, 0);
    let held = claim(&test.spool, &id, "w").unwrap();
    assert_eq!((held.lease.attempt, held.lease.epoch), (1, 2));
    test.spool.settle(&held, Settlement::Snooze(Duration::from_mins(30))).unwrap();
    test.advance(29 * 60);
    assert!(claim(&test.spool, &id, "w").is_none());
    test.advance(65);
    assert_eq!(claim(&test.spool, &id, "w").unwrap().lease.attempt, 1);
}

#[test]
fn a_cancelled_task_is_stopped_by_its_holder() {
    let test = test_spool();
    let id = test.spool.submit(order()).unwrap();
    let mut held = claim(&test.spool, &id, "w").unwrap();
    assert!(!test.spool.heartbeat(&mut held).unwrap().cancelled);
    test.spool.cancel(&id).unwrap();
    test.spool.cancel(&id).unwrap();
    assert!(test.spool.heartbeat(&mut held).unwrap().cancelled);
    assert_eq!(test.spool.settle(&held, Settlement::Stop).unwrap().status(), Status::Cancelled);
    assert_eq!(places(&test.spool, &id), ["failed"]);
    assert_eq!(op_names(&test.spool), ["submit", "claim", "cancel", "stop"]);
    assert_eq!(test.spool.cancel(&id).unwrap_err().reason(), Some(Reason::Conflict));
    assert_eq!(test.spool.requeue(&id).unwrap().generation, 1);
}

#[test]
fn a_task_that_is_cancelled_while_its_holder_is_dead_does_not_run_again() {
    let test = test_spool();
    let id = test.spool.submit(order()).unwrap();
    claim(&test.spool, &id, "w").unwrap();
    test.spool.cancel(&id).unwrap();
    test.advance(601);
    assert!(claim(&test.spool, &id, "next").is_none());
    assert_eq!(test.spool.get(&id).unwrap().unwrap().status(), Status::Cancelled);
}

#[test]
fn an_idempotency_key_gives_the_same_task_in_every_state() {
    let test = test_spool();
    let mut once = order();
    once.idempotency_key = Some("photo-7".into());
    let id = test.spool.submit(once.clone()).unwrap();
    assert_eq!(test.other().submit(once.clone()).unwrap(), id);
    let held = claim(&test.spool, &id, "w").unwrap();
    complete(&test.spool, &held).unwrap();
    assert_eq!(test.spool.submit(once.clone()).unwrap(), id);
    assert_eq!(places(&test.spool, &id), ["completed"]);
    assert_eq!(op_names(&test.spool), ["submit", "claim", "complete"]);
    once.input = json!("other");
    assert_eq!(test.spool.submit(once).unwrap_err().reason(), Some(Reason::Conflict));
}

#[test]
fn an_impossible_operation_is_refused() {
    let test = test_spool();
    let mut wrong = order();
    wrong.max_attempts = Some(0);
    assert_eq!(test.spool.submit(wrong).unwrap_err().kind(), Kind::Invalid);
    let unknown = leasehold_core::TaskId::from_random(1);
    let missing = |spool: &Spool| [spool.cancel(&unknown).unwrap_err(), spool.requeue(&unknown).unwrap_err()];
    assert!(missing(&test.spool).iter().all(|error| error.reason() == Some(Reason::Missing)));
    let id = test.spool.submit(order()).unwrap();
    let held = claim(&test.spool, &id, "w").unwrap();
    let large = json!("x".repeat(300_000));
    let failed = test.spool.settle(&held, Settlement::complete(large)).unwrap();
    assert_eq!(failed.status(), Status::Failed, "another attempt would not change its size");
}
