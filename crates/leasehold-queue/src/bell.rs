//! The bell: an idle worker asks for one small object instead of listing the index.
//!
//! Everyone who makes a task pending, now or for later, changes the bell once the task can be found. It says *that*, not
//! *where*. A worker asks for it "if changed", which costs a twelfth of a list, and looks at the index when it did.
//!
//! ```text
//!   producer   entry, task ── ring                 entry, task  (no ring: the last one is younger than a second)
//!   worker                       bell changed, look      ·····      look again, a second later
//! ```
//!
//! A process rings at most once in [`RING_EVERY`]: stores limit the writes to one key. Nothing is lost by that. Whoever
//! finds the bell changed knows an upper bound of when the ring landed: the latest that *now* can be. Every ring that
//! this one has overwritten landed before, and whatever was not rung for was written within [`RING_EVERY`] of one of
//! them. So a second look, when even the earliest that *now* can be is [`RING_EVERY`] later, sees it all.
//!
//! A ring may be lost, like every hint (promise P9): a worker looks from time to time without being rung.

use bytes::Bytes;
use leasehold_core::{Result, StoreTime, keys};
use leasehold_store::host::Instant;
use leasehold_store::mutant::{Rule, breaks};
use leasehold_store::{Get, Purpose, Version};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::connect::Queue;

/// A process rings at most this often.
pub const RING_EVERY: Duration = Duration::from_secs(1);

/// When to look again: [`RING_EVERY`], as a slow local clock counts it.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(1_010);

/// When this process rang last.
#[derive(Debug, Default)]
pub(crate) struct Ringer {
    rang_at: Mutex<Option<Instant>>,
}

impl Ringer {
    /// Whether to ring now; if so, it counts as done.
    fn begin(&self, now: Instant) -> bool {
        let mut rang_at = self.rang_at.lock().unwrap_or_else(PoisonError::into_inner);
        if rang_at.is_some_and(|rang_at| now.since(rang_at) < RING_EVERY) {
            return false;
        }
        *rang_at = Some(now);
        true
    }

    /// The ring has failed: the next one is not to be held back by it.
    fn failed(&self) {
        *self.rang_at.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// The bell as a worker knows it.
#[derive(Debug, Default)]
pub struct Bell {
    known: Option<Version>,
    /// When it was last found changed, at the latest.
    rang_by: Option<StoreTime>,
}

impl Bell {
    /// From this moment on, by the earliest that *now* can be, one more look sees everything that the last ring stood for;
    /// nothing if that look was made.
    #[must_use]
    pub fn look_again_at(&self) -> Option<StoreTime> {
        self.rang_by.map(|at| at.plus(LOOK_AGAIN_AFTER)).filter(|_| !breaks(Rule::NoSecondLook))
    }

    /// A look begins at this moment, by the earliest that *now* can be.
    pub fn looked(&mut self, earliest: StoreTime) {
        self.rang_by = self.rang_by.filter(|at| at.plus(LOOK_AGAIN_AFTER) > earliest);
    }
}

impl Queue {
    /// Tells everyone that something was made pending, and can be found.
    pub(crate) async fn ring(&self, purpose: Purpose) {
        self.news.send_modify(|rung| *rung += 1);
        if !self.ringer.begin(self.client.host().instant()) {
            return;
        }
        let body = format!("{{\"write_id\":\"{}\"}}", self.client.write_id());
        if let Err(error) = self.client.put_hint(purpose, keys::BELL, Bytes::from(body)).await {
            tracing::debug!("the bell was not rung: {error}");
            self.ringer.failed();
        }
    }

    /// Whether the bell has changed since it was last asked for: 1 get.
    pub async fn has_rung(&self, bell: &mut Bell) -> Result<bool> {
        let found = self.client.get_unless(Purpose::Discover, keys::BELL, bell.known.as_ref()).await?;
        let Get::Found(object) = found else { return Ok(false) };
        bell.known = Some(object.version);
        bell.rang_by = Some(self.now()?.latest_known());
        Ok(true)
    }
}
