//! Settings of the leases that a worker holds while it runs: on shards, and on its inbox.

use std::time::Duration;

use crate::{Error, Result};

/// Maximum lifetime of a lease without renewal.
pub const LEASE_TTL_MAX: Duration = Duration::from_mins(10);

/// Default ttl of the lease on an inbox. A worker whose lease is younger counts as live without a read.
pub const INBOX_LEASE_TTL: Duration = Duration::from_mins(1);

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
    /// Validates the settings.
    pub fn check(&self) -> Result<()> {
        if self.shards_per_worker == 0 {
            return Err(Error::invalid("shards_per_worker must be at least 1, got 0"));
        }
        check_lease("shard leases", self.ttl, self.renew_every)
    }
}

/// Settings of the lease on a worker's inbox, and with it on its worker id.
#[derive(Debug, Clone, PartialEq)]
pub struct InboxLeaseOptions {
    /// Lifetime of the lease without renewal, and so the delay until the inbox of a crashed worker is emptied.
    pub ttl: Duration,
    /// Interval of renewals; doubled while the inbox is idle.
    pub renew_every: Duration,
}

impl Default for InboxLeaseOptions {
    fn default() -> Self {
        Self { ttl: INBOX_LEASE_TTL, renew_every: INBOX_LEASE_TTL / 3 }
    }
}

impl InboxLeaseOptions {
    /// Validates the settings.
    pub fn check(&self) -> Result<()> {
        check_lease("leases on inboxes", self.ttl, self.renew_every)
    }
}

fn check_lease(what: &str, ttl: Duration, renew_every: Duration) -> Result<()> {
    if ttl > LEASE_TTL_MAX {
        let most = LEASE_TTL_MAX.as_secs();
        return Err(Error::invalid(format!(
            "ttl of {what} must be at most {most} s, got {ttl:?}: a crashed worker blocks others for that long"
        )));
    }
    if ttl < RENEWED_LEASE_TTL_MIN {
        let least = RENEWED_LEASE_TTL_MIN.as_secs();
        return Err(Error::invalid(format!(
            "ttl of {what} must be at least {least} s, got {ttl:?}: a store reports its time in whole seconds"
        )));
    }
    if renew_every.is_zero() || renew_every * RENEWALS_MIN > ttl {
        return Err(Error::invalid(format!(
            "{what} must be renewed at least three times per ttl of {ttl:?}, got an interval of {renew_every:?}"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shard_leases_that_could_not_be_kept_are_refused() {
        let check = |ttl, renew_every| {
            let (ttl, renew_every) = (Duration::from_secs(ttl), Duration::from_secs(renew_every));
            ShardLeasing { ttl, renew_every, ..ShardLeasing::default() }.check()
        };
        for (ttl, renew_every) in [(3, 1), (6, 2), (30, 10), (600, 200)] {
            check(ttl, renew_every).unwrap();
        }
        for (ttl, renew_every, words) in [
            (2, 1, "must be at least 3 s, got 2s"),
            (601, 10, "must be at most 600 s, got 601s"),
            (30, 0, "at least three times per ttl"),
            (30, 11, "at least three times per ttl"),
        ] {
            let error = check(ttl, renew_every).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
