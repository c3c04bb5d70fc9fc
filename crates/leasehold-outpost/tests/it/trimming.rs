//! Removal of completed tasks that are old, or too many.

use leasehold_core::TaskId;
use leasehold_core::outpost::Why;
use leasehold_outpost::{OutpostConfig, Spool};
use std::time::Duration;

use crate::support::{bucket, claim, complete, order, places, relaxed, send_all, stand_with};

fn completed(spool: &Spool) -> TaskId {
    let id = spool.submit(order()).unwrap();
    complete(spool, &claim(spool, &id, "w").unwrap()).unwrap();
    id
}

#[test]
fn by_age_in_the_buckets_time() {
    let keep = Duration::from_hours(7 * 24);
    let stand = stand_with(OutpostConfig { completed_keep: keep, ..relaxed() });
    let early = completed(&stand.spool);
    stand.spool.learn_time(bucket(0)).unwrap();
    let old = completed(&stand.spool);
    send_all(&stand.spool);
    stand.advance(keep.as_secs() + 1);
    let (young, unsent) = (completed(&stand.spool), completed(&stand.spool));
    assert_eq!(stand.spool.trim().unwrap(), 1, "by the clock of the machine");
    assert!(places(&stand.spool, &early).is_empty());
    stand.advance(3_600);
    assert_eq!(stand.spool.trim().unwrap(), 1);
    assert!(places(&stand.spool, &old).is_empty());
    stand.advance(keep.as_secs() + 3_600);
    for (seq, op) in stand.spool.outbox().unwrap() {
        if op.task == young {
            stand.spool.sent(seq).unwrap();
        }
    }
    assert_eq!(stand.spool.trim().unwrap(), 1, "what was not sent stays");
    assert_eq!(places(&stand.spool, &unsent), ["completed"]);
}

#[test]
fn by_number_the_oldest_first() {
    let stand = stand_with(OutpostConfig { completed_max: 3, ..relaxed() });
    let ids: Vec<_> = (0..8)
        .map(|_| {
            stand.advance(1);
            completed(&stand.spool)
        })
        .collect();
    assert_eq!(stand.spool.trim().unwrap(), 0, "nothing was sent");
    send_all(&stand.spool);
    assert_eq!(stand.spool.trim().unwrap(), 5);
    let left: Vec<_> = ids.iter().filter(|id| !places(&stand.spool, id).is_empty()).collect();
    assert_eq!(left, [&ids[5], &ids[6], &ids[7]]);
}

#[test]
fn records_of_duplicate_runs_but_never_results() {
    let keep = Duration::from_hours(7 * 24);
    let stand = stand_with(OutpostConfig { completed_keep: keep, ..relaxed() });
    stand.spool.learn_time(bucket(0)).unwrap();
    completed(&stand.spool);
    let ops = stand.spool.outbox().unwrap();
    for (_, op) in ops.iter().filter(|(_, op)| op.deed.name() != "submit") {
        stand.spool.conflict(op, Why::TakenByOthers).unwrap();
    }
    assert_eq!(stand.spool.count().unwrap().conflicts, 2);
    stand.spool.trim().unwrap();
    assert_eq!(stand.spool.count().unwrap().conflicts, 2);
    stand.advance(keep.as_secs() + 3_600);
    stand.spool.trim().unwrap();
    let left = stand.spool.count().unwrap();
    assert_eq!((left.conflicts, left.duplicates), (1, 1), "the result is there for a person");
}
