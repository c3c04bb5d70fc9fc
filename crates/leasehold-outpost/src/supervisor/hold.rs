//! Hold: renews the claims in the bucket of tasks that run here or are checked out.

use leasehold_core::outpost::{Consistency, DiskLease, Local, Op, OpKind};
use leasehold_core::{Kind, LeaseId, Now, Result, State};
use leasehold_store::Purpose;
use std::collections::HashSet;

use super::sync_step::SyncStep;
use super::up::Applied;
use super::{BucketLink, Supervisor, Synced};
use crate::spool::{Checkout, Copy};

impl Supervisor {
    pub(super) async fn hold(&self, link: &BucketLink) -> Result<Synced> {
        let (copies, ops) = self.on_disk(|spool| Ok((spool.waiting()?, spool.outbox()?))).await?;
        // Tasks with unsent operations are skipped: those are sent first.
        let unsent: HashSet<_> = ops.iter().map(|(_, op)| op.task).collect();
        let mut synced = Synced::default();
        for copy in copies.into_iter().filter(|copy| !unsent.contains(&copy.task.id)) {
            let here = self.spool.now();
            let held = match (&copy.lease, &copy.checkout) {
                // The claim of a worker whose lease is stale is not renewed.
                (Some(lease), _) if lease.is_stale(&here) => self.bury(link, &copy, lease).await,
                (Some(lease), _) => self.hold_running(link, &copy, lease).await,
                (None, Some(checkout)) => self.hold_checkout(link, &copy, checkout).await,
                (None, None) => continue,
            };
            match held {
                Ok(held) => synced.add(held),
                Err(error) if error.kind() == Kind::Unavailable => return Err(error),
                // One corrupt task does not block the others.
                Err(error) => {
                    tracing::error!(task = %copy.task.id, %error, "failed to keep the claim of a task");
                }
            }
        }
        Ok(synced)
    }

    async fn hold_running(&self, link: &BucketLink, copy: &Copy, lease: &DiskLease) -> Result<Synced> {
        if self.is_held_for_long(link, copy, &lease.lease_id, link.queue.now()?) {
            return Ok(Synced::default());
        }
        let op = word_of(copy, &lease.lease_id, lease.epoch);
        let has_started = !lease.tentative || self.consistency() == Consistency::Relaxed;
        let word = SyncStep { is_unconfirmed: lease.tentative, ..SyncStep::of(&op, has_started, self) };
        self.say(link, &word).await
    }

    /// Removes the copy of a task whose worker's lease is stale, once its claim has ended in the bucket: no worker here may
    /// be able to claim it, because it has expired, or is of a type that none of them handles.
    async fn bury(&self, link: &BucketLink, copy: &Copy, lease: &DiskLease) -> Result<Synced> {
        let (id, lease_id) = (copy.task.id, lease.lease_id.clone());
        let seen = self.see(link, &id).await?;
        let is_ours = seen.as_ref().is_some_and(|seen| {
            matches!(seen.task().state, State::Running(_)) && seen.task().lease_id.as_ref() == Some(&lease_id)
        });
        let is_gone = !is_ours && self.on_disk(move |spool| spool.revoke(&id, &lease_id, false)).await?;
        Ok(Synced { forgotten: u64::from(is_gone), ..Synced::default() })
    }

    /// Applies an operation that is not in the outbox.
    async fn say(&self, link: &BucketLink, word: &SyncStep<'_>) -> Result<Synced> {
        match self.apply(link, word).await? {
            Applied::Sent(synced, then) => {
                self.follow(word.op.task, then).await?;
                Ok(synced)
            }
            Applied::Later => Ok(Synced::default()),
        }
    }

    /// True if less than a third of the claim has passed since its last known renewal. A check-out lasts longer, but a
    /// renewal is also how the node learns that a task was cancelled.
    fn is_held_for_long(&self, link: &BucketLink, copy: &Copy, lease_id: &LeaseId, now: Now) -> bool {
        link.recall(&copy.task.id).is_some_and(|seen| match &seen.task().state {
            State::Running(claim) if seen.task().lease_id.as_ref() == Some(lease_id) => {
                let renewed_at = claim.renewed_at.unwrap_or(seen.task().updated_at);
                now.is_before(renewed_at.plus(self.options.lease / 3))
                    && now.is_before(claim.expires_at.minus(self.options.lease * 2 / 3))
            }
            _ => false,
        })
    }

    /// Extends an expired check-out that no worker here has started, once; then releases it.
    async fn hold_checkout(&self, link: &BucketLink, copy: &Copy, checkout: &Checkout) -> Result<Synced> {
        if link.queue.now()?.is_before(checkout.expires_at) {
            return Ok(Synced::default());
        }
        let (id, lease_id) = (copy.task.id, checkout.lease_id.clone());
        // Not while a worker is starting it.
        if !self.on_disk(move |spool| spool.withdraw(&id, &lease_id)).await? {
            return Ok(Synced::default());
        }
        let op = word_of(copy, &checkout.lease_id, checkout.epoch);
        if checkout.is_extended {
            let deed = OpKind::Release { lease_id: checkout.lease_id.clone(), until: None };
            return self.say(link, &SyncStep::of(&Op { deed, ..op }, false, self)).await;
        }
        let again = SyncStep {
            local: Local::CheckedOut,
            lease_id: self.random_name(),
            ..SyncStep::of(&op, false, self)
        };
        self.say(link, &again).await
    }

    /// Reads one task from the bucket, bypassing the cached records.
    pub(super) async fn see(
        &self,
        link: &BucketLink,
        copy: &leasehold_core::TaskId,
    ) -> Result<Option<leasehold_queue::TaskSnapshot>> {
        link.queue.see(Purpose::Sync, copy).await
    }
}

fn word_of(copy: &Copy, lease_id: &LeaseId, epoch: u64) -> Op {
    Op {
        task: copy.task.id,
        generation: copy.task.generation,
        epoch,
        base_rev: copy.base_rev,
        at: copy.task.updated_at,
        clock: leasehold_core::outpost::ClockMark::Bucket,
        deed: OpKind::Claim { lease_id: lease_id.clone(), from: None, is_unused: false },
    }
}
