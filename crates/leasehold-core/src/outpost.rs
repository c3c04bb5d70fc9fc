//! The offline-first folder queue: what its files say, and what becomes of a task when a node and the bucket have gone
//! different ways.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`lease`] | a lease on disk: whose a task is on this node, and when it may be taken from them |
//! | [`op`] | what was done on a node and is not yet in the bucket |
//! | [`path`] | every file of a queue on a node, and its key in the bucket |
//! | [`mod@reconcile`] | what happens for every pair of what a node says and what the bucket says |

pub mod lease;
pub mod op;
pub mod path;
pub mod reconcile;

pub use lease::{ClockMark, DiskLease, NodeNow, SURELY_BUCKET};
pub use op::{Deed, Op};
pub use path::{Campaign, SpoolFile};
pub use reconcile::{Action, Consistency, Known, Local, Standing, Why, Write, reconcile};
