//! A worker's own inbox, and the lease on it: whoever holds that has the worker's name.
//!
//! Producers put pointers to new tasks into it for as long as the lease is held. It is renewed from a thread that no handler
//! can starve, but only while the poll loop turns: a worker that hangs does not keep its inbox. A worker that stops gives
//! the lease back and empties the inbox, so that others go on at once. One that finds its name with someone else stops all
//! that it does.
//!
//! Requests: 1 put for a renewal. When it starts 1 put, and 1 get and 1 put more if the name was used before; when it stops
//! 1 put, 1 get and 1 list, and what it takes to move what is left.

use futures::future::{Either, select};
use leasehold_core::{Error, HexName, Holder, Kind, Matter, Now, Result, StoreTime, WorkerId, keys};
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

/// A renewal that failed, or that a hung poll loop holds up, is tried again after this part of the usual pause.
const SOON_PART: u32 = 8;
/// So much of a lease is left when it is renewed, also while nothing comes in: a try may fail, and the next one be slow.
const LEFT_MIN: Duration = Duration::from_secs(15);

/// The inbox of this worker, as all of its parts know it.
#[derive(Debug)]
pub(crate) struct Inbox {
    queue: Queue,
    leases: Leases,
    options: InboxLease,
    /// Until when the inbox is ours beyond doubt.
    until: Mutex<Option<StoreTime>>,
    has_turned: AtomicBool,
    is_busy: AtomicBool,
    is_lost: AtomicBool,
}

impl Inbox {
    /// Takes the name; fails if someone else has it.
    pub(crate) async fn open(queue: Queue, id: &WorkerId, options: InboxLease) -> Result<(Self, HeldLease)> {
        let instance = HexName::from_random(queue.client().host().random_bits());
        let holder = Holder { worker_id: id.clone(), instance, ttl: options.ttl };
        let leases = Leases::new(queue.client().clone(), holder)?;
        let held = match leases.take(&keys::inbox_lease(id), &worker_subject(id), None).await? {
            Taken::Ours(held) => held,
            Taken::Others(lease) => {
                let message = format!("worker id \"{id}\" is in use until {}", lease.expires_at);
                return Err(Error::new(Kind::Unavailable, message).about(Matter::Conflict));
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

    /// Whether it is ours, beyond doubt.
    pub(crate) fn is_ours(&self, now: Now) -> bool {
        let until = *self.until.lock().unwrap_or_else(PoisonError::into_inner);
        until.is_some_and(|until| now.is_before(until) || breaks(Rule::InboxTrustedForEver))
    }

    /// The poll loop turns. It does so at least this often, also when all slots are taken for long.
    pub(crate) fn turn(&self) -> Duration {
        self.has_turned.store(true, SeqCst);
        self.options.renew_every / 2
    }

    /// There was something in it.
    pub(crate) fn found_something(&self) {
        self.is_busy.store(true, SeqCst);
    }

    /// An error if the name went to someone else.
    pub(crate) fn check(&self) -> Result<()> {
        if !self.is_lost.load(SeqCst) {
            return Ok(());
        }
        let worker = self.worker();
        let message = format!("worker id \"{worker}\" was lost: another process has taken it, and its inbox");
        Err(Error::new(Kind::Lost, message))
    }

    /// Keeps the name until the worker stops, and makes it stop when the name is lost.
    pub(crate) async fn keep(&self, mut held: HeldLease, shutdown: Shutdown) {
        let host = self.queue.client().host().clone();
        let (usual, soon) = (self.options.renew_every, self.options.renew_every / SOON_PART);
        let seldom = (usual * 2).min(self.options.ttl.saturating_sub(LEFT_MIN)).max(usual);
        let mut pause = usual;
        loop {
            let asleep = host.sleep(pause.mul_f64(0.9) + host.random_below(pause / 10));
            if let Either::Right(_) = select(asleep, Box::pin(shutdown.reached(Stage::Drain))).await {
                // What it does not do in time is left to others.
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
                Either::Right(_) => Err(Error::new(Kind::Unavailable, "no answer yet")),
            };
            pause = match renewed {
                Ok(Renewed::Kept) => {
                    self.trust(Some(held.lease().expires_at));
                    if self.is_busy.swap(false, SeqCst) { usual } else { seldom }
                }
                Ok(Renewed::Lost) => {
                    self.trust(None);
                    self.is_lost.store(true, SeqCst);
                    tracing::error!("worker id \"{}\" was lost: all that it runs is stopped", self.worker());
                    return shutdown.abort();
                }
                Err(error) => {
                    request_failed(self.queue.client(), "renew the lease on the inbox", &error);
                    // The next try needs no turn of its own.
                    self.has_turned.store(true, SeqCst);
                    soon
                }
            };
        }
    }

    /// Gives the name back, and what is left in the inbox to everyone.
    async fn leave(&self, held: HeldLease) {
        self.trust(None);
        let key = held.key().to_owned();
        if let Err(error) = self.leases.release(held).await {
            tracing::warn!("`{key}` was not given back: {error}");
        }
        if let Err(error) = self.queue.rescue_inbox(self.worker()).await {
            tracing::warn!("what is left in the inbox waits until others find it: {error}");
        }
    }

    fn trust(&self, until: Option<StoreTime>) {
        *self.until.lock().unwrap_or_else(PoisonError::into_inner) = until;
    }
}
