//! What the supervisor and people want to know about a spool.

use leasehold_core::outpost::{Deed, Op, SpoolFile, Why};
use leasehold_core::{Artifacts, LeaseId, Result, TaskId, TaskType};
use serde::Serialize;
use serde_json::Value;
use std::collections::{HashMap, HashSet};

use super::change::{Change, Next, Then, internal};
use super::folder::Found;
use super::kept::{Kept, Note};
use super::outbox::{Conflict, op};
use super::{Copy, Held, Spool};
use crate::disk::{self, Lasting};

/// What lies on a node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct SpoolCounts {
    /// Tasks that wait.
    pub free: u64,
    /// Of these, how many are checked out.
    pub checked_out: u64,
    /// Tasks that somebody here has.
    pub leased: u64,
    /// Of these, how many the bucket has not confirmed.
    pub tentative: u64,
    /// Completed tasks that are still kept.
    pub completed: u64,
    /// Failed, cancelled and expired tasks, and what could not be read.
    pub failed: u64,
    /// Operations that the bucket does not know yet.
    pub outbox: u64,
    /// Claims and results that had no place in the bucket.
    pub conflicts: u64,
    /// Of these, how many were runs of a task that others had run, too.
    pub duplicates: u64,
}

/// Something waits to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct News {
    /// Somebody waits for the answer.
    pub is_urgent: bool,
}

impl Spool {
    /// How many tasks wait here that can be taken now, or within a minute, by type.
    pub fn free(&self) -> Result<HashMap<TaskType, usize>> {
        let mut free = HashMap::new();
        for (id, task_type) in self.soon()? {
            if !self.path(&SpoolFile::Lease(id)).exists() {
                *free.entry(task_type).or_default() += 1;
            }
        }
        Ok(free)
    }

    /// Counts what lies here.
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

    /// Runs here of tasks that others have run, too. A run may be told of twice: when it began, and when it ended.
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

    /// Whether something waits to be sent, but for what is left for later.
    pub fn news(&self, later: &HashSet<u64>) -> Result<Option<News>> {
        if !self.has_news()? {
            return Ok(None);
        }
        let ops = self.outbox()?;
        let mut new = ops.iter().filter(|(seq, _)| !later.contains(seq)).peekable();
        if new.peek().is_none() {
            return Ok(None);
        }
        // Somebody waits for the bucket's word.
        Ok(Some(News { is_urgent: new.any(|(_, op)| matches!(op.deed, Deed::Claim { .. })) }))
    }

    /// The right to move things between this spool and the bucket, for as long as the file is open; nothing if another has
    /// it.
    pub fn supervise(&self) -> Result<Option<std::fs::File>> {
        match disk::locked_at_once(&self.root)? {
            None if !self.root.exists() => Err(internal("the folder of the outpost is gone")),
            lock => Ok(lock),
        }
    }

    /// Writes down an operation that nothing else on this node speaks of.
    pub fn note(&self, op: &Op) -> Result<u64> {
        self.append(op)
    }

    /// Keeps a result whose task others have by now: nothing that was finished is thrown away.
    pub fn keep_late(&self, held: &Held, output: Value, results: Artifacts) -> Result<()> {
        let deed = Deed::Complete { lease_id: held.lease.lease_id.clone(), output, results };
        let now = self.now();
        let note = Note::of_bucket(held.task.rev, None);
        self.conflict(&op(&held.task, &note, &now, deed), Why::TakenByOthers)
    }

    /// A claim that others' was in the way of had not led to a run: nothing was done twice.
    pub fn never_ran(&self, held: &Held) -> Result<()> {
        let deed = Deed::Claim { lease_id: held.lease.lease_id.clone(), from: None, is_unused: false };
        let claim = op(&held.task, &Note::of_bucket(held.task.rev, None), &self.now(), deed);
        let path = self.conflict_path(&claim);
        if path.exists() { self.disk.remove(&path, Lasting::No).map(|_| ()) } else { Ok(()) }
    }

    /// Somebody with the bucket has called the task off: whoever has it here learns of it at the next heartbeat.
    pub fn call_off(&self, id: &TaskId) -> Result<()> {
        let Some(folder) = self.locked(id)? else { return Ok(()) };
        let Some(kept) = folder.kept()? else { return Ok(()) };
        if kept.note.cancelled {
            return Ok(());
        }
        let note = Note { cancelled: true, ..kept.note };
        let record = Some(Kept { note, ..kept }.value());
        folder.make(Change { op: None, then: Then::Stay { record, lease: Next::Keep } }, Lasting::Yes)
    }

    /// Whether this claim in the bucket was made for whoever takes the task here.
    pub fn has_checkout(&self, id: &TaskId, lease_id: &LeaseId) -> Result<bool> {
        let Some(folder) = self.locked(id)? else { return Ok(false) };
        let checkout = folder.kept()?.and_then(|kept| kept.note.checkout);
        Ok(checkout.is_some_and(|checkout| checkout.lease_id == *lease_id))
    }

    /// Nobody may begin with this check-out any more; false if somebody has.
    pub fn withdraw(&self, id: &TaskId, lease_id: &LeaseId) -> Result<bool> {
        let Some(folder) = self.locked(id)? else { return Ok(false) };
        let Some(kept) = folder.kept()? else { return Ok(false) };
        let is_it = kept.note.checkout.as_ref().is_some_and(|checkout| checkout.lease_id == *lease_id);
        if !is_it || !matches!(folder.lease(&self.now())?, Found::Free) {
            return Ok(false);
        }
        let record = Some(Kept { note: Note { checkout: None, ..kept.note }, ..kept }.value());
        folder.make(Change { op: None, then: Then::Stay { record, lease: Next::Keep } }, Lasting::Yes)?;
        Ok(true)
    }
}
