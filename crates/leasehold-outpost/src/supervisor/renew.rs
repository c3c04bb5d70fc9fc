//! Claims of this node in the bucket: renewals of those of tasks that run here or are checked out, and check-outs, which
//! are claims in advance for a time without a connection.

use leasehold_core::limits::PLAN_AHEAD_MAX;
use leasehold_core::outpost::{ClockSource, Consistency, DiskLease, NodeState, Op, OpKind};
use leasehold_core::{
    Error, Event, Index, IndexLocation, Kind, LeaseId, Now, Result, State, StoreTime, Task,
};
use leasehold_queue::TaskSnapshot;
use leasehold_queue::discover::KeyRange;
use leasehold_store::{HostExt, Purpose};
use std::collections::HashSet;

use super::sync_step::SyncStep;
use super::{BucketLink, Supervisor};
use crate::spool::{Checkout, LocalTask};

impl Supervisor {
    /// Claims up to `most` free tasks for this node until `until`: of these shards, or of all if none is named.
    pub async fn check_out(&mut self, most: usize, shards: &[String], until: StoreTime) -> Result<u64> {
        let link = self.link().await?;
        let _lock = self.lock().await?;
        let len = link.queue.shard_len();
        let of_shard = |name: &String| Ok(KeyRange::at(&IndexLocation::Ready(len.parse(name)?)));
        let mut ranges = shards.iter().map(of_shard).collect::<Result<Vec<_>>>()?;
        if ranges.is_empty() {
            ranges.push(KeyRange::whole(Index::Ready));
        }
        let now = link.queue.now()?;
        if !now.is_before(until) {
            return Err(Error::invalid(format!("check-out must end in the future, got {until}")));
        }
        if until > now.earliest.plus(PLAN_AHEAD_MAX) {
            let latest = now.earliest.plus(PLAN_AHEAD_MAX);
            return Err(Error::invalid(format!("check-out must end before {latest}, got {until}")));
        }
        // Operations of this node are sent first.
        link.push().await?;
        let (mut taken, most) = (0, u64::try_from(most).unwrap_or(u64::MAX));
        let page = link.queue.discover(Purpose::Sync, ranges).await?;
        for hit in page.due {
            if taken >= most {
                break;
            }
            let Some(snapshot) = link.load_valid(&hit.entry.id).await? else { continue };
            taken += u64::from(link.check_out_one(&snapshot, until).await?);
        }
        link.record_bucket_time().await?;
        Ok(taken)
    }

    /// The bucket's time.
    pub async fn now(&mut self) -> Result<Now> {
        self.link().await?.queue.now()
    }
}

impl BucketLink {
    /// Renews the claims that are due, one task after another.
    pub(super) async fn renew(&self) -> Result<()> {
        let (copies, ops) = self.spool.on_disk(|spool| Ok((spool.local_tasks()?, spool.outbox()?))).await?;
        // Tasks with unsent operations are skipped: those are sent first.
        let unsent: HashSet<_> = ops.iter().map(|(_, op)| op.task).collect();
        for copy in copies.into_iter().filter(|copy| !unsent.contains(&copy.task.id)) {
            let here = self.spool.now();
            let renewed = match (&copy.lease, &copy.checkout) {
                // The claim of a worker whose lease is stale is not renewed.
                (Some(lease), _) if lease.is_stale(&here) => self.remove_stale(&copy, lease).await,
                (Some(lease), _) => self.renew_running(&copy, lease).await,
                (None, Some(checkout)) => self.extend_checkout(&copy, checkout).await,
                (None, None) => continue,
            };
            match renewed {
                Ok(()) => {}
                Err(error) if error.kind() == Kind::Unavailable => return Err(error),
                // One corrupt task does not block the others.
                Err(error) => {
                    tracing::error!(task = %copy.task.id, %error, "failed to renew the claim of a task");
                }
            }
        }
        Ok(())
    }

    async fn renew_running(&self, copy: &LocalTask, lease: &DiskLease) -> Result<()> {
        if self.is_recently_renewed(copy, &lease.lease_id, self.queue.now()?) {
            return Ok(());
        }
        let op = claim_op(&copy.task, copy.base_rev, &lease.lease_id, lease.epoch);
        let has_started = !lease.tentative || self.consistency() == Consistency::Relaxed;
        let step = SyncStep { is_unconfirmed: lease.tentative, ..SyncStep::of(&op, has_started, self) };
        self.apply_now(&step).await
    }

    /// Removes the copy of a task whose worker's lease is stale, once its claim has ended in the bucket: no worker here may
    /// be able to claim it, because it has expired, or is of a type that none of them handles.
    async fn remove_stale(&self, copy: &LocalTask, lease: &DiskLease) -> Result<()> {
        let (id, lease_id) = (copy.task.id, lease.lease_id.clone());
        let snapshot = self.queue.load(Purpose::Sync, &id).await?;
        let is_ours = snapshot.as_ref().is_some_and(|snapshot| {
            matches!(snapshot.task.state, State::Running(_))
                && snapshot.task.lease_id.as_ref() == Some(&lease_id)
        });
        if !is_ours && self.spool.on_disk(move |spool| spool.revoke(&id, &lease_id, false)).await? {
            self.count(|synced| synced.forgotten += 1);
        }
        Ok(())
    }

    /// Applies an operation that is not in the outbox.
    async fn apply_now(&self, step: &SyncStep<'_>) -> Result<()> {
        let applied = self.apply(step).await?;
        self.update_copy(step.op.task, applied).await
    }

    /// Returns whether less than a third of the claim has passed since its last known renewal. A check-out lasts longer, but a
    /// renewal is also how the node learns that a task was cancelled.
    fn is_recently_renewed(&self, copy: &LocalTask, lease_id: &LeaseId, now: Now) -> bool {
        self.cached_snapshot(&copy.task.id).is_some_and(|snapshot| match &snapshot.task.state {
            State::Running(claim) if snapshot.task.lease_id.as_ref() == Some(lease_id) => {
                let renewed_at = claim.renewed_at.unwrap_or(snapshot.task.updated_at);
                now.is_before(renewed_at.plus(self.options.lease / 3))
                    && now.is_before(claim.expires_at.minus(self.options.lease * 2 / 3))
            }
            _ => false,
        })
    }

    /// Extends an expired check-out that no worker here has started, once; then releases it.
    async fn extend_checkout(&self, copy: &LocalTask, checkout: &Checkout) -> Result<()> {
        if self.queue.now()?.is_before(checkout.expires_at) {
            return Ok(());
        }
        let (id, lease_id) = (copy.task.id, checkout.lease_id.clone());
        // Not while a worker is starting it.
        if !self.spool.on_disk(move |spool| spool.withdraw(&id, &lease_id)).await? {
            return Ok(());
        }
        let op = claim_op(&copy.task, copy.base_rev, &checkout.lease_id, checkout.epoch);
        if checkout.is_extended {
            let kind = OpKind::Release { lease_id: checkout.lease_id.clone(), until: None };
            return self.apply_now(&SyncStep::of(&Op { kind, ..op }, false, self)).await;
        }
        let again = SyncStep {
            local: NodeState::CheckedOut,
            lease_id: self.host().random_name(),
            ..SyncStep::of(&op, false, self)
        };
        self.apply_now(&again).await
    }

    /// Claims one task. The intent is recorded first: if this process ends before it has recorded the check-out, the next one
    /// finds a claim without a worker, and ends it.
    async fn check_out_one(&self, snapshot: &TaskSnapshot, until: StoreTime) -> Result<bool> {
        let (now, task) = (self.queue.now()?.earliest, &snapshot.task);
        let (worker, lease_id) = (self.spool.config().node_id.clone(), self.host().random_name());
        let intent = Op { at: now, ..claim_op(task, task.rev, &lease_id, task.epoch.saturating_add(1)) };
        let seq = self.spool.on_disk(move |spool| spool.append(&intent)).await?;
        let claim = Event::Claim { worker, lease_id: lease_id.clone(), lease: until.since(now) };
        let claimed = self.queue.update_if(snapshot, &claim).await?.done();
        // Another worker may have changed the task since.
        let is_ours = |now: &TaskSnapshot| now.task.lease_id.as_ref() == Some(&lease_id);
        let is_kept = if let Some(snapshot) = claimed.filter(is_ours) {
            self.cache_snapshot(&snapshot);
            self.record_checkout(&snapshot, false).await?
        } else {
            false
        };
        self.spool.on_disk(move |spool| spool.remove_op(seq)).await?;
        Ok(is_kept)
    }
}

/// Creates the operation of a claim of this node.
fn claim_op(task: &Task, base_rev: u64, lease_id: &LeaseId, epoch: u64) -> Op {
    Op {
        task: task.id,
        generation: task.generation,
        epoch,
        base_rev,
        at: task.updated_at,
        clock: ClockSource::Bucket,
        kind: OpKind::Claim { lease_id: lease_id.clone(), from: None, is_unused: false },
    }
}
