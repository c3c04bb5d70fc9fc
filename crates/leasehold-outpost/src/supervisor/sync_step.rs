//! Operation of a node on a task, and the event that applies it in the bucket.

use leasehold_core::outpost::{BucketWrite, ClockSource, KnownState, NodeState, Op, OpKind};
use leasehold_core::{Event, LeaseId, Now, State, StoreTime, Task};
use leasehold_store::HostExt;

use super::BucketLink;

/// Operation of a node on a task, to apply in the bucket.
pub(super) struct SyncStep<'a> {
    pub(super) local: NodeState,
    pub(super) op: &'a Op,
    /// Id of the claim that a put would make, if it makes one.
    pub(super) lease_id: LeaseId,
    pub(super) known: KnownState,
    /// True if the worker that made the claim may wait for its confirmation, or may be gone.
    pub(super) is_unconfirmed: bool,
}

impl<'a> SyncStep<'a> {
    pub(super) fn of(op: &'a Op, has_started: bool, by: &BucketLink) -> Self {
        let known = KnownState::of(op);
        let lease_id = known.lease_id.clone().unwrap_or_else(|| by.host().random_name());
        let is_unconfirmed = matches!(op.kind, OpKind::Claim { .. });
        Self { local: NodeState::of(&op.kind, has_started), op, lease_id, known, is_unconfirmed }
    }

    /// Converts a time of the node to the bucket's time. If the node did not know the bucket's time, the time is as far from
    /// now as it was from the operation.
    fn in_store_time(&self, moment: StoreTime, now: Now) -> StoreTime {
        match self.op.clock {
            ClockSource::Bucket => moment,
            ClockSource::Boot => now.earliest.plus(moment.since(self.op.at)),
        }
    }

    /// Returns whether this operation's claim holds the task and has not expired.
    pub(super) fn is_held(&self, task: &Task, now: Now) -> bool {
        let is_live = matches!(&task.state, State::Running(claim) if now.is_before(claim.expires_at));
        is_live && task.lease_id.as_ref() == Some(&self.lease_id)
    }

    /// Event that ends a claim that cannot be taken over: at once if it is of a worker of this node that no longer runs.
    pub(super) fn end_of_lost_claim(&self, task: &Task) -> Event {
        let is_ours = |lease_id: &&LeaseId| task.lease_id.as_ref() == Some(*lease_id);
        let ours = self.known.from.iter().chain(&self.known.lease_id).find(is_ours).cloned();
        match ours {
            None => Event::TimeOut,
            Some(lease_id) if task.is_cancel_requested() => Event::Stop { lease_id },
            Some(lease_id) => {
                let error = "the worker on the node stopped renewing its lease".to_owned();
                Event::Fail { lease_id, error, retryable: true, after: None }
            }
        }
    }

    /// Event that applies the operation; `None` if there is none.
    pub(super) fn event(&self, write: BucketWrite, by: &BucketLink, now: Now) -> Option<Event> {
        let (lease_id, lease, worker) =
            (self.lease_id.clone(), by.options.lease, by.spool.config().node_id.clone());
        Some(match (write, &self.op.kind) {
            (BucketWrite::Claim, _) => Event::Claim { worker, lease_id, lease },
            (BucketWrite::TakeOver, _) => {
                let from = self.known.from.clone().or_else(|| self.known.lease_id.clone());
                let is_unused = self.local == NodeState::CheckedOut
                    || matches!(self.op.kind, OpKind::Claim { is_unused: true, .. });
                Event::TakeOver { worker, lease_id, lease, from, is_unused }
            }
            (BucketWrite::Renew, _) => Event::Renew { lease_id, lease, progress: None },
            (
                BucketWrite::Complete | BucketWrite::CompleteOffline,
                OpKind::Complete { lease_id, output, results },
            ) => {
                let (lease_id, output, results) = (lease_id.clone(), output.clone(), results.clone());
                match write {
                    BucketWrite::Complete => Event::Complete { lease_id, output, results },
                    _ => Event::CompleteOffline { lease_id, output, results },
                }
            }
            (BucketWrite::Fail, OpKind::Fail { lease_id, error, retryable, after, max_attempts }) => {
                let (lease_id, error) = (lease_id.clone(), error.clone());
                match *max_attempts {
                    Some(max_attempts) => Event::Exhaust { lease_id, error, max_attempts },
                    None => Event::Fail { lease_id, error, retryable: *retryable, after: *after },
                }
            }
            (BucketWrite::FailOffline, OpKind::Fail { lease_id, error, retryable, after, max_attempts }) => {
                let (lease_id, error) = (lease_id.clone(), error.clone());
                let (retryable, after, max_attempts) = (*retryable, *after, *max_attempts);
                Event::FailOffline { lease_id, error, retryable, after, max_attempts }
            }
            (BucketWrite::Release, OpKind::Release { until: Some(until), .. }) => {
                Event::Snooze { lease_id, until: self.in_store_time(*until, now) }
            }
            (BucketWrite::Release, OpKind::Stop { .. }) | (BucketWrite::Stop, _) => Event::Stop { lease_id },
            (BucketWrite::Release, _) => Event::Release { lease_id },
            (BucketWrite::Reschedule, OpKind::Release { until: Some(until), .. }) => {
                Event::Reschedule { at: self.in_store_time(*until, now) }
            }
            (BucketWrite::Reschedule, OpKind::Stop { .. }) | (BucketWrite::Cancel, _) => Event::Cancel,
            (BucketWrite::Retry, _) => Event::Retry,
            _ => return None,
        })
    }
}
