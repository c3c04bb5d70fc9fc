//! Whose turn it is. Workers that all serve the same shards would all do the same duties; one of them at a time is enough.
//!
//! Whoever does the duty holds a lease on it and renews it each time; the others only see that it is held. A lost one is
//! followed after the ttl. Requests: 1 put each time for the one whose turn it is, 1 get per ttl for each of the others.

use leasehold_core::{HexName, Holder, Result, StoreTime, WorkerId};
use leasehold_queue::Queue;
use leasehold_queue::lease::{HeldLease, Leases, Renewed, Taken};
use leasehold_store::HostExt;
use serde_json::Map;
use std::time::Duration;

/// The turn at one duty.
pub(crate) struct Turn {
    queue: Queue,
    leases: Leases,
    key: &'static str,
    held: Option<HeldLease>,
    /// Someone else has it until then.
    others_until: Option<StoreTime>,
}

impl Turn {
    /// So long the others rely on the one whose turn it is.
    pub(crate) fn new(queue: &Queue, id: &WorkerId, key: &'static str, ttl: Duration) -> Result<Self> {
        let instance = HexName::from_random(queue.client().host().random_bits());
        let holder = Holder { worker_id: id.clone(), instance, ttl };
        let leases = Leases::new(queue.client().clone(), holder)?;
        Ok(Self { queue: queue.clone(), leases, key, held: None, others_until: None })
    }

    /// Whether it is ours to do the duty now.
    pub(crate) async fn is_ours(&mut self) -> Result<bool> {
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
        // It is nearly always there.
        let seen = Some(now.earliest);
        match self.leases.take(self.key, &Map::new(), seen).await? {
            Taken::Ours(held) => (self.held, self.others_until) = (Some(held), None),
            Taken::Others(lease) => self.others_until = Some(lease.expires_at),
        }
        Ok(self.held.is_some())
    }

    /// Leases of whoever takes turns here.
    pub(crate) fn leases(&self) -> &Leases {
        &self.leases
    }

    /// Leaves it to others.
    pub(crate) async fn pass_on(&mut self) {
        if let Some(held) = self.held.take()
            && let Err(error) = self.leases.release(held).await
        {
            tracing::debug!("a duty was not passed on and runs out by itself: {error}");
        }
    }
}
