//! The limit: how many tasks a second the raw request rate of a store allows.
//!
//! Every kind of request is timed by itself: plain calls, with as many in flight as the queue has slots. A request
//! then takes one over its rate, a task the sum over its requests, and the limit is one over that. A queue that
//! cost nothing but its requests would reach it.

use leasehold_store::ledger::Line;
use leasehold_store::{Purpose, Snapshot, Verb};
use std::time::Duration;

use crate::measure::{UNTIMED, WORKERS, timed};
use crate::operation::Operation;
use crate::side::{Plan, Side};

/// The kinds that a task's requests are made of.
const KINDS: [Operation; 6] = [
    Operation::Put,
    Operation::Replace,
    Operation::Index,
    Operation::Get,
    Operation::List,
    Operation::Delete,
];
/// Keys that a round of removals has for each worker: they must be made before it.
const REMOVED_EACH: u64 = 16;

/// Seconds for one request of each kind.
#[derive(Debug, Clone)]
pub(crate) struct Pace([f64; Operation::ALL.len()]);

impl Pace {
    /// Times every kind for so long. `round` is unlike any other's on this side, so that keys are new.
    pub(crate) fn measure(side: &dyn Side, round: u32, time: Duration) -> anyhow::Result<Self> {
        let mut pace = Self([0.0; Operation::ALL.len()]);
        for operation in KINDS {
            let done = timed(side, &plan(operation, round, time))?;
            pace.0[operation as usize] = 1.0 / done.per_second();
        }
        Ok(pace)
    }

    /// Between two that were measured before and after something.
    pub(crate) fn mean(&self, other: &Pace) -> Pace {
        let mut mean = self.clone();
        for (mine, theirs) in mean.0.iter_mut().zip(other.0) {
            *mine = f64::midpoint(*mine, theirs);
        }
        mean
    }

    /// Tasks in a second, if each takes these requests and nothing else.
    pub(crate) fn limit(&self, mix: &Mix) -> f64 {
        1.0 / self.0.iter().zip(mix.0).map(|(seconds, requests)| seconds * requests).sum::<f64>()
    }
}

/// Requests of each kind for one task.
#[derive(Debug, Clone)]
pub(crate) struct Mix([f64; Operation::ALL.len()]);

impl Mix {
    #[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52 requests")]
    pub(crate) fn of(requests: &Snapshot, tasks: u64) -> Self {
        let mut mix = Self([0.0; Operation::ALL.len()]);
        for (line, count) in requests.lines() {
            let kinds = kinds(line);
            for kind in kinds {
                mix.0[*kind as usize] += count.requests as f64 / (kinds.len() as u64 * tasks) as f64;
            }
        }
        mix
    }

    /// Only what makes something durable.
    pub(crate) fn writes(&self) -> Self {
        let mut writes = self.clone();
        for kind in [Operation::Get, Operation::List, Operation::Delete] {
            writes.0[kind as usize] = 0.0;
        }
        writes
    }
}

/// What the requests on a line of the ledger are, in equal parts. The ledger does not tell records from index
/// entries, but a submit is one of each, and so is a claim.
fn kinds(line: Line) -> &'static [Operation] {
    match (line.verb, line.purpose) {
        (Verb::Put, Purpose::Submit) => &[Operation::Put, Operation::Index],
        (Verb::Put, Purpose::Claim) => &[Operation::Replace, Operation::Index],
        (Verb::Put, _) => &[Operation::Replace],
        (Verb::Get | Verb::Head, _) => &[Operation::Get],
        (Verb::List, _) => &[Operation::List],
        (Verb::Delete, _) => &[Operation::Delete],
    }
}

fn plan(operation: Operation, round: u32, time: Duration) -> Plan {
    let (share, time) = match operation {
        // A round of removals ends when all is gone.
        Operation::Delete => (REMOVED_EACH, UNTIMED),
        _ => (u64::MAX, time),
    };
    let shares = (0..WORKERS).map(|_| share).collect();
    Plan { operation, directory: operation.directory(), round, shares, time }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_store::Ledger;
    use leasehold_store::ledger::Outcome;

    fn mix() -> Mix {
        let ledger = Ledger::default();
        for (verb, purpose, requests) in
            [(Verb::Put, Purpose::Claim, 4), (Verb::Put, Purpose::Settle, 2), (Verb::Get, Purpose::Claim, 2)]
        {
            for _ in 0..requests {
                ledger.count(Line { verb, purpose, outcome: Outcome::Ok }, 0, 0);
            }
        }
        Mix::of(&ledger.snapshot(), 2)
    }

    fn pace() -> Pace {
        let mut pace = Pace([f64::NAN; Operation::ALL.len()]);
        for kind in KINDS {
            pace.0[kind as usize] = 0.5;
        }
        pace.0[Operation::Unmodified as usize] = 0.0;
        pace.0[Operation::Replace as usize] = 1.0;
        pace.0[Operation::Index as usize] = 0.25;
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
    fn the_mean_lies_in_the_middle() {
        let mut slower = pace();
        slower.0[Operation::Get as usize] = 1.5;
        let seconds = 2.0 + 0.25 + 1.0;
        assert!((pace().mean(&slower).limit(&mix()) - 1.0 / seconds).abs() < 1e-9);
    }
}
