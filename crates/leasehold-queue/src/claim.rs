//! Claiming a task.
//!
//! A worker claims the task of a ready entry by a conditional write that sets its status to running, with the worker,
//! a random lease id and an expiry. Of several workers that try, one succeeds. The claim is valid until it expires by
//! the store's clock, and is renewed or ended by [`settle`](crate::settle).
//!
//! Requests: 1 get (the task), 1 put (the claim), 1 put (the lease entry), 1 delete (the ready entry). The holder of
//! the lease on the shard, or on the inbox, leaves the entry in place until the task is settled, and saves the last
//! two: if that worker dies, the next holder of the shard, or the worker that empties the inbox, finds the task by
//! that entry.

use leasehold_core::{
    Entry, Error, Event, IndexLocation, LeaseId, Rejected, Result, State, Status, StoreTime, Task, TaskType,
    WorkerId,
};
use leasehold_store::Purpose;
use leasehold_store::mutant::breaks;
use std::time::Duration;
use tracing::Instrument;

use crate::connect::ObjectQueue;
use crate::discover::IndexHit;
use crate::layout::Intent;
use crate::tasks::{ChangeFrom, IndexUpdate, TaskSnapshot, Transition};

/// A claimed task.
#[derive(Debug, Clone, PartialEq)]
pub struct Claimed {
    pub(crate) loaded: TaskSnapshot,
    pub(crate) lease_id: LeaseId,
    pub(crate) by: WorkerId,
    /// The entry by which other workers find it, if known: the lease entry that was written with the claim, or the
    /// ready entry that was left in place. A renewal does not move it.
    pub(crate) entry: Option<Entry>,
    /// The task's revision after the claim.
    pub(crate) rev: u64,
}

impl Claimed {
    /// The task as last confirmed.
    #[must_use]
    pub fn task(&self) -> &Task {
        &self.loaded.task
    }

    /// Expiry of the claim, in the store's time.
    #[must_use]
    pub fn expires_at(&self) -> StoreTime {
        match &self.loaded.task.state {
            State::Running(claim) => claim.expires_at,
            _ => StoreTime::from_millis(0),
        }
    }

    /// The entries that exist: the one that was written or left in place, and, after a renewal, the one that the
    /// current record requires, which index cleanup may have written in place of the other.
    pub(crate) fn entries(&self) -> Option<Vec<Entry>> {
        let mut entries = vec![self.entry.clone()?];
        if self.loaded.task.rev > self.rev {
            entries.extend(self.loaded.task.entry());
        }
        Some(entries)
    }

    /// True if its cancellation was requested.
    #[must_use]
    pub fn cancel_requested(&self) -> bool {
        self.loaded.task.is_cancel_requested()
    }
}

/// Outcome of an attempt to claim the task of a ready entry.
#[derive(Debug)]
pub enum ClaimOutcome {
    /// The task is claimed by this worker.
    Claimed(Box<Claimed>),
    /// The task is not due before this time.
    NotDue(StoreTime),
    /// This worker has no handler for the task type.
    Foreign(TaskType),
    /// The entry is ahead of its task: the task does not exist yet, or has an older revision.
    Ahead,
    /// Another worker holds the task, until this time unless it renews; this worker could run it.
    Held(StoreTime),
    /// The entry is stale: the task has changed since.
    Stale,
    /// The record is corrupt and is left for an operator.
    Corrupt(Error),
    /// The task has expired.
    Expired,
}

impl ObjectQueue {
    /// Tries to claim the task of a ready entry. A claim whose outcome is unknown is an error, and counts as not
    /// held.
    pub async fn claim(
        &self,
        found: &IndexHit,
        worker: &WorkerId,
        lease: Duration,
        handles: &(dyn Fn(&TaskType) -> bool + Sync),
    ) -> Result<ClaimOutcome> {
        let span = tracing::debug_span!("claim", "task.id" = %found.entry.id, %worker);
        self.claim_and(found, worker, lease, handles, IndexUpdate::Change).instrument(span).await
    }

    /// Tries to claim a task as the holder of the lease on its shard, or on the inbox that has the entry. The entry
    /// stays until the task is settled, which saves 1 put and 1 delete.
    pub async fn claim_as_owner(
        &self,
        found: &IndexHit,
        worker: &WorkerId,
        lease: Duration,
        handles: &(dyn Fn(&TaskType) -> bool + Sync),
    ) -> Result<ClaimOutcome> {
        let span = tracing::debug_span!("claim", "task.id" = %found.entry.id, %worker);
        self.claim_and(found, worker, lease, handles, IndexUpdate::Nothing).instrument(span).await
    }

    async fn claim_and(
        &self,
        found: &IndexHit,
        worker: &WorkerId,
        lease: Duration,
        handles: &(dyn Fn(&TaskType) -> bool + Sync),
        index_update: IndexUpdate,
    ) -> Result<ClaimOutcome> {
        let entry = &found.entry;
        self.ensure_allowed(Intent::Change).await?;
        if breaks("reads-twice") {
            self.load(Purpose::Claim, &entry.id).await?;
        }
        let loaded = match self.load(Purpose::Claim, &entry.id).await {
            Ok(Some(loaded)) => loaded,
            Ok(None) => return Ok(ClaimOutcome::Ahead),
            Err(error) if error.kind() == leasehold_core::Kind::Corrupt => {
                return Ok(ClaimOutcome::Corrupt(error));
            }
            Err(error) => return Err(error),
        };
        if entry.rev > loaded.task.rev {
            return Ok(ClaimOutcome::Ahead);
        }
        match &loaded.task.state {
            State::Pending { .. } if handles(&loaded.task.task_type) => {}
            State::Pending { .. } => {
                if let IndexLocation::Inbox(_) = entry.location {
                    // No other worker scans this inbox.
                    self.cover_then_remove(loaded.task.entry().as_ref(), entry).await?;
                    self.ring(Purpose::Claim).await;
                }
                return Ok(ClaimOutcome::Foreign(loaded.task.task_type));
            }
            State::Running(claim) if handles(&loaded.task.task_type) => {
                return Ok(ClaimOutcome::Held(claim.expires_at));
            }
            _ => return Ok(ClaimOutcome::Stale),
        }
        let lease_id = self.random_name();
        let event = Event::Claim { worker: worker.clone(), lease_id: lease_id.clone(), lease };
        // A stale pointer does not lead to the running task as the required entry does.
        let is_behind = entry.shard().is_none() && entry.rev < loaded.task.rev;
        let index_update = if is_behind { IndexUpdate::Change } else { index_update };
        let stays = matches!(index_update, IndexUpdate::Nothing);
        let index_update = match index_update {
            // The existing entry is not the one that the record requires.
            IndexUpdate::Change if entry.shard().is_none() && !is_behind => {
                IndexUpdate::Removing(vec![entry.clone()])
            }
            index_update => index_update,
        };
        let (from, by) = (ChangeFrom::Read(&loaded), worker.as_str());
        let claimed = match self.change(Purpose::Claim, from, &event, by, index_update).await? {
            Transition::Done(loaded) => {
                let entry = if stays { Some(entry.clone()) } else { loaded.task.entry() };
                Claimed { entry, rev: loaded.task.rev, loaded, lease_id, by: worker.clone() }
            }
            Transition::Superseded(loaded) if loaded.task.lease_id.as_ref() == Some(&lease_id) => {
                Claimed { entry: None, rev: loaded.task.rev, loaded, lease_id, by: worker.clone() }
            }
            Transition::Rejected(Rejected::NotBefore(_), _) if is_behind => return Ok(ClaimOutcome::Stale),
            Transition::Rejected(Rejected::NotBefore(at), _) => return Ok(ClaimOutcome::NotDue(at)),
            Transition::Rejected(Rejected::TooLate(_), _) => return Ok(ClaimOutcome::Expired),
            Transition::Rejected(_, loaded)
            | Transition::Superseded(loaded)
            | Transition::Changed(loaded) => {
                return Ok(lost_to(&loaded.task));
            }
            Transition::Missing => return Ok(ClaimOutcome::Stale),
        };
        if claimed.loaded.task.status() != Status::Running {
            return Ok(ClaimOutcome::Stale);
        }
        Ok(ClaimOutcome::Claimed(Box::new(claimed)))
    }
}

/// The outcome when another worker was faster.
fn lost_to(task: &Task) -> ClaimOutcome {
    match &task.state {
        State::Running(claim) => ClaimOutcome::Held(claim.expires_at),
        _ => ClaimOutcome::Stale,
    }
}
