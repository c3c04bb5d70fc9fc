//! A lease reduced to a few small numbers, and its conversion from and to the real [`Lease`].

use leasehold_core::{HexName, Holder, Lease, Name, Now, StoreTime};
use serde_json::Map;
use std::time::Duration;

/// Lifetime of a lease in moments.
pub(super) const TTL: u8 = 1;

/// The present, a constant: when time passes, all other moments become earlier. This keeps the number of states finite.
pub(in crate::model) const NOW: u8 = 2;

/// Expired, but not released.
const PAST: u8 = 1;

/// A reduced lease record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::model) struct SmallLease {
    pub(in crate::model) epoch: u8,
    pub(in crate::model) instance: u8,
    /// Zero when it was released.
    pub(in crate::model) expires: u8,
    /// Number of the write that produced it: the version.
    pub(super) write: u8,
}

pub(super) fn is_same_claim(found: SmallLease, held: SmallLease) -> bool {
    lease(found).is_same_claim(&lease(held))
}

pub(in crate::model) fn now() -> Now {
    Now::exactly(moment(NOW))
}

/// Shifts a moment when time passes; a released lease stays released.
pub(in crate::model) fn earlier(moment: u8) -> u8 {
    if moment == 0 { 0 } else { (moment - 1).max(PAST) }
}

/// An unused write id.
pub(in crate::model) fn unused_write_id() -> HexName {
    write_id(u8::MAX)
}

pub(super) fn moment(time: u8) -> StoreTime {
    StoreTime::from_millis(i64::from(time) * 1_000)
}

pub(super) fn write_id(write: u8) -> HexName {
    HexName::from_random(write.into())
}

pub(in crate::model) fn holder(instance: u8) -> Holder {
    let worker_id = Name::checked("worker id", "w").expect("a letter is a valid name");
    Holder {
        worker_id,
        instance: HexName::from_random(instance.into()),
        ttl: Duration::from_secs(TTL.into()),
    }
}

pub(in crate::model) fn lease(claim: SmallLease) -> Lease {
    let Holder { worker_id, instance, .. } = holder(claim.instance);
    Lease {
        subject: Map::new(),
        worker_id,
        instance,
        epoch: claim.epoch.into(),
        expires_at: moment(claim.expires),
        updated_at: moment(0),
        write_id: write_id(claim.write),
    }
}

pub(in crate::model) fn claim(lease: &Lease) -> SmallLease {
    let number =
        |name: &HexName| u8::from_str_radix(name.as_str(), 16).expect("it was created from a small number");
    let small = |number: u64| u8::try_from(number).expect("the model is small");
    SmallLease {
        epoch: small(lease.epoch),
        instance: number(&lease.instance),
        expires: small(lease.expires_at.as_millis().unsigned_abs() / 1_000),
        write: number(&lease.write_id),
    }
}
