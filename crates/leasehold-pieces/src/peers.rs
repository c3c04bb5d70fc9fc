//! Discovery of peers: each node that serves pieces holds a lease on its peer id, which contains its address.
//!
//! Requests: a node that serves claims its lease (1 put) and renews it every [`RENEW_INTERVAL`] (1 put). A node that fetches
//! makes 1 list for every thousand peer ids of the last week, and 1 get for each peer whose lease has changed since the last
//! read.

use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use leasehold_core::piece::PeerId;
use leasehold_core::{Error, Holder, Kind, Lease, Name, Result, StoreTime, keys};
use leasehold_http::Secret;
use leasehold_queue::lease::{HeldLease, Leases, Renewed, Taken};
use leasehold_store::store::ListEntry;
use leasehold_store::{Client, HostExt, List, Purpose};
use leasehold_worker::{Shutdown, Stage};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::peer::{PeerClient, PeerOptions};

/// Duration of a peer's lease: a node that has crashed counts as a peer for at most this long.
const TTL: Duration = Duration::from_mins(2);

/// Pause between two renewals. Each is a put: a node that serves for a month makes some 65,000.
pub const RENEW_INTERVAL: Duration = Duration::from_secs(40);

/// Time after which a node that starts to serve removes expired leases.
const RETIRED_AFTER: Duration = Duration::from_hours(7 * 24);

/// Most peers that are used; with more, any of them will do.
const PEERS_MAX: usize = 200;

/// Concurrent reads of leases: one after the other, those of many peers would take longer than a fetch.
const READ_AT_ONCE: usize = 16;

/// A node that serves pieces.
#[derive(Debug, Clone)]
pub struct Peer {
    /// Peer id of the node.
    pub id: PeerId,
    pub(crate) client: Arc<PeerClient>,
}

/// Nodes that serve pieces, according to the store. Cheap to clone.
#[derive(Clone)]
pub struct Peers {
    client: Client,
    secret: Option<Secret>,
    me: Option<PeerId>,
    leases: Arc<Mutex<BTreeMap<String, CachedLease>>>,
}

/// A lease that was read, and the peer that it describes.
#[derive(Clone)]
struct CachedLease {
    written_at: StoreTime,
    /// `None` if it is corrupt.
    lease: Option<Lease>,
    peer: Option<Peer>,
}

impl fmt::Debug for Peers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peers").field("me", &self.me).finish_non_exhaustive()
    }
}

impl Peers {
    /// Creates a handle for peers that share this secret; `me` is the peer id under which this node serves, if it does.
    #[must_use]
    pub fn new(client: Client, secret: Option<Secret>, me: Option<&Name>) -> Self {
        let me = me.map(|name| name.as_str().into());
        Self { client, secret, me, leases: Arc::default() }
    }

    /// Returns a handle for a node with another peer id, which shares the leases read so far.
    #[must_use]
    pub fn with_own_id(&self, me: Option<&Name>) -> Self {
        Self { me: me.map(|name| name.as_str().into()), ..self.clone() }
    }

    /// Peer id under which this node serves.
    #[must_use]
    pub fn me(&self) -> Option<&PeerId> {
        self.me.as_ref()
    }

    /// Lists the other nodes that serve at the moment.
    pub async fn live(&self) -> Result<Vec<Peer>> {
        let listed = list_leases(&self.client, Purpose::Fetch).await?;
        let now = self.client.now().ok_or_else(crate::publish::time_unknown)?;
        // A lease that was not renewed for two TTLs has expired: it is neither read nor cached.
        let recent: BTreeMap<String, StoreTime> = listed
            .into_iter()
            .filter(|entry| !now.is_past(entry.modified.plus(TTL * 2)))
            .map(|entry| (entry.key, entry.modified))
            .collect();
        self.leases().retain(|key, _| recent.contains_key(key));
        let others = recent.into_iter().filter_map(|(key, written_at)| {
            let id = PeerId::from(keys::parse_peer(&key)?.as_str());
            (Some(&id) != self.me.as_ref()).then(|| self.look_up(key, id, written_at).boxed())
        });
        let others: Vec<_> = others.collect();
        let mut read = stream::iter(others).buffered(READ_AT_ONCE);
        let mut live = Vec::new();
        while live.len() < PEERS_MAX {
            let Some(cached) = read.try_next().await? else { break };
            let now = self.client.now().ok_or_else(crate::publish::time_unknown)?;
            if cached.lease.is_some_and(|lease| !lease.is_free(now)) {
                live.extend(cached.peer);
            }
        }
        Ok(live)
    }

    fn cached(&self, key: &str, written_at: StoreTime) -> Option<CachedLease> {
        self.leases().get(key).filter(|cached| cached.written_at == written_at).cloned()
    }

    async fn look_up(&self, key: String, id: PeerId, written_at: StoreTime) -> Result<CachedLease> {
        match self.cached(&key, written_at) {
            Some(cached) => Ok(cached),
            None => self.read(&key, id, written_at).await,
        }
    }

    /// Reads the lease of a peer. A corrupt lease counts as no peer.
    async fn read(&self, key: &str, id: PeerId, written_at: StoreTime) -> Result<CachedLease> {
        let object = self.client.get(Purpose::Fetch, key).await?;
        let lease = object.and_then(|object| Lease::read(key, &object.body).ok());
        let before = self.leases().get(key).cloned();
        let peer = match (&lease, before) {
            // Connections are kept as long as the peer keeps its claim.
            (Some(new), Some(CachedLease { lease: Some(old), peer, .. })) if old.is_same_claim(new) => peer,
            (Some(new), _) => {
                let address = new.subject.get("address").and_then(Value::as_str);
                address.and_then(|address| self.peer_at(id, address))
            }
            (None, _) => None,
        };
        let cached = CachedLease { written_at, lease, peer };
        self.leases().insert(key.to_owned(), cached.clone());
        Ok(cached)
    }

    /// Creates the peer at an address; `None` if the address is invalid.
    fn peer_at(&self, id: PeerId, address: &str) -> Option<Peer> {
        let (client, host) = (self.client.clone(), self.client.host().clone());
        let present = Arc::new(move || client.now());
        let base = format!("http://{address}");
        let created = PeerClient::new(&base, self.secret.clone(), host, present, PeerOptions::default());
        match created {
            Ok(client) => Some(Peer { id, client: Arc::new(client) }),
            Err(error) => {
                tracing::debug!(peer = %id, %error, "ignoring peer with an invalid address");
                None
            }
        }
    }

    fn leases(&self) -> MutexGuard<'_, BTreeMap<String, CachedLease>> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Lists all leases on peer ids, including released ones. Requests: 1 list for every thousand.
async fn list_leases(client: &Client, purpose: Purpose) -> Result<Vec<ListEntry>> {
    let all = List::all(keys::PEERS);
    let (mut entries, mut next) = (Vec::new(), Some(all.clone()));
    while let Some(list) = next {
        let page = client.list(purpose, &list).await?;
        entries.extend(page.entries);
        next = page.next.map(|cursor| all.clone().at(cursor));
    }
    Ok(entries)
}

/// Lease on a peer id.
#[derive(Debug)]
pub struct Announcement {
    leases: Leases,
    client: Client,
    held: HeldLease,
}

impl Announcement {
    /// Claims the lease, which announces that pieces are served at this address.
    pub async fn claim(client: &Client, name: &Name, address: SocketAddr) -> Result<Self> {
        let instance = client.host().random_name();
        let leases = Leases::new(client.clone(), Holder { worker_id: name.clone(), instance, ttl: TTL })?;
        let listed = list_leases(client, Purpose::Lease).await?;
        let key = keys::peer(name);
        let seen = listed.iter().find(|entry| entry.key == key).map(|entry| entry.modified);
        let subject = Map::from_iter([
            ("peer".to_owned(), name.as_str().into()),
            ("address".to_owned(), address.to_string().into()),
        ]);
        let held = match leases.take(&key, &subject, seen).await? {
            Taken::Ours(held) => held,
            Taken::Others(lease) => {
                let until = lease.expires_at;
                let message = format!("peer id `{name}` is in use until {until}; wait, or choose another");
                return Err(Error::new(Kind::Unavailable, message));
            }
        };
        let now = client.now().ok_or_else(crate::publish::time_unknown)?;
        for entry in listed.iter().filter(|entry| now.is_past(entry.modified.plus(RETIRED_AFTER))) {
            if let Err(error) = leases.retire(&entry.key, RETIRED_AFTER).await {
                tracing::debug!(key = %entry.key, %error, "failed to remove expired peer lease");
            }
        }
        Ok(Self { leases, client: client.clone(), held })
    }

    /// Renews the lease until shutdown, then releases it.
    pub async fn run(mut self, shutdown: Shutdown) -> Result<()> {
        loop {
            let pause = self.client.host().sleep(RENEW_INTERVAL);
            let stopped = Box::pin(shutdown.reached(Stage::Drain));
            if let futures::future::Either::Right(_) = futures::future::select(pause, stopped).await {
                return self.leases.release(self.held).await;
            }
            match self.leases.renew(&mut self.held).await {
                Ok(Renewed::Kept) => {}
                Ok(Renewed::Lost) => {
                    return Err(Error::new(
                        Kind::Lost,
                        format!(
                            "lease `{}` was lost: taken by another node, broken or deleted",
                            self.held.key
                        ),
                    ));
                }
                Err(error) => {
                    tracing::warn!(lease = %self.held.key, %error, "failed to renew peer lease, retrying");
                }
            }
        }
    }
}
