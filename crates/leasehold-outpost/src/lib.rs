//! The offline-first folder queue: a node keeps its part of a queue as plain files, for links that come and go.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`disk`] | every change of a file, one system call at a time |
//! | [`clock`] | the node's time, and the bucket's as far as it was heard |
//! | [`config`] | what all processes of a node agree on about a queue |
//! | [`spool`] | the queue on disk: submit, claim, settle, recover |
//! | [`either`] | one interface for a queue in a bucket and for an outpost |
//! | [`supervisor`] | keeps it in step with the bucket |
//! | [`work`] | a worker on it: the same handlers as over a bucket |
//!
//! Local processes use only the spool, and need no credentials for it.

pub mod clock;
pub mod config;
pub mod disk;
pub mod either;
pub mod spool;
pub mod supervisor;
pub mod work;

pub use clock::NodeClock;
pub use config::{Durability, OutpostConfig};
pub use disk::Steps;
pub use either::{Either, QueueType};
pub use spool::{
    Beat, Checkout, Copy, Held, Mirrored, News, Place, Recovered, Spool, SpoolCounts, Whereabouts,
};
pub use supervisor::{Connect, Supervisor, SupervisorOptions, Synced};
