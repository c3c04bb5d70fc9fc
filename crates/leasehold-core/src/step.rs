//! State machine of a task: one pure, total function decides every change. Workers, monitor, command line, simulator
//! and model checker all call it.
//!
//! It also returns the order in which the task and its index entries are written, because that order guarantees that
//! a task is never without an entry (promise P5, rule 1: *new before old*).

use serde_json::Value;
use std::fmt;
use std::time::Duration;

use crate::ids::{Artifacts, LeaseId, WorkerId, WriteId};
use crate::keys::Entry;
use crate::limits::{PLAN_AHEAD_MAX, REASON_BYTES_MAX};
use crate::shard::Shard;
use crate::task::{Change, Claim, State, Status, Task};
use crate::time::{Now, StoreTime};

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
    /// A worker takes over the claim of another: one whose lease has expired, or a dead process of the same name.
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
        /// Number of attempts that the handler allows, if it allows no more, as in [`Event::Exhaust`].
        max_attempts: Option<u32>,
    },
    /// The worker postpones the task.
    Snooze {
        /// Claim of the worker.
        lease_id: LeaseId,
        /// Time at which it becomes available again.
        until: StoreTime,
    },
    /// The worker releases the task unused.
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

/// Actor, time and random bits of a change.
#[derive(Debug, Clone, PartialEq)]
pub struct StepContext {
    /// Actor, for the history.
    pub by: String,
    /// Current store time.
    pub now: Now,
    /// Id of the write that will record the change.
    pub write_id: WriteId,
    /// 64 random bits.
    pub chance: u64,
}

/// Result of an event: the new task and the order of its writes.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// Task after the change.
    pub task: Task,
    /// Order in which the task and its entries are written.
    pub order: Order,
}

/// Order of writes. A removal always comes last, and only after all other writes have succeeded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Order {
    /// Only the task. Its entry stays as it is; the next worker that scans it moves it.
    TaskOnly,
    /// The task, then the entry that it requires now, then the removal of the previous entry. Until the new entry
    /// exists, the task is found through the old one.
    TaskFirst {
        /// Entry to write.
        write: Option<Entry>,
        /// Entry to remove.
        remove: Option<Entry>,
    },
    /// The entry, then the task, then the removal. Needed where the old entry does not suffice, because there is none
    /// or because it is due later.
    EntryFirst {
        /// Entry to write.
        write: Entry,
        /// Entry to remove.
        remove: Option<Entry>,
    },
}

/// Reason why an event is rejected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rejected {
    /// The task's status does not allow the event.
    Status(Status),
    /// The claim no longer holds the task: stop acting on it.
    Lost,
    /// This claim has already settled the task.
    AlreadySo,
    /// Too early: this time has not surely passed.
    NotBefore(StoreTime),
    /// The task expired at this time and must no longer start.
    TooLate(StoreTime),
    /// Not a task, but the tombstone of an abandoned submit.
    Tombstone,
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rejected::Status(status) => write!(f, "the task is {status}"),
            Rejected::Lost => f.write_str("the claim no longer holds the task"),
            Rejected::AlreadySo => f.write_str("already settled by this claim"),
            Rejected::NotBefore(time) => write!(f, "not before {time}"),
            Rejected::TooLate(time) => write!(f, "the task expired at {time}"),
            Rejected::Tombstone => f.write_str("the submit of this task was abandoned"),
        }
    }
}

/// Applies `event` to `task`.
pub fn step(task: &Task, event: &Event, act: &StepContext) -> Result<Step, Rejected> {
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
            let is_cancelled = settled(task, lease_id)?.cancel_requested;
            next.exhaust(*max_attempts);
            next.fail(is_cancelled, shortened(error), false, None, act)
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

/// Writes of a change.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Course {
    /// Only the task, without a history entry.
    Quiet,
    /// Only the task.
    TaskOnly,
    /// The task, then its entry.
    TaskFirst,
    /// The entry, then the task.
    EntryFirst,
}

/// Task under construction.
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

    /// Claims the task for this worker, for another attempt.
    fn hold(&mut self, worker: &WorkerId, lease_id: &LeaseId, lease: Duration, now: Now) -> Course {
        self.task.epoch = self.task.epoch.saturating_add(1);
        self.task.attempt = self.task.attempt.saturating_add(1);
        self.task.lease_id = Some(lease_id.clone());
        let expires_at = now.earliest.plus(lease.min(PLAN_AHEAD_MAX));
        let claim = Claim { by: worker.clone(), expires_at, renewed_at: None, cancel_requested: false };
        self.task.state = State::Running(claim);
        Course::TaskFirst
    }

    /// Checks a takeover. A task that is cancelled or has no attempts left is not taken over: it times out.
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

    /// Records the claim of an offline node together with its result.
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
        // Several nodes may have made the last attempt.
        self.task.attempt = self.task.attempt.saturating_add(1).min(self.task.max_attempts);
        self.task.lease_id = Some(lease_id.clone());
        Ok(())
    }

    fn renew(&mut self, claim: &Claim, lease: Duration, progress: Option<&Value>, now: StoreTime) -> Course {
        // Never shorter than what was confirmed before.
        let expires_at = claim.expires_at.max(now.plus(lease.min(PLAN_AHEAD_MAX)));
        self.task.state = State::Running(Claim { expires_at, renewed_at: Some(now), ..claim.clone() });
        if let Some(progress) = progress {
            // A handler clears its progress with null.
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

    /// Lowers the limit of attempts to that of the handler. The current attempt was allowed: it has run.
    fn exhaust(&mut self, max_attempts: u32) {
        self.task.max_attempts = self.task.max_attempts.min(max_attempts.max(self.task.attempt));
    }

    /// Makes the task pending after a pause, or ends it.
    fn fail(
        &mut self,
        is_cancelled: bool,
        error: String,
        retryable: bool,
        after: Option<Duration>,
        act: &StepContext,
    ) -> Course {
        self.why = Some(error.clone());
        self.task.error = Some(error);
        let finished_at = act.now.earliest;
        if is_cancelled {
            self.end(State::Cancelled { finished_at })
        } else if retryable && self.task.attempt < self.task.max_attempts {
            let backoff = || self.task.retry_policy.backoff(self.task.attempt, act.chance);
            let pause = after.unwrap_or_else(backoff);
            self.wait(finished_at.plus(pause))
        } else {
            self.end(State::Failed { finished_at })
        }
    }

    /// Makes the task pending again without using up an attempt.
    fn hand_back(&mut self, claim: &Claim, available_at: StoreTime, now: StoreTime) -> Course {
        if claim.cancel_requested {
            return self.end(State::Cancelled { finished_at: now });
        }
        self.task.attempt = self.task.attempt.saturating_sub(1);
        self.wait(available_at)
    }

    fn time_out(&mut self, from: &Task, act: &StepContext) -> Result<Course, Rejected> {
        let State::Running(claim) = &from.state else { return Err(refused(from)) };
        if !act.now.is_past(claim.expires_at) {
            return Err(Rejected::NotBefore(claim.expires_at));
        }
        self.fail(claim.cancel_requested, format!("lease of worker {} expired", claim.by), true, None, act);
        // The expired claim did not settle the task: a late settlement must be rejected as lost.
        self.task.lease_id = None;
        // The lease entry stays until the new entry exists, so the task can be written first.
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
        // It has expired, or may have. A manual retry overrides the expiry.
        self.task.expires_at = None;
        Ok(self.wait(now))
    }

    fn written(mut self, from: &Task, event: &Event, act: &StepContext, course: Course) -> Step {
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

    fn note(&mut self, from: &Task, event: &Event, act: &StepContext) {
        let change = Change {
            at: act.now.earliest,
            event: event.name().to_owned(),
            from: Some(from.status()),
            to: self.task.status(),
            by: act.by.clone(),
            // A released task has a smaller number now: the change belongs to the attempt that it ended.
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

/// Checks that the task is due. A scheduled task never starts early; an immediate one never waits for a clock.
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

/// Returns the claim if it holds the task.
fn holder<'a>(task: &'a Task, lease_id: &LeaseId) -> Result<&'a Claim, Rejected> {
    match &task.state {
        State::Running(claim) if task.lease_id.as_ref() == Some(lease_id) => Ok(claim),
        _ => Err(Rejected::Lost),
    }
}

/// Like [`holder`], for a settlement, which this claim may have made already.
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
