//! Ends the claim on a task: complete, fail, release, stop.

use leasehold_core::new_task::{check_artifacts, check_size};
use leasehold_core::outpost::{NodeNow, OpKind};
use leasehold_core::{Artifacts, Event, LeaseId, Result, StoreTime, Task, step};
use serde_json::Value;
use std::time::Duration;

use super::change::{FileChange, LeaseChange, SpoolChange};
use super::claim::running;
use super::folder::TaskFolder;
use super::outbox::op;
use super::record::NotedRecord;
use super::{HeldTask, Spool, lost, refused};
use crate::disk::Durable;

impl Spool {
    /// Completes a task: it moves to `completed/`.
    pub fn complete(&self, held: &HeldTask, output: Value, results: Artifacts) -> Result<Task> {
        check_size("output", &output)?;
        check_artifacts(&results)?;
        self.settle(held, |lease_id| {
            let event = Event::Complete {
                lease_id: lease_id.clone(),
                output: output.clone(),
                results: results.clone(),
            };
            (event, OpKind::Complete { lease_id, output, results })
        })
    }

    /// Fails an attempt: another follows after a delay, or the task moves to `failed/`.
    pub fn fail(
        &self,
        held: &HeldTask,
        error: &str,
        retryable: bool,
        after: Option<Duration>,
    ) -> Result<Task> {
        self.settle(held, |lease_id| fail_event(lease_id, error, retryable, after))
    }

    /// Fails the last attempt that the handler allows: the task moves to `failed/`, with `max_attempts` as its limit.
    pub fn exhaust(&self, held: &HeldTask, error: &str, max_attempts: u32) -> Result<Task> {
        self.settle(held, |lease_id| {
            let error = error.to_owned();
            let event = Event::Exhaust { lease_id: lease_id.clone(), error: error.clone(), max_attempts };
            let max_attempts = Some(max_attempts);
            (event, OpKind::Fail { lease_id, error, retryable: false, after: None, max_attempts })
        })
    }

    /// Releases a task, available at once or at `until`.
    pub fn release(&self, held: &HeldTask, until: Option<StoreTime>) -> Result<Task> {
        self.settle(held, |lease_id| {
            let event = match until {
                Some(until) => Event::Snooze { lease_id: lease_id.clone(), until },
                None => Event::Release { lease_id: lease_id.clone() },
            };
            (event, OpKind::Release { lease_id, until })
        })
    }

    /// Ends a cancelled task whose handler has stopped: it moves to `failed/`.
    pub fn stop(&self, held: &HeldTask) -> Result<Task> {
        self.settle(held, |lease_id| (Event::Stop { lease_id: lease_id.clone() }, OpKind::Stop { lease_id }))
    }

    fn settle(&self, held: &HeldTask, what: impl FnOnce(LeaseId) -> (Event, OpKind)) -> Result<Task> {
        let id = held.task.id;
        let (event, kind) = what(held.lease.lease_id.clone());
        let Some(folder) = self.lock_task(&id)? else { return self.already_completed(held, &event) };
        let now = self.now();
        let (noted, lease) = folder.record_and_lease(held, &now)?;
        let task = running(self, &noted, &lease, &now)?;
        folder.settle(&task, &noted, &event, kind, &now)
    }

    /// Returns the task if its completion took effect earlier: a completion that failed half-way, as on a full disk, is
    /// finished by the next process that locks the task.
    fn already_completed(&self, held: &HeldTask, event: &Event) -> Result<Task> {
        let there = self.get(&held.task.id)?.map(|there| there.task);
        let is_it = |task: &Task| match event {
            Event::Complete { lease_id, output, .. } => {
                task.lease_id.as_ref() == Some(lease_id) && task.output() == Some(output)
            }
            _ => false,
        };
        there.filter(is_it).ok_or_else(|| lost(&held.task.id))
    }
}

impl TaskFolder<'_> {
    #[expect(clippy::too_many_arguments, reason = "an event, and what it is about")]
    pub(super) fn fail_attempt(
        &self,
        task: &Task,
        noted: &NotedRecord,
        lease_id: &LeaseId,
        error: &str,
        retryable: bool,
        after: Option<Duration>,
        now: &NodeNow,
    ) -> Result<Task> {
        let (event, kind) = fail_event(lease_id.clone(), error, retryable, after);
        self.settle(task, noted, &event, kind, now)
    }

    /// Records and executes the effect of an event on a claimed task.
    fn settle(
        &self,
        task: &Task,
        noted: &NotedRecord,
        event: &Event,
        kind: OpKind,
        now: &NodeNow,
    ) -> Result<Task> {
        let mut context = self.spool.step_context(now);
        if let leasehold_core::State::Running(claim) = &task.state {
            context.by = claim.by.to_string();
        }
        let next = step(task, event, &context).map_err(|why| refused(&self.id, &why))?.task;
        let op = op(task, &noted.note, now, kind);
        // A check-out ends with its claim.
        let mut note = noted.note.stamped(now);
        note.checkout = None;
        let is_final = next.status().is_final();
        let record = NotedRecord { task: next.clone(), note }.value();
        let then = if is_final {
            FileChange::End { record }
        } else {
            FileChange::Stay { record: Some(record), lease: LeaseChange::Drop }
        };
        self.apply(SpoolChange { op: Some(op), then }, Durable::Yes)?;
        Ok(next)
    }
}

fn fail_event(lease_id: LeaseId, error: &str, retryable: bool, after: Option<Duration>) -> (Event, OpKind) {
    let error = error.to_owned();
    let event = Event::Fail { lease_id: lease_id.clone(), error: error.clone(), retryable, after };
    (event, OpKind::Fail { lease_id, error, retryable, after, max_attempts: None })
}
