//! A lease on a duty, so that one worker at a time does it for all that serve the same shards.
//!
//! The worker that does the duty holds a lease on it and renews it each time; the other workers read that it is held.
//! If the holder dies, another worker takes over after the ttl. Requests: 1 put each time for the holder, 1 get per
//! ttl for each other worker.

use leasehold_core::{Result, StoreTime};
use leasehold_queue::ObjectQueue;
use leasehold_queue::lease::{HeldLease, LEASE_TTL_MAX, Leases, Renewed, Taken};
use serde_json::Map;
use std::time::Duration;

use crate::objects::Objects;

/// The lease on one duty.
pub(super) struct DutyLease {
    queue: ObjectQueue,
    leases: Leases,
    key: &'static str,
    held: Option<HeldLease>,
    /// Expiry of the lease of another holder.
    others_until: Option<StoreTime>,
}

impl DutyLease {
    /// Creates the lease on the duty at `key`, with this ttl.
    pub(super) fn new(objects: &Objects, key: &'static str, ttl: Duration) -> Self {
        let queue = objects.queue.clone();
        let leases = Leases::of_process(queue.client(), &objects.worker.id, ttl.min(LEASE_TTL_MAX));
        let leases = leases.expect("no interval of a duty is zero");
        Self { queue, leases, key, held: None, others_until: None }
    }

    /// Renews or takes the lease; true if this worker is to do the duty now.
    pub(super) async fn acquire(&mut self) -> Result<bool> {
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

    /// Lease client of this worker.
    pub(super) fn leases(&self) -> &Leases {
        &self.leases
    }

    /// Releases the lease, so that another worker can take the duty over.
    pub(super) async fn release(&mut self) {
        if let Some(held) = self.held.take()
            && let Err(error) = self.leases.release(held).await
        {
            tracing::debug!(key = self.key, %error, "failed to release duty lease, leaving it to expire");
        }
    }
}
