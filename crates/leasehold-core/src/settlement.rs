//! End of a run of a task, as its worker reports it.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::time::Duration;

use crate::limits::PLAN_AHEAD_MAX;
use crate::new_task::{check_artifacts, check_size, check_time};
use crate::{Artifacts, Event, LeaseId, Now};

/// The end of a run of a task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Settlement {
    /// Completed.
    Complete {
        /// Return value of the handler.
        output: Value,
        /// Artifacts that the handler produced, already in the store.
        results: Artifacts,
    },
    /// Failed.
    Fail {
        /// Error message.
        error: String,
        /// True if another attempt may succeed.
        retryable: bool,
        /// Pause before the next attempt, if not by the task's retry policy.
        after: Option<Duration>,
    },
    /// Failed, and the handler's own limit of attempts is reached.
    Exhaust {
        /// Error message.
        error: String,
        /// Maximum number of attempts of the handler.
        max_attempts: u32,
    },
    /// Make the task pending again after this pause, which begins when this is recorded; does not count as an attempt.
    Snooze(Duration),
    /// Make the task pending again at once, for any worker; does not count as an attempt.
    Release,
    /// Stopped because the task was cancelled.
    Stop,
}

impl Settlement {
    /// Completed, with this output and no artifacts.
    #[must_use]
    pub fn complete(output: Value) -> Self {
        Self::Complete { output, results: Artifacts::new() }
    }

    /// Returns the event that ends the claim with this id. A settlement that cannot be recorded, such as an output that
    /// is too large, becomes a failure without retry: another attempt would not change that. Pauses are limited.
    #[must_use]
    pub fn event(self, lease_id: LeaseId, now: Now) -> Event {
        let checked = match &self {
            Self::Complete { output, results } => {
                check_size("output", output).and_then(|()| check_artifacts(results))
            }
            Self::Snooze(pause) => check_time("snooze", now.latest_known().plus(*pause), now.earliest),
            _ => Ok(()),
        };
        if let Err(error) = checked {
            return Event::Fail { lease_id, error: error.to_string(), retryable: false, after: None };
        }
        match self {
            Self::Complete { output, results } => Event::Complete { lease_id, output, results },
            Self::Fail { error, retryable, after } => {
                let after = after.map(|pause| pause.min(PLAN_AHEAD_MAX));
                Event::Fail { lease_id, error, retryable, after }
            }
            Self::Exhaust { error, max_attempts } => Event::Exhaust { lease_id, error, max_attempts },
            Self::Snooze(pause) => Event::Snooze { lease_id, until: now.latest_known().plus(pause) },
            Self::Release => Event::Release { lease_id },
            Self::Stop => Event::Stop { lease_id },
        }
    }
}
