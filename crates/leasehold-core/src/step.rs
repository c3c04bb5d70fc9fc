//! The one function that decides every change of a task. Pure and total: workers, monitor, command line, simulator
//! and model checker all decide by it.
//!
//! It also says in which order the task and its index entries are to be written, because that order is what keeps
//! a task from ever being without an entry (promise P5, rule 1: *new before old*).

use serde_json::Value;
use std::fmt;
use std::time::Duration;

use crate::ids::{LeaseId, WorkerId, WriteId};
use crate::keys::Entry;
use crate::limits::REASON_BYTES_MAX;
use crate::task::{Change, Claim, State, Status, Task};
use crate::time::{Now, StoreTime};

/// Something that someone wants to happen to a task.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// A worker takes it.
    Claim {
        /// Who.
        worker: WorkerId,
        /// The name of the new claim.
        lease_id: LeaseId,
        /// For how long.
        lease: Duration,
    },
    /// Its worker keeps it.
    Renew {
        /// The claim.
        lease_id: LeaseId,
        /// For how long from now.
        lease: Duration,
        /// How far the handler is, if it has said so.
        progress: Option<Value>,
    },
    /// Its worker is done.
    Complete {
        /// The claim.
        lease_id: LeaseId,
        /// What the handler gave.
        output: Value,
    },
    /// Its worker has failed.
    Fail {
        /// The claim.
        lease_id: LeaseId,
        /// What went wrong.
        error: String,
        /// Whether another attempt could help.
        retryable: bool,
    },
    /// Its worker wants it later.
    Snooze {
        /// The claim.
        lease_id: LeaseId,
        /// When.
        until: StoreTime,
    },
    /// Its worker gives it back unused.
    Release {
        /// The claim.
        lease_id: LeaseId,
    },
    /// Its worker has stopped the handler because the task was called off.
    Stop {
        /// The claim.
        lease_id: LeaseId,
    },
    /// Its worker has not renewed in time.
    TimeOut,
    /// Someone calls it off.
    Cancel,
    /// It was not started in time.
    Expire,
    /// Someone plans it for another time.
    Reschedule {
        /// When.
        at: StoreTime,
    },
    /// Someone wants it to run again.
    Retry,
    /// It is past its retention.
    Purge,
    /// An old entry ahead of this final task is to be removed: a new revision makes sure that whoever wrote it can
    /// not make it true any more (rule 4).
    Fence,
}

impl Event {
    /// The word for it in histories.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Event::Claim { .. } => "claim",
            Event::Renew { .. } => "renew",
            Event::Complete { .. } => "complete",
            Event::Fail { .. } => "fail",
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
        }
    }
}

/// Who acts, when, and with which luck.
#[derive(Debug, Clone, PartialEq)]
pub struct Act {
    /// Who, for the history.
    pub by: String,
    /// The present, in the store's time.
    pub now: Now,
    /// The name of the write that will record it.
    pub write_id: WriteId,
    /// 64 random bits.
    pub chance: u64,
}

/// What an event makes of a task, and how to write it down.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// The task as it will be.
    pub task: Task,
    /// In which order it and its entries are written.
    pub order: Order,
}

/// The order of writes. Every removal comes last, and only after everything before it has succeeded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Order {
    /// Only the task: its entry stays as it is. Whoever meets it there will move it.
    TaskOnly,
    /// The task, then the entry it calls for now, then the removal of the one it called for before. Until the new
    /// one is there, the task is found through the old.
    TaskFirst {
        /// The entry to write.
        write: Option<Entry>,
        /// The entry to remove.
        remove: Option<Entry>,
    },
    /// The entry, then the task, then the removal: the old entry would not do, because there is none, or because it
    /// is due later.
    EntryFirst {
        /// The entry to write.
        write: Entry,
        /// The entry to remove.
        remove: Option<Entry>,
    },
}

/// Why an event cannot happen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rejected {
    /// Not from this status.
    Status(Status),
    /// The claim is not the one that holds the task: stop acting on it.
    Lost,
    /// This very claim has settled the task already.
    AlreadySo,
    /// Too early: not before this moment, beyond doubt.
    NotBefore(StoreTime),
    /// Past its expiry: it must not start any more.
    TooLate(StoreTime),
    /// Not a task, but the mark of a submit that was given up.
    Tombstone,
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rejected::Status(status) => write!(f, "the task is {status}"),
            Rejected::Lost => f.write_str("the claim is lost: the task belongs to someone else"),
            Rejected::AlreadySo => f.write_str("already settled by this claim"),
            Rejected::NotBefore(time) => write!(f, "not before {time}"),
            Rejected::TooLate(time) => write!(f, "the task expired at {time}"),
            Rejected::Tombstone => f.write_str("the submit of this task was given up; it never became one"),
        }
    }
}

/// Decides what `event` makes of `task`.
pub fn step(task: &Task, event: &Event, act: &Act) -> Result<Step, Rejected> {
    let now = act.now.earliest;
    let mut next = Next { task: task.clone(), why: None };
    let entry_first = match event {
        Event::Claim { worker, lease_id, lease } => {
            let State::Pending { available_at } = task.state else { return Err(refused(task)) };
            may_start(task, available_at, act.now)?;
            next.task.epoch += 1;
            next.task.attempt += 1;
            next.task.lease_id = Some(lease_id.clone());
            let claim = Claim {
                by: worker.clone(),
                expires_at: now.plus(*lease),
                renewed_at: None,
                cancel_requested: false,
            };
            next.task.state = State::Running(claim);
            false
        }
        Event::Renew { lease_id, lease, progress } => {
            let claim = holder(task, lease_id)?;
            // Never shorter than what was confirmed before.
            let expires_at = claim.expires_at.max(now.plus(*lease));
            next.task.state = State::Running(Claim { expires_at, renewed_at: Some(now), ..claim.clone() });
            next.task.progress = progress.clone().or(next.task.progress);
            return Ok(next.without_history(act));
        }
        Event::Complete { lease_id, output } => {
            settled(task, lease_id)?;
            next.task.state = State::Completed { output: output.clone(), finished_at: now };
            false
        }
        Event::Fail { lease_id, error, retryable } => {
            let claim = settled(task, lease_id)?;
            next.why = Some(shortened(error));
            next.task.error.clone_from(&next.why);
            next.fail(claim.cancel_requested, *retryable, act)
        }
        Event::Snooze { lease_id, until } => {
            let claim = settled(task, lease_id)?;
            next.hand_back(claim.cancel_requested, *until, now)
        }
        Event::Release { lease_id } => {
            let claim = settled(task, lease_id)?;
            next.hand_back(claim.cancel_requested, now, now)
        }
        Event::Stop { lease_id } => {
            settled(task, lease_id)?;
            next.task.state = State::Cancelled { finished_at: now };
            false
        }
        Event::TimeOut => {
            let State::Running(claim) = &task.state else { return Err(refused(task)) };
            if !act.now.is_past(claim.expires_at) {
                return Err(Rejected::NotBefore(claim.expires_at));
            }
            next.why = Some(format!("the lease of {} ran out", claim.by));
            next.task.error.clone_from(&next.why);
            next.fail(claim.cancel_requested, true, act);
            // The lease entry by which it was found stays until the new one is there.
            false
        }
        Event::Cancel => match &task.state {
            State::Pending { .. } => {
                next.task.state = State::Cancelled { finished_at: now };
                false
            }
            State::Running(claim) if claim.cancel_requested => return Err(Rejected::AlreadySo),
            State::Running(claim) => {
                next.task.state = State::Running(Claim { cancel_requested: true, ..claim.clone() });
                return Ok(next.with_history(task, event, act, Order::TaskOnly));
            }
            _ => return Err(refused(task)),
        },
        Event::Expire => {
            let State::Pending { .. } = task.state else { return Err(refused(task)) };
            let expiry = task.expires_at.ok_or(Rejected::Status(Status::Pending))?;
            if !act.now.is_past(expiry) {
                return Err(Rejected::NotBefore(expiry));
            }
            next.task.state = State::Expired { finished_at: now };
            false
        }
        Event::Reschedule { at } => {
            let State::Pending { .. } = task.state else { return Err(refused(task)) };
            next.task.state = State::Pending { available_at: *at };
            next.why = Some(format!("for {at}"));
            true
        }
        Event::Retry => {
            if task.is_tombstone() {
                return Err(Rejected::Tombstone);
            }
            if !matches!(task.status(), Status::Failed | Status::Cancelled | Status::Expired) {
                return Err(refused(task));
            }
            next.task.attempt = 0;
            // It has expired, or may have: whoever wants it again wants it in spite of that.
            next.task.expires_at = None;
            next.task.state = State::Pending { available_at: now };
            true
        }
        Event::Purge => {
            if !task.status().is_final() || task.status() == Status::Purged {
                return Err(refused(task));
            }
            next.task.state = State::Purged { finished_at: now };
            false
        }
        Event::Fence => {
            if !task.status().is_final() {
                return Err(refused(task));
            }
            return Ok(next.without_history(act));
        }
    };
    Ok(next.moved(task, event, act, entry_first))
}

/// A task in the making.
struct Next {
    task: Task,
    why: Option<String>,
}

impl Next {
    /// Pending again after a pause, or failed for good; says whether the entry goes first.
    fn fail(&mut self, cancel_requested: bool, retryable: bool, act: &Act) -> bool {
        let now = act.now.earliest;
        let again = retryable && self.task.attempt < self.task.max_attempts && !cancel_requested;
        self.task.state = if again {
            let pause = self.task.retry_policy.backoff(self.task.attempt, act.chance);
            State::Pending { available_at: now.plus(pause) }
        } else if cancel_requested {
            State::Cancelled { finished_at: now }
        } else {
            State::Failed { finished_at: now }
        };
        again
    }

    /// Pending again without having used an attempt; says whether the entry goes first.
    fn hand_back(&mut self, cancel_requested: bool, available_at: StoreTime, now: StoreTime) -> bool {
        if cancel_requested {
            self.task.state = State::Cancelled { finished_at: now };
        } else {
            self.task.attempt = self.task.attempt.saturating_sub(1);
            self.task.state = State::Pending { available_at };
        }
        !cancel_requested
    }

    fn moved(self, from: &Task, event: &Event, act: &Act, entry_first: bool) -> Step {
        let mut step = self.with_history(from, event, act, Order::TaskOnly);
        let (write, remove) = (step.task.entry(), from.entry());
        step.order = match write {
            Some(write) if entry_first => Order::EntryFirst { write, remove },
            write => Order::TaskFirst { write, remove },
        };
        step
    }

    fn with_history(mut self, from: &Task, event: &Event, act: &Act, order: Order) -> Step {
        let change = Change {
            at: act.now.earliest,
            event: event.name().to_owned(),
            from: Some(from.status()),
            to: self.task.status(),
            by: act.by.clone(),
            // A task that was handed back has a smaller number now: the change belongs to the attempt it ended.
            attempt: self.task.attempt.max(from.attempt),
            epoch: self.task.epoch,
            why: self.why.take(),
            write_id: act.write_id.clone(),
        };
        self.task.history.add(change);
        Step { order, ..self.without_history(act) }
    }

    fn without_history(mut self, act: &Act) -> Step {
        self.task.rev += 1;
        self.task.write_id = act.write_id.clone();
        self.task.updated_at = act.now.earliest;
        Step { task: self.task, order: Order::TaskOnly }
    }
}

fn refused(task: &Task) -> Rejected {
    Rejected::Status(task.status())
}

fn may_start(task: &Task, available_at: StoreTime, now: Now) -> Result<(), Rejected> {
    if !now.is_due(available_at) {
        return Err(Rejected::NotBefore(available_at));
    }
    match task.expires_at {
        Some(expiry) if now.is_past(expiry) => Err(Rejected::TooLate(expiry)),
        _ => Ok(()),
    }
}

/// The claim, if this is the one that holds the task.
fn holder<'a>(task: &'a Task, lease_id: &LeaseId) -> Result<&'a Claim, Rejected> {
    match &task.state {
        State::Running(claim) if task.lease_id.as_ref() == Some(lease_id) => Ok(claim),
        _ => Err(Rejected::Lost),
    }
}

/// The same for a settlement, which may have happened already.
fn settled<'a>(task: &'a Task, lease_id: &LeaseId) -> Result<&'a Claim, Rejected> {
    let ours = task.lease_id.as_ref() == Some(lease_id);
    holder(task, lease_id).map_err(|lost| if ours { Rejected::AlreadySo } else { lost })
}

fn shortened(text: &str) -> String {
    let end = text.floor_char_boundary(REASON_BYTES_MAX);
    text[..end].to_owned()
}

#[cfg(test)]
mod tests;
