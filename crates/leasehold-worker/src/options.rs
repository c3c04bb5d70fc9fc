//! How a worker behaves.

use leasehold_core::{Error, Result, Shard};
use leasehold_queue::inbox::INBOX_LEASE_TTL;
use leasehold_queue::lease::LEASE_TTL_MAX;
use std::time::Duration;

/// How a worker behaves; the defaults suit most.
#[derive(Debug, Clone)]
pub struct WorkerOptions {
    /// How many tasks run at once.
    pub concurrency: usize,
    /// Only these shards; none means all.
    pub shards: Option<Vec<Shard>>,
    /// Divide the shards with the other workers that do so; none means to look at all that were named.
    pub leasing: Option<ShardLeasing>,
    /// Have an inbox, into which producers put tasks for this worker alone; none means to share all that comes.
    pub inbox: Option<InboxLease>,
    /// How long a claim lasts without renewal. It is renewed at a third of it.
    pub lease: Duration,
    /// How often to look for work.
    pub polling: Polling,
    /// How long handlers may go on after a shutdown was asked for; then they are stopped and their tasks given back.
    pub drain: Duration,
    /// How long a handler that is waited for ([`Worker::handle_awaited`](crate::Worker::handle_awaited)) may take to
    /// stop once it was told to; then its claim is left to run out, and someone else's attempt follows.
    pub stop_wait: Duration,
    /// How often to look for claims that were lost.
    pub recover_every: Duration,
    /// How often to look at the index without being rung for: a ring may be lost.
    pub sweep_every: Duration,
    /// How often to look at what was found in the inboxes of dead workers without being rung for; inboxes are looked
    /// through for dead workers twice as often.
    pub overflow_every: Duration,
    /// Stop when there is nothing left to do: nothing due, or due within a minute, and no task of these types in the
    /// hands of another worker, who might be lost.
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
    /// Refuses what makes no sense.
    pub fn check(&self) -> Result<()> {
        if self.concurrency == 0 {
            return Err(Error::invalid("concurrency 0 would never run a task; it must be at least 1"));
        }
        if self.lease < CLAIM_LEASE_MIN {
            return Err(Error::invalid("a lease below 3 s cannot be renewed in time; use 3 s or more"));
        }
        if self.shards.as_ref().is_some_and(Vec::is_empty) {
            return Err(Error::invalid("no shards to serve; leave the setting out to serve all"));
        }
        if self.shards.is_some() && self.leasing.is_some() {
            return Err(Error::invalid("shard leasing chooses the shards; leave the list of shards out"));
        }
        if !(Duration::from_secs(1)..=OVERFLOW_EVERY_MAX).contains(&self.overflow_every) {
            return Err(Error::invalid("the overflow must be looked at every second to every day"));
        }
        self.leasing.as_ref().map_or(Ok(()), ShardLeasing::check)?;
        self.inbox.as_ref().map_or(Ok(()), InboxLease::check)?;
        self.polling.check()
    }
}

/// Shorter claims on tasks are refused: they cannot be renewed in time, because stores tell their time in whole seconds.
pub const CLAIM_LEASE_MIN: Duration = Duration::from_secs(3);

/// What dead workers have left is looked at this often at least.
const OVERFLOW_EVERY_MAX: Duration = Duration::from_hours(24);

/// Shorter leases on shards and inboxes are not taken: a store tells its time in whole seconds, and its hosts differ by half of one, so
/// that a lease of two seconds is over for its holder when it has just begun.
pub const RENEWED_LEASE_TTL_MIN: Duration = Duration::from_secs(3);

/// They are renewed at least so often in their ttl: one renewal may fail, and the next one may be slow.
pub const RENEWALS_MIN: u32 = 3;

/// How workers divide the shards among themselves.
#[derive(Debug, Clone, PartialEq)]
pub struct ShardLeasing {
    /// So many shards are taken at most before the others were seen. The fair share goes before it: no shard is left
    /// unserved.
    pub shards_per_worker: usize,
    /// How long a lease lasts without renewal.
    pub ttl: Duration,
    /// How often leases are renewed.
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
            return Err(Error::invalid("shards_per_worker 0 would serve nothing; it must be at least 1"));
        }
        check_lease("shard leases", self.ttl, self.renew_every)
    }
}

/// How a worker keeps its inbox, and with it its name.
#[derive(Debug, Clone, PartialEq)]
pub struct InboxLease {
    /// How long the lease lasts without renewal: so long nobody looks into the inbox of a worker that has died.
    pub ttl: Duration,
    /// How often it is renewed; half as often while nothing comes in.
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
        return Err(Error::invalid(format!("{what} last at most {most} s: lost workers hold them so long")));
    }
    if ttl < RENEWED_LEASE_TTL_MIN {
        let least = RENEWED_LEASE_TTL_MIN.as_secs();
        return Err(Error::invalid(format!(
            "{what} last at least {least} s: a store tells its time in whole seconds"
        )));
    }
    if renew_every.is_zero() || renew_every * RENEWALS_MIN > ttl {
        return Err(Error::invalid(format!(
            "{what} must be renewed at least three times in their ttl: one failed renewal would lose them"
        )));
    }
    Ok(())
}

/// How often to look for work: quickly while there is some, more and more slowly while there is none.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Polling {
    /// After something was found.
    pub min: Duration,
    /// At most.
    pub max: Duration,
    /// How much longer after each look that found nothing; 1 keeps the pace fixed at `min`.
    pub factor: f64,
}

impl Default for Polling {
    fn default() -> Self {
        Self { min: Duration::from_millis(100), max: Duration::from_secs(5), factor: 2.0 }
    }
}

impl Polling {
    /// The same pause every time.
    #[must_use]
    pub fn fixed(every: Duration) -> Self {
        Self { min: every, max: every, factor: 1.0 }
    }

    fn check(&self) -> Result<()> {
        if self.min.is_zero() || self.min > self.max {
            return Err(Error::invalid("polling needs 0 < min_interval <= max_interval"));
        }
        if !(1.0..=100.0).contains(&self.factor) {
            return Err(Error::invalid("the polling factor must be between 1 and 100"));
        }
        Ok(())
    }

    /// The pause after `pause` found nothing.
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
