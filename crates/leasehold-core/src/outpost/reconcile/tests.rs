//! The table: one test for each row, with every cell.

use super::SyncAction::{Conflict, Continue, Done, Drop, Refuse, Stop, Write as Put};
use super::*;
use crate::ids::HexName;
use crate::step::{Event, StepContext, step};
use crate::testing::pending;
use crate::time::StoreTime;
use std::time::Duration;

const ALL: [BucketState; 14] = [
    BucketState::Absent,
    BucketState::Tombstone,
    BucketState::AlreadyApplied,
    BucketState::ReleasedByNode,
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
fn row(local: NodeState, consistency: Consistency, expected: [SyncAction; 15]) {
    for (remote, action) in ALL.into_iter().chain([BucketState::OtherGeneration]).zip(expected) {
        assert_eq!(reconcile(local, remote, consistency, false), action, "{local:?} × {remote:?}");
    }
}

/// Checks a row that is the same for both consistencies.
fn row_of_both(local: NodeState, expected: [SyncAction; 15]) {
    row(local, Consistency::Strict, expected);
    row(local, Consistency::Relaxed, expected);
}

#[test]
fn table_row_new() {
    let twice = Drop(Some(SyncRefusal::Duplicate));
    row_of_both(
        NodeState::New,
        [
            Put(BucketWrite::Create),
            Put(BucketWrite::Create),
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
fn table_row_checked_out_and_not_started() {
    let gone = Drop(None);
    row_of_both(
        NodeState::CheckedOut,
        [
            gone,
            gone,
            gone,
            Put(BucketWrite::Claim),
            Put(BucketWrite::Claim),
            Put(BucketWrite::Claim),
            Continue,
            Put(BucketWrite::TakeOver),
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
fn table_row_tentative_and_not_started() {
    let (gone, absent) = (Drop(None), Drop(Some(SyncRefusal::Absent)));
    row_of_both(
        NodeState::Tentative,
        [
            absent,
            absent,
            gone,
            gone,
            Put(BucketWrite::Claim),
            Put(BucketWrite::Claim),
            Continue,
            Put(BucketWrite::Renew),
            gone,
            Put(BucketWrite::TakeOver),
            gone,
            gone,
            gone,
            gone,
            gone,
        ],
    );
}

#[test]
fn table_row_running() {
    row_of_both(
        NodeState::Running,
        [
            Stop(SyncRefusal::Absent),
            Stop(SyncRefusal::Absent),
            Stop(SyncRefusal::TakenByOthers),
            Drop(None),
            Put(BucketWrite::Claim),
            Put(BucketWrite::Claim),
            Put(BucketWrite::Renew),
            Put(BucketWrite::Renew),
            Stop(SyncRefusal::TakenByOthers),
            Put(BucketWrite::TakeOver),
            Stop(SyncRefusal::CompletedByOthers),
            Stop(SyncRefusal::FailedByOthers),
            Stop(SyncRefusal::Cancelled),
            Stop(SyncRefusal::Expired),
            Stop(SyncRefusal::OtherGeneration),
        ],
    );
    let others = BucketState::Other { is_live: true };
    assert_eq!(reconcile(NodeState::Running, others, Consistency::Relaxed, true), Continue, "by setting");
}

#[test]
fn table_row_completed_offline() {
    let (complete, offline) = (Put(BucketWrite::Complete), Put(BucketWrite::CompleteOffline));
    let absent = Conflict(SyncRefusal::Absent);
    let rest = [
        Conflict(SyncRefusal::Cancelled),
        Conflict(SyncRefusal::Expired),
        Conflict(SyncRefusal::OtherGeneration),
    ];
    let taken = Conflict(SyncRefusal::TakenByOthers);
    let twice = Conflict(SyncRefusal::CompletedByOthers);
    let [cancelled, expired, newer] = rest;
    row(
        NodeState::Completed,
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
            Conflict(SyncRefusal::FailedByOthers),
            cancelled,
            expired,
            newer,
        ],
    );
    row(
        NodeState::Completed,
        Consistency::Relaxed,
        [
            absent, absent, Done, offline, offline, offline, complete, complete, offline, offline, twice,
            offline, cancelled, expired, newer,
        ],
    );
}

#[test]
fn table_row_failed_offline() {
    let gone = Drop(None);
    row_of_both(
        NodeState::Failed,
        [
            gone,
            gone,
            Done,
            Done,
            Put(BucketWrite::FailOffline),
            gone,
            Put(BucketWrite::Fail),
            Put(BucketWrite::Fail),
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
fn table_row_released_or_snoozed_offline() {
    let gone = Drop(None);
    row_of_both(
        NodeState::Released,
        [
            gone,
            gone,
            Done,
            Done,
            Put(BucketWrite::Reschedule),
            gone,
            Put(BucketWrite::Release),
            Put(BucketWrite::Release),
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
fn table_row_requeued_offline() {
    let (absent, not_ended) = (Refuse(SyncRefusal::Absent), Refuse(SyncRefusal::NotEnded));
    row_of_both(
        NodeState::Requeued,
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
            Refuse(SyncRefusal::Completed),
            Put(BucketWrite::Retry),
            Put(BucketWrite::Retry),
            Put(BucketWrite::Retry),
            Drop(None),
        ],
    );
}

#[test]
fn table_row_cancelled_offline() {
    let (gone, cancel, stop) = (Drop(None), Put(BucketWrite::Cancel), Put(BucketWrite::Stop));
    row_of_both(
        NodeState::Cancelled,
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
        random: 0,
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
    assert_eq!(standing(&after(&held, &complete(1), 5), 6), BucketState::AlreadyApplied);
    assert_eq!(standing(&after(&others, &complete(2), 5), 6), BucketState::Completed);
    let fail = |retryable| Event::Fail { lease_id: ours.clone(), error: "no".into(), retryable, after: None };
    assert_eq!(standing(&after(&held, &fail(true), 5), 6), BucketState::ReleasedByNode);
    assert_eq!(
        standing(&after(&held, &Event::Release { lease_id: ours.clone() }, 5), 6),
        BucketState::ReleasedByNode
    );
    let failed = after(&held, &fail(false), 5);
    assert_eq!(standing(&failed, 6), BucketState::Failed);
    let returned = after(&held, &Event::Release { lease_id: ours.clone() }, 5);
    assert_eq!(standing(&after(&returned, &Event::Cancel, 6), 7), BucketState::Cancelled);
    assert_eq!(standing(&after(&failed, &Event::Retry, 6), 7), BucketState::OtherGeneration);
    // The node has retried the task, and the bucket has not.
    let ahead = KnownState { generation: 1, ..known.clone() };
    for task in [&free, &held, &failed] {
        assert_eq!(BucketState::of(Some(task), &ahead, at(6)), BucketState::OtherGeneration);
    }
}
