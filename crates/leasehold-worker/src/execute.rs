//! One task, from its claim to its settlement.
//!
//! The handler of a claimed task is run, and its result recorded. The result is written only while the claim is held.
//! If the store fails, recording is retried until the claim expires; after that another worker recovers the task.

use futures::future::{Either, select};
use leasehold_core::{Kind, Task};
use leasehold_queue::Settlement;
use leasehold_queue::source::{ClaimedTask, Slot, TaskInSlot};
use std::time::Duration;
use tracing::Instrument;

use crate::engine::Engine;
use crate::renew::ActiveClaim;
use crate::run_handle::Stop;

/// Pause between two attempts to record a result.
const SETTLE_PAUSE: Duration = Duration::from_secs(1);

impl Engine {
    /// Runs a claimed task to its end, and frees its slot.
    pub(crate) async fn execute(&self, TaskInSlot { task, slot }: TaskInSlot) {
        let span = self.runner.span(task.task());
        self.run_and_settle(task, slot).instrument(span).await;
    }

    async fn run_and_settle(&self, claimed: Box<dyn ClaimedTask>, slot: Slot) {
        if claimed.time_left().is_none() {
            // The answer came so late that the claim has expired: another worker recovers the task.
            tracing::warn!("claim expired before it was confirmed");
            return self.runner.count(None);
        }
        tracing::info!("task claimed");
        let mut slot = Some(slot);
        let frees_slot = claimed.frees_slot_before_finish();
        let (task, active) = (claimed.task().clone(), ActiveClaim::new(claimed));
        // The renewer receives claims until this engine is dropped.
        let _ = self.renewals.send(active.clone());
        let run = Box::pin(self.runner.run(task, &active.run));
        let end = match select(run, Box::pin(self.stopping.cancelled())).await {
            Either::Left((end, _)) => end,
            Either::Right(((), run)) => {
                active.run.stop(Stop::Shutdown);
                run.await
            }
        };
        if frees_slot {
            slot.take();
        }
        let settled = match end {
            Some(settlement) => self.settle(&active, settlement).await,
            None => None,
        };
        active.run.mark_settled();
        self.runner.count(settled.as_ref());
    }

    /// Records the result of a run, as long as the claim can be trusted. During an outage the claim is renewed and
    /// recording is retried; any other error is retried only until the lease expires that was held at that time.
    async fn settle(&self, active: &ActiveClaim, settlement: Settlement) -> Option<Task> {
        let mut limit = None;
        loop {
            let mut claim = active.lock().await;
            if active.run.stop_reason() == Some(Stop::Lost) {
                claim.keep_late_result(settlement).await;
                return None;
            }
            let error = match claim.finish(settlement.clone()).await {
                Ok(None) => {
                    tracing::warn!("claim was lost before the task's result was recorded");
                    claim.keep_late_result(settlement).await;
                    return None;
                }
                Ok(settled) => return settled,
                Err(error) => error,
            };
            self.status.request_failed("record a task's result", &error);
            let (now, outage) = (self.runner.host.instant(), self.status.long_outage());
            let is_outage = matches!(error.kind(), Kind::Unavailable | Kind::Denied) || outage.is_some();
            let held_for = claim.time_left();
            limit = if is_outage { None } else { limit.or(held_for.map(|left| (now, left))) };
            let until_limit =
                limit.map_or(Duration::MAX, |(since, left)| left.saturating_sub(now.since(since)));
            let Some(left) = held_for.map(|left| left.min(until_limit)).filter(|left| !left.is_zero()) else {
                tracing::warn!("claim expired before the task's result was recorded");
                claim.keep_late_result(settlement).await;
                return None;
            };
            drop(claim);
            let pause = outage.map_or(SETTLE_PAUSE, |outage| outage.pause(now).min(left / 2));
            self.runner.host.sleep(pause.max(SETTLE_PAUSE)).await;
        }
    }
}
