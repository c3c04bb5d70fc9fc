//! A host whose clocks are moved only by a test, for stores that answer in real time.

use futures::future::BoxFuture;
use leasehold_store::host::{Instant, Running};
use leasehold_store::testing::FakeHost;
use leasehold_store::{Host, SystemHost};
use std::time::Duration;

/// A host with the clocks of a test and real pauses. A [`FakeHost`] advances its clocks whenever a caller waits, so a
/// folder that needs a moment to answer would seem to have taken ten seconds.
#[derive(Debug, Clone, Default)]
pub struct ManualClockHost {
    clocks: FakeHost,
}

impl ManualClockHost {
    /// Advances the clocks.
    pub fn advance(&self, duration: Duration) {
        self.clocks.advance(duration);
    }
}

impl Host for ManualClockHost {
    fn instant(&self) -> Instant {
        self.clocks.instant()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        SystemHost.sleep(duration)
    }

    fn random(&self) -> u64 {
        self.clocks.random()
    }

    fn spawn(&self, work: BoxFuture<'static, ()>) -> Running {
        SystemHost.spawn(work)
    }

    fn spawn_thread(&self, name: &str, work: BoxFuture<'static, ()>) -> Running {
        SystemHost.spawn_thread(name, work)
    }
}
