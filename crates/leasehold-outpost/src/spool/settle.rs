//! Ends the claim on a task: complete, fail, release, stop.

use leasehold_core::outpost::{NodeNow, OpKind};
use leasehold_core::settlement::Settlement;
use leasehold_core::{Event, Result, State, Task, step};

use super::change::{FileChange, LeaseChange, SpoolChange, internal};
use super::claim::running;
use super::folder::TaskFolder;
use super::outbox::op;
use super::record::NotedRecord;
use super::{HeldTask, Spool, lost, refused};
use crate::disk::Durable;

impl Spool {
    /// Ends the claim on a task: it moves to `completed/` or `failed/`, or is free again.
    pub fn settle(&self, held: &HeldTask, settlement: Settlement) -> Result<Task> {
        let id = held.task.id;
        let Some(folder) = self.lock_task(&id)? else { return self.already_completed(held, &settlement) };
        let now = self.now();
        let event = settlement.event(held.lease.lease_id.clone(), now.present());
        let (noted, lease) = folder.record_and_lease(held, &now)?;
        let task = running(self, &noted, &lease, &now)?;
        folder.settle(&task, &noted, event, &now)
    }

    /// Returns the task if its completion took effect earlier: a completion that failed half-way, as on a full disk, is
    /// finished by the next process that locks the task.
    fn already_completed(&self, held: &HeldTask, settlement: &Settlement) -> Result<Task> {
        let is_it = |task: &Task| match settlement {
            Settlement::Complete { output, .. } => {
                task.lease_id.as_ref() == Some(&held.lease.lease_id) && task.output() == Some(output)
            }
            _ => false,
        };
        self.get(&held.task.id)?.filter(is_it).ok_or_else(|| lost(&held.task.id))
    }
}

impl TaskFolder<'_> {
    /// Records and executes the end of the claim under which a task runs.
    pub(super) fn settle(
        &self,
        task: &Task,
        noted: &NotedRecord,
        event: Event,
        now: &NodeNow,
    ) -> Result<Task> {
        let mut context = self.spool.step_context(now);
        if let State::Running(claim) = &task.state {
            context.by = claim.by.to_string();
        }
        let next = step(task, &event, &context).map_err(|why| refused(&self.id, &why))?.task;
        let op = op(task, &noted.note, now, end_kind(event)?);
        // A check-out ends with its claim.
        let mut note = noted.note.stamped(now);
        note.checkout = None;
        let noted = NotedRecord { task: next.clone(), note };
        if next.status().is_final() {
            self.end_with(&noted, Some(op))?;
        } else {
            self.rewrite(&noted, Some(op), LeaseChange::Drop)?;
        }
        Ok(next)
    }
}

/// The operation that records the end of a claim in the bucket.
pub(super) fn end_kind(event: Event) -> Result<OpKind> {
    Ok(match event {
        Event::Complete { lease_id, output, results } => OpKind::Complete { lease_id, output, results },
        Event::Fail { lease_id, error, retryable, after } => {
            OpKind::Fail { lease_id, error, retryable, after, max_attempts: None }
        }
        Event::Exhaust { lease_id, error, max_attempts } => {
            let max_attempts = Some(max_attempts);
            OpKind::Fail { lease_id, error, retryable: false, after: None, max_attempts }
        }
        Event::Snooze { lease_id, until } => OpKind::Release { lease_id, until: Some(until) },
        Event::Release { lease_id } => OpKind::Release { lease_id, until: None },
        Event::Stop { lease_id } => OpKind::Stop { lease_id },
        event => return Err(internal(&format!("`{}` does not end a claim", event.name()))),
    })
}
