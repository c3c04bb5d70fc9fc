//! The lease protocol over a store. The rules are in [`leasehold_core::lease`].
//!
//! A lease is one object with a holder, an epoch and an expiry in the store's time. It is taken, renewed and released
//! by conditional writes, so at most one process holds it. A holder may rely on it until the last confirmed expiry,
//! and another process takes it only when it has certainly expired, whatever the uncertainty of both clocks. Each
//! new holder increments the epoch.
//!
//! Requests: a take is 1 put if no object exists, else 1 get and 1 put. A renewal and a release are 1 put. Each
//! refused put costs 1 more get.

use bytes::Bytes;
pub use leasehold_core::lease::LEASE_TTL_MAX;
use leasehold_core::lease::Take;
use leasehold_core::{
    Error, Holder, Kind, Lease, Now, Result, ShardRange, StoreTime, WorkerId, WriteId, keys,
};
use leasehold_store::{
    Client, Decision, HostExt, List, Object, Purpose, PutOutcome, Version, When, update_from,
};
use serde_json::{Map, Value};
use std::time::Duration;

use crate::holders::LeaseInfo;
use crate::journal::lease::raise_trusted_until;

/// Time after which no store accepts a signed request any longer.
const DELETE_LANDS_WITHIN: Duration = Duration::from_mins(30);

/// Age at which a corrupt lease counts as expired: older than any lease can last. Timestamps have whole seconds, and
/// the hosts of one store differ a little.
pub const CORRUPT_AGE_MIN: Duration = Duration::from_secs(LEASE_TTL_MAX.as_secs() + 2);

/// Maximum number of attempts of a renewal: there are at most a few earlier ones whose outcome is unknown.
const RENEWALS_LATE_MAX: u32 = 4;

/// Takes, renews and releases leases for one holder.
#[derive(Debug, Clone)]
pub struct Leases {
    client: Client,
    holder: Holder,
}

/// A lease held by this process, as last confirmed.
#[derive(Debug, Clone, PartialEq)]
pub struct HeldLease {
    /// Its key.
    pub key: String,
    /// The lease.
    pub lease: Lease,
    version: Version,
}

/// Outcome of an attempt to take a lease.
#[derive(Debug, Clone, PartialEq)]
pub enum Taken {
    /// This process holds it.
    Ours(HeldLease),
    /// Another holder has it.
    Others(Lease),
}

/// Outcome of a renewal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renewed {
    /// The lease is still held.
    Kept,
    /// The lease was lost: everything that depends on it must stop at once.
    Lost,
}

impl Leases {
    /// Creates a client for the leases of this holder.
    pub fn new(client: Client, holder: Holder) -> Result<Self> {
        if holder.ttl.is_zero() || holder.ttl > LEASE_TTL_MAX {
            let (ttl, most) = (holder.ttl.as_secs_f64(), LEASE_TTL_MAX.as_secs());
            return Err(Error::invalid(format!(
                "lease ttl must be above 0 s and at most {most} s, got {ttl} s"
            )));
        }
        Ok(Self { client, holder })
    }

    /// Creates a client for the leases of this process, under this worker id.
    pub fn of_process(client: &Client, worker: &WorkerId, ttl: Duration) -> Result<Self> {
        let (worker_id, instance) = (worker.clone(), client.host().random_name());
        Self::new(client.clone(), Holder { worker_id, instance, ttl })
    }

    /// Client of the store.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The holder.
    #[must_use]
    pub fn holder(&self) -> &Holder {
        &self.holder
    }

    /// Takes the lease at `key` if it is free. `seen` is the timestamp of the object if a list has shown one: it is
    /// then read first.
    pub async fn take(
        &self,
        key: &str,
        subject: &Map<String, Value>,
        seen: Option<StoreTime>,
    ) -> Result<Taken> {
        let found = if seen.is_some() { self.client.get(Purpose::Lease, key).await? } else { None };
        match self.take_from(key, subject, found, None).await {
            Err(error) if error.kind() == Kind::Corrupt => {}
            taken => return taken,
        }
        // A corrupt lease is taken if it is old enough. Only a list shows its age. The object is read *before* it is
        // listed: a later object is younger than that timestamp, and the condition of our put fails for it.
        let found = self.client.get(Purpose::Lease, key).await?;
        let stamp = stamp(&self.client, key).await?;
        let corrupt = found.as_ref().map(|object| object.version.clone()).zip(stamp);
        self.take_from(key, subject, found, corrupt).await
    }

    /// Takes the lease if the one that was found is free. `corrupt` is the version of a corrupt one, with a timestamp that is
    /// not older than it.
    async fn take_from(
        &self,
        key: &str,
        subject: &Map<String, Value>,
        found: Option<Object>,
        corrupt: Option<(Version, StoreTime)>,
    ) -> Result<Taken> {
        self.put_taken(key, found, |found, now, write_id| {
            let is_old = |object: &Object| {
                let is_past = |stamp: StoreTime| now.is_past(stamp.plus(CORRUPT_AGE_MIN));
                matches!(&corrupt, Some((version, stamp)) if *version == object.version && is_past(*stamp))
            };
            let held = match (found.map(|object| Lease::read(key, &object.body)).transpose(), found) {
                (Ok(held), _) => held,
                (Err(_), Some(object)) if is_old(object) => {
                    tracing::warn!(key, "corrupt lease replaced");
                    let lease = Lease::replace_corrupt(&object.body, subject, &self.holder, now, write_id);
                    return Ok(Take::Write(lease));
                }
                (Err(error), _) => return Err(error),
            };
            Ok(Lease::take(held, subject, &self.holder, now, write_id))
        })
        .await
    }

    /// Takes the lease at `key` if `decide` says so, given the lease that was found. A corrupt one is an error.
    pub(crate) async fn take_by(
        &self,
        key: &str,
        decide: impl Fn(Option<Lease>, Now, WriteId) -> Result<Take>,
    ) -> Result<Taken> {
        let found = self.client.get(Purpose::Lease, key).await?;
        self.put_taken(key, found, |found, now, write_id| {
            decide(found.map(|object| Lease::read(key, &object.body)).transpose()?, now, write_id)
        })
        .await
    }

    async fn put_taken(
        &self,
        key: &str,
        found: Option<Object>,
        decide: impl Fn(Option<&Object>, Now, WriteId) -> Result<Take>,
    ) -> Result<Taken> {
        let updated = update_from(&self.client, Purpose::Lease, key, found, |found| {
            let (now, write_id) = (self.client.known_now()?, self.client.write_id());
            // Only the holder changes a held lease, and that is this process once the take is confirmed: a take is
            // recognised by its own bytes alone.
            Ok(match decide(found, now, write_id)? {
                Take::Write(lease) => Decision::write(lease.write(), lease),
                Take::Held(held) => Decision::Leave(held),
            })
        });
        let updated = updated.await?;
        let lease = updated.result;
        Ok(match updated.put {
            Some(PutOutcome::Written(version)) => {
                Taken::Ours(HeldLease { key: key.to_owned(), lease, version })
            }
            _ => Taken::Others(lease),
        })
    }

    /// Renews a lease. After an error the outcome is unknown: the lease is held until the last confirmed expiry.
    pub async fn renew(&self, held: &mut HeldLease) -> Result<Renewed> {
        self.replace(held, |lease, now, write_id| lease.renewed(self.holder.ttl, now, write_id)).await
    }

    /// Renews a lease and replaces the fields that describe its subject.
    pub(crate) async fn renew_with(
        &self,
        held: &mut HeldLease,
        subject: &Map<String, Value>,
    ) -> Result<Renewed> {
        let renewed = |lease: &Lease, now, write_id| Lease {
            subject: subject.clone(),
            ..lease.renewed(self.holder.ttl, now, write_id)
        };
        self.replace(held, renewed).await
    }

    /// Releases a lease, so that another process can take it at once. A lease that was lost is not changed.
    pub async fn release(&self, mut held: HeldLease) -> Result<()> {
        self.replace(&mut held, Lease::released).await.map(drop)
    }

    /// Removes a lease that expired at least `kept` ago, so that its epoch no longer matters. It is taken first, for
    /// longer than a delete can be in flight: no other process can hold it when the delete is applied. True if it was
    /// removed.
    pub async fn retire(&self, key: &str, kept: Duration) -> Result<bool> {
        let taken = leasehold_store::update(&self.client, Purpose::Lease, key, |found| {
            let now = self.client.known_now()?;
            let lease = found.and_then(|object| Lease::read(key, &object.body).ok());
            let Some(lease) =
                lease.filter(|lease| now.is_past(lease.updated_at.plus(kept)) && lease.is_free(now))
            else {
                return Ok(Decision::Leave(false));
            };
            let holder = Holder { ttl: DELETE_LANDS_WITHIN, ..self.holder.clone() };
            Ok(match Lease::take(Some(lease.clone()), &lease.subject, &holder, now, self.client.write_id()) {
                // In a list it looks released, so that it is not counted as a live worker.
                Take::Write(lease) => Decision::write(lease.write_as_released(), true),
                Take::Held(_) => Decision::Leave(false),
            })
        });
        let taken = taken.await?;
        let is_ours = taken.result && matches!(taken.put, Some(PutOutcome::Written(_)));
        if is_ours {
            self.client.delete(Purpose::Lease, key).await?;
        }
        Ok(is_ours)
    }

    /// Writes the next state of a held lease. One that finds an earlier renewal of its own continues from there; a lease
    /// with another holder is recorded as released.
    async fn replace(
        &self,
        held: &mut HeldLease,
        next: impl Fn(&Lease, Now, WriteId) -> Lease,
    ) -> Result<Renewed> {
        for _ in 0..RENEWALS_LATE_MAX {
            let next = next(&held.lease, self.client.known_now()?, self.client.write_id());
            let (body, when) = (Bytes::from(next.write()), When::Unchanged(held.version.clone()));
            let found = match self.client.put(Purpose::Lease, &held.key, body, &when).await? {
                PutOutcome::Written(version) => {
                    (held.lease, held.version) = (next, version);
                    return Ok(Renewed::Kept);
                }
                PutOutcome::Superseded(object) | PutOutcome::Lost(Some(object)) => Some(object),
                PutOutcome::Lost(None) => None,
            };
            let read =
                found.and_then(|object| Some((Lease::read(&held.key, &object.body).ok()?, object.version)));
            match read {
                Some((lease, version)) if lease.is_same_claim(&held.lease) => {
                    (held.lease, held.version) = (lease, version);
                }
                _ => held.lease = held.lease.released(self.client.known_now()?, next.write_id),
            }
            if held.lease.is_released() {
                return Ok(Renewed::Lost);
            }
        }
        Ok(Renewed::Kept)
    }
}

/// Subject of the lease on a worker id.
#[must_use]
pub fn worker_subject(worker: &WorkerId) -> Map<String, Value> {
    Map::from_iter([("worker".to_owned(), worker.as_str().into())])
}

/// Subject of the lease on a group of shards, with the last shard if there are several.
#[must_use]
pub fn shards_subject(group: &ShardRange) -> Map<String, Value> {
    let last = (group.first != group.last).then(|| ("last".to_owned(), group.last.as_str().into()));
    [("shard".to_owned(), group.first.as_str().into())].into_iter().chain(last).collect()
}

/// Reads the lease at a key.
pub async fn read_lease(client: &Client, key: &str) -> Result<Option<Lease>> {
    let object = client.get(Purpose::Lease, key).await?;
    object.map(|object| Lease::read(key, &object.body)).transpose()
}

/// Ends a lease regardless of its holder, for operators. The holder notices at its next renewal and may rely on the
/// lease until then. A corrupt lease is replaced by a released one with this subject, whose epoch is above any that can
/// still be read: the operator knows that no process holds it. Returns the lease that was found.
pub async fn break_lease(
    client: &Client,
    key: &str,
    subject: &Map<String, Value>,
) -> Result<Option<LeaseInfo>> {
    let mut first: Option<Lease> = None;
    let broken = leasehold_store::update(client, Purpose::Admin, key, |found| {
        let now = client.known_now()?;
        let info = |lease| Some(LeaseInfo::of(lease, now));
        let Some(object) = found else { return Ok(Decision::Leave(first.take().and_then(info))) };
        let Ok(lease) = Lease::read(key, &object.body) else {
            let released = released_replacement(client, &object.body, subject)?;
            return Ok(Decision::write(released.write(), Some(LeaseInfo::CORRUPT)));
        };
        // A later claim is not the one to end: our write may have been applied with its answer lost, and another
        // process may have taken the lease since.
        let is_later = first.as_ref().is_some_and(|first| !first.is_same_claim(&lease));
        if lease.is_released() || is_later {
            return Ok(Decision::Leave(info(first.take().unwrap_or(lease))));
        }
        let mut next = lease.released(now, client.write_id());
        next.epoch = next.epoch.saturating_add(1);
        if key == keys::JOURNAL_LEASE {
            raise_trusted_until(&mut next, lease.expires_at);
        }
        first = Some(lease.clone());
        Ok(Decision::write(next.write(), info(lease)))
    });
    Ok(broken.await?.result)
}

/// The released lease that replaces a corrupt one.
pub(crate) fn released_replacement(
    client: &Client,
    corrupt: &[u8],
    subject: &Map<String, Value>,
) -> Result<Lease> {
    let nobody = Holder {
        worker_id: WorkerId::checked("worker id", "nobody")?,
        instance: client.host().random_name(),
        ttl: LEASE_TTL_MAX,
    };
    let (now, write_id) = (client.known_now()?, client.write_id());
    let lease = Lease::replace_corrupt(corrupt, subject, &nobody, now, write_id.clone());
    Ok(lease.released(now, write_id))
}

pub(crate) async fn stamp(client: &Client, key: &str) -> Result<Option<StoreTime>> {
    let page = client.list(Purpose::Lease, &List::all(key)).await?;
    Ok(page.entries.iter().find(|entry| entry.key == key).map(|entry| entry.modified))
}
