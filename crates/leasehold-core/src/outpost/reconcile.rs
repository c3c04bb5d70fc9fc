//! Sync action for every pair of node state and bucket state of a task.
//!
//! The node and the bucket may have diverged while the node was offline. One table decides, and one conditional put
//! applies the decision: if the record has changed meanwhile, it is read again and the table decides again.
//! `docs/protocol/outpost.md` shows the whole table.
//!
//! Guarantees: a task is completed at most once in each generation, and a result that the bucket no longer accepts is
//! kept on the node, never discarded.

use serde::{Deserialize, Serialize};
use std::fmt;

use super::op::OpKind;
use crate::error::{Error, Result};
use crate::ids::{LeaseId, WriteId};
use crate::task::{State, Status, Task};
use crate::time::Now;

/// Policy for claims while the bucket is unreachable.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Consistency {
    /// A handler starts only tasks that are claimed in the bucket; offline, only tasks that were checked out before.
    #[default]
    Strict,
    /// A handler starts any task on the node; the claim is written to the bucket later.
    Relaxed,
}

impl std::str::FromStr for Consistency {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "strict" => Ok(Self::Strict),
            "relaxed" => Ok(Self::Relaxed),
            _ => Err(Error::invalid(format!("unknown consistency `{text}`; use strict or relaxed"))),
        }
    }
}

impl fmt::Display for Consistency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Strict => "strict",
            Self::Relaxed => "relaxed",
        })
    }
}

/// State of a task on a node: a row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Local {
    /// Submitted on this node.
    New,
    /// Claimed in the bucket in advance; no handler has started.
    CheckedOut,
    /// Claimed by a process of this node, which waits until the bucket confirms the claim.
    Tentative,
    /// A handler is running.
    Running,
    /// Completed by a handler.
    Completed,
    /// An attempt failed.
    Failed,
    /// Released, for now or for later.
    GivenBack,
    /// Retried manually on this node.
    Requeued,
    /// Cancelled on this node.
    Cancelled,
}

/// Last state of a task that the node read from the bucket, and its own writes since.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct KnownState {
    /// Generation of the task.
    pub generation: u64,
    /// Epoch of the claim of this node.
    pub epoch: u64,
    /// Claim of this node.
    pub lease_id: Option<LeaseId>,
    /// Claim of this node that it replaced.
    pub from: Option<LeaseId>,
    /// Write by which the task was submitted on this node.
    pub write_id: Option<WriteId>,
}

/// State of a task in the bucket: a column of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BucketState {
    /// No such task, or past its retention.
    Absent,
    /// Tombstone of an abandoned submit.
    Tombstone,
    /// The node's submit or completion was already applied: only the answer was lost.
    Known,
    /// Pending, last released by the node's own claim.
    Returned,
    /// Pending.
    Pending {
        /// True if no worker has claimed it since the node last read it.
        is_untouched: bool,
    },
    /// Claimed for this node.
    Ours {
        /// True if that claim has surely not expired.
        is_live: bool,
    },
    /// Claimed by another worker.
    Other {
        /// False if that claim has surely expired.
        is_live: bool,
    },
    /// Completed.
    Completed,
    /// Failed permanently.
    Failed,
    /// Cancelled.
    Cancelled,
    /// Not started before its expiry.
    Expired,
    /// In another generation: it was retried since, or the bucket has refused a retry of this node.
    Another,
}

impl BucketState {
    /// Classifies the task in the bucket, given what the node knows.
    #[must_use]
    pub fn of(task: Option<&Task>, known: &KnownState, now: Now) -> Self {
        let Some(task) = task else { return Self::Absent };
        if task.is_tombstone() {
            return Self::Tombstone;
        }
        if known.write_id.as_ref().is_some_and(|write_id| task.has_write(write_id)) {
            return Self::Known;
        }
        if task.status() == Status::Purged {
            return Self::Absent;
        }
        if task.generation != known.generation {
            return Self::Another;
        }
        let is_of = |lease_id: &Option<LeaseId>| lease_id.is_some() && task.lease_id == *lease_id;
        match &task.state {
            State::Running(claim) if is_of(&known.lease_id) => {
                Self::Ours { is_live: now.is_before(claim.expires_at) }
            }
            // The previous claim, of a dead process of this node: it can be replaced at any time.
            State::Running(_) if is_of(&known.from) => Self::Other { is_live: false },
            State::Running(claim) => Self::Other { is_live: !now.is_past(claim.expires_at) },
            State::Pending { .. } if is_of(&known.lease_id) => Self::Returned,
            State::Completed { .. } if is_of(&known.lease_id) => Self::Known,
            State::Pending { .. } => Self::Pending { is_untouched: task.epoch < known.epoch },
            State::Completed { .. } => Self::Completed,
            State::Failed { .. } => Self::Failed,
            State::Cancelled { .. } => Self::Cancelled,
            State::Expired { .. } => Self::Expired,
            State::Purged { .. } => Self::Absent,
        }
    }

    fn is_final(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Cancelled | Self::Expired)
    }
}

/// Decision of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyncAction {
    /// Already in the bucket; nothing to do.
    Done,
    /// Continue unchanged.
    GoOn,
    /// Write this, if the record is unchanged.
    Write(Write),
    /// Remove the task from the node, and report the reason if there is one.
    Drop(Option<Why>),
    /// Stop the handler and write nothing to the bucket. A result that it still returns goes to `conflicts/`.
    Stop(Why),
    /// Move the result of this node to `conflicts/`.
    Conflict(Why),
    /// Reject the operation and report the reason.
    Refuse(Why),
}

/// Conditional put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Write {
    /// Creates the task as submitted on this node, where there is no object or only a tombstone.
    Create,
    /// Claims the task with a new epoch.
    Claim,
    /// Claims the task with a new epoch in place of an expired claim.
    TakeOver,
    /// Renews the claim of this node.
    Renew,
    /// Completes the task under the claim of this node.
    Complete,
    /// Completes the task under a claim that is not in the bucket, with epoch + 1.
    CompleteOffline,
    /// Records the failed attempt under the claim of this node.
    Fail,
    /// Records the failed attempt together with a claim that is not in the bucket.
    FailOffline,
    /// Releases the claim of this node unused.
    Release,
    /// Schedules the task for later.
    Reschedule,
    /// Retries the task, in a new generation.
    Retry,
    /// Cancels the task.
    Cancel,
    /// Cancels the task together with the claim of this node, under which no handler runs.
    Stop,
}

impl Write {
    /// True if it makes or keeps a claim of this node.
    #[must_use]
    pub fn claims(self) -> bool {
        matches!(self, Self::Claim | Self::TakeOver | Self::Renew)
    }
}

/// Reason why an operation of a node is not applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// A task with this id already exists.
    Duplicate,
    /// Another worker holds it.
    TakenByOthers,
    /// Another worker completed it: it ran twice.
    CompletedByOthers,
    /// It failed permanently on another worker.
    FailedByOthers,
    /// It was cancelled.
    Cancelled,
    /// It was not started before its expiry.
    Expired,
    /// It does not exist.
    Absent,
    /// It is in another generation.
    Another,
    /// It has not ended, and cannot be retried.
    NotEnded,
    /// It is completed, and cannot be retried.
    Completed,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Why::Duplicate => "a task with this id already exists",
            Why::TakenByOthers => "another worker holds it",
            Why::CompletedByOthers => "another worker has completed it",
            Why::FailedByOthers => "it failed permanently on another worker",
            Why::Cancelled => "it was cancelled",
            Why::Expired => "it has expired",
            Why::Absent => "the bucket does not have it",
            Why::Another => "it is in another generation",
            Why::NotEnded => "it has not ended yet",
            Why::Completed => "it is completed",
        })
    }
}

/// Decides, row by row. With `finishes`, a handler may run to its end although another worker has taken its task.
#[must_use]
#[expect(clippy::match_same_arms, reason = "a row of the table stays together")]
pub fn reconcile(local: Local, remote: BucketState, consistency: Consistency, finishes: bool) -> SyncAction {
    use BucketState as S;
    use SyncAction::{Conflict, Done, Drop, GoOn, Refuse, Stop, Write as Put};
    match (local, remote) {
        (Local::Running, S::Known) => Stop(Why::TakenByOthers),
        (Local::CheckedOut | Local::Tentative, S::Known) => Drop(None),
        (_, S::Known) => Done,

        (Local::New, S::Absent) => Put(Write::Create),
        // The tombstone is of a submit whose second put came too late. An accepted task is not abandoned.
        (Local::New, S::Tombstone) => Put(Write::Create),
        (Local::New, _) => Drop(Some(Why::Duplicate)),

        (Local::CheckedOut, S::Ours { is_live: true }) => GoOn,
        (Local::CheckedOut, S::Ours { is_live: false }) => Put(Write::TakeOver),
        (Local::CheckedOut, S::Pending { .. } | S::Returned) => Put(Write::Claim),
        (Local::CheckedOut, _) => Drop(None),

        // It was claimed, no process waited for it, and it was released: a claim is not made twice.
        (Local::Tentative | Local::Running, S::Returned) => Drop(None),

        (Local::Tentative, S::Pending { .. }) => Put(Write::Claim),
        (Local::Tentative, S::Ours { is_live: true }) => GoOn,
        (Local::Tentative, S::Ours { is_live: false }) => Put(Write::Renew),
        (Local::Tentative, S::Other { is_live: false }) => Put(Write::TakeOver),
        (Local::Tentative, S::Absent | S::Tombstone) => Drop(Some(Why::Absent)),
        (Local::Tentative, _) => Drop(None),

        (Local::Running, S::Pending { .. }) => Put(Write::Claim),
        (Local::Running, S::Ours { .. }) => Put(Write::Renew),
        (Local::Running, S::Other { is_live: false }) => Put(Write::TakeOver),
        (Local::Running, S::Other { is_live: true }) if finishes => GoOn,
        (Local::Running, other) => Stop(why(other)),

        (Local::Completed, S::Ours { .. }) => Put(Write::Complete),
        (Local::Completed, S::Pending { .. } | S::Returned) => Put(Write::CompleteOffline),
        (Local::Completed, S::Other { .. } | S::Failed) if consistency == Consistency::Relaxed => {
            Put(Write::CompleteOffline)
        }
        (Local::Completed, other) => Conflict(why(other)),

        (Local::Failed, S::Returned) => Done,
        (Local::Failed, S::Ours { .. }) => Put(Write::Fail),
        (Local::Failed, S::Pending { is_untouched: true }) => Put(Write::FailOffline),
        (Local::Failed, _) => Drop(None),

        (Local::GivenBack, S::Returned) => Done,
        (Local::GivenBack, S::Ours { .. }) => Put(Write::Release),
        (Local::GivenBack, S::Pending { is_untouched: true }) => Put(Write::Reschedule),
        (Local::GivenBack, _) => Drop(None),

        (Local::Requeued, S::Completed) => Refuse(Why::Completed),
        (Local::Requeued, ended) if ended.is_final() => Put(Write::Retry),
        (Local::Requeued, S::Absent | S::Tombstone) => Refuse(Why::Absent),
        (Local::Requeued, S::Another) => Drop(None),
        (Local::Requeued, _) => Refuse(Why::NotEnded),

        (Local::Cancelled, S::Pending { .. } | S::Returned | S::Other { .. }) => Put(Write::Cancel),
        (Local::Cancelled, S::Ours { .. }) => Put(Write::Stop),
        (Local::Cancelled, _) => Drop(None),
    }
}

fn why(remote: BucketState) -> Why {
    match remote {
        BucketState::Absent | BucketState::Tombstone => Why::Absent,
        BucketState::Completed => Why::CompletedByOthers,
        BucketState::Failed => Why::FailedByOthers,
        BucketState::Cancelled => Why::Cancelled,
        BucketState::Expired => Why::Expired,
        BucketState::Another => Why::Another,
        BucketState::Known
        | BucketState::Returned
        | BucketState::Pending { .. }
        | BucketState::Ours { .. }
        | BucketState::Other { .. } => Why::TakenByOthers,
    }
}

impl Local {
    /// Returns the row of an operation. A claim is running if its handler has started, otherwise tentative.
    #[must_use]
    pub fn of(deed: &OpKind, has_started: bool) -> Self {
        match deed {
            OpKind::Submit { .. } => Self::New,
            OpKind::Claim { .. } if has_started => Self::Running,
            OpKind::Claim { .. } => Self::Tentative,
            OpKind::Complete { .. } => Self::Completed,
            OpKind::Fail { .. } => Self::Failed,
            OpKind::Release { .. } | OpKind::Stop { .. } => Self::GivenBack,
            OpKind::Requeue => Self::Requeued,
            OpKind::Cancel { .. } => Self::Cancelled,
        }
    }
}

#[cfg(test)]
mod tests;
