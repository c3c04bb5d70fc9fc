//! Claiming a task, renewing the claim, and ending it.
//!
//! A worker claims the task of a ready entry by a conditional write that sets its status to running, with the worker,
//! a random lease id and an expiry. Of several workers that try, one succeeds. The claim is valid until it expires by
//! the store's clock. The holder renews it while the handler runs, and settles the task when the handler has stopped:
//! complete, fail, snooze, release or stop. Both are conditional writes that require the claim's lease id. A worker
//! that lost its claim can change nothing.
//!
//! Requests of a claim: 1 get (the task), 1 put (the claim), 1 put (the lease entry), 1 delete (the ready entry). The holder of
//! the lease on the shard, or on the inbox, leaves the entry in place until the task is settled, and saves the last
//! two: if that worker crashes, the next holder of the shard, or the worker that empties the inbox, finds the task by
//! that entry. A renewal is 1 put. A settlement is 1 put and 1 delete, and 1 more put (the ready entry, first) if the
//! task runs again.

use leasehold_core::ids::TaskTypes;
use leasehold_core::new_task::check_size;
pub use leasehold_core::scan::Unclaimed;
pub use leasehold_core::settlement::Settlement;
use leasehold_core::{
    Entry, Event, IndexLocation, Kind, LeaseId, Rejected, Result, State, Status, StoreTime, Task, WorkerId,
};
use leasehold_store::mutant::breaks;
use leasehold_store::{HostExt, Purpose};
use serde_json::Value;
use std::time::Duration;
use tracing::Instrument;

use crate::connect::ObjectQueue;
use crate::discover::IndexHit;
use crate::meta_cache::Intent;
use crate::tasks::{ChangeFrom, IndexUpdate, TaskSnapshot, Transition};

/// A claimed task.
#[derive(Debug, Clone, PartialEq)]
pub struct Claimed {
    pub(crate) loaded: TaskSnapshot,
    pub(crate) lease_id: LeaseId,
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
}

/// Outcome of an attempt to claim the task of a ready entry.
pub type ClaimOutcome = std::result::Result<Box<Claimed>, Unclaimed>;

impl ObjectQueue {
    /// Tries to claim the task of a ready entry, if it has one of these types. A claim whose outcome is unknown is an
    /// error, and counts as not held.
    ///
    /// `is_owner` is true if the worker holds the lease on the task's shard, or on the inbox that has the entry. The entry
    /// then stays until the task is settled, which saves 1 put and 1 delete.
    pub async fn claim(
        &self,
        found: &IndexHit,
        worker: &WorkerId,
        lease: Duration,
        types: &TaskTypes,
        is_owner: bool,
    ) -> Result<ClaimOutcome> {
        let span = tracing::debug_span!("claim", "task.id" = %found.entry.id, %worker);
        let claim = async {
            match self.claimable(&found.entry, types).await? {
                Ok(loaded) => self.claim_pending(&found.entry, &loaded, worker, lease, is_owner).await,
                Err(why) => Ok(Err(why)),
            }
        };
        claim.instrument(span).await
    }

    /// Reads the task of an entry, which may be claimed if it is due.
    async fn claimable(
        &self,
        entry: &Entry,
        types: &TaskTypes,
    ) -> Result<std::result::Result<TaskSnapshot, Unclaimed>> {
        self.ensure_allowed(Intent::Change).await?;
        if breaks("reads-twice") {
            self.load(Purpose::Claim, &entry.id).await?;
        }
        let loaded = match self.load(Purpose::Claim, &entry.id).await {
            Ok(Some(loaded)) if entry.rev <= loaded.task.rev => loaded,
            Ok(_) => return Ok(Err(Unclaimed::Ahead)),
            Err(error) if error.kind() == Kind::Corrupt => return Ok(Err(Unclaimed::Corrupt(error))),
            Err(error) => return Err(error),
        };
        let is_handled = types.contains(&loaded.task.task_type);
        Ok(match &loaded.task.state {
            State::Pending { .. } if is_handled => Ok(loaded),
            State::Pending { .. } => {
                if let IndexLocation::Inbox(_) = entry.location {
                    // No other worker scans this inbox.
                    self.cover_then_remove(loaded.task.entry().as_ref(), entry).await?;
                    self.ring(Purpose::Claim, None).await;
                }
                Err(Unclaimed::NoHandler)
            }
            State::Running(claim) if is_handled => Err(Unclaimed::Held(claim.expires_at)),
            _ => Err(Unclaimed::Outdated),
        })
    }

    async fn claim_pending(
        &self,
        entry: &Entry,
        loaded: &TaskSnapshot,
        worker: &WorkerId,
        lease: Duration,
        is_owner: bool,
    ) -> Result<ClaimOutcome> {
        let lease_id = self.client.host().random_name();
        let event = Event::Claim { worker: worker.clone(), lease_id: lease_id.clone(), lease };
        // An outdated inbox entry does not lead to the running task as the required entry does.
        let is_behind = entry.shard().is_none() && entry.rev < loaded.task.rev;
        let stays = is_owner && !is_behind;
        let index_update = match () {
            () if stays => IndexUpdate::Nothing,
            // The existing entry is not the one that the record requires.
            () if entry.shard().is_none() && !is_behind => IndexUpdate::Removing(vec![entry.clone()]),
            () => IndexUpdate::Change,
        };
        let claimed = self.change(Purpose::Claim, ChangeFrom::Read(loaded), &event, index_update).await?;
        let (entry, loaded) = match claimed {
            Transition::Done(now) if stays => (Some(entry.clone()), now),
            Transition::Done(now) => (now.task.entry(), now),
            Transition::Superseded(now) if now.task.lease_id.as_ref() == Some(&lease_id) => (None, now),
            Transition::Rejected(Rejected::NotBefore(at), _) if !is_behind => {
                return Ok(Err(Unclaimed::NotDue(at)));
            }
            Transition::Rejected(Rejected::TooLate(_), _) => return Ok(Err(Unclaimed::Expired)),
            Transition::Rejected(_, now) | Transition::Superseded(now) | Transition::Stale(now) => {
                return Ok(Err(lost_to(&now.task)));
            }
            Transition::Missing => return Ok(Err(Unclaimed::Outdated)),
        };
        if loaded.task.status() != Status::Running {
            return Ok(Err(Unclaimed::Outdated));
        }
        Ok(Ok(Box::new(Claimed { entry, rev: loaded.task.rev, loaded, lease_id })))
    }

    /// Renews a claim; none if it was lost, and then the handler must stop at once.
    pub async fn renew(
        &self,
        claimed: &Claimed,
        lease: Duration,
        progress: Option<Value>,
    ) -> Result<Option<Claimed>> {
        // Progress that is too large is dropped, so that the claim is renewed in any case.
        let progress = progress.filter(|progress| match check_size("progress", progress) {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!(task = %claimed.task().id, %error, "failed to record progress");
                false
            }
        });
        let event = Event::Renew { lease_id: claimed.lease_id.clone(), lease, progress };
        let from = ChangeFrom::Read(&claimed.loaded);
        let renewed = self.change(Purpose::Renew, from, &event, IndexUpdate::Change).await?.done();
        // Only the holder renews and settles: if the record still has its lease id, the claim is still held.
        let kept = renewed.filter(|loaded| loaded.task.lease_id.as_ref() == Some(&claimed.lease_id));
        Ok(kept.map(|loaded| Claimed { loaded, ..claimed.clone() }))
    }

    /// Ends a claim. The handler must have stopped before this is called. Returns the task, or none if the claim was
    /// lost.
    pub async fn settle(&self, claimed: &Claimed, settlement: Settlement) -> Result<Option<Task>> {
        let event = settlement.event(claimed.lease_id.clone(), self.now()?);
        let index_update = claimed.entries().map_or(IndexUpdate::Change, IndexUpdate::Removing);
        let loaded = &claimed.loaded;
        let span = tracing::debug_span!("settle", "task.id" = %loaded.task.id, how = event.name());
        let settled = self.change(Purpose::Settle, ChangeFrom::Read(loaded), &event, index_update);
        Ok(match settled.instrument(span).await? {
            Transition::Rejected(Rejected::AlreadyApplied, loaded) => Some(loaded.task),
            settled => settled.done().map(|loaded| loaded.task),
        })
    }
}

/// The reason when another worker was faster.
fn lost_to(task: &Task) -> Unclaimed {
    match &task.state {
        State::Running(claim) => Unclaimed::Held(claim.expires_at),
        _ => Unclaimed::Outdated,
    }
}
