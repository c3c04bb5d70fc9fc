//! Keeping what is held, from a thread that no handler can starve.
//!
//! Each claim is renewed at a third of its lease. Whatever happens — no answer, a slow answer, a machine that slept —
//! the claim is trusted only while even the latest possible present is before its last *confirmed* expiry; after that
//! the handler is told to stop, and nothing more is written in its name.

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

use crate::hold::{Hold, Stop};
use crate::run::request_failed;

/// A claim under way.
#[derive(Debug)]
pub struct Held {
    /// The run that it is for.
    pub hold: Arc<Hold>,
    claimed: tokio::sync::Mutex<Claimed>,
}

impl Held {
    /// A claim that was just made.
    #[must_use]
    pub fn new(claimed: Claimed) -> Arc<Self> {
        let hold = Hold::new(claimed.task().id);
        Arc::new(Self { hold, claimed: tokio::sync::Mutex::new(claimed) })
    }

    /// The claim, for settling it. Whoever holds the lock keeps the renewal out.
    pub async fn claim(&self) -> tokio::sync::MutexGuard<'_, Claimed> {
        self.claimed.lock().await
    }
}

/// Renews everything that comes in, until the sender is gone and all of it has ended.
pub async fn run(queue: Queue, lease: Duration, mut claims: mpsc::UnboundedReceiver<Arc<Held>>) {
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
            // Nothing new will come: see to it that what is held ends.
            Either::Left((None, _)) => return kept.for_each(|()| async {}).await,
            Either::Right(_) => {}
        }
    }
}

async fn keep(queue: Queue, lease: Duration, held: Arc<Held>) {
    let (host, run) = (queue.client().host().clone(), &held.hold);
    let mut pause = lease / 3;
    let mut expires_at = held.claim().await.expires_at();
    loop {
        // An answer may have come so late that little is left of the claim, or nothing.
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
                tracing::warn!(task = %run.id, "the claim ran out before its renewal was confirmed");
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
                tracing::warn!(task = %run.id, "the claim was lost");
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

/// How long the claim can still be trusted; nothing if it cannot.
pub(crate) fn time_left(queue: &Queue, expires_at: StoreTime) -> Option<Duration> {
    if breaks(Rule::ClaimTrustedForEver) {
        return Some(Duration::from_hours(1));
    }
    let now = queue.now().ok()?;
    now.is_before(expires_at).then(|| expires_at.since(now.latest))
}
