//! Claims: due tasks for the free slots of a worker.

use serde::{Deserialize, Serialize};
use std::time::Duration;

use super::{JournalContext, JournalDecision, decide};
use crate::ids::{LeaseId, TaskId, TaskTypes, WorkerId};
use crate::journal::state::JournalState;
use crate::step::Event;
use crate::task::Task;

/// Maximum number of tasks that one claim skips because they are not due after all. There are such tasks only after the clock
/// has gone back, and until it has caught up the broker must not read all of them for every claim.
const REJECTED_MAX: usize = 100;

/// Request of a worker for due tasks.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ClaimRequest {
    /// Worker that claims.
    pub worker: WorkerId,
    /// Types that it has handlers for.
    pub types: TaskTypes,
    /// Duration of the lease of each claim.
    pub lease: Duration,
    /// Ids for the claims: one for each free slot.
    pub lease_ids: Vec<LeaseId>,
}

/// Tasks that were claimed.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ClaimedTasks {
    /// The tasks, in the order in which they became due.
    pub tasks: Vec<Task>,
    /// Next due task, before which the claim has ended because it is [evicted](crate::journal::evicted).
    pub evicted: Option<TaskId>,
}

impl JournalState {
    /// Decides a claim: as many tasks as there are lease ids, or fewer if no more are due, or the next one is evicted. Each task has its lease id and
    /// the expiry of its claim, which is an absolute time (rule C7).
    ///
    /// The answer must not be sent before the commit is confirmed: then even a task that crashes its worker, and the broker
    /// with it, uses up its attempts.
    pub fn claim(&self, request: &ClaimRequest, context: &JournalContext) -> JournalDecision<ClaimedTasks> {
        let (mut records, mut parsed, mut rejected) = (Vec::new(), Vec::new(), 0);
        let mut claimed = ClaimedTasks::default();
        let mut lease_ids = request.lease_ids.iter().peekable();
        for id in self.ready(&request.types) {
            let Some(lease_id) = lease_ids.peek().filter(|_| rejected < REJECTED_MAX) else { break };
            let Some(live) = self.tasks.get(&id) else { continue };
            // It expires with the next tick. Many tasks may expire at once, so they are not even read here.
            if context.now.is_past(live.indexed.expires_at) {
                continue;
            }
            if live.is_evicted() {
                claimed.evicted = Some(id);
                break;
            }
            let (worker, lease_id) = (request.worker.clone(), LeaseId::clone(lease_id));
            let event = Event::Claim { worker, lease_id, lease: request.lease };
            // A corrupt task is left in place; reading it by its id shows the error.
            let Ok(task) = live.load(&id) else { continue };
            match decide(&task, &event, request.worker.as_str(), context) {
                Ok((record, claim)) => {
                    records.push(record);
                    parsed.push(task.logged.into_owned());
                    claimed.tasks.push(claim);
                    lease_ids.next();
                }
                Err(_) => rejected += 1,
            }
        }
        // That nothing is due needs no proof: the worker asks again.
        JournalDecision { parsed, ..JournalDecision::done(records, claimed) }
    }

    /// Due tasks of some types, in the order in which they are claimed.
    pub fn ready(&self, types: &TaskTypes) -> impl Iterator<Item = TaskId> {
        let rows: Vec<_> = match types.names() {
            None => self.indexes.types.rows().collect(),
            Some(names) => names.iter().filter_map(|name| self.indexes.types.find(name)).collect(),
        };
        let mut queues: Vec<_> = rows.into_iter().map(|row| row.ready.iter().peekable()).collect();
        std::iter::from_fn(move || {
            let next = queues.iter_mut().filter_map(|queue| queue.peek().copied().map(|key| (key, queue)));
            let (key, queue) = next.min_by_key(|(key, _)| **key)?;
            queue.next();
            Some(key.id)
        })
    }
}
