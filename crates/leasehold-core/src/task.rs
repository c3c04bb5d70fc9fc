//! A task: what it is, in which state, and how it came there.
//!
//! States are told by who moves the task out of them:
//!
//! ```text
//!               claim (a worker)                complete, fail for good (its worker)
//!   pending ───────────────────────▶ running ───────────────────────────────▶ completed, failed
//!    │ ▲ ▲                             │ │
//!    │ │ └── fail, snooze, release ────┘ └── settled after a cancel ─────────▶ cancelled
//!    │ │     (its worker), time out
//!    │ │     (anyone, once the lease
//!    │ │     has run out beyond doubt)
//!    │ └──── retry (a person) ◀────────────── failed, cancelled, expired
//!    └────── cancel (a person), expire (anyone, once past expires_at) ───────▶ cancelled, expired
//!
//!   any final state ── purge (retention) ──▶ purged: nothing leaves that; the object is deleted next
//! ```

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fmt;

use crate::error::{Error, Result};
use crate::ids::{Artifacts, LeaseId, TaskId, TaskType, WorkerId, WriteId};
use crate::keys::{Entry, Where};
use crate::limits::{HISTORY_FIRST, HISTORY_MAX};
use crate::retry::RetryPolicy;
use crate::shard::{Shard, ShardLen};
use crate::time::{Minute, StoreTime};

/// A task, whole: its state and its history live in one object, for life.
#[derive(Debug, Clone, PartialEq)]
pub struct Task {
    /// Its name.
    pub id: TaskId,
    /// Which handler runs it.
    pub task_type: TaskType,
    /// The shard it lives in.
    pub shard: Shard,
    /// Grows by one with every write.
    pub rev: u64,
    /// The name of the write that made this revision.
    pub write_id: WriteId,
    /// What the handler gets.
    pub input: Value,
    /// Files that are brought to the worker before the handler runs.
    pub artifacts: Artifacts,
    /// Where it stands.
    pub state: State,
    /// How many times it was claimed, without those that were handed back unused.
    pub attempt: u32,
    /// How many attempts there are.
    pub max_attempts: u32,
    /// How long to wait between them.
    pub retry_policy: RetryPolicy,
    /// How long one run of the handler may take.
    pub timeout_secs: Option<u64>,
    /// Which of the tasks of one minute goes first.
    pub priority: Priority,
    /// When it was submitted.
    pub created_at: StoreTime,
    /// When this revision was made.
    pub updated_at: StoreTime,
    /// After this moment it is not worth starting.
    pub expires_at: Option<StoreTime>,
    /// The claim that holds it, or the one that settled it last; none after a time-out.
    pub lease_id: Option<LeaseId>,
    /// Grows by one with every claim: the fencing token.
    pub epoch: u64,
    /// Grows by one with every retry by a person: a task is completed at most once in each.
    pub generation: u64,
    /// What the last attempt that failed said.
    pub error: Option<String>,
    /// What the handler last said about how far it is.
    pub progress: Option<Value>,
    /// For finding it.
    pub tags: BTreeMap<String, String>,
    /// The key under which it was submitted once.
    pub idempotency_key: Option<String>,
    /// Every change of state.
    pub history: History,
    /// Fields of a newer format: kept as they are.
    pub unknown: Map<String, Value>,
}

/// Where a task stands, with what belongs to that state alone.
#[derive(Debug, Clone, PartialEq)]
pub enum State {
    /// Waits for a worker, from this moment on: scheduled is pending in the future.
    Pending {
        /// Not to be started before.
        available_at: StoreTime,
    },
    /// Held by a worker.
    Running(Claim),
    /// Done.
    Completed {
        /// What the handler gave.
        output: Value,
        /// Files that it gave.
        results: Artifacts,
        /// When.
        finished_at: StoreTime,
    },
    /// All attempts are used up, or one has failed for good: waits for a person.
    Failed {
        /// When.
        finished_at: StoreTime,
    },
    /// Called off.
    Cancelled {
        /// When.
        finished_at: StoreTime,
    },
    /// Nobody started it in time.
    Expired {
        /// When.
        finished_at: StoreTime,
    },
    /// Past its retention: nothing leaves this state, and the object is deleted next.
    Purged {
        /// When it was marked.
        finished_at: StoreTime,
    },
}

/// A worker's hold on a task.
#[derive(Debug, Clone, PartialEq)]
pub struct Claim {
    /// Whose it is.
    pub by: WorkerId,
    /// Until when, by the store's time.
    pub expires_at: StoreTime,
    /// When it was last renewed.
    pub renewed_at: Option<StoreTime>,
    /// Someone has asked for the task to be called off.
    pub cancel_requested: bool,
}

/// The name of a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Waits for a worker.
    Pending,
    /// Held by a worker.
    Running,
    /// Done.
    Completed,
    /// Waits for a person.
    Failed,
    /// Called off.
    Cancelled,
    /// Nobody started it in time.
    Expired,
    /// About to be deleted.
    Purged,
}

impl Status {
    /// Every status.
    pub const ALL: [Status; 7] = [
        Status::Pending,
        Status::Running,
        Status::Completed,
        Status::Failed,
        Status::Cancelled,
        Status::Expired,
        Status::Purged,
    ];

    /// The word for it.
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

    /// Reads the word for it.
    pub fn parse(text: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|status| status.name() == text).ok_or_else(|| {
            let all = Self::ALL.map(Status::name).join(", ");
            Error::invalid(format!("`{text}` is not a status; there are {all}"))
        })
    }

    /// The exit code of a command that waits for a task and finds it in this status. Apart from 0 and 75 they differ from
    /// the exit codes of all [kinds of errors](crate::Kind): a script can tell a failed task from a failed command.
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

    /// Whether a task stays there unless a person does something.
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
    /// The name of this state.
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

    /// When it ended, if it has.
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
    /// The name of its state.
    #[must_use]
    pub fn status(&self) -> Status {
        self.state.status()
    }

    /// What the handler gave, if it is completed.
    #[must_use]
    pub fn output(&self) -> Option<&Value> {
        match &self.state {
            State::Completed { output, .. } => Some(output),
            _ => None,
        }
    }

    /// Files that the handler gave, if it is completed.
    #[must_use]
    pub fn results(&self) -> Option<&Artifacts> {
        match &self.state {
            State::Completed { results, .. } => Some(results),
            _ => None,
        }
    }

    /// The shard of a task in a queue whose shards have so many digits.
    pub fn shard_from_id(id: &TaskId, digits: u8) -> Result<Shard> {
        Ok(ShardLen::new(digits)?.shard_of(id))
    }

    /// The index entry that this record calls for: the one by which the task is found when it is due (promise P5).
    /// A task that is not final always has one; a final task has none.
    #[must_use]
    pub fn entry(&self) -> Option<Entry> {
        let shard = self.shard.clone();
        let (place, due, priority) = match &self.state {
            State::Pending { available_at } => {
                let due = self.expires_at.map_or(*available_at, |expiry| expiry.min(*available_at));
                (Where::Ready(shard), due, self.priority)
            }
            State::Running(claim) => (Where::Lease(shard), claim.expires_at, Priority::default()),
            _ => return None,
        };
        Some(Entry { place, bucket: Minute::of(due), priority, id: self.id, rev: self.rev })
    }

    /// Whether this is no task but the mark that a submit was given up and can never succeed any more.
    #[must_use]
    pub fn is_tombstone(&self) -> bool {
        self.history.events().next().is_some_and(|event| event.event == ABANDONED)
    }

    /// Whether this write is among those that led to this record.
    #[must_use]
    pub fn has_write(&self, write_id: &WriteId) -> bool {
        self.write_id == *write_id || self.history.events().any(|event| event.write_id == *write_id)
    }
}

/// The first event of a task that was submitted.
pub const CREATED: &str = "submit";
/// The first and only event of a tombstone.
pub const ABANDONED: &str = "abandon";

/// One change of state (promise P7).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Change {
    /// When, by the store's time.
    pub at: StoreTime,
    /// What happened.
    pub event: String,
    /// From which status; none at the beginning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Status>,
    /// To which.
    pub to: Status,
    /// By whom.
    pub by: String,
    /// The attempt it belongs to.
    pub attempt: u32,
    /// The epoch it belongs to.
    pub epoch: u64,
    /// Why, where there is something to say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// The write that recorded it: how a writer recognises its own after a lost answer.
    pub write_id: WriteId,
    /// Fields of a newer format: kept as they are.
    #[serde(flatten)]
    pub unknown: Map<String, Value>,
}

/// The changes of a task, the first and the newest of them when there are too many.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct History {
    pub(crate) changes: Vec<Change>,
    pub(crate) folded: u64,
}

impl History {
    /// The changes that are kept, oldest first.
    #[must_use]
    pub fn events(&self) -> impl DoubleEndedIterator<Item = &Change> {
        self.changes.iter()
    }

    /// How many changes between the first and the newest are not kept.
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

/// Which of the tasks of one minute goes first: 0 to 9, 9 first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub struct Priority(u8);

impl Default for Priority {
    /// In the middle, with room on both sides.
    fn default() -> Self {
        Self(5)
    }
}

impl Priority {
    /// Checks a priority.
    pub fn new(priority: u8) -> Result<Self> {
        if priority <= 9 {
            Ok(Self(priority))
        } else {
            Err(Error::invalid(format!("priority {priority} is not between 0 and 9")))
        }
    }

    /// Nine minus it: small for what goes first, as keys sort.
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
