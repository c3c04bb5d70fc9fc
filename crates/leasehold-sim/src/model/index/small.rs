//! A task reduced to the fields that the index depends on, changed by the real [`step()`].

use leasehold_core::step::{Order, Step};
use leasehold_core::task::Claim;
use leasehold_core::{
    Artifacts, Entry, Event, HexName, IndexLocation, LeaseId, Name, NewTask, Now, ShardLen, State,
    StepContext, StoreTime, Task, TaskId, step,
};
use serde_json::Value;
use std::cell::RefCell;
use std::collections::HashMap;
use std::time::Duration;

/// A reduced task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Small {
    pub(super) rev: u8,
    pub(super) kind: TaskState,
    /// Revision of the claim, which identifies it; zero for none.
    pub(super) claim: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum TaskState {
    Waiting(Due),
    Running { cancel: bool },
    Completed,
    Failed,
    Cancelled,
    Tombstone,
    Purged,
}

/// Start time of a pending task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::model) enum Due {
    Soon,
    Later,
}

/// An index entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::model) struct Pointer {
    pub(super) is_lease: bool,
    pub(super) due: Due,
    pub(super) rev: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Happens {
    Claim,
    Renew(u8),
    Complete(u8),
    Fail(u8),
    FailForGood(u8),
    TimeOut,
    Cancel,
    Retry,
    Reschedule(Due),
    Purge,
    Fence,
}

/// Result of [`step()`]: the task, and the entries to write before it, to write after it, and to remove.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Moved {
    pub(super) task: Small,
    pub(super) before: Option<Pointer>,
    pub(super) after: Option<Pointer>,
    pub(super) remove: Option<Pointer>,
}

impl Small {
    pub(super) const FIRST: Small = Small { rev: 1, kind: TaskState::Waiting(Due::Soon), claim: 0 };
    pub(super) const TOMBSTONE: Small = Small { rev: 1, kind: TaskState::Tombstone, claim: 0 };

    pub(super) fn is_final(self) -> bool {
        !matches!(self.kind, TaskState::Waiting(_) | TaskState::Running { .. })
    }

    /// Returns the entry that the record requires.
    pub(super) fn called_for(self) -> Option<Pointer> {
        thread_local!(static KNOWN: RefCell<HashMap<Small, Option<Pointer>>> = RefCell::default());
        KNOWN.with_borrow_mut(|known| {
            *known.entry(self).or_insert_with(|| task(self).entry().as_ref().map(pointer))
        })
    }

    /// Applies an event. Results of the real function are cached.
    pub(super) fn moved(self, event: Happens) -> Option<Moved> {
        thread_local!(static KNOWN: RefCell<HashMap<(Small, Happens), Option<Moved>>> = RefCell::default());
        KNOWN.with_borrow_mut(|known| *known.entry((self, event)).or_insert_with(|| ask(self, event)))
    }
}

const HOUR: Duration = Duration::from_hours(1);

/// Start of the model's time: a full hour, which keeps index buckets simple.
fn start() -> StoreTime {
    StoreTime::from_millis(1_699_999_200_000)
}

fn ask(from: Small, event: Happens) -> Option<Moved> {
    let now = match event {
        // Late enough for any scheduled task.
        Happens::Claim => start().plus(2 * HOUR),
        Happens::TimeOut => start().plus(Duration::from_secs(61)),
        _ => start(),
    };
    let Step { task, order } = step(&task(from), &real(from, event), &act(now)).ok()?;
    let (before, after, remove) = match order {
        Order::TaskOnly => (None, None, None),
        Order::TaskFirst { write, remove } => (None, write, remove),
        Order::EntryFirst { write, remove } => (Some(write), None, remove),
    };
    let [before, after, remove] = [before, after, remove].map(|entry| entry.as_ref().map(pointer));
    Some(Moved { task: small(from, &task), before, after, remove })
}

fn real(from: Small, event: Happens) -> Event {
    let lease = Duration::from_mins(1);
    match event {
        Happens::Claim => Event::Claim { worker: worker(), lease_id: lease_id(from.rev + 1), lease },
        Happens::Renew(claim) => Event::Renew { lease_id: lease_id(claim), lease, progress: None },
        Happens::Complete(claim) => {
            Event::Complete { lease_id: lease_id(claim), output: Value::Null, results: Artifacts::new() }
        }
        Happens::Fail(claim) => {
            Event::Fail { lease_id: lease_id(claim), error: "oh".into(), retryable: true, after: None }
        }
        Happens::FailForGood(claim) => {
            Event::Fail { lease_id: lease_id(claim), error: "oh".into(), retryable: false, after: None }
        }
        Happens::TimeOut => Event::TimeOut,
        Happens::Cancel => Event::Cancel,
        Happens::Retry => Event::Retry,
        Happens::Reschedule(due) => Event::Reschedule { at: at(due) },
        Happens::Purge => Event::Purge,
        Happens::Fence => Event::Fence,
    }
}

fn act(now: StoreTime) -> StepContext {
    StepContext { by: "model".into(), now: Now::exactly(now), write_id: HexName::from_random(0), chance: 0 }
}

fn at(due: Due) -> StoreTime {
    if due == Due::Soon { start() } else { start().plus(HOUR) }
}

fn worker() -> leasehold_core::WorkerId {
    Name::checked("worker id", "w").expect("a letter is a valid name")
}

fn lease_id(claim: u8) -> LeaseId {
    HexName::from_random(claim.into())
}

fn task(small: Small) -> Task {
    let (id, finished_at) = (TaskId::from_random(7), start());
    let shard = ShardLen::DEFAULT.shard_of(&id);
    let order = NewTask::new("model", Value::Null).expect("the task type is valid");
    let state = match small.kind {
        TaskState::Tombstone => {
            return Task { rev: small.rev.into(), ..Task::tombstone(id, shard, "model", &act(start())) };
        }
        TaskState::Waiting(due) => State::Pending { available_at: at(due) },
        TaskState::Running { cancel } => {
            let expires_at = start().plus(Duration::from_mins(1));
            State::Running(Claim { by: worker(), expires_at, renewed_at: None, cancel_requested: cancel })
        }
        TaskState::Completed => {
            State::Completed { output: Value::Null, results: Artifacts::new(), finished_at }
        }
        TaskState::Failed => State::Failed { finished_at },
        TaskState::Cancelled => State::Cancelled { finished_at },
        TaskState::Purged => State::Purged { finished_at },
    };
    Task {
        rev: small.rev.into(),
        state,
        attempt: 1,
        lease_id: (small.claim > 0).then(|| lease_id(small.claim)),
        ..order.submitted(id, shard, &act(start()))
    }
}

fn small(from: Small, task: &Task) -> Small {
    let kind = match &task.state {
        State::Pending { available_at } if available_at.since(start()) >= HOUR => {
            TaskState::Waiting(Due::Later)
        }
        State::Pending { .. } => TaskState::Waiting(Due::Soon),
        State::Running(claim) => TaskState::Running { cancel: claim.cancel_requested },
        State::Completed { .. } => TaskState::Completed,
        State::Failed { .. } => TaskState::Failed,
        // A fence does not change a tombstone.
        State::Cancelled { .. } if from.kind == TaskState::Tombstone => TaskState::Tombstone,
        State::Cancelled { .. } | State::Expired { .. } => TaskState::Cancelled,
        State::Purged { .. } => TaskState::Purged,
    };
    let claim = task.lease_id.as_ref().map_or(0, |id| u8::from_str_radix(id.as_str(), 16).unwrap_or(0));
    Small { rev: u8::try_from(task.rev).expect("the model is small"), kind, claim }
}

fn pointer(entry: &Entry) -> Pointer {
    let is_lease = matches!(entry.place, IndexLocation::Lease(_));
    let is_later = !is_lease && entry.bucket.start().since(start()) >= HOUR;
    let due = if is_later { Due::Later } else { Due::Soon };
    Pointer { is_lease, due, rev: u8::try_from(entry.rev).expect("the model is small") }
}
