//! A worker that has lost its lease gets an error, and changes nothing.

use leasehold_core::{Artifacts, Kind, Status};
use leasehold_outpost::{HeldTask, Spool, Steps};
use serde_json::json;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use crate::support::{Stand, claim, order, snapshot, stand};

fn assert_lost(spool: &Spool, held: &HeldTask) {
    let before = snapshot(spool.root());
    let kinds = [
        spool.heartbeat(&mut held.clone()).unwrap_err().kind(),
        spool.standing(held).unwrap_err().kind(),
        spool.complete(held, json!(1), Artifacts::new()).unwrap_err().kind(),
        spool.fail(held, "x", true, None).unwrap_err().kind(),
        spool.fail(held, "x", false, None).unwrap_err().kind(),
        spool.release(held, None).unwrap_err().kind(),
        spool.stop(held).unwrap_err().kind(),
    ];
    assert_eq!(kinds, [Kind::Lost; 7]);
    assert_eq!(snapshot(spool.root()), before);
}

fn claimed() -> (Stand, HeldTask) {
    let stand = stand();
    let id = stand.spool.submit(order()).unwrap();
    let held = claim(&stand.spool, &id, "w").unwrap();
    (stand, held)
}

#[test]
fn to_another_worker() {
    let (stand, held) = claimed();
    stand.advance(601);
    claim(&stand.spool, &held.task.id, "next").unwrap();
    assert_lost(&stand.spool, &held);
}

#[test]
fn to_another_worker_that_has_completed_it() {
    let (stand, held) = claimed();
    stand.advance(601);
    let next = claim(&stand.spool, &held.task.id, "next").unwrap();
    stand.spool.complete(&next, json!("theirs"), Artifacts::new()).unwrap();
    assert_lost(&stand.spool, &held);
    assert_lost(&stand.spool, &next);
}

#[test]
fn by_releasing_it() {
    let (stand, held) = claimed();
    stand.spool.release(&held, None).unwrap();
    assert_lost(&stand.spool, &held);
    // Also when the same process claims it again.
    claim(&stand.spool, &held.task.id, "w").unwrap();
    assert_lost(&stand.spool, &held);
}

#[test]
fn to_the_bucket() {
    for keeps_copy in [true, false] {
        let (stand, held) = claimed();
        assert!(stand.spool.revoke(&held.task.id, &held.lease.lease_id, keeps_copy).unwrap());
        assert_lost(&stand.spool, &held);
        assert_eq!(claim(&stand.spool, &held.task.id, "next").is_some(), keeps_copy);
    }
}

/// A disk that is full for one step.
#[derive(Debug)]
struct FullAt(u64, AtomicU64);

impl Steps for FullAt {
    fn step(&self, _: &'static str) -> io::Result<()> {
        let is_full = self.1.fetch_add(1, SeqCst) == self.0;
        if is_full { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }
}

#[test]
fn never_by_a_completion_that_failed_half_way() {
    let mut has_failed = 0;
    for step in 0.. {
        let (stand, held) = claimed();
        let full = stand.spool.clone().with_steps(Arc::new(FullAt(step, AtomicU64::new(0))));
        let Err(error) = full.complete(&held, json!("done"), Artifacts::new()) else { break };
        assert_eq!(error.kind(), Kind::Unavailable, "{error}");
        has_failed += 1;
        let task = stand.spool.complete(&held, json!("done"), Artifacts::new()).unwrap();
        assert_eq!(task.status(), Status::Completed, "step {step}");
        assert_eq!(stand.spool.get(&held.task.id).unwrap().unwrap().task.output(), Some(&json!("done")));
        let ops = stand.spool.outbox().unwrap();
        assert_eq!(ops.iter().filter(|(_, op)| op.deed.name() == "complete").count(), 1);
    }
    assert!(has_failed > 3, "{has_failed} steps");
}
