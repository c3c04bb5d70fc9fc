//! Shutdown in two stages: *drain* claims nothing new and lets handlers finish; *abort* stops them and releases their
//! tasks. A shutdown is not a failure.

use tokio_util::sync::CancellationToken;

/// Stage of a shutdown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// No shutdown was requested.
    Running,
    /// Claim nothing new; finish running tasks.
    Drain,
    /// Stop running tasks, and release them.
    Abort,
}

/// Handle that stops everything that has a clone of it.
#[derive(Debug, Clone, Default)]
pub struct Shutdown {
    drain: CancellationToken,
    abort: CancellationToken,
}

impl Shutdown {
    /// Lets running tasks finish, and starts nothing new. Unrelated to [`until_empty`](crate::WorkerOptions::until_empty).
    pub fn drain(&self) {
        self.drain.cancel();
    }

    /// Stops running tasks.
    pub fn abort(&self) {
        self.drain.cancel();
        self.abort.cancel();
    }

    /// Returns a child, which stops when this one does. Stopping the child does not stop this one.
    #[must_use]
    pub fn child(&self) -> Self {
        Self { drain: self.drain.child_token(), abort: self.abort.child_token() }
    }

    /// True if a shutdown was requested.
    #[must_use]
    pub fn is_requested(&self) -> bool {
        self.drain.is_cancelled()
    }

    /// Current stage.
    #[must_use]
    pub fn stage(&self) -> Stage {
        match (self.drain.is_cancelled(), self.abort.is_cancelled()) {
            (false, _) => Stage::Running,
            (true, false) => Stage::Drain,
            (true, true) => Stage::Abort,
        }
    }

    /// Waits until this stage is reached.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when the future is dropped.
    pub async fn reached(&self, stage: Stage) {
        match stage {
            Stage::Running => {}
            Stage::Drain => self.drain.cancelled().await,
            Stage::Abort => self.abort.cancelled().await,
        }
    }
}
