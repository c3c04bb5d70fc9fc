//! The store's time.
//!
//! Nobody's wall clock decides about anybody's lease (promise P6). Time is what the store says, and since the
//! store says it in whole seconds over a network, "now" is an interval: [`Now::earliest`] to [`Now::latest`].
//! Every decision takes the end of the interval on which it is safe to be wrong:
//!
//! * someone else's lease has run out only when even the *earliest* possible now is past it;
//! * our own lease is still ours only while even the *latest* possible now is before its expiry;
//! * a task is due as soon as the *latest* possible now has reached it: nobody waits because two clocks
//!   differ by half a second.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A moment of the store's time, in milliseconds since 1970; RFC 3339 with milliseconds in text and records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoreTime(i64);

impl StoreTime {
    /// Later than any moment that can be written down: "unknown", when it stands for [`Now::latest`].
    pub const NEVER: StoreTime = StoreTime(i64::MAX);

    /// The moment `millis` milliseconds after 1970.
    #[must_use]
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis)
    }

    /// Milliseconds since 1970.
    #[must_use]
    pub const fn as_millis(self) -> i64 {
        self.0
    }

    /// The moment `duration` later; [`StoreTime::NEVER`] stays what it is.
    #[must_use]
    pub fn plus(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(millis(duration)))
    }

    /// The moment `duration` earlier; [`StoreTime::NEVER`] stays what it is.
    #[must_use]
    pub fn minus(self, duration: Duration) -> Self {
        if self == Self::NEVER { self } else { Self(self.0.saturating_sub(millis(duration))) }
    }

    /// How long after `earlier` this is; zero when it is not after it.
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
            crate::Error::invalid(format!("`{text}` is not a time like 2026-01-31T12:00:00Z")).because(error)
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
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// A minute of the store's time: the bucket of an index entry. Written as `YYYYMMDD-HHMM`, in UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Minute(i64);

impl Minute {
    /// The minute in which a moment lies.
    #[must_use]
    pub fn of(time: StoreTime) -> Self {
        Self(time.0.div_euclid(60_000))
    }

    /// Its first moment.
    #[must_use]
    pub fn start(self) -> StoreTime {
        StoreTime(self.0.saturating_mul(60_000))
    }

    /// Reads the form in which it is written.
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

/// What is known about the present moment of the store's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// It is surely not earlier than this.
    pub earliest: StoreTime,
    /// It is surely not later than this; [`StoreTime::NEVER`] when that cannot be said.
    pub latest: StoreTime,
    /// False while the store's answers about its time contradict each other: then the bounds still hold all
    /// that was said, but nobody may be declared expired by them.
    pub steady: bool,
}

impl Now {
    /// A present that is known to the millisecond, as in a folder or in memory.
    #[must_use]
    pub const fn exactly(at: StoreTime) -> Self {
        Self { earliest: at, latest: at, steady: true }
    }

    /// Whether `expiry` is past beyond doubt: the only test for taking over, timing out or removing by age.
    #[must_use]
    pub fn is_past(&self, expiry: StoreTime) -> bool {
        self.steady && expiry < self.earliest
    }

    /// Whether a lease of our own that runs until `expiry` can still be trusted.
    #[must_use]
    pub fn is_before(&self, expiry: StoreTime) -> bool {
        self.latest < expiry
    }

    /// Whether `at` has come beyond doubt: the test for what was planned, so that nothing starts early.
    #[must_use]
    pub fn has_reached(&self, at: StoreTime) -> bool {
        at <= self.earliest
    }

    /// Whether `at` may have come: the test for what is to start at once, so that nobody waits because two clocks differ.
    #[must_use]
    pub fn is_due(&self, at: StoreTime) -> bool {
        self.latest != StoreTime::NEVER && at <= self.latest
    }

    /// The latest it can be, or the earliest when that is unknown.
    #[must_use]
    pub fn latest_known(&self) -> StoreTime {
        if self.latest == StoreTime::NEVER { self.earliest } else { self.latest }
    }

    /// How wide the interval is, if it has an end.
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
        assert_eq!(error.to_string(), "`yesterday` is not a time like 2026-01-31T12:00:00Z");
    }

    #[test]
    fn expiry_is_judged_by_the_safe_end_of_the_interval() {
        let now = Now { earliest: at(1_000), latest: at(3_000), steady: true };
        assert!(now.is_past(at(999)) && !now.is_past(at(1_000)));
        assert!(now.is_before(at(3_001)) && !now.is_before(at(3_000)));
        assert!(now.is_due(at(3_000)) && !now.is_due(at(3_001)));
        assert!(now.has_reached(at(1_000)) && !now.has_reached(at(1_001)));
        assert_eq!(now.width(), Some(Duration::from_secs(2)));
    }

    #[test]
    fn contradicting_answers_expire_nobody() {
        let now = Now { earliest: at(1_000), latest: at(3_000), steady: false };
        assert!(!now.is_past(at(0)));
    }

    #[test]
    fn an_unknown_latest_trusts_no_lease_and_starts_nothing() {
        let now = Now { earliest: at(1_000), latest: StoreTime::NEVER, steady: true };
        assert!(!now.is_before(at(i64::MAX - 1)) && !now.is_due(at(0)) && now.is_past(at(999)));
        assert_eq!(now.width(), None);
    }

    proptest! {
        #[test]
        fn text_gives_the_same_time_back(millis in 0i64..253_402_207_200_000) {
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
