//! Stopping in two stages: *drain* claims nothing new and lets handlers finish; *abort* stops them and gives their
//! tasks back. Being stopped is not a failure.

use futures::future::select_all;
use tokio::sync::watch;

/// How far the stopping has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Go on.
    Go,
    /// Claim nothing new; finish what runs.
    Drain,
    /// Stop what runs, and give it back.
    Abort,
}

/// Stops whatever was given a clone of it.
#[derive(Debug, Clone)]
pub struct Shutdown {
    stage: watch::Sender<Stage>,
    /// What stops that stops this, too.
    above: Vec<watch::Sender<Stage>>,
}

impl Default for Shutdown {
    fn default() -> Self {
        Self { stage: watch::Sender::new(Stage::Go), above: Vec::new() }
    }
}

impl Shutdown {
    /// Lets what runs finish, and starts nothing new.
    pub fn drain(&self) {
        self.raise(Stage::Drain);
    }

    /// Stops what runs.
    pub fn abort(&self) {
        self.raise(Stage::Abort);
    }

    /// Stops when this one does, or by itself: then this one goes on.
    #[must_use]
    pub fn below(&self) -> Self {
        let above = self.above.iter().chain([&self.stage]).cloned().collect();
        Self { above, ..Self::default() }
    }

    /// Whether stopping was asked for.
    #[must_use]
    pub fn is_asked_for(&self) -> bool {
        self.stage() > Stage::Go
    }

    /// How far it has come.
    #[must_use]
    pub fn stage(&self) -> Stage {
        let above = self.above.iter().map(|above| *above.borrow());
        above.fold(*self.stage.borrow(), Stage::max)
    }

    /// Waits until it has come so far.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when the future is dropped.
    pub async fn reached(&self, stage: Stage) {
        let reached = [&self.stage].into_iter().chain(&self.above).map(|one| {
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
