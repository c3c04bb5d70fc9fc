//! What happens for every pair of what a node says about a task and what the bucket says.
//!
//! The node was alone for a while, and so were the others. One table decides, and one put on condition makes it so: if the
//! record has changed meanwhile, it is read again and the table is asked again. `docs/protocol/outpost.md` shows it whole.
//!
//! What it promises: a task is completed once in each generation, and a result that is of no use to the bucket any more
//! is kept on the node, never thrown away.

use serde::{Deserialize, Serialize};
use std::fmt;

use super::op::Deed;
use crate::error::{Error, Result};
use crate::ids::{LeaseId, WriteId};
use crate::task::{State, Status, Task};
use crate::time::Now;

/// Which claims count while the bucket is out of reach.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Consistency {
    /// A handler starts only what is claimed in the bucket; offline, only what was checked out before.
    #[default]
    Strict,
    /// A handler starts what is there; the bucket hears of it later.
    Relaxed,
}

impl std::str::FromStr for Consistency {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "strict" => Ok(Self::Strict),
            "relaxed" => Ok(Self::Relaxed),
            _ => Err(Error::invalid(format!("consistency `{text}` is not known; there are strict, relaxed"))),
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

/// How far a node has come with a task on its own: a row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Local {
    /// Submitted here.
    New,
    /// Claimed in the bucket beforehand; nobody has begun with it.
    CheckedOut,
    /// Taken by a process here, which waits for the bucket's word.
    Tentative,
    /// A handler runs.
    Running,
    /// A handler has completed it.
    Completed,
    /// An attempt has failed.
    Failed,
    /// It was given back, for now or for later.
    GivenBack,
    /// Somebody here wants it to run again.
    Requeued,
    /// Somebody here has called it off.
    Cancelled,
}

/// What a node knew when it went on alone.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Known {
    /// The generation of the task.
    pub generation: u64,
    /// The epoch of the claim that was made here.
    pub epoch: u64,
    /// That claim.
    pub lease_id: Option<LeaseId>,
    /// The claim of this node that it replaced.
    pub from: Option<LeaseId>,
    /// The write by which the task was submitted here.
    pub write_id: Option<WriteId>,
}

/// What the bucket says: a column of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// There is no such task, or it is past its retention.
    Absent,
    /// Its submit was given up for good.
    Tombstone,
    /// It was submitted, or completed, as the node says: the answer was lost.
    Known,
    /// It waits, and the node's own claim was the last to give it back.
    Returned,
    /// It waits; `is_untouched` if nobody has claimed it since the node last heard of it.
    Pending {
        /// See above.
        is_untouched: bool,
    },
    /// It is claimed for this node.
    Ours {
        /// Whether that claim has surely not run out.
        is_live: bool,
    },
    /// Others have it.
    Other {
        /// False if their claim has run out beyond doubt.
        is_live: bool,
    },
    /// It is completed.
    Completed,
    /// It has failed for good.
    Failed,
    /// It was called off.
    Cancelled,
    /// It was not started in time.
    Expired,
    /// It is in another generation: somebody has retried it since, or the bucket has refused a retry of this node.
    Another,
}

impl Standing {
    /// How a task stands in the eyes of a node.
    #[must_use]
    pub fn of(task: Option<&Task>, known: &Known, now: Now) -> Self {
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
            // The claim before it, of a process of this node that has died: it can be replaced at any time.
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

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// The bucket knows; nothing is left to be done.
    Done,
    /// All is well: go on.
    GoOn,
    /// Write this, if the record is still as it was read.
    Write(Write),
    /// The node forgets it; what it says is reported if there is something to say.
    Drop(Option<Why>),
    /// The handler is stopped, and nothing of it is written to the bucket. What it still gives goes to `conflicts/`.
    Stop(Why),
    /// What was finished here goes to `conflicts/`.
    Conflict(Why),
    /// It cannot be done, which is reported.
    Refuse(Why),
}

/// A put on condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Write {
    /// The task, as it was submitted here, where nothing is or only the mark that its submit was given up.
    Create,
    /// A claim with a new epoch.
    Claim,
    /// A claim with a new epoch in place of one that has run out.
    TakeOver,
    /// The claim of this node lasts on.
    Renew,
    /// It is completed by the claim of this node.
    Complete,
    /// It is completed by a claim that the bucket has not seen, with epoch + 1.
    CompleteOffline,
    /// The attempt counts, under the claim of this node.
    Fail,
    /// The attempt counts, together with a claim that the bucket has not seen.
    FailOffline,
    /// The claim of this node ends unused.
    Release,
    /// It is planned for later.
    Reschedule,
    /// It runs again, in another generation.
    Retry,
    /// It is called off.
    Cancel,
    /// It is called off, and with it the claim of this node under which nobody runs.
    Stop,
}

impl Write {
    /// Whether it makes or keeps a claim of this node.
    #[must_use]
    pub fn claims(self) -> bool {
        matches!(self, Self::Claim | Self::TakeOver | Self::Renew)
    }
}

/// Why a node's word does not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// A task of this id was there.
    Duplicate,
    /// Others have it.
    TakenByOthers,
    /// Others have completed it: it was run twice.
    CompletedByOthers,
    /// Others have failed with it for good.
    FailedByOthers,
    /// It was called off.
    Cancelled,
    /// It was not started in time.
    Expired,
    /// There is no such task.
    Absent,
    /// It is in another generation.
    Another,
    /// It has not ended, so it cannot be retried.
    NotEnded,
    /// It was completed: that is not retried.
    Completed,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Why::Duplicate => "a task with this id was there already",
            Why::TakenByOthers => "others have it",
            Why::CompletedByOthers => "others have completed it",
            Why::FailedByOthers => "others have failed with it for good",
            Why::Cancelled => "it was called off",
            Why::Expired => "it has expired",
            Why::Absent => "the bucket does not have it",
            Why::Another => "it is in another generation",
            Why::NotEnded => "it has not ended yet",
            Why::Completed => "it is completed",
        })
    }
}

/// Decides, row by row. `finishes` is the setting by which a handler whose task others have taken may come to its end.
#[must_use]
#[expect(clippy::match_same_arms, reason = "a row of the table stays together")]
pub fn reconcile(local: Local, remote: Standing, consistency: Consistency, finishes: bool) -> Action {
    use Action::{Conflict, Done, Drop, GoOn, Refuse, Stop, Write as Put};
    use Standing as S;
    match (local, remote) {
        (Local::Running, S::Known) => Stop(Why::TakenByOthers),
        (Local::CheckedOut | Local::Tentative, S::Known) => Drop(None),
        (_, S::Known) => Done,

        (Local::New, S::Absent) => Put(Write::Create),
        // The mark is that of a submit whose second put came too late: what a node has accepted is not given up.
        (Local::New, S::Tombstone) => Put(Write::Create),
        (Local::New, _) => Drop(Some(Why::Duplicate)),

        (Local::CheckedOut, S::Ours { is_live: true }) => GoOn,
        (Local::CheckedOut, S::Ours { is_live: false }) => Put(Write::TakeOver),
        (Local::CheckedOut, S::Pending { .. } | S::Returned) => Put(Write::Claim),
        (Local::CheckedOut, _) => Drop(None),

        // It was claimed, nobody waited for it any more, and it was given back: a claim is not made twice.
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

fn why(remote: Standing) -> Why {
    match remote {
        Standing::Absent | Standing::Tombstone => Why::Absent,
        Standing::Completed => Why::CompletedByOthers,
        Standing::Failed => Why::FailedByOthers,
        Standing::Cancelled => Why::Cancelled,
        Standing::Expired => Why::Expired,
        Standing::Another => Why::Another,
        Standing::Known
        | Standing::Returned
        | Standing::Pending { .. }
        | Standing::Ours { .. }
        | Standing::Other { .. } => Why::TakenByOthers,
    }
}

impl Local {
    /// The row of something that was done; a claim is one that runs or only waits for its confirmation.
    #[must_use]
    pub fn of(deed: &Deed, has_started: bool) -> Self {
        match deed {
            Deed::Submit { .. } => Self::New,
            Deed::Claim { .. } if has_started => Self::Running,
            Deed::Claim { .. } => Self::Tentative,
            Deed::Complete { .. } => Self::Completed,
            Deed::Fail { .. } => Self::Failed,
            Deed::Release { .. } | Deed::Stop { .. } => Self::GivenBack,
            Deed::Requeue => Self::Requeued,
            Deed::Cancel { .. } => Self::Cancelled,
        }
    }
}

#[cfg(test)]
mod tests;
