//! Copies of the bucket's tasks for the workers of this node, confirmations and revocations of claims.
//!
//! The supervisor calls them. None of them touches a task that a worker here holds, or that has unsent operations.

use leasehold_core::outpost::{DiskLease, SpoolFile};
use leasehold_core::{Error, LeaseId, Result, State, Status, Task, TaskId, TaskIdPrefix};
use std::collections::BTreeSet;

use super::change::LeaseChange;
use super::folder::{LeaseFile, TaskFolder};
use super::record::{Note, NotedRecord, as_pending};
use super::{Checkout, LocalTask, Spool};
use crate::disk::{self, Durable};

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
    pub fn local_tasks(&self) -> Result<Vec<LocalTask>> {
        let ids = self.ids_in("pending")?;
        let copies = ids.iter().filter_map(|id| self.local_task(id).transpose());
        copies.collect()
    }

    /// Copies a task of the bucket to this node, with the claim that was made there in advance, if any.
    pub fn mirror(&self, task: &Task, checkout: Option<Checkout>) -> Result<Mirrored> {
        let is_ours = matches!(task.state, State::Running(_)) && checkout.is_some();
        if task.status() != Status::Pending && !is_ours {
            return Err(Error::invalid(format!("cannot mirror task {}: it is {}", task.id, task.status())));
        }
        let noted = NotedRecord { task: as_pending(task), note: Note::of_bucket(task.rev, checkout) };
        if let Some(folder) = self.lock_task(&task.id)? {
            return folder.mirror(noted);
        }
        Ok(if self.create_task_folder(&noted, None)? { Mirrored::Written } else { Mirrored::Busy })
    }

    /// Removes the copy of a task that is no longer free in the bucket, or does not exist there; false if a worker here holds
    /// it, or if it has unsent operations.
    pub fn remove_copy(&self, id: &TaskId) -> Result<bool> {
        let Some(folder) = self.lock_task(id)? else { return Ok(false) };
        let is_free =
            matches!(folder.lease(&self.now())?, LeaseFile::Free | LeaseFile::Corrupt { is_old: Some(true) });
        if !is_free || folder.record()?.is_none() || self.has_other_ops(id, None)? {
            return Ok(false);
        }
        self.disk.remove_directory(&folder.path)?;
        Ok(true)
    }

    /// Records that the bucket has confirmed a claim; false if no worker here holds it.
    pub fn confirm(&self, id: &TaskId, lease_id: &LeaseId, remote: &Task) -> Result<bool> {
        let Some((folder, noted, lease)) = self.with_lease(id, lease_id)? else { return Ok(false) };
        let cancelled = noted.note.cancelled || remote.is_cancel_requested();
        let note = Note { cancelled, ..Note::of_bucket(remote.rev, noted.note.checkout.clone()) };
        let lease = DiskLease { tentative: false, epoch: remote.epoch, attempt: remote.attempt, ..lease };
        let noted = NotedRecord { task: as_pending(remote), note };
        folder.rewrite(&noted, None, LeaseChange::Replace(lease)).map(|()| true)
    }

    /// Revokes a lease, which its holder notices at the next heartbeat, and removes the copy unless `keeps_copy`; false if no
    /// worker here holds it.
    pub fn revoke(&self, id: &TaskId, lease_id: &LeaseId, keeps_copy: bool) -> Result<bool> {
        let Some((folder, mut noted, _)) = self.with_lease(id, lease_id)? else { return Ok(false) };
        if !keeps_copy {
            self.disk.remove_directory(&folder.path)?;
            return Ok(true);
        }
        // A check-out is void, too.
        noted.note.checkout = None;
        folder.rewrite(&noted, None, LeaseChange::Drop).map(|()| true)
    }

    /// Replaces the record of a task that has ended here by the bucket's record.
    pub fn replace_final(&self, remote: &Task) -> Result<()> {
        let _lock = self.lock_folder("failed")?;
        drop(self.lock_task(&remote.id)?);
        let [completed, failed] =
            [SpoolFile::Completed(remote.id), SpoolFile::Failed(remote.id)].map(|file| self.path(&file));
        if !remote.status().is_final() || !(completed.exists() || failed.exists()) {
            return Ok(());
        }
        let (to, other) =
            if remote.status() == Status::Completed { (completed, failed) } else { (failed, completed) };
        let noted = NotedRecord { task: remote.clone(), note: Note::of_bucket(remote.rev, None) };
        self.disk.replace(&to, noted.value().to_string().as_bytes(), Durable::Yes)?;
        if other.exists() {
            self.disk.remove(&other, Durable::Yes)?;
        }
        Ok(())
    }

    /// Finds the only task here whose id begins with these characters.
    pub fn find(&self, prefix: &TaskIdPrefix) -> Result<TaskId> {
        let mut found = BTreeSet::new();
        for folder in ["pending", "completed", "failed"] {
            found.extend(self.ids_in(folder)?);
        }
        found.retain(|id| prefix.matches(id));
        prefix.resolve(&found)
    }

    /// The tasks in a folder: directories in `pending/`, files elsewhere.
    pub(super) fn ids_in(&self, folder: &str) -> Result<Vec<TaskId>> {
        let names = disk::names(&self.root.join(folder))?;
        Ok(names.iter().filter_map(|name| name.strip_suffix(".json").unwrap_or(name).parse().ok()).collect())
    }

    /// Reads the record of a pending or running task without its lock; `None` if it is gone, or corrupt.
    pub(super) fn pending_record(&self, id: &TaskId) -> Result<Option<NotedRecord>> {
        let body = disk::read(&self.path(&SpoolFile::Task(*id)))?;
        Ok(body.and_then(|body| NotedRecord::read(id, &body).ok()))
    }

    /// Reads a task without its lock: it may be gone, or incomplete.
    pub(super) fn local_task(&self, id: &TaskId) -> Result<Option<LocalTask>> {
        let Some(NotedRecord { task, note }) = self.pending_record(id)? else { return Ok(None) };
        let lease = self.lease_of(id)?;
        Ok(Some(LocalTask { task, lease, base_rev: note.base_rev, checkout: note.checkout }))
    }

    fn with_lease(
        &self,
        id: &TaskId,
        lease_id: &LeaseId,
    ) -> Result<Option<(TaskFolder<'_>, NotedRecord, DiskLease)>> {
        let Some(folder) = self.lock_task(id)? else { return Ok(None) };
        let Some(noted) = folder.record()? else { return Ok(None) };
        match folder.lease(&self.now())? {
            LeaseFile::Lease(lease) if lease.lease_id == *lease_id => Ok(Some((folder, noted, lease))),
            _ => Ok(None),
        }
    }
}

impl TaskFolder<'_> {
    fn mirror(&self, from: NotedRecord) -> Result<Mirrored> {
        let Some(there) = self.record()? else { return Ok(Mirrored::Busy) };
        let next = match self.lease(&self.spool.now())? {
            LeaseFile::Corrupt { .. } => return Ok(Mirrored::Busy),
            LeaseFile::Lease(lease) => {
                // Updates only the expiry of the claim in the bucket.
                let is_its =
                    from.note.checkout.as_ref().is_some_and(|checkout| checkout.lease_id == lease.lease_id);
                if !is_its {
                    return Ok(Mirrored::Busy);
                }
                let note = Note { checkout: from.note.checkout, ..there.note.clone() };
                NotedRecord { task: there.task.clone(), note }
            }
            LeaseFile::Free => {
                let claim = from.note.checkout.as_ref().map(|checkout| &checkout.lease_id);
                if self.spool.has_other_ops(&self.id, claim)? {
                    return Ok(Mirrored::Busy);
                }
                from
            }
        };
        if next == there {
            return Ok(Mirrored::Same);
        }
        let path = self.spool.path(&SpoolFile::Task(self.id));
        self.spool.disk.replace(&path, next.value().to_string().as_bytes(), Durable::Yes)?;
        Ok(Mirrored::Written)
    }
}
