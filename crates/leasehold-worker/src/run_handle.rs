//! Handle of one run of a task: its claim, the signal that stops its handler, and the handler's progress.

use futures::FutureExt;
use leasehold_core::TaskId;
use leasehold_queue::source::ClaimedTask;
use leasehold_store::host::lock;
use serde_json::Value;
use std::pin::pin;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use tokio::sync::Notify;

use crate::renew::Renewals;

/// Reason why a handler has to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The task was cancelled.
    Cancelled,
    /// The claim was lost, or can no longer be trusted: nothing may be written.
    Lost,
    /// The worker stops.
    Shutdown,
    /// The handler has exceeded the task's time limit.
    TimedOut,
    /// The claim has ended and needs no more renewals.
    Settled,
}

/// A run in progress.
#[derive(Debug)]
pub(crate) struct RunHandle {
    /// The task.
    pub(crate) id: TaskId,
    /// The claim. It is renewed or settled only under this lock, so that no renewal happens while it is settled.
    pub(crate) claim: tokio::sync::Mutex<Box<dyn ClaimedTask>>,
    stop: Mutex<Option<Stop>>,
    /// Notified when there is a reason to stop, or another one. Not a `watch`: that one is eight times as large, and wakes
    /// in random order.
    stop_changed: Notify,
    phase: Mutex<Phase>,
    phase_changed: Notify,
    progress: Mutex<Progress>,
    renewals: Arc<Renewals>,
    is_renewal_requested: AtomicBool,
    renewal_requested: Notify,
}

/// Phase of a run. The time limit of a handler counts only while it runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Phase {
    #[default]
    Staging,
    Running,
    Publishing,
}

/// Progress of a handler.
#[derive(Debug, Default)]
struct Progress {
    /// Value that the next renewal records.
    next: Option<Value>,
    /// True if a value was recorded, or may have been.
    is_written: bool,
}

impl RunHandle {
    /// Creates the handle of a run that is about to begin.
    pub(crate) fn new(claimed: Box<dyn ClaimedTask>, renewals: Arc<Renewals>) -> Arc<Self> {
        Arc::new(Self {
            id: claimed.task().id,
            claim: tokio::sync::Mutex::new(claimed),
            stop: Mutex::default(),
            stop_changed: Notify::new(),
            phase: Mutex::default(),
            phase_changed: Notify::new(),
            progress: Mutex::default(),
            renewals,
            is_renewal_requested: AtomicBool::new(false),
            renewal_requested: Notify::new(),
        })
    }

    /// Asks the handler to stop; the first reason counts.
    pub(crate) fn stop(&self, reason: Stop) {
        let mut stop = lock(&self.stop);
        if stop.is_none() {
            *stop = Some(reason);
            self.stop_changed.notify_waiters();
        }
    }

    /// Reason why the handler has to stop, if it has to.
    pub(crate) fn stop_reason(&self) -> Option<Stop> {
        *lock(&self.stop)
    }

    /// Waits until the handler has to stop.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when the future is dropped.
    pub(crate) async fn until_stopped(&self) -> Stop {
        when(&self.stop_changed, || self.stop_reason()).await
    }

    /// Marks the claim as ended, whatever the reason to stop was before.
    pub(crate) fn mark_settled(&self) {
        *lock(&self.stop) = Some(Stop::Settled);
        self.stop_changed.notify_waiters();
    }

    /// True if the claim was lost or settled and needs no renewal. A cancelled one does, until its handler has
    /// stopped.
    pub(crate) fn is_ended(&self) -> bool {
        self.stop_reason().is_some_and(is_end)
    }

    /// Waits until the claim needs no more renewals.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when the future is dropped.
    pub(crate) async fn until_ended(&self) {
        when(&self.stop_changed, || self.is_ended().then_some(())).await;
    }

    pub(crate) fn phase(&self) -> Phase {
        *lock(&self.phase)
    }

    pub(crate) fn set_phase(&self, phase: Phase) {
        *lock(&self.phase) = phase;
        self.phase_changed.notify_waiters();
    }

    /// Waits until the handler is started, and its artifacts were staged.
    pub(crate) async fn until_started(&self) {
        when(&self.phase_changed, || (self.phase() != Phase::Staging).then_some(())).await;
    }

    /// Asks for a renewal ahead of the usual interval.
    pub(crate) fn request_renewal(&self) {
        self.is_renewal_requested.store(true, Relaxed);
        self.renewal_requested.notify_one();
        self.renewals.hurry();
    }

    pub(crate) fn is_renewal_requested(&self) -> bool {
        self.is_renewal_requested.load(Relaxed)
    }

    /// Waits until an early renewal is asked for.
    pub(crate) async fn renewal_requested(&self) {
        self.renewal_requested.notified().await;
        self.is_renewal_requested.store(false, Relaxed);
    }

    /// True if an early renewal was asked for since the last one.
    pub(crate) fn take_renewal_request(&self) -> bool {
        self.renewal_requested().now_or_never().is_some()
    }

    /// Progress that the handler has reported since the last call.
    pub(crate) fn take_progress(&self) -> Option<Value> {
        let mut progress = lock(&self.progress);
        let next = progress.next.take();
        progress.is_written |= next.is_some();
        next
    }

    pub(crate) fn set_progress(&self, progress: Value) {
        lock(&self.progress).next = Some(progress);
    }

    /// Discards the progress so far. If some was recorded already, it is cleared soon.
    pub(crate) fn clear_progress(&self) {
        let mut progress = lock(&self.progress);
        progress.next = None;
        if std::mem::take(&mut progress.is_written) {
            progress.next = Some(Value::Null);
            self.request_renewal();
        }
    }
}

/// Waits until a state, of whose changes `changed` is notified, gives something.
async fn when<T>(changed: &Notify, find: impl Fn() -> Option<T>) -> T {
    loop {
        let mut next = pin!(changed.notified());
        // A change after the state was read is not missed.
        next.as_mut().enable();
        if let Some(found) = find() {
            return found;
        }
        next.await;
    }
}

fn is_end(stop: Stop) -> bool {
    matches!(stop, Stop::Lost | Stop::Settled)
}
