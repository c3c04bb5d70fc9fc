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

use super::op::{Op, OpKind};
use crate::error::{Error, Result};
use crate::ids::{LeaseId, WriteId, parse_name};
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
        parse_name("consistency", text, &[("strict", Self::Strict), ("relaxed", Self::Relaxed)])
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
pub enum NodeState {
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
    Released,
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

impl KnownState {
    /// The state on which an operation of the node is based.
    #[must_use]
    pub fn of(op: &Op) -> Self {
        let (from, write_id) = match &op.kind {
            OpKind::Claim { from, .. } => (from.clone(), None),
            OpKind::Submit { write_id, .. } => (None, Some(write_id.clone())),
            _ => (None, None),
        };
        let lease_id = op.kind.lease_id().cloned();
        Self { generation: op.generation, epoch: op.epoch, lease_id, from, write_id }
    }
}

/// State of a task in the bucket: a column of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BucketState {
    /// No such task, or past its retention.
    Absent,
    /// Tombstone of an abandoned submit.
    Tombstone,
    /// The node's submit or completion was already applied: only the answer was lost.
    AlreadyApplied,
    /// Pending, last released by the node's own claim.
    ReleasedByNode,
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
    OtherGeneration,
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
            return Self::AlreadyApplied;
        }
        if task.status() == Status::Purged {
            return Self::Absent;
        }
        if task.generation != known.generation {
            return Self::OtherGeneration;
        }
        let is_of = |lease_id: &Option<LeaseId>| lease_id.is_some() && task.lease_id == *lease_id;
        match &task.state {
            State::Running(claim) if is_of(&known.lease_id) => {
                Self::Ours { is_live: now.is_before(claim.expires_at) }
            }
            // The previous claim, of a crashed process of this node: it can be replaced at any time.
            State::Running(_) if is_of(&known.from) => Self::Other { is_live: false },
            State::Running(claim) => Self::Other { is_live: !now.is_past(claim.expires_at) },
            State::Pending { .. } if is_of(&known.lease_id) => Self::ReleasedByNode,
            State::Completed { .. } if is_of(&known.lease_id) => Self::AlreadyApplied,
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
    Continue,
    /// Write this, if the record is unchanged.
    Write(BucketWrite),
    /// Remove the task from the node, and report the reason if there is one.
    Drop(Option<SyncRefusal>),
    /// Stop the handler and write nothing to the bucket. A result that it still returns goes to `conflicts/`.
    Stop(SyncRefusal),
    /// Move the result of this node to `conflicts/`.
    Conflict(SyncRefusal),
    /// Reject the operation and report the reason.
    Refuse(SyncRefusal),
}

/// Conditional put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BucketWrite {
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
    /// Releases the claim of this node; it does not count as an attempt.
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

impl BucketWrite {
    /// True if it makes or keeps a claim of this node.
    #[must_use]
    pub fn claims(self) -> bool {
        matches!(self, Self::Claim | Self::TakeOver | Self::Renew)
    }
}

/// Reason why an operation of a node is not applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SyncRefusal {
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
    OtherGeneration,
    /// It has not ended, and cannot be retried.
    NotEnded,
    /// It is completed, and cannot be retried.
    Completed,
}

impl SyncRefusal {
    /// True if the task ran, or runs, on another worker as well.
    #[must_use]
    pub fn is_duplicate_run(self) -> bool {
        matches!(self, Self::TakenByOthers | Self::CompletedByOthers | Self::FailedByOthers)
    }
}

impl fmt::Display for SyncRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            SyncRefusal::Duplicate => "a task with this id already exists",
            SyncRefusal::TakenByOthers => "another worker holds it",
            SyncRefusal::CompletedByOthers => "another worker has completed it",
            SyncRefusal::FailedByOthers => "it failed permanently on another worker",
            SyncRefusal::Cancelled => "it was cancelled",
            SyncRefusal::Expired => "it has expired",
            SyncRefusal::Absent => "the bucket does not have it",
            SyncRefusal::OtherGeneration => "it is in another generation",
            SyncRefusal::NotEnded => "it has not ended yet",
            SyncRefusal::Completed => "it is completed",
        })
    }
}

/// Decides, row by row. With `finish_after_takeover`, a handler may run to its end although another worker has taken its task.
#[must_use]
#[expect(clippy::match_same_arms, reason = "a row of the table stays together")]
pub fn reconcile(
    local: NodeState,
    remote: BucketState,
    consistency: Consistency,
    finish_after_takeover: bool,
) -> SyncAction {
    use BucketState as S;
    use SyncAction::{Conflict, Continue, Done, Drop, Refuse, Stop, Write as Put};
    match (local, remote) {
        (NodeState::Running, S::AlreadyApplied) => Stop(SyncRefusal::TakenByOthers),
        (NodeState::CheckedOut | NodeState::Tentative, S::AlreadyApplied) => Drop(None),
        (_, S::AlreadyApplied) => Done,

        (NodeState::New, S::Absent) => Put(BucketWrite::Create),
        // The tombstone is of a submit whose second put came too late. An accepted task is not abandoned.
        (NodeState::New, S::Tombstone) => Put(BucketWrite::Create),
        (NodeState::New, _) => Drop(Some(SyncRefusal::Duplicate)),

        (NodeState::CheckedOut, S::Ours { is_live: true }) => Continue,
        (NodeState::CheckedOut, S::Ours { is_live: false }) => Put(BucketWrite::TakeOver),
        (NodeState::CheckedOut, S::Pending { .. } | S::ReleasedByNode) => Put(BucketWrite::Claim),
        (NodeState::CheckedOut, _) => Drop(None),

        // It was claimed, no process waited for it, and it was released: a claim is not made twice.
        (NodeState::Tentative | NodeState::Running, S::ReleasedByNode) => Drop(None),

        (NodeState::Tentative, S::Pending { .. }) => Put(BucketWrite::Claim),
        (NodeState::Tentative, S::Ours { is_live: true }) => Continue,
        (NodeState::Tentative, S::Ours { is_live: false }) => Put(BucketWrite::Renew),
        (NodeState::Tentative, S::Other { is_live: false }) => Put(BucketWrite::TakeOver),
        (NodeState::Tentative, S::Absent | S::Tombstone) => Drop(Some(SyncRefusal::Absent)),
        (NodeState::Tentative, _) => Drop(None),

        (NodeState::Running, S::Pending { .. }) => Put(BucketWrite::Claim),
        (NodeState::Running, S::Ours { .. }) => Put(BucketWrite::Renew),
        (NodeState::Running, S::Other { is_live: false }) => Put(BucketWrite::TakeOver),
        (NodeState::Running, S::Other { is_live: true }) if finish_after_takeover => Continue,
        (NodeState::Running, other) => Stop(refusal(other)),

        (NodeState::Completed, S::Ours { .. }) => Put(BucketWrite::Complete),
        (NodeState::Completed, S::Pending { .. } | S::ReleasedByNode) => Put(BucketWrite::CompleteOffline),
        (NodeState::Completed, S::Other { .. } | S::Failed) if consistency == Consistency::Relaxed => {
            Put(BucketWrite::CompleteOffline)
        }
        (NodeState::Completed, other) => Conflict(refusal(other)),

        (NodeState::Failed, S::ReleasedByNode) => Done,
        (NodeState::Failed, S::Ours { .. }) => Put(BucketWrite::Fail),
        (NodeState::Failed, S::Pending { is_untouched: true }) => Put(BucketWrite::FailOffline),
        (NodeState::Failed, _) => Drop(None),

        (NodeState::Released, S::ReleasedByNode) => Done,
        (NodeState::Released, S::Ours { .. }) => Put(BucketWrite::Release),
        (NodeState::Released, S::Pending { is_untouched: true }) => Put(BucketWrite::Reschedule),
        (NodeState::Released, _) => Drop(None),

        (NodeState::Requeued, S::Completed) => Refuse(SyncRefusal::Completed),
        (NodeState::Requeued, ended) if ended.is_final() => Put(BucketWrite::Retry),
        (NodeState::Requeued, S::Absent | S::Tombstone) => Refuse(SyncRefusal::Absent),
        (NodeState::Requeued, S::OtherGeneration) => Drop(None),
        (NodeState::Requeued, _) => Refuse(SyncRefusal::NotEnded),

        (NodeState::Cancelled, S::Pending { .. } | S::ReleasedByNode | S::Other { .. }) => {
            Put(BucketWrite::Cancel)
        }
        (NodeState::Cancelled, S::Ours { .. }) => Put(BucketWrite::Stop),
        (NodeState::Cancelled, _) => Drop(None),
    }
}

fn refusal(remote: BucketState) -> SyncRefusal {
    match remote {
        BucketState::Absent | BucketState::Tombstone => SyncRefusal::Absent,
        BucketState::Completed => SyncRefusal::CompletedByOthers,
        BucketState::Failed => SyncRefusal::FailedByOthers,
        BucketState::Cancelled => SyncRefusal::Cancelled,
        BucketState::Expired => SyncRefusal::Expired,
        BucketState::OtherGeneration => SyncRefusal::OtherGeneration,
        BucketState::AlreadyApplied
        | BucketState::ReleasedByNode
        | BucketState::Pending { .. }
        | BucketState::Ours { .. }
        | BucketState::Other { .. } => SyncRefusal::TakenByOthers,
    }
}

impl NodeState {
    /// Returns the row of an operation. A claim is running if its handler has started, otherwise tentative.
    #[must_use]
    pub fn of(kind: &OpKind, has_started: bool) -> Self {
        match kind {
            OpKind::Submit { .. } => Self::New,
            OpKind::Claim { .. } if has_started => Self::Running,
            OpKind::Claim { .. } => Self::Tentative,
            OpKind::Complete { .. } => Self::Completed,
            OpKind::Fail { .. } => Self::Failed,
            OpKind::Release { .. } | OpKind::Stop { .. } => Self::Released,
            OpKind::Requeue => Self::Requeued,
            OpKind::Cancel { .. } => Self::Cancelled,
        }
    }
}

#[cfg(test)]
mod tests;
