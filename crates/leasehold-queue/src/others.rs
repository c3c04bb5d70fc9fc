//! What is known about the leases of others, so that none is read twice.
//!
//! A list shows keys, stamps and sizes: a lease that was stamped within the ttl and is not padded counts as held; only older
//! ones are read.

use leasehold_core::lease::RELEASED_BYTES;
use leasehold_core::{Lease, Now, StoreTime};
use leasehold_store::Entry;
use std::collections::BTreeMap;
use std::time::Duration;

use crate::lease::{LEASE_TTL_MAX, NONSENSE_AGE_MIN};

/// Leases of others that were read.
#[derive(Debug)]
pub struct Others {
    ttl: Duration,
    read: BTreeMap<String, Read>,
}

#[derive(Debug)]
struct Read {
    stamp: StoreTime,
    /// From when on it is nobody's.
    until: StoreTime,
    makes_sense: bool,
}

impl Others {
    /// Leases that usually last so long.
    #[must_use]
    pub fn new(ttl: Duration) -> Self {
        Self { ttl, read: BTreeMap::new() }
    }

    /// Whether a listed lease is held; nothing if it has to be read to know that. None lasts longer than the longest ttl.
    #[must_use]
    pub fn is_held(&self, listed: &Entry, now: Now) -> Option<bool> {
        let is_large = listed.size >= RELEASED_BYTES;
        match self.read.get(&listed.key) {
            // Stamps have whole seconds: it may have been given back since it was read.
            Some(read) if read.stamp == listed.modified && !(read.makes_sense && is_large) => {
                return Some(!now.is_past(read.until));
            }
            _ => {}
        }
        if is_large || now.is_past(listed.modified.plus(LEASE_TTL_MAX)) {
            return Some(false);
        }
        (!now.is_past(listed.modified.plus(self.ttl))).then_some(true)
    }

    /// What was read where a list has shown this stamp; no lease if it is gone or makes no sense.
    pub fn learn(&mut self, key: &str, stamp: Option<StoreTime>, lease: Option<&Lease>) {
        let until = lease.map_or(StoreTime::from_millis(0), |lease| lease.expires_at);
        self.note(key, stamp.map(|stamp| Read { stamp, until, makes_sense: true }));
    }

    /// What stands there makes no sense: whoever wants it need not ask again before it is old enough.
    pub fn leave_alone(&mut self, key: &str, stamp: Option<StoreTime>) {
        let until = |stamp: StoreTime| stamp.plus(NONSENSE_AGE_MIN);
        self.note(key, stamp.map(|stamp| Read { stamp, until: until(stamp), makes_sense: false }));
    }

    fn note(&mut self, key: &str, read: Option<Read>) {
        self.read.extend(read.map(|read| (key.to_owned(), read)));
    }

    /// What is so old is told by its stamp.
    pub fn forget_old(&mut self, now: Now) {
        self.read.retain(|_, read| !now.is_past(read.stamp.plus(NONSENSE_AGE_MIN)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_core::lease::Take;
    use leasehold_core::{HexName, Holder, Name};
    use serde_json::Map;

    /// It was taken and given back within the second of the stamp, and left alone until it would have run out.
    #[test]
    fn what_was_given_back_in_the_second_of_its_stamp_is_free() {
        let (now, ttl) = (Now::exactly(StoreTime::from_millis(5_500)), Duration::from_secs(30));
        let stamp = StoreTime::from_millis(5_000);
        let worker_id = Name::checked("worker id", "w").unwrap();
        let holder = Holder { worker_id, instance: HexName::from_random(1), ttl };
        let Take::Write(lease) = Lease::take(None, &Map::new(), &holder, now, HexName::from_random(2)) else {
            panic!("it was free")
        };
        let listed = |lease: &Lease| {
            let size = lease.write().len() as u64;
            Entry { key: "k".into(), modified: stamp, size }
        };
        let mut others = Others::new(ttl);
        others.learn("k", Some(stamp), Some(&lease));
        assert_eq!(others.is_held(&listed(&lease), now), Some(true));
        let released = lease.released(now, HexName::from_random(3));
        assert_eq!(others.is_held(&listed(&released), now), Some(false));
    }
}
