//! Conformance suite for leases, for every store.
//!
//! ```no_run
//! # use leasehold_queue::testing::leases::{LeaseExtent, LeaseSuite, Time};
//! # use leasehold_store::{MemoryStore, Store};
//! # use std::sync::{Arc, OnceLock};
//! # async fn example() {
//! let store = OnceLock::new();
//! let suite = LeaseSuite::new(
//!     move |host| store.get_or_init(|| Arc::new(MemoryStore::new(host))).clone(),
//!     Time::manual(),
//!     LeaseExtent::default(),
//! );
//! suite.run().await.unwrap();
//! # }
//! ```

#![expect(clippy::unwrap_used, reason = "a check that fails panics, and the suite returns what it said")]

mod corrupt_objects;
mod expiry;
mod fencing;
mod lost_answers;
mod races;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use leasehold_core::{Holder, Lease, Name, Result};
use leasehold_store::host::panic_message;
use leasehold_store::testing::FakeHost;
use leasehold_store::testing::conformance::Violation;
use leasehold_store::{Client, Host, HostExt, List, Purpose, Store, SystemHost, When};
use serde_json::{Map, Value};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use super::FaultyStore;
use crate::lease::{HeldLease, LEASE_TTL_MAX, Leases, Renewed, Taken, read_lease};

/// A store and a protocol under test, and the extent of the test.
#[derive(Clone)]
pub struct LeaseSuite {
    open: Opener,
    time: Time,
    protocol: Arc<dyn Protocol>,
    /// Prefix of this run's keys, so that runs do not interfere.
    root: String,
    extent: LeaseExtent,
}

/// Opens the store once for each process that takes part.
type Opener = Arc<dyn Fn(&Arc<dyn Host>) -> Arc<dyn Store> + Send + Sync>;

/// Source of time.
#[derive(Debug, Clone)]
pub enum Time {
    /// Advanced by the suite, to the millisecond: for stores that follow the host's clocks.
    Manual(FakeHost),
    /// Real time, for stores that have their own clock. Checks that take minutes are left out.
    Real,
}

impl Time {
    /// Time that is advanced only by the suite.
    #[must_use]
    pub fn manual() -> Self {
        Time::Manual(FakeHost::new().with_real_pauses())
    }
}

/// A lease protocol, so that the suite can run broken variants of it. The default methods are the real protocol; a variant overrides what it breaks.
pub trait Protocol: Send + Sync {
    /// Takes the lease at `key` if it is free.
    fn take<'a>(
        &'a self,
        leases: &'a Leases,
        key: &'a str,
        subject: &'a Map<String, Value>,
    ) -> BoxFuture<'a, Result<Taken>> {
        Box::pin(leases.take(key, subject, None))
    }

    /// Renews a lease.
    fn renew<'a>(&'a self, leases: &'a Leases, held: &'a mut HeldLease) -> BoxFuture<'a, Result<Renewed>> {
        Box::pin(leases.renew(held))
    }

    /// Releases a lease.
    fn release<'a>(&'a self, leases: &'a Leases, held: HeldLease) -> BoxFuture<'a, Result<()>> {
        Box::pin(leases.release(held))
    }
}

/// The real protocol: [`Leases`].
#[derive(Debug, Clone, Copy, Default)]
pub struct Real;

impl Protocol for Real {}

/// Extent of the test.
#[derive(Debug, Clone, Copy)]
pub struct LeaseExtent {
    /// Takers of the same leases, each a process of its own.
    pub takers: usize,
    /// Leases they race for.
    pub contested: usize,
    /// Lifetime of a lease that is meant to expire: in real time the suite waits for it.
    pub ttl: Duration,
}

impl Default for LeaseExtent {
    fn default() -> Self {
        Self { takers: 16, contested: 40, ttl: Duration::from_secs(30) }
    }
}

type Check = (&'static str, fn(&LeaseSuite) -> BoxFuture<'_, ()>);

impl LeaseSuite {
    /// Creates the suite for leases in the store that `open` opens, once per process that takes part.
    pub fn new(
        open: impl Fn(&Arc<dyn Host>) -> Arc<dyn Store> + Send + Sync + 'static,
        time: Time,
        extent: LeaseExtent,
    ) -> Self {
        let root = format!("conformance/{}", SystemHost.random_name());
        Self { open: Arc::new(open), time, protocol: Arc::new(Real), root, extent }
    }

    /// Returns the suite for another variant of the protocol.
    #[must_use]
    pub fn with(mut self, protocol: impl Protocol + 'static) -> Self {
        self.protocol = Arc::new(protocol);
        self
    }

    /// Runs every check, and returns the first violation.
    pub async fn run(&self) -> std::result::Result<(), Violation> {
        let checks =
            [races::CHECKS, expiry::CHECKS, fencing::CHECKS, lost_answers::CHECKS, corrupt_objects::CHECKS];
        for (check, run) in checks.into_iter().flatten() {
            let checked = AssertUnwindSafe(run(self)).catch_unwind().await;
            checked.map_err(|panic| Violation { check, message: panic_message(&*panic) })?;
        }
        Ok(())
    }

    fn key(&self, name: &str) -> String {
        format!("{}/{name}.json", self.root)
    }

    async fn pass(&self, duration: Duration) {
        match &self.time {
            Time::Manual(host) => host.advance(duration),
            Time::Real => SystemHost.sleep(duration).await,
        }
    }

    /// A process of this name that knows the store's time, like any that has made a request.
    async fn process(&self, name: &str) -> Process {
        let (host, ttl): (Arc<dyn Host>, _) = match &self.time {
            Time::Manual(host) => (Arc::new(host.clone()), self.extent.ttl),
            // Its leases are not meant to expire, however busy the machine.
            Time::Real => (Arc::new(SystemHost), LEASE_TTL_MAX),
        };
        let store = Arc::new(FaultyStore::new((self.open)(&host)));
        let client = Client::new(store.clone(), host.clone());
        let worker_id = Name::checked("worker id", name).unwrap();
        let instance = host.random_name();
        client.get(Purpose::Lease, &self.key("first")).await.unwrap();
        let (holder, brief_ttl) = (Holder { worker_id, instance, ttl }, self.extent.ttl);
        Process { store, client, holder, brief_ttl, protocol: self.protocol.clone() }
    }

    /// Two processes, the first of them of this kind, and a key for their lease.
    async fn pair(&self, key: &str, first: fn(Process) -> Process) -> (Process, Process, String) {
        (first(self.process("first").await), self.process("second").await, self.key(key))
    }
}

/// A process that takes leases.
#[derive(Clone)]
struct Process {
    store: Arc<FaultyStore>,
    client: Client,
    holder: Holder,
    brief_ttl: Duration,
    protocol: Arc<dyn Protocol>,
}

impl Process {
    fn usual(self) -> Self {
        self
    }

    /// Its leases are meant to expire.
    fn brief(mut self) -> Self {
        self.holder.ttl = self.brief_ttl;
        self
    }

    /// Gives up at the first request without an answer.
    fn impatient(self) -> Self {
        Self { client: self.client.with_timeout(Duration::ZERO), ..self }
    }

    fn leases(&self) -> Leases {
        Leases::new(self.client.clone(), self.holder.clone()).unwrap()
    }

    async fn take(&self, key: &str) -> Result<Taken> {
        self.protocol.take(&self.leases(), key, &subject()).await
    }

    /// Takes a lease that must be free.
    async fn hold(&self, key: &str) -> HeldLease {
        match self.take(key).await.unwrap() {
            Taken::Ours(held) => held,
            Taken::Others(lease) => panic!("a free lease was refused, held by {lease:?}"),
        }
    }

    /// Checks that a held lease is refused.
    async fn is_refused(&self, key: &str) {
        let taken = self.take(key).await.unwrap();
        assert!(matches!(taken, Taken::Others(_)), "a held lease was taken: {taken:?}");
    }

    async fn renew(&self, held: &mut HeldLease) -> Result<Renewed> {
        self.protocol.renew(&self.leases(), held).await
    }

    async fn keeps(&self, held: &mut HeldLease) {
        assert_eq!(self.renew(held).await.unwrap(), Renewed::Kept, "a renewal by the holder");
    }

    async fn has_lost(&self, held: &mut HeldLease) {
        assert_eq!(self.renew(held).await.unwrap(), Renewed::Lost, "a renewal by a former holder");
        assert!(!self.trusts(held), "a former holder trusts its lease");
    }

    async fn release(&self, held: HeldLease) {
        self.protocol.release(&self.leases(), held).await.unwrap();
    }

    async fn read(&self, key: &str) -> Option<Lease> {
        read_lease(&self.client, key).await.unwrap()
    }

    /// The object at a key.
    async fn bytes(&self, key: &str) -> Option<Bytes> {
        self.client.get(Purpose::Lease, key).await.unwrap().map(|object| object.body)
    }

    async fn size(&self, key: &str) -> Option<u64> {
        let page = self.client.list(Purpose::Lease, &List::all(key)).await.unwrap();
        page.entries.iter().find(|entry| entry.key == key).map(|entry| entry.size)
    }

    /// Overwrites an object, as another program might.
    async fn overwrite(&self, key: &str, body: impl Into<Bytes>) {
        self.store.put(key, body.into(), &When::Always).await.unwrap();
    }

    fn trusts(&self, held: &HeldLease) -> bool {
        self.client.known_now().unwrap().is_before(held.lease.expires_at)
    }
}

fn subject() -> Map<String, Value> {
    Map::from_iter([("shard".to_owned(), Value::from("07"))])
}
