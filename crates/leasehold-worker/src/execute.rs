//! One task, from its claim to its settlement.
//!
//! The handler of a claimed task is run, and its result recorded. The result is written only while the claim is held.
//! If the store fails, recording is retried until the claim expires; after that another worker recovers the task.

use leasehold_core::{Kind, Task};
use leasehold_queue::Settlement;
use leasehold_queue::source::{ClaimedTask, Slot, TaskInSlot};
use std::time::Duration;
use tracing::Instrument;

use crate::engine::{Engine, long_outage, request_failed};
use crate::renew::ActiveClaim;
use crate::run_handle::Stop;
use crate::runner::RunEnd;

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
        self.register(&active);
        let end = self.runner.run(task, &active.run).await;
        if frees_slot {
            slot.take();
        }
        let settled = match end {
            Some(end) => self.settle(&active, end).await,
            None => None,
        };
        active.run.mark_settled();
        self.unregister(&active);
        self.runner.count(settled.as_ref());
    }

    /// Records the result of a run, as long as the claim can be trusted. During an outage the claim is renewed and
    /// recording is retried; any other error is retried only until the lease expires that was held at that time.
    async fn settle(&self, active: &ActiveClaim, end: RunEnd) -> Option<Task> {
        let settlement = match end {
            RunEnd::Settled(settlement) => settlement,
            RunEnd::Snoozed(pause) => Settlement::Snooze(active.lock().await.now().ok()?.plus(pause)),
        };
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
            let (now, outage) = (self.runner.host.instant(), self.status.outage());
            request_failed("record a task's result", &error, outage.as_ref());
            let outage = long_outage(outage);
            let is_outage = matches!(error.kind(), Kind::Unavailable | Kind::Denied) || outage.is_some();
            let held_for = claim.time_left();
            limit = if is_outage { None } else { limit.or(held_for.map(|left| (now, left))) };
            let until_limit =
                limit.map_or(Duration::MAX, |(since, left)| left.saturating_sub(now.since(since)));
            let Some(left) = held_for.map(|left| left.min(until_limit)).filter(|left| !left.is_zero()) else {
                tracing::warn!("lease expired before the task's result was recorded");
                claim.keep_late_result(settlement).await;
                return None;
            };
            drop(claim);
            let pause = outage.map_or(SETTLE_PAUSE, |outage| outage.pause(now).min(left / 2));
            self.runner.host.sleep(pause.max(SETTLE_PAUSE)).await;
        }
    }
}
