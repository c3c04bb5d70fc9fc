//! Which shards a worker serves, and what is known about them: shared by the poller, the duties and shard leasing.

use leasehold_core::{Index, Now, Shard, ShardLen, ShardRange, StoreTime};
use leasehold_queue::discover::Stretch;
use leasehold_store::mutant::{Rule, breaks};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The shards that are served now.
#[derive(Debug)]
pub(crate) struct Served {
    len: ShardLen,
    /// With the moment from which a lease on them cannot be trusted any more; none for those that need no lease.
    ranges: Mutex<Vec<(ShardRange, Option<StoreTime>)>>,
    /// Something was made pending since this was last asked for.
    stirred: AtomicBool,
    /// What is to be leased was leased by the end of the last round.
    is_settled_in: AtomicBool,
    /// The last look at the ready entries saw all of them, and there were none.
    is_ready_empty: AtomicBool,
}

impl Served {
    /// These shards, or all.
    pub(crate) fn new(len: ShardLen, shards: Option<&[Shard]>) -> Self {
        let ranges = shards.map_or_else(|| vec![len.whole()], |shards| len.ranges(shards.iter().cloned()));
        Self::of(len, ranges.into_iter().map(|range| (range, None)).collect(), true)
    }

    /// None, until some are leased.
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

    /// These are leased, each until some moment.
    pub(crate) fn lease(&self, held: Vec<(ShardRange, StoreTime)>) {
        let held: Vec<_> = held.into_iter().map(|(range, until)| (range, Some(until))).collect();
        let names =
            |ranges: &[(ShardRange, _)]| ranges.iter().map(|(range, _)| range.clone()).collect::<Vec<_>>();
        let mut ranges = self.lock();
        if names(&ranges) != names(&held) {
            // What others have left there was not rung for.
            self.stir();
        }
        *ranges = held;
    }

    pub(crate) fn contains(&self, shard: &Shard, now: Now) -> bool {
        self.ranges(now).iter().any(|range| range.contains(shard))
    }

    /// Whether nothing is served at this moment.
    pub(crate) fn is_nothing(&self, now: Now) -> bool {
        self.ranges(now).is_empty()
    }

    /// Whether all is served that is ours to serve: otherwise, nothing found does not mean that nothing is left.
    pub(crate) fn is_settled_in(&self, now: Now) -> bool {
        let is_trusted = |until: &Option<StoreTime>| until.is_none_or(|until| now.is_before(until));
        self.is_settled_in.load(SeqCst) && self.lock().iter().all(|(_, until)| is_trusted(until))
    }

    /// A round of leasing has ended.
    pub(crate) fn settle_in(&self, has_share: bool) {
        self.is_settled_in.store(has_share, SeqCst);
    }

    /// Whether we hold the lease on a shard, beyond doubt.
    pub(crate) fn holds(&self, shard: &Shard, now: Now) -> bool {
        let is_held = |until: &Option<StoreTime>| until.is_some_and(|until| now.is_before(until));
        self.lock().iter().any(|(range, until)| range.contains(shard) && is_held(until))
    }

    /// Where to look. `anywhere` starts at a place that the number chooses, so that no shard has to wait for those before
    /// it; what lies before that place comes last.
    pub(crate) fn stretches(&self, index: Index, now: Now, anywhere: Option<u64>) -> Vec<Stretch> {
        let mut ranges = self.ranges(now);
        let Some(number) = anywhere.filter(|_| !ranges.is_empty()) else {
            return self.stretches_of(index, &ranges);
        };
        let nth = usize::try_from(number % ranges.len() as u64).unwrap_or(0);
        ranges.rotate_left(nth);
        let first = ranges[0].from(number / ranges.len() as u64);
        let mut stretches = vec![Stretch::of(index, &first)];
        stretches.extend(self.stretches_of(index, &ranges[1..]));
        stretches.extend(self.stretches_of(index, &ranges[..1]));
        stretches
    }

    /// How many entries all shards have if those that are served have so many: ids are random, and spread evenly.
    pub(crate) fn would_be_among_all(&self, entries: usize, now: Now) -> usize {
        let served: usize = self.ranges(now).iter().map(ShardRange::count).sum();
        entries * self.len.count() / served.max(1)
    }

    /// Where to look when only these shards have entries.
    pub(crate) fn stretches_among(&self, index: Index, now: Now, shards: BTreeSet<Shard>) -> Vec<Stretch> {
        let served = shards.into_iter().filter(|shard| self.contains(shard, now));
        self.stretches_of(index, &self.len.ranges(served))
    }

    fn stretches_of(&self, index: Index, ranges: &[ShardRange]) -> Vec<Stretch> {
        match ranges {
            [all] if *all == self.len.whole() => vec![Stretch::whole(index)],
            ranges => ranges.iter().map(|range| Stretch::of(index, range)).collect(),
        }
    }

    /// The bell has rung.
    pub(crate) fn stir(&self) {
        self.stirred.store(true, SeqCst);
    }

    /// Whether the bell has rung since this was last asked.
    pub(crate) fn was_stirred(&self) -> bool {
        self.stirred.swap(false, SeqCst)
    }

    pub(crate) fn saw_ready(&self, is_empty: bool) {
        self.is_ready_empty.store(is_empty, SeqCst);
    }

    pub(crate) fn is_ready_empty(&self) -> bool {
        self.is_ready_empty.load(SeqCst)
    }

    /// What is served at this moment, neighbours joined.
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
