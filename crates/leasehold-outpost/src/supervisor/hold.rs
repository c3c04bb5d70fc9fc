//! Hold: what runs here, or was checked out, stays ours in the bucket.

use leasehold_core::outpost::{Consistency, Deed, DiskLease, Local, Op};
use leasehold_core::{Kind, LeaseId, Now, Result, State};
use leasehold_store::Purpose;
use std::collections::HashSet;

use super::up::Applied;
use super::word::Word;
use super::{Link, Supervisor, Synced};
use crate::spool::{Checkout, Copy};

impl Supervisor {
    pub(super) async fn hold(&self, link: &Link) -> Result<Synced> {
        let (copies, ops) = self.on_disk(|spool| Ok((spool.waiting()?, spool.outbox()?))).await?;
        // What is still to be sent comes first.
        let unsent: HashSet<_> = ops.iter().map(|(_, op)| op.task).collect();
        let mut synced = Synced::default();
        for copy in copies.into_iter().filter(|copy| !unsent.contains(&copy.task.id)) {
            let here = self.spool.now();
            let held = match (&copy.lease, &copy.checkout) {
                // Nobody speaks for a process that was not heard of for long.
                (Some(lease), _) if lease.is_stale(&here) => self.bury(link, &copy, lease).await,
                (Some(lease), _) => self.hold_running(link, &copy, lease).await,
                (None, Some(checkout)) => self.hold_checkout(link, &copy, checkout).await,
                (None, None) => continue,
            };
            match held {
                Ok(held) => synced.add(held),
                Err(error) if error.kind() == Kind::Unavailable => return Err(error),
                // One task that makes no sense does not cost us the others.
                Err(error) => tracing::error!(task = %copy.task.id, "cannot be held: {error}"),
            }
        }
        Ok(synced)
    }

    async fn hold_running(&self, link: &Link, copy: &Copy, lease: &DiskLease) -> Result<Synced> {
        if self.is_held_for_long(link, copy, &lease.lease_id, link.queue.now()?) {
            return Ok(Synced::default());
        }
        let op = word_of(copy, &lease.lease_id, lease.epoch);
        let has_started = !lease.tentative || self.consistency() == Consistency::Relaxed;
        let word = Word { is_unconfirmed: lease.tentative, ..Word::of(&op, has_started, self) };
        self.say(link, &word).await
    }

    /// What was left by a process that is not heard of any more goes once its claim has ended in the bucket: it may be that
    /// nobody here can take it, because it has expired, or is of a type that nobody here handles.
    async fn bury(&self, link: &Link, copy: &Copy, lease: &DiskLease) -> Result<Synced> {
        let (id, lease_id) = (copy.task.id, lease.lease_id.clone());
        let seen = self.see(link, &id).await?;
        let is_ours = seen.as_ref().is_some_and(|seen| {
            matches!(seen.task().state, State::Running(_)) && seen.task().lease_id.as_ref() == Some(&lease_id)
        });
        let is_gone = !is_ours && self.on_disk(move |spool| spool.revoke(&id, &lease_id, false)).await?;
        Ok(Synced { forgotten: u64::from(is_gone), ..Synced::default() })
    }

    /// The same for what is not in the outbox.
    async fn say(&self, link: &Link, word: &Word<'_>) -> Result<Synced> {
        match self.apply(link, word).await? {
            Applied::Sent(synced, then) => {
                self.follow(word.op.task, then).await?;
                Ok(synced)
            }
            Applied::Later => Ok(Synced::default()),
        }
    }

    /// Less than a third of the claim has passed, as far as we know. A check-out lasts longer, but a task that was called
    /// off is heard of by renewing it.
    fn is_held_for_long(&self, link: &Link, copy: &Copy, lease_id: &LeaseId, now: Now) -> bool {
        link.recall(&copy.task.id).is_some_and(|seen| match &seen.task().state {
            State::Running(claim) if seen.task().lease_id.as_ref() == Some(lease_id) => {
                let renewed_at = claim.renewed_at.unwrap_or(seen.task().updated_at);
                now.is_before(renewed_at.plus(self.options.lease / 3))
                    && now.is_before(claim.expires_at.minus(self.options.lease * 2 / 3))
            }
            _ => false,
        })
    }

    /// A check-out that has run out and that nobody here has begun with is claimed once more, for a last chance to begin
    /// with it; then it is everybody's.
    async fn hold_checkout(&self, link: &Link, copy: &Copy, checkout: &Checkout) -> Result<Synced> {
        if link.queue.now()?.is_before(checkout.expires_at) {
            return Ok(Synced::default());
        }
        let (id, lease_id) = (copy.task.id, checkout.lease_id.clone());
        // Not while somebody begins with it.
        if !self.on_disk(move |spool| spool.withdraw(&id, &lease_id)).await? {
            return Ok(Synced::default());
        }
        let op = word_of(copy, &checkout.lease_id, checkout.epoch);
        if checkout.is_extended {
            let deed = Deed::Release { lease_id: checkout.lease_id.clone(), until: None };
            return self.say(link, &Word::of(&Op { deed, ..op }, false, self)).await;
        }
        let again =
            Word { local: Local::CheckedOut, lease_id: self.random_name(), ..Word::of(&op, false, self) };
        self.say(link, &again).await
    }

    /// Looks at one task, whatever is remembered of it.
    pub(super) async fn see(
        &self,
        link: &Link,
        copy: &leasehold_core::TaskId,
    ) -> Result<Option<leasehold_queue::Seen>> {
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
        deed: Deed::Claim { lease_id: lease_id.clone(), from: None, is_unused: false },
    }
}
