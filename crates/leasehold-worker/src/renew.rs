//! Renewing claims, on a thread that handlers cannot block.
//!
//! A claim is trusted only while even the latest possible current time is before its last *confirmed* expiry, whatever
//! happens: no answer, a slow answer, a machine that was suspended. After that the handler has to stop, and nothing
//! more is written for this claim.

use futures::StreamExt;
use futures::future::{Either, select};
use futures::stream::FuturesUnordered;
use leasehold_queue::source::{ClaimStatus, ClaimedTask, SourceStatus, next_or};
use leasehold_store::{Host, HostExt};
use std::sync::Arc;
use tokio::sync::{Mutex, MutexGuard, mpsc};

use crate::run_handle::{RunHandle, Stop};

/// Fraction of the usual interval after which a failed renewal is tried again, at most.
const RETRY_PART: u32 = 4;

/// A claim whose task is running.
#[derive(Debug)]
pub(crate) struct ActiveClaim {
    /// Handle of the run.
    pub(crate) run: Arc<RunHandle>,
    claimed: Mutex<Box<dyn ClaimedTask>>,
}

impl ActiveClaim {
    /// Creates an active claim from a new claim.
    pub(crate) fn new(claimed: Box<dyn ClaimedTask>) -> Arc<Self> {
        let run = RunHandle::new(claimed.task().id);
        Arc::new(Self { run, claimed: Mutex::new(claimed) })
    }

    /// Locks the claim for settling it. No renewal happens while the lock is held.
    pub(crate) async fn lock(&self) -> MutexGuard<'_, Box<dyn ClaimedTask>> {
        self.claimed.lock().await
    }
}

/// Renews all claims that are received, until the sender is dropped and all of them have ended.
pub(crate) async fn run(
    host: Arc<dyn Host>,
    status: Arc<dyn SourceStatus>,
    mut claims: mpsc::UnboundedReceiver<Arc<ActiveClaim>>,
) {
    let mut renewals = FuturesUnordered::new();
    loop {
        match next_or(&mut renewals, Box::pin(claims.recv())).await {
            Either::Left(()) => {}
            Either::Right(Some(active)) => {
                renewals.push(Box::pin(renew(host.clone(), status.clone(), active)));
            }
            // No more claims will come: renew the held ones until they end.
            Either::Right(None) => return renewals.for_each(|()| async {}).await,
        }
    }
}

async fn renew(host: Arc<dyn Host>, status: Arc<dyn SourceStatus>, active: Arc<ActiveClaim>) {
    let run = &active.run;
    let (mut pause, mut time_left) = {
        let claimed = active.lock().await;
        (claimed.renew_every(), claimed.time_left())
    };
    loop {
        // An answer may have come so late that the claim has expired, or soon will.
        let Some(left) = time_left else { return run.stop(Stop::Lost) };
        let due = Box::pin(select(host.sleep(pause.min(left)), Box::pin(run.renewal.notified())));
        let is_requested = match select(Box::pin(run.until_ended()), due).await {
            Either::Left(_) => return,
            Either::Right((due, _)) => matches!(due, Either::Right(_)),
        };
        let mut claimed = active.lock().await;
        if run.is_ended() {
            return;
        }
        let Some(left) = claimed.time_left() else { return run.stop(Stop::Lost) };
        let renewal = claimed.renew(run.take_progress(), is_requested);
        let renewed = match select(renewal, host.sleep(left)).await {
            Either::Left((renewed, _)) => renewed,
            Either::Right(_) => {
                tracing::warn!(task = %run.id, "claim expired before its renewal was confirmed");
                return run.stop(Stop::Lost);
            }
        };
        pause = claimed.renew_every();
        match renewed {
            Ok(ClaimStatus::Held) => {}
            Ok(ClaimStatus::Cancelled) => run.stop(Stop::Cancelled),
            Ok(ClaimStatus::Lost) => {
                tracing::warn!(task = %run.id, "claim was lost");
                return run.stop(Stop::Lost);
            }
            Err(error) => {
                status.request_failed("renew a claim", &error);
                pause = host.random_below(pause / RETRY_PART);
            }
        }
        time_left = claimed.time_left();
    }
}
