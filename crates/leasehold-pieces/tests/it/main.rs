//! Pieces between peers, over loopback.
#![expect(clippy::disallowed_methods, reason = "tests own what they start")]
#![expect(clippy::unwrap_used, reason = "in a test a panic is the report, in its helpers too")]

mod caching;
mod fetching;
mod hostile;
mod malformed_requests;
mod misbehaving_peer;
mod peer_client;
mod peers;
mod process;
mod publishing;
mod resuming;
mod serving;
mod serving_limits;
mod signing;
mod support;
mod test_server;
