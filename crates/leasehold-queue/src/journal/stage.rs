//! Stages in the life of a broker, and the requests that wait for them.
//!
//! Waiters are woken in the order in which they began to wait, so that their requests arrive in one order. A
//! `tokio::sync::watch` wakes them in random order, and one seed of the simulator would give several traces.

use leasehold_core::Kind;
use leasehold_store::host::lock;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use tokio::sync::Notify;

/// Stage in the life of a broker.
#[derive(Debug, Clone)]
pub(super) enum BrokerStage {
    Opening,
    /// Requests are answered: by this process if it is the broker, otherwise by the broker that it is connected to.
    Serving {
        is_broker: bool,
    },
    Ended(BrokerEnd),
}

/// End of a broker.
#[derive(Debug, Clone)]
pub(super) enum BrokerEnd {
    /// It never served, for this reason.
    NotOpened(Kind, String),
    /// It was closed.
    Closed,
    /// It has stopped serving, for this reason.
    Stopped(String),
}

/// Stage of a broker, as its requests see it.
#[derive(Debug, Clone)]
pub(super) struct StageView(Arc<StageCell>);

/// Stage of a broker, as the broker sets it. A broker that is dropped has ended.
#[derive(Debug)]
pub(super) struct StageSetter(Arc<StageCell>);

#[derive(Debug)]
struct StageCell {
    stage: Mutex<BrokerStage>,
    /// True if nothing more is wanted of a broker that is opening.
    is_unwanted: AtomicBool,
    changed: Notify,
}

/// Creates the stage of a broker that is opening.
pub(super) fn stage() -> (StageSetter, StageView) {
    let (stage, is_unwanted) = (Mutex::new(BrokerStage::Opening), AtomicBool::new(false));
    let cell = StageCell { stage, is_unwanted, changed: Notify::new() };
    let cell = Arc::new(cell);
    (StageSetter(cell.clone()), StageView(cell))
}

impl StageSetter {
    pub(super) fn set(&self, stage: BrokerStage) {
        *lock(&self.0.stage) = stage;
        self.0.changed.notify_waiters();
    }

    /// Waits until the broker is no longer wanted.
    pub(super) async fn unwanted(&self) {
        let is_unwanted = || self.0.is_unwanted.load(Ordering::Acquire).then_some(());
        self.0.when(|_| is_unwanted()).await;
    }
}

impl Drop for StageSetter {
    fn drop(&mut self) {
        if !matches!(*lock(&self.0.stage), BrokerStage::Ended(_)) {
            self.set(BrokerStage::Ended(BrokerEnd::Stopped("its thread has ended".to_owned())));
        }
    }
}

impl StageView {
    pub(super) fn has_ended(&self) -> bool {
        matches!(*lock(&self.0.stage), BrokerStage::Ended(_))
    }

    pub(super) fn is_serving(&self) -> bool {
        matches!(*lock(&self.0.stage), BrokerStage::Serving { .. })
    }

    /// True if this process is the broker.
    pub(super) fn is_broker(&self) -> bool {
        matches!(*lock(&self.0.stage), BrokerStage::Serving { is_broker: true })
    }

    /// Ends the wait of a broker that is opening for the lease of another one.
    pub(super) fn give_up_waiting(&self) {
        self.0.is_unwanted.store(true, Ordering::Release);
        self.0.changed.notify_waiters();
    }

    /// Waits until the broker serves, or has ended. Returns how it has ended.
    pub(super) async fn opened(&self) -> Option<BrokerEnd> {
        self.0
            .when(|stage| match stage {
                BrokerStage::Opening => None,
                BrokerStage::Serving { .. } => Some(None),
                BrokerStage::Ended(end) => Some(Some(end.clone())),
            })
            .await
    }

    /// Waits until the broker has ended.
    pub(super) async fn ended(&self) -> BrokerEnd {
        self.0.when(|stage| if let BrokerStage::Ended(end) = stage { Some(end.clone()) } else { None }).await
    }
}

impl StageCell {
    /// Waits until the stage gives something.
    async fn when<T>(&self, find: impl Fn(&BrokerStage) -> Option<T>) -> T {
        loop {
            let mut changed = pin!(self.changed.notified());
            // A change after the stage was read is not missed.
            changed.as_mut().enable();
            let found = find(&lock(&self.stage));
            if let Some(found) = found {
                return found;
            }
            changed.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::stream::{FuturesUnordered, StreamExt};
    use futures::{FutureExt, poll};

    #[tokio::test]
    async fn waiters_are_woken_in_the_order_in_which_they_began() {
        let (setter, view) = stage();
        let wait = |number: usize| view.opened().map(move |_| number);
        let mut waiters: FuturesUnordered<_> = (0..100).map(wait).collect();
        assert!(poll!(waiters.next()).is_pending());
        let first: Vec<_> = {
            setter.set(BrokerStage::Serving { is_broker: true });
            waiters.by_ref().collect().await
        };
        assert_eq!(first, (0..100).collect::<Vec<_>>());
        assert!(view.is_serving() && view.is_broker() && !view.has_ended());
    }

    #[tokio::test]
    async fn a_broker_that_is_dropped_has_ended() {
        let (setter, view) = stage();
        drop(setter);
        assert!(matches!(view.opened().await, Some(BrokerEnd::Stopped(_))));
        assert!(matches!(view.ended().await, BrokerEnd::Stopped(_)));
    }
}
