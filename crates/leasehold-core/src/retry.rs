//! Backoff between attempts.

use serde::{Deserialize, Serialize};
use std::time::Duration;

use crate::error::{Error, Result};

/// Exponential backoff with jitter.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RetryPolicy {
    /// Pause before the second attempt, in seconds.
    pub initial_secs: f64,
    /// Factor by which each further pause grows.
    pub factor: f64,
    /// Maximum pause, in seconds.
    pub max_secs: f64,
    /// Random share by which a pause is longer or shorter, so that tasks that failed together do not retry together.
    pub jitter: f64,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self { initial_secs: 1.0, factor: 2.0, max_secs: 300.0, jitter: 0.2 }
    }
}

impl RetryPolicy {
    /// Rejects values out of range.
    pub fn check(&self) -> Result<()> {
        let sane = |value: f64, from: f64, to: f64| value.is_finite() && (from..=to).contains(&value);
        let year = 365.0 * 86_400.0;
        let (fault, got) = if !sane(self.initial_secs, 0.0, year) {
            ("initial_secs must be between 0 and a year", self.initial_secs)
        } else if !sane(self.factor, 1.0, 1_000.0) {
            ("factor must be between 1 and 1,000", self.factor)
        } else if !sane(self.max_secs, self.initial_secs, year) {
            ("max_secs must be between initial_secs and a year", self.max_secs)
        } else if !sane(self.jitter, 0.0, 1.0) {
            ("jitter must be between 0 and 1", self.jitter)
        } else {
            return Ok(());
        };
        Err(Error::invalid(format!("retry policy: {fault}, got {got}")))
    }

    /// Pause after attempt number `attempt` (from 1) has failed; `random` is 64 random bits.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "jitter needs no precision")]
    pub fn backoff(&self, attempt: u32, random: u64) -> Duration {
        let exponent = i32::try_from(attempt.saturating_sub(1)).unwrap_or(i32::MAX);
        let plain = (self.initial_secs * self.factor.powi(exponent)).min(self.max_secs);
        let swing = (random as f64 / u64::MAX as f64) * 2.0 - 1.0;
        Duration::try_from_secs_f64(plain * (1.0 + self.jitter * swing)).unwrap_or(Duration::ZERO)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIDDLE: u64 = u64::MAX / 2;

    #[test]
    fn pauses_double_up_to_five_minutes() {
        let policy = RetryPolicy::default();
        let pauses: Vec<_> = [1, 2, 3, 9, 10, 1_000]
            .iter()
            .map(|n| policy.backoff(*n, MIDDLE).as_secs_f64().round())
            .collect();
        assert_eq!(pauses, [1.0, 2.0, 4.0, 256.0, 300.0, 300.0]);
    }

    #[test]
    fn policies_out_of_range_are_refused() {
        for policy in [
            RetryPolicy { initial_secs: -1.0, ..RetryPolicy::default() },
            RetryPolicy { factor: 0.5, ..RetryPolicy::default() },
            RetryPolicy { max_secs: 0.5, ..RetryPolicy::default() },
            RetryPolicy { jitter: f64::NAN, ..RetryPolicy::default() },
        ] {
            assert!(policy.check().is_err(), "{policy:?}");
        }
        RetryPolicy::default().check().unwrap();
    }

    proptest! {
        #[test]
        fn jitter_stays_within_its_share(attempt in 1u32..50, random: u64) {
            let policy = RetryPolicy::default();
            let (plain, swung) = (policy.backoff(attempt, MIDDLE), policy.backoff(attempt, random));
            prop_assert!(swung >= plain.mul_f64(0.799) && swung <= plain.mul_f64(1.201));
        }
    }
}
