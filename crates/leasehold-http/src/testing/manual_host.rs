//! A host whose time is advanced by the test, which can also wait until a task sleeps.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::BoxFuture;
use leasehold_store::host::{Instant, Running};
use leasehold_store::{Host, SystemHost};
use tokio::sync::{oneshot, watch};

use super::raw::within_timeout;

/// Host whose time stands still until a test advances it. Clones are the same host.
#[derive(Debug, Clone)]
pub struct ManualHost {
    state: Arc<Mutex<State>>,
    changed: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct State {
    passed: Duration,
    sleepers: Vec<Sleeper>,
}

#[derive(Debug)]
struct Sleeper {
    lasts: Duration,
    until: Duration,
    wake: oneshot::Sender<()>,
}

impl ManualHost {
    /// Creates a host at the time zero.
    #[must_use]
    pub fn new() -> Self {
        Self { state: Arc::default(), changed: watch::Sender::new(()) }
    }

    /// Advances the time.
    pub fn advance(&self, duration: Duration) {
        let mut state = self.state.lock().unwrap();
        state.passed += duration;
        let passed = state.passed;
        let (due, rest) =
            std::mem::take(&mut state.sleepers).into_iter().partition(|one| one.until <= passed);
        state.sleepers = rest;
        for sleeper in due {
            // A dropped sleeper need not wake.
            let _ = sleeper.wake.send(());
        }
    }

    /// Waits until this many tasks sleep for `lasts`.
    pub async fn asleep(&self, count: usize, lasts: Duration) {
        let mut changes = self.changed.subscribe();
        while self.sleeping(lasts) < count {
            within_timeout(changes.changed()).await.unwrap();
        }
    }

    fn sleeping(&self, lasts: Duration) -> usize {
        let state = self.state.lock().unwrap();
        state.sleepers.iter().filter(|one| one.lasts == lasts && !one.wake.is_closed()).count()
    }
}

impl Default for ManualHost {
    fn default() -> Self {
        Self::new()
    }
}

impl Host for ManualHost {
    fn instant(&self) -> Instant {
        let ns = i64::try_from(self.state.lock().unwrap().passed.as_nanos()).unwrap();
        Instant { boot_ns: ns, wall_ns: ns }
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        let (wake, woken) = oneshot::channel();
        {
            let mut state = self.state.lock().unwrap();
            let until = state.passed + duration;
            state.sleepers.push(Sleeper { lasts: duration, until, wake });
        }
        self.changed.send_replace(());
        Box::pin(async move { woken.await.unwrap() })
    }

    fn random(&self) -> u64 {
        4
    }

    fn spawn(&self, work: BoxFuture<'static, ()>) -> Running {
        SystemHost.spawn(work)
    }

    fn spawn_thread(&self, name: &str, work: BoxFuture<'static, ()>) -> Running {
        SystemHost.spawn_thread(name, work)
    }
}
