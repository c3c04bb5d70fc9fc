//! Empties the inboxes of crashed workers, and removes worker ids that were not used for long.

use futures::TryStreamExt;
use futures::future::BoxFuture;
use leasehold_core::{Result, keys};
use leasehold_queue::source::{Duty, DutyPlan};
use leasehold_store::Purpose;
use leasehold_store::host::Instant;
use std::sync::Arc;
use std::time::Duration;

use super::DutyLease;
use crate::objects::Objects;

/// Maximum time of one round. It can be interrupted at any point and resumed, so that other duties do not wait for long.
const TIME_MAX: Duration = Duration::from_secs(30);
/// Interval at which old worker ids are removed, by the worker that empties inboxes.
const OLD_IDS_EVERY: Duration = Duration::from_hours(1);
/// Number of worker ids that are removed concurrently.
const OLD_IDS_AT_ONCE: usize = 16;

/// Empties the inboxes of crashed workers, and removes worker ids that were not used for long: one worker for the whole
/// queue.
pub(super) struct Rescue {
    objects: Arc<Objects>,
    lease: DutyLease,
    /// Time of the last removal of old worker ids.
    old_ids_removed: Option<Instant>,
}

impl Rescue {
    pub(super) fn new(objects: Arc<Objects>) -> Self {
        // The holder has two rounds before its lease expires.
        let lease = DutyLease::new(&objects, keys::RESCUE_LEASE, every(&objects) * 5 / 2);
        Self { objects, lease, old_ids_removed: None }
    }

    async fn rescue(&mut self) -> Result<()> {
        if !self.lease.acquire().await? {
            return Ok(());
        }
        self.objects.queue.rescue_inboxes().await?;
        let now = self.objects.host().instant();
        if self.old_ids_removed.is_none_or(|at| now.since(at) >= OLD_IDS_EVERY) {
            self.old_ids_removed = Some(now);
            self.remove_old_ids().await?;
        }
        Ok(())
    }

    /// Removes worker ids that were not used for long.
    async fn remove_old_ids(&self) -> Result<()> {
        let (queue, leases) = (&self.objects.queue, &self.lease.leases);
        let ids = queue.objects_under(Purpose::Sweep, keys::WORKERS);
        let retire = |id| async move { queue.retire_worker_id(leases, &id).await };
        ids.try_for_each_concurrent(OLD_IDS_AT_ONCE, retire).await
    }
}

fn every(objects: &Objects) -> Duration {
    objects.options.overflow_every / 2
}

impl Duty for Rescue {
    fn plan(&self) -> DutyPlan {
        let (operation, time_max) = ("empty inboxes of crashed workers", Some(TIME_MAX));
        DutyPlan { operation, every: every(&self.objects), begins_at_once: false, time_max }
    }

    fn tick(&mut self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async {
            if !self.objects.may_do_duties().await? {
                return Ok(());
            }
            let rescued = self.rescue().await;
            if rescued.is_err() {
                // Another worker may succeed.
                self.lease.release().await;
            }
            rescued
        })
    }

    fn release(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(self.lease.release())
    }
}
