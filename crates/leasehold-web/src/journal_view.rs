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
    /// True if it was logged that there is no broker.
    is_outage_logged: bool,
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

impl JournalView {
    /// Records the result of an attempt to reach the broker. Returns true if something that is shown has changed.
    pub(crate) fn set_broker(&mut self, found: FoundBroker, at: Instant) -> bool {
        match found {
            FoundBroker::Reached(status) => {
                let before = self.broker.replace(Reading { at, value: *status });
                let was_absent = self.absence.take().is_some();
                let is_same = before
                    .zip(self.broker.as_ref())
                    .is_some_and(|(before, now)| shown(&before.value) == shown(&now.value));
                was_absent || !is_same
            }
            FoundBroker::Unreached(last) => {
                let since = self.broker.as_ref().map_or(at, |broker| broker.at);
                let before = self.absence.take();
                let is_same = before.as_ref().is_some_and(|before| before.last == last);
                let (since, attempts) = before.map_or((since, 0), |before| (before.since, before.attempts));
                self.absence = Some(BrokerAbsence { since, attempts: attempts + 1, last });
                !is_same
            }
        }
    }

    /// State of the broker, if it can be reached.
    pub(crate) fn reached(&self) -> Option<&Reading<BrokerStatus>> {
        self.broker.as_ref().filter(|_| self.absence.is_none())
    }

    /// Records whether there is an outage; returns true if that is news.
    pub(crate) fn note_outage(&mut self, is_outage: bool) -> bool {
        std::mem::replace(&mut self.is_outage_logged, is_outage) != is_outage
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
