//! Processes that are killed before each of their system calls.

use leasehold_core::outpost::SpoolFile;
use leasehold_core::{Status, TaskId, record};
use leasehold_outpost::{HeldTask, Spool};
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::one_at_a_time;
use crate::support::{
    claim, complete, failure, folder, lease, make_stale, of, op_names, order, path, places, real, remote,
    send_all,
};

/// More steps than any operation needs.
const STEPS_MAX: u32 = 200;

/// An operation, and how to tell whether it took effect.
struct CrashCase {
    word: &'static str,
    /// Operations to send to the bucket.
    op: Option<&'static str>,
    prepare: fn(&Spool) -> TaskId,
    has_happened: fn(&Spool, &TaskId) -> bool,
}

fn submitted(spool: &Spool) -> TaskId {
    spool.submit(order()).unwrap()
}

fn claimed(spool: &Spool) -> TaskId {
    let id = submitted(spool);
    claim(spool, &id, "w").unwrap();
    id
}

fn failed(spool: &Spool) -> TaskId {
    let id = submitted(spool);
    let held = claim(spool, &id, "w").unwrap();
    spool.settle(&held, failure("it broke", false, None)).unwrap();
    id
}

/// The id that the exerciser submits, in an empty spool.
fn to_submit(spool: &Spool) -> TaskId {
    let scratch = folder();
    let mut order = order();
    order.idempotency_key = Some("once".into());
    let id = real(scratch.path()).submit(order).unwrap();
    assert!(spool.get(&id).unwrap().is_none());
    id
}

fn leave_remote(spool: &Spool) -> TaskId {
    let task = remote(5);
    fs::write(spool.root().join("../../../remote.json"), record::write(&task)).unwrap();
    task.id
}

fn is_in(spool: &Spool, id: &TaskId, place: &str) -> bool {
    places(spool, id) == [place]
}

fn is_free(spool: &Spool, id: &TaskId) -> bool {
    is_in(spool, id, "pending") && lease(spool, id).is_none()
}

fn crash_at_every_step(crash: &CrashCase) {
    let _alone = one_at_a_time();
    let mut step = 1;
    loop {
        assert!(step < STEPS_MAX, "{} does not end", crash.word);
        let data = folder();
        let spool = real(data.path());
        let id = (crash.prepare)(&spool);
        send_all(&spool);
        let was_there = !places(&spool, &id).is_empty();
        let is_done = run(data.path(), crash.word, &id, step);
        let spool = real(data.path());
        let case = format!("{} ended before step {step}", crash.word);
        let has_happened = (crash.has_happened)(&spool, &id);
        assert!(!is_done || has_happened, "{case}");
        let expected: Vec<_> = crash.op.into_iter().filter(|_| has_happened).collect();
        assert_eq!(op_names(&spool), expected, "{case}");
        assert_eq!(fs::read_dir(spool.root().join("tmp")).unwrap().count(), 0, "{case}");
        let is_there = if crash.word == "forget" { !has_happened } else { was_there || has_happened };
        assert_eq!(places(&spool, &id).len(), usize::from(is_there), "{case}: {:?}", places(&spool, &id));
        if is_there {
            assert_can_complete(&spool, &id, &case);
        }
        if is_done {
            assert!(step > 1, "{} has no steps", crash.word);
            return;
        }
        step += 1;
    }
}

fn run(data: &Path, word: &str, id: &TaskId, step: u32) -> bool {
    let mut command = Command::new(env!("CARGO_BIN_EXE_spool-exerciser"));
    command.arg(data).arg(of().to_string()).args([word, &id.to_string(), &step.to_string()]);
    let output = command.output().unwrap();
    let is_done = output.status.success();
    // It aborts at a step, or finishes: nothing else.
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(is_done || output.status.code().is_none(), "{word} {step}: {words}");
    is_done
}

/// Checks that the task can be completed, wherever it is.
fn assert_can_complete(spool: &Spool, id: &TaskId, case: &str) {
    assert!(!spool.root().join(format!("pending/{id}/change.json")).exists(), "{case}");
    let there = spool.get(id).unwrap().unwrap();
    match (there.status(), spool.lease_of(id).unwrap()) {
        (Status::Completed, _) => assert!(spool.requeue(id).is_err(), "{case}"),
        (status, _) if status.is_final() => {
            spool.requeue(id).unwrap();
            let held = claim(spool, id, "next").unwrap();
            complete(spool, &held).unwrap();
        }
        (_, Some(lease)) => {
            assert!(claim(spool, id, "next").is_none() || lease.boot_id == "before", "{case}");
            make_stale(spool, id);
            let before = lease.epoch;
            if let Some(held) = claim(spool, id, "next") {
                assert!(held.lease.epoch > before, "{case}");
                complete(spool, &held).unwrap();
                let old = HeldTask { task: held.task.clone(), lease };
                assert!(complete(spool, &old).is_err(), "{case}");
            }
        }
        (_, None) => {
            // After a failed attempt it is due in ten seconds.
            if let Some(held) = claim(spool, id, "next") {
                complete(spool, &held).unwrap();
            } else {
                assert_eq!(there.error.as_deref(), Some("it broke"), "{case}");
            }
        }
    }
    assert_eq!(places(spool, id).len(), 1, "{case}");
}

#[test]
fn a_submit_happens_or_not() {
    crash_at_every_step(&CrashCase {
        word: "submit",
        op: Some("submit"),
        prepare: to_submit,
        has_happened: is_free,
    });
}

#[test]
fn a_claim_happens_or_not() {
    crash_at_every_step(&CrashCase {
        word: "claim",
        op: Some("claim"),
        prepare: submitted,
        has_happened: |spool, id| lease(spool, id).is_some(),
    });
}

#[test]
fn a_reclaim_happens_or_not() {
    crash_at_every_step(&CrashCase {
        word: "claim",
        op: Some("claim"),
        prepare: |spool| {
            let id = claimed(spool);
            make_stale(spool, &id);
            id
        },
        has_happened: |spool, id| lease(spool, id).unwrap().epoch == 2,
    });
}

#[test]
fn a_heartbeat_happens_or_not() {
    crash_at_every_step(&CrashCase {
        word: "heartbeat",
        op: None,
        prepare: claimed,
        has_happened: |spool, id| lease(spool, id).is_some(),
    });
}

#[test]
fn a_completion_happens_or_not() {
    crash_at_every_step(&CrashCase {
        word: "complete",
        op: Some("complete"),
        prepare: claimed,
        has_happened: |spool, id| is_in(spool, id, "completed"),
    });
}

#[test]
fn a_failed_attempt_happens_or_not() {
    crash_at_every_step(&CrashCase {
        word: "fail",
        op: Some("fail"),
        prepare: claimed,
        has_happened: is_free,
    });
}

#[test]
fn a_permanent_failure_happens_or_not() {
    crash_at_every_step(&CrashCase {
        word: "fail-for-good",
        op: Some("fail"),
        prepare: claimed,
        has_happened: |spool, id| is_in(spool, id, "failed"),
    });
}

#[test]
fn a_release_happens_or_not() {
    crash_at_every_step(&CrashCase {
        word: "release",
        op: Some("release"),
        prepare: claimed,
        has_happened: is_free,
    });
}

#[test]
fn a_stop_happens_or_not() {
    crash_at_every_step(&CrashCase {
        word: "stop",
        op: Some("stop"),
        prepare: claimed,
        has_happened: |spool, id| is_in(spool, id, "failed"),
    });
}

#[test]
fn a_cancel_of_a_free_task_happens_or_not() {
    crash_at_every_step(&CrashCase {
        word: "cancel",
        op: Some("cancel"),
        prepare: submitted,
        has_happened: |spool, id| is_in(spool, id, "failed"),
    });
}

#[test]
fn a_cancel_of_a_leased_task_happens_or_not() {
    crash_at_every_step(&CrashCase {
        word: "cancel",
        op: Some("cancel"),
        prepare: claimed,
        has_happened: |spool, id| {
            let lease = spool.lease_of(id).unwrap().expect("it is held");
            let task = spool.get(id).unwrap().unwrap();
            spool.lease_status(&HeldTask { task, lease }).unwrap().cancelled
        },
    });
}

#[test]
fn a_requeue_happens_or_not() {
    crash_at_every_step(&CrashCase {
        word: "requeue",
        op: Some("requeue"),
        prepare: failed,
        has_happened: is_free,
    });
}

#[test]
fn a_copy_of_a_task_of_the_bucket_is_made_or_not() {
    crash_at_every_step(&CrashCase {
        word: "mirror",
        op: None,
        prepare: leave_remote,
        has_happened: is_free,
    });
}

#[test]
fn a_copy_of_a_task_that_had_ended_here_takes_its_place_or_not() {
    crash_at_every_step(&CrashCase {
        word: "mirror",
        op: None,
        prepare: |spool| {
            let id = leave_remote(spool);
            spool.mirror(&remote(5), None).unwrap();
            let held = claim(spool, &id, "w").unwrap();
            spool.settle(&held, failure("it broke", false, None)).unwrap();
            id
        },
        has_happened: is_free,
    });
}

#[test]
fn a_copy_is_removed_or_not() {
    crash_at_every_step(&CrashCase {
        word: "forget",
        op: None,
        prepare: |spool| {
            spool.mirror(&remote(5), None).unwrap();
            remote(5).id
        },
        has_happened: |spool, id| places(spool, id).is_empty(),
    });
}

#[test]
fn a_confirmation_happens_or_not() {
    crash_at_every_step(&CrashCase {
        word: "confirm",
        op: None,
        prepare: claimed,
        has_happened: |spool, id| {
            let lease = lease(spool, id).unwrap();
            let is_confirmed = !lease.tentative;
            assert_eq!((lease.epoch, lease.attempt), if is_confirmed { (6, 3) } else { (1, 1) });
            let record = crate::support::json_of(&path(spool, &SpoolFile::Task(*id)));
            assert_eq!(record["outpost"]["base_rev"], if is_confirmed { 12 } else { 0 });
            is_confirmed
        },
    });
}

#[test]
fn a_revocation_happens_or_not() {
    crash_at_every_step(&CrashCase { word: "revoke", op: None, prepare: claimed, has_happened: is_free });
}
