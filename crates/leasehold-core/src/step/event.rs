//! Events: the requested changes of a task.

use serde_json::Value;
use std::time::Duration;

use crate::ids::{Artifacts, LeaseId, WorkerId};
use crate::shard::Shard;
use crate::time::StoreTime;

/// Requested change of a task.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// A worker claims the task.
    Claim {
        /// Worker that claims.
        worker: WorkerId,
        /// Id of the new claim.
        lease_id: LeaseId,
        /// Duration of the lease.
        lease: Duration,
    },
    /// A worker takes over the claim of another: one whose lease has expired, or that of a crashed process with the same worker id.
    TakeOver {
        /// Worker that claims.
        worker: WorkerId,
        /// Id of the new claim.
        lease_id: LeaseId,
        /// Duration of the lease.
        lease: Duration,
        /// Own claim that it replaces, which need not have expired.
        from: Option<LeaseId>,
        /// True if no handler started under that claim, so that it does not count as an attempt.
        is_unused: bool,
    },
    /// The worker renews its lease.
    Renew {
        /// Claim of the worker.
        lease_id: LeaseId,
        /// Duration of the lease from now.
        lease: Duration,
        /// Progress of the handler, if it was reported.
        progress: Option<Value>,
    },
    /// The worker completes the task.
    Complete {
        /// Claim of the worker.
        lease_id: LeaseId,
        /// Output of the handler.
        output: Value,
        /// Result files, which are already in the store.
        results: Artifacts,
    },
    /// The attempt failed.
    Fail {
        /// Claim of the worker.
        lease_id: LeaseId,
        /// Error of the attempt.
        error: String,
        /// True if another attempt may succeed.
        retryable: bool,
        /// Pause before the next attempt; none for the task's retry policy.
        after: Option<Duration>,
    },
    /// The attempt failed, and the handler allows no more attempts.
    Exhaust {
        /// Claim of the worker.
        lease_id: LeaseId,
        /// Error of the attempt.
        error: String,
        /// Number of attempts that the handler allows. The task keeps the smaller of this and its own limit, also after
        /// a manual retry.
        max_attempts: u32,
    },
    /// The task was completed on a node without access to the store. Applies whichever worker holds it now.
    CompleteOffline {
        /// Id of the claim on that node.
        lease_id: LeaseId,
        /// Output of the handler.
        output: Value,
        /// Result files, which are already in the store.
        results: Artifacts,
    },
    /// The attempt failed on a node without access to the store, and no other worker has claimed the task since.
    FailOffline {
        /// Id of the claim on that node.
        lease_id: LeaseId,
        /// Error of the attempt.
        error: String,
        /// True if another attempt may succeed.
        retryable: bool,
        /// Pause before the next attempt; none for the task's retry policy.
        after: Option<Duration>,
        /// Maximum number of attempts of the handler, if this attempt has reached it, as in [`Event::Exhaust`].
        max_attempts: Option<u32>,
    },
    /// The worker postpones the task.
    Snooze {
        /// Claim of the worker.
        lease_id: LeaseId,
        /// Time at which it becomes available again.
        until: StoreTime,
    },
    /// The worker releases the task: it is pending again at once, and the claim does not count as an attempt.
    Release {
        /// Claim of the worker.
        lease_id: LeaseId,
    },
    /// The worker stopped the handler because the task was cancelled.
    Stop {
        /// Claim of the worker.
        lease_id: LeaseId,
    },
    /// The lease expired.
    TimeOut,
    /// The task is cancelled.
    Cancel,
    /// The task was not started before its expiry.
    Expire,
    /// The task is scheduled for another time.
    Reschedule {
        /// New start time.
        at: StoreTime,
    },
    /// The task is retried manually.
    Retry,
    /// The task is past its retention.
    Purge,
    /// Adds a revision to a final task before an entry with a higher revision is removed, so that the writer of that
    /// entry can no longer make it valid (rule 4).
    Fence,
    /// Moves the task to another shard, because the number of shards changes. With its own shard it only adds a
    /// revision, so that a move that is still in flight no longer applies.
    Move {
        /// New shard.
        shard: Shard,
    },
}

impl Event {
    /// Name in histories.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Event::Claim { .. } => "claim",
            Event::TakeOver { .. } => "take over",
            Event::Renew { .. } => "renew",
            Event::Complete { .. } => "complete",
            Event::Fail { .. } | Event::Exhaust { .. } => "fail",
            Event::CompleteOffline { .. } => "completed_offline",
            Event::FailOffline { .. } => "failed_offline",
            Event::Snooze { .. } => "snooze",
            Event::Release { .. } => "release",
            Event::Stop { .. } => "stop",
            Event::TimeOut => "time out",
            Event::Cancel => "cancel",
            Event::Expire => "expire",
            Event::Reschedule { .. } => "reschedule",
            Event::Retry => "retry",
            Event::Purge => "purge",
            Event::Fence => "fence",
            Event::Move { .. } => "move",
        }
    }
}
