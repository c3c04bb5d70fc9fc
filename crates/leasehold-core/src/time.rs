//! Store time.
//!
//! No wall clock of a machine decides about a lease (promise P6). Time comes from the store, and since the store
//! reports it in whole seconds over a network, "now" is an interval: [`Now::earliest`] to [`Now::latest`].
//! Every decision uses the safe end of the interval:
//!
//! * the lease of another worker has expired only when even the *earliest* possible now is past its expiry;
//! * our own lease is valid only while even the *latest* possible now is before its expiry;
//! * an immediate task is due as soon as the *latest* possible now has reached its time: none waits because two clocks
//!   differ by half a second;
//! * a scheduled task is due only when even the *earliest* possible now has reached its time: none starts early.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;
use std::time::Duration;

use crate::ids::FromText;

/// Point in store time, in milliseconds since 1970; RFC 3339 with milliseconds in text and records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoreTime(i64);

impl StoreTime {
    /// Later than any time that can be written; means "unknown" in [`Now::latest`].
    pub const NEVER: StoreTime = StoreTime(i64::MAX);

    /// Creates a time from milliseconds since 1970.
    #[must_use]
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis)
    }

    /// Returns the milliseconds since 1970.
    #[must_use]
    pub const fn as_millis(self) -> i64 {
        self.0
    }

    /// Returns the time `duration` later; [`StoreTime::NEVER`] stays unchanged.
    #[must_use]
    pub fn plus(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(millis(duration)))
    }

    /// Returns the time `duration` earlier; [`StoreTime::NEVER`] stays unchanged.
    #[must_use]
    pub fn minus(self, duration: Duration) -> Self {
        if self == Self::NEVER { self } else { Self(self.0.saturating_sub(millis(duration))) }
    }

    /// Duration since `earlier`; zero if this is not later.
    #[must_use]
    pub fn since(self, earlier: StoreTime) -> Duration {
        Duration::from_millis(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

impl fmt::Display for StoreTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::from_millisecond(self.0) {
            Ok(stamp) => write!(f, "{stamp:.3}"),
            Err(_) => f.write_str("never"),
        }
    }
}

impl FromStr for StoreTime {
    type Err = crate::Error;

    fn from_str(text: &str) -> Result<Self, crate::Error> {
        let stamp: jiff::Timestamp = text.parse().map_err(|error| {
            crate::Error::invalid(format!("`{text}` is not a time; use RFC 3339, like 2026-01-31T12:00:00Z"))
                .because(error)
        })?;
        Ok(Self(stamp.as_millisecond()))
    }
}

impl Serialize for StoreTime {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for StoreTime {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(FromText(PhantomData))
    }
}

/// Minute in store time, by which index entries sort. Written as `YYYYMMDD-HHMM`, in UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Minute(i64);

impl Minute {
    /// Returns the minute that contains `time`.
    #[must_use]
    pub fn of(time: StoreTime) -> Self {
        Self(time.0.div_euclid(60_000))
    }

    /// Returns the start of the minute.
    #[must_use]
    pub fn start(self) -> StoreTime {
        StoreTime(self.0.saturating_mul(60_000))
    }

    /// Parses the canonical form.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let parsed = jiff::civil::DateTime::strptime("%Y%m%d-%H%M", text).ok()?;
        let stamp = parsed.to_zoned(jiff::tz::TimeZone::UTC).ok()?.timestamp();
        Some(Self::of(StoreTime(stamp.as_millisecond()))).filter(|minute| minute.to_string() == text)
    }
}

impl fmt::Display for Minute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::from_millisecond(self.start().0) {
            Ok(stamp) => write!(f, "{}", stamp.strftime("%Y%m%d-%H%M")),
            // Sorts behind every minute that can be written.
            Err(_) => f.write_str("99999999-9999"),
        }
    }
}

/// Current store time as an interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// Lower bound of the current time.
    pub earliest: StoreTime,
    /// Upper bound of the current time; [`StoreTime::NEVER`] if unknown.
    pub latest: StoreTime,
    /// False while the store's answers about its time contradict each other. The bounds then cover all answers, but
    /// must not be used to declare a lease expired.
    pub is_consistent: bool,
}

impl Now {
    /// Creates an interval without width, for a time that is known to the millisecond, as in a folder or in memory.
    #[must_use]
    pub const fn exactly(at: StoreTime) -> Self {
        Self { earliest: at, latest: at, is_consistent: true }
    }

    /// True if `expiry` has surely passed: the only test for takeovers, time-outs and removals by age.
    #[must_use]
    pub fn is_past(&self, expiry: StoreTime) -> bool {
        self.is_consistent && expiry < self.earliest
    }

    /// True if our own lease with this `expiry` can still be trusted.
    #[must_use]
    pub fn is_before(&self, expiry: StoreTime) -> bool {
        self.latest < expiry
    }

    /// True if `at` has surely been reached: the test for scheduled tasks, so that none starts early.
    #[must_use]
    pub fn has_reached(&self, at: StoreTime) -> bool {
        at <= self.earliest
    }

    /// True if `at` may have been reached: the test for immediate tasks, so that none waits because two clocks differ.
    #[must_use]
    pub fn is_due(&self, at: StoreTime) -> bool {
        self.latest != StoreTime::NEVER && at <= self.latest
    }

    /// Returns the upper bound, or the lower bound if the upper one is unknown.
    #[must_use]
    pub fn latest_known(&self) -> StoreTime {
        if self.latest == StoreTime::NEVER { self.earliest } else { self.latest }
    }

    /// Width of the interval; none if the upper bound is unknown.
    #[must_use]
    pub fn width(&self) -> Option<Duration> {
        (self.latest != StoreTime::NEVER).then(|| self.latest.since(self.earliest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(millis: i64) -> StoreTime {
        StoreTime::from_millis(millis)
    }

    #[test]
    fn times_are_written_in_utc_with_milliseconds() {
        assert_eq!(at(1_700_000_000_000).to_string(), "2023-11-14T22:13:20.000Z");
        assert_eq!(at(1_700_000_000_007).to_string(), "2023-11-14T22:13:20.007Z");
        assert_eq!("2023-11-14T23:13:20.5+01:00".parse::<StoreTime>().unwrap(), at(1_700_000_000_500));
        let error = "yesterday".parse::<StoreTime>().unwrap_err();
        assert_eq!(error.to_string(), "`yesterday` is not a time; use RFC 3339, like 2026-01-31T12:00:00Z");
    }

    #[test]
    fn expiry_is_judged_by_the_safe_end_of_the_interval() {
        let now = Now { earliest: at(1_000), latest: at(3_000), is_consistent: true };
        assert!(now.is_past(at(999)) && !now.is_past(at(1_000)));
        assert!(now.is_before(at(3_001)) && !now.is_before(at(3_000)));
        assert!(now.is_due(at(3_000)) && !now.is_due(at(3_001)));
        assert!(now.has_reached(at(1_000)) && !now.has_reached(at(1_001)));
        assert_eq!(now.width(), Some(Duration::from_secs(2)));
    }

    #[test]
    fn contradicting_answers_expire_no_lease() {
        let now = Now { earliest: at(1_000), latest: at(3_000), is_consistent: false };
        assert!(!now.is_past(at(0)));
    }

    #[test]
    fn an_unknown_latest_trusts_no_lease_and_starts_nothing() {
        let now = Now { earliest: at(1_000), latest: StoreTime::NEVER, is_consistent: true };
        assert!(!now.is_before(at(i64::MAX - 1)) && !now.is_due(at(0)) && now.is_past(at(999)));
        assert_eq!(now.width(), None);
    }

    proptest! {
        #[test]
        fn text_parses_to_the_same_time(millis in 0i64..253_402_207_200_000) {
            prop_assert_eq!(at(millis).to_string().parse::<StoreTime>().unwrap(), at(millis));
            let json = serde_json::to_string(&at(millis)).unwrap();
            prop_assert_eq!(serde_json::from_str::<StoreTime>(&json).unwrap(), at(millis));
        }

        #[test]
        fn text_sorts_as_time_does(a in 0i64..253_402_207_200_000, b in 0i64..253_402_207_200_000) {
            prop_assert_eq!(at(a).to_string().cmp(&at(b).to_string()), a.cmp(&b));
        }
    }
}
