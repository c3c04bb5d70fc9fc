//! What is looked at beside the shards: the worker's own inbox, and the overflow.

use leasehold_core::{Now, Result, StoreTime, Where};
use leasehold_queue::Bell;
use leasehold_store::host::Instant;
use std::time::Duration;

use crate::run::Engine;

/// A part of the index that is not divided into shards.
pub(super) struct Lane {
    pub(super) place: Where,
    /// An inbox has a bell of its own.
    bell: Option<Bell>,
    /// How often to look without being rung for.
    every: Duration,
    /// When it was last looked at.
    looked: Option<Instant>,
    /// The first minute that had not begun and has entries.
    pub(super) next: Option<StoreTime>,
    /// The last look did not see all of it.
    pub(super) is_partial: bool,
}

impl Lane {
    pub(super) fn inbox(engine: &Engine) -> Option<Self> {
        let worker = engine.inbox.as_ref()?.worker().clone();
        let bell = Some(Bell::of_inbox(&worker));
        Some(Self::new(Where::Inbox(worker), bell, engine.crew.options.sweep_every))
    }

    pub(super) fn overflow(engine: &Engine) -> Self {
        Self::new(Where::Overflow, None, engine.crew.options.overflow_every)
    }

    fn new(place: Where, bell: Option<Bell>, every: Duration) -> Self {
        Self { place, bell, every, looked: None, next: None, is_partial: false }
    }

    /// Nobody has looked at it yet.
    pub(super) fn is_new(&self) -> bool {
        self.looked.is_none()
    }

    /// The next poll looks at it.
    pub(super) fn look_soon(&mut self) {
        (self.looked, self.next) = (None, None);
    }

    /// Whether there is a reason to look at it. The bell first: what it stands for is then surely seen by the look.
    pub(super) async fn has_reason(&mut self, engine: &Engine) -> Result<bool> {
        let has_rung = match &mut self.bell {
            Some(bell) if !self.is_partial => engine.queue.has_rung(bell).await?,
            _ => false,
        };
        let (now, instant) = (engine.queue.now()?, engine.host().instant());
        let second_look = self.bell.as_ref().and_then(Bell::look_again_at);
        Ok(has_rung
            || self.is_partial
            || self.looked.is_none_or(|at| instant.since(at) >= self.every)
            || self.next.is_some_and(|at| now.is_due(at))
            || second_look.is_some_and(|at| now.has_reached(at)))
    }

    /// A look begins.
    pub(super) fn looked(&mut self, engine: &Engine, now: Now) {
        if let Some(bell) = &mut self.bell {
            bell.looked(now.earliest);
        }
        (self.looked, self.next, self.is_partial) = (Some(engine.host().instant()), None, false);
    }
}
