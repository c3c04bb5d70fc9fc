//! Expiry of a lease on disk, and the cost of a heartbeat.

use leasehold_core::limits::DISK_HEARTBEAT;
use leasehold_core::outpost::{OpKind, SpoolFile};
use leasehold_outpost::{OutpostConfig, SpoolDurability, Steps};
use std::fs;
use std::io;
use std::sync::{Arc, Mutex};

use crate::support::{any, bucket, claim, complete, lease, ops, order, path, relaxed, stand, stand_with};

#[test]
fn a_lease_is_taken_601_seconds_after_the_last_heartbeat_and_not_after_600() {
    for knows_bucket in [false, true] {
        let stand = stand();
        if knows_bucket {
            stand.spool.learn_time(bucket(0)).unwrap();
        }
        let id = stand.spool.submit(order()).unwrap();
        let first = claim(&stand.spool, &id, "first").unwrap();
        stand.advance(600);
        assert!(claim(&stand.spool, &id, "next").is_none());
        assert!(stand.spool.poll(9, &any).unwrap().is_empty());
        stand.advance(1);
        assert_eq!(stand.spool.poll(9, &any).unwrap(), [id]);
        let next = claim(&stand.spool, &id, "next").unwrap();
        assert_eq!((next.lease.epoch, next.lease.attempt), (2, 2));
        assert_eq!((next.task.epoch, next.task.attempt), (2, 2));
        let ops = ops(&stand.spool);
        let OpKind::Claim { lease_id, from, .. } = &ops[2].deed else { panic!("{ops:?}") };
        assert_eq!((lease_id, from.as_ref()), (&next.lease.lease_id, Some(&first.lease.lease_id)));
        complete(&stand.spool, &next).unwrap();
    }
}

#[test]
fn a_task_of_25_minutes_is_never_taken_from_a_worker_with_heartbeats() {
    let stand = stand();
    let id = stand.spool.submit(order()).unwrap();
    let mut held = claim(&stand.spool, &id, "slow").unwrap();
    let others = [stand.other(), stand.other()];
    for minute in 0..25 {
        for half in 0..2 {
            stand.advance(DISK_HEARTBEAT.as_secs() / 2);
            for (other, name) in others.iter().zip(["eager", "greedy"]) {
                assert!(other.poll(9, &any).unwrap().is_empty(), "minute {minute}.{half}");
                assert!(claim(other, &id, name).is_none(), "minute {minute}.{half}");
            }
        }
        stand.spool.heartbeat(&mut held).unwrap();
    }
    complete(&stand.spool, &held).unwrap();
    assert_eq!(held.lease.epoch, 1);
}

#[test]
fn a_lease_that_cannot_be_read_is_taken_once_it_was_so_for_ten_minutes() {
    for torn in ["", "{\"worker_id\": \"w", "null"] {
        let stand = stand();
        let id = stand.spool.submit(order()).unwrap();
        let held = claim(&stand.spool, &id, "w").unwrap();
        fs::write(path(&stand.spool, &SpoolFile::Lease(id)), torn).unwrap();
        // The first claim records it; until then a poll returns the task.
        assert_eq!(stand.spool.poll(9, &any).unwrap(), [id]);
        assert!(claim(&stand.spool, &id, "next").is_none());
        assert!(stand.spool.poll(9, &any).unwrap().is_empty());
        assert!(complete(&stand.spool, &held).is_err());
        stand.advance(600);
        // A change of the wall clock has no effect.
        stand.host.jump_wall(7_200);
        assert!(claim(&stand.spool, &id, "next").is_none());
        stand.advance(1);
        assert_eq!(stand.spool.poll(9, &any).unwrap(), [id]);
        let next = claim(&stand.other(), &id, "next").unwrap();
        assert_eq!((next.lease.epoch, next.lease.attempt), (2, 2));
        complete(&stand.spool, &next).unwrap();
    }
}

#[test]
fn one_torn_lease_after_another_waits_for_ten_minutes_of_its_own() {
    let stand = stand();
    let id = stand.spool.submit(order()).unwrap();
    claim(&stand.spool, &id, "w").unwrap();
    let lease = path(&stand.spool, &SpoolFile::Lease(id));
    fs::write(&lease, "x").unwrap();
    assert!(claim(&stand.spool, &id, "next").is_none());
    stand.advance(601);
    fs::write(&lease, "another").unwrap();
    assert!(claim(&stand.spool, &id, "next").is_none());
    stand.advance(601);
    assert!(claim(&stand.spool, &id, "next").is_some());
}

/// Records the steps.
#[derive(Debug, Default)]
struct Watch(Mutex<Vec<&'static str>>);

impl Steps for Watch {
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
        let stand = stand_with(OutpostConfig { durability, ..relaxed() });
        stand.spool.learn_time(bucket(0)).unwrap();
        let id = stand.spool.submit(order()).unwrap();
        let long = "w".repeat(60);
        let mut held = claim(&stand.spool, &id, &long).unwrap();
        let watch = Arc::new(Watch::default());
        let watched = stand.spool.clone().with_steps(watch.clone());
        watched.heartbeat(&mut held).unwrap();
        assert_eq!(*watch.0.lock().unwrap(), steps);
        let bytes = fs::metadata(path(&stand.spool, &SpoolFile::Lease(id))).unwrap().len();
        assert!((200..600).contains(&bytes), "{bytes} bytes");
    }
}

#[test]
fn a_rebooted_machine_keeps_no_lease() {
    let stand = stand();
    let id = stand.spool.submit(order()).unwrap();
    claim(&stand.spool, &id, "w").unwrap();
    let rebooted = stand.other().with_boot_id("boot-2");
    assert_eq!(rebooted.poll(9, &any).unwrap(), [id]);
    assert_eq!(claim(&rebooted, &id, "next").unwrap().lease.epoch, 2);
}

#[test]
fn a_last_attempt_whose_lease_expires_fails_with_the_reason() {
    let stand = stand();
    let id = stand.spool.submit(order()).unwrap();
    for attempt in 1..=5 {
        let held = claim(&stand.spool, &id, "w").unwrap();
        assert_eq!((held.lease.attempt, held.lease.epoch), (attempt, u64::from(attempt)));
        stand.advance(601);
    }
    assert!(claim(&stand.spool, &id, "w").is_none());
    assert!(lease(&stand.spool, &id).is_none());
    let task = stand.spool.get(&id).unwrap().unwrap().task;
    assert_eq!(task.error.as_deref(), Some("lease of worker w expired"));
    assert_eq!(ops(&stand.spool).last().unwrap().deed.name(), "fail");
}
