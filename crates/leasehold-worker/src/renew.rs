//! Renewing claims, on a thread that handlers cannot block.
//!
//! Each claim is renewed after a third of its lease. A claim is trusted only while even the latest possible current
//! time is before its last *confirmed* expiry, whatever happens: no answer, a slow answer, a machine that was
//! suspended. After that the handler has to stop, and nothing more is written for this claim.
//!
//! Requests: 1 put per renewal.

use futures::StreamExt;
use futures::future::{BoxFuture, Either, select};
use futures::stream::FuturesUnordered;
use leasehold_core::StoreTime;
use leasehold_queue::{Claimed, Queue, Renewal};
use leasehold_store::HostExt;
use leasehold_store::mutant::{Rule, breaks};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

use crate::run::request_failed;
use crate::run_handle::{RunHandle, Stop};

/// A claim whose task is running.
#[derive(Debug)]
pub struct ActiveClaim {
    /// Handle of the run.
    pub hold: Arc<RunHandle>,
    claimed: tokio::sync::Mutex<Claimed>,
}

impl ActiveClaim {
    /// Creates an active claim from a new claim.
    #[must_use]
    pub fn new(claimed: Claimed) -> Arc<Self> {
        let hold = RunHandle::new(claimed.task().id);
        Arc::new(Self { hold, claimed: tokio::sync::Mutex::new(claimed) })
    }

    /// Locks the claim for settling it. No renewal happens while the lock is held.
    pub async fn claim(&self) -> tokio::sync::MutexGuard<'_, Claimed> {
        self.claimed.lock().await
    }
}

/// Renews all claims that are received, until the sender is dropped and all of them have ended.
pub async fn run(queue: Queue, lease: Duration, mut claims: mpsc::UnboundedReceiver<Arc<ActiveClaim>>) {
    let mut kept: FuturesUnordered<BoxFuture<'static, ()>> = FuturesUnordered::new();
    loop {
        let next = Box::pin(claims.recv());
        if kept.is_empty() {
            match next.await {
                Some(held) => kept.push(Box::pin(keep(queue.clone(), lease, held))),
                None => return,
            }
            continue;
        }
        match select(next, kept.next()).await {
            Either::Left((Some(held), _)) => kept.push(Box::pin(keep(queue.clone(), lease, held))),
            // No more claims will come: renew the held ones until they end.
            Either::Left((None, _)) => return kept.for_each(|()| async {}).await,
            Either::Right(_) => {}
        }
    }
}

async fn keep(queue: Queue, lease: Duration, held: Arc<ActiveClaim>) {
    let (host, run) = (queue.client().host().clone(), &held.hold);
    let mut pause = lease / 3;
    let mut expires_at = held.claim().await.expires_at();
    loop {
        // An answer may have come so late that the claim has expired, or soon will.
        let Some(left) = time_left(&queue, expires_at) else {
            run.stop(Stop::Lost);
            return;
        };
        let due = Box::pin(select(host.sleep(pause.min(left)), Box::pin(run.hurried())));
        if let Either::Left(_) = select(Box::pin(run.until_ended()), due).await {
            return;
        }
        let mut claimed = held.claimed.lock().await;
        if run.is_ended() {
            return;
        }
        let Some(left) = time_left(&queue, claimed.expires_at()) else {
            run.stop(Stop::Lost);
            return;
        };
        let renewal = Box::pin(queue.renew(&claimed, lease, run.take_progress()));
        let renewed = match select(renewal, host.sleep(left)).await {
            Either::Left((renewed, _)) => renewed,
            Either::Right(_) => {
                tracing::warn!(task = %run.id, "claim expired before its renewal was confirmed");
                run.stop(Stop::Lost);
                return;
            }
        };
        match renewed {
            Ok(Renewal::Kept(kept)) => {
                if kept.cancel_requested() {
                    run.stop(Stop::Cancelled);
                }
                *claimed = *kept;
                expires_at = claimed.expires_at();
                pause = lease / 3;
            }
            Ok(Renewal::Lost) => {
                tracing::warn!(task = %run.id, "claim was lost");
                run.stop(Stop::Lost);
                return;
            }
            Err(error) => {
                request_failed(queue.client(), "renew a claim", &error);
                pause = host.random_below(lease / 12);
            }
        }
    }
}

/// Time for which the claim can still be trusted; none if it cannot.
pub(crate) fn time_left(queue: &Queue, expires_at: StoreTime) -> Option<Duration> {
    if breaks(Rule::ClaimTrustedForEver) {
        return Some(Duration::from_hours(1));
    }
    let now = queue.now().ok()?;
    now.is_before(expires_at).then(|| expires_at.since(now.latest))
}
