//! Renew: renews the claims in the bucket of tasks that run here or are checked out.

use leasehold_core::outpost::{Consistency, DiskLease, NodeState, Op, OpKind};
use leasehold_core::{Kind, LeaseId, Now, Result, State};
use leasehold_store::Purpose;
use std::collections::HashSet;

use super::BucketLink;
use super::sync_step::SyncStep;
use crate::spool::{Checkout, LocalTask};

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
        let op = claim_op(copy, &lease.lease_id, lease.epoch);
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
            matches!(snapshot.task().state, State::Running(_))
                && snapshot.task().lease_id.as_ref() == Some(&lease_id)
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
        self.cached_snapshot(&copy.task.id).is_some_and(|snapshot| match &snapshot.task().state {
            State::Running(claim) if snapshot.task().lease_id.as_ref() == Some(lease_id) => {
                let renewed_at = claim.renewed_at.unwrap_or(snapshot.task().updated_at);
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
        let op = claim_op(copy, &checkout.lease_id, checkout.epoch);
        if checkout.is_extended {
            let kind = OpKind::Release { lease_id: checkout.lease_id.clone(), until: None };
            return self.apply_now(&SyncStep::of(&Op { kind, ..op }, false, self)).await;
        }
        let again = SyncStep {
            local: NodeState::CheckedOut,
            lease_id: self.random_name(),
            ..SyncStep::of(&op, false, self)
        };
        self.apply_now(&again).await
    }
}

/// Creates the operation of a claim that the node already has.
fn claim_op(copy: &LocalTask, lease_id: &LeaseId, epoch: u64) -> Op {
    Op {
        task: copy.task.id,
        generation: copy.task.generation,
        epoch,
        base_rev: copy.base_rev,
        at: copy.task.updated_at,
        clock: leasehold_core::outpost::ClockSource::Bucket,
        kind: OpKind::Claim { lease_id: lease_id.clone(), from: None, is_unused: false },
    }
}
