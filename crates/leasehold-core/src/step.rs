//! State machine of a task: one pure, total function decides every change. Workers, monitor, command line, simulator
//! and model checker all call it.
//!
//! It also returns the order in which the task and its index entries are written, because that order guarantees that
//! a task is never without an entry (promise P5, rule 1: *new before old*).

mod event;

pub use event::Event;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fmt;
use std::time::Duration;

use crate::ids::{LeaseId, WorkerId, WriteId};
use crate::keys::Entry;
use crate::limits::{PLAN_AHEAD_MAX, REASON_BYTES_MAX};
use crate::task::{Change, Claim, State, Status, Task};
use crate::time::{Now, StoreTime};

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
    pub random: u64,
}

/// Result of an event: the new task and the order of its writes.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// Task after the change.
    pub task: Task,
    /// Order in which the task and its entries are written.
    pub order: WriteOrder,
}

/// Order of writes. A removal always comes last, and only after all other writes have succeeded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WriteOrder {
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
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rejected {
    /// The task's status does not allow the event.
    Status(Status),
    /// The claim no longer holds the task: stop acting on it.
    Lost,
    /// This claim has already settled the task.
    AlreadyApplied,
    /// Cancellation of the running task was requested before; its worker stops it at the next renewal.
    CancelRequested,
    /// Too early: this time has not surely passed.
    NotBefore(StoreTime),
    /// The task expired at this time and must no longer start.
    TooLate(StoreTime),
    /// The record is a tombstone, of a submit that was abandoned or of a task that was quarantined. Holds the reason.
    Tombstone(String),
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rejected::Status(status) => write!(f, "the task is {status}"),
            Rejected::Lost => f.write_str("the claim no longer holds the task"),
            Rejected::AlreadyApplied => f.write_str("the task was already settled by this claim"),
            Rejected::CancelRequested => f.write_str("cancellation was already requested"),
            Rejected::NotBefore(time) => write!(f, "not before {time}"),
            Rejected::TooLate(time) => write!(f, "the task expired at {time}"),
            Rejected::Tombstone(why) => write!(f, "there is no task to run: {why}"),
        }
    }
}

/// Applies `event` to `task`.
pub fn step(task: &Task, event: &Event, context: &StepContext) -> Result<Step, Rejected> {
    let mut next = Next { task: task.clone(), why: None };
    let now = context.now.earliest;
    let plan = match event {
        Event::Claim { worker, lease_id, lease } => {
            next.claim(task, worker, lease_id, *lease, context.now)?
        }
        Event::TakeOver { worker, lease_id, lease, from, is_unused } => {
            next.take_over(task, from.as_ref(), *is_unused, context.now)?;
            next.hold(worker, lease_id, *lease, context.now)
        }
        Event::Renew { lease_id, lease, progress } => {
            next.renew(holder(task, lease_id)?, *lease, progress.as_ref(), now)
        }
        Event::Complete { lease_id, output, results } => {
            settled(task, lease_id)?;
            let (output, results) = (output.clone(), results.clone());
            next.end(State::Completed { output, results, finished_at: now })
        }
        Event::Fail { lease_id, error, retryable, after } => next.fail(
            settled(task, lease_id)?.cancel_requested,
            truncated(error),
            *retryable,
            *after,
            context,
        ),
        Event::Exhaust { lease_id, error, max_attempts } => {
            let is_cancelled = settled(task, lease_id)?.cancel_requested;
            next.exhaust(*max_attempts);
            next.fail(is_cancelled, truncated(error), false, None, context)
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
            next.fail(false, truncated(error), *retryable && max_attempts.is_none(), *after, context)
        }
        Event::Snooze { lease_id, until } => next.release(settled(task, lease_id)?, *until, now),
        Event::Release { lease_id } => next.release(settled(task, lease_id)?, now, now),
        Event::Stop { lease_id } => {
            settled(task, lease_id)?;
            next.end(State::Cancelled { finished_at: now })
        }
        Event::TimeOut => next.time_out(task, context)?,
        Event::Cancel => next.cancel(task, now)?,
        Event::Expire => next.expire(task, context.now)?,
        Event::Reschedule { at } => {
            let State::Pending { .. } = task.state else { return Err(wrong_status(task)) };
            next.why = Some(format!("for {at}"));
            next.wait(*at)
        }
        Event::Retry => next.retry(task, now)?,
        Event::Purge if !task.status().is_final() || task.status() == Status::Purged => {
            return Err(wrong_status(task));
        }
        Event::Purge => next.end(State::Purged { finished_at: now }),
        Event::Fence if !task.status().is_final() => return Err(wrong_status(task)),
        Event::Fence => WritePlan::WithoutHistory,
        Event::Move { shard } => {
            next.task.shard = shard.clone();
            WritePlan::WithoutHistory
        }
    };
    Ok(next.written(task, event, context, plan))
}

/// Writes of a change.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WritePlan {
    /// Only the task, without a history entry.
    WithoutHistory,
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
    ) -> Result<WritePlan, Rejected> {
        let State::Pending { available_at } = from.state else { return Err(wrong_status(from)) };
        check_startable(from, available_at, now)?;
        Ok(self.hold(worker, lease_id, lease, now))
    }

    /// Claims the task for this worker, for another attempt.
    fn hold(&mut self, worker: &WorkerId, lease_id: &LeaseId, lease: Duration, now: Now) -> WritePlan {
        self.task.epoch = self.task.epoch.saturating_add(1);
        self.task.attempt = self.task.attempt.saturating_add(1);
        self.task.lease_id = Some(lease_id.clone());
        let expires_at = now.earliest.plus(lease.min(PLAN_AHEAD_MAX));
        let claim = Claim { by: worker.clone(), expires_at, renewed_at: None, cancel_requested: false };
        self.task.state = State::Running(claim);
        WritePlan::TaskFirst
    }

    /// Checks a takeover. A task that is cancelled or has no attempts left is not taken over: it times out.
    fn take_over(
        &mut self,
        from: &Task,
        ours: Option<&LeaseId>,
        is_unused: bool,
        now: Now,
    ) -> Result<(), Rejected> {
        let State::Running(claim) = &from.state else { return Err(wrong_status(from)) };
        let is_ours = ours.is_some() && from.lease_id.as_ref() == ours;
        if is_ours && is_unused {
            self.task.attempt = self.task.attempt.saturating_sub(1);
        }
        if claim.cancel_requested || self.task.attempt >= from.max_attempts {
            return Err(wrong_status(from));
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
            return Err(Rejected::AlreadyApplied);
        }
        if !possible.contains(&from.status()) {
            return Err(wrong_status(from));
        }
        self.task.epoch = self.task.epoch.saturating_add(1);
        // Several nodes may have made the last attempt.
        self.task.attempt = self.task.attempt.saturating_add(1).min(self.task.max_attempts);
        self.task.lease_id = Some(lease_id.clone());
        Ok(())
    }

    fn renew(
        &mut self,
        claim: &Claim,
        lease: Duration,
        progress: Option<&Value>,
        now: StoreTime,
    ) -> WritePlan {
        // Never shorter than what was confirmed before.
        let expires_at = claim.expires_at.max(now.plus(lease.min(PLAN_AHEAD_MAX)));
        self.task.state = State::Running(Claim { expires_at, renewed_at: Some(now), ..claim.clone() });
        if let Some(progress) = progress {
            // A handler clears its progress with null.
            self.task.progress = Some(progress.clone()).filter(|progress| !progress.is_null());
        }
        WritePlan::WithoutHistory
    }

    fn end(&mut self, state: State) -> WritePlan {
        self.task.state = state;
        WritePlan::TaskFirst
    }

    fn wait(&mut self, available_at: StoreTime) -> WritePlan {
        self.task.state = State::Pending { available_at };
        WritePlan::EntryFirst
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
        context: &StepContext,
    ) -> WritePlan {
        self.why = Some(error.clone());
        self.task.error = Some(error);
        let finished_at = context.now.earliest;
        if is_cancelled {
            self.end(State::Cancelled { finished_at })
        } else if retryable && self.task.attempt < self.task.max_attempts {
            let backoff = || self.task.retry_policy.backoff(self.task.attempt, context.random);
            let pause = after.unwrap_or_else(backoff);
            self.wait(finished_at.plus(pause))
        } else {
            self.end(State::Failed { finished_at })
        }
    }

    /// Makes the task pending again without using up an attempt.
    fn release(&mut self, claim: &Claim, available_at: StoreTime, now: StoreTime) -> WritePlan {
        if claim.cancel_requested {
            return self.end(State::Cancelled { finished_at: now });
        }
        self.task.attempt = self.task.attempt.saturating_sub(1);
        self.wait(available_at)
    }

    fn time_out(&mut self, from: &Task, context: &StepContext) -> Result<WritePlan, Rejected> {
        let State::Running(claim) = &from.state else { return Err(wrong_status(from)) };
        if !context.now.is_past(claim.expires_at) {
            return Err(Rejected::NotBefore(claim.expires_at));
        }
        self.fail(
            claim.cancel_requested,
            format!("claim of worker {} expired", claim.by),
            true,
            None,
            context,
        );
        // The expired claim did not settle the task: a late settlement must be rejected as lost.
        self.task.lease_id = None;
        // The lease entry stays until the new entry exists, so the task can be written first.
        Ok(WritePlan::TaskFirst)
    }

    fn cancel(&mut self, from: &Task, now: StoreTime) -> Result<WritePlan, Rejected> {
        match &from.state {
            State::Pending { .. } => Ok(self.end(State::Cancelled { finished_at: now })),
            State::Running(claim) if claim.cancel_requested => Err(Rejected::CancelRequested),
            State::Running(claim) => {
                self.task.state = State::Running(Claim { cancel_requested: true, ..claim.clone() });
                Ok(WritePlan::TaskOnly)
            }
            _ => Err(wrong_status(from)),
        }
    }

    fn expire(&mut self, from: &Task, now: Now) -> Result<WritePlan, Rejected> {
        let (State::Pending { .. }, Some(expiry)) = (&from.state, from.expires_at) else {
            return Err(wrong_status(from));
        };
        if !now.is_past(expiry) {
            return Err(Rejected::NotBefore(expiry));
        }
        Ok(self.end(State::Expired { finished_at: now.earliest }))
    }

    fn retry(&mut self, from: &Task, now: StoreTime) -> Result<WritePlan, Rejected> {
        if let Some(why) = from.tombstone_reason() {
            return Err(Rejected::Tombstone(why.to_owned()));
        }
        if !matches!(from.status(), Status::Failed | Status::Cancelled | Status::Expired) {
            return Err(wrong_status(from));
        }
        self.task.attempt = 0;
        self.task.generation = self.task.generation.saturating_add(1);
        // It has expired, or may have. A manual retry overrides the expiry.
        self.task.expires_at = None;
        Ok(self.wait(now))
    }

    fn written(mut self, from: &Task, event: &Event, context: &StepContext, plan: WritePlan) -> Step {
        self.task.rev += 1;
        self.task.write_id = context.write_id.clone();
        self.task.updated_at = context.now.earliest;
        if plan != WritePlan::WithoutHistory {
            self.add_history(from, event, context);
        }
        let (write, remove) = (self.task.entry(), from.entry());
        let order = match (plan, write) {
            (WritePlan::WithoutHistory | WritePlan::TaskOnly, _) => WriteOrder::TaskOnly,
            (WritePlan::EntryFirst, Some(write)) => WriteOrder::EntryFirst { write, remove },
            (_, write) => WriteOrder::TaskFirst { write, remove },
        };
        Step { task: self.task, order }
    }

    fn add_history(&mut self, from: &Task, event: &Event, context: &StepContext) {
        let change = Change {
            at: context.now.earliest,
            event: event.name().to_owned(),
            from: Some(from.status()),
            to: self.task.status(),
            by: context.by.clone(),
            // A released task has a smaller number now: the change belongs to the attempt that it ended.
            attempt: self.task.attempt.max(from.attempt),
            epoch: self.task.epoch,
            why: self.why.take(),
            write_id: context.write_id.clone(),
            unknown: serde_json::Map::new(),
        };
        self.task.history.add(change);
    }
}

fn wrong_status(task: &Task) -> Rejected {
    Rejected::Status(task.status())
}

/// Checks that the task is due. A scheduled task never starts early; an immediate one never waits for a clock.
fn check_startable(task: &Task, available_at: StoreTime, now: Now) -> Result<(), Rejected> {
    let was_scheduled = available_at > task.updated_at;
    if !now.is_due(available_at) || was_scheduled && !now.has_reached(available_at) {
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
    holder(task, lease_id).map_err(|lost| if ours { Rejected::AlreadyApplied } else { lost })
}

fn truncated(text: &str) -> String {
    let end = text.floor_char_boundary(REASON_BYTES_MAX);
    text[..end].to_owned()
}

#[cfg(test)]
pub(crate) mod tests;
