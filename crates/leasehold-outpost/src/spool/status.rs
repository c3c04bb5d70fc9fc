//! Counts of a spool, and operations of the supervisor on conflicts and check-outs.

use leasehold_core::outpost::{OpKind, SyncRefusal};
use leasehold_core::settlement::Settlement;
use leasehold_core::{Error, Kind, LeaseId, Result, TaskId};
use serde::Serialize;
use std::collections::HashSet;
use std::path::PathBuf;

use super::change::LeaseChange;
use super::folder::LeaseFile;
use super::outbox::{Conflict, op};
use super::record::Note;
use super::{HeldTask, LocalTask, Spool};
use crate::disk::{self, Durable};

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

impl Spool {
    /// Counts the tasks and files of this node.
    pub fn count(&self) -> Result<SpoolCounts> {
        let files = |folder: &str| Ok(disk::names(&self.root.join(folder))?.len() as u64);
        let mut counts = SpoolCounts {
            completed: files("completed")?,
            failed: files("failed")?,
            outbox: files("outbox")?,
            conflicts: files("conflicts")?,
            duplicates: self.count_duplicate_runs()?,
            ..SpoolCounts::default()
        };
        for LocalTask { lease, checkout, .. } in self.local_tasks()? {
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
    fn count_duplicate_runs(&self) -> Result<u64> {
        let conflicts = self.conflicts()?;
        let duplicates = conflicts.iter().filter(|(_, conflict)| conflict.why.is_duplicate_run());
        let runs: HashSet<_> = duplicates.filter_map(|(_, conflict)| conflict.op.kind.lease_id()).collect();
        Ok(runs.len() as u64)
    }

    /// Reads the claims and results that the bucket has rejected, with their files.
    pub(super) fn conflicts(&self) -> Result<Vec<(PathBuf, Conflict)>> {
        let (folder, mut conflicts) = (self.root.join("conflicts"), Vec::new());
        for name in disk::names(&folder)? {
            let body = disk::read(&folder.join(&name))?.unwrap_or_default();
            conflicts
                .extend(serde_json::from_slice(&body).ok().map(|conflict| (folder.join(name), conflict)));
        }
        Ok(conflicts)
    }

    /// Takes the supervisor's lock, held as long as the file is open; `None` if another process holds it.
    pub fn try_lock_supervisor(&self) -> Result<Option<std::fs::File>> {
        match disk::try_lock(&self.root)? {
            None if !self.root.exists() => {
                Err(Error::new(Kind::Internal, "the folder of the outpost is missing"))
            }
            lock => Ok(lock),
        }
    }

    /// Keeps a result whose task another worker holds by now: no finished result is discarded.
    pub fn keep_late_result(&self, held: &HeldTask, settlement: Settlement) -> Result<()> {
        let now = self.now();
        let kind = OpKind::ending(settlement.event(held.lease.lease_id.clone(), now.present()))?;
        if !matches!(kind, OpKind::Complete { .. }) {
            return Ok(());
        }
        let note = Note::of_bucket(held.task.rev, None);
        self.record_conflict(&op(&held.task, &note, &now, kind), SyncRefusal::TakenByOthers)
    }

    /// Removes the conflict of a claim that lost to another worker before its handler ran: it is no duplicate run.
    pub fn remove_claim_conflict(&self, held: &HeldTask) -> Result<()> {
        let kind = OpKind::Claim { lease_id: held.lease.lease_id.clone(), from: None, is_unused: false };
        let claim = op(&held.task, &Note::of_bucket(held.task.rev, None), &self.now(), kind);
        self.disk.remove(&self.conflict_path(&claim), Durable::No).map(|_| ())
    }

    /// Marks a task that was cancelled in the bucket: its holder here stops at the next heartbeat.
    pub fn mark_cancelled(&self, id: &TaskId) -> Result<()> {
        let Some(folder) = self.lock_task(id)? else { return Ok(()) };
        let Some(mut noted) = folder.record()? else { return Ok(()) };
        if std::mem::replace(&mut noted.note.cancelled, true) {
            return Ok(());
        }
        folder.rewrite(&noted, None, LeaseChange::Keep)
    }

    /// Returns whether this claim in the bucket is a check-out of this node.
    pub fn has_checkout(&self, id: &TaskId, lease_id: &LeaseId) -> Result<bool> {
        let Some(folder) = self.lock_task(id)? else { return Ok(false) };
        let checkout = folder.record()?.and_then(|noted| noted.note.checkout);
        Ok(checkout.is_some_and(|checkout| checkout.lease_id == *lease_id))
    }

    /// Withdraws a check-out, so that no worker starts under it; false if one has.
    pub fn withdraw(&self, id: &TaskId, lease_id: &LeaseId) -> Result<bool> {
        let Some(folder) = self.lock_task(id)? else { return Ok(false) };
        let Some(mut noted) = folder.record()? else { return Ok(false) };
        let withdrawn = noted.note.checkout.take_if(|checkout| checkout.lease_id == *lease_id);
        if withdrawn.is_none() || !matches!(folder.lease(&self.now())?, LeaseFile::Free) {
            return Ok(false);
        }
        folder.rewrite(&noted, None, LeaseChange::Keep).map(|()| true)
    }
}
