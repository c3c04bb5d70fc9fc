//! Artifacts: large files, named by their hash, fetched in pieces under leases from a bucket and from peers.
//!
//! ```text
//!   publish ──▶ artifacts/{hash}/data, then manifest.json ──▶ fetch ──▶ cache ──▶ a task's handler
//!                              the origin                     ▲  │        │
//!                                                    peers ───┘  │      serve ──▶ peers
//!                                           leases on pieces (core) decide which source sends what
//! ```
//!
//! | module | contents |
//! | --- | --- |
//! | [`artifacts`] | publish, fetch, list and remove artifacts on one machine |
//! | [`manifest`], [`hash`] | piece layout and retention state of an artifact; piece and file hashes |
//! | [`mod@publish`], [`mod@prune`] | uploads a file; removes artifacts whose retention is over |
//! | [`mod@fetch`] | downloads pieces from the origin and from peers |
//! | `assemble` | a partly downloaded file and its piece journal |
//! | [`cache`] | the artifacts on this machine, and the name under which they are served |
//! | [`serve`] | serves pieces to peers that know the secret |
//! | [`peer`], [`peers`] | client of one peer; discovery of peers |

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

pub use artifacts::ArtifactStore;
pub use cache::{Cache, Cached, ServingLock};
pub use fetch::{FetchEvent, FetchOptions, Fetched};
pub use hash::Algorithm;
pub use leasehold_http::Secret;
pub use manifest::Manifest;
pub use peers::{Announcement, Peers};
pub use prune::{Pruned, prune};
pub use publish::{PublishOptions, Published};
pub use serve::{PieceServer, ServeOptions};
