//! Copies of the bucket's tasks for the workers of this node, confirmations and revocations of claims.
//!
//! The supervisor calls them. None of them touches a task that a worker here holds, or that has unsent operations.

use leasehold_core::outpost::{DiskLease, SpoolFile};
use leasehold_core::{Error, LeaseId, Result, State, Status, Task, TaskId, TaskIdPrefix};
use std::collections::BTreeSet;

use super::change::{ChangeOutcome, FileChange, LeaseChange, SpoolChange};
use super::folder::{Folder, Found};
use super::kept::{Note, NotedRecord, as_pending};
use super::{Checkout, Copy, Spool};
use crate::disk::{self, Lasting};

/// Outcome of copying a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mirrored {
    /// The copy was written.
    Written,
    /// A worker here holds the task, or it has unsent operations.
    Busy,
    /// The copy was there already.
    Same,
}

impl Spool {
    /// Lists every pending or running task of this node, in no order.
    pub fn waiting(&self) -> Result<Vec<Copy>> {
        let ids = self.pending_ids()?;
        let copies = ids.iter().filter_map(|id| self.copy_of(id).transpose());
        copies.collect()
    }

    /// Copies a task of the bucket to this node, with the claim that was made there in advance, if any.
    pub fn mirror(&self, task: &Task, checkout: Option<Checkout>) -> Result<Mirrored> {
        let is_ours = matches!(task.state, State::Running(_)) && checkout.is_some();
        if task.status() != Status::Pending && !is_ours {
            return Err(Error::invalid(format!("cannot mirror task {}: it is {}", task.id, task.status())));
        }
        let kept = NotedRecord { task: as_pending(task), note: Note::of_bucket(task.rev, checkout) };
        if let Some(folder) = self.locked(&task.id)? {
            return folder.mirror(kept);
        }
        let claim = kept.note.checkout.as_ref().map(|checkout| &checkout.lease_id);
        if self.has_ops_besides(&task.id, claim)? {
            return Ok(Mirrored::Busy);
        }
        match self.begin(&kept, None)? {
            ChangeOutcome::There => Ok(Mirrored::Written),
            ChangeOutcome::Gone | ChangeOutcome::Beaten => Ok(Mirrored::Busy),
        }
    }

    /// Removes the copy of a task that is no longer free in the bucket, or does not exist there; false if a worker here holds
    /// it, or if it has unsent operations.
    pub fn forget(&self, id: &TaskId) -> Result<bool> {
        let Some(folder) = self.locked(id)? else { return Ok(false) };
        let now = self.now();
        match folder.lease(&now)? {
            Found::Free | Found::Torn { is_old: true } => {}
            Found::Lease(_) => return Ok(false),
            Found::Torn { is_old: false } => return folder.note_torn(&now).map(|()| false),
        }
        if folder.kept()?.is_none() || self.has_ops(id)? {
            return Ok(false);
        }
        self.disk.take_away(&folder.path)?;
        Ok(true)
    }

    /// Records that the bucket has confirmed a claim; false if no worker here holds it.
    pub fn confirm(&self, id: &TaskId, lease_id: &LeaseId, remote: &Task) -> Result<bool> {
        let Some((folder, kept, lease)) = self.with_lease(id, lease_id)? else { return Ok(false) };
        let is_called_off = matches!(&remote.state, State::Running(claim) if claim.cancel_requested);
        let cancelled = kept.note.cancelled || is_called_off;
        let note = Note { cancelled, ..Note::of_bucket(remote.rev, kept.note.checkout) };
        let record = NotedRecord { task: as_pending(remote), note }.value();
        let lease = DiskLease { tentative: false, epoch: remote.epoch, attempt: remote.attempt, ..lease };
        let then = FileChange::Stay { record: Some(record), lease: LeaseChange::Replace(lease) };
        folder.make(SpoolChange { op: None, then }, Lasting::Yes)?;
        Ok(true)
    }

    /// Revokes a lease, which its holder notices at the next heartbeat, and removes the copy unless `keeps_copy`; false if no
    /// worker here holds it.
    pub fn revoke(&self, id: &TaskId, lease_id: &LeaseId, keeps_copy: bool) -> Result<bool> {
        let Some((folder, kept, _)) = self.with_lease(id, lease_id)? else { return Ok(false) };
        if !keeps_copy {
            self.disk.take_away(&folder.path)?;
            return Ok(true);
        }
        // A check-out is void, too.
        let note = Note { checkout: None, ..kept.note };
        let record = Some(NotedRecord { note, ..kept }.value());
        folder.make(
            SpoolChange { op: None, then: FileChange::Stay { record, lease: LeaseChange::Drop } },
            Lasting::Yes,
        )?;
        Ok(true)
    }

    /// Replaces the record of a task that has ended here by the bucket's record.
    pub fn replace_final(&self, remote: &Task) -> Result<()> {
        let _lock = self.locked_failed()?;
        drop(self.locked(&remote.id)?);
        let [completed, failed] =
            [SpoolFile::Completed(remote.id), SpoolFile::Failed(remote.id)].map(|file| self.path(&file));
        if !remote.status().is_final() || !(completed.exists() || failed.exists()) {
            return Ok(());
        }
        let (to, other) =
            if remote.status() == Status::Completed { (completed, failed) } else { (failed, completed) };
        let kept = NotedRecord { task: remote.clone(), note: Note::of_bucket(remote.rev, None) };
        self.disk.replace(&to, kept.value().to_string().as_bytes(), Lasting::Yes)?;
        if other.exists() {
            self.disk.remove(&other, Lasting::Yes)?;
        }
        Ok(())
    }

    /// Finds the only task here whose id begins with these characters.
    pub fn find(&self, prefix: &TaskIdPrefix) -> Result<TaskId> {
        let mut found: BTreeSet<TaskId> = self.pending_ids()?.into_iter().collect();
        for folder in ["completed", "failed"] {
            let names = disk::names(&self.root.join(folder))?;
            found.extend(names.iter().filter_map(|name| name.strip_suffix(".json")?.parse::<TaskId>().ok()));
        }
        found.retain(|id| prefix.fits(id));
        prefix.only(&found)
    }

    pub(super) fn pending_ids(&self) -> Result<Vec<TaskId>> {
        let names = disk::names(&self.root.join("pending"))?;
        Ok(names.iter().filter_map(|name| name.parse().ok()).collect())
    }

    /// Reads a task without its lock: it may be gone, or incomplete.
    fn copy_of(&self, id: &TaskId) -> Result<Option<Copy>> {
        let Some(body) = disk::read(&self.path(&SpoolFile::Task(*id)))? else { return Ok(None) };
        let Ok(NotedRecord { task, note }) = NotedRecord::read(id, &body) else { return Ok(None) };
        let lease = self.lease_of(id)?;
        let Note { base_rev, checkout, cancelled, .. } = note;
        Ok(Some(Copy { task, lease, base_rev, checkout, cancelled }))
    }

    fn with_lease(
        &self,
        id: &TaskId,
        lease_id: &LeaseId,
    ) -> Result<Option<(Folder<'_>, NotedRecord, DiskLease)>> {
        let Some(folder) = self.locked(id)? else { return Ok(None) };
        let Some(kept) = folder.kept()? else { return Ok(None) };
        match folder.lease(&self.now())? {
            Found::Lease(lease) if lease.lease_id == *lease_id => Ok(Some((folder, kept, lease))),
            _ => Ok(None),
        }
    }
}

impl Folder<'_> {
    fn mirror(&self, from: NotedRecord) -> Result<Mirrored> {
        let Some(there) = self.kept()? else { return Ok(Mirrored::Busy) };
        let next = match self.lease(&self.spool.now())? {
            Found::Torn { .. } => return Ok(Mirrored::Busy),
            Found::Lease(lease) => {
                // Updates only the expiry of the claim in the bucket.
                let is_its =
                    from.note.checkout.as_ref().is_some_and(|checkout| checkout.lease_id == lease.lease_id);
                if !is_its {
                    return Ok(Mirrored::Busy);
                }
                let note = Note { checkout: from.note.checkout, ..there.note.clone() };
                NotedRecord { task: there.task.clone(), note }
            }
            Found::Free => {
                let claim = from.note.checkout.as_ref().map(|checkout| &checkout.lease_id);
                if self.spool.has_ops_besides(&self.id, claim)? {
                    return Ok(Mirrored::Busy);
                }
                from
            }
        };
        if next == there {
            return Ok(Mirrored::Same);
        }
        let path = self.spool.path(&SpoolFile::Task(self.id));
        self.spool.disk.replace(&path, next.value().to_string().as_bytes(), Lasting::Yes)?;
        Ok(Mirrored::Written)
    }
}
