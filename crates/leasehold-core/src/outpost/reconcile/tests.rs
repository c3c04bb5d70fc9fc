//! The table: one test for each row, with every cell.

use super::SyncAction::{Conflict, Done, Drop, GoOn, Refuse, Stop, Write as Put};
use super::*;
use crate::ids::HexName;
use crate::step::{Event, StepContext, step};
use crate::testing::pending;
use crate::time::StoreTime;
use std::time::Duration;

const ALL: [BucketState; 14] = [
    BucketState::Absent,
    BucketState::Tombstone,
    BucketState::Known,
    BucketState::Returned,
    BucketState::Pending { is_untouched: true },
    BucketState::Pending { is_untouched: false },
    BucketState::Ours { is_live: true },
    BucketState::Ours { is_live: false },
    BucketState::Other { is_live: true },
    BucketState::Other { is_live: false },
    BucketState::Completed,
    BucketState::Failed,
    BucketState::Cancelled,
    BucketState::Expired,
];

/// Checks the actions of a row in the order of [`ALL`], and for another generation.
fn row(local: Local, consistency: Consistency, expected: [SyncAction; 15]) {
    for (remote, action) in ALL.into_iter().chain([BucketState::Another]).zip(expected) {
        assert_eq!(reconcile(local, remote, consistency, false), action, "{local:?} × {remote:?}");
    }
}

/// Checks a row that is the same for both consistencies.
fn row_of_both(local: Local, expected: [SyncAction; 15]) {
    row(local, Consistency::Strict, expected);
    row(local, Consistency::Relaxed, expected);
}

#[test]
fn new() {
    let twice = Drop(Some(Why::Duplicate));
    row_of_both(
        Local::New,
        [
            Put(Write::Create),
            Put(Write::Create),
            Done,
            twice,
            twice,
            twice,
            twice,
            twice,
            twice,
            twice,
            twice,
            twice,
            twice,
            twice,
            twice,
        ],
    );
}

#[test]
fn checked_out_and_not_started() {
    let gone = Drop(None);
    row_of_both(
        Local::CheckedOut,
        [
            gone,
            gone,
            gone,
            Put(Write::Claim),
            Put(Write::Claim),
            Put(Write::Claim),
            GoOn,
            Put(Write::TakeOver),
            gone,
            gone,
            gone,
            gone,
            gone,
            gone,
            gone,
        ],
    );
}

#[test]
fn tentative_and_not_started() {
    let (gone, absent) = (Drop(None), Drop(Some(Why::Absent)));
    row_of_both(
        Local::Tentative,
        [
            absent,
            absent,
            gone,
            gone,
            Put(Write::Claim),
            Put(Write::Claim),
            GoOn,
            Put(Write::Renew),
            gone,
            Put(Write::TakeOver),
            gone,
            gone,
            gone,
            gone,
            gone,
        ],
    );
}

#[test]
fn running() {
    row_of_both(
        Local::Running,
        [
            Stop(Why::Absent),
            Stop(Why::Absent),
            Stop(Why::TakenByOthers),
            Drop(None),
            Put(Write::Claim),
            Put(Write::Claim),
            Put(Write::Renew),
            Put(Write::Renew),
            Stop(Why::TakenByOthers),
            Put(Write::TakeOver),
            Stop(Why::CompletedByOthers),
            Stop(Why::FailedByOthers),
            Stop(Why::Cancelled),
            Stop(Why::Expired),
            Stop(Why::Another),
        ],
    );
    let others = BucketState::Other { is_live: true };
    assert_eq!(reconcile(Local::Running, others, Consistency::Relaxed, true), GoOn, "by setting");
}

#[test]
fn completed_offline() {
    let (complete, offline) = (Put(Write::Complete), Put(Write::CompleteOffline));
    let absent = Conflict(Why::Absent);
    let rest = [Conflict(Why::Cancelled), Conflict(Why::Expired), Conflict(Why::Another)];
    let taken = Conflict(Why::TakenByOthers);
    let twice = Conflict(Why::CompletedByOthers);
    let [cancelled, expired, newer] = rest;
    row(
        Local::Completed,
        Consistency::Strict,
        [
            absent,
            absent,
            Done,
            offline,
            offline,
            offline,
            complete,
            complete,
            taken,
            taken,
            twice,
            Conflict(Why::FailedByOthers),
            cancelled,
            expired,
            newer,
        ],
    );
    row(
        Local::Completed,
        Consistency::Relaxed,
        [
            absent, absent, Done, offline, offline, offline, complete, complete, offline, offline, twice,
            offline, cancelled, expired, newer,
        ],
    );
}

#[test]
fn failed_offline() {
    let gone = Drop(None);
    row_of_both(
        Local::Failed,
        [
            gone,
            gone,
            Done,
            Done,
            Put(Write::FailOffline),
            gone,
            Put(Write::Fail),
            Put(Write::Fail),
            gone,
            gone,
            gone,
            gone,
            gone,
            gone,
            gone,
        ],
    );
}

#[test]
fn released_or_snoozed_offline() {
    let gone = Drop(None);
    row_of_both(
        Local::GivenBack,
        [
            gone,
            gone,
            Done,
            Done,
            Put(Write::Reschedule),
            gone,
            Put(Write::Release),
            Put(Write::Release),
            gone,
            gone,
            gone,
            gone,
            gone,
            gone,
            gone,
        ],
    );
}

#[test]
fn requeued_offline() {
    let (absent, not_ended) = (Refuse(Why::Absent), Refuse(Why::NotEnded));
    row_of_both(
        Local::Requeued,
        [
            absent,
            absent,
            Done,
            not_ended,
            not_ended,
            not_ended,
            not_ended,
            not_ended,
            not_ended,
            not_ended,
            Refuse(Why::Completed),
            Put(Write::Retry),
            Put(Write::Retry),
            Put(Write::Retry),
            Drop(None),
        ],
    );
}

#[test]
fn cancelled_offline() {
    let (gone, cancel, stop) = (Drop(None), Put(Write::Cancel), Put(Write::Stop));
    row_of_both(
        Local::Cancelled,
        [gone, gone, Done, cancel, cancel, cancel, stop, stop, cancel, cancel, gone, gone, gone, gone, gone],
    );
}

fn at(secs: i64) -> Now {
    Now::exactly(StoreTime::from_millis(1_800_000_000_000 + secs * 1_000))
}

fn after(task: &Task, event: &Event, secs: i64) -> Task {
    let act = StepContext {
        by: "n".into(),
        now: at(secs),
        write_id: HexName::from_random(u128::from(task.rev) + 1_000),
        chance: 0,
    };
    step(task, event, &act).unwrap().task
}

fn claim(lease_id: u128) -> Event {
    let worker = crate::ids::Name::checked("worker id", "n").unwrap();
    let lease = Duration::from_secs(100);
    Event::Claim { worker, lease_id: HexName::from_random(lease_id), lease }
}

#[test]
fn the_bucket_state_depends_on_what_the_node_knows() {
    let ours = HexName::from_random(1);
    let free = pending();
    let known = KnownState {
        generation: 0,
        epoch: free.epoch + 1,
        lease_id: Some(ours.clone()),
        ..KnownState::default()
    };
    let standing = |task: &Task, secs: i64| BucketState::of(Some(task), &known, at(secs));
    assert_eq!(BucketState::of(None, &known, at(0)), BucketState::Absent);
    assert_eq!(standing(&free, 0), BucketState::Pending { is_untouched: true });

    let held = after(&free, &claim(1), 0);
    assert_eq!(standing(&held, 99), BucketState::Ours { is_live: true });
    assert_eq!(standing(&held, 100), BucketState::Ours { is_live: false });
    let lost = after(&held, &Event::TimeOut, 101);
    assert_eq!(standing(&lost, 102), BucketState::Pending { is_untouched: false });

    let others = after(&free, &claim(2), 0);
    assert_eq!(standing(&others, 100), BucketState::Other { is_live: true });
    assert_eq!(standing(&others, 101), BucketState::Other { is_live: false });
    let replaced = KnownState { from: Some(HexName::from_random(2)), ..known.clone() };
    assert_eq!(BucketState::of(Some(&others), &replaced, at(0)), BucketState::Other { is_live: false });

    let complete = |lease_id: u128| Event::Complete {
        lease_id: HexName::from_random(lease_id),
        output: serde_json::Value::Null,
        results: crate::ids::Artifacts::new(),
    };
    assert_eq!(standing(&after(&held, &complete(1), 5), 6), BucketState::Known);
    assert_eq!(standing(&after(&others, &complete(2), 5), 6), BucketState::Completed);
    let fail = |retryable| Event::Fail { lease_id: ours.clone(), error: "no".into(), retryable, after: None };
    assert_eq!(standing(&after(&held, &fail(true), 5), 6), BucketState::Returned);
    assert_eq!(
        standing(&after(&held, &Event::Release { lease_id: ours.clone() }, 5), 6),
        BucketState::Returned
    );
    let failed = after(&held, &fail(false), 5);
    assert_eq!(standing(&failed, 6), BucketState::Failed);
    let returned = after(&held, &Event::Release { lease_id: ours.clone() }, 5);
    assert_eq!(standing(&after(&returned, &Event::Cancel, 6), 7), BucketState::Cancelled);
    assert_eq!(standing(&after(&failed, &Event::Retry, 6), 7), BucketState::Another);
    // The node has retried the task, and the bucket has not.
    let ahead = KnownState { generation: 1, ..known.clone() };
    for task in [&free, &held, &failed] {
        assert_eq!(BucketState::of(Some(task), &ahead, at(6)), BucketState::Another);
    }
}
