//! The shards that a worker serves, with their state: shared by the poller, the duties and shard leasing.

use leasehold_core::{Index, Now, Shard, ShardLen, ShardRange, StoreTime};
use leasehold_queue::discover::KeyRange;
use leasehold_store::mutant::{Rule, breaks};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Shards that are served now.
#[derive(Debug)]
pub(crate) struct ShardAssignment {
    len: ShardLen,
    /// Ranges with the time from which on their lease can no longer be trusted; none for those without a lease.
    ranges: Mutex<Vec<(ShardRange, Option<StoreTime>)>>,
    /// True if the bell has rung since the last check.
    stirred: AtomicBool,
    /// True if the whole share was leased at the end of the last round.
    is_settled_in: AtomicBool,
    /// True if the last scan of the ready entries was complete and found none.
    is_ready_empty: AtomicBool,
}

impl ShardAssignment {
    /// Assigns these shards, or all, without leases.
    pub(crate) fn new(len: ShardLen, shards: Option<&[Shard]>) -> Self {
        let ranges = shards.map_or_else(|| vec![len.whole()], |shards| len.ranges(shards.iter().cloned()));
        Self::of(len, ranges.into_iter().map(|range| (range, None)).collect(), true)
    }

    /// Assigns no shards until some are leased.
    pub(crate) fn none(len: ShardLen) -> Self {
        Self::of(len, Vec::new(), false)
    }

    fn of(len: ShardLen, ranges: Vec<(ShardRange, Option<StoreTime>)>, is_settled_in: bool) -> Self {
        Self {
            len,
            ranges: Mutex::new(ranges),
            stirred: AtomicBool::new(true),
            is_settled_in: AtomicBool::new(is_settled_in),
            is_ready_empty: AtomicBool::new(false),
        }
    }

    /// Sets the leased ranges, each with its expiry.
    pub(crate) fn lease(&self, held: Vec<(ShardRange, StoreTime)>) {
        let held: Vec<_> = held.into_iter().map(|(range, until)| (range, Some(until))).collect();
        let names =
            |ranges: &[(ShardRange, _)]| ranges.iter().map(|(range, _)| range.clone()).collect::<Vec<_>>();
        let mut ranges = self.lock();
        if names(&ranges) != names(&held) {
            // Tasks that other workers left there were not rung for.
            self.mark_active();
        }
        *ranges = held;
    }

    pub(crate) fn contains(&self, shard: &Shard, now: Now) -> bool {
        self.ranges(now).iter().any(|range| range.contains(shard))
    }

    /// True if no shard is served at `now`.
    pub(crate) fn is_nothing(&self, now: Now) -> bool {
        self.ranges(now).is_empty()
    }

    /// True if the whole share is served. Otherwise an empty scan does not mean that nothing is left.
    pub(crate) fn is_settled_in(&self, now: Now) -> bool {
        let is_trusted = |until: &Option<StoreTime>| until.is_none_or(|until| now.is_before(until));
        self.is_settled_in.load(SeqCst) && self.lock().iter().all(|(_, until)| is_trusted(until))
    }

    /// Notes the end of a round of leasing.
    pub(crate) fn set_settled(&self, has_share: bool) {
        self.is_settled_in.store(has_share, SeqCst);
    }

    /// True if the lease on a shard is certainly held.
    pub(crate) fn holds(&self, shard: &Shard, now: Now) -> bool {
        let is_held = |until: &Option<StoreTime>| until.is_some_and(|until| now.is_before(until));
        self.lock().iter().any(|(range, until)| range.contains(shard) && is_held(until))
    }

    /// Ranges to scan. `anywhere` starts at a position given by the number, so that no shard has to wait for those
    /// before it; the shards before that position come last.
    pub(crate) fn stretches(&self, index: Index, now: Now, anywhere: Option<u64>) -> Vec<KeyRange> {
        let mut ranges = self.ranges(now);
        let Some(number) = anywhere.filter(|_| !ranges.is_empty()) else {
            return self.stretches_of(index, &ranges);
        };
        let nth = usize::try_from(number % ranges.len() as u64).unwrap_or(0);
        ranges.rotate_left(nth);
        let first = ranges[0].from(number / ranges.len() as u64);
        let mut stretches = vec![KeyRange::of(index, &first)];
        stretches.extend(self.stretches_of(index, &ranges[1..]));
        stretches.extend(self.stretches_of(index, &ranges[..1]));
        stretches
    }

    /// Estimated number of entries in all shards, from the number in the served ones: ids are random, and spread
    /// evenly.
    pub(crate) fn would_be_among_all(&self, entries: usize, now: Now) -> usize {
        let assignment: usize = self.ranges(now).iter().map(ShardRange::count).sum();
        entries * self.len.count() / assignment.max(1)
    }

    /// Ranges to scan when only these shards have entries.
    pub(crate) fn stretches_among(&self, index: Index, now: Now, shards: BTreeSet<Shard>) -> Vec<KeyRange> {
        let assignment = shards.into_iter().filter(|shard| self.contains(shard, now));
        self.stretches_of(index, &self.len.ranges(assignment))
    }

    fn stretches_of(&self, index: Index, ranges: &[ShardRange]) -> Vec<KeyRange> {
        match ranges {
            [all] if *all == self.len.whole() => vec![KeyRange::whole(index)],
            ranges => ranges.iter().map(|range| KeyRange::of(index, range)).collect(),
        }
    }

    /// Notes that the bell has rung.
    pub(crate) fn mark_active(&self) {
        self.stirred.store(true, SeqCst);
    }

    /// True if the bell has rung since the last call.
    pub(crate) fn was_stirred(&self) -> bool {
        self.stirred.swap(false, SeqCst)
    }

    pub(crate) fn saw_ready(&self, is_empty: bool) {
        self.is_ready_empty.store(is_empty, SeqCst);
    }

    pub(crate) fn is_ready_empty(&self) -> bool {
        self.is_ready_empty.load(SeqCst)
    }

    /// Ranges that are served at `now`, with neighbours joined.
    pub(crate) fn ranges(&self, now: Now) -> Vec<ShardRange> {
        let is_trusted = |until| now.is_before(until) || breaks(Rule::LeaseTrustedForEver);
        let is_served = |until: &Option<StoreTime>| until.is_none_or(is_trusted);
        let ranges = self.lock().clone();
        self.len.joined(ranges.into_iter().filter(|(_, until)| is_served(until)).map(|(range, _)| range))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(ShardRange, Option<StoreTime>)>> {
        self.ranges.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
