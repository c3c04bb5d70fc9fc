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

use futures::future::BoxFuture;
use leasehold_core::Result;
use leasehold_queue::Queue;
use leasehold_store::host::{Instant, Running};
use leasehold_store::{Client, Host, MemoryStore, SystemHost};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Start of every test: 2026-01-01T00:00:00Z. A fixed time, so that times can be written into assertions.
const START_NS: i64 = 1_767_225_600_000_000_000;

/// Creates an empty queue in memory, with tokio's clock.
pub async fn queue() -> Result<Queue> {
    Queue::connect(client()).await
}

/// Creates an empty store in memory, with tokio's clock, for [`Queue::with_config`].
#[must_use]
pub fn client() -> Client {
    let host: Arc<dyn Host> = Arc::new(TokioHost::new());
    Client::new(Arc::new(MemoryStore::new(&host)), host)
}

/// Advances the clock. Panics if tokio's time is not paused.
pub async fn advance(duration: Duration) {
    tokio::time::advance(duration).await;
}

/// A host with tokio's clock, one thread and a fixed sequence of random numbers.
#[derive(Debug)]
struct TokioHost {
    started: tokio::time::Instant,
    drawn: AtomicU64,
}

#[expect(
    clippy::disallowed_methods,
    reason = "tokio's time is paused in tests, which is the purpose of this host"
)]
impl TokioHost {
    fn new() -> Self {
        Self { started: tokio::time::Instant::now(), drawn: AtomicU64::new(0) }
    }

    fn elapsed_ns(&self) -> i64 {
        let elapsed = tokio::time::Instant::now().duration_since(self.started);
        i64::try_from(elapsed.as_nanos()).unwrap_or(i64::MAX)
    }
}

impl Host for TokioHost {
    fn instant(&self) -> Instant {
        let elapsed_ns = self.elapsed_ns();
        Instant { boot_ns: elapsed_ns, wall_ns: START_NS.saturating_add(elapsed_ns) }
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        SystemHost.sleep(duration)
    }

    /// `SplitMix64`: every value once, in pseudo-random order.
    fn random(&self) -> u64 {
        let drawn = self.drawn.fetch_add(1, Relaxed).wrapping_add(1);
        let state = drawn.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn spawn(&self, work: BoxFuture<'static, ()>) -> Running {
        SystemHost.spawn(work)
    }

    /// Spawns on the same thread, the only one whose time is paused.
    fn spawn_thread(&self, _name: &str, work: BoxFuture<'static, ()>) -> Running {
        SystemHost.spawn(work)
    }
}
