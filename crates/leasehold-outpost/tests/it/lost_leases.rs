//! A worker that has lost its lease gets an error, and changes nothing.

use leasehold_core::settlement::Settlement;
use leasehold_core::{Kind, Status};
use leasehold_outpost::{FileHook, HeldTask, Spool};
use serde_json::json;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use crate::support::{TestSpool, claim, failure, order, snapshot, test_spool};

fn assert_lost(spool: &Spool, held: &HeldTask) {
    let before = snapshot(spool.root());
    let kinds = [
        spool.heartbeat(&mut held.clone()).unwrap_err().kind(),
        spool.lease_status(held).unwrap_err().kind(),
        spool.settle(held, Settlement::complete(json!(1))).unwrap_err().kind(),
        spool.settle(held, failure("x", true, None)).unwrap_err().kind(),
        spool.settle(held, failure("x", false, None)).unwrap_err().kind(),
        spool.settle(held, Settlement::Release).unwrap_err().kind(),
        spool.settle(held, Settlement::Stop).unwrap_err().kind(),
    ];
    assert_eq!(kinds, [Kind::Lost; 7]);
    assert_eq!(snapshot(spool.root()), before);
}

fn claimed() -> (TestSpool, HeldTask) {
    let test = test_spool();
    let id = test.spool.submit(order()).unwrap();
    let held = claim(&test.spool, &id, "w").unwrap();
    (test, held)
}

#[test]
fn a_lease_taken_by_another_worker_is_lost() {
    let (test, held) = claimed();
    test.advance(601);
    claim(&test.spool, &held.task.id, "next").unwrap();
    assert_lost(&test.spool, &held);
}

#[test]
fn a_lease_of_a_task_that_another_worker_completed_is_lost() {
    let (test, held) = claimed();
    test.advance(601);
    let next = claim(&test.spool, &held.task.id, "next").unwrap();
    test.spool.settle(&next, Settlement::complete(json!("theirs"))).unwrap();
    assert_lost(&test.spool, &held);
    assert_lost(&test.spool, &next);
}

#[test]
fn a_released_lease_is_lost() {
    let (test, held) = claimed();
    test.spool.settle(&held, Settlement::Release).unwrap();
    assert_lost(&test.spool, &held);
    // Also when the same process claims it again.
    claim(&test.spool, &held.task.id, "w").unwrap();
    assert_lost(&test.spool, &held);
}

#[test]
fn a_revoked_lease_is_lost() {
    for keeps_copy in [true, false] {
        let (test, held) = claimed();
        assert!(test.spool.revoke(&held.task.id, &held.lease.lease_id, keeps_copy).unwrap());
        assert_lost(&test.spool, &held);
        assert_eq!(claim(&test.spool, &held.task.id, "next").is_some(), keeps_copy);
    }
}

/// A disk that is full for one step.
#[derive(Debug)]
struct FullAt(u64, AtomicU64);

impl FileHook for FullAt {
    fn step(&self, _: &'static str) -> io::Result<()> {
        let is_full = self.1.fetch_add(1, SeqCst) == self.0;
        if is_full { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }
}

#[test]
fn a_completion_that_failed_half_way_is_not_lost() {
    let mut has_failed = 0;
    for step in 0.. {
        let (test, held) = claimed();
        let full = test.spool.clone().with_file_hook(Arc::new(FullAt(step, AtomicU64::new(0))));
        let Err(error) = full.settle(&held, Settlement::complete(json!("done"))) else { break };
        assert_eq!(error.kind(), Kind::Unavailable, "{error}");
        has_failed += 1;
        let task = test.spool.settle(&held, Settlement::complete(json!("done"))).unwrap();
        assert_eq!(task.status(), Status::Completed, "step {step}");
        assert_eq!(test.spool.get(&held.task.id).unwrap().unwrap().output(), Some(&json!("done")));
        let ops = test.spool.outbox().unwrap();
        assert_eq!(ops.iter().filter(|(_, op)| op.kind.name() == "complete").count(), 1);
    }
    assert!(has_failed > 3, "{has_failed} steps");
}
