//! Share of a worker in the shards: how many groups it is to lease, and when it tries again.
//!
//! With *n* live workers and *G* groups the quota is `G div n`, and one more for the first `G mod n` by id. All compute
//! the same from the same list, so that nothing moves when nothing changes. A *round* is one renewal interval. A worker
//! below its quota scans again soon, because other workers release groups within a round; after two rounds without
//! success, once a round.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::lease::ShardLeasing;
use crate::{ShardRange, WorkerId};

/// Fraction of a round after which a worker below its quota, or without an answer, tries again.
const SOON_PART: u32 = 4;
/// Number of scans without a group to take, two rounds of them, after which they are made once a round.
const EMPTY_SCANS_MAX: u32 = 2 * SOON_PART;

/// Share of one worker. Local times are since boot.
#[derive(Debug)]
pub struct ShardShare {
    options: ShardLeasing,
    groups: usize,
    /// Number of shards in a group.
    group_size: usize,
    /// Number of groups to hold.
    quota: usize,
    /// True if the live workers were counted since the last renewal.
    is_counted: bool,
    /// True if the quota is the whole share, not only the initial `shards_per_worker`.
    is_full: bool,
    /// Number of times that the live workers were counted.
    counts: u64,
    /// Number of consecutive scans without a group to take.
    empty_scans: u32,
    renewed_at: Option<Duration>,
}

impl ShardShare {
    /// Creates the share of a worker that has not counted the others.
    #[must_use]
    pub fn new(options: ShardLeasing, groups: &[ShardRange]) -> Self {
        Self {
            options,
            groups: groups.len(),
            group_size: groups.first().map_or(1, ShardRange::count),
            quota: 0,
            is_counted: false,
            is_full: false,
            counts: 0,
            empty_scans: 0,
            renewed_at: None,
        }
    }

    /// Number of groups to hold.
    #[must_use]
    pub fn quota(&self) -> usize {
        self.quota
    }

    /// Sets the quota to zero, because the worker stops, or other workers do not count it.
    pub fn leave(&mut self) {
        self.set_quota(0);
    }

    fn set_quota(&mut self, quota: usize) {
        if quota != self.quota {
            self.empty_scans = 0;
        }
        self.quota = quota;
    }

    /// Computes the quota from the live workers, this one included. Until the others have counted this one, it is at most
    /// `shards_per_worker`. Returns the whole share in shards, if this setting limits it for now.
    pub fn count(&mut self, alive: &BTreeSet<WorkerId>, own: &WorkerId) -> Option<usize> {
        let share = quota(self.groups, alive, own);
        (self.counts, self.is_counted) = (self.counts + 1, true);
        if self.counts > 1 {
            self.is_full = true;
            self.set_quota(share);
            return None;
        }
        let most = self.options.shards_per_worker.div_ceil(self.group_size).max(1);
        self.is_full = share <= most;
        self.set_quota(share.min(most));
        (most * alive.len() < self.groups).then_some(share * self.group_size)
    }

    /// True if the live workers are to be counted.
    #[must_use]
    pub fn must_count(&self) -> bool {
        !self.is_counted || !self.is_full
    }

    /// True if this many groups are less than the quota.
    #[must_use]
    pub fn is_below(&self, held: usize) -> bool {
        held < self.quota
    }

    /// True if this many groups are the whole share.
    #[must_use]
    pub fn is_whole(&self, held: usize) -> bool {
        self.is_full && !self.is_below(held)
    }

    /// Records a scan that has found no group to take, until one is taken.
    pub fn scanned(&mut self) {
        self.empty_scans = self.empty_scans.saturating_add(1);
    }

    /// Records that a group was taken or lost: the next scan is soon.
    pub fn moved(&mut self) {
        self.empty_scans = 0;
    }

    /// Begins a round of renewals if it is due.
    pub fn begin_renewal(&mut self, local: Duration) -> bool {
        let is_due = self.until_renewal(local).is_zero();
        if is_due {
            (self.renewed_at, self.is_counted) = (Some(local), false);
        }
        is_due
    }

    /// True if there was a round.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        self.renewed_at.is_some()
    }

    /// Time until the next renewals, from when the last were sent: a round may take long. Slightly early, because a late
    /// renewal may lose the lease.
    #[must_use]
    pub fn until_renewal(&self, local: Duration) -> Duration {
        let due = self.options.renew_every.mul_f64(0.9);
        self.renewed_at.map_or(Duration::ZERO, |at| due.saturating_sub(local.saturating_sub(at)))
    }

    /// Pause until the next round: until renewal, or shorter if something is to be done. `jitter` is between 0 and 1;
    /// `free_in` is the time until the worker id is free, if another process holds it.
    #[must_use]
    pub fn pause(
        &self,
        local: Duration,
        held: usize,
        has_requests: bool,
        free_in: Option<Duration>,
        jitter: f64,
    ) -> Duration {
        let every = self.options.renew_every;
        let renewal = self.until_renewal(local) + every.mul_f64(0.1 * jitter);
        let soon = (every / SOON_PART).mul_f64(0.9 + 0.1 * jitter);
        let is_quick = self.is_below(held) && self.empty_scans < EMPTY_SCANS_MAX;
        match free_in {
            // A worker that restarts under its old id waits until the old lease has expired, and no longer.
            Some(free_in) => renewal.min((free_in + every / 50).max(soon)),
            // A request got no answer, or other workers have not counted this one yet.
            None if is_quick || has_requests || self.must_count() => renewal.min(soon),
            None => renewal,
        }
    }
}

/// Number of groups that a worker is to hold: an equal share, and one more for the first workers if there is a
/// remainder.
fn quota(groups: usize, alive: &BTreeSet<WorkerId>, own: &WorkerId) -> usize {
    let place = alive.iter().position(|name| name == own).unwrap_or(0);
    groups / alive.len() + usize::from(place < groups % alive.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Name, ShardLen};

    fn workers(count: usize) -> BTreeSet<WorkerId> {
        (0..count).map(|n| Name::checked("worker id", &format!("w{n:02}")).unwrap()).collect()
    }

    #[test]
    fn shares_are_even_and_leave_nothing() {
        for groups in [16, 64] {
            for count in 1..=70_usize {
                let alive = workers(count);
                let shares: Vec<_> = alive.iter().map(|own| quota(groups, &alive, own)).collect();
                assert_eq!(shares.iter().sum::<usize>(), groups);
                assert!(shares.iter().max().unwrap() - shares.iter().min().unwrap() <= 1);
            }
        }
    }

    #[test]
    fn the_first_quota_is_small_and_the_next_is_the_share() {
        let (options, alive) = (ShardLeasing { shards_per_worker: 2, ..ShardLeasing::default() }, workers(2));
        let own = alive.first().unwrap();
        let groups = ShardLen::DEFAULT.groups();
        let size = groups[0].count();
        let mut share = ShardShare::new(options, &groups);
        assert!(share.begin_renewal(Duration::from_secs(100)) && share.must_count());
        assert_eq!(share.count(&alive, own), Some(groups.len() / 2 * size), "the first count is limited");
        assert_eq!((share.quota(), share.is_whole(2)), (2_usize.div_ceil(size), false));
        assert_eq!((share.count(&alive, own), share.quota()), (None, groups.len() / 2));
        assert!(share.is_whole(groups.len() / 2) && share.is_below(1) && !share.must_count());
    }

    #[test]
    fn a_worker_below_its_quota_tries_again_soon_for_two_rounds() {
        let (second, alive) = (Duration::from_secs(1), workers(1));
        let mut share = ShardShare::new(ShardLeasing::default(), &ShardLen::DEFAULT.groups());
        share.begin_renewal(second * 100);
        share.count(&alive, alive.first().unwrap());
        share.count(&alive, alive.first().unwrap());
        let pause = |share: &ShardShare| share.pause(second * 101, 0, false, None, 0.0).as_secs_f64();
        assert!((pause(&share) - 2.25).abs() < 1e-6);
        (0..8).for_each(|_| share.scanned());
        assert!((pause(&share) - 8.0).abs() < 1e-6, "until the renewal");
        share.moved();
        assert!((pause(&share) - 2.25).abs() < 1e-6);
        let free_in = share.pause(second * 101, 0, false, Some(second * 5), 0.0);
        assert_eq!(free_in.as_millis(), 5_200, "the old lease on the id expires before");
    }
}
