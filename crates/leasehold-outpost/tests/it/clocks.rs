//! The bucket's time on the node's boot clock, without any wall clock.

use leasehold_core::new_task::Start;
use leasehold_core::outpost::ClockMark;
use leasehold_core::{Now, StoreTime};
use std::time::Duration;

use crate::support::{BOOT, BUCKET_MS, any, at, bucket, claim, complete, json_of, order, stand};

#[test]
fn the_buckets_time_is_carried_on_by_all_processes() {
    let stand = stand();
    assert_eq!(stand.spool.now().mark(), BOOT);
    assert_eq!(stand.spool.now().boot, at(1_000_000));
    stand.spool.learn_time(bucket(0)).unwrap();
    let other = stand.other();
    assert_eq!(other.now().bucket, Some(bucket(0)));
    stand.advance(100);
    let now = other.now().bucket.unwrap();
    // A tenth of a second in a hundred: two clocks drift apart.
    assert_eq!((now.earliest, now.latest), (at(BUCKET_MS + 99_900), at(BUCKET_MS + 100_100)));
}

#[test]
fn another_boot_voids_it() {
    let stand = stand();
    stand.spool.learn_time(bucket(0)).unwrap();
    let rebooted = stand.other().with_boot_id("boot-2");
    assert_eq!(rebooted.now().bucket, None);
    rebooted.learn_time(bucket(5_000)).unwrap();
    assert_eq!(rebooted.now().bucket, Some(bucket(5_000)));
}

#[test]
fn it_is_written_when_it_says_more_or_something_else() {
    let stand = stand();
    let path = stand.data.path().join("clock.json");
    let wide =
        |from: i64, to: i64| Now { earliest: at(BUCKET_MS + from), latest: at(BUCKET_MS + to), steady: true };
    stand.spool.learn_time(wide(0, 2_000)).unwrap();
    let first = json_of(&path);
    stand.spool.learn_time(wide(-500, 2_500)).unwrap();
    stand.spool.learn_time(wide(10, 2_010)).unwrap();
    assert_eq!(json_of(&path), first, "nothing new");
    stand.spool.learn_time(wide(1_000, 3_000)).unwrap();
    assert_eq!(stand.spool.now().bucket, Some(wide(1_000, 2_000)), "both are true");
    stand.spool.learn_time(wide(9_000, 9_500)).unwrap();
    assert_eq!(stand.spool.now().bucket, Some(wide(9_000, 9_500)), "a contradiction: the newer counts");
    stand.spool.learn_time(Now { steady: false, ..wide(9_000, 9_500) }).unwrap();
    assert!(!stand.spool.now().bucket.unwrap().steady);
    let endless = Now { earliest: at(BUCKET_MS + 50_000), latest: StoreTime::NEVER, steady: true };
    stand.spool.learn_time(endless).unwrap();
    assert_eq!(stand.spool.now().bucket, Some(endless));
    std::fs::write(&path, "{").unwrap();
    assert_eq!(stand.spool.now().bucket, None);
}

#[test]
fn a_wall_clock_that_is_two_hours_off_changes_nothing() {
    for knows_bucket in [false, true] {
        for jump in [-7_200, 7_200] {
            let stand = stand();
            if knows_bucket {
                stand.spool.learn_time(bucket(0)).unwrap();
            }
            let id = stand.spool.submit(order()).unwrap();
            let mut held = claim(&stand.spool, &id, "w").unwrap();
            let before = stand.spool.now();
            stand.host.jump_wall(jump);
            assert_eq!(stand.spool.now(), before);
            assert!(claim(&stand.spool, &id, "next").is_none(), "stolen early");
            stand.spool.heartbeat(&mut held).unwrap();
            stand.host.jump_wall(-jump);
            stand.advance(600);
            assert!(claim(&stand.spool, &id, "next").is_none());
            stand.advance(1);
            let next = claim(&stand.spool, &id, "next").expect("lost for ever");
            complete(&stand.spool, &next).unwrap();
        }
    }
}

#[test]
fn a_lease_from_before_the_buckets_time_was_known_is_judged_by_its_own_clock() {
    let stand = stand();
    let id = stand.spool.submit(order()).unwrap();
    let mut held = claim(&stand.spool, &id, "w").unwrap();
    assert_eq!(held.lease.clock, BOOT);
    stand.spool.learn_time(bucket(0)).unwrap();
    assert!(claim(&stand.spool, &id, "next").is_none());
    stand.spool.heartbeat(&mut held).unwrap();
    assert_eq!(held.lease.clock, ClockMark::Bucket);
    stand.advance(600);
    assert!(claim(&stand.spool, &id, "next").is_none());
    stand.advance(1);
    assert!(claim(&stand.spool, &id, "next").is_some());
}

#[test]
fn a_delayed_task_never_starts_early() {
    let stand = stand();
    let mut later = order();
    later.start = Start::After(Duration::from_hours(1));
    let id = stand.spool.submit(later).unwrap();
    stand.advance(3_500);
    assert!(stand.spool.poll(9, &any).unwrap().is_empty());
    // A reboot resets the clock: the delay counts from the boot.
    let rebooted = stand.other().with_boot_id("boot-2");
    stand.host.advance_boot_only(-4_500_000_000_000);
    assert!(claim(&rebooted, &id, "w").is_none());
    stand.advance(3_599);
    assert!(claim(&rebooted, &id, "w").is_none());
    stand.advance(1);
    assert_eq!(rebooted.poll(9, &any).unwrap(), [id]);
    assert!(claim(&rebooted, &id, "w").is_some());
}

#[test]
fn a_task_due_at_a_time_of_the_bucket_waits_until_that_time_is_known() {
    let stand = stand();
    let mut fixed = order();
    stand.spool.learn_time(bucket(0)).unwrap();
    fixed.start = Start::At(at(BUCKET_MS + 60_000));
    let id = stand.spool.submit(fixed).unwrap();
    let rebooted = stand.other().with_boot_id("boot-2");
    stand.host.advance_boot_only(-995_000_000_000);
    assert!(claim(&rebooted, &id, "w").is_none());
    rebooted.learn_time(bucket(59_000)).unwrap();
    assert!(claim(&rebooted, &id, "w").is_none());
    stand.advance(2);
    assert!(claim(&rebooted, &id, "w").is_some());
}
