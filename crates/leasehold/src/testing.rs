//! A queue for tests of applications (feature `testing`): in memory, with a clock that a test controls.
//!
//! The clock is tokio's. In a test with `#[tokio::test(start_paused = true)]` it stands still as long as any task can
//! run, jumps to the next timer when none can, and is moved by [`advance`]. Retries, leases, time-outs and handlers
//! that sleep with tokio all use it. Ids and jitter are the same in every run.
//!
//! ```
//! use leasehold::{Context, Status, TaskError, Worker, testing};
//! use serde_json::json;
//! use std::time::Duration;
//!
//! async fn remind(_: Context, whom: String) -> Result<String, TaskError> {
//!     Ok(format!("reminded {whom}"))
//! }
//!
//! // In a test: #[tokio::test(start_paused = true)]
//! #[tokio::main(flavor = "current_thread", start_paused = true)]
//! async fn main() -> leasehold::Result<()> {
//!     let queue = testing::queue().await?;
//!     let worker = || Worker::new(queue.clone(), "worker-1", None)?.handle("remind", remind);
//!     let id = queue.submit("remind", "Ada").delay(Duration::from_secs(3_600)).await?.id;
//!
//!     worker()?.run_until_empty().await?;
//!     assert_eq!(queue.get(&id).await?.status(), Status::Pending, "not before its time");
//!
//!     testing::advance(Duration::from_secs(3_600)).await;
//!     worker()?.run_until_empty().await?;
//!     assert_eq!(queue.get(&id).await?.output(), Some(&json!("reminded Ada")));
//!     Ok(())
//! }
//! ```
//!
//! This clock does not wait for real I/O, such as an answer from a network: while a handler waits for it, no task can
//! run, so time jumps, and leases may expire. Replace such I/O by a fake that answers at once.

use leasehold_core::Result;
use leasehold_queue::Queue;
use leasehold_store::host::TokioTimeHost;
use leasehold_store::{Client, Host, MemoryStore};
use std::sync::Arc;
use std::time::Duration;

/// Creates an empty queue in memory, with tokio's clock.
pub async fn queue() -> Result<Queue> {
    Queue::connect(client()).await
}

/// Creates an empty store in memory, with tokio's clock, for [`Queue::with_config`].
#[must_use]
pub fn client() -> Client {
    let host: Arc<dyn Host> = Arc::new(TokioTimeHost::new());
    Client::new(Arc::new(MemoryStore::new(&host)), host)
}

/// Advances the clock. Panics if tokio's time is not paused.
pub async fn advance(duration: Duration) {
    tokio::time::advance(duration).await;
}
