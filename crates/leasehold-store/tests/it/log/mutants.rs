//! Rules of the log, each broken on purpose: a world must show the violation.

use leasehold_store::mutant::Broken;
use leasehold_store::testing::log_conformance::LogSuite;
use leasehold_store::{Client, Log, MemoryStore};
use std::sync::Arc;

use super::{bucket_world, disk_world, host};

/// Number of seeds within which each broken rule must be noticed.
const SEEDS: u64 = 3_000;

fn notice(rule: &'static str, play: impl Fn(u64, Option<&'static str>) -> Result<(u32, u32), String>) {
    let noticed = (0..SEEDS).find(|seed| play(*seed, Some(rule)).is_err());
    let seed = noticed.unwrap_or_else(|| panic!("`{rule}` was not noticed"));
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

#[tokio::test]
async fn a_hash_chain_that_is_not_checked_is_noticed() {
    let _broken = Broken::new("log-chain-unchecked");
    let open = |_: &str| {
        let host = host();
        Log::in_bucket(Client::new(Arc::new(MemoryStore::new(&host)), host))
    };
    let violation = LogSuite::new(open).run().await.unwrap_err();
    assert_eq!(violation.check, "a takeover begins at a position", "{violation}");
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
