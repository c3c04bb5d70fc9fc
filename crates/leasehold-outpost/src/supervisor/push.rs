//! Push: sends the operations of this node, in order for each task, by the table of [`leasehold_core::outpost::reconcile`].

use futures::StreamExt;
use futures::stream;
use leasehold_core::outpost::{
    BucketState, BucketWrite, ClockSource, Consistency, NodeState, Op, OpKind, SyncAction, SyncRefusal,
    reconcile,
};
use leasehold_core::{Error, Event, Kind, LeaseId, Rejected, Result, State, Status, Task, TaskId, record};
use leasehold_queue::{TaskSnapshot, Transition};
use leasehold_store::Purpose;
use leasehold_store::host::lock;
use leasehold_store::mutant::breaks;
use std::collections::{BTreeMap, HashSet};

use super::sync_step::SyncStep;
use super::{BucketLink, report};
use crate::spool::{Checkout, Mirrored, Spool};

/// Tasks that are sent concurrently.
const CONCURRENCY: usize = 16;
/// Attempts to change a record that changes before each of them.
const TRIES_MAX: usize = 8;

/// Outcome of an operation. The node's copy of the task is updated when nothing is left to send for it.
pub(super) enum Applied {
    /// The bucket has it, or does not need it.
    Sent,
    /// The bucket's version replaces the node's copy.
    Replaced(Box<Task>),
    /// The node's copy is removed.
    Removed,
    /// It cannot be decided yet, and neither can the operations that follow it.
    Later,
}

impl BucketLink {
    /// Sends the outbox: tasks concurrently, the operations of one task in order.
    pub(super) async fn push(&self) -> Result<()> {
        let ops = self.spool.on_disk(Spool::outbox).await?;
        let mut by_task: BTreeMap<_, Vec<_>> = BTreeMap::new();
        let tried: HashSet<u64> = ops.iter().map(|(seq, _)| *seq).collect();
        for (seq, op) in ops {
            by_task.entry(op.task).or_default().push((seq, op));
        }
        by_task.retain(|_, ops| ops.iter().all(|(seq, _)| !lock(&self.deferred).contains(seq)));
        let sends = by_task.into_iter().map(|(id, ops)| async move { (id, self.push_task(ops).await) });
        let all: Vec<_> = stream::iter(sends).buffer_unordered(CONCURRENCY).collect().await;
        for (id, pushed) in all {
            match pushed {
                Ok(()) => {}
                Err(error) if error.kind() == Kind::Unavailable => return Err(error),
                // One corrupt task does not block the others.
                Err(error) => tracing::error!(task = %id, %error, "failed to send operations of a task"),
            }
        }
        let left = self.spool.on_disk(Spool::outbox).await?;
        *lock(&self.deferred) = left.iter().map(|(seq, _)| *seq).filter(|seq| tried.contains(seq)).collect();
        Ok(())
    }

    async fn push_task(&self, ops: Vec<(u64, Op)>) -> Result<()> {
        for (at, (seq, op)) in ops.iter().enumerate() {
            let seq = *seq;
            // A claim that has ended meanwhile is sent together with its end.
            let is_its_end = |next: &Op| next.kind.is_end() && next.kind.lease_id() == op.kind.lease_id();
            let ends_next = ops.get(at + 1).is_some_and(|(_, next)| is_its_end(next));
            if matches!(op.kind, OpKind::Claim { from: None, .. }) && ends_next {
                self.spool.on_disk(move |spool| spool.remove_op(seq)).await?;
                continue;
            }
            let has_started = self.consistency() == Consistency::Relaxed;
            let step = SyncStep::of(op, has_started, self);
            if matches!(op.kind, OpKind::Complete { .. }) && breaks("sent-too-early") {
                self.spool.on_disk(move |spool| spool.remove_op(seq)).await?;
            }
            let applied = self.apply(&step).await?;
            if let Applied::Later = applied {
                // Its end can be decided all the same.
                if !ops[at + 1..].iter().any(|(_, later)| is_its_end(later)) {
                    break;
                }
            } else {
                self.count(|synced| synced.sent += 1);
            }
            self.spool.on_disk(move |spool| spool.remove_op(seq)).await?;
            self.update_copy(op.task, applied).await?;
        }
        Ok(())
    }

    /// Applies an operation in the bucket, or the bucket's state on the node.
    pub(super) async fn apply(&self, step: &SyncStep<'_>) -> Result<Applied> {
        let id = &step.op.task;
        let mut snapshot = self.cached_snapshot(id);
        // A cached record may be stale: enough for a conditional put, but not for anything else.
        let mut is_fresh = false;
        if snapshot.is_none() {
            snapshot = self.queue.load(Purpose::Sync, id).await?;
            is_fresh = true;
        }
        for _ in 0..TRIES_MAX {
            let bucket_state = BucketState::of(
                snapshot.as_ref().map(|snapshot| &snapshot.task),
                &step.known,
                self.queue.now()?,
            );
            let config = self.spool.config();
            let action =
                reconcile(step.local, bucket_state, config.consistency, config.finish_after_takeover);
            let SyncAction::Write(write) = action else {
                if !is_fresh {
                    snapshot = self.queue.load(Purpose::Sync, id).await?;
                    is_fresh = true;
                    continue;
                }
                return self.conclude(step, action, snapshot.as_ref()).await;
            };
            let outcome = match (write, &snapshot) {
                (BucketWrite::Create, there) => self.create(step.op, there.as_ref()).await?,
                (_, None) => Transition::Missing,
                (write, Some(known)) => match step.event(write, self, self.queue.now()?) {
                    Some(event) => self.queue.update_if(known, &event).await?,
                    // Nothing to write: the bucket is already in this state.
                    None => return self.conclude(step, SyncAction::Done, Some(known)).await,
                },
            };
            match outcome {
                // Another worker may have changed the task since, or this process may have been suspended.
                Transition::Done(now) | Transition::Superseded(now)
                    if write.claims() && !step.is_held(&now.task, self.queue.now()?) =>
                {
                    snapshot = Some(now);
                }
                Transition::Done(now)
                | Transition::Superseded(now)
                | Transition::Rejected(Rejected::AlreadyApplied | Rejected::CancelRequested, now) => {
                    if now.task.status().is_final() {
                        self.evict(id);
                    } else {
                        self.cache_snapshot(&now);
                    }
                    return self.accepted(step, write, &now).await;
                }
                Transition::Stale(now) => snapshot = Some(now),
                Transition::Rejected(rejected, now) => {
                    if let Some(applied) = self.refused(step, write, &rejected, &now).await? {
                        return Ok(applied);
                    }
                    snapshot = self.queue.load(Purpose::Sync, id).await?;
                }
                Transition::Missing => snapshot = self.queue.load(Purpose::Sync, id).await?,
            }
            is_fresh = true;
        }
        Err(Error::new(Kind::Internal, format!("task {id} changed during {TRIES_MAX} attempts to sync it")))
    }

    async fn create(&self, op: &Op, there: Option<&TaskSnapshot>) -> Result<Transition> {
        let OpKind::Submit { record: value, .. } = &op.kind else {
            return Err(Error::new(Kind::Internal, "only a submit creates a task"));
        };
        let mut task = record::read_elsewhere(&op.task.to_string(), value.to_string().as_bytes())?;
        if op.clock == ClockSource::Boot {
            task = task.submitted_at(self.queue.now()?.earliest);
        }
        self.queue.create(task, there).await
    }

    /// Handles an operation that the bucket has accepted.
    async fn accepted(
        &self,
        step: &SyncStep<'_>,
        write: BucketWrite,
        snapshot: &TaskSnapshot,
    ) -> Result<Applied> {
        match write {
            BucketWrite::Claim | BucketWrite::TakeOver
                if step.local == NodeState::CheckedOut && self.record_checkout(snapshot, true).await? =>
            {
                self.count(|synced| synced.confirmed += 1);
            }
            BucketWrite::Claim | BucketWrite::TakeOver => self.confirm(step, snapshot).await?,
            BucketWrite::Renew => {
                self.count(|synced| synced.renewed += 1);
                if step.is_unconfirmed {
                    self.confirm(step, snapshot).await?;
                }
            }
            _ => {}
        }
        if snapshot.task.is_cancel_requested() {
            let id = step.op.task;
            self.spool.on_disk(move |spool| spool.mark_cancelled(&id)).await?;
        }
        Ok(if write.claims() { Applied::Sent } else { Applied::Replaced(Box::new(snapshot.task.clone())) })
    }

    /// Confirms the claim to the worker that waits for it. If there is none, releases the task.
    async fn confirm(&self, step: &SyncStep<'_>, snapshot: &TaskSnapshot) -> Result<()> {
        let (id, lease_id, remote) = (step.op.task, step.lease_id.clone(), snapshot.task.clone());
        let lease = lease_id.clone();
        let is_there = self
            .spool
            .on_disk(
                move |spool| Ok(spool.confirm(&id, &lease, &remote)? || spool.has_checkout(&id, &lease)?),
            )
            .await?;
        if is_there {
            self.count(|synced| synced.confirmed += 1);
        } else if !self.has_other_unsent_ops(&lease_id, step.local).await? {
            self.release_claim(snapshot, lease_id).await?;
        }
        Ok(())
    }

    /// Releases a claim under which no worker here has started, and none will.
    async fn release_claim(&self, snapshot: &TaskSnapshot, lease_id: LeaseId) -> Result<()> {
        self.evict(&snapshot.task.id);
        let (mut snapshot, release) = (snapshot.clone(), Event::Release { lease_id: lease_id.clone() });
        for _ in 0..TRIES_MAX {
            match self.queue.update_if(&snapshot, &release).await? {
                // It was cancelled meanwhile.
                Transition::Stale(now) if now.task.lease_id.as_ref() == Some(&lease_id) => {
                    snapshot = now;
                }
                _ => break,
            }
        }
        Ok(())
    }

    /// Returns whether an operation under this claim, other than the claim itself, is still to be sent. A run that was lost
    /// counts as an attempt when the claim that has replaced it is sent.
    async fn has_other_unsent_ops(&self, lease_id: &LeaseId, local: NodeState) -> Result<bool> {
        let ops = self.spool.on_disk(Spool::outbox).await?;
        let is_about = |op: &Op| match &op.kind {
            OpKind::Claim { from, .. } => local == NodeState::Running && from.as_ref() == Some(lease_id),
            kind => kind.lease_id() == Some(lease_id),
        };
        Ok(ops.iter().any(|(_, op)| is_about(op)))
    }

    /// Updates the node's copy of a task from the bucket, unless an operation is still to be sent.
    pub(super) async fn update_copy(&self, id: TaskId, applied: Applied) -> Result<()> {
        self.spool
            .on_disk(move |spool| match applied {
                Applied::Sent | Applied::Later => Ok(()),
                Applied::Replaced(remote) if remote.status() == Status::Pending => {
                    spool.mirror(&remote, None).map(|_| ())
                }
                // Another worker holds it, or it has ended.
                Applied::Replaced(remote) => {
                    spool.replace_final(&remote)?;
                    spool.remove_copy(&id).map(|_| ())
                }
                Applied::Removed => spool.remove_copy(&id).map(|_| ()),
            })
            .await
    }

    /// Handles an operation that the bucket rejects, or does not need.
    async fn conclude(
        &self,
        step: &SyncStep<'_>,
        action: SyncAction,
        snapshot: Option<&TaskSnapshot>,
    ) -> Result<Applied> {
        let op = step.op;
        self.evict(&op.task);
        match action {
            SyncAction::Continue | SyncAction::Write(_) => {
                if let (NodeState::Tentative, Some(snapshot)) = (step.local, snapshot) {
                    self.confirm(step, snapshot).await?;
                }
                return Ok(Applied::Sent);
            }
            SyncAction::Done => {}
            SyncAction::Drop(why) => {
                if let Some(why) = why {
                    report(op, why);
                }
                if matches!(op.kind, OpKind::Claim { .. }) {
                    self.revoke(step, false).await?;
                }
            }
            SyncAction::Stop(why) => {
                self.record_conflict(op, why).await?;
                self.revoke(step, false).await?;
                return Ok(Applied::Sent);
            }
            SyncAction::Conflict(why) => {
                self.record_conflict(op, why).await?;
                self.count(|synced| synced.conflicts += 1);
            }
            SyncAction::Refuse(why) => report(op, why),
        }
        Ok(from_bucket(snapshot.map(|snapshot| &snapshot.task)))
    }

    async fn record_conflict(&self, op: &Op, why: SyncRefusal) -> Result<()> {
        report(op, why);
        self.count(|synced| synced.duplicates += u64::from(why.is_duplicate_run()));
        if breaks("conflict-thrown-away") {
            return Ok(());
        }
        let op = op.clone();
        self.spool.on_disk(move |spool| spool.record_conflict(&op, why)).await
    }

    /// Revokes a claim that the bucket has refused.
    async fn revoke(&self, step: &SyncStep<'_>, keeps_copy: bool) -> Result<()> {
        self.count(|synced| synced.refused += 1);
        let (id, lease_id) = (step.op.task, step.lease_id.clone());
        self.spool.on_disk(move |spool| spool.revoke(&id, &lease_id, keeps_copy)).await.map(|_| ())
    }

    /// Handles an event that the record does not allow. `None` if the table should be consulted again.
    async fn refused(
        &self,
        step: &SyncStep<'_>,
        write: BucketWrite,
        rejected: &Rejected,
        snapshot: &TaskSnapshot,
    ) -> Result<Option<Applied>> {
        let starts = matches!(write, BucketWrite::Claim | BucketWrite::TakeOver);
        let event = match rejected {
            // The task is due later: a worker that has started continues, and the claim is retried.
            Rejected::NotBefore(_) if starts && step.local == NodeState::Running => {
                return Ok(Some(Applied::Later));
            }
            Rejected::NotBefore(_) if write == BucketWrite::Claim => {
                self.revoke(step, true).await?;
                return Ok(Some(from_bucket(Some(&snapshot.task))));
            }
            Rejected::TooLate(_) if starts => Event::Expire,
            // No attempt is left, or it was cancelled: the bucket records that.
            Rejected::Status(_) if write == BucketWrite::TakeOver => step.end_of_lost_claim(&snapshot.task),
            Rejected::Status(_) if write == BucketWrite::Retry => {
                return self
                    .conclude(step, SyncAction::Refuse(SyncRefusal::NotEnded), Some(snapshot))
                    .await
                    .map(Some);
            }
            _ => return Ok(None),
        };
        self.queue.update_if(snapshot, &event).await?;
        Ok(None)
    }

    /// Records a check-out that was made or extended. Releases it if a worker here already holds the task.
    pub(super) async fn record_checkout(&self, snapshot: &TaskSnapshot, is_extended: bool) -> Result<bool> {
        let task = snapshot.task.clone();
        let (State::Running(claim), Some(lease_id)) = (&task.state, task.lease_id.clone()) else {
            return Ok(false);
        };
        let (epoch, expires_at) = (task.epoch, claim.expires_at);
        let checkout = Checkout { lease_id: lease_id.clone(), epoch, expires_at, is_extended };
        let mirrored = self.spool.on_disk(move |spool| spool.mirror(&task, Some(checkout))).await?;
        if mirrored == Mirrored::Busy {
            self.release_claim(snapshot, lease_id).await?;
            return Ok(false);
        }
        Ok(true)
    }
}

/// The outcome that updates the node's copy from the bucket.
fn from_bucket(remote: Option<&Task>) -> Applied {
    match remote {
        Some(remote) if !remote.is_tombstone() => Applied::Replaced(Box::new(remote.clone())),
        _ => Applied::Removed,
    }
}
