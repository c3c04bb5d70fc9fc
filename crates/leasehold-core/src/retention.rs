//! Retention: the final tasks that are removed after a while.

use serde::{Deserialize, Serialize};
use std::time::Duration;

use crate::task::{Status, Task};
use crate::time::Now;

/// Minimum age of a new task before it is removed, and of its idempotency key after its expiry: by then every write to
/// it that was in flight has been applied or refused.
pub const PURGE_GRACE: Duration = Duration::from_hours(24);

/// Tasks to remove.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Retention {
    /// Only tasks in one of these final states; empty means all of them.
    pub statuses: Vec<Status>,
    /// Only tasks that have been final for at least this time.
    pub older_than: Duration,
}

impl Retention {
    /// True if the task is in one of the statuses, and has been for long enough.
    #[must_use]
    pub fn covers(&self, task: &Task, now: Now) -> bool {
        let finished_at = task.state.finished_at();
        self.includes(task.status()) && finished_at.is_some_and(|at| now.is_past(at.plus(self.older_than)))
    }

    /// True if tasks of this status can be covered, for a caller that has yet to read the task.
    #[must_use]
    pub fn includes(&self, status: Status) -> bool {
        status.is_final() && (self.statuses.is_empty() || self.statuses.contains(&status))
    }
}

/// Outcome for one task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Purged {
    /// Kept.
    Kept,
    /// Kept although the retention covers it: it is within the grace period, and a later purge decides.
    TooNew,
    /// Marked, to be deleted after the grace period.
    Marked,
    /// Deleted.
    Deleted,
}
