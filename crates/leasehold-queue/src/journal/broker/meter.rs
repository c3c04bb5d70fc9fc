//! Figures of the commits of a broker: totals since it began, and rates and times of the last minute.

use leasehold_store::host::Instant;
use std::collections::VecDeque;
use std::time::Duration;

use crate::journal::status::CommitFigures;

/// Number of windows of the last minute, and the length of each.
const WINDOWS: usize = 6;
const WINDOW: Duration = Duration::from_secs(10);

/// Number of buckets of times: the last one begins at 117 s.
const BUCKETS: usize = 104;

/// Meter of the commits of a broker.
pub(super) struct CommitMeter {
    began_at: Instant,
    commits: u64,
    records: u64,
    bytes: u64,
    /// Windows with commits, the newest last.
    recent: VecDeque<CommitWindow>,
    in_flight: Option<CommitInFlight>,
}

struct CommitInFlight {
    sent_at: Instant,
    records: u32,
    bytes: usize,
}

/// Commits that were confirmed within one window.
struct CommitWindow {
    number: u128,
    commits: u64,
    records: u64,
    times: TimeBuckets,
}

impl CommitMeter {
    pub(super) fn new(now: Instant) -> Self {
        Self { began_at: now, commits: 0, records: 0, bytes: 0, recent: VecDeque::new(), in_flight: None }
    }

    /// Notes a commit that is sent.
    pub(super) fn sent(&mut self, records: u32, bytes: usize, now: Instant) {
        self.in_flight = Some(CommitInFlight { sent_at: now, records, bytes });
    }

    /// Notes that the commit in flight is confirmed.
    pub(super) fn confirmed(&mut self, now: Instant) {
        let Some(CommitInFlight { sent_at, records, bytes }) = self.in_flight.take() else { return };
        self.commits += 1;
        self.records += u64::from(records);
        self.bytes += bytes as u64;
        let number = self.window_number(now);
        if self.recent.back().is_none_or(|last| last.number != number) {
            if self.recent.len() == WINDOWS {
                self.recent.pop_front();
            }
            self.recent.push_back(CommitWindow { number, commits: 0, records: 0, times: TimeBuckets::new() });
        }
        if let Some(window) = self.recent.back_mut() {
            window.commits += 1;
            window.records += u64::from(records);
            window.times.add(now.since(sent_at));
        }
    }

    /// Number of windows that have ended since the broker began.
    fn window_number(&self, now: Instant) -> u128 {
        now.since(self.began_at).as_nanos() / WINDOW.as_nanos()
    }

    /// Figures at this time.
    pub(super) fn figures(&self, now: Instant) -> CommitFigures {
        let current = self.window_number(now);
        let first = current.saturating_sub(WINDOWS as u128 - 1);
        let (mut commits, mut records, mut times) = (0, 0, TimeBuckets::new());
        for window in self.recent.iter().filter(|window| window.number >= first) {
            commits += window.commits;
            records += window.records;
            times.merge(&window.times);
        }
        let window_ms = now.since(self.began_at).as_millis() - first * WINDOW.as_millis();
        CommitFigures {
            commits: self.commits,
            records: self.records,
            bytes: self.bytes,
            window_ms: u64::try_from(window_ms).unwrap_or(u64::MAX),
            recent_commits: commits,
            recent_records: records,
            p50_us: times.quantile(50),
            p99_us: times.quantile(99),
        }
    }
}

/// Counts of times by microseconds: four buckets for each power of two, so that a quantile is at most a quarter too high.
struct TimeBuckets([u32; BUCKETS]);

impl TimeBuckets {
    fn new() -> Self {
        Self([0; BUCKETS])
    }

    fn add(&mut self, time: Duration) {
        let bucket = bucket(u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
        self.0[bucket] = self.0[bucket].saturating_add(1);
    }

    fn merge(&mut self, other: &Self) {
        for (count, more) in self.0.iter_mut().zip(&other.0) {
            *count = count.saturating_add(*more);
        }
    }

    /// Time in microseconds that this part of all times, in percent, does not exceed; none without times.
    fn quantile(&self, percent: u64) -> Option<u64> {
        let total: u64 = self.0.iter().map(|count| u64::from(*count)).sum();
        let wanted = (total * percent).div_ceil(100).max(1);
        let mut counted = 0;
        let found = self.0.iter().position(|count| {
            counted += u64::from(*count);
            counted >= wanted
        });
        found.map(end_of)
    }
}

fn bucket(micros: u64) -> usize {
    let Some(power) = micros.checked_ilog2().filter(|power| *power >= 2) else {
        // Below four, each has a bucket of its own.
        return usize::try_from(micros).unwrap_or(BUCKETS - 1);
    };
    let quarter = (micros >> (power - 2)) & 3;
    let bucket = u64::from(power - 1) * 4 + quarter;
    usize::try_from(bucket).map_or(BUCKETS - 1, |bucket| bucket.min(BUCKETS - 1))
}

/// First number of microseconds that is beyond a bucket.
fn end_of(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < 4 { bucket + 1 } else { (bucket % 4 + 5) << (bucket / 4 - 1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        let start = Instant { boot_ns: 7_000_000_000_000, wall_ns: 0 };
        Instant { boot_ns: start.boot_ns + i64::try_from(millis).unwrap() * 1_000_000, ..start }
    }

    #[test]
    fn a_time_is_in_the_bucket_whose_bounds_include_it() {
        for micros in (0..10_000).chain([99_999, 1_000_000, 60_000_000]) {
            let bucket = bucket(micros);
            assert!(micros < end_of(bucket), "{micros}");
            assert!(bucket == 0 || end_of(bucket - 1) <= micros, "{micros}");
            assert!(end_of(bucket) <= micros.max(4) * 5 / 4 + 1, "{micros} is counted as {}", end_of(bucket));
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn quantiles_are_those_of_the_last_minute() {
        let mut meter = CommitMeter::new(at(0));
        let figures = meter.figures(at(0));
        assert_eq!((figures.commits, figures.p50_us, figures.per_second()), (0, None, 0.0));
        for number in 0..100 {
            let sent = number * 100;
            meter.sent(3, 10, at(sent));
            meter.confirmed(at(sent + if number < 98 { 2 } else { 40 }));
        }
        let figures = meter.figures(at(10_000));
        assert_eq!((figures.commits, figures.records, figures.bytes), (100, 300, 1_000));
        assert!((2_000..=2_500).contains(&figures.p50_us.unwrap()), "{figures:?}");
        assert!((40_000..=50_000).contains(&figures.p99_us.unwrap()), "{figures:?}");
        assert!((figures.per_second() - 10.0).abs() < 0.01, "{figures:?}");
        let figures = meter.figures(at(59_999));
        assert!((1.6..1.7).contains(&figures.per_second()), "{figures:?}");
        let figures = meter.figures(at(60_000));
        assert_eq!((figures.recent_commits, figures.p99_us, figures.commits), (0, None, 100));
        // Windows without commits take no room.
        meter.sent(1, 1, at(1_000_000));
        meter.confirmed(at(1_000_010));
        assert_eq!(meter.figures(at(1_000_010)).recent_records, 1);
        assert!(meter.recent.len() <= WINDOWS);
    }
}
