//! Removal of completed tasks that are old, or too many.

use leasehold_core::TaskId;
use leasehold_core::outpost::SyncRefusal;
use leasehold_outpost::{OutpostConfig, Spool};
use std::time::Duration;

use crate::support::{bucket, claim, complete, order, places, relaxed, send_all, test_spool_with};

fn completed(spool: &Spool) -> TaskId {
    let id = spool.submit(order()).unwrap();
    complete(spool, &claim(spool, &id, "w").unwrap()).unwrap();
    id
}

#[test]
fn completed_tasks_are_removed_by_age_in_the_buckets_time() {
    let keep = Duration::from_hours(7 * 24);
    let test = test_spool_with(OutpostConfig { completed_keep_secs: keep.as_secs(), ..relaxed() });
    let early = completed(&test.spool);
    test.spool.record_bucket_time(bucket(0)).unwrap();
    let old = completed(&test.spool);
    send_all(&test.spool);
    test.advance(keep.as_secs() + 1);
    let (young, unsent) = (completed(&test.spool), completed(&test.spool));
    assert_eq!(test.spool.trim().unwrap(), 1, "by the clock of the machine");
    assert!(places(&test.spool, &early).is_empty());
    test.advance(3_600);
    assert_eq!(test.spool.trim().unwrap(), 1);
    assert!(places(&test.spool, &old).is_empty());
    test.advance(keep.as_secs() + 3_600);
    for (seq, op) in test.spool.outbox().unwrap() {
        if op.task == young {
            test.spool.remove_op(seq).unwrap();
        }
    }
    assert_eq!(test.spool.trim().unwrap(), 1, "what was not sent stays");
    assert_eq!(places(&test.spool, &unsent), ["completed"]);
}

#[test]
fn the_oldest_completed_tasks_beyond_the_maximum_are_removed() {
    let test = test_spool_with(OutpostConfig { completed_max: 3, ..relaxed() });
    let ids: Vec<_> = (0..8)
        .map(|_| {
            test.advance(1);
            completed(&test.spool)
        })
        .collect();
    assert_eq!(test.spool.trim().unwrap(), 0, "nothing was sent");
    send_all(&test.spool);
    assert_eq!(test.spool.trim().unwrap(), 5);
    let left: Vec<_> = ids.iter().filter(|id| !places(&test.spool, id).is_empty()).collect();
    assert_eq!(left, [&ids[5], &ids[6], &ids[7]]);
}

#[test]
fn records_of_duplicate_runs_are_removed_but_never_results() {
    let keep = Duration::from_hours(7 * 24);
    let test = test_spool_with(OutpostConfig { completed_keep_secs: keep.as_secs(), ..relaxed() });
    test.spool.record_bucket_time(bucket(0)).unwrap();
    completed(&test.spool);
    let ops = test.spool.outbox().unwrap();
    for (_, op) in ops.iter().filter(|(_, op)| op.kind.name() != "submit") {
        test.spool.record_conflict(op, SyncRefusal::TakenByOthers).unwrap();
    }
    assert_eq!(test.spool.count().unwrap().conflicts, 2);
    test.spool.trim().unwrap();
    assert_eq!(test.spool.count().unwrap().conflicts, 2);
    test.advance(keep.as_secs() + 3_600);
    test.spool.trim().unwrap();
    let left = test.spool.count().unwrap();
    assert_eq!((left.conflicts, left.duplicates), (1, 1), "the result is there for a person");
}
