//! Heartbeats of running tasks, on a thread that no handler can starve.
//!
//! A holder renews its lease every minute, and checks every few seconds whether it still holds it: a check writes nothing, and
//! a task that was cancelled or revoked is stopped soon.

use futures::StreamExt;
use futures::future::{BoxFuture, Either, select};
use futures::stream::FuturesUnordered;
use leasehold_core::limits::{DISK_HEARTBEAT, DISK_LEASE_STALE};
use leasehold_core::{Error, Kind, Result};
use leasehold_store::{Host, HostExt};
use leasehold_worker::{RunHandle, Stop};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, MutexGuard, mpsc};

use crate::spool::{Beat, HeldTask, Spool};

/// Pause between two checks of a lease.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Lease of a running task.
#[derive(Debug)]
pub(super) struct RenewedLease {
    /// Run that the lease is for.
    pub(super) hold: Arc<RunHandle>,
    held: Mutex<HeldTask>,
}

impl RenewedLease {
    pub(super) fn new(held: HeldTask) -> Arc<Self> {
        Arc::new(Self { hold: RunHandle::new(held.task.id), held: Mutex::new(held) })
    }

    /// Locks the lease, for settling it. The lock keeps heartbeats out.
    pub(super) async fn held(&self) -> MutexGuard<'_, HeldTask> {
        self.held.lock().await
    }

    /// Renews the lease, or only checks it; stops the handler if the task was cancelled or lost. False if that has failed.
    pub(super) async fn beat(&self, spool: &Spool, host: &Arc<dyn Host>, is_heard: bool) -> bool {
        let mut held = self.held.lock().await;
        if self.hold.is_ended() {
            return true;
        }
        let (spool, mut ours) = (spool.clone(), held.clone());
        let beat = host.blocking(move || {
            let beat = if is_heard { spool.heartbeat(&mut ours)? } else { spool.standing(&ours)? };
            Ok((beat, ours))
        });
        let beat: Result<(Beat, HeldTask)> = beat.await;
        match beat {
            Ok((beat, ours)) => {
                *held = ours;
                if beat.cancelled {
                    self.hold.stop(Stop::Cancelled);
                }
                true
            }
            Err(error) => self.heard(&error),
        }
    }

    /// Logs an error, and stops the run if its lease is lost. Always returns false.
    pub(super) fn heard(&self, error: &Error) -> bool {
        if error.kind() == Kind::Lost {
            self.hold.stop(Stop::Lost);
        }
        tracing::warn!(task = %self.hold.id, %error, "failed to renew or check the lease");
        false
    }
}

/// Sends heartbeats for all leases it receives, until the sender is gone and all runs have ended.
pub(super) async fn run(
    spool: Spool,
    host: Arc<dyn Host>,
    mut leases: mpsc::UnboundedReceiver<Arc<RenewedLease>>,
) {
    let mut kept: FuturesUnordered<BoxFuture<'static, ()>> = FuturesUnordered::new();
    loop {
        let next = Box::pin(leases.recv());
        if kept.is_empty() {
            match next.await {
                Some(lease) => kept.push(Box::pin(keep(spool.clone(), host.clone(), lease))),
                None => return,
            }
            continue;
        }
        match select(next, kept.next()).await {
            Either::Left((Some(lease), _)) => kept.push(Box::pin(keep(spool.clone(), host.clone(), lease))),
            // No more leases will come: wait for the last runs to end.
            Either::Left((None, _)) => return kept.for_each(|()| async {}).await,
            Either::Right(_) => {}
        }
    }
}

async fn keep(spool: Spool, host: Arc<dyn Host>, kept: Arc<RenewedLease>) {
    let mut heard_of = host.instant();
    loop {
        let due = select(host.sleep(LOOK_EVERY), Box::pin(kept.hold.hurried()));
        let is_wished = match select(Box::pin(kept.hold.until_ended()), due).await {
            Either::Left(_) => return,
            Either::Right((due, _)) => matches!(due, Either::Right(_)),
        };
        let now = host.instant();
        let is_heard = is_wished || now.since(heard_of) >= DISK_HEARTBEAT;
        let is_well = kept.beat(&spool, &host, is_heard).await;
        if is_well && is_heard {
            heard_of = now;
        }
        if kept.hold.stopped() == Some(Stop::Lost) {
            return;
        }
        if host.instant().since(heard_of) > DISK_LEASE_STALE {
            // Any worker may have claimed the task now.
            kept.hold.stop(Stop::Lost);
            return;
        }
    }
}
