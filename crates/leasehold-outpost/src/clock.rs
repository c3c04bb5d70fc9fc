//! The node's time, and the bucket's time as last received.
//!
//! All processes of a node share the boot clock, which counts from the machine's start and cannot be set. A supervisor
//! records the offset of the bucket's time from it, and all processes extrapolate from that, also while the link is down. The
//! offset is void after a reboot. No wall clock is used.

use leasehold_core::outpost::NodeNow;
use leasehold_core::{Now, Result, StoreTime};
use leasehold_store::Host;
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::disk::{self, Disk, Durable};

/// Largest drift between two clocks: one part in this many. See the clock of stores.
const DRIFT: i64 = 1_000;

/// Smallest gain in precision that is worth a write.
const MIN_GAIN_MS: i64 = 250;

/// Clock of a node. Clones are the same clock.
#[derive(Debug, Clone)]
pub struct NodeClock {
    path: PathBuf,
    host: Arc<dyn Host>,
    boot_id: Arc<str>,
}

/// Contents of `clock.json`: the offset of the bucket's time from the time since boot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Offset {
    boot_id: String,
    earliest_offset_ms: i64,
    /// `None` if unbounded.
    latest_offset_ms: Option<i64>,
    steady: bool,
    /// Time of the write, since boot.
    at_boot_ms: i64,
}

impl NodeClock {
    /// Clock of the node with this data directory.
    #[must_use]
    pub fn new(data: &Path, host: Arc<dyn Host>, boot_id: &str) -> Self {
        Self { path: data.join("clock.json"), host, boot_id: boot_id.into() }
    }

    /// Reads the boot id of the machine. It distinguishes leases of live processes from those of a previous boot.
    pub fn boot_id() -> Result<String> {
        let path = Path::new("/proc/sys/kernel/random/boot_id");
        let text = fs::read_to_string(path).map_err(|error| disk::io_error("read", path, error))?;
        Ok(text.trim().to_owned())
    }

    /// The present. An offset that cannot be read counts as missing.
    #[must_use]
    pub fn now(&self) -> NodeNow {
        let offset = self.offset();
        let boot_ms = self.boot_ms();
        let bucket = offset.map(|offset| offset.at(boot_ms));
        NodeNow { boot_id: self.boot_id.to_string(), boot: StoreTime::from_millis(boot_ms), bucket }
    }

    /// Records the bucket's time, if it is more precise than the recorded one, or contradicts it.
    pub(crate) fn record(&self, now: Now, disk: &Disk) -> Result<()> {
        let boot_ms = self.boot_ms();
        let ahead = |time: StoreTime| time.as_millis().saturating_sub(boot_ms);
        let received = Offset {
            boot_id: self.boot_id.to_string(),
            earliest_offset_ms: ahead(now.earliest),
            latest_offset_ms: (now.latest != StoreTime::NEVER).then(|| ahead(now.latest)),
            steady: now.is_consistent,
            at_boot_ms: boot_ms,
        };
        let known = self.offset().map(|known| known.widened(boot_ms));
        match known.map_or(Some(received.clone()), |known| known.combined_with(received)) {
            Some(offset) => {
                let body = serde_json::to_vec(&offset).expect("numbers and a name");
                disk.replace(&self.path, &body, Durable::No)
            }
            None => Ok(()),
        }
    }

    fn boot_ms(&self) -> i64 {
        self.host.instant().boot_ns.div_euclid(1_000_000)
    }

    /// Recorded offset; `None` if it is of another boot or cannot be read.
    fn offset(&self) -> Option<Offset> {
        let body = disk::read(&self.path).ok().flatten()?;
        let offset: Offset = serde_json::from_slice(&body).ok()?;
        (*offset.boot_id == *self.boot_id).then_some(offset)
    }
}

impl Offset {
    fn widened(&self, boot_ms: i64) -> Self {
        let drift = boot_ms.saturating_sub(self.at_boot_ms).max(0) / DRIFT;
        Self {
            earliest_offset_ms: self.earliest_offset_ms.saturating_sub(drift),
            latest_offset_ms: self.latest_offset_ms.map(|latest| latest.saturating_add(drift)),
            at_boot_ms: boot_ms,
            ..self.clone()
        }
    }

    fn at(&self, boot_ms: i64) -> Now {
        let wide = self.widened(boot_ms);
        let time = |offset: i64| StoreTime::from_millis(boot_ms.saturating_add(offset));
        let latest = wide.latest_offset_ms.map_or(StoreTime::NEVER, time);
        Now { earliest: time(wide.earliest_offset_ms), latest, is_consistent: wide.steady }
    }

    /// Combines this offset with `received`; `None` if that adds nothing.
    fn combined_with(self, received: Self) -> Option<Self> {
        let latest = |offset: &Self| offset.latest_offset_ms.unwrap_or(i64::MAX);
        let earliest = self.earliest_offset_ms.max(received.earliest_offset_ms);
        let both = latest(&self).min(latest(&received));
        if earliest > both || self.steady != received.steady {
            return Some(received);
        }
        let gain = (earliest - self.earliest_offset_ms).saturating_add(latest(&self).saturating_sub(both));
        let narrowed = Self {
            earliest_offset_ms: earliest,
            latest_offset_ms: (both != i64::MAX).then_some(both),
            ..received
        };
        (gain >= MIN_GAIN_MS).then_some(narrowed)
    }
}
