//! The limit: tasks per second that the raw request rate of a store allows.
//!
//! Every kind of request is measured by itself: plain calls, with as many in flight as the queue has slots.
//! The time of a request is one over its rate, the time of a task the sum over its requests, and the limit is
//! one over that. A queue whose only cost is its requests would reach it.

use leasehold_store::ledger::LedgerLine;
use leasehold_store::{Purpose, Snapshot, Verb};
use std::time::Duration;

use crate::measure::{UNTIMED, WORKERS, timed};
use crate::operation::BenchRequest;
use crate::round::{RoundPlan, Side};

/// Kinds of requests that a task consists of.
const KINDS: [BenchRequest; 6] = [
    BenchRequest::Put,
    BenchRequest::Replace,
    BenchRequest::Index,
    BenchRequest::Get,
    BenchRequest::List,
    BenchRequest::Delete,
];
/// Keys per worker in a round of removals: they must be created before it.
const REMOVED_EACH: u64 = 16;

/// Seconds per request of each kind.
#[derive(Debug, Clone)]
pub(crate) struct RequestPace([f64; BenchRequest::ALL.len()]);

impl RequestPace {
    /// Measures every kind for `time`. `round` must be unique on this side, so that keys are new.
    pub(crate) fn measure(side: &dyn Side, round: u32, time: Duration) -> anyhow::Result<Self> {
        let mut pace = Self([0.0; BenchRequest::ALL.len()]);
        for operation in KINDS {
            let done = timed(side, &plan(operation, round, time))?;
            pace.0[operation as usize] = 1.0 / done.per_second();
        }
        Ok(pace)
    }

    /// Returns the mean of two measurements, made before and after something.
    pub(crate) fn mean(&self, other: &RequestPace) -> RequestPace {
        let mut mean = self.clone();
        for (mine, theirs) in mean.0.iter_mut().zip(other.0) {
            *mine = f64::midpoint(*mine, theirs);
        }
        mean
    }

    /// Returns the tasks per second, if each makes these requests and costs nothing else.
    pub(crate) fn limit(&self, mix: &RequestMix) -> f64 {
        1.0 / self.0.iter().zip(mix.0).map(|(seconds, requests)| seconds * requests).sum::<f64>()
    }
}

/// Requests of each kind per task.
#[derive(Debug, Clone)]
pub(crate) struct RequestMix([f64; BenchRequest::ALL.len()]);

impl RequestMix {
    #[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52 requests")]
    pub(crate) fn of(requests: &Snapshot, tasks: u64) -> Self {
        let mut mix = Self([0.0; BenchRequest::ALL.len()]);
        for (line, count) in requests.lines() {
            let kinds = kinds(line);
            for kind in kinds {
                mix.0[*kind as usize] += count.requests as f64 / (kinds.len() as u64 * tasks) as f64;
            }
        }
        mix
    }

    /// Returns only the writes.
    pub(crate) fn writes(&self) -> Self {
        let mut writes = self.clone();
        for kind in [BenchRequest::Get, BenchRequest::List, BenchRequest::Delete] {
            writes.0[kind as usize] = 0.0;
        }
        writes
    }
}

/// Kinds of the requests on a line of the ledger, in equal parts. The ledger does not distinguish records
/// from index entries, but a submit is one of each, and so is a claim.
fn kinds(line: LedgerLine) -> &'static [BenchRequest] {
    match (line.verb, line.purpose) {
        (Verb::Put, Purpose::Submit) => &[BenchRequest::Put, BenchRequest::Index],
        (Verb::Put, Purpose::Claim) => &[BenchRequest::Replace, BenchRequest::Index],
        (Verb::Put, _) => &[BenchRequest::Replace],
        (Verb::Get | Verb::Head, _) => &[BenchRequest::Get],
        (Verb::List, _) => &[BenchRequest::List],
        (Verb::Delete, _) => &[BenchRequest::Delete],
    }
}

fn plan(operation: BenchRequest, round: u32, time: Duration) -> RoundPlan {
    let (share, time) = match operation {
        // A round of removals ends when all keys are removed.
        BenchRequest::Delete => (REMOVED_EACH, UNTIMED),
        _ => (u64::MAX, time),
    };
    let shares = (0..WORKERS).map(|_| share).collect();
    RoundPlan { operation, directory: operation.directory(), round, shares, time }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_store::Ledger;
    use leasehold_store::ledger::Outcome;

    fn mix() -> RequestMix {
        let ledger = Ledger::default();
        for (verb, purpose, requests) in
            [(Verb::Put, Purpose::Claim, 4), (Verb::Put, Purpose::Settle, 2), (Verb::Get, Purpose::Claim, 2)]
        {
            for _ in 0..requests {
                ledger.count(LedgerLine { verb, purpose, outcome: Outcome::Ok }, 0, 0);
            }
        }
        RequestMix::of(&ledger.snapshot(), 2)
    }

    fn pace() -> RequestPace {
        let mut pace = RequestPace([f64::NAN; BenchRequest::ALL.len()]);
        for kind in KINDS {
            pace.0[kind as usize] = 0.5;
        }
        pace.0[BenchRequest::Unmodified as usize] = 0.0;
        pace.0[BenchRequest::Replace as usize] = 1.0;
        pace.0[BenchRequest::Index as usize] = 0.25;
        pace
    }

    #[test]
    fn a_task_takes_the_sum_of_its_requests() {
        // Two replaced records, one index entry, one read.
        let seconds = 2.0 + 0.25 + 0.5;
        assert!((pace().limit(&mix()) - 1.0 / seconds).abs() < 1e-9);
    }

    #[test]
    fn reads_are_no_writes() {
        let seconds = 2.0 + 0.25;
        assert!((pace().limit(&mix().writes()) - 1.0 / seconds).abs() < 1e-9);
    }

    #[test]
    fn the_mean_of_two_limits_averages_their_durations() {
        let mut slower = pace();
        slower.0[BenchRequest::Get as usize] = 1.5;
        let seconds = 2.0 + 0.25 + 1.0;
        assert!((pace().mean(&slower).limit(&mix()) - 1.0 / seconds).abs() < 1e-9);
    }
}
