//! What is known about the leases of others, so that none is read twice.

use leasehold_core::lease::RELEASED_BYTES;
use leasehold_core::{Lease, Now, StoreTime};
use leasehold_queue::lease::{LEASE_TTL_MAX, NONSENSE_AGE_MIN};
use leasehold_store::Entry;
use std::collections::BTreeMap;
use std::time::Duration;

/// Leases of others that were read.
#[derive(Debug)]
pub(super) struct Others {
    ttl: Duration,
    /// By key: the stamp of what was read, and from when on it is nobody's.
    read: BTreeMap<String, (StoreTime, StoreTime)>,
}

impl Others {
    pub(super) fn new(ttl: Duration) -> Self {
        Self { ttl, read: BTreeMap::new() }
    }

    /// Whether a listed lease is held; nothing if it has to be read to know that. None lasts longer than the longest ttl.
    pub(super) fn is_held(&self, listed: &Entry, now: Now) -> Option<bool> {
        match self.read.get(&listed.key) {
            Some((stamp, until)) if *stamp == listed.modified => return Some(!now.is_past(*until)),
            _ => {}
        }
        if listed.size >= RELEASED_BYTES || now.is_past(listed.modified.plus(LEASE_TTL_MAX)) {
            return Some(false);
        }
        (!now.is_past(listed.modified.plus(self.ttl))).then_some(true)
    }

    /// What was read where a list has shown this stamp; no lease if it is gone or makes no sense.
    pub(super) fn learn(&mut self, key: &str, stamp: Option<StoreTime>, lease: Option<&Lease>) {
        self.note(key, stamp, |_| lease.map_or(StoreTime::from_millis(0), |lease| lease.expires_at));
    }

    /// What stands there makes no sense: whoever wants it need not ask again before it is old enough.
    pub(super) fn leave_alone(&mut self, key: &str, stamp: Option<StoreTime>) {
        self.note(key, stamp, |stamp| stamp.plus(NONSENSE_AGE_MIN));
    }

    fn note(&mut self, key: &str, stamp: Option<StoreTime>, until: impl Fn(StoreTime) -> StoreTime) {
        self.read.extend(stamp.map(|stamp| (key.to_owned(), (stamp, until(stamp)))));
    }

    /// What is so old is told by its stamp.
    pub(super) fn forget_old(&mut self, now: Now) {
        self.read.retain(|_, (stamp, _)| !now.is_past(stamp.plus(NONSENSE_AGE_MIN)));
    }
}
