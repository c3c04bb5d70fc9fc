//! The broker of a queue in the layout `journal`, as last seen, and the place among its changes.

use std::time::Duration;

use leasehold_queue::{BrokerHolder, BrokerStatus, ChangePosition, FoundBroker, JournalWorker};
use leasehold_store::host::Instant;

use crate::snapshot::Reading;

/// State of the sampler of a journal.
#[derive(Debug, Default)]
pub(crate) struct JournalView {
    /// Last state of a broker that was reached.
    pub(crate) broker: Option<Reading<BrokerStatus>>,
    /// Workers that it knew.
    pub(crate) workers: Option<Reading<Vec<JournalWorker>>>,
    /// Set while no broker can be reached.
    pub(crate) absence: Option<BrokerAbsence>,
    /// Place after the changes that were read.
    pub(crate) position: Option<ChangePosition>,
    /// Time of the last read of all tasks; none if it has to be repeated.
    pub(crate) all_read_at: Option<Instant>,
}

/// Time during which no broker could be reached.
#[derive(Debug)]
pub(crate) struct BrokerAbsence {
    pub(crate) since: Instant,
    /// Number of attempts in a row.
    attempts: u32,
    /// Last holder of the lease; none if there has never been a broker.
    pub(crate) last: Option<BrokerHolder>,
}

/// Change after an attempt to reach the broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BrokerChange {
    /// Nothing that is shown.
    Same,
    /// Its figures.
    Figures,
    /// None can be reached any longer.
    Lost,
    /// One can be reached again.
    Reached,
}

impl JournalView {
    /// Records the result of an attempt to reach the broker.
    pub(crate) fn set_broker(&mut self, found: FoundBroker, at: Instant) -> BrokerChange {
        match found {
            FoundBroker::Reached(status) => {
                let is_same =
                    self.broker.as_ref().is_some_and(|before| shown(&before.value) == shown(&status));
                self.broker = Some(Reading { at, value: *status });
                match self.absence.take() {
                    Some(_) => BrokerChange::Reached,
                    None if is_same => BrokerChange::Same,
                    None => BrokerChange::Figures,
                }
            }
            FoundBroker::Unreached(last) => {
                let reached_at = self.broker.as_ref().map(|broker| broker.at);
                match &mut self.absence {
                    Some(absence) => {
                        absence.attempts += 1;
                        let is_same = absence.last == last;
                        absence.last = last;
                        if is_same { BrokerChange::Same } else { BrokerChange::Figures }
                    }
                    none => {
                        *none = Some(BrokerAbsence { since: reached_at.unwrap_or(at), attempts: 1, last });
                        BrokerChange::Lost
                    }
                }
            }
        }
    }

    /// State of the broker, if it can be reached.
    pub(crate) fn reached(&self) -> Option<&Reading<BrokerStatus>> {
        self.broker.as_ref().filter(|_| self.absence.is_none())
    }

    /// True if no broker could be reached for at least `down_after`, and more than once.
    pub(crate) fn is_without_broker(&self, now: Instant, down_after: Duration) -> bool {
        self.absence
            .as_ref()
            .is_some_and(|absence| absence.attempts > 1 && now.since(absence.since) >= down_after)
    }
}

/// Figures whose change is shown at once. Others change all the time, such as the memory.
fn shown(status: &BrokerStatus) -> impl PartialEq {
    let BrokerStatus { holder, commits, live_tasks, archived_tasks, clients, parked_claims, .. } = status;
    let BrokerHolder { host, pid, epoch, .. } = holder;
    let rates = (commits.commits, commits.recent_commits, commits.p50_us, commits.p99_us);
    (host.clone(), *pid, *epoch, rates, *live_tasks, *archived_tasks, *clients, *parked_claims)
}
