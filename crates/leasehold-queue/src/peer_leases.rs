//! Cache of the leases of other workers, so that none is read twice.
//!
//! A list shows keys, timestamps and sizes. A lease that was written within the ttl and is not padded (released)
//! counts as held; only older ones are read.

use futures::{StreamExt, stream};
use leasehold_core::lease::RELEASED_BYTES;
use leasehold_core::{Kind, Now, Result, StoreTime};
use leasehold_store::{Client, HostExt, ListEntry};
use std::collections::BTreeMap;
use std::time::Duration;

use crate::lease::{CORRUPT_AGE_MIN, LEASE_TTL_MAX, read_lease};

/// Number of leases that are read concurrently.
const READS_AT_ONCE: usize = 16;

/// Leases of other workers that were read.
#[derive(Debug)]
pub struct PeerLeaseCache {
    ttl: Duration,
    read: BTreeMap<String, Read>,
}

#[derive(Debug)]
struct Read {
    stamp: StoreTime,
    /// Time from which on it is free.
    until: StoreTime,
    is_valid: bool,
}

impl PeerLeaseCache {
    /// Creates a cache for leases that usually have this ttl.
    #[must_use]
    pub fn new(ttl: Duration) -> Self {
        Self { ttl, read: BTreeMap::new() }
    }

    /// Returns whether a listed lease is held; none if it has to be read. No lease lasts longer than the maximum ttl.
    #[must_use]
    pub fn is_held(&self, listed: &ListEntry, now: Now) -> Option<bool> {
        let is_large = listed.size >= RELEASED_BYTES;
        match self.read.get(&listed.key) {
            // Timestamps have whole seconds: it may have been released since it was read.
            Some(read) if read.stamp == listed.modified && !(read.is_valid && is_large) => {
                return Some(!now.is_past(read.until));
            }
            _ => {}
        }
        if is_large || now.is_past(listed.modified.plus(LEASE_TTL_MAX)) {
            return Some(false);
        }
        (!now.is_past(listed.modified.plus(self.ttl))).then_some(true)
    }

    /// Stores a lease that was read after a list showed this timestamp, with its expiry; none if it is corrupt, and then it
    /// need not be read again before it is old enough to be replaced.
    pub fn insert(&mut self, key: &str, stamp: Option<StoreTime>, until: Option<StoreTime>) {
        let read = stamp.map(|stamp| Read {
            stamp,
            until: until.unwrap_or_else(|| stamp.plus(CORRUPT_AGE_MIN)),
            is_valid: until.is_some(),
        });
        self.read.extend(read.map(|read| (key.to_owned(), read)));
    }

    /// Returns the listed leases that are held, as `name` names them; it returns none for a key to skip. Leases that may
    /// have expired are read, each within this time, and only once.
    pub async fn held<N>(
        &mut self,
        client: &Client,
        listed: Vec<ListEntry>,
        name: impl Fn(&str) -> Option<N>,
        timeout: Duration,
    ) -> Result<Vec<N>> {
        let now = client.known_now()?;
        // Their timestamp alone shows that they are free.
        self.read.retain(|_, read| !now.is_past(read.stamp.plus(CORRUPT_AGE_MIN)));
        let named = |listed: ListEntry| Some((name(&listed.key)?, listed));
        let listed: Vec<_> = listed.into_iter().filter_map(named).collect();
        let unknown = listed.iter().filter(|(_, listed)| self.is_held(listed, now).is_none());
        let reads = unknown.map(|(_, listed)| async move {
            match client.host().in_time(timeout, read_lease(client, &listed.key)).await {
                // A corrupt lease belongs to no worker: its shards are to be served, its inbox to be emptied.
                Err(error) if error.kind() == Kind::Corrupt => Ok((listed, None)),
                lease => lease.map(|lease| (listed, lease)),
            }
        });
        let reads = stream::iter(reads.collect::<Vec<_>>()).buffered(READS_AT_ONCE).collect::<Vec<_>>();
        for read in reads.await {
            let (listed, lease) = read?;
            let until = lease.map_or(StoreTime::from_millis(0), |lease| lease.expires_at);
            self.insert(&listed.key, Some(listed.modified), Some(until));
        }
        let held = listed.into_iter().filter(|(_, listed)| self.is_held(listed, now) == Some(true));
        Ok(held.map(|(name, _)| name).collect())
    }
}
