//! Transport for processes of the same host and of other hosts.
//!
//! A process of the broker's host uses its Unix socket. Every other process, also one of the same host that does not see the
//! socket or may not open it, connects over TLS, if the broker listens.

use futures::future::{BoxFuture, join_all};
use leasehold_core::{Error, HexName, Kind, Result};
use leasehold_queue::{BrokerAddress, BrokerListener, BrokerTransport, LineChannel, PreparedListener};
use leasehold_store::Client;
use leasehold_store::host::End;
use std::path::PathBuf;
use tokio::sync::mpsc;

use crate::network::{self, NetworkListen, PreparedNetwork};
use crate::sockets::UnixSockets;

/// Connections over Unix sockets and, between hosts, over TLS.
#[derive(Debug, Clone)]
pub struct BrokerConnections {
    sockets: UnixSockets,
    listen: Option<NetworkListen>,
}

impl BrokerConnections {
    /// Creates a transport. A broker of this process is reached through a Unix socket (see [`UnixSockets::new`]), and from other
    /// hosts if there is an address to listen on. Connecting to a broker of another host needs no address.
    #[must_use]
    pub fn new(user_directory: PathBuf, listen: Option<NetworkListen>) -> Self {
        Self { sockets: UnixSockets::new(user_directory), listen }
    }

    fn prepare_network(&self, store: &Client) -> Option<PreparedNetwork> {
        match PreparedNetwork::new(self.listen.as_ref()?, &**store.host()) {
            Ok(network) => Some(network),
            Err(error) => {
                tracing::warn!(%error, "a broker of this process could not be reached from other hosts");
                None
            }
        }
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
                Some(network) => network::connect(store, network, instance).await,
                None => Err(local),
            }
        })
    }
}
