//! Up: sends the operations of this node, in order for each task, by the table of [`leasehold_core::outpost::reconcile`].

use futures::StreamExt;
use futures::stream;
use leasehold_core::outpost::{
    BucketState, ClockMark, Consistency, Local, Op, OpKind, SyncAction, Why, Write, reconcile,
};
use leasehold_core::{Error, Event, Kind, LeaseId, Rejected, Result, State, Status, Task, TaskId, record};
use leasehold_queue::{Created, TaskSnapshot, UpdateOutcome};
use leasehold_store::Purpose;
use leasehold_store::mutant::{Rule, breaks};
use std::collections::{BTreeMap, HashSet};

use super::sync_step::{SyncStep, is_called_off};
use super::{BucketLink, Supervisor, Synced};
use crate::spool::{Checkout, Mirrored, Spool};

/// Tasks that are sent concurrently.
const AT_ONCE: usize = 16;
/// Attempts to change a record that changes before each of them.
const TRIES_MAX: usize = 8;

/// Outcome of an operation.
pub(super) enum Applied {
    /// The bucket has it, or does not need it. The node's copy is updated when nothing is left to send for the task.
    Sent(Synced, LocalOutcome),
    /// It cannot be decided yet, and neither can the operations that follow it.
    Later,
}

/// Update of the node's copy of a task.
pub(super) enum LocalOutcome {
    /// Unchanged.
    Stays,
    /// Replaced by the bucket's version.
    Becomes(Box<Task>),
    /// Removed.
    Goes,
}

impl Supervisor {
    pub(super) async fn up(&self, link: &BucketLink) -> Result<Synced> {
        let ops = self.on_disk(Spool::outbox).await?;
        let mut by_task: BTreeMap<_, Vec<_>> = BTreeMap::new();
        let tried: HashSet<u64> = ops.iter().map(|(seq, _)| *seq).collect();
        for (seq, op) in ops {
            by_task.entry(op.task).or_default().push((seq, op));
        }
        by_task.retain(|_, ops| ops.iter().all(|(seq, _)| !link.later().contains(seq)));
        let all: Vec<_> = stream::iter(by_task.into_values().map(|ops| self.up_task(link, ops)))
            .buffer_unordered(AT_ONCE)
            .collect()
            .await;
        let mut synced = Synced::default();
        for one in all {
            match one {
                Ok(one) => synced.add(one),
                Err(error) if error.kind() == Kind::Unavailable => return Err(error),
                // One corrupt task does not block the others.
                Err(error) => tracing::error!(%error, "failed to send operations of a task"),
            }
        }
        let left = self.on_disk(Spool::outbox).await?;
        *link.later() = left.iter().map(|(seq, _)| *seq).filter(|seq| tried.contains(seq)).collect();
        Ok(synced)
    }

    async fn up_task(&self, link: &BucketLink, ops: Vec<(u64, Op)>) -> Result<Synced> {
        let mut all = Synced::default();
        for (at, (seq, op)) in ops.iter().enumerate() {
            let seq = *seq;
            // A claim that has ended meanwhile is sent together with its end.
            let is_its_end = |next: &Op| next.deed.is_end() && next.deed.lease_id() == op.deed.lease_id();
            let ends_next = ops.get(at + 1).is_some_and(|(_, next)| is_its_end(next));
            if matches!(op.deed, OpKind::Claim { from: None, .. }) && ends_next {
                self.on_disk(move |spool| spool.sent(seq)).await?;
                continue;
            }
            let has_started = self.consistency() == Consistency::Relaxed;
            let word = SyncStep::of(op, has_started, self);
            if matches!(op.deed, OpKind::Complete { .. }) && breaks(Rule::SentTooEarly) {
                self.on_disk(move |spool| spool.sent(seq)).await?;
            }
            match self.apply(link, &word).await? {
                Applied::Sent(synced, then) => {
                    all.add(synced);
                    all.sent += 1;
                    self.on_disk(move |spool| spool.sent(seq)).await?;
                    self.follow(op.task, then).await?;
                }
                // Its end can be decided all the same.
                Applied::Later if ops[at + 1..].iter().any(|(_, later)| is_its_end(later)) => {
                    self.on_disk(move |spool| spool.sent(seq)).await?;
                }
                Applied::Later => break,
            }
        }
        Ok(all)
    }

    /// Applies an operation in the bucket, or the bucket's state on the node.
    pub(super) async fn apply(&self, link: &BucketLink, word: &SyncStep<'_>) -> Result<Applied> {
        let id = &word.op.task;
        let mut seen = link.recall(id);
        // A cached record may be stale: enough for a conditional put, but not for anything else.
        let mut is_fresh = false;
        if seen.is_none() {
            seen = link.queue.see(Purpose::Sync, id).await?;
            is_fresh = true;
        }
        for _ in 0..TRIES_MAX {
            let standing =
                BucketState::of(seen.as_ref().map(TaskSnapshot::task), &word.known, link.queue.now()?);
            let action = reconcile(word.local, standing, self.consistency(), self.finishes());
            let SyncAction::Write(write) = action else {
                if !is_fresh {
                    seen = link.queue.see(Purpose::Sync, id).await?;
                    is_fresh = true;
                    continue;
                }
                return self.conclude(link, word, action, seen.as_ref()).await;
            };
            let advanced = match (write, &seen) {
                (Write::Create, there) => match self.create(link, word.op, there.as_ref()).await? {
                    Created::Done(seen) => UpdateOutcome::Done(seen),
                    Created::Exists(Some(seen)) => UpdateOutcome::Changed(seen),
                    Created::Exists(None) => UpdateOutcome::Missing,
                },
                (_, None) => UpdateOutcome::Missing,
                (write, Some(known)) => match word.event(write, self, link.queue.now()?) {
                    Some(event) => link.queue.advance(Purpose::Sync, known, &event, self.name()).await?,
                    // Nothing to write: the bucket is already in this state.
                    None => return self.conclude(link, word, SyncAction::Done, Some(known)).await,
                },
            };
            match advanced {
                // Another worker may have changed the task since, or this process may have been suspended.
                UpdateOutcome::Done(now)
                    if write.claims() && !word.is_held(now.task(), link.queue.now()?) =>
                {
                    seen = Some(now);
                }
                UpdateOutcome::Done(now) | UpdateOutcome::Refused(Rejected::AlreadySo, now) => {
                    if now.task().status().is_final() {
                        link.forget(id);
                    } else {
                        link.remember(&now);
                    }
                    return self.written(link, word, write, &now).await;
                }
                UpdateOutcome::Changed(now) => seen = Some(now),
                UpdateOutcome::Refused(rejected, now) => {
                    if let Some(applied) = self.refused(link, word, write, &rejected, &now).await? {
                        return Ok(applied);
                    }
                    seen = link.queue.see(Purpose::Sync, id).await?;
                }
                UpdateOutcome::Missing => seen = link.queue.see(Purpose::Sync, id).await?,
            }
            is_fresh = true;
        }
        Err(Error::new(Kind::Internal, format!("task {id} changed during {TRIES_MAX} attempts to sync it")))
    }

    async fn create(&self, link: &BucketLink, op: &Op, there: Option<&TaskSnapshot>) -> Result<Created> {
        let OpKind::Submit { record: value, .. } = &op.deed else {
            return Err(Error::new(Kind::Internal, "only a submit creates a task"));
        };
        let mut task = read_record(value)?;
        if op.clock == ClockMark::Boot {
            task = task.submitted_at(link.queue.now()?.earliest);
        }
        match there {
            Some(mark) => link.queue.create_over(Purpose::Sync, mark, task).await,
            None => link.queue.create(Purpose::Sync, task).await,
        }
    }

    /// Handles an operation that the bucket has accepted.
    async fn written(
        &self,
        link: &BucketLink,
        word: &SyncStep<'_>,
        write: Write,
        seen: &TaskSnapshot,
    ) -> Result<Applied> {
        let (mut synced, mut then) = (Synced::default(), LocalOutcome::Stays);
        match write {
            Write::Claim | Write::TakeOver if word.local == Local::CheckedOut => {
                synced.confirmed += u64::from(self.keep_checkout(link, seen, true).await?);
            }
            Write::Claim | Write::TakeOver => {
                synced.confirmed += u64::from(self.confirm(link, word, seen).await?);
            }
            Write::Renew => {
                synced.renewed += 1;
                if word.is_unconfirmed {
                    synced.confirmed += u64::from(self.confirm(link, word, seen).await?);
                }
            }
            _ => then = LocalOutcome::Becomes(Box::new(seen.task().clone())),
        }
        if is_called_off(seen.task()) {
            let id = word.op.task;
            self.on_disk(move |spool| spool.call_off(&id)).await?;
        }
        Ok(Applied::Sent(synced, then))
    }

    /// Confirms the claim to the worker that waits for it. If there is none, releases the task.
    async fn confirm(&self, link: &BucketLink, word: &SyncStep<'_>, seen: &TaskSnapshot) -> Result<bool> {
        let (id, lease_id, remote) = (word.op.task, word.lease_id.clone(), seen.task().clone());
        let lease = lease_id.clone();
        let is_there = self
            .on_disk(
                move |spool| Ok(spool.confirm(&id, &lease, &remote)? || spool.has_checkout(&id, &lease)?),
            )
            .await?;
        if is_there || self.speaks_of(&lease_id, word.local).await? {
            return Ok(is_there);
        }
        self.give_back(link, seen, lease_id).await?;
        Ok(false)
    }

    /// Releases a claim under which no worker here has started, and none will.
    async fn give_back(&self, link: &BucketLink, seen: &TaskSnapshot, lease_id: LeaseId) -> Result<()> {
        link.forget(&seen.task().id);
        let (mut seen, release) = (seen.clone(), Event::Release { lease_id: lease_id.clone() });
        for _ in 0..TRIES_MAX {
            match link.queue.advance(Purpose::Sync, &seen, &release, self.name()).await? {
                // It was cancelled meanwhile.
                UpdateOutcome::Changed(now) if now.task().lease_id.as_ref() == Some(&lease_id) => seen = now,
                _ => break,
            }
        }
        Ok(())
    }

    /// Returns whether an operation under this claim, other than the claim itself, is still to be sent. A run that was lost
    /// counts as an attempt when the claim that has replaced it is sent.
    async fn speaks_of(&self, lease_id: &LeaseId, local: Local) -> Result<bool> {
        let ops = self.on_disk(Spool::outbox).await?;
        let is_about = |op: &Op| match &op.deed {
            OpKind::Claim { from, .. } => local == Local::Running && from.as_ref() == Some(lease_id),
            deed => deed.lease_id() == Some(lease_id),
        };
        Ok(ops.iter().any(|(_, op)| is_about(op)))
    }

    /// Updates the node's copy of a task from the bucket, unless an operation is still to be sent.
    pub(super) async fn follow(&self, id: TaskId, then: LocalOutcome) -> Result<()> {
        self.on_disk(move |spool| match then {
            LocalOutcome::Stays => Ok(()),
            LocalOutcome::Becomes(remote) if remote.status() == Status::Pending => {
                spool.mirror(&remote, None).map(|_| ())
            }
            // Another worker holds it, or it has ended.
            LocalOutcome::Becomes(remote) => {
                spool.replace_final(&remote)?;
                spool.forget(&id).map(|_| ())
            }
            LocalOutcome::Goes => spool.forget(&id).map(|_| ()),
        })
        .await
    }

    /// Handles an operation that the bucket rejects, or does not need.
    async fn conclude(
        &self,
        link: &BucketLink,
        word: &SyncStep<'_>,
        action: SyncAction,
        seen: Option<&TaskSnapshot>,
    ) -> Result<Applied> {
        let remote = seen.map(TaskSnapshot::task);
        let (mut synced, mut then, op) = (Synced::default(), LocalOutcome::Stays, word.op);
        link.forget(&op.task);
        let is_claim = matches!(op.deed, OpKind::Claim { .. });
        match action {
            SyncAction::GoOn if word.local == Local::Tentative => {
                if let Some(seen) = seen {
                    synced.confirmed += u64::from(self.confirm(link, word, seen).await?);
                }
            }
            SyncAction::GoOn | SyncAction::Write(_) => {}
            SyncAction::Done => then = becomes(remote),
            SyncAction::Drop(why) => {
                if let Some(why) = why {
                    Self::report(op, why);
                }
                if is_claim {
                    synced.refused += 1;
                    self.revoke(word, false).await?;
                }
                then = becomes(remote);
            }
            SyncAction::Stop(why) => {
                self.note_conflict(op, why).await?;
                synced.duplicates += u64::from(is_run_twice(why));
                synced.refused += 1;
                self.revoke(word, false).await?;
            }
            SyncAction::Conflict(why) => {
                self.note_conflict(op, why).await?;
                synced.duplicates += u64::from(is_run_twice(why));
                synced.conflicts += 1;
                then = becomes(remote);
            }
            SyncAction::Refuse(why) => {
                Self::report(op, why);
                then = becomes(remote);
            }
        }
        Ok(Applied::Sent(synced, then))
    }

    async fn note_conflict(&self, op: &Op, why: Why) -> Result<()> {
        Self::report(op, why);
        if breaks(Rule::ConflictThrownAway) {
            return Ok(());
        }
        let op = op.clone();
        self.on_disk(move |spool| spool.conflict(&op, why)).await
    }

    async fn revoke(&self, word: &SyncStep<'_>, keeps_copy: bool) -> Result<()> {
        let (id, lease_id) = (word.op.task, word.lease_id.clone());
        self.on_disk(move |spool| spool.revoke(&id, &lease_id, keeps_copy)).await.map(|_| ())
    }

    /// Handles an event that the record does not allow. `None` if the table should be consulted again.
    async fn refused(
        &self,
        link: &BucketLink,
        word: &SyncStep<'_>,
        write: Write,
        rejected: &Rejected,
        seen: &TaskSnapshot,
    ) -> Result<Option<Applied>> {
        let starts = matches!(write, Write::Claim | Write::TakeOver);
        let event = match rejected {
            // The task is due later: a worker that has started continues, and the claim is retried.
            Rejected::NotBefore(_) if starts && word.local == Local::Running => {
                return Ok(Some(Applied::Later));
            }
            Rejected::NotBefore(_) if write == Write::Claim => {
                self.revoke(word, true).await?;
                let synced = Synced { refused: 1, ..Synced::default() };
                return Ok(Some(Applied::Sent(synced, becomes(Some(seen.task())))));
            }
            Rejected::TooLate(_) if starts => Event::Expire,
            // No attempt is left, or it was cancelled: the bucket records that.
            Rejected::Status(_) if write == Write::TakeOver => word.end_of_the_dead(seen.task()),
            Rejected::Status(_) if write == Write::Retry => {
                return self
                    .conclude(link, word, SyncAction::Refuse(Why::NotEnded), Some(seen))
                    .await
                    .map(Some);
            }
            _ => return Ok(None),
        };
        link.queue.advance(Purpose::Sync, seen, &event, self.name()).await?;
        Ok(None)
    }

    pub(super) fn name(&self) -> &str {
        self.spool.config().node_id.as_str()
    }

    fn finishes(&self) -> bool {
        self.spool.config().finishes
    }
}

fn becomes(remote: Option<&Task>) -> LocalOutcome {
    match remote {
        Some(remote) if !remote.is_tombstone() => LocalOutcome::Becomes(Box::new(remote.clone())),
        _ => LocalOutcome::Goes,
    }
}

fn is_run_twice(why: Why) -> bool {
    matches!(why, Why::TakenByOthers | Why::CompletedByOthers | Why::FailedByOthers)
}

/// Parses a record that was written on a node.
fn read_record(value: &serde_json::Value) -> Result<Task> {
    let text = |field: &str| value.get(field).and_then(serde_json::Value::as_str).unwrap_or_default();
    let key = format!("tasks/{}/{}.json", text("shard"), text("id"));
    record::read(&key, value.to_string().as_bytes())
}

impl Supervisor {
    /// Records a check-out that was made or extended. Releases it if a worker here already holds the task.
    pub(super) async fn keep_checkout(
        &self,
        link: &BucketLink,
        seen: &TaskSnapshot,
        is_extended: bool,
    ) -> Result<bool> {
        let task = seen.task().clone();
        let (State::Running(claim), Some(lease_id)) = (&task.state, task.lease_id.clone()) else {
            return Ok(false);
        };
        let (epoch, expires_at) = (task.epoch, claim.expires_at);
        let checkout = Checkout { lease_id: lease_id.clone(), epoch, expires_at, is_extended };
        let mirrored = self.on_disk(move |spool| spool.mirror(&task, Some(checkout))).await?;
        if mirrored == Mirrored::Busy {
            self.give_back(link, seen, lease_id).await?;
            return Ok(false);
        }
        Ok(true)
    }
}
