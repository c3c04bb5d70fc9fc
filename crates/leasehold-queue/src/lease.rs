//! Holding something for a while: the lease protocol over a store. The rules are in [`leasehold_core::lease`].
//!
//! Requests: a take is 1 put where nothing was, 1 get and 1 put where something was; a renewal and a release are 1 put.
//! Each refusal costs 1 get more.

use bytes::Bytes;
use leasehold_core::lease::Take;
use leasehold_core::{Error, HexName, Holder, Kind, Lease, Now, Result, ShardRange, StoreTime, WorkerId};
use leasehold_store::{
    Client, Decision, HostExt, List, Object, Purpose, Put, Standing, Version, When, update_from,
};
use serde_json::{Map, Value};
use std::time::Duration;

/// No lease lasts longer without renewal.
pub const LEASE_TTL_MAX: Duration = Duration::from_mins(10);

/// No store accepts a signed request for so long after it was sent.
const DELETE_LANDS_WITHIN: Duration = Duration::from_mins(30);

/// A lease that makes no sense counts as run out when it is older than any lease can last. Stamps have whole seconds, and
/// the hosts of one store differ a little.
pub const NONSENSE_AGE_MIN: Duration = Duration::from_secs(LEASE_TTL_MAX.as_secs() + 2);

/// A renewal that finds an earlier one of its own goes on from there; more than a few of them are not under way.
const RENEWALS_LATE_MAX: u32 = 4;

/// Takes, renews and releases leases for one holder.
#[derive(Debug, Clone)]
pub struct Leases {
    client: Client,
    holder: Holder,
}

/// A lease that is ours, as last confirmed.
#[derive(Debug, Clone, PartialEq)]
pub struct HeldLease {
    key: String,
    lease: Lease,
    version: Version,
}

/// What came of trying to take a lease.
#[derive(Debug, Clone, PartialEq)]
pub enum Taken {
    /// It is ours.
    Ours(HeldLease),
    /// Someone else has it.
    Others(Lease),
}

/// Whether a lease is still ours after a renewal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renewed {
    /// It is.
    Kept,
    /// It is not: whatever depended on it stops at once.
    Lost,
}

impl HeldLease {
    /// Its key.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The lease as last confirmed.
    #[must_use]
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// Whether it is ours beyond doubt.
    #[must_use]
    pub fn is_trusted(&self, now: Now) -> bool {
        now.is_before(self.lease.expires_at)
    }
}

impl Leases {
    /// Leases of this holder.
    pub fn new(client: Client, holder: Holder) -> Result<Self> {
        if holder.ttl.is_zero() || holder.ttl > LEASE_TTL_MAX {
            let (ttl, most) = (holder.ttl.as_secs_f64(), LEASE_TTL_MAX.as_secs());
            return Err(Error::invalid(format!("a lease of {ttl} s: it must last up to {most} s")));
        }
        Ok(Self { client, holder })
    }

    /// Who holds them.
    #[must_use]
    pub fn holder(&self) -> &Holder {
        &self.holder
    }

    /// Takes what lies at `key`, if it is free. `seen` is the stamp of the object if a list has shown one: it is then
    /// read first.
    pub async fn take(
        &self,
        key: &str,
        subject: &Map<String, Value>,
        seen: Option<StoreTime>,
    ) -> Result<Taken> {
        let found = if seen.is_some() { self.client.get(Purpose::Lease, key).await? } else { None };
        match self.take_from(key, subject, found, None).await {
            Err(error) if error.kind() == Kind::Corrupt => self.take_nonsense(key, subject).await,
            taken => taken,
        }
    }

    /// What makes no sense is judged by its age, which only a list shows. It is read *before* it is listed: whatever was
    /// put there later is younger than that stamp says, and the condition of our put does not hold for it.
    async fn take_nonsense(&self, key: &str, subject: &Map<String, Value>) -> Result<Taken> {
        let found = self.client.get(Purpose::Lease, key).await?;
        let stamp = stamp(&self.client, key).await?;
        let nonsense = found.as_ref().map(|object| object.version.clone()).zip(stamp);
        self.take_from(key, subject, found, nonsense).await
    }

    /// `nonsense` is a version that makes no sense, with a stamp that is not older than it.
    async fn take_from(
        &self,
        key: &str,
        subject: &Map<String, Value>,
        found: Option<Object>,
        nonsense: Option<(Version, StoreTime)>,
    ) -> Result<Taken> {
        let updated = update_from(&self.client, Purpose::Lease, key, found, |found| {
            let (now, write_id) = (self.now()?, self.client.write_id());
            let is_old = |object: &Object| {
                let is_past = |stamp: StoreTime| now.is_past(stamp.plus(NONSENSE_AGE_MIN));
                matches!(&nonsense, Some((version, stamp)) if *version == object.version && is_past(*stamp))
            };
            let held = match (found.map(|object| Lease::read(key, &object.body)).transpose(), found) {
                (Ok(held), _) => held,
                (Err(_), Some(object)) if is_old(object) => {
                    tracing::warn!("`{key}` makes no sense and is replaced");
                    let lease = Lease::in_place_of(&object.body, subject, &self.holder, now, write_id);
                    return Ok(Decision::write(lease.write(), lease));
                }
                (Err(error), _) => return Err(error),
            };
            // Nobody builds on a claim but its holder, and that is us as soon as we know of it: no other trace of a take
            // than its own bytes has to be recognised.
            Ok(match Lease::take(held, subject, &self.holder, now, write_id) {
                Take::Write(lease) => Decision::write(lease.write(), lease),
                Take::Held(held) => Decision::Leave(held),
            })
        });
        let updated = updated.await?;
        let lease = updated.result;
        Ok(match updated.now {
            Standing::Written(version) => Taken::Ours(HeldLease { key: key.to_owned(), lease, version }),
            Standing::Left | Standing::Overtaken(_) => Taken::Others(lease),
        })
    }

    /// Keeps it for longer. An error leaves open what became of it: it is ours until the last confirmed expiry.
    pub async fn renew(&self, held: &mut HeldLease) -> Result<Renewed> {
        for _ in 0..RENEWALS_LATE_MAX {
            let renewed = held.lease.renewed(self.holder.ttl, self.now()?, self.client.write_id());
            if self.replace(held, renewed).await? {
                return Ok(Renewed::Kept);
            }
            if held.lease.is_released() {
                return Ok(Renewed::Lost);
            }
        }
        Ok(Renewed::Kept)
    }

    /// Gives it back, so that anyone can take it at once. One that was lost meanwhile is left alone.
    pub async fn release(&self, mut held: HeldLease) -> Result<()> {
        for _ in 0..RENEWALS_LATE_MAX {
            let released = held.lease.released(self.now()?, self.client.write_id());
            if self.replace(&mut held, released).await? || held.lease.is_released() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Removes a lease that ran out so long ago that nobody remembers its epoch. It is taken first, for longer than a
    /// delete can be under way: nobody else can hold it when that lands. True if it was removed.
    pub async fn retire(&self, key: &str, kept: Duration) -> Result<bool> {
        let taken = leasehold_store::update(&self.client, Purpose::Lease, key, |found| {
            let now = self.now()?;
            let lease = found.and_then(|object| Lease::read(key, &object.body).ok());
            let Some(lease) =
                lease.filter(|lease| now.is_past(lease.updated_at.plus(kept)) && lease.is_free(now))
            else {
                return Ok(Decision::Leave(false));
            };
            let holder = Holder { ttl: DELETE_LANDS_WITHIN, ..self.holder.clone() };
            Ok(match Lease::take(Some(lease.clone()), &lease.subject, &holder, now, self.client.write_id()) {
                // In a list it looks released: whoever counts the living must not count it.
                Take::Write(lease) => Decision::write(lease.write_as_released(), true),
                Take::Held(_) => Decision::Leave(false),
            })
        });
        let taken = taken.await?;
        let is_ours = taken.result && matches!(taken.now, Standing::Written(_));
        if is_ours {
            self.client.delete(Purpose::Lease, key).await?;
        }
        Ok(is_ours)
    }

    /// Writes the next state of a lease of ours; false if something else stands there, which `held` says then. Another
    /// claim than ours is noted as a released lease: there is nothing left to hold.
    async fn replace(&self, held: &mut HeldLease, next: Lease) -> Result<bool> {
        let body = Bytes::from(next.write());
        let when = When::Unchanged(held.version.clone());
        let found = match self.client.put(Purpose::Lease, &held.key, body, &when).await? {
            Put::Written(version) => {
                (held.lease, held.version) = (next, version);
                return Ok(true);
            }
            Put::Overtaken(object) | Put::Lost(Some(object)) => Some(object),
            Put::Lost(None) => None,
        };
        let gone = held.lease.released(self.now()?, next.write_id);
        let read =
            found.and_then(|object| Some((Lease::read(&held.key, &object.body).ok()?, object.version)));
        match read {
            Some((lease, version)) if lease.is_same_claim(&held.lease) => {
                (held.lease, held.version) = (lease, version);
            }
            _ => held.lease = gone,
        }
        Ok(false)
    }

    fn now(&self) -> Result<Now> {
        now(&self.client)
    }
}

/// What the lease on a worker's name says that it is on.
#[must_use]
pub fn worker_subject(worker: &WorkerId) -> Map<String, Value> {
    Map::from_iter([("worker".to_owned(), worker.as_str().into())])
}

/// What the lease on a group of shards says that it is on; the last one is named if there are several.
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

/// Ends the lease that stands there, whoever holds it: for operators. The holder notices at its next renewal; until then
/// it may trust it. Gives the lease that was found.
pub async fn break_lease(client: &Client, key: &str) -> Result<Option<Lease>> {
    let mut first: Option<Lease> = None;
    let broken = leasehold_store::update(client, Purpose::Admin, key, |found| {
        let Some(object) = found else { return Ok(Decision::Leave(first.take())) };
        let lease = Lease::read(key, &object.body)?;
        // A later claim is not the one that was to be ended: our break may have landed, its answer lost, and someone
        // may have taken the lease since.
        let is_later = first.as_ref().is_some_and(|first| !first.is_same_claim(&lease));
        if lease.is_released() || is_later {
            return Ok(Decision::Leave(first.take().or(Some(lease))));
        }
        let mut next = lease.released(now(client)?, client.write_id());
        next.epoch = next.epoch.saturating_add(1);
        first = Some(lease.clone());
        Ok(Decision::write(next.write(), Some(lease)))
    });
    Ok(broken.await?.result)
}

/// Ends a lease that makes no sense, at once: for operators, who know that nobody holds it. The next holder's epoch is
/// above any that can still be found there. False if there is no such thing any more.
pub async fn break_nonsense(client: &Client, key: &str, subject: &Map<String, Value>) -> Result<bool> {
    let broken = leasehold_store::update(client, Purpose::Admin, key, |found| {
        let Some(object) = found.filter(|object| Lease::read(key, &object.body).is_err()) else {
            return Ok(Decision::Leave(false));
        };
        Ok(Decision::write(released_in_place_of(client, &object.body, subject)?.write(), true))
    });
    Ok(broken.await?.result)
}

/// The released lease that replaces a corrupt one.
pub(crate) fn released_in_place_of(
    client: &Client,
    corrupt: &[u8],
    subject: &Map<String, Value>,
) -> Result<Lease> {
    let nobody = Holder {
        worker_id: WorkerId::checked("worker id", "nobody")?,
        instance: HexName::from_random(client.host().random_bits()),
        ttl: LEASE_TTL_MAX,
    };
    let (now, write_id) = (now(client)?, client.write_id());
    let lease = Lease::in_place_of(corrupt, subject, &nobody, now, write_id.clone());
    Ok(lease.released(now, write_id))
}

pub(crate) async fn stamp(client: &Client, key: &str) -> Result<Option<StoreTime>> {
    let page = client.list(Purpose::Lease, &List::all(key)).await?;
    Ok(page.entries.iter().find(|entry| entry.key == key).map(|entry| entry.modified))
}

fn now(client: &Client) -> Result<Now> {
    let unknown = || Error::new(Kind::Unavailable, "the store has not told its time yet");
    client.now().ok_or_else(unknown)
}
