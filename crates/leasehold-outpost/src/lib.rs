//! Offline-first folder queue: a node keeps its part of a queue as plain files, for unreliable links.
//!
//! | module | contents |
//! | --- | --- |
//! | [`disk`] | every change of a file, one system call at a time |
//! | [`clock`] | the node's time, and the bucket's time as last received |
//! | [`config`] | settings of a queue that all processes of a node share; the setting that selects a bucket or an outpost |
//! | [`spool`] | the queue on disk: submit, claim, settle, recover; a layout of [`Queue`](leasehold_queue::Queue) |
//! | [`supervisor`] | syncs the spool with the bucket |
//! | [`work`] | worker on a spool, with the same handlers as over a bucket |
//!
//! Local processes use only the spool, and need no credentials for it.

pub mod clock;
pub mod config;
pub mod disk;
pub mod spool;
pub mod supervisor;
pub mod work;

pub use clock::NodeClock;
pub use config::{OutpostConfig, QueueType, SpoolDurability};
pub use disk::FileHook;
pub use spool::{Checkout, HeldTask, LeaseStatus, LocalTask, Mirrored, Recovered, Spool, SpoolCounts};
pub use supervisor::{Connect, Supervisor, SupervisorOptions, Synced};
