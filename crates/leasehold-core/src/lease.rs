//! Lease on anything that has one holder at a time: a shard, a worker id, a maintenance duty.
//!
//! ```text
//!              take: absent, or free ─▶ epoch + 1
//!     ┌──────────────────────────────────────────────┐
//!     │                                              ▼
//!   free ◀── release, break, or time passes ──── held by one instance ──┐
//!                                                    ▲                  │ renew: unchanged
//!                                                    └──────────────────┘
//! ```
//!
//! * **Take**: put if absent. If the object exists, it is read; a lease that is *free* (released, or surely
//!   expired) or our own is put if unchanged, with `epoch + 1`. Our own lease is never reused as it is:
//!   a release of it may still be in flight, and would free it for other workers while we trust it.
//! * **Renew**: put if unchanged. If that is refused, the object is read: our epoch and instance mean that
//!   an earlier renewal arrived late, and its version and expiry are adopted. Anything else means lost.
//! * **Release**: put an already expired lease if unchanged. Lease objects are never deleted: epochs would
//!   repeat, and two holders could trust the lease at once.
//!
//! A holder is identified by its `instance`, which is random per process: two processes may use one worker id. A holder trusts its
//! lease only until the last *confirmed* expiry, which counts from the moment when that renewal was sent.
//!
//! A released lease is padded with spaces to [`RELEASED_BYTES`]. A list returns sizes and times, but no bodies; with
//! the padding, one list shows which of the recently written leases are held.

mod settings;

pub use settings::{
    INBOX_LEASE_TTL, InboxLeaseOptions, LEASE_TTL_MAX, RENEWALS_MIN, RENEWED_LEASE_TTL_MIN, ShardLeasing,
};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::fmt;
use std::time::Duration;

use crate::error::{Error, Kind, Result};
use crate::ids::{HexName, WorkerId, WriteId};
use crate::oversize::corrupt_reason;
use crate::time::{Now, StoreTime};

/// Minimum size of a released lease. A held lease is smaller: names have at most 128 bytes.
pub const RELEASED_BYTES: u64 = 1_024;

/// Lease object in the store.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct Lease {
    /// Fields that describe the subject of the lease, and unknown fields of newer programs.
    #[serde(flatten)]
    pub subject: Map<String, Value>,
    /// Worker id of the holder.
    pub worker_id: WorkerId,
    /// Random id of the holder's process: two processes with one worker id are different holders.
    pub instance: HexName,
    /// Fencing token, incremented by every takeover.
    pub epoch: u64,
    /// Expiry; 1970-01-01 if the lease was released.
    #[serde(rename = "lease_expires_at")]
    pub expires_at: StoreTime,
    /// Time of the last write.
    pub updated_at: StoreTime,
    /// Id of the last write.
    pub write_id: WriteId,
}

/// The fields of the subject without their values: one of them may contain a secret.
impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("subject", &self.subject.keys().collect::<Vec<_>>())
            .field("worker_id", &self.worker_id)
            .field("instance", &self.instance)
            .field("epoch", &self.epoch)
            .field("expires_at", &self.expires_at)
            .field("updated_at", &self.updated_at)
            .field("write_id", &self.write_id)
            .finish()
    }
}

/// Identity of a holder, and the duration of its leases.
#[derive(Debug, Clone, PartialEq)]
pub struct Holder {
    /// Worker id.
    pub worker_id: WorkerId,
    /// Process, random.
    pub instance: HexName,
    /// Duration of a lease without renewal.
    pub ttl: Duration,
}

/// Decision about taking a lease.
#[derive(Debug, Clone, PartialEq)]
pub enum Take {
    /// The lease is free: write this.
    Write(Lease),
    /// Another process holds the lease.
    Held(Lease),
}

impl Lease {
    /// Decides whether a lease can be taken, given the object that was read.
    #[must_use]
    pub fn take(
        found: Option<Lease>,
        subject: &Map<String, Value>,
        holder: &Holder,
        now: Now,
        write_id: WriteId,
    ) -> Take {
        match found {
            Some(held) if !held.is_free(now) && held.instance != holder.instance => Take::Held(held),
            Some(free) => {
                // Fields of newer programs are kept.
                let subject = free.subject.into_iter().chain(subject.clone()).collect();
                Take::Write(Self::first(free.epoch.saturating_add(1), &subject, holder, now, write_id))
            }
            None => Take::Write(Self::first(1, subject, holder, now, write_id)),
        }
    }

    /// Returns the lease that replaces a corrupt one. Its epoch is above the one in the corrupt body; if there is none,
    /// the time in seconds is above any number of takeovers.
    #[must_use]
    pub fn replace_corrupt(
        corrupt: &[u8],
        subject: &Map<String, Value>,
        holder: &Holder,
        now: Now,
        write_id: WriteId,
    ) -> Lease {
        let found = serde_json::from_slice::<Value>(corrupt).ok();
        let epoch = found.and_then(|found| found.get("epoch")?.as_u64());
        let seconds = now.earliest.as_millis().div_euclid(1_000);
        let above = epoch.unwrap_or_else(|| u64::try_from(seconds).unwrap_or(0));
        Self::first(above.saturating_add(1), subject, holder, now, write_id)
    }

    fn first(epoch: u64, subject: &Map<String, Value>, holder: &Holder, now: Now, write_id: WriteId) -> Self {
        Self {
            subject: subject.clone(),
            worker_id: holder.worker_id.clone(),
            instance: holder.instance.clone(),
            epoch,
            expires_at: now.earliest.plus(holder.ttl),
            updated_at: now.earliest,
            write_id,
        }
    }

    /// Returns the lease renewed. Never shortens an expiry that was confirmed before.
    #[must_use]
    pub fn renewed(&self, ttl: Duration, now: Now, write_id: WriteId) -> Self {
        let expires_at = self.expires_at.max(now.earliest.plus(ttl));
        Self { expires_at, updated_at: now.earliest, write_id, ..self.clone() }
    }

    /// Returns the lease released: free at once.
    #[must_use]
    pub fn released(&self, now: Now, write_id: WriteId) -> Self {
        Self { expires_at: StoreTime::from_millis(0), updated_at: now.earliest, write_id, ..self.clone() }
    }

    /// True if the lease was released.
    #[must_use]
    pub fn is_released(&self) -> bool {
        self.expires_at == StoreTime::from_millis(0)
    }

    /// True if any worker may take the lease.
    #[must_use]
    pub fn is_free(&self, now: Now) -> bool {
        self.is_released() || now.is_past(self.expires_at)
    }

    /// True if both have the same epoch and instance.
    #[must_use]
    pub fn is_same_claim(&self, other: &Lease) -> bool {
        self.epoch == other.epoch && self.instance == other.instance
    }

    /// Parses the lease at a key.
    pub fn read(key: &str, body: &[u8]) -> Result<Self> {
        serde_json::from_slice(body)
            .map_err(|error| corrupt_reason(body, &error))
            .map_err(|why| Error::new(Kind::Corrupt, format!("`{key}` is not a lease: {why}")))
    }

    /// Returns the bytes of the lease; padded if it was released.
    #[must_use]
    pub fn write(&self) -> Vec<u8> {
        if self.is_released() {
            return self.write_as_released();
        }
        serde_json::to_vec(self).expect("maps with text for keys, numbers and text")
    }

    /// Returns the bytes padded as if it were released: for a lease that blocks other workers but that no worker uses.
    #[must_use]
    pub fn write_as_released(&self) -> Vec<u8> {
        let mut body = serde_json::to_vec(self).expect("maps with text for keys, numbers and text");
        body.resize(body.len().max(usize::try_from(RELEASED_BYTES).unwrap_or(0)), b' ');
        body
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Name;
    use proptest::prelude::*;
    use serde_json::json;

    const TTL: Duration = Duration::from_secs(30);

    fn at(millis: i64) -> Now {
        Now::exactly(StoreTime::from_millis(millis))
    }

    fn holder(name: &str) -> Holder {
        let worker_id = Name::checked("worker id", name).unwrap();
        Holder { worker_id, instance: HexName::from_random(name.len() as u128), ttl: TTL }
    }

    fn write_id() -> WriteId {
        HexName::from_random(1)
    }

    fn taken(found: Option<&Lease>, name: &str, now: Now) -> Option<Lease> {
        let subject = json!({"shard": "07"}).as_object().unwrap().clone();
        match Lease::take(found.cloned(), &subject, &holder(name), now, write_id()) {
            Take::Write(lease) => Some(lease),
            Take::Held(held) => found.filter(|found| **found != held).cloned(),
        }
    }

    #[test]
    fn it_is_taken_when_absent_expired_or_released() {
        let first = taken(None, "w1", at(1_000)).unwrap();
        assert_eq!((first.epoch, first.expires_at), (1, StoreTime::from_millis(31_000)));
        assert_eq!(taken(Some(&first), "other", at(31_000)), None, "not surely expired");
        assert_eq!(taken(Some(&first), "other", at(31_001)).unwrap().epoch, 2);
        let released = first.released(at(2_000), write_id());
        assert_eq!(taken(Some(&released), "other", at(2_000)).unwrap().epoch, 2);
        let contradictory = Now { is_consistent: false, ..at(99_000) };
        assert_eq!(taken(Some(&first), "other", contradictory), None);
        assert_eq!(
            taken(Some(&released), "other", contradictory).unwrap().epoch,
            2,
            "a release needs no clock"
        );
    }

    #[test]
    fn our_own_lease_is_taken_with_a_new_epoch_so_that_writes_in_flight_fail() {
        let first = taken(None, "w1", at(1_000)).unwrap();
        assert_eq!(taken(Some(&first), "w1", at(1_000)).unwrap().epoch, 2);
    }

    #[test]
    fn a_takeover_keeps_unknown_fields_and_sets_the_subject() {
        let mut first = taken(None, "w1", at(1_000)).unwrap();
        first.subject.insert("newer".into(), json!(1));
        first.subject.insert("shard".into(), json!("wrong"));
        let second = taken(Some(&first), "other", at(99_000)).unwrap();
        assert_eq!(Value::from(second.subject), json!({"shard": "07", "newer": 1}));
    }

    #[test]
    fn a_renewal_never_shortens_what_was_confirmed() {
        let first = taken(None, "w1", at(10_000)).unwrap();
        assert_eq!(first.renewed(TTL, at(5_000), write_id()).expires_at, first.expires_at);
        assert_eq!(first.renewed(TTL, at(20_000), write_id()).expires_at, StoreTime::from_millis(50_000));
    }

    #[test]
    fn the_replacement_of_a_corrupt_lease_has_a_higher_epoch() {
        let subject = Map::new();
        let epoch =
            |body: &[u8]| Lease::replace_corrupt(body, &subject, &holder("w"), at(9_000), write_id()).epoch;
        assert_eq!(epoch(br#"{"epoch": 41, "worker_id": ""}"#), 42);
        assert_eq!((epoch(b""), epoch(b"{\"epoch\": -3}")), (10, 10));
    }

    #[test]
    fn a_lease_is_written_as_documented() {
        let text = String::from_utf8(taken(None, "w1", at(1_000)).unwrap().write()).unwrap();
        let instance = "00000000000000000000000000000002";
        let expected = format!(
            r#"{{"shard":"07","worker_id":"w1","instance":"{instance}","epoch":1,"lease_expires_at":"1970-01-01T00:00:31.000Z","updated_at":"1970-01-01T00:00:01.000Z","write_id":"00000000000000000000000000000001"}}"#
        );
        assert_eq!(text, expected);
    }

    proptest! {
        #[test]
        fn records_survive_and_only_released_ones_are_large(
            name in "[a-z0-9][a-zA-Z0-9_.-]{0,127}", epoch in 1..u64::MAX, word in "[a-z]{1,8}", now in 1..i64::MAX / 2,
        ) {
            let mut lease = taken(None, &name, at(now.min(200_000_000_000_000))).unwrap();
            lease.epoch = epoch;
            lease.subject.insert(word.clone(), json!({"kept": word}));
            let held = lease.write();
            prop_assert!((held.len() as u64) < RELEASED_BYTES);
            prop_assert_eq!(Lease::read("k", &held).unwrap(), lease.clone());
            let released = lease.released(at(now.min(200_000_000_000_000)), write_id());
            prop_assert!(released.write().len() as u64 >= RELEASED_BYTES);
            prop_assert_eq!(Lease::read("k", &released.write()).unwrap(), released);
        }
    }
}
