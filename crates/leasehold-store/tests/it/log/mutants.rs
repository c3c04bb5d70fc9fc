//! Rules of the log, each broken on purpose: a world must show the violation.

use super::{bucket_world, disk_world};

/// Number of seeds within which each broken rule must be noticed.
const SEEDS: u64 = 3_000;

fn notice(rule: &'static str, play: impl Fn(u64, Option<&'static str>) -> Result<(u32, u32), String>) {
    let noticed = (0..SEEDS).find_map(|seed| play(seed, Some(rule)).err().map(|why| (seed, why)));
    let (seed, why) = noticed.unwrap_or_else(|| panic!("`{rule}` was not noticed"));
    println!("{rule}: seed {seed}: {why}");
    play(seed, None).unwrap_or_else(|why| panic!("seed {seed} fails without `{rule}` too: {why}"));
}

#[test]
fn every_broken_rule_of_a_folder_is_noticed() {
    for rule in [
        "log-epoch-unlocked",
        "log-epoch-not-reread",
        "log-end-read-first",
        "log-epoch-unread",
        "log-epoch-not-durable",
        "log-frame-not-copied",
        "log-commit-unsynced",
        "log-sync-retried",
        "log-newest-by-first",
        "log-header-not-durable",
        "log-current-unread",
    ] {
        notice(rule, disk_world::play);
    }
}

#[test]
fn every_broken_rule_of_a_bucket_is_noticed() {
    for rule in [
        "log-fence-deleted",
        "log-unconfirmed",
        "log-unanswered-is-committed",
        "log-not-poisoned",
        "log-current-unread",
        "log-newer-epoch-replayed",
    ] {
        notice(rule, bucket_world::play);
    }
}
