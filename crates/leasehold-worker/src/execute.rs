//! One task, from claim to settlement.
//!
//! An attempt claims the task of an index entry, runs its handler, and records the result. The result is written only
//! while the claim is held. If the store fails, recording is retried until the claim expires; after that another
//! worker recovers the task.

use leasehold_core::{Kind, Task};
use leasehold_queue::{ClaimOutcome, Claimed, IndexHit, Settlement};
use std::sync::Arc;
use std::time::Duration;
use tracing::Instrument;

use crate::renew::{ActiveClaim, time_left};
use crate::run::Engine;
use crate::run_handle::Stop;

/// Pause before a failed claim is retried: an immediate retry would fail, too.
const CLAIM_PAUSE: Duration = Duration::from_secs(1);

/// Pause between two attempts to record a result.
const SETTLE_PAUSE: Duration = Duration::from_secs(1);

impl Engine {
    /// Claims the task of an entry and, if that succeeds, runs it to its end. Returns the outcome for the entry.
    pub(crate) async fn attempt(self: Arc<Self>, found: IndexHit) -> (IndexHit, ClaimOutcome) {
        let handles = |task_type: &_| self.runner.handles(task_type);
        let (queue, id, lease) = (&self.queue, &self.runner.id, self.runner.options.lease);
        let met = if queue.now().is_ok_and(|now| self.is_owner(&found.entry.place, now)) {
            queue.claim_as_owner(&found, id, lease, &handles).await
        } else {
            queue.claim(&found, id, lease, &handles).await
        };
        let met = met.unwrap_or_else(|error| {
            // Treated as not held. If the claim was written, it expires and the task is recovered.
            self.request_failed("claim a task", &error);
            let now = self.queue.now().map_or(found.written_at, |now| now.latest_known());
            ClaimOutcome::NotDue(now.plus(CLAIM_PAUSE))
        });
        match &met {
            // The answer came so late that the claim has expired: another worker recovers the task.
            ClaimOutcome::Claimed(claimed) if time_left(&self.queue, claimed.expires_at()).is_none() => {
                tracing::warn!(task = %found.entry.id, "claim expired before it was confirmed");
                self.runner.count(None);
            }
            ClaimOutcome::Claimed(claimed) => self.execute(claimed).await,
            _ => {}
        }
        (found, met)
    }

    async fn execute(&self, claimed: &Claimed) {
        let span = self.runner.span(claimed.task());
        self.run_and_settle(claimed).instrument(span).await;
    }

    async fn run_and_settle(&self, claimed: &Claimed) {
        tracing::info!("task claimed");
        let held = ActiveClaim::new(claimed.clone());
        self.keep(&held);
        let now = || self.queue.now().map(|now| now.latest_known());
        let settlement = self.runner.run(claimed.task().clone(), &held.hold, &now).await;
        let settled = match settlement {
            Some(settlement) => self.settle(&held, settlement).await,
            None => None,
        };
        held.hold.settled();
        self.forget(&held);
        self.runner.count(settled.as_ref());
    }

    /// Records the result of a run, as long as the claim can be trusted. During an outage the claim is renewed and
    /// recording is retried; any other error is retried only until the lease expires that was held at that time.
    async fn settle(&self, held: &ActiveClaim, settlement: Settlement) -> Option<Task> {
        let mut last_try = None;
        loop {
            let claimed = held.claim().await;
            if held.hold.stopped() == Some(Stop::Lost) {
                return None;
            }
            match self.queue.settle(&claimed, settlement.clone()).await {
                Ok(None) => {
                    tracing::warn!("claim was lost before the task's result was recorded");
                    return None;
                }
                Ok(settled) => return settled,
                Err(error) => {
                    self.request_failed("record a task's result", &error);
                    let is_outage =
                        matches!(error.kind(), Kind::Unavailable | Kind::Denied) || self.outage().is_some();
                    last_try = if is_outage { None } else { last_try.or(Some(claimed.expires_at())) };
                }
            }
            let expires_at = last_try.unwrap_or(claimed.expires_at());
            drop(claimed);
            let now = self.queue.now().ok().filter(|now| now.is_before(expires_at));
            let Some(left) = now.map(|now| expires_at.since(now.latest)) else {
                tracing::warn!(task = %held.hold.id, "lease expired before the task's result was recorded");
                return None;
            };
            let now = self.host().instant();
            let pause = self.outage().map_or(SETTLE_PAUSE, |outage| outage.pause(now).min(left / 2));
            self.host().sleep(pause.max(SETTLE_PAUSE)).await;
        }
    }
}
