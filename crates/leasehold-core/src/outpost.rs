//! Offline-first folder queue: its files, and the sync of a task when a node and the bucket have diverged.
//!
//! | module | contents |
//! | --- | --- |
//! | [`lease`] | lease on disk: which process of this node holds a task, and when it expires |
//! | [`op`] | operations of a node that are not yet in the bucket |
//! | [`path`] | files of a queue on a node |
//! | [`mod@reconcile`] | sync action for every pair of node state and bucket state |

pub mod lease;
pub mod op;
pub mod path;
pub mod reconcile;

pub use lease::{BUCKET_TIME_MIN, ClockSource, DiskLease, NodeNow};
pub use op::{Op, OpKind};
pub use path::{QueuePath, SpoolFile};
pub use reconcile::{
    BucketState, BucketWrite, Consistency, KnownState, NodeState, SyncAction, SyncRefusal, reconcile,
};
