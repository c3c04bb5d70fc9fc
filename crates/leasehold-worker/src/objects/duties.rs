//! Maintenance duties: recover expired claims, clean up the index, empty the inboxes of crashed workers, remove expired
//! idempotency records and old worker ids.
//!
//! Every worker does them for the shards that it serves, so that no separate process is needed. A duty that concerns
//! the whole queue is done by one worker at a time, which holds a lease on it. All of them may be done twice, or by
//! several workers at once, without harm.
//!
//! Requests per worker while the queue is idle: 1 list of lease entries per `full_scan_every`, and 1 list of idempotency
//! records per half hour (with shard leasing, only by the holder of the first shard). The worker that empties inboxes
//! makes 1 put and 1 list per half `overflow_every`; each other worker 1 get per expiry of its lease.

mod expired_keys;
mod recover;
mod rescue;

use leasehold_core::{Kind, Result, StoreTime};
use leasehold_queue::ObjectQueue;
use leasehold_queue::lease::{HeldLease, LEASE_TTL_MAX, Leases, Renewed, Taken};
use leasehold_queue::source::Duty;
use serde_json::Map;
use std::sync::Arc;
use std::time::Duration;

use self::expired_keys::ExpiredKeys;
use self::recover::Recover;
use self::rescue::Rescue;
use super::Objects;

/// The duties of a worker.
pub(super) fn all(objects: &Arc<Objects>) -> Vec<Box<dyn Duty>> {
    vec![
        Box::new(Recover::new(objects.clone())),
        Box::new(Rescue::new(objects.clone())),
        Box::new(ExpiredKeys { objects: objects.clone() }),
    ]
}

impl Objects {
    /// False while the queue is being migrated, when there are no duties. Fails if this worker can never do them again.
    async fn may_do_duties(&self) -> Result<bool> {
        match self.queue.ensure_writable().await {
            Err(error) if error.kind() == Kind::Invalid && self.queue.is_outdated() => Err(error),
            Err(error) => {
                tracing::debug!(%error, "maintenance duties paused");
                Ok(false)
            }
            Ok(()) => Ok(true),
        }
    }
}

/// The lease on one duty, so that one worker at a time does it for all that serve the same shards.
///
/// The worker that does the duty holds a lease on it and renews it each time; the other workers read that it is held.
/// If the holder crashes, another worker takes over after the ttl. Requests: 1 put each time for the holder, 1 get per
/// ttl for each other worker.
struct DutyLease {
    queue: ObjectQueue,
    leases: Leases,
    key: &'static str,
    held: Option<HeldLease>,
    /// Expiry of the lease of another holder.
    others_until: Option<StoreTime>,
}

impl DutyLease {
    /// Creates the lease on the duty at `key`, with this ttl.
    fn new(objects: &Objects, key: &'static str, ttl: Duration) -> Self {
        let queue = objects.queue.clone();
        let leases = Leases::of_process(queue.client(), &objects.worker.id, ttl.min(LEASE_TTL_MAX));
        let leases = leases.expect("no interval of a duty is zero");
        Self { queue, leases, key, held: None, others_until: None }
    }

    /// Renews or takes the lease; true if this worker is to do the duty now.
    async fn acquire(&mut self) -> Result<bool> {
        if let Some(held) = &mut self.held {
            if self.leases.renew(held).await? == Renewed::Kept {
                return Ok(true);
            }
            self.held = None;
        }
        let now = self.queue.now()?;
        if self.others_until.is_some_and(|until| !now.is_past(until)) {
            return Ok(false);
        }
        // The object nearly always exists.
        let modified = Some(now.earliest);
        match self.leases.take(self.key, &Map::new(), modified).await? {
            Taken::Ours(held) => (self.held, self.others_until) = (Some(held), None),
            Taken::Others(lease) => self.others_until = Some(lease.expires_at),
        }
        Ok(self.held.is_some())
    }

    /// Releases the lease, so that another worker can take the duty over.
    async fn release(&mut self) {
        if let Some(held) = self.held.take()
            && let Err(error) = self.leases.release(held).await
        {
            tracing::debug!(key = self.key, %error, "failed to release duty lease, leaving it to expire");
        }
    }
}
