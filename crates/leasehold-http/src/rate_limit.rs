//! Limit of bytes per second, shared by all responses of a server.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leasehold_store::Host;

/// Largest part of a response that is sent at once under a limit; smaller for small limits, so that no response waits long
/// for a turn. Responses take turns part by part.
const PART_BYTES_MAX: u64 = 64 * 1_024;
const PART_BYTES_MIN: u64 = 1_024;

/// Rate limiter of a server.
#[derive(Debug)]
pub struct SendRateLimiter {
    host: Arc<dyn Host>,
    bytes_per_sec: u64,
    /// Time at which all turns taken so far are over, by the host's boot clock.
    free_at_ns: Mutex<i64>,
}

impl SendRateLimiter {
    /// Limits a server to this many bytes per second, at least one.
    #[must_use]
    pub fn new(host: Arc<dyn Host>, bytes_per_sec: u64) -> Self {
        Self { host, bytes_per_sec: bytes_per_sec.max(1), free_at_ns: Mutex::new(i64::MIN) }
    }

    /// Number of bytes to send in one turn: a tenth of a second's worth, within bounds.
    #[must_use]
    pub fn part_bytes(&self) -> usize {
        let bytes = (self.bytes_per_sec / 10).clamp(PART_BYTES_MIN, PART_BYTES_MAX);
        usize::try_from(bytes).expect("at most PART_BYTES_MAX")
    }

    /// Takes a turn for this many bytes, and returns the time to wait before sending them.
    #[must_use]
    pub fn take_turn(&self, bytes: usize) -> Duration {
        let now_ns = self.host.instant().boot_ns;
        let lasts_ns = bytes as u128 * 1_000_000_000 / u128::from(self.bytes_per_sec);
        let mut free_at_ns = self.free_at_ns.lock().unwrap_or_else(PoisonError::into_inner);
        let turn_ns = now_ns.max(*free_at_ns);
        *free_at_ns = turn_ns.saturating_add(i64::try_from(lasts_ns).unwrap_or(i64::MAX));
        Duration::from_nanos(u64::try_from(turn_ns - now_ns).unwrap_or(0))
    }

    /// Waits for a turn.
    #[must_use]
    pub fn sleep(&self, wait: Duration) -> futures::future::BoxFuture<'static, ()> {
        self.host.sleep(wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_store::testing::FakeHost;

    #[test]
    fn turns_follow_each_other_at_the_rate_and_idle_time_is_not_saved_up() {
        let host = FakeHost::new();
        let limiter = SendRateLimiter::new(Arc::new(host.clone()), 10_000);
        let turn = || limiter.take_turn(1_000).as_millis();
        assert_eq!([turn(), turn(), turn()], [0, 100, 200]);
        host.advance(Duration::from_millis(250));
        assert_eq!(turn(), 50);
        host.advance(Duration::from_hours(1));
        assert_eq!([turn(), turn()], [0, 100]);
    }

    #[test]
    fn parts_are_small_under_low_limits() {
        let part = |rate| SendRateLimiter::new(Arc::new(FakeHost::new()), rate).part_bytes();
        assert_eq!([part(1), part(100_000), part(u64::MAX)], [1_024, 10_000, 65_536]);
    }
}
