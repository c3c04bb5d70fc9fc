//! Renewing claims, on a thread that handlers cannot block.
//!
//! A claim is trusted only while even the latest possible current time is before its last *confirmed* expiry, whatever
//! happens: no answer, a slow answer, a machine that was suspended. After that the handler has to stop, and nothing
//! more is written for this claim.

use futures::StreamExt;
use futures::future::{Either, select};
use futures::stream::FuturesUnordered;
use leasehold_queue::source::{ClaimStatus, SourceStatus, next_or};
use leasehold_store::{Host, HostExt};
use std::sync::Arc;
use tokio::sync::mpsc;

use crate::run_handle::{RunHandle, Stop};

/// Fraction of the usual interval after which a failed renewal is tried again, at most.
const RETRY_PART: u32 = 4;

/// Renews the claims of all runs that are received, until the sender is dropped and all of them have ended.
pub(crate) async fn run(
    host: Arc<dyn Host>,
    status: Arc<dyn SourceStatus>,
    mut runs: mpsc::UnboundedReceiver<Arc<RunHandle>>,
) {
    let mut renewals = FuturesUnordered::new();
    loop {
        match next_or(&mut renewals, Box::pin(runs.recv())).await {
            Either::Left(()) => {}
            Either::Right(Some(run)) => {
                renewals.push(Box::pin(renew(host.clone(), status.clone(), run)));
            }
            // No more runs will come: renew the claims until they end.
            Either::Right(None) => return renewals.for_each(|()| async {}).await,
        }
    }
}

async fn renew(host: Arc<dyn Host>, status: Arc<dyn SourceStatus>, run: Arc<RunHandle>) {
    let (mut pause, mut time_left) = {
        let claimed = run.claim.lock().await;
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
        let mut claimed = run.claim.lock().await;
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
