//! Transport for processes of the same host and of other hosts.
//!
//! A process of the broker's host uses its Unix socket. Every other process, also one of the same host that does not see the
//! socket or may not open it, connects over TLS, if the broker listens. If a firewall drops the packets, each attempt to connect takes
//! seconds. So after a slow attempt the process does not try again for half a minute; until then reads follow the log.

use futures::future::{BoxFuture, join_all};
use leasehold_core::{Error, HexName, Kind, Result};
use leasehold_store::Client;
use leasehold_store::host::{End, Instant, lock};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::mpsc;

use crate::network::{self, NetworkListen, PreparedNetwork};
use crate::sockets::UnixSockets;
use crate::transport::{
    BrokerAddress, BrokerListener, BrokerTransport, LineChannel, NetworkAddress, PreparedListener,
};

/// Connections over Unix sockets and, between hosts, over TLS.
#[derive(Debug, Clone)]
pub struct BrokerConnections {
    sockets: UnixSockets,
    listen: Option<NetworkListen>,
    silent: Arc<Mutex<Option<SilentBroker>>>,
}

/// Broker that did not answer in time.
#[derive(Debug)]
struct SilentBroker {
    fingerprint: String,
    since: Instant,
}

/// Duration of an attempt to connect after which it is not repeated at once. One that is refused takes far less.
const SLOW: Duration = Duration::from_secs(1);

/// Time until the next attempt.
const SILENT_PAUSE: Duration = Duration::from_secs(30);

impl BrokerConnections {
    /// Creates a transport. A broker of this process is reached through a Unix socket (see [`UnixSockets::new`]), and from other
    /// hosts if there is an address to listen on. Connecting to a broker of another host needs no address.
    #[must_use]
    pub fn new(user_directory: PathBuf, listen: Option<NetworkListen>) -> Self {
        Self { sockets: UnixSockets::new(user_directory), listen, silent: Arc::default() }
    }

    fn prepare_network(&self, store: &Client) -> Option<PreparedNetwork> {
        match PreparedNetwork::new(self.listen.as_ref()?, &**store.host()) {
            Ok(network) => Some(network),
            Err(error) => {
                tracing::warn!(%error, "failed to prepare the network listener, the broker will serve this host only");
                None
            }
        }
    }
}

impl BrokerConnections {
    /// Connects to a broker of another host, unless it was silent a moment ago.
    async fn connect_over_network(
        &self,
        store: &Client,
        network: &NetworkAddress,
        instance: &HexName,
    ) -> Result<LineChannel> {
        let began = store.host().instant();
        let is_silent = lock(&self.silent).as_ref().is_some_and(|silent| {
            silent.fingerprint == network.fingerprint && began.since(silent.since) < SILENT_PAUSE
        });
        if is_silent {
            let message = format!(
                "the broker of this queue did not answer over TLS; the next attempt is made {SILENT_PAUSE:?} after the last one"
            );
            return Err(Error::new(Kind::Unavailable, message));
        }
        let connected = network::connect(store, network, instance).await;
        let ended = store.host().instant();
        if connected.is_err() && ended.since(began) >= SLOW {
            let silent = SilentBroker { fingerprint: network.fingerprint.clone(), since: ended };
            *lock(&self.silent) = Some(silent);
        }
        connected
    }
}

impl BrokerTransport for BrokerConnections {
    fn prepare(&self, store: &Client, instance: &HexName) -> Result<PreparedListener> {
        let network = self.prepare_network(store);
        let address = BrokerAddress {
            network: network.as_ref().map(|network| network.address.clone()),
            ..self.sockets.address(store, instance)?
        };
        let (sockets, store, instance) = (self.sockets.clone(), store.clone(), instance.clone());
        let listen = async move {
            let (connections, accepted) = mpsc::channel(1);
            let local = sockets.serve(&store, instance.clone(), connections.clone());
            let mut work = Vec::new();
            match (local, &network) {
                (Ok(local), _) => work.push(local),
                (Err(error), Some(_)) => {
                    tracing::warn!(%error, "broker cannot be reached through a Unix socket, only over TLS");
                }
                (Err(error), None) => return Err(error),
            }
            work.extend(network.map(|network| network.serve(&store, instance, connections)));
            let work = store.host().spawn(Box::pin(async move {
                for end in join_all(work).await {
                    if let End::Panicked(message) = end {
                        tracing::error!(panic = message, "listener of the broker panicked");
                    }
                }
            }));
            Ok(BrokerListener { accepted, work })
        };
        Ok(PreparedListener { address, listen: Box::new(|| Box::pin(listen)) })
    }

    fn connect<'a>(
        &'a self,
        store: &'a Client,
        address: &'a BrokerAddress,
        instance: &'a HexName,
    ) -> BoxFuture<'a, Result<LineChannel>> {
        Box::pin(async move {
            let local: Error = match self.sockets.connect(store, address, instance).await {
                Ok(channel) => return Ok(channel),
                Err(error) => error,
            };
            match &address.network {
                // Its host is this one, and nothing listens: it has ended, or is about to listen.
                Some(_) if local.kind() == Kind::Lost => Err(local),
                Some(network) => self.connect_over_network(store, network, instance).await,
                None => Err(local),
            }
        })
    }
}
