//! A claimed task of a spool.
//!
//! A holder renews its lease every minute, and checks every few seconds whether it still holds it: a check writes nothing, and
//! a task that was cancelled or revoked is stopped soon.

use futures::future::BoxFuture;
use leasehold_core::limits::{DISK_HEARTBEAT, DISK_LEASE_STALE};
use leasehold_core::{Kind, Result, Task};
use leasehold_queue::Settlement;
use leasehold_queue::source::{ClaimStatus, ClaimedTask};
use leasehold_store::host::Instant;
use serde_json::Value;
use std::time::Duration;

use crate::spool::{HeldTask, Spool};

/// Pause between two checks of a lease.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// A task that this worker holds.
#[derive(Debug)]
pub(super) struct SpoolClaim {
    spool: Spool,
    held: HeldTask,
    /// Time of the claim, or of the last heartbeat.
    renewed_at: Instant,
}

impl SpoolClaim {
    pub(super) fn new(spool: Spool, held: HeldTask) -> Self {
        Self { renewed_at: spool.host().instant(), spool, held }
    }

    /// True if the bucket has not confirmed the claim.
    pub(super) fn is_tentative(&self) -> bool {
        self.held.lease.tentative
    }

    /// Removes the conflict of a claim that the bucket has refused before the handler has started.
    pub(super) async fn remove_conflict(self) {
        let held = self.held.clone();
        if let Err(error) = self.spool.on_disk(move |spool| spool.remove_claim_conflict(&held)).await {
            tracing::warn!(%error, "failed to remove a conflict, task counts as run twice");
        }
    }
}

impl ClaimedTask for SpoolClaim {
    fn task(&self) -> &Task {
        &self.held.task
    }

    /// After that time any worker may have claimed the task.
    fn time_left(&self) -> Option<Duration> {
        let silent = self.spool.host().instant().since(self.renewed_at);
        DISK_LEASE_STALE.checked_sub(silent).filter(|left| !left.is_zero())
    }

    fn renew_every(&self) -> Duration {
        CHECK_INTERVAL
    }

    /// Checks the lease, and renews it if that is requested or due. The progress of a handler is not recorded in a folder.
    fn renew(&mut self, _progress: Option<Value>, is_requested: bool) -> BoxFuture<'_, Result<ClaimStatus>> {
        Box::pin(async move {
            let (now, mut held) = (self.spool.host().instant(), self.held.clone());
            let is_due = is_requested || now.since(self.renewed_at) >= DISK_HEARTBEAT;
            let checked = self.spool.on_disk(move |spool| {
                let mut status = spool.lease_status(&held)?;
                // A confirmation may have changed attempt and epoch.
                let is_renewal = is_due || status.confirmed && held.lease.tentative;
                if is_renewal {
                    status = spool.heartbeat(&mut held)?;
                }
                Ok((status, is_renewal, held))
            });
            match checked.await {
                Ok((status, is_renewal, held)) => {
                    self.held = held;
                    if is_renewal {
                        self.renewed_at = now;
                    }
                    Ok(if status.cancelled { ClaimStatus::Cancelled } else { ClaimStatus::Held })
                }
                Err(error) => {
                    tracing::warn!(task = %self.held.task.id, %error, "failed to renew or check the lease");
                    // Until it is stale, no other worker takes it.
                    Ok(if error.kind() == Kind::Lost { ClaimStatus::Lost } else { ClaimStatus::Held })
                }
            }
        })
    }

    fn finish(&mut self, settlement: Settlement) -> BoxFuture<'_, Result<Option<Task>>> {
        let held = self.held.clone();
        let recorded = self.spool.on_disk(move |spool| spool.settle(&held, settlement));
        Box::pin(async move {
            match recorded.await {
                Ok(task) => Ok(Some(task)),
                Err(error) if matches!(error.kind(), Kind::Unavailable | Kind::Denied) => Err(error),
                Err(error) => {
                    if error.kind() != Kind::Lost {
                        tracing::error!(%error, "failed to record task result");
                    }
                    Ok(None)
                }
            }
        })
    }

    /// Keeps a result in `conflicts/` whose task another worker holds by now.
    fn keep_late_result(&mut self, settlement: Settlement) -> BoxFuture<'_, ()> {
        let held = self.held.clone();
        Box::pin(async move {
            let kept = self.spool.on_disk(move |spool| spool.keep_late_result(&held, settlement));
            if let Err(error) = kept.await {
                tracing::error!(%error, "failed to keep the result of a lost task");
            }
        })
    }
}
