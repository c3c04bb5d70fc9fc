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
//! Each inbox has a bell of its own, so that a task for one worker does not make all of them look. Whoever puts something
//! into the overflow says so in its ring: only then is it looked at before its time.
//!
//! A ring may be lost, like every hint (promise P9): a worker looks from time to time without being rung.

use bytes::Bytes;
use leasehold_core::{Error, Kind, Result, StoreTime, WorkerId, WriteId, keys};
use leasehold_store::host::Instant;
use leasehold_store::mutant::{Rule, breaks};
use leasehold_store::{Get, Purpose, Version};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::connect::Queue;

/// A process rings at most this often.
pub const RING_EVERY: Duration = Duration::from_secs(1);

/// When to look again: [`RING_EVERY`], as a slow local clock counts it.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(1_010);

/// When this process rang which bell last: those of the last second.
#[derive(Debug, Default)]
pub(crate) struct Ringer {
    rang_at: Mutex<BTreeMap<String, Instant>>,
}

impl Ringer {
    /// Whether to ring now; if so, it counts as done.
    fn begin(&self, bell: &str, now: Instant) -> bool {
        let mut rang_at = self.lock();
        rang_at.retain(|_, rang_at| now.since(*rang_at) < RING_EVERY);
        if rang_at.contains_key(bell) {
            return false;
        }
        rang_at.insert(bell.to_owned(), now);
        true
    }

    /// The ring has failed: the next one is not to be held back by it.
    fn failed(&self, bell: &str) {
        self.lock().remove(bell);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Instant>> {
        self.rang_at.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What stands at a bell.
#[derive(Debug, Serialize, Deserialize)]
struct Ring {
    write_id: WriteId,
    /// There is something in the overflow.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    overflow: bool,
}

/// A bell as a worker knows it: that of the queue, or that of an inbox.
#[derive(Debug)]
pub struct Bell {
    key: String,
    known: Option<Version>,
    /// When it was last found changed, at the latest.
    rang_by: Option<StoreTime>,
    is_for_overflow: bool,
}

impl Default for Bell {
    fn default() -> Self {
        Self::at(keys::BELL.to_owned())
    }
}

impl Bell {
    /// The bell of an inbox.
    #[must_use]
    pub fn of_inbox(worker: &WorkerId) -> Self {
        Self::at(keys::inbox_bell(worker))
    }

    fn at(key: String) -> Self {
        Self { key, known: None, rang_by: None, is_for_overflow: false }
    }

    /// Whether a ring has said that there is something in the overflow; not again until another one says so.
    pub fn rang_for_overflow(&mut self) -> bool {
        std::mem::take(&mut self.is_for_overflow)
    }

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
        if self.ringer.begin(keys::BELL, self.client.host().instant()) {
            self.put_ring(purpose, keys::BELL, false).await;
        }
    }

    /// Tells one worker that something was put into its inbox.
    pub(crate) async fn ring_inbox(&self, purpose: Purpose, worker: &WorkerId) {
        self.news.send_modify(|rung| *rung += 1);
        let bell = keys::inbox_bell(worker);
        if self.ringer.begin(&bell, self.client.host().instant()) {
            self.put_ring(purpose, &bell, false).await;
        }
    }

    /// Tells everyone that something was put into the overflow. No earlier ring stands for this one.
    pub(crate) async fn ring_for_overflow(&self) {
        self.news.send_modify(|rung| *rung += 1);
        self.put_ring(Purpose::Sweep, keys::BELL, true).await;
    }

    async fn put_ring(&self, purpose: Purpose, bell: &str, overflow: bool) {
        let body = self.ring_body(overflow);
        if let Err(error) = self.client.put_hint(purpose, bell, body).await {
            tracing::debug!("the bell was not rung: {error}");
            self.ringer.failed(bell);
        }
    }

    /// The body of a new ring.
    pub(crate) fn ring_body(&self, overflow: bool) -> Bytes {
        let ring = Ring { write_id: self.client.write_id(), overflow };
        Bytes::from(serde_json::to_vec(&ring).expect("text and a truth value"))
    }

    /// Whether the bell has changed since it was last asked for: 1 get.
    pub async fn has_rung(&self, bell: &mut Bell) -> Result<bool> {
        let found = self.client.get_unless(Purpose::Discover, &bell.key, bell.known.as_ref()).await?;
        let Get::Found(object) = found else { return Ok(false) };
        bell.known = Some(object.version);
        bell.is_for_overflow |= serde_json::from_slice(&object.body).is_ok_and(|ring: Ring| ring.overflow);
        bell.rang_by = Some(self.now()?.latest_known());
        Ok(true)
    }
}

/// Verifies what stands at a bell.
pub(crate) fn verify(key: &str, body: &[u8]) -> Result<()> {
    let corrupt = |error| Error::new(Kind::Corrupt, format!("`{key}` is not a ring: {error}"));
    serde_json::from_slice::<Ring>(body).map(drop).map_err(corrupt)
}
