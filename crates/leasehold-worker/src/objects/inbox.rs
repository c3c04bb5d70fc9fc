//! A worker's own inbox, and the lease on it. The holder of the lease has the worker id.
//!
//! Producers put index entries of new tasks into the inbox as long as the lease is held. It is renewed on a thread that
//! handlers cannot block, but only while the poll loop runs: a worker that hangs does not keep its inbox. A worker
//! that stops releases the lease and empties the inbox, so that other workers continue at once. A worker whose
//! lease was taken by another process, broken or deleted stops everything.
//!
//! Requests: 1 put per renewal. A start is 1 put, and 1 get and 1 put more if the id was used before. A stop is 1
//! put, 1 get and 1 list, and those of moving the remaining entries.

use futures::future::{Either, select};
use leasehold_core::{Error, Kind, Now, Reason, Result, StoreTime, WorkerId, keys};
use leasehold_queue::ObjectQueue;
use leasehold_queue::lease::{HeldLease, Leases, Renewed, Taken, worker_subject};
use leasehold_queue::source::{Slots, SourceStatus};
use leasehold_store::HostExt;
use leasehold_store::host::lock;
use leasehold_store::mutant::breaks;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

use crate::options::InboxLeaseOptions;

/// Fraction of the usual pause after which a renewal is retried that failed, or that waits for the poll loop.
const SOON_PART: u32 = 8;
/// Minimum time left of a lease when it is renewed, also while idle: one attempt may fail, and the next one be slow.
const LEFT_MIN: Duration = Duration::from_secs(15);

/// The inbox of this worker, shared by all of its parts.
#[derive(Debug)]
pub(super) struct Inbox {
    queue: ObjectQueue,
    leases: Leases,
    options: InboxLeaseOptions,
    /// Time until which the inbox is certainly held.
    trusted_until: Mutex<Option<StoreTime>>,
    /// True if the poll loop has run since the last renewal.
    has_heartbeat: AtomicBool,
    /// True if the inbox was not empty since the last renewal.
    is_busy: AtomicBool,
    /// Cancelled if another process has taken the worker id.
    lost: CancellationToken,
}

impl Inbox {
    /// Takes the lease on the worker id; fails if another process has it.
    pub(super) async fn open(
        queue: ObjectQueue,
        id: &WorkerId,
        options: InboxLeaseOptions,
    ) -> Result<(Self, HeldLease)> {
        let leases = Leases::of_process(queue.client(), id, options.ttl)?;
        let held = match leases.take(&keys::inbox_lease(id), &worker_subject(id), None).await? {
            Taken::Ours(held) => held,
            Taken::Others(lease) => {
                let message =
                    format!("worker id `{id}` is in use until {}; wait, or choose another", lease.expires_at);
                return Err(Error::new(Kind::Unavailable, message).with_reason(Reason::Conflict));
            }
        };
        let inbox = Self {
            queue,
            leases,
            options,
            trusted_until: Mutex::new(Some(held.lease.expires_at)),
            has_heartbeat: AtomicBool::new(true),
            is_busy: AtomicBool::new(true),
            lost: CancellationToken::new(),
        };
        Ok((inbox, held))
    }

    pub(super) fn worker(&self) -> &WorkerId {
        &self.leases.holder().worker_id
    }

    /// True if the inbox is certainly held.
    pub(super) fn is_held(&self, now: Now) -> bool {
        let until = *lock(&self.trusted_until);
        until.is_some_and(|until| now.is_before(until) || breaks("inbox-trusted-for-ever"))
    }

    /// Records an iteration of the poll loop. Returns the maximum time until the next one, also when all slots are
    /// busy.
    pub(super) fn heartbeat(&self) -> Duration {
        self.has_heartbeat.store(true, SeqCst);
        self.options.renew_every / 2
    }

    /// Records that the inbox was not empty.
    pub(super) fn mark_busy(&self) {
        self.is_busy.store(true, SeqCst);
    }

    /// Waits until the worker id was lost.
    pub(super) async fn lost(&self) -> Error {
        self.lost.cancelled().await;
        let worker = self.worker();
        let message = format!(
            "lease on the inbox of worker `{worker}` was lost: taken by another process, broken or deleted"
        );
        Error::new(Kind::Lost, message)
    }

    /// Renews the lease until the worker stops, or the lease is lost.
    pub(super) async fn renew_until_closed(self: Arc<Self>, mut held: HeldLease, slots: Slots) {
        let host = self.queue.client().host().clone();
        let (usual, soon) = (self.options.renew_every, self.options.renew_every / SOON_PART);
        let seldom = (usual * 2).min(self.options.ttl.saturating_sub(LEFT_MIN)).max(usual);
        let mut pause = usual;
        loop {
            let sleep = host.sleep(pause.mul_f64(0.9) + host.random_below(pause / 10));
            if let Either::Right(_) = select(sleep, Box::pin(slots.closed())).await {
                // What is not finished in time is left to other workers.
                select(Box::pin(self.release(held)), host.sleep(usual)).await;
                return;
            }
            if !self.has_heartbeat.swap(false, SeqCst) {
                pause = soon;
                continue;
            }
            pause = match host.in_time(usual / 2, self.leases.renew(&mut held)).await {
                Ok(Renewed::Kept) => {
                    self.set_trusted_until(Some(held.lease.expires_at));
                    if self.is_busy.swap(false, SeqCst) { usual } else { seldom }
                }
                Ok(Renewed::Lost) => {
                    self.set_trusted_until(None);
                    self.lost.cancel();
                    return tracing::error!(worker = %self.worker(), "worker id was lost, stopping all tasks");
                }
                Err(error) => {
                    self.queue.client().request_failed("renew the lease on the inbox", &error);
                    // The next attempt does not wait for the poll loop.
                    self.has_heartbeat.store(true, SeqCst);
                    soon
                }
            };
        }
    }

    /// Releases the lease, and moves the remaining entries to the overflow.
    async fn release(&self, held: HeldLease) {
        self.set_trusted_until(None);
        let key = held.key.clone();
        if let Err(error) = self.leases.release(held).await {
            tracing::warn!(%key, %error, "failed to release lease");
        }
        if let Err(error) = self.queue.empty_inbox(self.worker(), None).await {
            tracing::warn!(%error, "failed to empty inbox, other workers will do it");
        }
    }

    fn set_trusted_until(&self, until: Option<StoreTime>) {
        *lock(&self.trusted_until) = until;
    }
}
