//! The bell: a small notification object that an idle worker reads instead of listing the index.
//!
//! A client that makes a task pending, now or for later, overwrites the bell (*rings* it) once the task is in the
//! index. The bell tells workers that the index has changed, not where. A worker reads it with a conditional get,
//! which costs a twelfth of a list, and scans the index only when it has changed.
//!
//! ```text
//!   producer   entry, task ── ring                 entry, task  (no ring: the last one is younger than a second)
//!   worker                       bell changed, scan      ·····      scan again, a second later
//! ```
//!
//! A process rings at most once per [`RING_EVERY`], because stores limit the rate of writes to one key. No task is
//! missed by that. A worker that reads a changed bell has an upper bound of the time of the ring: the latest value of
//! *now*. Every ring that this one has overwritten came before, and every task without a ring of its own was written
//! within [`RING_EVERY`] of one of them. So a second scan, once the earliest value of *now* is [`RING_EVERY`] later,
//! finds them all.
//!
//! Each inbox has a bell of its own, so that a task for one worker does not wake all of them. A ring for a task in
//! the overflow carries a flag: only then do workers scan the overflow before its interval has passed.
//!
//! A ring may be lost, like every hint (promise P9): workers also scan periodically.
//!
//! Requests: a ring is 1 put, a check is 1 get.

use bytes::Bytes;
use leasehold_core::{Error, Kind, Result, StoreTime, WorkerId, WriteId, keys};
use leasehold_store::host::{Instant, lock};
use leasehold_store::mutant::breaks;
use leasehold_store::{Get, Purpose, Version};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use crate::connect::ObjectQueue;

/// Minimum time between two rings of one bell by a process.
pub const RING_EVERY: Duration = Duration::from_secs(1);

/// Time until the second scan: [`RING_EVERY`], as measured by a slow local clock.
const SECOND_SCAN_AFTER: Duration = Duration::from_millis(1_010);

/// Bells that this process rang within the last second, with the time.
#[derive(Debug, Default)]
pub(crate) struct Ringer {
    rang_at: Mutex<BTreeMap<String, Instant>>,
}

impl Ringer {
    /// True if the bell is to be rung now; the ring then counts as done.
    fn begin(&self, bell: &str, now: Instant) -> bool {
        let mut rang_at = lock(&self.rang_at);
        rang_at.retain(|_, rang_at| now.since(*rang_at) < RING_EVERY);
        if rang_at.contains_key(bell) {
            return false;
        }
        rang_at.insert(bell.to_owned(), now);
        true
    }

    /// Forgets a failed ring, so that it does not suppress the next one.
    fn failed(&self, bell: &str) {
        lock(&self.rang_at).remove(bell);
    }
}

/// Content of a bell.
#[derive(Debug, Serialize, Deserialize)]
struct Ring {
    write_id: WriteId,
    /// True if a task was put into the overflow.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    overflow: bool,
}

/// A bell as last read by a worker: that of the queue, or that of an inbox.
#[derive(Debug)]
pub struct Bell {
    key: String,
    known: Option<Version>,
}

/// A change of a bell.
#[derive(Debug, Clone, Copy)]
pub struct BellChange {
    /// Time for the second scan, compared with the earliest value of *now*: it finds everything that the last ring
    /// stands for.
    pub second_scan_at: Option<StoreTime>,
    /// True if tasks were put into the overflow.
    pub is_for_overflow: bool,
}

impl Default for Bell {
    fn default() -> Self {
        Self { key: keys::BELL.to_owned(), known: None }
    }
}

impl Bell {
    /// The bell of an inbox.
    #[must_use]
    pub fn of_inbox(worker: &WorkerId) -> Self {
        Self { key: keys::inbox_bell(worker), known: None }
    }
}

impl ObjectQueue {
    /// Notifies all workers that a task became pending and is in the index.
    pub(crate) async fn ring(&self, purpose: Purpose) {
        self.ring_at(purpose, keys::BELL).await;
    }

    /// Notifies one worker that a task was put into its inbox.
    pub(crate) async fn ring_inbox(&self, purpose: Purpose, worker: &WorkerId) {
        self.ring_at(purpose, &keys::inbox_bell(worker)).await;
    }

    async fn ring_at(&self, purpose: Purpose, bell: &str) {
        self.pending_signal.send_modify(|count| *count += 1);
        if self.ringer.begin(bell, self.client.host().instant()) {
            self.put_ring(purpose, bell, false).await;
        }
    }

    /// Notifies all workers that a task was put into the overflow. Not suppressed by an earlier ring.
    pub(crate) async fn ring_for_overflow(&self) {
        self.pending_signal.send_modify(|count| *count += 1);
        self.put_ring(Purpose::Sweep, keys::BELL, true).await;
    }

    async fn put_ring(&self, purpose: Purpose, bell: &str, overflow: bool) {
        let body = self.ring_body(overflow);
        if let Err(error) = self.client.put_hint(purpose, bell, body).await {
            tracing::debug!(bell, %error, "failed to ring bell");
            self.ringer.failed(bell);
        }
    }

    /// The body of a new ring.
    pub(crate) fn ring_body(&self, overflow: bool) -> Bytes {
        let ring = Ring { write_id: self.client.write_id(), overflow };
        Bytes::from(serde_json::to_vec(&ring).expect("a ring consists of a string and a bool"))
    }

    /// Reads a bell; none if it has not changed since the last call. Requests: 1 get.
    pub async fn read_bell(&self, bell: &mut Bell) -> Result<Option<BellChange>> {
        let found = self.client.get_unless(Purpose::Discover, &bell.key, bell.known.as_ref()).await?;
        let Get::Found(object) = found else { return Ok(None) };
        bell.known = Some(object.version);
        let is_for_overflow = serde_json::from_slice(&object.body).is_ok_and(|ring: Ring| ring.overflow);
        let rang_by = self.now()?.latest_known();
        let second_scan_at = (!breaks("no-second-look")).then(|| rang_by.plus(SECOND_SCAN_AFTER));
        Ok(Some(BellChange { second_scan_at, is_for_overflow }))
    }
}

/// Verifies the content of a bell.
pub(crate) fn verify(key: &str, body: &[u8]) -> Result<()> {
    let corrupt = |error| Error::new(Kind::Corrupt, format!("`{key}` is not a notification object: {error}"));
    serde_json::from_slice::<Ring>(body).map(drop).map_err(corrupt)
}
