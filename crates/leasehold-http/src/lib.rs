//! HTTP listener within limits, and signatures on requests: what every server of Leasehold shares.
//!
//! Clients of a server may be slow, many or hostile. A server implements [`RequestHandler`]; [`HttpListener`] accepts
//! connections, bounds them in number, size and time, and ends them in an orderly shutdown. A server that does not speak
//! HTTP implements [`StreamHandler`] for an [`Acceptor`]. No other crate opens a listening socket of the network.
//!
//! | module | contents |
//! | --- | --- |
//! | [`accept`] | accepts connections within limits |
//! | [`listener`] | HTTP on them |
//! | `connection` | timeouts of a connection |
//! | [`rate_limit`] | limit of bytes per second, over all responses |
//! | [`sign`] | signatures on requests, made with a shared secret |
//! | `testing` | feature `testing`: a host whose time a test advances, and handwritten HTTP |

pub mod accept;
mod connection;
pub mod listener;
pub mod rate_limit;
pub mod sign;
#[cfg(feature = "testing")]
pub mod testing;

pub use accept::{AcceptLimits, Acceptor, BoundPort, StreamHandler};
pub use connection::Connection;
pub use listener::{HttpListener, ListenerEvent, ListenerLimits, RequestHandler};
pub use rate_limit::SendRateLimiter;
pub use sign::{Secret, SignClock, SignatureError};
