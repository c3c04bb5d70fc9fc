//! One run of a task, seen from outside: how it is told to stop, and what it says meanwhile. Whatever the task is held by
//! — a claim in a store, a lease on a disk — is known to whoever has given it out.

use leasehold_core::TaskId;
use serde_json::Value;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, watch};

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

/// A run under way.
#[derive(Debug)]
pub struct Hold {
    /// The task.
    pub id: TaskId,
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

impl Hold {
    /// A run of this task that is about to begin.
    #[must_use]
    pub fn new(id: TaskId) -> Arc<Self> {
        Arc::new(Self {
            id,
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

    /// The claim has ended, whatever was said before.
    pub fn settled(&self) {
        self.stop.send_replace(Some(Stop::Settled));
    }

    /// Lost and settled claims need no renewal; cancelled ones do, until their handler has stopped.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.stopped().is_some_and(is_end)
    }

    /// Waits until there is nothing to renew any more.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when the future is dropped.
    pub async fn until_ended(&self) {
        let mut changes = self.stop.subscribe();
        let _ = changes.wait_for(|stop| stop.is_some_and(is_end)).await;
    }

    /// Waits until the handler wants its claim renewed soon.
    ///
    /// # Cancel safety
    ///
    /// A wish that was not heard when the future was dropped is heard the next time.
    pub async fn hurried(&self) {
        self.hurry.notified().await;
    }

    /// What the handler has said about how far it is, since this was last asked.
    pub fn take_progress(&self) -> Option<Value> {
        let mut progress = self.progress();
        let next = progress.next.take();
        progress.is_written |= next.is_some();
        next
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

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_end(stop: Stop) -> bool {
    matches!(stop, Stop::Lost | Stop::Settled)
}
