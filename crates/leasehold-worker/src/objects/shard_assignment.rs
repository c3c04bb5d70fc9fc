//! The shards that a worker serves, with their state: shared by the poller, the duties and shard leasing.

use leasehold_core::{Index, Now, Shard, ShardLen, ShardRange, StoreTime};
use leasehold_queue::discover::KeyRange;
use leasehold_store::host::lock;
use leasehold_store::mutant::breaks;
use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// Shards that are served now.
#[derive(Debug)]
pub(super) struct ShardAssignment {
    len: ShardLen,
    assigned: Mutex<AssignedShards>,
    /// True if there was activity, such as a ring of the bell, since the last check.
    is_active: AtomicBool,
    /// True if the last scan of the ready entries was complete and found none.
    pub(super) is_ready_empty: AtomicBool,
}

#[derive(Debug)]
struct AssignedShards {
    /// Ranges with the time from which on their lease can no longer be trusted; none for those without a lease.
    ranges: Vec<(ShardRange, Option<StoreTime>)>,
    /// True if they are the whole share.
    is_full_share: bool,
}

impl ShardAssignment {
    /// Assigns these shards, or all, without leases.
    pub(super) fn new(len: ShardLen, shards: Option<&[Shard]>) -> Self {
        let ranges =
            shards.map_or_else(|| vec![len.full_range()], |shards| len.ranges(shards.iter().cloned()));
        Self::of(len, ranges.into_iter().map(|range| (range, None)).collect(), true)
    }

    /// Assigns these ranges, and tells if they are the whole share.
    pub(super) fn of(
        len: ShardLen,
        ranges: Vec<(ShardRange, Option<StoreTime>)>,
        is_full_share: bool,
    ) -> Self {
        let assigned = Mutex::new(AssignedShards { ranges, is_full_share });
        Self { len, assigned, is_active: AtomicBool::new(true), is_ready_empty: AtomicBool::new(false) }
    }

    /// Sets the leased ranges, each with its expiry, and if they are the whole share.
    pub(super) fn lease(&self, ranges: Vec<(ShardRange, Option<StoreTime>)>, is_full_share: bool) {
        let mut assigned = lock(&self.assigned);
        let (before, after) = (assigned.ranges.iter(), ranges.iter());
        if !before.map(|(range, _)| range).eq(after.map(|(range, _)| range)) {
            // Tasks that other workers left there were not rung for.
            self.mark_active();
        }
        *assigned = AssignedShards { ranges, is_full_share };
    }

    /// True if a shard is served at `now`.
    pub(super) fn contains(&self, shard: &Shard, now: Now) -> bool {
        self.ranges(now).iter().any(|range| range.contains(shard))
    }

    /// True if the whole share is served. Otherwise an empty scan does not mean that nothing is left.
    pub(super) fn has_full_share(&self, now: Now) -> bool {
        let is_trusted = |until: &Option<StoreTime>| until.is_none_or(|until| now.is_before(until));
        let assigned = lock(&self.assigned);
        assigned.is_full_share && assigned.ranges.iter().all(|(_, until)| is_trusted(until))
    }

    /// True if the lease on a shard is certainly held.
    pub(super) fn holds(&self, shard: &Shard, now: Now) -> bool {
        let is_held = |until: &Option<StoreTime>| until.is_some_and(|until| now.is_before(until));
        lock(&self.assigned).ranges.iter().any(|(range, until)| range.contains(shard) && is_held(until))
    }

    /// Ranges to scan. `random_start` is a random number that selects the first shard, so that no shard has to wait
    /// for those before it; the shards before it come last.
    pub(super) fn key_ranges(&self, index: Index, now: Now, random_start: Option<u64>) -> Vec<KeyRange> {
        let mut ranges = self.ranges(now);
        let Some(number) = random_start.filter(|_| !ranges.is_empty()) else {
            return self.key_ranges_of(index, &ranges);
        };
        let nth = usize::try_from(number % ranges.len() as u64).unwrap_or(0);
        ranges.rotate_left(nth);
        let first = ranges[0].starting_at(number / ranges.len() as u64);
        let mut key_ranges = vec![KeyRange::of(index, &first)];
        key_ranges.extend(self.key_ranges_of(index, &ranges[1..]));
        key_ranges.extend(self.key_ranges_of(index, &ranges[..1]));
        key_ranges
    }

    /// Estimated number of entries in all shards, from the number in the served ones: ids are random, and spread
    /// evenly.
    pub(super) fn estimate_total(&self, entries: usize, now: Now) -> usize {
        let assignment: usize = self.ranges(now).iter().map(ShardRange::count).sum();
        entries * self.len.count() / assignment.max(1)
    }

    /// Ranges to scan when only these shards have entries.
    pub(super) fn key_ranges_among(&self, index: Index, now: Now, shards: BTreeSet<Shard>) -> Vec<KeyRange> {
        let assignment = shards.into_iter().filter(|shard| self.contains(shard, now));
        self.key_ranges_of(index, &self.len.ranges(assignment))
    }

    fn key_ranges_of(&self, index: Index, ranges: &[ShardRange]) -> Vec<KeyRange> {
        match ranges {
            [all] if *all == self.len.full_range() => vec![KeyRange::whole(index)],
            ranges => ranges.iter().map(|range| KeyRange::of(index, range)).collect(),
        }
    }

    /// Records activity: a ring of the bell, or a task that may be claimed or recovered without one.
    pub(super) fn mark_active(&self) {
        self.is_active.store(true, SeqCst);
    }

    /// True if there was activity since the last call.
    pub(super) fn take_active(&self) -> bool {
        self.is_active.swap(false, SeqCst)
    }

    /// Ranges that are served at `now`, with neighbours joined.
    pub(super) fn ranges(&self, now: Now) -> Vec<ShardRange> {
        let is_trusted = |until| now.is_before(until) || breaks("lease-trusted-for-ever");
        let is_served = |until: &Option<StoreTime>| until.is_none_or(is_trusted);
        let ranges = lock(&self.assigned).ranges.clone();
        self.len
            .merge_ranges(ranges.into_iter().filter(|(_, until)| is_served(until)).map(|(range, _)| range))
    }
}
