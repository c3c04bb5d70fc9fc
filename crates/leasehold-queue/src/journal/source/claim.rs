//! A task that a worker has claimed from a broker.

use futures::future::BoxFuture;
use leasehold_core::journal::{ClaimToRenew, RenewRequest, SettleRequest};
use leasehold_core::settlement::Settlement;
use leasehold_core::{LeaseId, Result, State, StoreTime, Task, WorkerId};
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;

use super::super::handle::BrokerSlot;
use super::super::request::BrokerRequest;
use crate::source::{ClaimStatus, ClaimedTask, WorkerInfo};

/// Fraction of a claim's lease after which it is renewed.
const RENEWALS_PER_LEASE: u32 = 3;

/// A claimed task.
#[derive(Debug)]
pub(super) struct JournalClaim {
    broker: Arc<BrokerSlot>,
    task: Task,
    worker: WorkerId,
    lease: Duration,
    /// Last confirmed expiry.
    expires_at: StoreTime,
}

impl JournalClaim {
    pub(super) fn new(broker: Arc<BrokerSlot>, task: Task, worker: &WorkerInfo) -> Self {
        let expires_at = match &task.state {
            State::Running(claim) => claim.expires_at,
            _ => StoreTime::from_millis(0),
        };
        Self { broker, task, worker: worker.id.clone(), lease: worker.lease, expires_at }
    }

    fn lease_id(&self) -> Option<LeaseId> {
        self.task.lease_id.clone()
    }
}

impl ClaimedTask for JournalClaim {
    fn task(&self) -> &Task {
        &self.task
    }

    fn now(&self) -> Result<StoreTime> {
        Ok(self.broker.now()?.earliest)
    }

    fn time_left(&self) -> Option<Duration> {
        let now = self.broker.now().ok()?;
        now.is_before(self.expires_at).then(|| self.expires_at.since(now.latest))
    }

    fn renew_every(&self) -> Duration {
        self.lease / RENEWALS_PER_LEASE
    }

    fn renew(&mut self, progress: Option<Value>, _: bool) -> BoxFuture<'_, Result<ClaimStatus>> {
        Box::pin(async move {
            let Some(lease_id) = self.lease_id() else { return Ok(ClaimStatus::Lost) };
            let claim = ClaimToRenew { task: self.task.id, lease_id, progress };
            let renewal = RenewRequest { worker: self.worker.clone(), claims: vec![claim] };
            let renewed = self.broker.ask(|answer| BrokerRequest::Renew { renewal, answer }).await?;
            let Some(Some(renewed)) = renewed.into_iter().next() else { return Ok(ClaimStatus::Lost) };
            self.expires_at = renewed.expires_at;
            Ok(if renewed.cancel_requested { ClaimStatus::Cancelled } else { ClaimStatus::Held })
        })
    }

    fn finish(&mut self, settlement: Settlement) -> BoxFuture<'_, Result<Option<Task>>> {
        Box::pin(async move {
            let Some(lease_id) = self.lease_id() else { return Ok(None) };
            self.broker.settle(SettleRequest { task: self.task.id, lease_id, settlement }).await
        })
    }

    fn frees_slot_before_finish(&self) -> bool {
        true
    }
}
