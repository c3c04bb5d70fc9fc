//! Claims: made for entries of the index, renewed while the task runs, and settled.
//!
//! Requests: see [`leasehold_queue::claim`].

use futures::future::BoxFuture;
use leasehold_core::{Result, Task};
use leasehold_queue::source::{ClaimStatus, ClaimedTask, SourceStatus};
use leasehold_queue::{ClaimOutcome, Claimed, IndexHit, Settlement, Unclaimed};
use leasehold_store::mutant::breaks;
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;

use super::Objects;

/// Pause before a failed claim is retried: an immediate retry would fail, too.
const CLAIM_PAUSE: Duration = Duration::from_secs(1);

impl Objects {
    /// Tries to claim the task of an entry.
    pub(super) async fn claim(&self, found: &IndexHit) -> ClaimOutcome {
        let (queue, worker) = (&self.queue, &self.worker);
        let is_owner = queue.now().is_ok_and(|now| self.is_only_scanner(&found.entry.location, now));
        let outcome = queue.claim(found, &worker.id, self.options.lease, &worker.types, is_owner).await;
        outcome.unwrap_or_else(|error| {
            // Treated as not held. If the claim was written, it expires and the task is recovered.
            self.request_failed("claim a task", &error);
            let now = self.queue.now().map_or(found.written_at, |now| now.latest_known());
            Err(Unclaimed::NotDue(now.plus(CLAIM_PAUSE)))
        })
    }
}

/// A task that this worker has claimed.
#[derive(Debug)]
pub(super) struct ObjectClaim {
    pub(super) objects: Arc<Objects>,
    pub(super) claimed: Claimed,
}

impl ClaimedTask for ObjectClaim {
    fn task(&self) -> &Task {
        self.claimed.task()
    }

    fn time_left(&self) -> Option<Duration> {
        if breaks("claim-trusted-for-ever") {
            return Some(Duration::from_hours(1));
        }
        let (now, expires_at) = (self.objects.queue.now().ok()?, self.claimed.expires_at());
        now.is_before(expires_at).then(|| expires_at.since(now.latest))
    }

    fn renew_every(&self) -> Duration {
        self.objects.options.lease / 3
    }

    fn renew(&mut self, progress: Option<Value>, _is_requested: bool) -> BoxFuture<'_, Result<ClaimStatus>> {
        Box::pin(async move {
            let (queue, lease) = (&self.objects.renewing, self.objects.options.lease);
            match queue.renew(&self.claimed, lease, progress).await? {
                None => Ok(ClaimStatus::Lost),
                Some(renewed) => {
                    self.claimed = renewed;
                    let is_cancelled = self.claimed.task().is_cancel_requested();
                    Ok(if is_cancelled { ClaimStatus::Cancelled } else { ClaimStatus::Held })
                }
            }
        })
    }

    fn finish(&mut self, settlement: Settlement) -> BoxFuture<'_, Result<Option<Task>>> {
        Box::pin(self.objects.queue.settle(&self.claimed, settlement))
    }
}
