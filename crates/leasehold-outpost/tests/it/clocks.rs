//! The bucket's time on the node's boot clock, without any wall clock.

use leasehold_core::new_task::Start;
use leasehold_core::outpost::ClockSource;
use leasehold_core::{Now, StoreTime};
use std::time::Duration;

use crate::support::{BOOT, BUCKET_MS, any, at, bucket, claim, complete, json_of, order, test_spool};

#[test]
fn all_processes_extrapolate_the_buckets_time() {
    let test = test_spool();
    assert_eq!(test.spool.now().clock(), BOOT);
    assert_eq!(test.spool.now().boot, at(1_000_000));
    test.spool.record_bucket_time(bucket(0)).unwrap();
    let other = test.other();
    assert_eq!(other.now().bucket, Some(bucket(0)));
    test.advance(100);
    let now = other.now().bucket.unwrap();
    // A tenth of a second in a hundred: two clocks drift apart.
    assert_eq!((now.earliest, now.latest), (at(BUCKET_MS + 99_900), at(BUCKET_MS + 100_100)));
}

#[test]
fn a_reboot_voids_the_offset() {
    let test = test_spool();
    test.spool.record_bucket_time(bucket(0)).unwrap();
    let rebooted = test.other().with_boot_id("boot-2");
    assert_eq!(rebooted.now().bucket, None);
    rebooted.record_bucket_time(bucket(5_000)).unwrap();
    assert_eq!(rebooted.now().bucket, Some(bucket(5_000)));
}

#[test]
fn the_offset_is_written_when_it_is_more_precise_or_contradicts_the_last() {
    let test = test_spool();
    let path = test.data.path().join("clock.json");
    let wide = |from: i64, to: i64| Now {
        earliest: at(BUCKET_MS + from),
        latest: at(BUCKET_MS + to),
        is_consistent: true,
    };
    test.spool.record_bucket_time(wide(0, 2_000)).unwrap();
    let first = json_of(&path);
    test.spool.record_bucket_time(wide(-500, 2_500)).unwrap();
    test.spool.record_bucket_time(wide(10, 2_010)).unwrap();
    assert_eq!(json_of(&path), first, "nothing new");
    test.spool.record_bucket_time(wide(1_000, 3_000)).unwrap();
    assert_eq!(test.spool.now().bucket, Some(wide(1_000, 2_000)), "both are true");
    test.spool.record_bucket_time(wide(9_000, 9_500)).unwrap();
    assert_eq!(test.spool.now().bucket, Some(wide(9_000, 9_500)), "a contradiction: the newer counts");
    test.spool.record_bucket_time(Now { is_consistent: false, ..wide(9_000, 9_500) }).unwrap();
    assert!(!test.spool.now().bucket.unwrap().is_consistent);
    let endless = Now { earliest: at(BUCKET_MS + 50_000), latest: StoreTime::NEVER, is_consistent: true };
    test.spool.record_bucket_time(endless).unwrap();
    assert_eq!(test.spool.now().bucket, Some(endless));
    std::fs::write(&path, "{").unwrap();
    assert_eq!(test.spool.now().bucket, None);
}

#[test]
fn a_wall_clock_that_is_two_hours_off_changes_nothing() {
    for knows_bucket in [false, true] {
        for jump in [-7_200, 7_200] {
            let test = test_spool();
            if knows_bucket {
                test.spool.record_bucket_time(bucket(0)).unwrap();
            }
            let id = test.spool.submit(order()).unwrap();
            let mut held = claim(&test.spool, &id, "w").unwrap();
            let before = test.spool.now();
            test.host.jump_wall(jump);
            assert_eq!(test.spool.now(), before);
            assert!(claim(&test.spool, &id, "next").is_none(), "stolen early");
            test.spool.heartbeat(&mut held).unwrap();
            test.host.jump_wall(-jump);
            test.advance(600);
            assert!(claim(&test.spool, &id, "next").is_none());
            test.advance(1);
            let next = claim(&test.spool, &id, "next").expect("lost for ever");
            complete(&test.spool, &next).unwrap();
        }
    }
}

#[test]
fn a_lease_from_before_the_buckets_time_was_known_is_judged_by_its_own_clock() {
    let test = test_spool();
    let id = test.spool.submit(order()).unwrap();
    let mut held = claim(&test.spool, &id, "w").unwrap();
    assert_eq!(held.lease.clock, BOOT);
    test.spool.record_bucket_time(bucket(0)).unwrap();
    assert!(claim(&test.spool, &id, "next").is_none());
    test.spool.heartbeat(&mut held).unwrap();
    assert_eq!(held.lease.clock, ClockSource::Bucket);
    test.advance(600);
    assert!(claim(&test.spool, &id, "next").is_none());
    test.advance(1);
    assert!(claim(&test.spool, &id, "next").is_some());
}

#[test]
fn a_delayed_task_never_starts_early() {
    let test = test_spool();
    let mut later = order();
    later.start = Start::After(Duration::from_hours(1));
    let id = test.spool.submit(later).unwrap();
    test.advance(3_500);
    assert!(test.spool.poll(9, &any()).unwrap().is_empty());
    // A reboot resets the clock: the delay counts from the boot.
    let rebooted = test.other().with_boot_id("boot-2");
    test.host.advance_boot_only(-4_500_000_000_000);
    assert!(claim(&rebooted, &id, "w").is_none());
    test.advance(3_599);
    assert!(claim(&rebooted, &id, "w").is_none());
    test.advance(1);
    assert_eq!(rebooted.poll(9, &any()).unwrap(), [id]);
    assert!(claim(&rebooted, &id, "w").is_some());
}

#[test]
fn a_task_due_at_a_time_of_the_bucket_waits_until_that_time_is_known() {
    let test = test_spool();
    let mut fixed = order();
    test.spool.record_bucket_time(bucket(0)).unwrap();
    fixed.start = Start::At(at(BUCKET_MS + 60_000));
    let id = test.spool.submit(fixed).unwrap();
    let rebooted = test.other().with_boot_id("boot-2");
    test.host.advance_boot_only(-995_000_000_000);
    assert!(claim(&rebooted, &id, "w").is_none());
    rebooted.record_bucket_time(bucket(59_000)).unwrap();
    assert!(claim(&rebooted, &id, "w").is_none());
    test.advance(2);
    assert!(claim(&rebooted, &id, "w").is_some());
}
