//! Transport between a broker and the processes that use it: lines of text in both directions.
//!
//! What the lines contain is `wire`; how they travel is up to an implementation of [`BrokerTransport`], such as a Unix socket.
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
    /// Address at which a broker of this process is going to listen. `instance` is its random id.
    fn address(&self, store: &Client, instance: &HexName) -> Result<BrokerAddress>;

    /// Accepts connections for the broker with this id.
    fn listen<'a>(
        &'a self,
        store: &'a Client,
        instance: &'a HexName,
    ) -> BoxFuture<'a, Result<BrokerListener>>;

    /// Connects to a broker. An error of kind `Lost` means that nothing listens at the address; after four in a row the broker may
    /// count as ended. Any other error: it cannot be reached.
    fn connect<'a>(
        &'a self,
        store: &'a Client,
        address: &'a BrokerAddress,
        instance: &'a HexName,
    ) -> BoxFuture<'a, Result<LineChannel>>;
}

/// Address of a broker, as the lease names it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BrokerAddress {
    /// Path of a Unix socket on the host of the broker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket: Option<String>,
}

/// Listener of a broker.
pub struct BrokerListener {
    /// Connections of clients. When the receiver is dropped, no more are accepted.
    pub accepted: mpsc::Receiver<LineChannel>,
    /// Accepts connections and passes their lines. It ends when no more are accepted and the last one is closed, and stops
    /// when it is dropped.
    pub work: Running,
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

impl fmt::Debug for BrokerListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BrokerListener").finish_non_exhaustive()
    }
}
