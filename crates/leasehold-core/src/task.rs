//! A task: its fields, its state and its history.
//!
//! States, with the actor that moves the task out of each:
//!
//! ```text
//!               claim (a worker)                complete, fail permanently (its worker)
//!   pending ───────────────────────▶ running ───────────────────────────────▶ completed, failed
//!    │ ▲ ▲                             │ │
//!    │ │ └── fail, snooze, release ────┘ └── settled after a cancel ─────────▶ cancelled
//!    │ │     (its worker), time out
//!    │ │     (any worker, or the broker,
//!    │ │     once the claim has surely
//!    │ │     expired)
//!    │ └──── retry (an operator) ◀────────────── failed, cancelled, expired
//!    └────── cancel (an operator), expire (any worker, or the broker, once past expires_at) ─▶ cancelled, expired
//!
//!   any final state ── purge (retention) ──▶ purged: no way out; the object is deleted next
//! ```
//!
//! A time-out is an attempt that failed: it ends the task as cancelled after a cancel, and as failed if it was the last.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fmt;

use crate::error::{Error, Result};
use crate::ids::{Artifacts, LeaseId, TaskId, TaskType, WorkerId, WriteId};
use crate::keys::{Entry, IndexLocation};
use crate::limits::{HISTORY_FIRST, HISTORY_MAX};
use crate::retry::RetryPolicy;
use crate::shard::{Shard, ShardLen};
use crate::time::{Minute, StoreTime};

/// A task. In the layout `objects` its state and history are in one object for its whole life.
#[derive(Debug, Clone, PartialEq)]
pub struct Task {
    /// Id of the task.
    pub id: TaskId,
    /// Type, which selects the handler.
    pub task_type: TaskType,
    /// Shard of the task.
    pub shard: Shard,
    /// Revision, incremented by every write.
    pub rev: u64,
    /// Id of the write that created this revision.
    pub write_id: WriteId,
    /// Input of the handler.
    pub input: Value,
    /// Files that are staged on the worker before the handler runs.
    pub artifacts: Artifacts,
    /// Current state.
    pub state: State,
    /// Number of claims, without those that ended with a release or a snooze.
    pub attempt: u32,
    /// Maximum number of attempts.
    pub max_attempts: u32,
    /// Backoff between attempts.
    pub retry_policy: RetryPolicy,
    /// Maximum duration of one run of the handler.
    pub timeout_secs: Option<u64>,
    /// Priority among tasks that are due in the same minute.
    pub priority: Priority,
    /// Time of submission.
    pub created_at: StoreTime,
    /// Time of this revision.
    pub updated_at: StoreTime,
    /// Time after which the task is no longer started.
    pub expires_at: Option<StoreTime>,
    /// Claim that holds the task, or the one that settled it last; none after a time-out.
    pub lease_id: Option<LeaseId>,
    /// Fencing token, incremented by every claim.
    pub epoch: u64,
    /// Incremented by every manual retry: a task is completed at most once per generation.
    pub generation: u64,
    /// Error of the last failed attempt.
    pub error: Option<String>,
    /// Last progress reported by the handler.
    pub progress: Option<Value>,
    /// Labels for finding the task.
    pub tags: BTreeMap<String, String>,
    /// Idempotency key of its submit.
    pub idempotency_key: Option<String>,
    /// Changes of state.
    pub history: History,
    /// Fields of a newer format, kept unchanged.
    pub unknown: Map<String, Value>,
}

/// State of a task, with the data that exists only in that state.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum State {
    /// Waiting for a worker. A scheduled task is pending with a time in the future.
    Pending {
        /// Earliest start.
        available_at: StoreTime,
    },
    /// Held by a worker.
    Running(Claim),
    /// Completed by its handler.
    Completed {
        /// Output of the handler.
        output: Value,
        /// Result files of the handler.
        #[serde(default, skip_serializing_if = "Artifacts::is_empty")]
        results: Artifacts,
        /// Time of this change.
        finished_at: StoreTime,
    },
    /// All attempts have failed, or one has failed permanently. Only a manual retry moves it on.
    Failed {
        /// Time of this change.
        finished_at: StoreTime,
    },
    /// Cancelled.
    Cancelled {
        /// Time of this change.
        finished_at: StoreTime,
    },
    /// Not started before its expiry.
    Expired {
        /// Time of this change.
        finished_at: StoreTime,
    },
    /// Past its retention. No event leaves this state; the object is deleted next.
    Purged {
        /// Time of the purge.
        finished_at: StoreTime,
    },
}

/// Claim of a worker on a task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// Worker that holds it.
    pub by: WorkerId,
    /// Expiry in store time.
    pub expires_at: StoreTime,
    /// Time of the last renewal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub renewed_at: Option<StoreTime>,
    /// True once cancellation was requested.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cancel_requested: bool,
}

/// State of a task, without its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Waiting for a worker.
    Pending,
    /// Held by a worker.
    Running,
    /// Completed by its handler.
    Completed,
    /// All attempts have failed, or one has failed permanently; only a manual retry moves it on.
    Failed,
    /// Cancelled.
    Cancelled,
    /// Not started before its expiry.
    Expired,
    /// About to be deleted.
    Purged,
}

impl Status {
    /// All statuses.
    pub const ALL: [Status; 7] = [
        Status::Pending,
        Status::Running,
        Status::Completed,
        Status::Failed,
        Status::Cancelled,
        Status::Expired,
        Status::Purged,
    ];

    /// Name in text and records.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Status::Pending => "pending",
            Status::Running => "running",
            Status::Completed => "completed",
            Status::Failed => "failed",
            Status::Cancelled => "cancelled",
            Status::Expired => "expired",
            Status::Purged => "purged",
        }
    }

    /// Parses the name of a status.
    pub fn parse(text: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|status| status.name() == text).ok_or_else(|| {
            let all = Self::ALL.map(Status::name).join(", ");
            Error::invalid(format!("`{text}` is not a status; use one of {all}"))
        })
    }

    /// Exit code of a command that waits for a task, by the task's status. Except for 0 and 75 these differ from the
    /// exit codes of all [error kinds](crate::Kind), so that a script can tell a failed task from a failed command.
    #[must_use]
    pub fn exit_code(self) -> u8 {
        match self {
            Status::Completed => 0,
            Status::Failed => 2,
            Status::Cancelled => 3,
            Status::Expired => 4,
            Status::Purged => 5,
            Status::Pending | Status::Running => crate::Kind::Unavailable.exit_code(),
        }
    }

    /// True if only a manual action moves the task out of this status.
    #[must_use]
    pub fn is_final(self) -> bool {
        !matches!(self, Status::Pending | Status::Running)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl State {
    /// Returns the status of this state.
    #[must_use]
    pub fn status(&self) -> Status {
        match self {
            State::Pending { .. } => Status::Pending,
            State::Running(_) => Status::Running,
            State::Completed { .. } => Status::Completed,
            State::Failed { .. } => Status::Failed,
            State::Cancelled { .. } => Status::Cancelled,
            State::Expired { .. } => Status::Expired,
            State::Purged { .. } => Status::Purged,
        }
    }

    /// Time at which the task ended, if it has.
    #[must_use]
    pub fn finished_at(&self) -> Option<StoreTime> {
        match self {
            State::Pending { .. } | State::Running(_) => None,
            State::Completed { finished_at, .. }
            | State::Failed { finished_at }
            | State::Cancelled { finished_at }
            | State::Expired { finished_at }
            | State::Purged { finished_at } => Some(*finished_at),
        }
    }
}

impl Task {
    /// Returns the status.
    #[must_use]
    pub fn status(&self) -> Status {
        self.state.status()
    }

    /// Output of the handler, if the task is completed.
    #[must_use]
    pub fn output(&self) -> Option<&Value> {
        match &self.state {
            State::Completed { output, .. } => Some(output),
            _ => None,
        }
    }

    /// Result files of the handler, if the task is completed.
    #[must_use]
    pub fn results(&self) -> Option<&Artifacts> {
        match &self.state {
            State::Completed { results, .. } => Some(results),
            _ => None,
        }
    }

    /// Returns the shard of a task in a queue whose shard names have `digits` digits.
    pub fn shard_from_id(id: &TaskId, digits: u8) -> Result<Shard> {
        Ok(ShardLen::new(digits)?.shard_of(id))
    }

    /// Returns the index entry that this record requires: the entry by which workers find the task when it is due (P5).
    /// A task that is not final always has one; a final task has none.
    #[must_use]
    pub fn entry(&self) -> Option<Entry> {
        let shard = self.shard.clone();
        let (location, due, priority) = match &self.state {
            State::Pending { available_at } => {
                let due = self.expires_at.map_or(*available_at, |expiry| expiry.min(*available_at));
                (IndexLocation::Ready(shard), due, self.priority)
            }
            State::Running(claim) => (IndexLocation::Lease(shard), claim.expires_at, Priority::default()),
            _ => return None,
        };
        Some(Entry { location, minute: Minute::of(due), priority, id: self.id, rev: self.rev })
    }

    /// True for a tombstone: not a task, but the record of a submit that was abandoned and can no longer succeed, or of a
    /// corrupt task that was quarantined.
    #[must_use]
    pub fn is_tombstone(&self) -> bool {
        self.tombstone_reason().is_some()
    }

    /// Reason for a tombstone, such as `submit abandoned` or `quarantined`; none for a task.
    #[must_use]
    pub fn tombstone_reason(&self) -> Option<&str> {
        let first = self.history.events().next().filter(|event| event.event == ABANDONED)?;
        Some(first.why.as_deref().unwrap_or("submit abandoned"))
    }

    /// True if it is running and its cancellation was requested.
    #[must_use]
    pub fn is_cancel_requested(&self) -> bool {
        matches!(&self.state, State::Running(claim) if claim.cancel_requested)
    }

    /// True if this write is among those that led to this record.
    #[must_use]
    pub fn has_write(&self, write_id: &WriteId) -> bool {
        self.write_id == *write_id || self.history.events().any(|event| event.write_id == *write_id)
    }
}

/// First event of a submitted task.
pub const CREATED: &str = "submit";
/// First and only event of a tombstone.
pub const ABANDONED: &str = "abandon";

/// One change of state (promise P7).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Change {
    /// Store time of the change.
    pub at: StoreTime,
    /// Name of the event.
    pub event: String,
    /// Status before; none for the first change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Status>,
    /// Status after.
    pub to: Status,
    /// Actor.
    pub by: String,
    /// Attempt to which the change belongs.
    pub attempt: u32,
    /// Epoch to which the change belongs.
    pub epoch: u64,
    /// Reason, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Write that recorded the change, by which a writer recognises its own after a lost answer.
    pub write_id: WriteId,
    /// Fields of a newer format, kept unchanged.
    #[serde(flatten)]
    pub unknown: Map<String, Value>,
}

/// Changes of a task. Beyond a limit only the first and the newest are kept.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct History {
    pub(crate) changes: Vec<Change>,
    pub(crate) folded: u64,
}

impl History {
    /// Returns the changes that are kept, oldest first.
    #[must_use]
    pub fn events(&self) -> impl DoubleEndedIterator<Item = &Change> {
        self.changes.iter()
    }

    /// Number of changes between the first and the newest that are not kept.
    #[must_use]
    pub fn folded(&self) -> u64 {
        self.folded
    }

    pub(crate) fn add(&mut self, change: Change) {
        self.changes.push(change);
        if self.changes.len() > HISTORY_MAX {
            self.changes.remove(HISTORY_FIRST);
            self.folded = self.folded.saturating_add(1);
        }
    }
}

/// Most informative line of an error or a reason: the last one of a traceback, otherwise the first one that is not
/// blank.
#[must_use]
pub fn summary_line(text: &str) -> &str {
    let mut lines = text.lines().map(str::trim_end).filter(|line| !line.trim_start().is_empty());
    let first = lines.next().unwrap_or_default();
    if first.starts_with("Traceback") { lines.next_back().unwrap_or(first) } else { first.trim_start() }
}

/// Priority among tasks that are due in the same minute: 0 to 9, 9 first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub struct Priority(u8);

impl Default for Priority {
    /// 5, with room on both sides.
    fn default() -> Self {
        Self(5)
    }
}

impl Priority {
    /// Validates a priority.
    pub fn new(priority: u8) -> Result<Self> {
        if priority <= 9 {
            Ok(Self(priority))
        } else {
            Err(Error::invalid(format!("priority must be 0 to 9, got {priority}")))
        }
    }

    /// Nine minus the priority, so that higher priorities sort first in keys.
    pub(crate) fn inverted(self) -> u8 {
        9 - self.0
    }

    pub(crate) fn from_inverted(digit: &str) -> Option<Self> {
        digit.parse::<u8>().ok().filter(|digit| *digit <= 9).map(|digit| Self(9 - digit))
    }
}

impl TryFrom<u8> for Priority {
    type Error = Error;

    fn try_from(priority: u8) -> Result<Self> {
        Self::new(priority)
    }
}

impl From<Priority> for u8 {
    fn from(priority: Priority) -> Self {
        priority.0
    }
}

#[cfg(test)]
mod tests {
    use super::summary_line;

    #[test]
    fn the_summary_of_a_traceback_is_its_last_line() {
        for (text, summary) in [
            ("no luck", "no luck"),
            ("\n  no luck\r\nat all\n", "no luck"),
            ("Traceback (most recent call last):\n  File x\nOSError: no\n\n", "OSError: no"),
            ("OSError: no\nTraceback:\n  File x", "OSError: no"),
            ("Traceback:", "Traceback:"),
            ("", ""),
        ] {
            assert_eq!(summary_line(text), summary, "{text:?}");
        }
    }
}
