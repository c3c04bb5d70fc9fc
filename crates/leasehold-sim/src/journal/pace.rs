//! Pace of a world: how often requests are made. With many, two processes often change the same task. With few, a broker that was
//! superseded serves for long without a commit, whose outcome would tell it so.

use leasehold_core::limits::RESIDENT_BYTES;
use leasehold_queue::{ArchiveLimits, SnapshotLimits};
use std::time::Duration;

use crate::queue::planned_submit::PlannedSubmit;
use crate::random::SimRandom;

const SECOND: Duration = Duration::from_secs(1);

/// Pace of a world.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    /// Number of tasks to submit.
    pub(super) submits: u64,
    /// Share of tasks without a key that take longer than a lease, in ten thousandths.
    long_share: u32,
    /// Lifetime of a claim without renewal.
    pub(super) lease: Duration,
    /// Maximum pause between two submits of a node.
    pub(super) submit_every: Duration,
    /// Maximum pause between two operations and reads of a node.
    pub(super) operate_every: Duration,
    /// Maximum time between two lease breaks.
    pub(super) break_every: Duration,
    /// Maximum time for which a node works before it hands over.
    pub(super) session: Duration,
    /// True if one node is the broker first and loses its lease to a node that is slow to take over.
    pub(super) has_slow_takeover: bool,
    /// Snapshots of brokers: some delete commits at once, so that a slow process finds gaps.
    pub(super) snapshots: SnapshotLimits,
}

impl Pace {
    pub(super) fn random(rng: &mut SimRandom) -> Self {
        if rng.happens(1_500) {
            return Self::of_slow_takeover(rng);
        }
        let is_quiet = rng.happens(5_000);
        let (least, more) = if is_quiet { (2, 5) } else { (12, 15) };
        let pauses = [SECOND, SECOND * 8, SECOND * 90];
        let breaks = [SECOND * 15, SECOND * 40, SECOND * 150];
        let sessions = [SECOND * 60, SECOND * 240];
        Self {
            submits: least + rng.below(more),
            long_share: if is_quiet { 8_000 } else { 3_000 },
            lease: rng.between(SECOND * 8, SECOND * 40),
            submit_every: SECOND * 8,
            operate_every: pauses[rng.index(pauses.len())],
            break_every: breaks[rng.index(breaks.len())],
            session: sessions[rng.index(sessions.len())],
            has_slow_takeover: false,
            snapshots: random_snapshots(rng),
        }
    }

    /// Pace at which a broker commits on while another node takes over, and the commits are deleted before that node puts
    /// its fence: what rules B2 and B3 are for.
    fn of_slow_takeover(rng: &mut SimRandom) -> Self {
        Self {
            submits: 150 + rng.below(100),
            long_share: 0,
            lease: rng.between(SECOND * 8, SECOND * 40),
            submit_every: SECOND,
            operate_every: SECOND * 90,
            break_every: SECOND * 20,
            session: SECOND * 240,
            has_slow_takeover: true,
            // Each snapshot renews the lease, by which a broker learns that it has lost it.
            snapshots: SnapshotLimits {
                commits: 1_000,
                interval: rng.between(SECOND * 10, SECOND * 15),
                commits_kept: Duration::ZERO,
                archive: random_archive(rng),
                resident_bytes: random_resident(rng),
            },
        }
    }

    /// Pace of connected processes: they make more requests, as every node can, and some brokers live for long.
    pub(super) fn of_connected(rng: &mut SimRandom) -> Self {
        let (submits, pauses) = ([6, 20, 60], [SECOND, SECOND * 4, SECOND * 20]);
        let breaks = [SECOND * 30, SECOND * 150, SECOND * 600];
        Self {
            submits: submits[rng.index(submits.len())] + rng.below(10),
            long_share: [1_000, 5_000][rng.index(2)],
            lease: rng.between(SECOND * 8, SECOND * 40),
            submit_every: pauses[rng.index(pauses.len())],
            operate_every: pauses[rng.index(pauses.len())],
            break_every: breaks[rng.index(breaks.len())],
            session: [SECOND * 60, SECOND * 240][rng.index(2)],
            has_slow_takeover: false,
            snapshots: random_snapshots(rng),
        }
    }

    /// Draws a submit.
    pub(super) fn submit(&self, number: u64, rng: &mut SimRandom) -> PlannedSubmit {
        let order = PlannedSubmit::new(number, rng);
        if rng.happens(self.long_share) && order.key.is_none() {
            PlannedSubmit { kind: "long", timeout_secs: None, ..order }
        } else {
            order
        }
    }
}

fn random_snapshots(rng: &mut SimRandom) -> SnapshotLimits {
    let (commits, kept) = ([3, 10, 1_000], [Duration::ZERO, SECOND * 30, SECOND * 3_600]);
    SnapshotLimits {
        commits: commits[rng.index(commits.len())],
        interval: rng.between(SECOND * 10, SECOND * 120),
        commits_kept: kept[rng.index(kept.len())],
        archive: random_archive(rng),
        resident_bytes: random_resident(rng),
    }
}

/// Bytes in memory: with the small ones every task of a snapshot is evicted at once, or soon.
fn random_resident(rng: &mut SimRandom) -> u64 {
    let bytes = [0, 2_000, RESIDENT_BYTES];
    bytes[rng.index(bytes.len())]
}

fn random_archive(rng: &mut SimRandom) -> ArchiveLimits {
    let ages = [Duration::ZERO, SECOND * 5, SECOND * 40, SECOND * 300];
    let (small, kept) = ([1, 2, 16], [Duration::ZERO, SECOND * 30, SECOND * 3_600]);
    ArchiveLimits {
        age: ages[rng.index(ages.len())],
        final_live: if rng.happens(2_000) { 2 } else { 100 },
        small: small[rng.index(small.len())],
        kept: kept[rng.index(kept.len())],
    }
}
