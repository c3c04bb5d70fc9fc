//! Scanning: when a worker polls, what it scans, and which entries it skips. Values that decide; workers carry it out.

mod backoff;
mod entries;
mod schedule;

use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

pub use backoff::{BackoffAction, CORRUPT_PAUSE, EntryBackoff};
pub use entries::{FoundEntries, Graces, IndexHit, Unclaimed};
pub use schedule::{Action, IndexScan, Moment, ScanOptions, ScanSchedule, ScanScope, ScanTarget, Served};

use crate::{Error, Result, StoreTime, TaskId};

/// Polling intervals: short while work is found, growing while none is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Polling {
    /// Pause after work was found.
    pub min: Duration,
    /// Maximum pause.
    pub max: Duration,
    /// Factor by which the pause grows after each poll without work; 1 keeps it at `min`.
    pub factor: f64,
}

impl Default for Polling {
    fn default() -> Self {
        Self { min: Duration::from_millis(100), max: Duration::from_secs(5), factor: 2.0 }
    }
}

impl Polling {
    /// A fixed interval.
    #[must_use]
    pub fn fixed(every: Duration) -> Self {
        Self { min: every, max: every, factor: 1.0 }
    }

    /// Limits the pause.
    #[must_use]
    pub fn at_most(self, most: Duration) -> Self {
        Self { min: self.min.min(most), max: self.max.min(most), ..self }
    }

    /// Validates the intervals.
    pub fn check(&self) -> Result<()> {
        if self.min.is_zero() || self.min > self.max {
            return Err(Error::invalid(format!(
                "polling interval must be above 0 and at most {:?}, its maximum, got {:?}",
                self.max, self.min
            )));
        }
        if !(1.0..=100.0).contains(&self.factor) {
            return Err(Error::invalid(format!("polling factor must be 1 to 100, got {}", self.factor)));
        }
        Ok(())
    }

    /// The pause after `pause`, if that poll found nothing.
    #[must_use]
    pub fn slower(&self, pause: Duration) -> Duration {
        pause.mul_f64(self.factor).clamp(self.min, self.max)
    }
}

/// Reason why a worker that stops when the queue is empty still runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DrainWait {
    /// A task becomes due within a minute.
    Due(StoreTime),
    /// Another worker holds a task, or it is in the inbox of another worker.
    Held(TaskId),
    /// The shards that this worker is to lease are not leased yet.
    ShardLeases,
    /// The store has not answered.
    Store,
}

impl fmt::Display for DrainWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Due(at) => write!(f, "a task that is due at {at}"),
            Self::Held(id) => write!(f, "task {id}, which another worker holds or has in its inbox"),
            Self::ShardLeases => f.write_str("leases on shards"),
            Self::Store => f.write_str("an answer from the store"),
        }
    }
}
