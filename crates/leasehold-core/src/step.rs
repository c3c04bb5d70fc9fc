//! The one function that decides every change of a task. Pure and total: workers, monitor, command line, simulator
//! and model checker all decide by it.
//!
//! It also says in which order the task and its index entries are to be written, because that order is what keeps
//! a task from ever being without an entry (promise P5, rule 1: *new before old*).

use serde_json::Value;
use std::fmt;
use std::time::Duration;

use crate::ids::{Artifacts, LeaseId, WorkerId, WriteId};
use crate::keys::Entry;
use crate::limits::{PLAN_AHEAD_MAX, REASON_BYTES_MAX};
use crate::shard::Shard;
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
    /// A worker goes on with what another has left: one whose lease has run out, or one of the same name that has died.
    TakeOver {
        /// Who.
        worker: WorkerId,
        /// The name of the new claim.
        lease_id: LeaseId,
        /// For how long.
        lease: Duration,
        /// The claim of its own that it replaces; that need not have run out.
        from: Option<LeaseId>,
        /// Nobody has begun under that claim, so that it does not count as an attempt.
        is_unused: bool,
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
        /// Files that it gave, which are in the store already.
        results: Artifacts,
    },
    /// Its worker has failed.
    Fail {
        /// The claim.
        lease_id: LeaseId,
        /// What went wrong.
        error: String,
        /// Whether another attempt could help.
        retryable: bool,
        /// When it follows, if not by the task's retry policy.
        after: Option<Duration>,
    },
    /// Its worker has failed, and its handler allows no more attempts.
    Exhaust {
        /// The claim.
        lease_id: LeaseId,
        /// What went wrong.
        error: String,
        /// How many attempts the handler allows. The task keeps the smaller of this and its own number, also when
        /// someone retries it.
        max_attempts: u32,
    },
    /// It was done where the store could not be asked, whoever holds it now.
    CompleteOffline {
        /// The name of the claim that was made there.
        lease_id: LeaseId,
        /// What the handler gave.
        output: Value,
        /// Files that it gave, which are in the store already.
        results: Artifacts,
    },
    /// It has failed where the store could not be asked; nobody else has claimed it meanwhile.
    FailOffline {
        /// The name of the claim that was made there.
        lease_id: LeaseId,
        /// What went wrong.
        error: String,
        /// Whether another attempt could help.
        retryable: bool,
        /// When it follows, if not by the task's retry policy.
        after: Option<Duration>,
        /// How many attempts the handler allows, if it allows no more: as in [`Event::Exhaust`].
        max_attempts: Option<u32>,
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
    /// The number of shards changes: it goes to live in this one. Its own shard makes only a new revision of it, so that
    /// no move that is still on its way can hit it any more.
    Move {
        /// Where.
        shard: Shard,
    },
}

impl Event {
    /// The word for it in histories.
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
    let mut next = Next { task: task.clone(), why: None };
    let now = act.now.earliest;
    let course = match event {
        Event::Claim { worker, lease_id, lease } => next.claim(task, worker, lease_id, *lease, act.now)?,
        Event::TakeOver { worker, lease_id, lease, from, is_unused } => {
            next.take_over(task, from.as_ref(), *is_unused, act.now)?;
            next.hold(worker, lease_id, *lease, act.now)
        }
        Event::Renew { lease_id, lease, progress } => {
            next.renew(holder(task, lease_id)?, *lease, progress.as_ref(), now)
        }
        Event::Complete { lease_id, output, results } => {
            settled(task, lease_id)?;
            let (output, results) = (output.clone(), results.clone());
            next.end(State::Completed { output, results, finished_at: now })
        }
        Event::Fail { lease_id, error, retryable, after } => {
            next.fail(settled(task, lease_id)?.cancel_requested, shortened(error), *retryable, *after, act)
        }
        Event::Exhaust { lease_id, error, max_attempts } => {
            let is_called_off = settled(task, lease_id)?.cancel_requested;
            next.exhaust(*max_attempts);
            next.fail(is_called_off, shortened(error), false, None, act)
        }
        Event::CompleteOffline { lease_id, output, results } => {
            let possible = [Status::Pending, Status::Running, Status::Failed];
            next.claim_offline(task, lease_id, &possible, &[Status::Completed])?;
            let (output, results) = (output.clone(), results.clone());
            next.end(State::Completed { output, results, finished_at: now })
        }
        Event::FailOffline { lease_id, error, retryable, after, max_attempts } => {
            next.claim_offline(task, lease_id, &[Status::Pending], &[Status::Pending, Status::Failed])?;
            if let Some(max_attempts) = max_attempts {
                next.exhaust(*max_attempts);
            }
            next.fail(false, shortened(error), *retryable && max_attempts.is_none(), *after, act)
        }
        Event::Snooze { lease_id, until } => next.hand_back(settled(task, lease_id)?, *until, now),
        Event::Release { lease_id } => next.hand_back(settled(task, lease_id)?, now, now),
        Event::Stop { lease_id } => {
            settled(task, lease_id)?;
            next.end(State::Cancelled { finished_at: now })
        }
        Event::TimeOut => next.time_out(task, act)?,
        Event::Cancel => next.cancel(task, now)?,
        Event::Expire => next.expire(task, act.now)?,
        Event::Reschedule { at } => {
            let State::Pending { .. } = task.state else { return Err(refused(task)) };
            next.why = Some(format!("for {at}"));
            next.wait(*at)
        }
        Event::Retry => next.retry(task, now)?,
        Event::Purge if !task.status().is_final() || task.status() == Status::Purged => {
            return Err(refused(task));
        }
        Event::Purge => next.end(State::Purged { finished_at: now }),
        Event::Fence if !task.status().is_final() => return Err(refused(task)),
        Event::Fence => Course::Quiet,
        Event::Move { shard } => {
            next.task.shard = shard.clone();
            Course::Quiet
        }
    };
    Ok(next.written(task, event, act, course))
}

/// How a change is written down.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Course {
    /// Only the task, and not in its history.
    Quiet,
    /// Only the task.
    TaskOnly,
    /// The task, then its entry.
    TaskFirst,
    /// The entry, then the task.
    EntryFirst,
}

/// A task in the making.
struct Next {
    task: Task,
    why: Option<String>,
}

impl Next {
    fn claim(
        &mut self,
        from: &Task,
        worker: &WorkerId,
        lease_id: &LeaseId,
        lease: Duration,
        now: Now,
    ) -> Result<Course, Rejected> {
        let State::Pending { available_at } = from.state else { return Err(refused(from)) };
        may_start(from, available_at, now)?;
        Ok(self.hold(worker, lease_id, lease, now))
    }

    /// Held by this worker from now on, for another attempt.
    fn hold(&mut self, worker: &WorkerId, lease_id: &LeaseId, lease: Duration, now: Now) -> Course {
        self.task.epoch = self.task.epoch.saturating_add(1);
        self.task.attempt = self.task.attempt.saturating_add(1);
        self.task.lease_id = Some(lease_id.clone());
        let expires_at = now.earliest.plus(lease.min(PLAN_AHEAD_MAX));
        let claim = Claim { by: worker.clone(), expires_at, renewed_at: None, cancel_requested: false };
        self.task.state = State::Running(claim);
        Course::TaskFirst
    }

    /// What has no attempt left, or was called off, is not taken over: it times out.
    fn take_over(
        &mut self,
        from: &Task,
        ours: Option<&LeaseId>,
        is_unused: bool,
        now: Now,
    ) -> Result<(), Rejected> {
        let State::Running(claim) = &from.state else { return Err(refused(from)) };
        let is_ours = ours.is_some() && from.lease_id.as_ref() == ours;
        if is_ours && is_unused {
            self.task.attempt = self.task.attempt.saturating_sub(1);
        }
        if claim.cancel_requested || self.task.attempt >= from.max_attempts {
            return Err(refused(from));
        }
        if !is_ours && !now.is_past(claim.expires_at) {
            return Err(Rejected::NotBefore(claim.expires_at));
        }
        self.why = Some(format!("from {}", claim.by));
        Ok(())
    }

    /// The claim that was made without the store is written down together with what came of it.
    fn claim_offline(
        &mut self,
        from: &Task,
        lease_id: &LeaseId,
        possible: &[Status],
        leads_to: &[Status],
    ) -> Result<(), Rejected> {
        if from.lease_id.as_ref() == Some(lease_id) && leads_to.contains(&from.status()) {
            return Err(Rejected::AlreadySo);
        }
        if !possible.contains(&from.status()) {
            return Err(refused(from));
        }
        self.task.epoch = self.task.epoch.saturating_add(1);
        // Also the last attempt may have been made by several.
        self.task.attempt = self.task.attempt.saturating_add(1).min(self.task.max_attempts);
        self.task.lease_id = Some(lease_id.clone());
        Ok(())
    }

    fn renew(&mut self, claim: &Claim, lease: Duration, progress: Option<&Value>, now: StoreTime) -> Course {
        // Never shorter than what was confirmed before.
        let expires_at = claim.expires_at.max(now.plus(lease.min(PLAN_AHEAD_MAX)));
        self.task.state = State::Running(Claim { expires_at, renewed_at: Some(now), ..claim.clone() });
        if let Some(progress) = progress {
            // Null is how a handler takes back what it said.
            self.task.progress = Some(progress.clone()).filter(|progress| !progress.is_null());
        }
        Course::Quiet
    }

    fn end(&mut self, state: State) -> Course {
        self.task.state = state;
        Course::TaskFirst
    }

    fn wait(&mut self, available_at: StoreTime) -> Course {
        self.task.state = State::Pending { available_at };
        Course::EntryFirst
    }

    /// Keeps the bound of attempts of a handler if it is smaller. At least this attempt was allowed: it has run.
    fn exhaust(&mut self, max_attempts: u32) {
        self.task.max_attempts = self.task.max_attempts.min(max_attempts.max(self.task.attempt));
    }

    /// Pending again after a pause, or ended for good.
    fn fail(
        &mut self,
        is_called_off: bool,
        error: String,
        retryable: bool,
        after: Option<Duration>,
        act: &Act,
    ) -> Course {
        self.why = Some(error.clone());
        self.task.error = Some(error);
        let finished_at = act.now.earliest;
        if is_called_off {
            self.end(State::Cancelled { finished_at })
        } else if retryable && self.task.attempt < self.task.max_attempts {
            let backoff = || self.task.retry_policy.backoff(self.task.attempt, act.chance);
            let pause = after.unwrap_or_else(backoff);
            self.wait(finished_at.plus(pause))
        } else {
            self.end(State::Failed { finished_at })
        }
    }

    /// Pending again without having used an attempt.
    fn hand_back(&mut self, claim: &Claim, available_at: StoreTime, now: StoreTime) -> Course {
        if claim.cancel_requested {
            return self.end(State::Cancelled { finished_at: now });
        }
        self.task.attempt = self.task.attempt.saturating_sub(1);
        self.wait(available_at)
    }

    fn time_out(&mut self, from: &Task, act: &Act) -> Result<Course, Rejected> {
        let State::Running(claim) = &from.state else { return Err(refused(from)) };
        if !act.now.is_past(claim.expires_at) {
            return Err(Rejected::NotBefore(claim.expires_at));
        }
        self.fail(claim.cancel_requested, format!("the lease of {} ran out", claim.by), true, None, act);
        // It did not settle the task, and must not be told that it has.
        self.task.lease_id = None;
        // The lease entry by which it was found stays until the new entry is there, so the task may go first.
        Ok(Course::TaskFirst)
    }

    fn cancel(&mut self, from: &Task, now: StoreTime) -> Result<Course, Rejected> {
        match &from.state {
            State::Pending { .. } => Ok(self.end(State::Cancelled { finished_at: now })),
            State::Running(claim) if claim.cancel_requested => Err(Rejected::AlreadySo),
            State::Running(claim) => {
                self.task.state = State::Running(Claim { cancel_requested: true, ..claim.clone() });
                Ok(Course::TaskOnly)
            }
            _ => Err(refused(from)),
        }
    }

    fn expire(&mut self, from: &Task, now: Now) -> Result<Course, Rejected> {
        let (State::Pending { .. }, Some(expiry)) = (&from.state, from.expires_at) else {
            return Err(refused(from));
        };
        if !now.is_past(expiry) {
            return Err(Rejected::NotBefore(expiry));
        }
        Ok(self.end(State::Expired { finished_at: now.earliest }))
    }

    fn retry(&mut self, from: &Task, now: StoreTime) -> Result<Course, Rejected> {
        if from.is_tombstone() {
            return Err(Rejected::Tombstone);
        }
        if !matches!(from.status(), Status::Failed | Status::Cancelled | Status::Expired) {
            return Err(refused(from));
        }
        self.task.attempt = 0;
        self.task.generation = self.task.generation.saturating_add(1);
        // It has expired, or may have: whoever wants it again wants it in spite of that.
        self.task.expires_at = None;
        Ok(self.wait(now))
    }

    fn written(mut self, from: &Task, event: &Event, act: &Act, course: Course) -> Step {
        self.task.rev += 1;
        self.task.write_id = act.write_id.clone();
        self.task.updated_at = act.now.earliest;
        if course != Course::Quiet {
            self.note(from, event, act);
        }
        let (write, remove) = (self.task.entry(), from.entry());
        let order = match (course, write) {
            (Course::Quiet | Course::TaskOnly, _) => Order::TaskOnly,
            (Course::EntryFirst, Some(write)) => Order::EntryFirst { write, remove },
            (_, write) => Order::TaskFirst { write, remove },
        };
        Step { task: self.task, order }
    }

    fn note(&mut self, from: &Task, event: &Event, act: &Act) {
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
            unknown: serde_json::Map::new(),
        };
        self.task.history.add(change);
    }
}

fn refused(task: &Task) -> Rejected {
    Rejected::Status(task.status())
}

/// What was planned for later never starts early; what was to start at once never waits for a clock.
fn may_start(task: &Task, available_at: StoreTime, now: Now) -> Result<(), Rejected> {
    let was_planned = available_at > task.updated_at;
    if !now.is_due(available_at) || was_planned && !now.has_reached(available_at) {
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
