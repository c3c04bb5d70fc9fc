//! One task, from claim to settlement.

use leasehold_core::{Kind, Task};
use leasehold_queue::{Claimed, Found, Met, Settlement};
use std::sync::Arc;
use std::time::Duration;
use tracing::Instrument;

use crate::hold::Stop;
use crate::renew::{Held, time_left};
use crate::run::Engine;

/// Before a claim that failed is tried again: what is wrong with the store does not go away by asking at once.
const CLAIM_PAUSE: Duration = Duration::from_secs(1);

/// Between two tries to settle with a store that does not answer.
const SETTLE_PAUSE: Duration = Duration::from_secs(1);

impl Engine {
    /// Claims the task of an entry and, if it is ours, runs it to its end. Says what became of the entry.
    pub(crate) async fn attempt(self: Arc<Self>, found: Found) -> (Found, Met) {
        let handles = |task_type: &_| self.crew.handles(task_type);
        let (queue, id, lease) = (&self.queue, &self.crew.id, self.crew.options.lease);
        let met = if queue.now().is_ok_and(|now| self.is_owner(&found.entry.place, now)) {
            queue.claim_as_owner(&found, id, lease, &handles).await
        } else {
            queue.claim(&found, id, lease, &handles).await
        };
        let met = met.unwrap_or_else(|error| {
            // Not held, as far as running it goes; whoever finds its lease run out puts it back.
            self.request_failed("claim a task", &error);
            let now = self.queue.now().map_or(found.written_at, |now| now.latest_known());
            Met::NotDue(now.plus(CLAIM_PAUSE))
        });
        match &met {
            // The answer came so late that nothing is left of the claim: whoever finds that puts the task back.
            Met::Claimed(claimed) if time_left(&self.queue, claimed.expires_at()).is_none() => {
                tracing::warn!(task = %found.entry.id, "the claim ran out before it was confirmed");
                self.crew.count(None);
            }
            Met::Claimed(claimed) => self.execute(claimed).await,
            _ => {}
        }
        (found, met)
    }

    async fn execute(&self, claimed: &Claimed) {
        let span = self.crew.span(claimed.task());
        self.run_and_settle(claimed).instrument(span).await;
    }

    async fn run_and_settle(&self, claimed: &Claimed) {
        tracing::info!("task claimed");
        let held = Held::new(claimed.clone());
        self.keep(&held);
        let now = || self.queue.now().map(|now| now.latest_known());
        let settlement = self.crew.run(claimed.task().clone(), &held.hold, &now).await;
        let settled = match settlement {
            Some(settlement) => self.settle(&held, settlement).await,
            None => None,
        };
        held.hold.settled();
        self.forget(&held);
        self.crew.count(settled.as_ref());
    }

    /// Records the result of a run, as long as the claim can be trusted. A store that fails for now does not refuse this
    /// result in particular; an error about anything else is tried again until the lease expires that was held then.
    async fn settle(&self, held: &Held, settlement: Settlement) -> Option<Task> {
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
