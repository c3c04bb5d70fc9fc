//! Counts of a spool, and operations of the supervisor on conflicts and check-outs.

use leasehold_core::outpost::{Op, OpKind, SpoolFile, Why};
use leasehold_core::{Artifacts, LeaseId, Result, TaskId, TaskType};
use serde::Serialize;
use serde_json::Value;
use std::collections::{HashMap, HashSet};

use super::change::{FileChange, LeaseChange, SpoolChange, internal};
use super::folder::Found;
use super::kept::{Note, NotedRecord};
use super::outbox::{Conflict, op};
use super::{Copy, HeldTask, Spool};
use crate::disk::{self, Lasting};

/// Number of tasks and files on a node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct SpoolCounts {
    /// Free tasks.
    pub free: u64,
    /// Free tasks that are checked out.
    pub checked_out: u64,
    /// Tasks that a worker here holds.
    pub leased: u64,
    /// Held tasks whose claim the bucket has not confirmed.
    pub tentative: u64,
    /// Completed tasks that are still kept.
    pub completed: u64,
    /// Failed, cancelled, expired and corrupt tasks.
    pub failed: u64,
    /// Operations to send to the bucket.
    pub outbox: u64,
    /// Claims and results that the bucket has rejected.
    pub conflicts: u64,
    /// Duplicate runs: tasks that another worker has run, too.
    pub duplicates: u64,
}

/// Operations to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutboxSignal {
    /// True if a worker waits for the bucket's answer.
    pub is_urgent: bool,
}

impl Spool {
    /// Counts free tasks that are due now or within a minute, by type.
    pub fn free(&self) -> Result<HashMap<TaskType, usize>> {
        let mut free = HashMap::new();
        for (id, task_type) in self.soon()? {
            if !self.path(&SpoolFile::Lease(id)).exists() {
                *free.entry(task_type).or_default() += 1;
            }
        }
        Ok(free)
    }

    /// Counts the tasks and files of this node.
    pub fn count(&self) -> Result<SpoolCounts> {
        let files = |folder: &str| Ok(disk::names(&self.root.join(folder))?.len() as u64);
        let mut counts = SpoolCounts {
            completed: files("completed")?,
            failed: files("failed")?,
            outbox: files("outbox")?,
            conflicts: files("conflicts")?,
            duplicates: self.run_twice()?,
            ..SpoolCounts::default()
        };
        for Copy { lease, checkout, .. } in self.waiting()? {
            if let Some(lease) = lease {
                counts.leased += 1;
                counts.tentative += u64::from(lease.tentative);
            } else {
                counts.free += 1;
                counts.checked_out += u64::from(checkout.is_some());
            }
        }
        Ok(counts)
    }

    /// Counts duplicate runs. A run may have two records: of its claim, and of its end.
    fn run_twice(&self) -> Result<u64> {
        let mut runs = HashSet::new();
        for name in disk::names(&self.root.join("conflicts"))? {
            let body = disk::read(&self.root.join("conflicts").join(name))?.unwrap_or_default();
            let Ok(Conflict { op, why, .. }) = serde_json::from_slice(&body) else { continue };
            if matches!(why, Why::TakenByOthers | Why::CompletedByOthers | Why::FailedByOthers) {
                runs.extend(op.deed.lease_id().cloned());
            }
        }
        Ok(runs.len() as u64)
    }

    /// Returns whether there are operations to send, except those in `later`.
    pub fn news(&self, later: &HashSet<u64>) -> Result<Option<OutboxSignal>> {
        if !self.has_news()? {
            return Ok(None);
        }
        let ops = self.outbox()?;
        let mut new = ops.iter().filter(|(seq, _)| !later.contains(seq)).peekable();
        if new.peek().is_none() {
            return Ok(None);
        }
        // A worker waits for the confirmation of its claim.
        Ok(Some(OutboxSignal { is_urgent: new.any(|(_, op)| matches!(op.deed, OpKind::Claim { .. })) }))
    }

    /// Takes the supervisor's lock, held as long as the file is open; `None` if another process holds it.
    pub fn supervise(&self) -> Result<Option<std::fs::File>> {
        match disk::locked_at_once(&self.root)? {
            None if !self.root.exists() => Err(internal("the folder of the outpost is missing")),
            lock => Ok(lock),
        }
    }

    /// Appends an operation that does not change a task on this node.
    pub fn note(&self, op: &Op) -> Result<u64> {
        self.append(op)
    }

    /// Keeps a result whose task another worker holds by now: no finished result is discarded.
    pub fn keep_late(&self, held: &HeldTask, output: Value, results: Artifacts) -> Result<()> {
        let deed = OpKind::Complete { lease_id: held.lease.lease_id.clone(), output, results };
        let now = self.now();
        let note = Note::of_bucket(held.task.rev, None);
        self.conflict(&op(&held.task, &note, &now, deed), Why::TakenByOthers)
    }

    /// Removes the conflict of a claim that lost to another worker before its handler ran: it is no duplicate run.
    pub fn never_ran(&self, held: &HeldTask) -> Result<()> {
        let deed = OpKind::Claim { lease_id: held.lease.lease_id.clone(), from: None, is_unused: false };
        let claim = op(&held.task, &Note::of_bucket(held.task.rev, None), &self.now(), deed);
        let path = self.conflict_path(&claim);
        if path.exists() { self.disk.remove(&path, Lasting::No).map(|_| ()) } else { Ok(()) }
    }

    /// Marks a task that was cancelled in the bucket: its holder here stops at the next heartbeat.
    pub fn call_off(&self, id: &TaskId) -> Result<()> {
        let Some(folder) = self.locked(id)? else { return Ok(()) };
        let Some(kept) = folder.kept()? else { return Ok(()) };
        if kept.note.cancelled {
            return Ok(());
        }
        let note = Note { cancelled: true, ..kept.note };
        let record = Some(NotedRecord { note, ..kept }.value());
        folder.make(
            SpoolChange { op: None, then: FileChange::Stay { record, lease: LeaseChange::Keep } },
            Lasting::Yes,
        )
    }

    /// Returns whether this claim in the bucket is a check-out of this node.
    pub fn has_checkout(&self, id: &TaskId, lease_id: &LeaseId) -> Result<bool> {
        let Some(folder) = self.locked(id)? else { return Ok(false) };
        let checkout = folder.kept()?.and_then(|kept| kept.note.checkout);
        Ok(checkout.is_some_and(|checkout| checkout.lease_id == *lease_id))
    }

    /// Withdraws a check-out, so that no worker starts under it; false if one has.
    pub fn withdraw(&self, id: &TaskId, lease_id: &LeaseId) -> Result<bool> {
        let Some(folder) = self.locked(id)? else { return Ok(false) };
        let Some(kept) = folder.kept()? else { return Ok(false) };
        let is_it = kept.note.checkout.as_ref().is_some_and(|checkout| checkout.lease_id == *lease_id);
        if !is_it || !matches!(folder.lease(&self.now())?, Found::Free) {
            return Ok(false);
        }
        let record = Some(NotedRecord { note: Note { checkout: None, ..kept.note }, ..kept }.value());
        folder.make(
            SpoolChange { op: None, then: FileChange::Stay { record, lease: LeaseChange::Keep } },
            Lasting::Yes,
        )?;
        Ok(true)
    }
}
