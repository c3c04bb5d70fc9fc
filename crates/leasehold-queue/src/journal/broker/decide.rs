//! Decisions on requests: by the pure functions of [`JournalState`], on the one state.

use leasehold_core::journal::{
    JournalContext, JournalDecision, JournalState, Logged, PurgePage, RenewRequest, RenewedClaim,
    SettleRequest,
};
use leasehold_core::limits::{BROKER_PAGE_MAX, BROKER_TICK_MAX};
use leasehold_core::settlement::Settlement;
use leasehold_core::{Error, Kind, LeaseId, Now, Result, TaskId};
use leasehold_store::mutant::breaks;

use super::Broker;
use crate::journal::changes::ChangeFeed;
use crate::journal::commit::Urgency;
use crate::journal::request::{
    AnswerTo, ArchiveRequest, BrokerRequest, Freshness, HeldAnswer, PurgePlace, PurgedPage,
};

/// Actor of changes that time makes, in the history of tasks.
pub(super) const BROKER: &str = "broker";

impl Broker {
    /// Decides a request whose task is not archived, when the tasks that it needs are in memory. An error ends the broker; a
    /// request that fails is answered.
    pub(super) fn handle_live(&mut self, request: BrokerRequest) -> Result<()> {
        if let Some(id) = request.needs(&self.state, &self.changes) {
            return self.read_back(id, request);
        }
        let is_new = matches!(request, BrokerRequest::Submit { .. } | BrokerRequest::Import { .. });
        if is_new && self.maintenance.holds_submits(self.state.resident_bytes()) {
            self.submits.push_back(request);
            return Ok(());
        }
        match request {
            BrokerRequest::Submit { task, by, answer } => {
                self.decide(&by, Urgency::Urgent, answer, |state, context| state.submit(*task, context))
            }
            BrokerRequest::Claim(poll) => self.claim(poll),
            BrokerRequest::Renew { renewal, answer } => {
                if !self.lease.is_trusted(self.now()?) && !breaks("broker-renews-untrusted") {
                    // Rule C1: the next broker extends claims from the end of that trust.
                    self.send(HeldAnswer::new(answer, Err(untrusted())))
                } else {
                    self.workers.renewed(&renewal.worker, self.client.host().instant());
                    self.decide(BROKER, Urgency::Urgent, answer, |state, context| {
                        renewed(state, renewal, context)
                    })
                }
            }
            BrokerRequest::Settle { settlement, answer } => {
                let is_watched = self.watches.contains(&settlement.task);
                let urgency = if is_watched { Urgency::Urgent } else { Urgency::Lazy };
                self.decide(BROKER, urgency, answer, |state, context| state.settle(*settlement, context))
            }
            BrokerRequest::Operate { id, event, by, answer } => {
                self.decide(&by, Urgency::Urgent, answer, |state, context| {
                    state.operate(&id, &event, context)
                })
            }
            BrokerRequest::Purge { retention, at: PurgePlace::Archive(after), by, answer } => {
                self.archiver.requests.push_back(ArchiveRequest::Purge { retention, after, by, answer });
                Ok(())
            }
            BrokerRequest::Purge { retention, at: PurgePlace::Live(after), by, answer } => {
                let logged = self.log(&by, Urgency::Urgent, |state, context| {
                    state.purge(&retention, after, BROKER_PAGE_MAX, context)
                })?;
                if let Ok(PurgePage { evicted: Some(id), .. }) = logged.answer {
                    let at = PurgePlace::Live(after);
                    return self.read_back(id, BrokerRequest::Purge { retention, at, by, answer });
                }
                self.hold(HeldAnswer::new(answer, logged.answer.map(live_page)), logged.is_refusal)
            }
            BrokerRequest::Orphans { names, answer } => {
                self.archiver.requests.push_back(ArchiveRequest::Orphans { names, answer });
                Ok(())
            }
            BrokerRequest::PurgeTask { id, retention, by, answer } => {
                self.decide(&by, Urgency::Urgent, answer, |state, context| {
                    state.purge_task(&id, &retention, context)
                })
            }
            BrokerRequest::Import { task, answer } => {
                self.decide(BROKER, Urgency::Urgent, answer, |state, context| state.import(*task, context))
            }
            BrokerRequest::Read { query, freshness, answer } => {
                self.advance(self.now()?);
                let answer = HeldAnswer::new(answer, query.answer(&self.state));
                self.hold(answer, freshness == Freshness::Current)
            }
            BrokerRequest::Watch { id, rev, answer } => {
                self.watches.add(id, rev, answer);
                self.serve_watches()
            }
            BrokerRequest::StopClaims { source } => self.stop_claims(&source),
            BrokerRequest::Status { answer } => self.status(answer),
            BrokerRequest::Workers { answer } => self.workers(answer),
            BrokerRequest::Changes { since, answer } => {
                self.advance(self.now()?);
                let page = self.changes.page(since.as_ref(), &self.state);
                self.hold(HeldAnswer::new(answer, page), false)
            }
            BrokerRequest::Report(report) => {
                self.workers.report(report, self.client.host().instant());
                Ok(())
            }
            BrokerRequest::Close => {
                self.close();
                Ok(())
            }
        }
    }

    /// Handles new tasks that have waited for the end of a snapshot.
    pub(super) fn submit_held(&mut self) -> Result<()> {
        while !self.open.is_full() && !self.maintenance.holds_submits(self.state.resident_bytes()) {
            let Some(request) = self.submits.pop_front() else { break };
            self.handle(request)?;
        }
        Ok(())
    }

    /// Decides, logs, and holds the answer.
    pub(super) fn decide<T: Send + 'static>(
        &mut self,
        by: &str,
        urgency: Urgency,
        answer: AnswerTo<T>,
        decision: impl FnOnce(&JournalState, &JournalContext) -> JournalDecision<T>,
    ) -> Result<()> {
        let logged = self.log(by, urgency, decision)?;
        self.hold(HeldAnswer::new(answer, logged.answer), logged.is_refusal)
    }

    /// Decides and logs.
    pub(super) fn log<T>(
        &mut self,
        by: &str,
        urgency: Urgency,
        decision: impl FnOnce(&JournalState, &JournalContext) -> JournalDecision<T>,
    ) -> Result<Logged<T>> {
        let context =
            JournalContext { by: by.to_owned(), now: self.now()?, random: self.client.host().random() };
        self.advance(context.now);
        let decision = decision(&self.state, &context);
        self.maintenance.record(&decision.records);
        decision.records.iter().for_each(|record| self.changes.record(record));
        let logged = self.state.log(decision, &mut self.open.lines)?;
        if logged.records > 0 {
            self.open.add(logged.records, urgency, self.client.host().instant());
            self.parked.has_changes = true;
            self.watches.has_changes = true;
        }
        Ok(logged)
    }

    /// Makes tasks due whose time has come, for the next claims and for those that wait.
    fn advance(&mut self, now: Now) {
        self.parked.is_any_due |= self.state.advance(now);
    }

    /// Times out claims and expires tasks whose time has come.
    pub(super) fn tick(&mut self) -> Result<()> {
        let now = self.now()?;
        while self.state.next_wake().is_some_and(|at| now.has_reached(at)) && !self.open.is_full() {
            let ticked =
                self.log(BROKER, Urgency::Urgent, |state, context| state.tick(BROKER_TICK_MAX, context))?;
            let ticked = ticked.answer?;
            if let Some(id) = ticked.evicted.filter(|_| !self.is_closing) {
                self.read_back_soon(id);
            }
            if !ticked.has_more {
                break;
            }
        }
        self.serve_watches()
    }

    /// Releases a claim that was not delivered: no byte of it was written, so its worker does not know it (rule C6).
    pub(super) fn release_unused(&mut self, task: TaskId, lease_id: LeaseId) -> Result<()> {
        // One that is evicted has ended.
        if self.state.is_evicted(&task) {
            return Ok(());
        }
        let release = SettleRequest { task, lease_id, settlement: Settlement::Release };
        self.log(BROKER, Urgency::Urgent, |state, context| state.settle(release, context))?.answer.map(drop)
    }
}

impl BrokerRequest {
    /// Evicted task without which the request cannot be decided. For claims and purges the decision itself returns that task.
    fn needs(&self, state: &JournalState, changes: &ChangeFeed) -> Option<TaskId> {
        let id = match self {
            Self::Submit { task, .. } => return state.submit_needs(task),
            Self::Read { query, .. } => return query.needs(state),
            Self::Changes { since, .. } => return changes.needs(since.as_ref(), state),
            Self::Settle { settlement, .. } => settlement.task,
            Self::Operate { id, .. } | Self::PurgeTask { id, .. } => *id,
            Self::Import { task, .. } => task.task.id,
            _ => return None,
        };
        Some(id).filter(|id| state.is_evicted(id))
    }
}

/// Page of a purge of live tasks. The archive follows the last one.
fn live_page(page: PurgePage) -> PurgedPage {
    let PurgePage { deleted, corrupt, next, .. } = page;
    let next = next.map_or(PurgePlace::Archive(None), |cursor| PurgePlace::Live(Some(cursor)));
    PurgedPage { deleted, corrupt, next: Some(next) }
}

fn renewed(
    state: &JournalState,
    renewal: RenewRequest,
    context: &JournalContext,
) -> JournalDecision<Vec<Option<RenewedClaim>>> {
    let mut decision = state.renew(renewal, context);
    if breaks("renewal-not-logged") {
        decision.records.clear();
    }
    decision
}

fn untrusted() -> Error {
    Error::new(
        Kind::Unavailable,
        "the broker cannot renew its own lease; claims are not renewed until it can",
    )
}
