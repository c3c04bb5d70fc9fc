//! A task reduced to the fields that the index depends on, changed by the real [`step()`].

use leasehold_core::step::{Step, WriteOrder};
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
pub(super) struct SmallTask {
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
pub(in crate::model) struct SmallEntry {
    pub(super) is_lease: bool,
    pub(super) due: Due,
    pub(super) rev: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum SmallEvent {
    Claim,
    Renew(u8),
    Complete(u8),
    Fail(u8),
    FailPermanently(u8),
    TimeOut,
    Cancel,
    Retry,
    Reschedule(Due),
    Purge,
    Fence,
}

/// Result of [`step()`]: the task, and the entries to write before it, to write after it, and to remove.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct SmallStep {
    pub(super) task: SmallTask,
    pub(super) before: Option<SmallEntry>,
    pub(super) after: Option<SmallEntry>,
    pub(super) remove: Option<SmallEntry>,
}

impl SmallTask {
    pub(super) const FIRST: SmallTask = SmallTask { rev: 1, kind: TaskState::Waiting(Due::Soon), claim: 0 };
    pub(super) const TOMBSTONE: SmallTask = SmallTask { rev: 1, kind: TaskState::Tombstone, claim: 0 };

    pub(super) fn is_final(self) -> bool {
        !matches!(self.kind, TaskState::Waiting(_) | TaskState::Running { .. })
    }

    /// Returns the entry that the record requires.
    pub(super) fn required_entry(self) -> Option<SmallEntry> {
        thread_local!(static KNOWN: RefCell<HashMap<SmallTask, Option<SmallEntry>>> = RefCell::default());
        KNOWN.with_borrow_mut(|known| {
            *known.entry(self).or_insert_with(|| task(self).entry().as_ref().map(small_entry))
        })
    }

    /// Applies an event. Results of the real function are cached.
    pub(super) fn apply(self, event: SmallEvent) -> Option<SmallStep> {
        thread_local!(static KNOWN: RefCell<HashMap<(SmallTask, SmallEvent), Option<SmallStep>>> = RefCell::default());
        KNOWN.with_borrow_mut(|known| *known.entry((self, event)).or_insert_with(|| real_step(self, event)))
    }
}

const HOUR: Duration = Duration::from_hours(1);

/// Start of the model's time: a full hour, which keeps index buckets simple.
fn start() -> StoreTime {
    StoreTime::from_millis(1_699_999_200_000)
}

fn real_step(from: SmallTask, event: SmallEvent) -> Option<SmallStep> {
    let now = match event {
        // Late enough for any scheduled task.
        SmallEvent::Claim => start().plus(2 * HOUR),
        SmallEvent::TimeOut => start().plus(Duration::from_secs(61)),
        _ => start(),
    };
    let Step { task, order } = step(&task(from), &real_event(from, event), &context(now)).ok()?;
    let (before, after, remove) = match order {
        WriteOrder::TaskOnly => (None, None, None),
        WriteOrder::TaskFirst { write, remove } => (None, write, remove),
        WriteOrder::EntryFirst { write, remove } => (Some(write), None, remove),
    };
    let [before, after, remove] = [before, after, remove].map(|entry| entry.as_ref().map(small_entry));
    Some(SmallStep { task: small(from, &task), before, after, remove })
}

fn real_event(from: SmallTask, event: SmallEvent) -> Event {
    let lease = Duration::from_mins(1);
    match event {
        SmallEvent::Claim => Event::Claim { worker: worker(), lease_id: lease_id(from.rev + 1), lease },
        SmallEvent::Renew(claim) => Event::Renew { lease_id: lease_id(claim), lease, progress: None },
        SmallEvent::Complete(claim) => {
            Event::Complete { lease_id: lease_id(claim), output: Value::Null, results: Artifacts::new() }
        }
        SmallEvent::Fail(claim) => {
            Event::Fail { lease_id: lease_id(claim), error: "oh".into(), retryable: true, after: None }
        }
        SmallEvent::FailPermanently(claim) => {
            Event::Fail { lease_id: lease_id(claim), error: "oh".into(), retryable: false, after: None }
        }
        SmallEvent::TimeOut => Event::TimeOut,
        SmallEvent::Cancel => Event::Cancel,
        SmallEvent::Retry => Event::Retry,
        SmallEvent::Reschedule(due) => Event::Reschedule { at: at(due) },
        SmallEvent::Purge => Event::Purge,
        SmallEvent::Fence => Event::Fence,
    }
}

fn context(now: StoreTime) -> StepContext {
    StepContext { by: "model".into(), now: Now::exactly(now), write_id: HexName::from_random(0), random: 0 }
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

fn task(small: SmallTask) -> Task {
    let (id, finished_at) = (TaskId::from_random(7), start());
    let shard = ShardLen::DEFAULT.shard_of(&id);
    let order = NewTask::new("model", Value::Null).expect("the task type is valid");
    let state = match small.kind {
        TaskState::Tombstone => {
            return Task { rev: small.rev.into(), ..Task::tombstone(id, shard, "model", &context(start())) };
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
        ..order.submitted(id, shard, &context(start()))
    }
}

fn small(from: SmallTask, task: &Task) -> SmallTask {
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
    SmallTask { rev: u8::try_from(task.rev).expect("the model is small"), kind, claim }
}

fn small_entry(entry: &Entry) -> SmallEntry {
    let is_lease = matches!(entry.location, IndexLocation::Lease(_));
    let is_later = !is_lease && entry.minute.start().since(start()) >= HOUR;
    let due = if is_later { Due::Later } else { Due::Soon };
    SmallEntry { is_lease, due, rev: u8::try_from(entry.rev).expect("the model is small") }
}
