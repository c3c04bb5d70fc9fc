//! Settlements: ends of claims.

use serde::{Deserialize, Serialize};

use super::{JournalContext, JournalDecision, decide};
use crate::ids::{LeaseId, TaskId};
use crate::journal::state::{JournalState, LoadedTask};
use crate::settlement::Settlement;
use crate::step::Rejected;
use crate::task::{State, Task};

/// End of a claim. The handler has stopped before.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SettleRequest {
    /// Id of the task.
    pub task: TaskId,
    /// Id of the claim.
    pub lease_id: LeaseId,
    /// End of the run.
    pub settlement: Settlement,
}

impl SettleRequest {
    /// Releases the claim of a task; none if it has none.
    #[must_use]
    pub fn release(task: &Task) -> Option<Self> {
        let lease_id = task.lease_id.clone()?;
        Some(Self { task: task.id, lease_id, settlement: Settlement::Release })
    }
}

impl JournalState {
    /// Decides a settlement. The answer is the task, or none if the claim was lost. A repeated settlement gets the task as
    /// it is now.
    pub fn settle(&self, request: SettleRequest, context: &JournalContext) -> JournalDecision<Option<Task>> {
        let task = match self.load(&request.task) {
            Ok(Some(task)) => task,
            Ok(None) => return JournalDecision::refused(Ok(None)),
            Err(error) => return JournalDecision::refused(Err(error)),
        };
        settled(task, request, context)
    }
}

pub(super) fn settled(
    task: LoadedTask<'_>,
    request: SettleRequest,
    context: &JournalContext,
) -> JournalDecision<Option<Task>> {
    let event = request.settlement.event(request.lease_id, context.now);
    let by = match &task.logged.task.state {
        State::Running(claim) => claim.by.as_str(),
        // It is rejected.
        _ => context.by.as_str(),
    };
    match decide(&task, &event, by, context) {
        Ok((record, settled)) => JournalDecision::done(vec![record], Some(settled)),
        // The settlement is in the log, or in the same commit, and stays there: that needs no proof. A worker resends it
        // until it is acknowledged.
        Err(Rejected::AlreadyApplied) => JournalDecision::done(Vec::new(), Some(task.into_current())),
        Err(_) => JournalDecision::refused(Ok(None)),
    }
}
