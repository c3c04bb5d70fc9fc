//! Index cleanup: removing entries that do not match their task.
//!
//! An index entry is a hint that is written before or after its task, never in one step with it, so a scan can find
//! *unneeded* entries, which no task requires: outdated ones, and ones ahead of their task. Two rules make their removal
//! safe:
//!
//! * **Cover, then remove** (rule 2). An *outdated* entry (its task has a later revision, or requires another entry) is
//!   removed only after the required entry was written.
//! * **No removal without a fence** (rule 4). An entry *ahead* of its task — no task, or a smaller revision — is not
//!   touched during the grace period. After that a conditional write makes sure that it can never become valid, and
//!   only then is it removed.
//!
//! Keeping an entry is always safe (promise P9); removing it requires that the task was read since the entry was
//! found. Cleanup also times out claims that have expired, and expires pending tasks.
//!
//! Requests: 1 get per entry; a removal is 1 delete and at most 1 put more.

use leasehold_core::{Entry, Error, Event, Kind, Result, State, Status, StoreTime, Task};
use leasehold_store::Purpose;
use leasehold_store::mutant::breaks;

use crate::connect::ObjectQueue;
use crate::discover::IndexHit;
use crate::meta_cache::Intent;
use crate::tasks::{ChangeFrom, IndexUpdate, TaskSnapshot, Transition};

/// Outcome of the cleanup of one entry.
#[derive(Debug)]
pub enum Swept {
    /// The entry is valid.
    Fine,
    /// Check again at this time.
    Later(StoreTime),
    /// A worker holds the task: check again at this time, when the claim expires or before.
    Held(StoreTime),
    /// The task was changed: timed out, or expired.
    Changed(Box<Task>),
    /// The entry was removed.
    Removed,
    /// The task is corrupt and is left for an operator.
    Corrupt(Error),
}

impl ObjectQueue {
    /// Checks one entry of either index against its task, and removes it or changes the task if the rules allow it.
    pub async fn sweep(&self, found: &IndexHit) -> Result<Swept> {
        let entry = &found.entry;
        self.ensure_allowed(Intent::Change).await?;
        let loaded = match self.load(Purpose::Sweep, &entry.id).await {
            Ok(loaded) => loaded,
            Err(error) if error.kind() == Kind::Corrupt => return Ok(Swept::Corrupt(error)),
            Err(error) => return Err(error),
        };
        match loaded {
            Some(loaded) if entry.rev <= loaded.task.rev => self.sweep_not_ahead(found, loaded).await,
            ahead => self.sweep_ahead(found, ahead).await,
        }
    }

    async fn sweep_not_ahead(&self, found: &IndexHit, loaded: TaskSnapshot) -> Result<Swept> {
        let (entry, task, now) = (&found.entry, &loaded.task, self.now()?);
        let event = match &task.state {
            State::Running(claim) if now.is_past(claim.expires_at) => Some(Event::TimeOut),
            State::Pending { .. } if task.expires_at.is_some_and(|at| now.is_past(at)) => Some(Event::Expire),
            _ => None,
        };
        if let Some(event) = event {
            return Ok(match self.change_task(&loaded, &event).await? {
                Transition::Done(changed) => Swept::Changed(Box::new(changed.task)),
                _ => Swept::Fine,
            });
        }
        let required = task.entry();
        if required.as_ref() == Some(entry) || is_valid_inbox_entry(entry, task) {
            return Ok(match &task.state {
                State::Running(claim) => Swept::Held(claim.expires_at),
                _ => Swept::Fine,
            });
        }
        let left_at = found.written_at.max(task.updated_at).plus(self.config.outdated_grace);
        if !now.is_past(left_at) {
            // The client that changed the task is probably about to remove the entry. If a claimer crashed before it
            // wrote its lease entry, this one is the only entry of the task.
            return Ok(match &task.state {
                State::Running(claim) => Swept::Held(claim.expires_at.min(left_at)),
                _ => Swept::Later(left_at),
            });
        }
        self.cover_then_remove(required.as_ref(), entry).await?;
        Ok(Swept::Removed)
    }

    pub(crate) async fn cover_then_remove(&self, required: Option<&Entry>, existing: &Entry) -> Result<()> {
        if let Some(required) = required.filter(|_| !breaks("no-cover")) {
            self.put_entry(Purpose::Sweep, required).await?;
        }
        self.remove_entry(Purpose::Sweep, existing).await;
        Ok(())
    }

    async fn sweep_ahead(&self, found: &IndexHit, loaded: Option<TaskSnapshot>) -> Result<Swept> {
        let until = found.written_at.plus(self.config.ahead_grace);
        if !self.now()?.is_past(until) {
            return Ok(Swept::Later(until));
        }
        if self.belongs_to_migration(&found.entry) {
            return Ok(Swept::Later(self.now()?.latest_known().plus(self.config.ahead_grace)));
        }
        let is_fenced = match loaded {
            None if found.entry.rev == 1 => self.fence_task(&found.entry.id).await?,
            // Only a task that existed has entries of later revisions: it was purged.
            None => true,
            Some(loaded) if loaded.task.status().is_final() => {
                matches!(self.change_task(&loaded, &Event::Fence).await?, Transition::Done(_))
            }
            Some(_) => false,
        };
        if !is_fenced {
            return Ok(Swept::Fine);
        }
        self.remove_entry(Purpose::Sweep, &found.entry).await;
        Ok(Swept::Removed)
    }

    async fn change_task(&self, loaded: &TaskSnapshot, event: &Event) -> Result<Transition> {
        self.change(Purpose::Sweep, ChangeFrom::Read(loaded), event, IndexUpdate::Change).await
    }

    /// True if an entry belongs to the other shard length of a migration. Its task may be stored at a key of that length,
    /// too, where a tombstone at a key of the current length does not fence it.
    pub(crate) fn belongs_to_migration(&self, entry: &Entry) -> bool {
        !entry.has_shard_len(self.shard_len()) && self.meta_cache.known().meta.may_have_old_keys()
    }
}

/// True if an entry in an inbox or in the overflow is valid for a pending task in place of the entry that its record
/// requires.
pub(crate) fn is_valid_inbox_entry(entry: &Entry, task: &Task) -> bool {
    entry.shard().is_none() && entry.rev == task.rev && task.status() == Status::Pending
}
