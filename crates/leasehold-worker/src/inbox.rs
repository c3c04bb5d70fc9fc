//! A worker's own inbox, and the lease on it. The holder of the lease has the worker id.
//!
//! Producers put pointers to new tasks into the inbox as long as the lease is held. It is renewed on a thread that
//! handlers cannot block, but only while the poll loop runs: a worker that hangs does not keep its inbox. A worker
//! that stops releases the lease and empties the inbox, so that other workers continue at once. A worker whose id was
//! taken by another process stops everything.
//!
//! Requests: 1 put per renewal. A start is 1 put, and 1 get and 1 put more if the id was used before. A stop is 1
//! put, 1 get and 1 list, and those of moving the remaining pointers.

use futures::future::{Either, select};
use leasehold_core::{Error, HexName, Holder, Kind, Now, Reason, Result, StoreTime, WorkerId, keys};
use leasehold_queue::Queue;
use leasehold_queue::lease::{HeldLease, Leases, Renewed, Taken, worker_subject};
use leasehold_store::HostExt;
use leasehold_store::mutant::{Rule, breaks};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::options::InboxLease;
use crate::run::request_failed;
use crate::shutdown::{Shutdown, Stage};

/// Fraction of the usual pause after which a renewal is retried that failed, or that waits for the poll loop.
const SOON_PART: u32 = 8;
/// Minimum time left of a lease when it is renewed, also while idle: one attempt may fail, and the next one be slow.
const LEFT_MIN: Duration = Duration::from_secs(15);

/// The inbox of this worker, shared by all of its parts.
#[derive(Debug)]
pub(crate) struct Inbox {
    queue: Queue,
    leases: Leases,
    options: InboxLease,
    /// Time until which the inbox is certainly held.
    until: Mutex<Option<StoreTime>>,
    has_turned: AtomicBool,
    is_busy: AtomicBool,
    is_lost: AtomicBool,
}

impl Inbox {
    /// Takes the lease on the worker id; fails if another process has it.
    pub(crate) async fn open(queue: Queue, id: &WorkerId, options: InboxLease) -> Result<(Self, HeldLease)> {
        let instance = HexName::from_random(queue.client().host().random_bits());
        let holder = Holder { worker_id: id.clone(), instance, ttl: options.ttl };
        let leases = Leases::new(queue.client().clone(), holder)?;
        let held = match leases.take(&keys::inbox_lease(id), &worker_subject(id), None).await? {
            Taken::Ours(held) => held,
            Taken::Others(lease) => {
                let message = format!(
                    "worker id \"{id}\" is in use until {}; wait, or choose another",
                    lease.expires_at
                );
                return Err(Error::new(Kind::Unavailable, message).about(Reason::Conflict));
            }
        };
        let inbox = Self {
            queue,
            leases,
            options,
            until: Mutex::new(Some(held.lease().expires_at)),
            has_turned: AtomicBool::new(true),
            is_busy: AtomicBool::new(true),
            is_lost: AtomicBool::new(false),
        };
        Ok((inbox, held))
    }

    pub(crate) fn worker(&self) -> &WorkerId {
        &self.leases.holder().worker_id
    }

    /// True if the inbox is certainly held.
    pub(crate) fn is_ours(&self, now: Now) -> bool {
        let until = *self.until.lock().unwrap_or_else(PoisonError::into_inner);
        until.is_some_and(|until| now.is_before(until) || breaks(Rule::InboxTrustedForEver))
    }

    /// Notes an iteration of the poll loop. Returns the maximum time until the next one, also when all slots are
    /// busy.
    pub(crate) fn turn(&self) -> Duration {
        self.has_turned.store(true, SeqCst);
        self.options.renew_every / 2
    }

    /// Notes that the inbox was not empty.
    pub(crate) fn found_something(&self) {
        self.is_busy.store(true, SeqCst);
    }

    /// Returns an error if the worker id was lost.
    pub(crate) fn check(&self) -> Result<()> {
        if !self.is_lost.load(SeqCst) {
            return Ok(());
        }
        let worker = self.worker();
        let message = format!("worker id \"{worker}\" was taken by another process, with its inbox");
        Err(Error::new(Kind::Lost, message))
    }

    /// Renews the lease until the worker stops, and stops the worker if the lease is lost.
    pub(crate) async fn keep(&self, mut held: HeldLease, shutdown: Shutdown) {
        let host = self.queue.client().host().clone();
        let (usual, soon) = (self.options.renew_every, self.options.renew_every / SOON_PART);
        let seldom = (usual * 2).min(self.options.ttl.saturating_sub(LEFT_MIN)).max(usual);
        let mut pause = usual;
        loop {
            let asleep = host.sleep(pause.mul_f64(0.9) + host.random_below(pause / 10));
            if let Either::Right(_) = select(asleep, Box::pin(shutdown.reached(Stage::Drain))).await {
                // What is not finished in time is left to other workers.
                select(Box::pin(self.leave(held)), host.sleep(usual)).await;
                return;
            }
            if !self.has_turned.swap(false, SeqCst) {
                pause = soon;
                continue;
            }
            let renewal = Box::pin(self.leases.renew(&mut held));
            let renewed = match select(renewal, host.sleep(usual / 2)).await {
                Either::Left((renewed, _)) => renewed,
                Either::Right(_) => Err(Error::new(Kind::Unavailable, "renewal timed out")),
            };
            pause = match renewed {
                Ok(Renewed::Kept) => {
                    self.trust(Some(held.lease().expires_at));
                    if self.is_busy.swap(false, SeqCst) { usual } else { seldom }
                }
                Ok(Renewed::Lost) => {
                    self.trust(None);
                    self.is_lost.store(true, SeqCst);
                    tracing::error!(worker = %self.worker(), "worker id was lost, stopping all tasks");
                    return shutdown.abort();
                }
                Err(error) => {
                    request_failed(self.queue.client(), "renew the lease on the inbox", &error);
                    // The next attempt does not wait for the poll loop.
                    self.has_turned.store(true, SeqCst);
                    soon
                }
            };
        }
    }

    /// Releases the lease, and moves the remaining pointers to the overflow.
    async fn leave(&self, held: HeldLease) {
        self.trust(None);
        let key = held.key().to_owned();
        if let Err(error) = self.leases.release(held).await {
            tracing::warn!(%key, %error, "failed to release lease");
        }
        if let Err(error) = self.queue.rescue_inbox(self.worker()).await {
            tracing::warn!(%error, "failed to empty inbox, other workers will do it");
        }
    }

    fn trust(&self, until: Option<StoreTime>) {
        *self.until.lock().unwrap_or_else(PoisonError::into_inner) = until;
    }
}
