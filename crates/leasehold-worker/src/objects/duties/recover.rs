//! Recovers the tasks of expired claims, and removes unneeded lease entries.

use futures::future::BoxFuture;
use leasehold_core::scan::{BackoffAction, EntryBackoff};
use leasehold_core::{Index, Result, keys};
use leasehold_queue::source::{Duty, DutyPlan, SourceStatus};
use leasehold_store::Purpose;
use leasehold_store::host::Instant;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use super::DutyLease;
use crate::objects::Objects;

/// Ttl of the lease on the duty.
const RECOVERY_TTL: Duration = Duration::from_secs(10);
/// Number of failed entries after which the rest of a round is left to the next.
const FAILED_MAX: u32 = 2;
/// Pause before an entry that failed is checked again.
const FAILED_PAUSE: Duration = Duration::from_secs(30);

/// Finds claims that have expired, and unneeded lease entries.
///
/// While no task waits or runs and the bell does not ring, no claim can expire: then the index is not scanned until
/// the next full scan. No task runs if there was no ready entry, and *after that* no lease entry: a claim writes
/// the lease entry before it removes the ready entry.
pub(super) struct Recover {
    objects: Arc<Objects>,
    backoff: EntryBackoff,
    /// Lease on the duty; none if this worker recovers on its own.
    lease: Option<DutyLease>,
    /// Time of the last list of lease entries, and whether no task waited or ran.
    listed: Option<(Instant, bool)>,
}

impl Recover {
    /// Workers that all serve all shards take turns, by a lease on the duty. A worker with short claims does not
    /// wait for it, because they would expire before.
    pub(super) fn new(objects: Arc<Objects>) -> Self {
        let has_own_shards = objects.options.leasing.is_some() || objects.options.shards.is_some();
        let has_short_claims = objects.options.lease < RECOVERY_TTL * 3 / 2;
        let lease = (!has_own_shards && !has_short_claims)
            .then(|| DutyLease::new(&objects, keys::RECOVERY_LEASE, RECOVERY_TTL));
        Self { objects, backoff: EntryBackoff::default(), lease, listed: None }
    }

    /// True if a task waits or runs, or may do so.
    fn is_active(&self) -> bool {
        let objects = &self.objects;
        let is_active = objects.assignment.take_active();
        let Some((_, was_quiet)) = self.listed else { return true };
        // A claim in a shard that this worker leases has no lease entry: existing ones are from other workers.
        let is_leased = objects.options.leasing.is_some();
        !was_quiet || !is_leased && (is_active || !objects.assignment.is_ready_empty.load(SeqCst))
    }

    /// True if the last scan was long ago: a ring may have been lost.
    fn is_full_scan_due(&self) -> bool {
        let (now, every) = (self.objects.host().instant(), self.objects.options.full_scan_every);
        self.listed.is_none_or(|(at, _)| now.since(at) >= every)
    }

    /// Scans for expired claims if there is a reason to, and recovers their tasks.
    async fn recover(&mut self) -> Result<()> {
        let is_active = self.is_active();
        if !is_active && !self.is_full_scan_due() {
            self.release().await;
            return Ok(());
        }
        if let Some(lease) = self.lease.as_mut().filter(|_| is_active)
            && !lease.acquire().await?
        {
            // Until this worker has found all shards idle itself, the holder of the duty may have crashed.
            self.listed = None;
            return Ok(());
        }
        let objects = self.objects.clone();
        let (at, is_ready_empty) = (objects.host().instant(), objects.assignment.is_ready_empty.load(SeqCst));
        self.listed = None;
        let key_ranges = objects.assignment.key_ranges(Index::Lease, objects.queue.now()?, None);
        let page = objects.queue.discover(Purpose::Sweep, key_ranges).await?;
        let is_waiting = objects.options.leasing.is_none() && !is_ready_empty;
        self.listed = Some((at, !is_waiting && page.due.is_empty() && page.next.is_none()));
        for key in &page.invalid_keys {
            objects.report(&format!("`{key}` is not an index entry"));
        }
        let present: HashSet<_> = page.due.iter().map(|found| found.entry.clone()).collect();
        self.backoff.retain(|entry| present.contains(entry));
        let mut failed = 0;
        for found in page.due {
            let now = objects.queue.now()?;
            if objects.slots().contains(&found.entry.id) || self.backoff.action(&found.entry, now).is_none() {
                continue;
            }
            let next = match objects.sweep(&found, BackoffAction::Sweep).await {
                // One failure must not block the entries after it; if all fail, the store is unavailable.
                Err(error) if failed < FAILED_MAX => {
                    objects.request_failed("recover an expired claim", &error);
                    failed += 1;
                    Some((now.latest_known().plus(FAILED_PAUSE), BackoffAction::Sweep))
                }
                next => next?,
            };
            self.backoff.set(found, next);
        }
        Ok(())
    }
}

impl Duty for Recover {
    fn plan(&self) -> DutyPlan {
        let every = self.objects.options.recover_every;
        DutyPlan { operation: "recover expired claims", every, begins_at_once: true, time_max: None }
    }

    fn tick(&mut self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async { if self.objects.may_do_duties().await? { self.recover().await } else { Ok(()) } })
    }

    fn release(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            if let Some(lease) = &mut self.lease {
                lease.release().await;
            }
        })
    }
}
