//! Parts of the index outside the shards: the worker's own inbox, and the overflow.

use leasehold_core::{IndexLocation, Now, Result, StoreTime};
use leasehold_queue::Bell;
use leasehold_store::host::Instant;
use std::time::Duration;

use crate::run::Engine;

/// A part of the index that is not divided into shards.
pub(super) struct SideIndex {
    pub(super) place: IndexLocation,
    /// Bell of an inbox; the overflow has none.
    bell: Option<Bell>,
    /// Interval of scans without a ring.
    every: Duration,
    /// Time of the last scan.
    looked: Option<Instant>,
    /// The first future minute that has entries.
    pub(super) next: Option<StoreTime>,
    /// True if the last scan did not reach the end.
    pub(super) is_partial: bool,
}

impl SideIndex {
    pub(super) fn inbox(engine: &Engine) -> Option<Self> {
        let worker = engine.inbox.as_ref()?.worker().clone();
        let bell = Some(Bell::of_inbox(&worker));
        Some(Self::new(IndexLocation::Inbox(worker), bell, engine.runner.options.sweep_every))
    }

    pub(super) fn overflow(engine: &Engine) -> Self {
        Self::new(IndexLocation::Overflow, None, engine.runner.options.overflow_every)
    }

    fn new(place: IndexLocation, bell: Option<Bell>, every: Duration) -> Self {
        Self { place, bell, every, looked: None, next: None, is_partial: false }
    }

    /// True if it was never scanned.
    pub(super) fn is_new(&self) -> bool {
        self.looked.is_none()
    }

    /// Makes the next poll scan it.
    pub(super) fn look_soon(&mut self) {
        (self.looked, self.next) = (None, None);
    }

    /// True if it should be scanned now. The bell is read first, so that the scan includes everything that was rung
    /// for.
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

    /// Notes the start of a scan.
    pub(super) fn looked(&mut self, engine: &Engine, now: Now) {
        if let Some(bell) = &mut self.bell {
            bell.looked(now.earliest);
        }
        (self.looked, self.next, self.is_partial) = (Some(engine.host().instant()), None, false);
    }
}
