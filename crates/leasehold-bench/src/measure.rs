//! Ours and the baseline in alternating rounds, and the result.
//!
//! Rounds are short and alternate, so that other load on the machine affects both alike. The ratio is the
//! median of the ratios of neighbouring rounds; rates are medians too.
//!
//! Created objects stay until the store is deleted. Removing them at once would slow down later rounds: ext4
//! scans every inode freed in the last half minute before it allocates a new one.

use leasehold_store::{Ledger, Purpose, Snapshot};
use std::collections::BTreeMap;
use std::time::Duration;

use crate::histogram::Histogram;
use crate::operation::{BenchRequest, LISTED};
use crate::round::{RoundPlan, RoundResult, Side};

/// Number of rounds: odd, so that the median is one of them. The first round of each side is not counted.
const ROUNDS: u32 = 15;
/// Bounds of the number of keys in a round of removals; they must be created before it.
const REMOVED: std::ops::RangeInclusive<u64> = 64..=1_024;
/// Maximum number of keys created in a round, so that a store holds at most some ten thousand per
/// measurement.
const CREATED_MAX: u64 = 640;
/// Unlimited time, for work before and after a round.
pub(crate) const UNTIMED: Duration = Duration::MAX;
/// Maximum number of workers: each has an object of its own in the pool. All preparation uses this number.
pub(crate) const WORKERS: u64 = 64;

/// Both sides of one store.
pub(crate) struct Pair<'a> {
    pub(crate) ours: &'a dyn Side,
    pub(crate) plain: &'a dyn Side,
    pub(crate) ledger: &'a Ledger,
}

/// Result of one operation at one number in flight.
pub(crate) struct Measurement {
    pub(crate) operation: BenchRequest,
    pub(crate) in_flight: u32,
    pub(crate) ours_per_second: f64,
    pub(crate) plain_per_second: f64,
    pub(crate) ratio: f64,
    pub(crate) ours: Histogram,
    pub(crate) plain: Histogram,
    pub(crate) ours_cpu: Duration,
    pub(crate) plain_cpu: Duration,
    pub(crate) plain_operations: u64,
    /// Our operations in the measured rounds, and their requests by verb and outcome.
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
        operation: BenchRequest,
        in_flight: u32,
        time: Duration,
    ) -> anyhow::Result<Measurement> {
        let mut measured = Measurement {
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
            // Neither side is always the first after a pause.
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

    fn ours(&self, plan: &RoundPlan) -> anyhow::Result<(RoundResult, Snapshot)> {
        fill(self.ours, plan)?;
        let before = self.ledger.snapshot();
        let round = self.ours.round(plan)?;
        let requests = self.ledger.snapshot().since(&before);
        Ok((round, requests))
    }
}

impl Measurement {
    fn count(&mut self, round: &RoundResult, requests: &Snapshot) {
        self.operations += round.operations;
        self.ours.merge(&round.latencies);
        self.ours_cpu += round.cpu;
        // Reads of workers before they begin count as `admin`.
        for (line, count) in requests.lines().filter(|(line, _)| line.purpose != Purpose::Admin) {
            *self.requests.entry((line.verb.name(), line.outcome.name())).or_default() += count.requests;
        }
    }
}

/// Creates the objects that are read, replaced and listed. One object in each other directory stays, because
/// a folder would remove an empty directory and have to create it again.
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

/// Runs one round, after creating the keys that it removes.
pub(crate) fn timed(side: &dyn Side, plan: &RoundPlan) -> anyhow::Result<RoundResult> {
    fill(side, plan)?;
    side.round(plan)
}

fn planned(operation: BenchRequest, in_flight: u32, round: u32, time: Duration, removed: u64) -> RoundPlan {
    let (share, time) = match operation {
        // A round of removals ends when all keys are removed.
        BenchRequest::Delete => (removed / u64::from(in_flight), UNTIMED),
        BenchRequest::Put | BenchRequest::Index => (CREATED_MAX / u64::from(in_flight), time),
        _ => (u64::MAX, time),
    };
    // Objects created at other numbers in flight still exist.
    let round = in_flight * (ROUNDS + 1) + round;
    RoundPlan {
        operation,
        directory: operation.directory(),
        round,
        shares: vec![share; in_flight as usize],
        time,
    }
}

/// Returns the number of removals that fill a round, as a multiple of the workers that prepare them.
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
    side.round(&RoundPlan {
        operation: BenchRequest::Put,
        directory,
        round,
        shares: shares(keys),
        time: UNTIMED,
    })?;
    Ok(())
}

/// Divides a number of keys, or tasks, among all workers.
pub(crate) fn shares(keys: u64) -> Vec<u64> {
    (0..WORKERS.min(keys)).map(|worker| (keys - worker).div_ceil(WORKERS)).collect()
}

/// Creates the keys that a round removes.
fn fill(side: &dyn Side, plan: &RoundPlan) -> anyhow::Result<()> {
    if plan.operation == BenchRequest::Delete {
        create(side, plan.directory, plan.round, plan.shares.iter().sum())?;
    }
    Ok(())
}

pub(crate) fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}
