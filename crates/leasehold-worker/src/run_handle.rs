//! Handle of one run of a task: its claim, the signal that stops its handler, and the handler's progress.

use leasehold_core::TaskId;
use leasehold_queue::source::ClaimedTask;
use leasehold_store::host::lock;
use serde_json::Value;
use std::sync::{Arc, Mutex};
use tokio::sync::{Notify, watch};

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
    stop: watch::Sender<Option<Stop>>,
    progress: Mutex<Progress>,
    /// Notified of requests for an early renewal.
    pub(crate) renewal: Notify,
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
    pub(crate) fn new(claimed: Box<dyn ClaimedTask>) -> Arc<Self> {
        Arc::new(Self {
            id: claimed.task().id,
            claim: tokio::sync::Mutex::new(claimed),
            stop: watch::Sender::new(None),
            progress: Mutex::default(),
            renewal: Notify::new(),
        })
    }

    /// Asks the handler to stop; the first reason counts.
    pub(crate) fn stop(&self, reason: Stop) {
        self.stop.send_if_modified(|stop| {
            let first = stop.is_none();
            if first {
                *stop = Some(reason);
            }
            first
        });
    }

    /// Reason why the handler has to stop, if it has to.
    pub(crate) fn stop_reason(&self) -> Option<Stop> {
        *self.stop.borrow()
    }

    /// Waits until the handler has to stop.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when the future is dropped.
    pub(crate) async fn until_stopped(&self) -> Stop {
        let mut changes = self.stop.subscribe();
        // The sender lives in `self`, so the wait cannot fail.
        let stop = changes.wait_for(Option::is_some).await;
        stop.ok().and_then(|stop| *stop).unwrap_or(Stop::Lost)
    }

    /// Marks the claim as ended, whatever the reason to stop was before.
    pub(crate) fn mark_settled(&self) {
        self.stop.send_replace(Some(Stop::Settled));
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
        let mut changes = self.stop.subscribe();
        let _ = changes.wait_for(|stop| stop.is_some_and(is_end)).await;
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
            self.renewal.notify_one();
        }
    }
}

fn is_end(stop: Stop) -> bool {
    matches!(stop, Stop::Lost | Stop::Settled)
}
