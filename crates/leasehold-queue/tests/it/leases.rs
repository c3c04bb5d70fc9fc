//! Leases conform in memory and in a folder, and broken variants of store and protocol are caught.

use bytes::Bytes;
use futures::future::BoxFuture;
use leasehold_core::{HexName, Result, StoreTime};
use leasehold_queue::testing::leases::{LeaseExtent, LeaseSuite, Protocol, Time};
use leasehold_queue::{HeldLease, Leases, Renewed, Taken, read_lease};
use leasehold_store::store::Answer;
use leasehold_store::{
    Clock, DelegatingStore, FolderOptions, FolderStore, Host, List, MemoryStore, Page, Purpose, PutAnswer,
    Store, Version, When,
};
use serde_json::{Map, Value};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// One store in memory for all processes.
fn memory(wrap: impl Fn(MemoryStore) -> Arc<dyn Store> + Send + Sync + 'static) -> LeaseSuite {
    let store = OnceLock::new();
    let open = move |host: &Arc<dyn Host>| store.get_or_init(|| wrap(MemoryStore::new(host))).clone();
    LeaseSuite::new(open, Time::manual(), LeaseExtent::default())
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_conform_in_memory() {
    memory(|store| Arc::new(store)).run().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_conform_in_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_owned();
    let open = move |host: &Arc<dyn Host>| -> Arc<dyn Store> {
        Arc::new(FolderStore::open(&path, FolderOptions::default(), host).unwrap())
    };
    LeaseSuite::new(open, Time::manual(), LeaseExtent::default()).run().await.unwrap();
}

/// A store with one fault.
#[derive(Debug)]
struct Broken {
    inner: MemoryStore,
    clock: Clock,
    fault: Fault,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    IgnoresAbsent,
    IgnoresUnchanged,
    /// Compares first and writes a moment later.
    NotAtomic,
    /// Its time runs ahead for one process more than for the other.
    TellsTimeDifferently,
    ForgetsEpochs,
    TrimsSpaces,
    DropsFields,
    StampsWithTheBeginning,
    StampsWithTheEnd,
    DeletesReleased,
}

impl Broken {
    fn new(inner: MemoryStore, fault: Fault) -> Self {
        let reads = std::sync::atomic::AtomicI64::new(0);
        let told = inner.clock().now().unwrap().earliest;
        let clock = Clock::exact(move || {
            let read = reads.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            StoreTime::from_millis(told.as_millis() + read % 2 * 3_600_000)
        });
        Self { inner, clock, fault }
    }

    async fn write(
        &self,
        key: &str,
        body: Bytes,
        when: &When,
    ) -> Result<PutAnswer, leasehold_store::Failure> {
        let body = self.spoilt(body);
        match (self.fault, when) {
            (Fault::IgnoresAbsent, When::Absent) | (Fault::IgnoresUnchanged, When::Unchanged(_)) => {
                self.inner.put(key, body, &When::Always).await
            }
            (Fault::NotAtomic, _) => {
                let current = self.inner.get(key, None).await?.found();
                tokio::task::yield_now().await;
                if !when.holds(current.as_ref()) {
                    return Ok(PutAnswer::Refused);
                }
                self.inner.put(key, body, &When::Always).await
            }
            (Fault::DeletesReleased, _) if body.ends_with(b" ") => {
                self.inner.delete(key).await?;
                Ok(PutAnswer::Written(Version::new("gone")))
            }
            _ => self.inner.put(key, body, when).await,
        }
    }

    fn spoilt(&self, body: Bytes) -> Bytes {
        let Ok(mut record) = serde_json::from_slice::<Value>(&body) else { return body };
        match self.fault {
            Fault::TrimsSpaces => body.slice(..body.trim_ascii_end().len()),
            Fault::ForgetsEpochs if record.get("epoch").is_some() => {
                record["epoch"] = 1.into();
                record.to_string().into()
            }
            Fault::DropsFields if record.get("newer").is_some() => {
                record.as_object_mut().unwrap().remove("newer");
                record.to_string().into()
            }
            _ => body,
        }
    }
}

impl DelegatingStore for Broken {
    fn inner(&self) -> &dyn Store {
        &self.inner
    }

    fn put<'a>(&'a self, key: &'a str, body: Bytes, when: &'a When) -> Answer<'a, PutAnswer> {
        Box::pin(self.write(key, body, when))
    }

    fn list<'a>(&'a self, list: &'a List) -> Answer<'a, Page> {
        Box::pin(async move {
            let mut page = self.inner.list(list).await?;
            for entry in &mut page.entries {
                entry.modified = match self.fault {
                    Fault::StampsWithTheBeginning => StoreTime::from_millis(0),
                    Fault::StampsWithTheEnd => StoreTime::NEVER,
                    _ => entry.modified,
                };
            }
            Ok(page)
        })
    }

    fn clock(&self) -> &Clock {
        if self.fault == Fault::TellsTimeDifferently { &self.clock } else { self.inner.clock() }
    }

    fn describe(&self) -> String {
        format!("{:?}", self.fault)
    }
}

#[tokio::test]
async fn every_broken_store_is_caught() {
    for (fault, caught_by) in [
        (Fault::IgnoresAbsent, "one taker wins"),
        (Fault::IgnoresUnchanged, "one taker wins an expired lease"),
        (Fault::NotAtomic, "one taker wins"),
        (Fault::TellsTimeDifferently, "one taker wins"),
        (Fault::ForgetsEpochs, "one taker wins a released lease"),
        (Fault::TrimsSpaces, "a released lease can be taken at once"),
        (Fault::DropsFields, "unknown fields survive"),
        (Fault::StampsWithTheBeginning, "a young corrupt lease is not touched"),
        (Fault::StampsWithTheEnd, "an old corrupt lease is replaced"),
        (Fault::DeletesReleased, "one taker wins a released lease"),
    ] {
        let violation = memory(move |store| Arc::new(Broken::new(store, fault))).run().await.unwrap_err();
        assert_eq!(violation.check, caught_by, "{fault:?}: {violation}");
    }
}

/// The protocol with one rule left out.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Variant {
    /// A lease is recognised by the worker id of its holder.
    ByNameOnly,
    /// A lease is deleted when it is released.
    DeletesOnRelease,
    /// A release has no condition.
    ReleasesAlways,
    /// A renewal has no condition.
    RenewsAlways,
    /// A renewal that finds another object than expected counts as lost.
    RefusedIsLost,
    /// A renewal that failed counts as lost.
    UnansweredIsLost,
    /// The lease of another holder is taken over a little before it expires.
    TakesEarly,
    /// The lease of another holder is never taken over.
    NeverTakesOver,
    /// A take that was not answered counts as done.
    TakesOnFaith,
}

impl Variant {
    fn leases(self, leases: &Leases) -> Leases {
        let mut holder = leases.holder().clone();
        if self == Variant::ByNameOnly {
            let name = holder.worker_id.as_str();
            holder.instance =
                HexName::from_random(name.bytes().fold(0, |sum, byte| sum * 256 + u128::from(byte)));
        }
        Leases::new(leases.client().clone(), holder).unwrap()
    }
}

impl Protocol for Variant {
    fn take<'a>(
        &'a self,
        leases: &'a Leases,
        key: &'a str,
        subject: &'a Map<String, Value>,
    ) -> BoxFuture<'a, Result<Taken>> {
        Box::pin(async move {
            let (client, holder, leases) = (leases.client(), leases.holder(), self.leases(leases));
            let found = read_lease(client, key).await.ok().flatten();
            match (self, found) {
                (Variant::TakesEarly, Some(lease)) if lease.instance != holder.instance => {
                    let now = client.now().unwrap().earliest.plus(Duration::from_millis(1));
                    if !lease.is_released() && lease.expires_at < now {
                        let freed = lease.released(client.now().unwrap(), client.write_id());
                        client.put_always(Purpose::Lease, key, freed.write().into()).await?;
                    }
                }
                (Variant::NeverTakesOver, Some(lease)) if !lease.is_released() => {
                    return Ok(Taken::Others(lease));
                }
                _ => {}
            }
            match leases.take(key, subject, None).await {
                Err(error) if *self == Variant::TakesOnFaith && error.outcome_is_unknown() => {
                    leases.take(&format!("{key}.faith"), subject, None).await
                }
                taken => taken,
            }
        })
    }

    fn renew<'a>(&'a self, leases: &'a Leases, held: &'a mut HeldLease) -> BoxFuture<'a, Result<Renewed>> {
        Box::pin(async move {
            let (client, holder, leases) = (leases.client(), leases.holder(), self.leases(leases));
            let now = client.now().unwrap();
            match self {
                Variant::RenewsAlways => {
                    let renewed = held.lease.renewed(holder.ttl, now, client.write_id());
                    client.put_always(Purpose::Lease, &held.key, renewed.write().into()).await?;
                    // Finds its own claim there, whichever it has overwritten.
                    leases.renew(held).await
                }
                Variant::RefusedIsLost => {
                    let is_as_expected = read_lease(client, &held.key).await?.as_ref() == Some(&held.lease);
                    let renewed = leases.renew(held).await?;
                    Ok(if is_as_expected { renewed } else { Renewed::Lost })
                }
                _ => match leases.renew(held).await {
                    Err(_) if *self == Variant::UnansweredIsLost => Ok(Renewed::Lost),
                    renewed => renewed,
                },
            }
        })
    }

    fn release<'a>(&'a self, leases: &'a Leases, held: HeldLease) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let client = leases.client();
            match self {
                Variant::DeletesOnRelease => client.delete(Purpose::Lease, &held.key).await,
                Variant::ReleasesAlways => {
                    let released = held.lease.released(client.now().unwrap(), client.write_id());
                    client.put_always(Purpose::Lease, &held.key, released.write().into()).await.map(|_| ())
                }
                _ => self.leases(leases).release(held).await,
            }
        })
    }
}

#[tokio::test]
async fn every_broken_variant_of_the_protocol_is_caught() {
    for (variant, caught_by) in [
        (Variant::ByNameOnly, "a name is not an identity"),
        (Variant::DeletesOnRelease, "one taker wins a released lease"),
        (Variant::ReleasesAlways, "a former holder changes nothing"),
        (Variant::RenewsAlways, "one taker wins an expired lease"),
        (Variant::RefusedIsLost, "a renewal that lands late"),
        (Variant::UnansweredIsLost, "a renewal that lands late"),
        (Variant::TakesEarly, "the boundary at expiry"),
        (Variant::NeverTakesOver, "one taker wins an expired lease"),
        (Variant::TakesOnFaith, "a take that lands late"),
    ] {
        let violation = memory(|store| Arc::new(store)).with(variant).run().await.unwrap_err();
        assert_eq!(violation.check, caught_by, "{variant:?}: {violation}");
    }
}
