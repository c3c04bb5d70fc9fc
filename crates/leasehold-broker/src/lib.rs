//! Connections between the broker of a queue in the journal layout and other processes: over Unix sockets on its host, over
//! TLS from other hosts.
//!
//! ```text
//!   worker, producer ──▶ BrokerConnections::connect ─┬─▶ .leasehold/broker/{instance}.sock ─┬─▶ the broker
//!                                                    └─▶ TLS ─▶ 10.0.0.5:7411 ──────────────┘
//! ```
//!
//! This crate is below `leasehold-queue`, which has the broker itself, and the requests that travel here as lines of text. On the broker's host,
//! a process that may open the socket may use the queue: its directory has the permissions of the queue's folder, or is for
//! this user alone. On another host, a process that can read the bucket may read from the broker, and one that can write to
//! the bucket may change the queue.
//!
//! | module | contents |
//! | --- | --- |
//! | [`transport`] | the interface between a queue and its connections |
//! | [`sockets`] | listener and client on a Unix socket |
//! | `place` | directory and names of sockets |
//! | `connections` | feature `network`: socket or TLS |
//! | `network` | feature `network`: listener and client between hosts |
//! | `tls` | feature `network`: keys, fingerprints, and the configuration of TLS |
//! | `access` | feature `network`: proof that a client may write to the bucket |
//! | `handshake` | first lines of either end: version, the broker that is meant, the secret of the lease |
//! | `lines` | a stream as a channel of lines |
//! | `testing` | feature `testing`: a client that sends arbitrary lines, and a fake broker |

#[cfg(feature = "network")]
mod access;
#[cfg(feature = "network")]
pub mod connections;
mod handshake;
mod lines;
#[cfg(feature = "network")]
pub mod network;
mod place;
pub mod sockets;
#[cfg(feature = "testing")]
pub mod testing;
#[cfg(feature = "network")]
mod tls;
pub mod transport;

/// (Feature `network`.)
#[cfg(feature = "network")]
pub use connections::BrokerConnections;
/// (Feature `network`.)
#[cfg(feature = "network")]
pub use network::NetworkListen;
pub use sockets::UnixSockets;
pub use transport::{
    AcceptedClient, BrokerAddress, BrokerListener, BrokerTransport, ClientAccess, LeaseSecret, LineChannel,
    NetworkAddress, PreparedListener,
};
