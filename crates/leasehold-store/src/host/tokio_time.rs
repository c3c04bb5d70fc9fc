//! A host in tokio's time, which a test pauses.

use futures::future::BoxFuture;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use super::{Host, Instant, Running, SystemHost};

/// Time at which every such host was booted: 2026-01-01T00:00:00Z. A fixed time, so that times can be written into
/// assertions.
const BOOTED_NS: i64 = 1_767_225_600_000_000_000;

/// A host with tokio's clock, one thread and a fixed sequence of random numbers. With a paused clock, time passes only
/// while everything waits.
#[derive(Debug)]
pub struct TokioTimeHost {
    started: tokio::time::Instant,
    drawn: AtomicU64,
}

#[expect(
    clippy::disallowed_methods,
    reason = "tokio's time is paused in tests, which is the purpose of this host"
)]
impl TokioTimeHost {
    /// Creates a host that was booted just now.
    #[must_use]
    pub fn new() -> Self {
        Self { started: tokio::time::Instant::now(), drawn: AtomicU64::new(0) }
    }

    fn elapsed_ns(&self) -> i64 {
        let elapsed = tokio::time::Instant::now().duration_since(self.started);
        i64::try_from(elapsed.as_nanos()).unwrap_or(i64::MAX)
    }
}

impl Default for TokioTimeHost {
    fn default() -> Self {
        Self::new()
    }
}

impl Host for TokioTimeHost {
    fn instant(&self) -> Instant {
        let elapsed_ns = self.elapsed_ns();
        Instant { boot_ns: elapsed_ns, wall_ns: BOOTED_NS.saturating_add(elapsed_ns) }
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
