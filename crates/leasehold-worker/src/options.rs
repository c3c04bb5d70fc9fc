//! Configuration of a worker.

use leasehold_core::{Error, Result, Shard};
use leasehold_queue::inbox::INBOX_LEASE_TTL;
use leasehold_queue::lease::LEASE_TTL_MAX;
use std::time::Duration;

/// Options of a worker. The defaults suit most.
#[derive(Debug, Clone)]
pub struct WorkerOptions {
    /// Maximum number of concurrent tasks.
    pub concurrency: usize,
    /// Shards to serve; none means all.
    pub shards: Option<Vec<Shard>>,
    /// Shard leasing: divides the shards among the workers that use it; none means to serve all of `shards`.
    pub leasing: Option<ShardLeasing>,
    /// Inbox, into which producers put tasks for this worker alone; none means to share all tasks.
    pub inbox: Option<InboxLease>,
    /// Lifetime of a claim without renewal. It is renewed after a third of it.
    pub lease: Duration,
    /// Intervals of polling.
    pub polling: Polling,
    /// Time for which handlers may continue after a shutdown was requested; then they are stopped and their tasks
    /// released.
    pub drain: Duration,
    /// Time within which an awaited handler ([`Worker::handle_awaited`](crate::Worker::handle_awaited)) must stop
    /// when asked to. After that its claim is left to expire, and another attempt follows.
    pub stop_wait: Duration,
    /// Interval at which lost claims are recovered.
    pub recover_every: Duration,
    /// Interval at which the index is scanned without a ring of the bell (the notification object), because a ring
    /// may be lost.
    pub sweep_every: Duration,
    /// Interval at which the overflow, with the tasks of dead workers, is scanned without a ring. The inboxes of dead
    /// workers are searched twice as often.
    pub overflow_every: Duration,
    /// True to stop when nothing is left to do: no task is due, or due within a minute, and no task of these types is
    /// held by another worker, which might die.
    pub until_empty: bool,
}

impl Default for WorkerOptions {
    fn default() -> Self {
        Self {
            concurrency: 8,
            shards: None,
            leasing: None,
            inbox: None,
            lease: Duration::from_mins(1),
            polling: Polling::default(),
            drain: Duration::from_secs(30),
            stop_wait: Duration::from_secs(10),
            recover_every: Duration::from_secs(5),
            sweep_every: Duration::from_mins(1),
            overflow_every: Duration::from_mins(2),
            until_empty: false,
        }
    }
}

impl WorkerOptions {
    /// Validates the options.
    pub fn check(&self) -> Result<()> {
        if self.concurrency == 0 {
            return Err(Error::invalid("concurrency must be at least 1, got 0"));
        }
        if self.lease < CLAIM_LEASE_MIN {
            return Err(Error::invalid("lease must be at least 3 s, or it cannot be renewed in time"));
        }
        if self.shards.as_ref().is_some_and(Vec::is_empty) {
            return Err(Error::invalid("shards is empty; remove the setting to serve all shards"));
        }
        if self.shards.is_some() && self.leasing.is_some() {
            return Err(Error::invalid("shards cannot be set with shard leasing; remove one of them"));
        }
        if !(Duration::from_secs(1)..=OVERFLOW_EVERY_MAX).contains(&self.overflow_every) {
            return Err(Error::invalid("the overflow must be scanned every second to every day"));
        }
        self.leasing.as_ref().map_or(Ok(()), ShardLeasing::check)?;
        self.inbox.as_ref().map_or(Ok(()), InboxLease::check)?;
        self.polling.check()
    }
}

/// Minimum lifetime of a claim. A shorter one cannot be renewed in time, because stores report their time in whole
/// seconds.
pub const CLAIM_LEASE_MIN: Duration = Duration::from_secs(3);

/// Maximum interval at which the overflow is scanned.
const OVERFLOW_EVERY_MAX: Duration = Duration::from_hours(24);

/// Minimum lifetime of leases on shards and inboxes. A store reports its time in whole seconds, and its hosts differ
/// by half of one, so a lease of two seconds is over for its holder when it has just begun.
pub const RENEWED_LEASE_TTL_MIN: Duration = Duration::from_secs(3);

/// Minimum number of renewals per ttl: one may fail, and the next one may be slow.
pub const RENEWALS_MIN: u32 = 3;

/// Settings of shard leasing.
#[derive(Debug, Clone, PartialEq)]
pub struct ShardLeasing {
    /// Maximum number of shards that are taken before the other workers were counted. The fair share takes
    /// precedence: no shard is left unserved.
    pub shards_per_worker: usize,
    /// Lifetime of a lease without renewal.
    pub ttl: Duration,
    /// Interval of renewals.
    pub renew_every: Duration,
}

impl Default for ShardLeasing {
    fn default() -> Self {
        Self { shards_per_worker: 16, ttl: Duration::from_secs(30), renew_every: Duration::from_secs(10) }
    }
}

impl ShardLeasing {
    fn check(&self) -> Result<()> {
        if self.shards_per_worker == 0 {
            return Err(Error::invalid("shards_per_worker must be at least 1, got 0"));
        }
        check_lease("shard leases", self.ttl, self.renew_every)
    }
}

/// Settings of the lease on a worker's inbox, and with it on its worker id.
#[derive(Debug, Clone, PartialEq)]
pub struct InboxLease {
    /// Lifetime of the lease without renewal, and so the delay until the inbox of a dead worker is emptied.
    pub ttl: Duration,
    /// Interval of renewals; doubled while the inbox is idle.
    pub renew_every: Duration,
}

impl Default for InboxLease {
    fn default() -> Self {
        Self { ttl: INBOX_LEASE_TTL, renew_every: INBOX_LEASE_TTL / 3 }
    }
}

impl InboxLease {
    fn check(&self) -> Result<()> {
        check_lease("leases on inboxes", self.ttl, self.renew_every)
    }
}

fn check_lease(what: &str, ttl: Duration, renew_every: Duration) -> Result<()> {
    if ttl > LEASE_TTL_MAX {
        let most = LEASE_TTL_MAX.as_secs();
        return Err(Error::invalid(format!(
            "{what} must last at most {most} s: a dead worker holds them for that long"
        )));
    }
    if ttl < RENEWED_LEASE_TTL_MIN {
        let least = RENEWED_LEASE_TTL_MIN.as_secs();
        return Err(Error::invalid(format!(
            "{what} must last at least {least} s: a store reports its time in whole seconds"
        )));
    }
    if renew_every.is_zero() || renew_every * RENEWALS_MIN > ttl {
        return Err(Error::invalid(format!(
            "{what} must be renewed at least three times per ttl: otherwise one failed renewal loses them"
        )));
    }
    Ok(())
}

/// Polling intervals: short while work is found, growing while none is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Polling {
    /// Pause after work was found.
    pub min: Duration,
    /// Maximum pause.
    pub max: Duration,
    /// Factor by which the pause grows after each poll without work; 1 keeps it at `min`.
    pub factor: f64,
}

impl Default for Polling {
    fn default() -> Self {
        Self { min: Duration::from_millis(100), max: Duration::from_secs(5), factor: 2.0 }
    }
}

impl Polling {
    /// A fixed interval.
    #[must_use]
    pub fn fixed(every: Duration) -> Self {
        Self { min: every, max: every, factor: 1.0 }
    }

    fn check(&self) -> Result<()> {
        if self.min.is_zero() || self.min > self.max {
            return Err(Error::invalid("polling requires 0 < min_interval <= max_interval"));
        }
        if !(1.0..=100.0).contains(&self.factor) {
            return Err(Error::invalid("the polling factor must be between 1 and 100"));
        }
        Ok(())
    }

    /// The pause after `pause`, if that poll found nothing.
    #[must_use]
    pub fn slower(&self, pause: Duration) -> Duration {
        pause.mul_f64(self.factor).clamp(self.min, self.max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shard_leases_that_could_not_be_kept_are_refused() {
        let check = |ttl, renew_every| {
            let (ttl, renew_every) = (Duration::from_secs(ttl), Duration::from_secs(renew_every));
            let leasing = Some(ShardLeasing { ttl, renew_every, ..ShardLeasing::default() });
            WorkerOptions { leasing, ..WorkerOptions::default() }.check()
        };
        for (ttl, renew_every) in [(3, 1), (6, 2), (30, 10), (600, 200)] {
            check(ttl, renew_every).unwrap();
        }
        for (ttl, renew_every, words) in [
            (2, 1, "at least 3 s"),
            (601, 10, "at most 600 s"),
            (30, 0, "three times"),
            (30, 11, "three times"),
        ] {
            let error = check(ttl, renew_every).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
