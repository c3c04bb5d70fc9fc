//! Renewing and ending a claim.
//!
//! The holder of a claim renews it while the handler runs, and settles the task when the handler has stopped:
//! complete, fail, snooze, release or stop. Both are conditional writes that require the claim's lease id. A worker
//! that lost its claim can change nothing.
//!
//! Requests: a renewal is 1 put. A settlement is 1 put and 1 delete, and 1 more put (the ready entry, first) if the
//! task runs again.

use leasehold_core::limits::PLAN_AHEAD_MAX;
use leasehold_core::new_task::{check_artifacts, check_size, check_time};
use leasehold_core::{Artifacts, Error, Event, LeaseId, Rejected, Result, StoreTime, Task};
use leasehold_store::Purpose;
use serde_json::Value;
use std::time::Duration;
use tracing::Instrument;

use crate::claim::Claimed;
use crate::connect::Queue;
use crate::tasks::{IndexUpdate, Transition};

/// The end of a run of a task.
#[derive(Debug, Clone, PartialEq)]
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
    /// Failed, and the handler allows no more attempts.
    Exhaust {
        /// Error message.
        error: String,
        /// Maximum number of attempts of the handler.
        max_attempts: u32,
    },
    /// Run again at this time; does not count as an attempt.
    Snooze(StoreTime),
    /// Run again at once on another worker; does not count as an attempt.
    Release,
    /// Stopped because the task was cancelled.
    Stop,
}

/// Outcome of a renewal.
#[derive(Debug, Clone, PartialEq)]
pub enum Renewal {
    /// The claim is still held.
    Kept(Box<Claimed>),
    /// The claim was lost: the handler must stop at once.
    Lost,
}

impl Settlement {
    /// Completed, with this output and no artifacts.
    #[must_use]
    pub fn complete(output: Value) -> Self {
        Self::Complete { output, results: Artifacts::new() }
    }
}

impl Queue {
    /// Renews a claim.
    pub async fn renew(
        &self,
        claimed: &Claimed,
        lease: Duration,
        progress: Option<Value>,
    ) -> Result<Renewal> {
        // Progress that is too large is dropped, so that the claim is renewed in any case.
        let progress = progress.filter(|progress| match check_size("progress", progress) {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!(task = %claimed.task().id, %error, "progress not recorded");
                false
            }
        });
        let event = Event::Renew { lease_id: claimed.lease_id.clone(), lease, progress };
        let moved = self.change_loaded(Purpose::Renew, &claimed.loaded, &event, claimed.by.as_str()).await?;
        Ok(match moved {
            Transition::Done(loaded) => Renewal::Kept(Box::new(Claimed { loaded, ..claimed.clone() })),
            // Only the holder renews and settles: if the record still has its lease id, the claim is still held.
            Transition::Overtaken(loaded) if loaded.task.lease_id.as_ref() == Some(&claimed.lease_id) => {
                Renewal::Kept(Box::new(Claimed { loaded, ..claimed.clone() }))
            }
            Transition::Overtaken(_) | Transition::Rejected(..) | Transition::Missing => Renewal::Lost,
        })
    }

    /// Ends a claim. The handler must have stopped before this is called. Returns the task, or none if the claim was
    /// lost.
    pub async fn settle(&self, claimed: &Claimed, settlement: Settlement) -> Result<Option<Task>> {
        let lease_id = claimed.lease_id.clone();
        let event = match settlement {
            Settlement::Complete { output, results } => {
                match check_size("output", &output).and_then(|()| check_artifacts(&results)) {
                    Ok(()) => Event::Complete { lease_id, output, results },
                    Err(error) => for_good(lease_id, &error),
                }
            }
            Settlement::Fail { error, retryable, after } => Event::Fail {
                lease_id,
                error,
                retryable,
                after: after.map(|pause| pause.min(PLAN_AHEAD_MAX)),
            },
            Settlement::Exhaust { error, max_attempts } => Event::Exhaust { lease_id, error, max_attempts },
            Settlement::Snooze(until) => match check_time("snooze", until, self.now()?.earliest) {
                Ok(()) => Event::Snooze { lease_id, until },
                Err(error) => for_good(lease_id, &error),
            },
            Settlement::Release => Event::Release { lease_id },
            Settlement::Stop => Event::Stop { lease_id },
        };
        let follow = claimed.entries().map_or(IndexUpdate::Change, IndexUpdate::Removing);
        let (loaded, by) = (&claimed.loaded, claimed.by.as_str());
        let span = tracing::debug_span!("settle", "task.id" = %loaded.task.id, how = event.name());
        let moved = self.change_and(Purpose::Settle, loaded, &event, by, follow).instrument(span).await?;
        Ok(match moved {
            Transition::Done(loaded)
            | Transition::Overtaken(loaded)
            | Transition::Rejected(Rejected::AlreadySo, loaded) => Some(loaded.task),
            Transition::Rejected(..) | Transition::Missing => None,
        })
    }
}

/// The event for a result that cannot be recorded: the task fails, because another attempt would not change that.
fn for_good(lease_id: LeaseId, error: &Error) -> Event {
    Event::Fail { lease_id, error: error.to_string(), retryable: false, after: None }
}
