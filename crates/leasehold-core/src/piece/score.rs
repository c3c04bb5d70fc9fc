//! Score of a peer.
//!
//! Verified pieces raise it and failures lower it, between a floor and a ceiling. With time it decays to its start
//! value. The decay is continuous, and computed on request.

use std::time::Duration;

use super::config::ManagerConfig;

/// Score and the time of its last change.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Score {
    value: f64,
    at: Duration,
}

impl Score {
    pub(super) fn first(config: &ManagerConfig, now: Duration) -> Self {
        Self { value: config.score_start, at: now }
    }

    /// Score at a time; a time before the last change counts as the time of that change.
    pub(super) fn at(&self, config: &ManagerConfig, now: Duration) -> f64 {
        let passed = now.saturating_sub(self.at);
        // Not only faster: adding and subtracting the start would round, and a score changes only with time.
        if passed.is_zero() {
            return self.value;
        }
        let left = config.decay_per_hour.powf(passed.as_secs_f64() / 3_600.0);
        let value = config.score_start + (self.value - config.score_start) * left;
        value.clamp(config.score_floor, config.score_ceiling)
    }

    /// Adds a change, which may be negative.
    pub(super) fn change(&mut self, by: f64, config: &ManagerConfig, now: Duration) {
        let value = self.at(config, now) + by;
        *self = Self { value: value.clamp(config.score_floor, config.score_ceiling), at: now.max(self.at) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const START: Duration = Duration::from_secs(77);

    fn after(changes: impl IntoIterator<Item = f64>) -> f64 {
        let config = ManagerConfig::default();
        let mut score = Score::first(&config, START);
        changes.into_iter().for_each(|by| score.change(by, &config, START));
        score.at(&config, START)
    }

    #[test]
    #[expect(clippy::float_cmp, reason = "the reference values are exact")]
    fn the_reference_values_are_met_exactly() {
        assert_eq!(after([0.5]), 1.5);
        assert_eq!(after([0.5, 0.5]), 2.0);
        assert_eq!(after([0.5; 18]), 10.0);
        assert_eq!(after([0.5; 30]), 10.0);
        assert_eq!(after([-1.0]), 0.1);
        assert_eq!(after([-0.5]), 0.5);
    }

    #[test]
    fn it_returns_to_its_start_from_both_sides_by_a_twentieth_an_hour() {
        let config = ManagerConfig::default();
        for (by, hours, expected) in
            [(1.0, 1, 1.95), (1.0, 2, 1.9025), (-0.5, 1, 0.525), (-0.5, 100_000, 1.0), (0.0, 5, 1.0)]
        {
            let mut score = Score::first(&config, START);
            score.change(by, &config, START);
            let found = score.at(&config, START + Duration::from_hours(hours));
            assert!((found - expected).abs() < 1e-9, "{by} after {hours} h: {found}");
        }
    }

    #[test]
    fn half_an_hour_twice_is_one_hour() {
        let config = ManagerConfig::default();
        let mut score = Score::first(&config, START);
        score.change(4.0, &config, START);
        let whole = score.at(&config, START + Duration::from_hours(1));
        score.change(0.0, &config, START + Duration::from_mins(30));
        let halves = score.at(&config, START + Duration::from_hours(1));
        assert!((whole - halves).abs() < 1e-12);
    }

    proptest! {
        #[test]
        fn rule_7_at_equal_times_success_never_lowers_and_failure_never_raises(
            steps in proptest::collection::vec((0usize..5, 0u64..1 << 40), 0..200),
        ) {
            let config = ManagerConfig::default();
            let changes = [0.5, -1.0, -0.5, -2.0, 0.0];
            let mut score = Score::first(&config, Duration::ZERO);
            for (which, micros) in steps {
                // Times come in any order: a caller may have read the clock before waiting for a lock.
                let now = Duration::from_micros(micros);
                let before = score.at(&config, now);
                score.change(changes[which], &config, now);
                let after = score.at(&config, now);
                let is_right = if changes[which] >= 0.0 { after >= before } else { after <= before };
                prop_assert!(is_right, "{} at {:?}: {} to {}", changes[which], now, before, after);
                prop_assert!((0.1..=10.0).contains(&after));
            }
        }
    }
}
