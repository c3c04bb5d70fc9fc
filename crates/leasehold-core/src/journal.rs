//! Journal: a second layout of the queue, in which one process writes the decisions for many tasks in one commit.
//!
//! | module | contents |
//! | --- | --- |
//! | [`commit`] | encoding of one write to the log |
//! | [`sealed`] | header line with a checksum |
//!
//! The protocol is `docs/protocol/journal.md`.

pub mod commit;
pub mod sealed;

pub use commit::{Commit, CommitHash, CommitHeader, EncodedCommit, Fence, LogPosition, Seq};
