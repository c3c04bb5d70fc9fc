//! Stopping in two stages: *drain* claims nothing new and lets handlers finish; *abort* stops them and gives their
//! tasks back. Being stopped is not a failure.

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
}

impl Default for Shutdown {
    fn default() -> Self {
        Self { stage: watch::Sender::new(Stage::Go) }
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

    /// How far it has come.
    #[must_use]
    pub fn stage(&self) -> Stage {
        *self.stage.borrow()
    }

    /// Waits until it has come so far.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when the future is dropped.
    pub async fn reached(&self, stage: Stage) {
        let mut changes = self.stage.subscribe();
        // The sender lives in `self`, so the wait cannot fail.
        let _ = changes.wait_for(|now| *now >= stage).await;
    }

    fn raise(&self, stage: Stage) {
        self.stage.send_if_modified(|now| {
            let rises = *now < stage;
            *now = (*now).max(stage);
            rises
        });
    }
}
