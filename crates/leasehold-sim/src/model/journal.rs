//! Models of the journal layout, of which archive and mail are not built yet: `docs/protocol/journal.md`.
//!
//! | module | content |
//! | --- | --- |
//! | `bucket` | lease, log slots, fences, confirmation, snapshots, deletion and mail, without any clock |
//! | `claims` | claims that are renewed in memory while brokers change, with time |
//! | `folder` | epoch file, segments, syncs and power loss |
//! | `history` | the commits of a log as one number |
//!
//! Each model relies on what another one shows: `claims` on one history, `bucket` and `folder` on a lease with growing
//! epochs (`model/lease.rs`).

pub(super) mod bucket;
pub(super) mod claims;
pub(super) mod folder;
mod history;
