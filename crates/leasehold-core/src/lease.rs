//! The lease: whatever has one holder for a while — a shard, a worker's name — is held by an object like this.
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
//! * **Take**: put on condition *absent*. If it is there, it is read; only one that is *free* — released, or run out
//!   beyond doubt — or our own is put on condition *unchanged*, with `epoch + 1`. Our own is never simply gone on with:
//!   a release of it may still be under way, and would free it for others while we trust it.
//! * **Renew**: put on condition *unchanged*. Refused: read; our epoch and instance mean that an earlier renewal has
//!   landed late, and its version and expiry are adopted. Anything else means lost.
//! * **Release**: put a lease that has run out already, on condition *unchanged*. Lease objects are never deleted:
//!   epochs would repeat, and two holders could trust at once.
//!
//! A holder is known by its `instance`, which is random per process: a name is not an identity. A lease is trusted by its
//! holder only until the last *confirmed* expiry, which counts from when that renewal was sent.
//!
//! A released lease is padded with spaces to [`RELEASED_BYTES`]: a list shows sizes and stamps, not bodies, and this
//! way one list tells which of the leases that were stamped lately are held.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::time::Duration;

use crate::error::{Error, Kind, Result};
use crate::ids::{HexName, WorkerId, WriteId};
use crate::time::{Now, StoreTime};
use crate::unread::why_corrupt;

/// A lease of at least this size is released. One that is held is smaller: names have at most 128 bytes.
pub const RELEASED_BYTES: u64 = 1_024;

/// A lease, as it stands in the store.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Lease {
    /// What is held, in words of its own; also whatever a newer program has written.
    #[serde(flatten)]
    pub subject: Map<String, Value>,
    /// The name of the holder.
    pub worker_id: WorkerId,
    /// Which process of that name.
    pub instance: HexName,
    /// Grows with every take-over: the fencing token.
    pub epoch: u64,
    /// Until when it is held; long past if it was released.
    #[serde(rename = "lease_expires_at")]
    pub expires_at: StoreTime,
    /// When it was last written.
    pub updated_at: StoreTime,
    /// The write that made it so.
    pub write_id: WriteId,
}

/// Who wants to hold something, for how long at a time.
#[derive(Debug, Clone, PartialEq)]
pub struct Holder {
    /// Its name.
    pub worker_id: WorkerId,
    /// Random per process.
    pub instance: HexName,
    /// How long a lease lasts without renewal.
    pub ttl: Duration,
}

/// What to do about a lease that someone wants.
#[derive(Debug, Clone, PartialEq)]
pub enum Take {
    /// It is free: write this.
    Write(Lease),
    /// Someone holds it.
    Held(Lease),
}

impl Lease {
    /// Decides upon taking what stands there.
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
                // What a newer program has written there is not ours to drop.
                let subject = free.subject.into_iter().chain(subject.clone()).collect();
                Take::Write(Self::first(free.epoch.saturating_add(1), &subject, holder, now, write_id))
            }
            None => Take::Write(Self::first(1, subject, holder, now, write_id)),
        }
    }

    /// The lease that replaces one which makes no sense. Its epoch is above any that can still be found there; if none
    /// can, the time is above any count of take-overs.
    #[must_use]
    pub fn in_place_of(
        nonsense: &[u8],
        subject: &Map<String, Value>,
        holder: &Holder,
        now: Now,
        write_id: WriteId,
    ) -> Lease {
        let found = serde_json::from_slice::<Value>(nonsense).ok();
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

    /// The same, for longer; never for less than what was confirmed before.
    #[must_use]
    pub fn renewed(&self, ttl: Duration, now: Now, write_id: WriteId) -> Self {
        let expires_at = self.expires_at.max(now.earliest.plus(ttl));
        Self { expires_at, updated_at: now.earliest, write_id, ..self.clone() }
    }

    /// The same, given back: free at once.
    #[must_use]
    pub fn released(&self, now: Now, write_id: WriteId) -> Self {
        Self { expires_at: StoreTime::from_millis(0), updated_at: now.earliest, write_id, ..self.clone() }
    }

    /// Whether it was given back.
    #[must_use]
    pub fn is_released(&self) -> bool {
        self.expires_at == StoreTime::from_millis(0)
    }

    /// Whether anyone may take it.
    #[must_use]
    pub fn is_free(&self, now: Now) -> bool {
        self.is_released() || now.is_past(self.expires_at)
    }

    /// Whether this is the very claim of that epoch and instance.
    #[must_use]
    pub fn is_same_claim(&self, other: &Lease) -> bool {
        self.epoch == other.epoch && self.instance == other.instance
    }

    /// Reads what stands at a key.
    pub fn read(key: &str, body: &[u8]) -> Result<Self> {
        serde_json::from_slice(body)
            .map_err(|error| why_corrupt(body, &error))
            .map_err(|why| Error::new(Kind::Corrupt, format!("`{key}` is not a lease: {why}")))
    }

    /// The bytes that stand for it.
    #[must_use]
    pub fn write(&self) -> Vec<u8> {
        if self.is_released() {
            return self.write_as_released();
        }
        serde_json::to_vec(self).expect("maps with text for keys, numbers and text")
    }

    /// The same, as large as if it were released: a lease that keeps others away, but that nobody lives by.
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
    fn it_is_taken_when_nothing_is_there_when_it_ran_out_and_when_it_was_released() {
        let first = taken(None, "w1", at(1_000)).unwrap();
        assert_eq!((first.epoch, first.expires_at), (1, StoreTime::from_millis(31_000)));
        assert_eq!(taken(Some(&first), "other", at(31_000)), None, "not past beyond doubt");
        assert_eq!(taken(Some(&first), "other", at(31_001)).unwrap().epoch, 2);
        let released = first.released(at(2_000), write_id());
        assert_eq!(taken(Some(&released), "other", at(2_000)).unwrap().epoch, 2);
        let unsteady = Now { steady: false, ..at(99_000) };
        assert_eq!(taken(Some(&first), "other", unsteady), None);
        assert_eq!(taken(Some(&released), "other", unsteady).unwrap().epoch, 2, "a release needs no clock");
    }

    #[test]
    fn our_own_is_taken_anew_so_that_what_is_under_way_for_it_comes_to_nothing() {
        let first = taken(None, "w1", at(1_000)).unwrap();
        assert_eq!(taken(Some(&first), "w1", at(1_000)).unwrap().epoch, 2);
    }

    #[test]
    fn who_takes_over_keeps_what_it_does_not_know_and_says_what_it_holds() {
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
    fn what_replaces_nonsense_has_an_epoch_above_any_that_can_be_found() {
        let subject = Map::new();
        let epoch =
            |body: &[u8]| Lease::in_place_of(body, &subject, &holder("w"), at(9_000), write_id()).epoch;
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
