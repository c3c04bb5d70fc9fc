//! Host whose clocks stand still until a test moves them.

use futures::future::BoxFuture;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::host::{Host, Instant, Running, SystemHost};

/// Host for tests: sleeping moves its clocks, random numbers are a fixed sequence. Clones are the same host.
#[derive(Debug, Clone)]
pub struct FakeHost {
    state: Arc<Mutex<State>>,
    has_real_pauses: bool,
}

#[derive(Debug)]
struct State {
    instant: Instant,
    random_state: u64,
}

impl FakeHost {
    /// Creates a host that was booted a thousand seconds ago, in 2023.
    #[must_use]
    pub fn new() -> Self {
        let instant = Instant { boot_ns: 1_000_000_000_000, wall_ns: 1_700_000_000_000_000_000 };
        let state = Arc::new(Mutex::new(State { instant, random_state: 1 }));
        Self { state, has_real_pauses: false }
    }

    /// Returns a handle to this host whose pauses are real and do not move its clocks: for a store that answers in real
    /// time, such as a folder, which would seem to need ten seconds for an answer.
    #[must_use]
    pub fn with_real_pauses(self) -> Self {
        Self { has_real_pauses: true, ..self }
    }

    /// Lets time pass.
    pub fn advance(&self, duration: Duration) {
        let nanos = i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX);
        self.advance_boot_only(nanos);
        self.state().instant.wall_ns += nanos;
    }

    /// Moves only the boot clock, as if it ran fast or slow.
    pub fn advance_boot_only(&self, nanos: i64) {
        self.state().instant.boot_ns += nanos;
    }

    /// Moves the wall clock forward or back by `seconds`.
    pub fn jump_wall(&self, seconds: i64) {
        self.state().instant.wall_ns += seconds * 1_000_000_000;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for FakeHost {
    fn default() -> Self {
        Self::new()
    }
}

impl Host for FakeHost {
    fn instant(&self) -> Instant {
        self.state().instant
    }

    /// Advances the clocks when the future is polled, unless pauses are real.
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        if self.has_real_pauses {
            return SystemHost.sleep(duration);
        }
        let host = self.clone();
        Box::pin(async move {
            tokio::task::yield_now().await;
            host.advance(duration);
        })
    }

    fn random(&self) -> u64 {
        // SplitMix64: every value once, in pseudo-random order.
        let mut state = self.state();
        state.random_state = state.random_state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state.random_state ^ (state.random_state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn spawn(&self, work: BoxFuture<'static, ()>) -> Running {
        SystemHost.spawn(work)
    }

    fn spawn_thread(&self, name: &str, work: BoxFuture<'static, ()>) -> Running {
        SystemHost.spawn_thread(name, work)
    }
}
