//! Ends the claim on a task: complete, fail, release, stop.

use leasehold_core::outpost::{NodeNow, OpKind};
use leasehold_core::settlement::Settlement;
use leasehold_core::{LeaseId, Result, State, Task, step};

use super::change::{FileChange, LeaseChange, SpoolChange};
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
        let settlement = settlement.recordable(now.present().earliest);
        let (noted, lease) = folder.record_and_lease(held, &now)?;
        let task = running(self, &noted, &lease, &now)?;
        folder.settle(&task, &noted, &lease.lease_id, settlement, &now)
    }

    /// Returns the task if its completion took effect earlier: a completion that failed half-way, as on a full disk, is
    /// finished by the next process that locks the task.
    fn already_completed(&self, held: &HeldTask, settlement: &Settlement) -> Result<Task> {
        let there = self.get(&held.task.id)?.map(|there| there.task);
        let is_it = |task: &Task| match settlement {
            Settlement::Complete { output, .. } => {
                task.lease_id.as_ref() == Some(&held.lease.lease_id) && task.output() == Some(output)
            }
            _ => false,
        };
        there.filter(is_it).ok_or_else(|| lost(&held.task.id))
    }
}

impl TaskFolder<'_> {
    /// Records and executes the end of the claim with this id, under which the task runs.
    pub(super) fn settle(
        &self,
        task: &Task,
        noted: &NotedRecord,
        lease_id: &LeaseId,
        settlement: Settlement,
        now: &NodeNow,
    ) -> Result<Task> {
        let mut context = self.spool.step_context(now);
        if let State::Running(claim) = &task.state {
            context.by = claim.by.to_string();
        }
        let event = settlement.clone().event(lease_id.clone());
        let next = step(task, &event, &context).map_err(|why| refused(&self.id, &why))?.task;
        let op = op(task, &noted.note, now, op_kind(settlement, lease_id.clone()));
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

/// The operation that ends a claim in the bucket.
fn op_kind(settlement: Settlement, lease_id: LeaseId) -> OpKind {
    match settlement {
        Settlement::Complete { output, results } => OpKind::Complete { lease_id, output, results },
        Settlement::Fail { error, retryable, after } => {
            OpKind::Fail { lease_id, error, retryable, after, max_attempts: None }
        }
        Settlement::Exhaust { error, max_attempts } => {
            let max_attempts = Some(max_attempts);
            OpKind::Fail { lease_id, error, retryable: false, after: None, max_attempts }
        }
        Settlement::Snooze(until) => OpKind::Release { lease_id, until: Some(until) },
        Settlement::Release => OpKind::Release { lease_id, until: None },
        Settlement::Stop => OpKind::Stop { lease_id },
    }
}
