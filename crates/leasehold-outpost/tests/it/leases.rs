//! Expiry of a lease on disk, and the cost of a heartbeat.

use leasehold_core::limits::DISK_HEARTBEAT;
use leasehold_core::outpost::{OpKind, SpoolFile};
use leasehold_outpost::{FileHook, OutpostConfig, SpoolDurability};
use std::fs;
use std::io;
use std::sync::{Arc, Mutex};

use crate::support::{
    any, bucket, claim, complete, lease, ops, order, path, relaxed, test_spool, test_spool_with,
};

#[test]
fn a_lease_is_taken_601_seconds_after_the_last_heartbeat_and_not_after_600() {
    for knows_bucket in [false, true] {
        let test = test_spool();
        if knows_bucket {
            test.spool.record_bucket_time(bucket(0)).unwrap();
        }
        let id = test.spool.submit(order()).unwrap();
        let first = claim(&test.spool, &id, "first").unwrap();
        test.advance(600);
        assert!(claim(&test.spool, &id, "next").is_none());
        assert!(test.spool.poll(9, &any()).unwrap().is_empty());
        test.advance(1);
        assert_eq!(test.spool.poll(9, &any()).unwrap(), [id]);
        let next = claim(&test.spool, &id, "next").unwrap();
        assert_eq!((next.lease.epoch, next.lease.attempt), (2, 2));
        assert_eq!((next.task.epoch, next.task.attempt), (2, 2));
        let ops = ops(&test.spool);
        let OpKind::Claim { lease_id, from, .. } = &ops[2].kind else { panic!("{ops:?}") };
        assert_eq!((lease_id, from.as_ref()), (&next.lease.lease_id, Some(&first.lease.lease_id)));
        complete(&test.spool, &next).unwrap();
    }
}

#[test]
fn a_task_of_25_minutes_is_never_taken_from_a_worker_with_heartbeats() {
    let test = test_spool();
    let id = test.spool.submit(order()).unwrap();
    let mut held = claim(&test.spool, &id, "slow").unwrap();
    let others = [test.other(), test.other()];
    for minute in 0..25 {
        for half in 0..2 {
            test.advance(DISK_HEARTBEAT.as_secs() / 2);
            for (other, name) in others.iter().zip(["eager", "greedy"]) {
                assert!(other.poll(9, &any()).unwrap().is_empty(), "minute {minute}.{half}");
                assert!(claim(other, &id, name).is_none(), "minute {minute}.{half}");
            }
        }
        test.spool.heartbeat(&mut held).unwrap();
    }
    complete(&test.spool, &held).unwrap();
    assert_eq!(held.lease.epoch, 1);
}

#[test]
fn a_lease_that_has_been_corrupt_for_ten_minutes_is_taken() {
    for torn in ["", "{\"worker_id\": \"w", "null"] {
        let test = test_spool();
        let id = test.spool.submit(order()).unwrap();
        let held = claim(&test.spool, &id, "w").unwrap();
        fs::write(path(&test.spool, &SpoolFile::Lease(id)), torn).unwrap();
        // The first claim records it; until then a poll returns the task.
        assert_eq!(test.spool.poll(9, &any()).unwrap(), [id]);
        assert!(claim(&test.spool, &id, "next").is_none());
        assert!(test.spool.poll(9, &any()).unwrap().is_empty());
        assert!(complete(&test.spool, &held).is_err());
        test.advance(600);
        // A change of the wall clock has no effect.
        test.host.jump_wall(7_200);
        assert!(claim(&test.spool, &id, "next").is_none());
        test.advance(1);
        assert_eq!(test.spool.poll(9, &any()).unwrap(), [id]);
        let next = claim(&test.other(), &id, "next").unwrap();
        assert_eq!((next.lease.epoch, next.lease.attempt), (2, 2));
        complete(&test.spool, &next).unwrap();
    }
}

#[test]
fn each_corrupt_lease_waits_for_its_own_ten_minutes() {
    let test = test_spool();
    let id = test.spool.submit(order()).unwrap();
    claim(&test.spool, &id, "w").unwrap();
    let lease = path(&test.spool, &SpoolFile::Lease(id));
    fs::write(&lease, "x").unwrap();
    assert!(claim(&test.spool, &id, "next").is_none());
    test.advance(601);
    fs::write(&lease, "another").unwrap();
    assert!(claim(&test.spool, &id, "next").is_none());
    test.advance(601);
    assert!(claim(&test.spool, &id, "next").is_some());
}

/// Records the steps.
#[derive(Debug, Default)]
struct Watch(Mutex<Vec<&'static str>>);

impl FileHook for Watch {
    fn step(&self, what: &'static str) -> io::Result<()> {
        self.0.lock().unwrap().push(what);
        Ok(())
    }
}

/// A heartbeat writes one file of less than 600 bytes, and does not wait for the disk: 60 an hour for each task that
/// runs, 36 kB.
#[test]
fn a_heartbeat_writes_less_than_600_bytes_and_syncs_nothing() {
    for (durability, steps) in [
        (SpoolDurability::Light, &["create", "write", "rename"][..]),
        (SpoolDurability::Full, &["create", "write", "sync", "rename", "sync"]),
    ] {
        let test = test_spool_with(OutpostConfig { durability, ..relaxed() });
        test.spool.record_bucket_time(bucket(0)).unwrap();
        let id = test.spool.submit(order()).unwrap();
        let long = "w".repeat(60);
        let mut held = claim(&test.spool, &id, &long).unwrap();
        let watch = Arc::new(Watch::default());
        let watched = test.spool.clone().with_file_hook(watch.clone());
        watched.heartbeat(&mut held).unwrap();
        assert_eq!(*watch.0.lock().unwrap(), steps);
        let bytes = fs::metadata(path(&test.spool, &SpoolFile::Lease(id))).unwrap().len();
        assert!((200..600).contains(&bytes), "{bytes} bytes");
    }
}

#[test]
fn a_rebooted_machine_keeps_no_lease() {
    let test = test_spool();
    let id = test.spool.submit(order()).unwrap();
    claim(&test.spool, &id, "w").unwrap();
    let rebooted = test.other().with_boot_id("boot-2");
    assert_eq!(rebooted.poll(9, &any()).unwrap(), [id]);
    assert_eq!(claim(&rebooted, &id, "next").unwrap().lease.epoch, 2);
}

#[test]
fn a_last_attempt_whose_lease_expires_fails_with_the_reason() {
    let test = test_spool();
    let id = test.spool.submit(order()).unwrap();
    for attempt in 1..=5 {
        let held = claim(&test.spool, &id, "w").unwrap();
        assert_eq!((held.lease.attempt, held.lease.epoch), (attempt, u64::from(attempt)));
        test.advance(601);
    }
    assert!(claim(&test.spool, &id, "w").is_none());
    assert!(lease(&test.spool, &id).is_none());
    let task = test.spool.get(&id).unwrap().unwrap();
    assert_eq!(task.error.as_deref(), Some("claim of worker w expired"));
    assert_eq!(ops(&test.spool).last().unwrap().kind.name(), "fail");
}
