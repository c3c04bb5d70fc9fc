//! Which shards a worker serves, and what is known about them: shared by the poller, the duties and shard leasing.

use leasehold_core::{Index, Shard, ShardLen, ShardRange};
use leasehold_queue::discover::Stretch;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The shards that are served now.
#[derive(Debug)]
pub(crate) struct Served {
    len: ShardLen,
    ranges: Mutex<Vec<ShardRange>>,
    /// Something was made pending since this was last asked for.
    stirred: AtomicBool,
    /// The last look at the ready entries saw all of them, and there were none.
    is_ready_empty: AtomicBool,
}

impl Served {
    /// These shards, or all.
    pub(crate) fn new(len: ShardLen, shards: Option<&[Shard]>) -> Self {
        let ranges = shards.map_or_else(|| vec![len.whole()], |shards| len.ranges(shards.iter().cloned()));
        Self {
            len,
            ranges: Mutex::new(ranges),
            stirred: AtomicBool::new(true),
            is_ready_empty: AtomicBool::new(false),
        }
    }

    pub(crate) fn contains(&self, shard: &Shard) -> bool {
        self.ranges().iter().any(|range| range.contains(shard))
    }

    /// Where to look. `anywhere` starts at a place that the number chooses, so that no shard has to wait for those before
    /// it; what lies before that place comes last.
    pub(crate) fn stretches(&self, index: Index, anywhere: Option<u64>) -> Vec<Stretch> {
        let mut ranges = self.ranges().clone();
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

    /// Where to look when only these shards have entries.
    pub(crate) fn stretches_among(&self, index: Index, shards: BTreeSet<Shard>) -> Vec<Stretch> {
        let served = shards.into_iter().filter(|shard| self.contains(shard));
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

    fn ranges(&self) -> MutexGuard<'_, Vec<ShardRange>> {
        self.ranges.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
