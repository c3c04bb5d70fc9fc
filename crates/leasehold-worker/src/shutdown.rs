//! Shutdown in two stages: *drain* claims nothing new and lets handlers finish; *abort* stops them and releases their
//! tasks. A shutdown is not a failure.

use futures::future::select_all;
use tokio::sync::watch;

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
#[derive(Debug, Clone)]
pub struct Shutdown {
    stage: watch::Sender<Stage>,
    /// Parents: a shutdown of one of them applies to this, too.
    parents: Vec<watch::Sender<Stage>>,
}

impl Default for Shutdown {
    fn default() -> Self {
        Self { stage: watch::Sender::new(Stage::Running), parents: Vec::new() }
    }
}

impl Shutdown {
    /// Lets running tasks finish, and starts nothing new.
    pub fn drain(&self) {
        self.raise(Stage::Drain);
    }

    /// Stops running tasks.
    pub fn abort(&self) {
        self.raise(Stage::Abort);
    }

    /// Returns a child, which stops when this one does. Stopping the child does not stop this one.
    #[must_use]
    pub fn child(&self) -> Self {
        let parents = self.parents.iter().chain([&self.stage]).cloned().collect();
        Self { parents, ..Self::default() }
    }

    /// True if a shutdown was requested.
    #[must_use]
    pub fn is_requested(&self) -> bool {
        self.stage() > Stage::Running
    }

    /// Current stage.
    #[must_use]
    pub fn stage(&self) -> Stage {
        let parents = self.parents.iter().map(|parent| *parent.borrow());
        parents.fold(*self.stage.borrow(), Stage::max)
    }

    /// Waits until this stage is reached.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when the future is dropped.
    pub async fn reached(&self, stage: Stage) {
        let reached = [&self.stage].into_iter().chain(&self.parents).map(|one| {
            let mut changes = one.subscribe();
            // The sender lives in `self`, so the wait cannot fail.
            Box::pin(async move { drop(changes.wait_for(|now| *now >= stage).await) })
        });
        select_all(reached).await;
    }

    fn raise(&self, stage: Stage) {
        self.stage.send_if_modified(|now| {
            let rises = *now < stage;
            *now = (*now).max(stage);
            rises
        });
    }
}
