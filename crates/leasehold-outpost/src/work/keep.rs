//! Keeping what is held, from a thread that no handler can starve.
//!
//! A holder is heard of every minute, and looks every few seconds whether it still is the holder: that writes nothing, and
//! a task that was called off or taken away is stopped soon.

use futures::StreamExt;
use futures::future::{BoxFuture, Either, select};
use futures::stream::FuturesUnordered;
use leasehold_core::limits::{DISK_HEARTBEAT, DISK_LEASE_STALE};
use leasehold_core::{Error, Kind, Result};
use leasehold_store::{Host, HostExt};
use leasehold_worker::{Hold, Stop};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, MutexGuard, mpsc};

use crate::spool::{Beat, Held, Spool};

/// How often a holder looks whether it still is one.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// A lease under way.
#[derive(Debug)]
pub(super) struct Kept {
    /// The run that it is for.
    pub(super) hold: Arc<Hold>,
    held: Mutex<Held>,
}

impl Kept {
    pub(super) fn new(held: Held) -> Arc<Self> {
        Arc::new(Self { hold: Hold::new(held.task.id), held: Mutex::new(held) })
    }

    /// The lease, for settling it. Whoever holds the lock keeps the heartbeat out.
    pub(super) async fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().await
    }

    /// Is heard of, or only looks; tells the handler what there is to tell. False if that has failed.
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
        let beat: Result<(Beat, Held)> = beat.await;
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

    /// Something about the lease went wrong. Always false.
    pub(super) fn heard(&self, error: &Error) -> bool {
        if error.kind() == Kind::Lost {
            self.hold.stop(Stop::Lost);
        }
        tracing::warn!(task = %self.hold.id, "{error}");
        false
    }
}

/// Keeps everything that comes in, until the sender is gone and all of it has ended.
pub(super) async fn run(spool: Spool, host: Arc<dyn Host>, mut leases: mpsc::UnboundedReceiver<Arc<Kept>>) {
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
            // Nothing new will come: see to it that what is held ends.
            Either::Left((None, _)) => return kept.for_each(|()| async {}).await,
            Either::Right(_) => {}
        }
    }
}

async fn keep(spool: Spool, host: Arc<dyn Host>, kept: Arc<Kept>) {
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
            // Anybody may have it now.
            kept.hold.stop(Stop::Lost);
            return;
        }
    }
}
