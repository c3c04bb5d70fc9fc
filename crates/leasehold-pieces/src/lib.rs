//! Artifacts: large files, named by their hash, fetched in pieces under leases from a bucket and from each other's caches.
//!
//! ```text
//!   publish ──▶ artifacts/{hash}/data, then manifest.json ──▶ fetch ──▶ cache ──▶ a task's handler
//!                              the origin                     ▲  │        │
//!                                                    peers ───┘  │      serve ──▶ peers
//!                                           leases on pieces (core) decide who fetches what
//! ```
//!
//! | module | what it does |
//! | --- | --- |
//! | [`artifacts`] | all of it, for one machine |
//! | [`manifest`], [`hash`] | how an artifact is cut, and whether it is being removed; the hashes it is known by |
//! | [`mod@publish`], [`mod@prune`] | puts a file into the store; removes what nobody relies on any more |
//! | [`mod@fetch`] | gets pieces from the origin and from peers |
//! | `assemble` | a file in the making, and its journal |
//! | [`cache`] | the artifacts of this machine, and under which name they are served |
//! | [`serve`], [`sign`] | gives pieces to peers that know the secret |
//! | [`peer`], [`peers`] | asks one peer; who is a peer |

pub mod artifacts;
mod assemble;
pub mod cache;
pub mod fetch;
pub mod hash;
pub mod manifest;
pub mod peer;
pub mod peers;
pub mod prune;
pub mod publish;
pub mod serve;
pub mod sign;

pub use artifacts::Artifacts;
pub use cache::{Cache, Cached, ServingMark};
pub use fetch::{FetchEvent, FetchOptions, Fetched};
pub use hash::Algorithm;
pub use manifest::Manifest;
pub use peers::{Announcement, Peers};
pub use prune::{Pruned, prune};
pub use publish::{PublishOptions, Published};
pub use serve::{PieceServer, ServeOptions};
pub use sign::Secret;
