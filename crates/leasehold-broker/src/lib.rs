//! Connections between the broker of a queue in the journal layout and other processes of its host, over Unix sockets.
//!
//! ```text
//!   worker, producer ──▶ UnixSockets::connect ──▶ .leasehold/broker/{instance}.sock ──▶ UnixSockets::listen ──▶ the broker
//! ```
//!
//! The broker itself, and the requests that travel here as lines of text, are those of `leasehold-queue`. A process
//! that may open the socket may use the queue: its directory has the permissions of the queue's folder, or is for this user
//! alone.
//!
//! | module | contents |
//! | --- | --- |
//! | [`sockets`] | listener and client on a Unix socket |
//! | `place` | directory and names of sockets |
//! | `handshake` | first line of either end: version, and the broker that is meant |
//! | `lines` | a stream as a channel of lines |

mod handshake;
mod lines;
mod place;
pub mod sockets;

pub use sockets::UnixSockets;
