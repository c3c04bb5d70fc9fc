//! Histogram of latencies in a fixed amount of memory: 32 steps per doubling, so a percentile is correct
//! within 3 %.

use std::time::Duration;

const STEPS: usize = 32;
/// Number of doublings: nanoseconds up to 2^44, about five hours.
const DOUBLINGS: usize = 44;

pub(crate) struct Histogram {
    counts: Vec<u64>,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: vec![0; STEPS * DOUBLINGS] }
    }
}

impl Histogram {
    pub(crate) fn add(&mut self, latency: Duration) {
        self.counts[step(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX))] += 1;
    }

    pub(crate) fn merge(&mut self, other: &Histogram) {
        for (all, more) in self.counts.iter_mut().zip(&other.counts) {
            *all += more;
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.counts.iter().all(|count| *count == 0)
    }

    /// Returns the latency in milliseconds below which this percentage lies.
    pub(crate) fn percentile_ms(&self, percent: u64) -> f64 {
        let total: u64 = self.counts.iter().sum();
        let wanted = (total * percent).div_ceil(100).max(1);
        let mut seen = 0;
        let reached = self.counts.iter().position(|count| {
            seen += count;
            seen >= wanted
        });
        reached.map_or(0.0, |step| value_ns(step) / 1e6)
    }
}

fn step(ns: u64) -> usize {
    if ns < STEPS as u64 {
        return usize::try_from(ns).expect("below 32");
    }
    let shift = ns.ilog2() - STEPS.ilog2();
    let within = usize::try_from(ns >> shift).expect("below 64");
    (STEPS * shift as usize + within).min(STEPS * DOUBLINGS - 1)
}

/// Returns the lower end of a step.
#[expect(clippy::cast_precision_loss, reason = "a step is right within 3 % anyway")]
fn value_ns(step: usize) -> f64 {
    if step < STEPS {
        return step as f64;
    }
    let shift = step / STEPS - 1;
    ((step % STEPS + STEPS) << shift) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_right_within_three_percent() {
        let mut histogram = Histogram::default();
        for micros in 1..=10_000 {
            histogram.add(Duration::from_micros(micros));
        }
        for (percent, expected_ms) in [(50, 5.0), (95, 9.5), (99, 9.9)] {
            let found = histogram.percentile_ms(percent);
            assert!((found / expected_ms - 1.0).abs() < 0.035, "p{percent}: {found} ms");
        }
    }

    #[test]
    fn nothing_is_too_small_or_too_large() {
        let mut histogram = Histogram::default();
        histogram.add(Duration::ZERO);
        histogram.add(Duration::MAX);
        assert!(histogram.percentile_ms(1) < 1e-6);
        assert!(histogram.percentile_ms(99) > 1e6);
    }
}
