//! What becomes of a task that was claimed.

use leasehold_core::new_task::{check_artifacts, check_size};
use leasehold_core::outpost::{Deed, NodeNow};
use leasehold_core::{Artifacts, Event, LeaseId, Result, StoreTime, Task, step};
use serde_json::Value;
use std::time::Duration;

use super::change::{Change, Next, Then};
use super::claim::running;
use super::folder::Folder;
use super::kept::Kept;
use super::outbox::op;
use super::{Held, Spool, lost, refused};
use crate::disk::Lasting;

impl Spool {
    /// The task is done: it goes to `completed/`.
    pub fn complete(&self, held: &Held, output: Value, results: Artifacts) -> Result<Task> {
        check_size("output", &output)?;
        check_artifacts(&results)?;
        self.settle(held, |lease_id| {
            let event = Event::Complete {
                lease_id: lease_id.clone(),
                output: output.clone(),
                results: results.clone(),
            };
            (event, Deed::Complete { lease_id, output, results })
        })
    }

    /// The attempt has failed: another follows after a pause, or the task goes to `failed/`.
    pub fn fail(&self, held: &Held, error: &str, retryable: bool, after: Option<Duration>) -> Result<Task> {
        self.settle(held, |lease_id| failing(lease_id, error, retryable, after))
    }

    /// The attempt has failed, and the handler allows no more than so many: the task goes to `failed/` with that bound.
    pub fn exhaust(&self, held: &Held, error: &str, max_attempts: u32) -> Result<Task> {
        self.settle(held, |lease_id| {
            let error = error.to_owned();
            let event = Event::Exhaust { lease_id: lease_id.clone(), error: error.clone(), max_attempts };
            let max_attempts = Some(max_attempts);
            (event, Deed::Fail { lease_id, error, retryable: false, after: None, max_attempts })
        })
    }

    /// The task is released unused, for now or for later.
    pub fn release(&self, held: &Held, until: Option<StoreTime>) -> Result<Task> {
        self.settle(held, |lease_id| {
            let event = match until {
                Some(until) => Event::Snooze { lease_id: lease_id.clone(), until },
                None => Event::Release { lease_id: lease_id.clone() },
            };
            (event, Deed::Release { lease_id, until })
        })
    }

    /// The task was called off, and its handler has stopped: it goes to `failed/`.
    pub fn stop(&self, held: &Held) -> Result<Task> {
        self.settle(held, |lease_id| (Event::Stop { lease_id: lease_id.clone() }, Deed::Stop { lease_id }))
    }

    fn settle(&self, held: &Held, what: impl FnOnce(LeaseId) -> (Event, Deed)) -> Result<Task> {
        let id = held.task.id;
        let (event, deed) = what(held.lease.lease_id.clone());
        let Some(folder) = self.locked(&id)? else { return self.completed_before(held, &event) };
        let now = self.now();
        let (kept, lease) = folder.held(held, &now)?;
        let task = running(self, &kept, &lease, &now)?;
        folder.settled(&task, &kept, &event, deed, &now)
    }

    /// A completion that failed half-way, as on a full disk, was carried out by whoever came next: then it is not lost.
    fn completed_before(&self, held: &Held, event: &Event) -> Result<Task> {
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

impl Folder<'_> {
    #[expect(clippy::too_many_arguments, reason = "an event, and what it is about")]
    pub(super) fn failed(
        &self,
        task: &Task,
        kept: &Kept,
        lease_id: &LeaseId,
        error: &str,
        retryable: bool,
        after: Option<Duration>,
        now: &NodeNow,
    ) -> Result<Task> {
        let (event, deed) = failing(lease_id.clone(), error, retryable, after);
        self.settled(task, kept, &event, deed, now)
    }

    /// Writes down and carries out what an event makes of a task that somebody had.
    fn settled(&self, task: &Task, kept: &Kept, event: &Event, deed: Deed, now: &NodeNow) -> Result<Task> {
        let mut act = self.spool.act(now);
        if let leasehold_core::State::Running(claim) = &task.state {
            act.by = claim.by.to_string();
        }
        let next = step(task, event, &act).map_err(|why| refused(&self.id, &why))?.task;
        let op = op(task, &kept.note, now, deed);
        // The claim has ended, and with it a check-out.
        let mut note = kept.note.stamped(now);
        note.checkout = None;
        let is_final = next.status().is_final();
        let record = Kept { task: next.clone(), note }.value();
        let then = if is_final {
            Then::End { record }
        } else {
            Then::Stay { record: Some(record), lease: Next::Drop }
        };
        self.make(Change { op: Some(op), then }, Lasting::Yes)?;
        Ok(next)
    }
}

fn failing(lease_id: LeaseId, error: &str, retryable: bool, after: Option<Duration>) -> (Event, Deed) {
    let error = error.to_owned();
    let event = Event::Fail { lease_id: lease_id.clone(), error: error.clone(), retryable, after };
    (event, Deed::Fail { lease_id, error, retryable, after, max_attempts: None })
}
