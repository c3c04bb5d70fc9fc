//! A task queue with no server of its own: a bucket, or a folder, is enough.
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
//! | to | there is |
//! | --- | --- |
//! | open a queue | [`Queue::connect`], [`Queue::with_config`] |
//! | put tasks in | [`Queue::submit`] with [`Submit`], [`Queue::submit_many`], [`Queue::submit_task`] |
//! | work | [`Worker`], with a [`Context`] for handlers and a [`TaskError`] from them; [`Shutdown`] |
//! | look | [`Queue::get`], [`Queue::get_history`], [`Queue::list`], [`Queue::wait`], [`Queue::stats`] |
//! | deal with large files | [`Artifacts`] with a [`Cache`], [`Worker::carrier`], [`Context::artifact`], [`Context::publish`] |
//! | work without the bucket | [`Spool`], [`Supervisor`]; [`Either`] of the two, by [`QueueType`] |
//! | change plans | [`Queue::cancel`], [`Queue::retry`], [`Queue::reschedule`] |
//! | keep order | [`Queue::purge_all`], [`Queue::check`] |
//! | share the work out | [`Queue::all_shards`], [`Task::shard_from_id`], the shards of [`Worker::new`] |
//! | tell the time | [`Queue::now`], in the store's time |
//! | test | `leasehold::testing` (feature `testing`) |
//!
//! A handler may run more than once: a worker can die after the work and before the note of it. [`Context::epoch`]
//! grows with every claim of a task; pass it to whatever the handler changes, and let that refuse smaller ones.
//!
//! Everything here belongs to one of the crates below and is only gathered: `leasehold-core` (the rules),
//! `leasehold-store` (objects written on condition), `leasehold-queue`, `leasehold-worker`, `leasehold-pieces` (large files),
//! `leasehold-outpost` (folders that are kept in step with a bucket).

pub use leasehold_core::new_task::Start;
pub use leasehold_core::outpost::{Campaign, Consistency};
pub use leasehold_core::task::{Change, Claim};
pub use leasehold_core::{
    ArtifactId, Error, Kind, Matter, NewTask, Now, Priority, Rejected, Result, RetryPolicy, Shard, State,
    Status, StoreTime, Task, TaskId,
};
pub use leasehold_outpost::{Either, OutpostConfig, QueueType, Spool, Supervisor, SupervisorOptions, Synced};
pub use leasehold_pieces::{
    Algorithm, Artifacts, Cache, Cached, FetchEvent, FetchOptions, Fetched, Manifest, Peers, PublishOptions,
    Published, Secret,
};
pub use leasehold_queue::check::Checked;
pub use leasehold_queue::purge::{Purged, PurgedAll, Retention};
pub use leasehold_queue::{
    Filter, Operated, Place, Queue, QueueConfig, Scope, Stats, Submit, Submitted, UniqueKey,
};
pub use leasehold_store::{AccessKey, Client, Durability, FolderOptions, OpenMode, OpenOptions, SystemHost};
pub use leasehold_worker::{Context, Counts, Monitor, Polling, Shutdown, TaskError, Worker, WorkerOptions};

#[cfg(feature = "testing")]
pub mod testing;

/// The programs in the documents are compiled and run like those above.
#[cfg(doctest)]
mod documents {
    #[doc = include_str!("../../../README.md")]
    struct Readme;
    #[doc = include_str!("../../../docs/guides/rust.md")]
    struct Guide;
}
