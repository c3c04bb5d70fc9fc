//! Pieces between peers, over loopback.
#![expect(clippy::disallowed_methods, reason = "tests own what they start")]
#![expect(clippy::unwrap_used, reason = "in a test a panic is the report, in its helpers too")]

mod caching;
mod fetching;
mod hand_host;
mod hostile;
mod peer_client;
mod peers;
mod process;
mod publishing;
mod raw;
mod resuming;
mod serving;
mod serving_limits;
mod serving_strangers;
mod signing;
mod stand;
mod support;
mod villain;
