//! A task queue on object storage: a bucket, or a folder, is enough; there is no server to run.
//!
//! ```
//! use leasehold::{Context, Queue, TaskError, Worker};
//! use serde::Deserialize;
//! use serde_json::json;
//! use std::time::Duration;
//!
//! #[derive(Deserialize)]
//! struct Image {
//!     url: String,
//! }
//!
//! async fn resize(context: Context, image: Image) -> Result<String, TaskError> {
//!     Ok(format!("{} is smaller after attempt {}", image.url, context.attempt()))
//! }
//!
//! #[tokio::main]
//! async fn main() -> leasehold::Result<()> {
//!     let queue = Queue::connect("memory://").await?;
//!     let image = json!({"url": "a.png"});
//!     let submitted = queue.submit("resize", image).delay(Duration::from_millis(10)).key("img-1").await?;
//!
//!     let worker = Worker::new(queue.clone(), "worker-1", None)?.handle("resize", resize)?;
//!     worker.run_until_empty().await?;
//!
//!     let task = queue.get(&submitted.id).await?;
//!     assert_eq!(task.output(), Some(&json!("a.png is smaller after attempt 1")));
//!     Ok(())
//! }
//! ```
//!
//! | to | use |
//! | --- | --- |
//! | open a queue | [`Queue::connect`], [`Queue::with_config`] |
//! | submit tasks | [`Queue::submit`] with [`Submit`], [`Queue::submit_many`], [`Queue::submit_task`] |
//! | run tasks | [`Worker`], with a [`Context`] for handlers and a [`TaskError`] from them; [`Shutdown`] |
//! | read tasks | [`get`](QueueLayout::get), [`Queue::get_history`], [`list`](QueueLayout::list), [`Queue::wait`], [`stats`](QueueLayout::stats) |
//! | transfer large files | `ArtifactStore` with a `Cache` (feature `artifacts`), [`Worker::artifact_io`], [`Context::artifact`], [`Context::publish`] |
//! | work offline | `Spool`, the folder of an outpost; `Supervisor`; a [`Queue`] from a spool; `QueueType` selects it or a bucket (feature `outpost`) |
//! | change tasks | [`cancel`](QueueLayout::cancel), [`retry`](QueueLayout::retry), [`reschedule`](QueueLayout::reschedule); a [`Transition`] from them |
//! | maintain a queue | [`purge_all`](QueueLayout::purge_all), [`check`](QueueLayout::check) |
//! | divide shards among workers | [`Task::shard_from_id`], the shards of [`Worker::new`] |
//! | use leases, migration or quarantine | [`objects`](QueueLayout::objects) |
//! | read the store's time | [`now`](QueueLayout::now) |
//! | test | `leasehold::testing` (feature `testing`) |
//!
//! A handler may run more than once: a worker can crash after the work and before its result is recorded.
//! [`Context::epoch`] grows with every claim of a task; pass it to every system that the handler changes, and let
//! that reject smaller ones.
//!
//! # Features
//!
//! Without any feature this crate is the queue and the worker. No feature is on by default; each adds items, and its
//! dependencies are compiled only with it.
//!
//! | feature | items |
//! | --- | --- |
//! | `network` | the broker of a journal queue for other hosts: `BrokerConnections`, `NetworkListen`, `UnixSockets`; processes of one host need no feature |
//! | `artifacts` | large files: `Algorithm`, `ArtifactStore`, `Cache`, `Cached`, `FetchEvent`, `FetchOptions`, `Fetched`, `Manifest`, `Peers`, `PublishOptions`, `Published`, `Secret` |
//! | `outpost` | queues in a folder that work offline: `Consistency`, `OutpostConfig`, `QueuePath`, `QueueType`, `Spool`, `Supervisor`, `SupervisorOptions`, `Synced` |
//! | `testing` | the module `testing`: a queue in memory, with a clock that a test controls |
//!
//! This crate only re-exports: `leasehold-core` (the rules), `leasehold-store` (conditional writes to objects),
//! `leasehold-queue`, `leasehold-worker`, `leasehold-pieces` (large files), `leasehold-outpost` (folders that are
//! synced with a bucket). The dashboard is not part of it: the command line serves it, and `leasehold-web` is its crate.

pub use leasehold_core::new_task::Start;
pub use leasehold_core::task::{Change, Claim};
pub use leasehold_core::{
    ArtifactId, Error, Kind, NewTask, Now, Priority, Reason, Rejected, Result, RetryPolicy, Shard, State,
    Status, StoreTime, Task, TaskId,
};
pub use leasehold_queue::check::Checked;
pub use leasehold_queue::purge::{Purged, PurgedAll, Retention};
pub use leasehold_queue::{
    BrokerRole, ExportedTask, Filter, JournalQueue, LayoutName, ObjectQueue, Queue, QueueConfig, QueueLayout,
    QueueLocation, Scope, Stats, Submit, Submitted, Transition, UniqueKey,
};
pub use leasehold_store::{AccessKey, Client, Durability, FolderOptions, OpenMode, OpenOptions, SystemHost};
pub use leasehold_worker::{
    Context, Counts, Polling, Shutdown, TaskError, Worker, WorkerOptions, WorkerView,
};

/// (Feature `network`.)
#[cfg(feature = "network")]
pub use leasehold_broker::{BrokerConnections, NetworkListen, UnixSockets};
/// (Feature `outpost`.)
#[cfg(feature = "outpost")]
pub use leasehold_core::outpost::{Consistency, QueuePath};
/// (Feature `outpost`.)
#[cfg(feature = "outpost")]
pub use leasehold_outpost::{OutpostConfig, QueueType, Spool, Supervisor, SupervisorOptions, Synced};
/// (Feature `artifacts`.)
#[cfg(feature = "artifacts")]
pub use leasehold_pieces::{
    Algorithm, ArtifactStore, Cache, Cached, FetchEvent, FetchOptions, Fetched, Manifest, Peers,
    PublishOptions, Published, Secret,
};

#[cfg(feature = "testing")]
pub mod testing;

/// Compiles and runs the programs in the documents.
#[cfg(doctest)]
mod documents {
    #[doc = include_str!("../../../README.md")]
    struct Readme;
    #[cfg(feature = "testing")]
    #[doc = include_str!("../../../docs/guides/rust.md")]
    struct Guide;
}
