//! Keeping what is held, from a thread that no handler can starve.
//!
//! Each claim is renewed at a third of its lease. Whatever happens — no answer, a slow answer, a machine that slept —
//! the claim is trusted only while even the latest possible present is before its last *confirmed* expiry; after that
//! the handler is told to stop, and nothing more is written in its name.

use futures::StreamExt;
use futures::future::{BoxFuture, Either, select};
use futures::stream::FuturesUnordered;
use leasehold_core::{StoreTime, TaskId};
use leasehold_queue::{Claimed, Queue, Renewal};
use leasehold_store::HostExt;
use leasehold_store::mutant::{Rule, breaks};
use serde_json::Value;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, mpsc, watch};

/// Why a handler has to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// Someone has called the task off.
    Cancelled,
    /// The claim is lost, or cannot be trusted any more: nothing may be written.
    Lost,
    /// The worker stops.
    Shutdown,
    /// It has run for longer than the task allows.
    TimedOut,
    /// The claim has ended: there is nothing to renew any more.
    Settled,
}

/// A claim under way.
#[derive(Debug)]
pub struct Held {
    /// The task.
    pub id: TaskId,
    claimed: tokio::sync::Mutex<Claimed>,
    stop: watch::Sender<Option<Stop>>,
    progress: Mutex<Progress>,
    hurry: Notify,
}

/// How far a handler is.
#[derive(Debug, Default)]
struct Progress {
    /// What the next renewal writes down.
    next: Option<Value>,
    /// Something was written down, or may have been.
    is_written: bool,
}

impl Held {
    /// A claim that was just made.
    #[must_use]
    pub fn new(claimed: Claimed) -> Arc<Self> {
        Arc::new(Self {
            id: claimed.task().id,
            claimed: tokio::sync::Mutex::new(claimed),
            stop: watch::Sender::new(None),
            progress: Mutex::default(),
            hurry: Notify::new(),
        })
    }

    /// Tells the handler to stop; the first reason counts.
    pub fn stop(&self, why: Stop) {
        self.stop.send_if_modified(|stop| {
            let first = stop.is_none();
            if first {
                *stop = Some(why);
            }
            first
        });
    }

    /// Why the handler has to stop, if it has to.
    #[must_use]
    pub fn stopped(&self) -> Option<Stop> {
        *self.stop.borrow()
    }

    /// Waits until the handler has to stop.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when the future is dropped.
    pub async fn until_stopped(&self) -> Stop {
        let mut changes = self.stop.subscribe();
        // The sender lives in `self`, so the wait cannot fail.
        let stop = changes.wait_for(Option::is_some).await;
        stop.ok().and_then(|stop| *stop).unwrap_or(Stop::Lost)
    }

    /// The claim, for settling it. Whoever holds the lock keeps the renewal out.
    pub async fn claim(&self) -> tokio::sync::MutexGuard<'_, Claimed> {
        self.claimed.lock().await
    }

    pub(crate) fn set_progress(&self, progress: Value) {
        self.progress().next = Some(progress);
    }

    /// What was said so far means nothing any more. If it was written down already, that is put right soon.
    pub(crate) fn clear_progress(&self) {
        let mut progress = self.progress();
        progress.next = None;
        if std::mem::take(&mut progress.is_written) {
            progress.next = Some(Value::Null);
            self.hurry();
        }
    }

    pub(crate) fn hurry(&self) {
        self.hurry.notify_one();
    }

    fn take_progress(&self) -> Option<Value> {
        let mut progress = self.progress();
        let next = progress.next.take();
        progress.is_written |= next.is_some();
        next
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
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
    let host = queue.client().host().clone();
    let mut pause = lease / 3;
    let mut expires_at = held.claim().await.expires_at();
    loop {
        // An answer may have come so late that little is left of the claim, or nothing.
        let Some(left) = time_left(&queue, expires_at) else {
            held.stop(Stop::Lost);
            return;
        };
        let due = Box::pin(select(host.sleep(pause.min(left)), Box::pin(held.hurry.notified())));
        if let Either::Left(_) = select(Box::pin(held.until_ended()), due).await {
            return;
        }
        let mut claimed = held.claimed.lock().await;
        if held.is_ended() {
            return;
        }
        let Some(left) = time_left(&queue, claimed.expires_at()) else {
            held.stop(Stop::Lost);
            return;
        };
        let renewal = Box::pin(queue.renew(&claimed, lease, held.take_progress()));
        let renewed = match select(renewal, host.sleep(left)).await {
            Either::Left((renewed, _)) => renewed,
            Either::Right(_) => {
                tracing::warn!(task = %held.id, "the claim ran out before its renewal was confirmed");
                held.stop(Stop::Lost);
                return;
            }
        };
        match renewed {
            Ok(Renewal::Kept(kept)) => {
                if kept.cancel_requested() {
                    held.stop(Stop::Cancelled);
                }
                *claimed = *kept;
                expires_at = claimed.expires_at();
                pause = lease / 3;
            }
            Ok(Renewal::Lost) => {
                tracing::warn!(task = %held.id, "the claim was lost");
                held.stop(Stop::Lost);
                return;
            }
            Err(error) => {
                tracing::warn!(task = %held.id, "the claim could not be renewed: {error}");
                pause = host.random_below(lease / 12);
            }
        }
    }
}

impl Held {
    /// Lost and settled claims need no renewal; cancelled ones do, until their handler has stopped.
    fn is_ended(&self) -> bool {
        matches!(self.stopped(), Some(Stop::Lost | Stop::Settled))
    }

    async fn until_ended(&self) {
        let mut changes = self.stop.subscribe();
        let _ = changes.wait_for(|stop| matches!(stop, Some(Stop::Lost | Stop::Settled))).await;
    }

    /// The claim has ended, whatever was said before.
    pub(crate) fn settled(&self) {
        self.stop.send_replace(Some(Stop::Settled));
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
