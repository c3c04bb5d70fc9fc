//! Transport between a broker and the processes that use it: lines of text in both directions.
//!
//! What the lines contain is the module `wire` of `leasehold-queue`; how they travel is up to an implementation of
//! [`BrokerTransport`], such as a Unix socket, or TLS between hosts.
//! Without a transport, a queue has a broker in its own process or none.

use bytes::Bytes;
use futures::future::BoxFuture;
use leasehold_core::{HexName, Result};
use leasehold_store::Client;
use leasehold_store::host::Running;
use serde::{Deserialize, Serialize};
use std::fmt;
use tokio::sync::mpsc;

/// Connects processes with the broker of a queue.
pub trait BrokerTransport: fmt::Debug + Send + Sync + 'static {
    /// Prepares a listener for a broker of this process, before it takes the lease: the lease names its address. `instance` is
    /// the random id of the broker.
    fn prepare(&self, store: &Client, instance: &HexName) -> Result<PreparedListener>;

    /// Connects to a broker. An error of kind [`Kind::Lost`](leasehold_core::Kind::Lost) means that the broker is on this host
    /// and nothing listens at its address; after four in a row it may count as ended. Any other error: it cannot be reached.
    fn connect<'a>(
        &'a self,
        store: &'a Client,
        address: &'a BrokerAddress,
        instance: &'a HexName,
    ) -> BoxFuture<'a, Result<LineChannel>>;
}

/// Address of a broker, as the lease names it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BrokerAddress {
    /// Path of a Unix socket on the host of the broker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket: Option<String>,
    /// Boot id of that host, by which other processes know whether the path is one of their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot: Option<String>,
    /// Address for other hosts; none if the broker does not listen for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkAddress>,
}

/// Address of a broker for other hosts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkAddress {
    /// IP addresses with ports, in the order in which they are tried. Text, so that a form that an older program does not know
    /// does not make its lease corrupt.
    pub addresses: Vec<String>,
    /// Fingerprint of the broker's public key.
    pub fingerprint: String,
    /// Secret that a client proves to have read.
    pub secret: LeaseSecret,
}

/// Secret of a lease: a process that knows it can read the bucket. It is never printed.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LeaseSecret(String);

impl LeaseSecret {
    /// Creates a secret from random bits.
    #[must_use]
    pub fn from_random(bits: u128) -> Self {
        Self(HexName::from_random(bits).to_string())
    }

    /// The secret as bytes, to compare and to send it.
    #[must_use]
    pub fn expose(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl fmt::Debug for LeaseSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LeaseSecret")
    }
}

/// Listener of a process that may become the broker. Nothing is accepted yet, and nothing remains when it is dropped.
pub struct PreparedListener {
    /// Address for the lease.
    pub address: BrokerAddress,
    /// Accepts connections, once the process has the lease.
    pub listen: Box<dyn FnOnce() -> BoxFuture<'static, Result<BrokerListener>> + Send>,
}

/// Listener of a broker.
pub struct BrokerListener {
    /// Connections of clients. When the receiver is dropped, no more are accepted.
    pub accepted: mpsc::Receiver<AcceptedClient>,
    /// Accepts connections and passes their lines. It ends when no more are accepted and the last one is closed, and stops
    /// when it is dropped.
    pub work: Running,
}

/// Client that has connected.
#[derive(Debug)]
pub struct AcceptedClient {
    /// Its connection.
    pub channel: LineChannel,
    /// Requests that it may send.
    pub access: ClientAccess,
}

/// Requests that a client may send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientAccess {
    /// All.
    Full,
    /// Those that only read: it has not shown that it may write to the bucket.
    ReadOnly,
}

/// A connection. It is closed when either half is dropped.
#[derive(Debug)]
pub struct LineChannel {
    /// Lines to the other end, each with its line end. Bounded: a sender waits for a slow receiver.
    pub sender: mpsc::Sender<Bytes>,
    /// Lines from the other end, without their line ends.
    pub receiver: mpsc::Receiver<Bytes>,
    /// Passes the lines, if the channel owns that; it stops when this is dropped.
    pub work: Option<Running>,
}

impl fmt::Debug for PreparedListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PreparedListener").field("address", &self.address).finish_non_exhaustive()
    }
}

impl fmt::Debug for BrokerListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BrokerListener").finish_non_exhaustive()
    }
}
