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
pub(crate) type RecentRings = Mutex<BTreeMap<String, Instant>>;

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
        Self::of(None)
    }
}

impl Bell {
    /// The bell of an inbox, or of the queue.
    #[must_use]
    pub fn of(inbox: Option<&WorkerId>) -> Self {
        Self { key: inbox.map_or_else(|| keys::BELL.to_owned(), keys::inbox_bell), known: None }
    }
}

impl ObjectQueue {
    /// Notifies workers that a task became pending and is in the index: all of them, or the one whose inbox has it.
    pub(crate) async fn ring(&self, purpose: Purpose, inbox: Option<&WorkerId>) {
        let (bell, now) = (Bell::of(inbox).key, self.client.host().instant());
        self.pending_signal.send_modify(|count| *count += 1);
        let is_recent = {
            let mut rings = lock(&self.recent_rings);
            rings.retain(|_, rang_at| now.since(*rang_at) < RING_EVERY);
            let is_recent = rings.contains_key(&bell);
            rings.entry(bell.clone()).or_insert(now);
            is_recent
        };
        if !is_recent {
            self.put_ring(purpose, &bell, false).await;
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
            tracing::debug!(bell, %error, "failed to update notification object");
            // It must not suppress the next one.
            lock(&self.recent_rings).remove(bell);
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
