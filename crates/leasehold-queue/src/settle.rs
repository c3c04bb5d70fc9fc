//! Keeping a claim, and ending it.
//!
//! Requests: a renewal is 1 put; a settlement is 1 put and 1 delete, and 1 put more (the ready entry, first) when the
//! task is to run again.

use leasehold_core::limits::PLAN_AHEAD_MAX;
use leasehold_core::new_task::{check_artifacts, check_size, check_time};
use leasehold_core::{Artifacts, Error, Event, LeaseId, Rejected, Result, StoreTime, Task};
use leasehold_store::Purpose;
use serde_json::Value;
use std::time::Duration;
use tracing::Instrument;

use crate::claim::Claimed;
use crate::connect::Queue;
use crate::tasks::{Follow, Moved};

/// How a run of a task has ended.
#[derive(Debug, Clone, PartialEq)]
pub enum Settlement {
    /// Done.
    Complete {
        /// What the handler gave.
        output: Value,
        /// Files that it gave, which are in the store already.
        results: Artifacts,
    },
    /// Not done.
    Fail {
        /// What went wrong.
        error: String,
        /// Whether another attempt could help.
        retryable: bool,
        /// When it follows, if not by the task's retry policy.
        after: Option<Duration>,
    },
    /// Not done, and the handler allows no more attempts.
    Exhaust {
        /// What went wrong.
        error: String,
        /// How many attempts the handler allows.
        max_attempts: u32,
    },
    /// To be run again at this moment; does not count as an attempt.
    Snooze(StoreTime),
    /// To be run again at once, elsewhere; does not count as an attempt.
    Release,
    /// Stopped, because it was called off.
    Stop,
}

/// What became of a renewal.
#[derive(Debug, Clone, PartialEq)]
pub enum Renewal {
    /// Still ours.
    Kept(Box<Claimed>),
    /// Someone else's: stop at once.
    Lost,
}

impl Settlement {
    /// Done, with this output and no files.
    #[must_use]
    pub fn complete(output: Value) -> Self {
        Self::Complete { output, results: Artifacts::new() }
    }
}

impl Queue {
    /// Keeps a claim for another while.
    pub async fn renew(
        &self,
        claimed: &Claimed,
        lease: Duration,
        progress: Option<Value>,
    ) -> Result<Renewal> {
        // Progress is worth less than the claim: what cannot be kept is left out.
        let progress = progress.filter(|progress| match check_size("progress", progress) {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!(task = %claimed.task().id, "progress was not recorded: {error}");
                false
            }
        });
        let event = Event::Renew { lease_id: claimed.lease_id.clone(), lease, progress };
        let moved = self.change_loaded(Purpose::Renew, &claimed.loaded, &event, claimed.by.as_str()).await?;
        Ok(match moved {
            Moved::Done(loaded) => Renewal::Kept(Box::new(Claimed { loaded, ..claimed.clone() })),
            // Only the holder renews and settles, so whatever others have added leaves it ours, if it still says so.
            Moved::Overtaken(loaded) if loaded.task.lease_id.as_ref() == Some(&claimed.lease_id) => {
                Renewal::Kept(Box::new(Claimed { loaded, ..claimed.clone() }))
            }
            Moved::Overtaken(_) | Moved::Rejected(..) | Moved::Missing => Renewal::Lost,
        })
    }

    /// Ends a claim. The handler must have stopped before this is called. Gives the task as it stands, or nothing if
    /// the claim was lost.
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
        let follow = claimed.entries().map_or(Follow::Change, Follow::Removing);
        let (loaded, by) = (&claimed.loaded, claimed.by.as_str());
        let span = tracing::debug_span!("settle", "task.id" = %loaded.task.id, how = event.name());
        let moved = self.change_and(Purpose::Settle, loaded, &event, by, follow).instrument(span).await?;
        Ok(match moved {
            Moved::Done(loaded) | Moved::Overtaken(loaded) | Moved::Rejected(Rejected::AlreadySo, loaded) => {
                Some(loaded.task)
            }
            Moved::Rejected(..) | Moved::Missing => None,
        })
    }
}

/// What cannot be written down as it is fails, and no further attempt would change that.
fn for_good(lease_id: LeaseId, error: &Error) -> Event {
    Event::Fail { lease_id, error: error.to_string(), retryable: false, after: None }
}
