//! Ours and the baseline in alternating rounds, and what they come to.
//!
//! Rounds are short and alternate, so that whatever else the machine does hits both alike. The ratio is the
//! median of the ratios of neighbouring rounds; rates are medians too.
//!
//! What a round creates stays until the store is thrown away. Removed at once it would slow down what follows:
//! ext4 looks at every inode that was freed in the last half minute before it gives out a new one.

use leasehold_store::{Ledger, Purpose, Snapshot};
use std::collections::BTreeMap;
use std::time::Duration;

use crate::histogram::Histogram;
use crate::operation::{LISTED, Operation};
use crate::side::{Plan, Round, Side};

/// Odd, so that the median is one of them. The first one of each side is not counted.
const ROUNDS: u32 = 15;
/// A round of removals has at least and at most so many keys; they must be made before it.
const REMOVED: std::ops::RangeInclusive<u64> = 64..=1_024;
/// No round creates more keys than this, so that a store holds at most some ten thousand for each measurement.
const CREATED_MAX: u64 = 640;
/// What is done before and after a round has no limit in time.
pub(crate) const UNTIMED: Duration = Duration::MAX;
/// Most workers: each has an object of its own in the pool. Whatever is prepared, is by so many.
pub(crate) const WORKERS: u64 = 64;

/// Both sides of one store.
pub(crate) struct Pair<'a> {
    pub(crate) ours: &'a dyn Side,
    pub(crate) plain: &'a dyn Side,
    pub(crate) ledger: &'a Ledger,
}

/// What one operation with so many in flight came to.
pub(crate) struct Measured {
    pub(crate) operation: Operation,
    pub(crate) in_flight: u32,
    pub(crate) ours_per_second: f64,
    pub(crate) plain_per_second: f64,
    pub(crate) ratio: f64,
    pub(crate) ours: Histogram,
    pub(crate) plain: Histogram,
    pub(crate) ours_cpu: Duration,
    pub(crate) plain_cpu: Duration,
    pub(crate) plain_operations: u64,
    /// Our operations in the rounds that count, and the requests they took by verb and outcome.
    pub(crate) operations: u64,
    pub(crate) requests: BTreeMap<(&'static str, &'static str), u64>,
}

impl Pair<'_> {
    pub(crate) fn prepare(&self) -> anyhow::Result<()> {
        prepare(self.ours)?;
        prepare(self.plain)
    }

    pub(crate) fn measure(
        &self,
        operation: Operation,
        in_flight: u32,
        time: Duration,
    ) -> anyhow::Result<Measured> {
        let mut measured = Measured {
            operation,
            in_flight,
            ours_per_second: 0.0,
            plain_per_second: 0.0,
            ratio: 0.0,
            ours: Histogram::default(),
            plain: Histogram::default(),
            ours_cpu: Duration::ZERO,
            plain_cpu: Duration::ZERO,
            plain_operations: 0,
            operations: 0,
            requests: BTreeMap::new(),
        };
        let mut rates = Vec::new();
        let mut removed = *REMOVED.start();
        for round in 0..=ROUNDS {
            let what = planned(operation, in_flight, round, time / ROUNDS, removed);
            let (ours, requests, plain);
            // Neither is always the first after a pause.
            if round % 2 == 0 {
                (ours, requests) = self.ours(&what)?;
                plain = timed(self.plain, &what)?;
            } else {
                plain = timed(self.plain, &what)?;
                (ours, requests) = self.ours(&what)?;
            }
            if round == 0 {
                removed = enough_for(time / ROUNDS, ours.per_second().max(plain.per_second()));
                continue;
            }
            rates.push((ours.per_second(), plain.per_second()));
            measured.count(&ours, &requests);
            measured.plain.merge(&plain.latencies);
            measured.plain_cpu += plain.cpu;
            measured.plain_operations += plain.operations;
        }
        measured.ours_per_second = median(rates.iter().map(|(ours, _)| *ours));
        measured.plain_per_second = median(rates.iter().map(|(_, plain)| *plain));
        measured.ratio = median(rates.iter().map(|(ours, plain)| ours / plain));
        Ok(measured)
    }

    fn ours(&self, plan: &Plan) -> anyhow::Result<(Round, Snapshot)> {
        fill(self.ours, plan)?;
        let before = self.ledger.snapshot();
        let round = self.ours.round(plan)?;
        let requests = self.ledger.snapshot().since(&before);
        Ok((round, requests))
    }
}

impl Measured {
    fn count(&mut self, round: &Round, requests: &Snapshot) {
        self.operations += round.operations;
        self.ours.merge(&round.latencies);
        self.ours_cpu += round.cpu;
        // What workers read before they begin is for `admin`.
        for (line, count) in requests.lines().filter(|(line, _)| line.purpose != Purpose::Admin) {
            *self.requests.entry((line.verb.name(), line.outcome.name())).or_default() += count.requests;
        }
    }
}

/// Makes the objects that are read, replaced and listed. One object in each other directory stays, because an
/// empty directory of a folder would go and have to be made again.
pub(crate) fn prepare(side: &dyn Side) -> anyhow::Result<()> {
    for directory in ["pool", "replace"] {
        create(side, directory, 0, WORKERS)?;
    }
    create(side, "list", 0, LISTED)?;
    for directory in ["put", "index", "delete"] {
        create(side, directory, 0, 1)?;
    }
    Ok(())
}

/// One round, after what it removes was made.
pub(crate) fn timed(side: &dyn Side, plan: &Plan) -> anyhow::Result<Round> {
    fill(side, plan)?;
    side.round(plan)
}

fn planned(operation: Operation, in_flight: u32, round: u32, time: Duration, removed: u64) -> Plan {
    let (share, time) = match operation {
        // A round of removals ends when all is gone.
        Operation::Delete => (removed / u64::from(in_flight), UNTIMED),
        Operation::Put | Operation::Index => (CREATED_MAX / u64::from(in_flight), time),
        _ => (u64::MAX, time),
    };
    // What other numbers in flight have created is still there.
    let round = in_flight * (ROUNDS + 1) + round;
    Plan { operation, directory: operation.directory(), round, shares: vec![share; in_flight as usize], time }
}

/// How many removals fill a round, as a multiple of the workers that prepare them.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a rate is positive and far from 2^64"
)]
fn enough_for(time: Duration, per_second: f64) -> u64 {
    let keys = (per_second * time.as_secs_f64()) as u64;
    keys.next_multiple_of(WORKERS).clamp(*REMOVED.start(), *REMOVED.end())
}

fn create(side: &dyn Side, directory: &'static str, round: u32, keys: u64) -> anyhow::Result<()> {
    side.round(&Plan { operation: Operation::Put, directory, round, shares: shares(keys), time: UNTIMED })?;
    Ok(())
}

/// So many keys, or tasks, shared out among all workers.
pub(crate) fn shares(keys: u64) -> Vec<u64> {
    (0..WORKERS.min(keys)).map(|worker| (keys - worker).div_ceil(WORKERS)).collect()
}

/// Makes what a round removes.
fn fill(side: &dyn Side, plan: &Plan) -> anyhow::Result<()> {
    if plan.operation == Operation::Delete {
        create(side, plan.directory, plan.round, plan.shares.iter().sum())?;
    }
    Ok(())
}

pub(crate) fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}
