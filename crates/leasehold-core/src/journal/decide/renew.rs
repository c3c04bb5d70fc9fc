//! Renewals of claims. They are answered from memory and not logged, except for the first of each claim with each broker.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{JournalContext, JournalDecision};
use crate::error::Result;
use crate::ids::{LeaseId, TaskId, WorkerId};
use crate::journal::record::JournalRecord;
use crate::journal::state::{ClaimRenewal, JournalState};
use crate::new_task::check_size;
use crate::step::{Event, step};
use crate::task::State;
use crate::time::StoreTime;

/// Renewal of the claims of a worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RenewRequest {
    /// Worker that holds the claims.
    pub worker: WorkerId,
    /// Claims to renew.
    pub claims: Vec<ClaimToRenew>,
}

/// A claim to renew.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClaimToRenew {
    /// Id of the task.
    pub task: TaskId,
    /// Id of the claim.
    pub lease_id: LeaseId,
    /// Progress of the handler, if it was reported. Progress that is too large is dropped, so that the claim is renewed in
    /// any case.
    pub progress: Option<Value>,
}

/// A claim that was renewed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RenewedClaim {
    /// New expiry, as an absolute time (rule C7).
    pub expires_at: StoreTime,
    /// True if the cancellation of the task was requested.
    pub cancel_requested: bool,
}

impl JournalState {
    /// Decides renewals. The answers are in the order of the request; none for a claim that was lost, whose handler must
    /// stop at once.
    ///
    /// A broker must answer renewals only while it trusts its own lease (rule C1). A claim is renewed for the duration with
    /// which it was made: a fence extends it by no more.
    pub fn renew(
        &self,
        request: RenewRequest,
        context: &JournalContext,
    ) -> JournalDecision<Vec<Option<RenewedClaim>>> {
        let (mut renewals, mut answers, mut unheard) = (Vec::new(), Vec::new(), Vec::new());
        for claim in request.claims {
            let id = claim.task;
            let Ok(Some((renewal, answer, is_heard))) = self.renewal(claim, &request.worker, context) else {
                answers.push(None);
                continue;
            };
            if !is_heard {
                unheard.push(id);
            }
            renewals.push((id, renewal));
            answers.push(Some(answer));
        }
        let is_refusal = answers.contains(&None);
        let heard = JournalRecord::Heard { at: context.now.earliest, by: request.worker, tasks: unheard };
        let records = if matches!(&heard, JournalRecord::Heard { tasks, .. } if tasks.is_empty()) {
            Vec::new()
        } else {
            vec![heard]
        };
        JournalDecision { records, parsed: Vec::new(), renewals, answer: Ok(answers), is_refusal }
    }

    /// New renewal of a claim, and whether the claim was made or renewed since the last fence (`heard`); none if the
    /// claim was lost.
    fn renewal(
        &self,
        claim: ClaimToRenew,
        worker: &WorkerId,
        context: &JournalContext,
    ) -> Result<Option<(ClaimRenewal, RenewedClaim, bool)>> {
        let Some(task) = self.load(&claim.task)? else { return Ok(None) };
        let Some(terms) = task.logged.claim else { return Ok(None) };
        let progress = claim.progress.filter(|progress| check_size("progress", progress).is_ok());
        let event = Event::Renew { lease_id: claim.lease_id, lease: terms.lease, progress };
        let current = task.current();
        let renewed = step(&current, &event, &context.for_step(&current, worker.as_str()));
        let Some(State::Running(claim)) = renewed.as_ref().ok().map(|step| &step.task.state) else {
            return Ok(None);
        };
        let answer = RenewedClaim { expires_at: claim.expires_at, cancel_requested: claim.cancel_requested };
        let (expires_at, renewed_at) = (claim.expires_at, context.now.earliest);
        let progress = renewed.ok().and_then(|step| step.task.progress);
        Ok(Some((ClaimRenewal { expires_at, renewed_at, progress }, answer, terms.is_heard)))
    }
}
