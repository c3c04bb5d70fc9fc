//! Interface between a worker and the layout of its tasks.
//!
//! A worker runs handlers in slots, and knows no layout. A [`TaskSource`] finds and claims tasks for the free slots; a
//! [`ClaimedTask`] is renewed while its handler runs, and then finished. Each layout has a source of its own: the index of the object layout, the broker of the journal layout, the folder of an outpost, a list in memory for tests.
//!
//! ```text
//!   source                              worker
//!   Slots::take ──▶ claim ── next() ──▶ run the handler ──▶ finish() ──▶ the slot is free again
//!                                            │
//!                                         renew()             on a thread that handlers cannot block
//! ```

use futures::StreamExt;
use futures::future::{BoxFuture, Either, select};
use futures::stream::FuturesUnordered;
pub use leasehold_core::ids::TaskTypes;
pub use leasehold_core::scan::DrainWait;
use leasehold_core::scan::Polling;
use leasehold_core::{Error, Result, ShardRange, Task, TaskId, WorkerId};
use leasehold_store::{Client, Outage};
use serde_json::Value;
use std::collections::{BTreeSet, HashSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

use crate::claim::Settlement;

/// Number of consecutive failed requests after which work waits for the store.
const OUTAGE_FAILURES: u32 = 3;

/// Opens a task source for each worker.
pub trait TaskSourceFactory: fmt::Debug + Send + Sync + 'static {
    /// Opens the source of one worker.
    fn open(&self, worker: WorkerInfo) -> BoxFuture<'static, Result<Box<dyn TaskSource>>>;

    /// Error for the artifacts of a task, in a source whose workers cannot transfer any.
    fn artifact_error(&self) -> Option<&'static str> {
        None
    }
}

/// A worker, as its source sees it.
#[derive(Debug, Clone)]
pub struct WorkerInfo {
    /// Worker id.
    pub id: WorkerId,
    /// Task types that it has handlers for.
    pub types: TaskTypes,
    /// Its slots. A source takes one before it claims a task.
    pub slots: Slots,
    /// Lifetime of a claim without renewal.
    pub lease: Duration,
    /// Polling intervals.
    pub polling: Polling,
    /// True to end when nothing is left to do.
    pub until_empty: bool,
}

/// Finds and claims the tasks of one worker.
pub trait TaskSource: Send {
    /// Waits until a task is claimed; none if no task will follow: the slots are closed, or nothing is left to do. It
    /// claims no more once the [slots are closed](Slots::close).
    ///
    /// An error ends the worker, and its running tasks are waited for. After one of kind `Lost` they are stopped at
    /// once, because the worker must not act any longer.
    ///
    /// # Cancel safety
    ///
    /// A claim that was made is returned by the next call.
    fn next(&mut self) -> BoxFuture<'_, Result<Option<TaskInSlot>>>;

    /// Returns the maintenance duties of the layout.
    fn duties(&self) -> Vec<Box<dyn Duty>> {
        Vec::new()
    }

    /// Returns a view of the source.
    fn status(&self) -> Arc<dyn SourceStatus> {
        Arc::new(())
    }

    /// Ends everything that the source has started. The slots are closed, and no task runs.
    fn close(self: Box<Self>) -> BoxFuture<'static, Result<()>>;
}

/// A claimed task and the slot to run it in, which is free again when the claim is dropped.
#[derive(Debug)]
pub struct TaskInSlot {
    /// The task.
    pub task: Box<dyn ClaimedTask>,
    /// Its slot.
    pub slot: Slot,
}

/// A claimed task. It is renewed on one thread and finished on another, never at the same time.
pub trait ClaimedTask: fmt::Debug + Send {
    /// The task, as claimed.
    fn task(&self) -> &Task;

    /// Time for which the claim can still be trusted; none if it cannot.
    fn time_left(&self) -> Option<Duration>;

    /// Interval of renewals.
    fn renew_every(&self) -> Duration;

    /// Renews the claim, and records the progress of the handler where the layout has a place for it. `is_requested` is
    /// true if the handler has asked for it, ahead of the interval. After an error it is tried again soon.
    fn renew(&mut self, progress: Option<Value>, is_requested: bool) -> BoxFuture<'_, Result<ClaimStatus>>;

    /// Ends the claim; the handler has stopped before. Returns the task, or none if the claim was lost. After an error
    /// it is tried again while the claim can be trusted.
    fn finish(&mut self, settlement: Settlement) -> BoxFuture<'_, Result<Option<Task>>>;

    /// True if the slot is free for another task as soon as the handler has ended: the result is recorded together with
    /// those of other tasks, and the next claim with it.
    fn frees_slot_before_finish(&self) -> bool {
        false
    }

    /// Keeps the result of a run whose claim was lost, if the layout has a place for it.
    fn keep_late_result(&mut self, _settlement: Settlement) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}

/// State of a claim after a renewal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClaimStatus {
    /// It is held.
    Held,
    /// It is held, and the cancellation of the task was requested.
    Cancelled,
    /// It was lost: the handler must stop at once.
    Lost,
}

/// Periodic maintenance of a layout. It may be done twice, or by several workers at once, without harm.
pub trait Duty: Send {
    /// Returns its interval and limits.
    fn plan(&self) -> DutyPlan;

    /// Does one round.
    fn tick(&mut self) -> BoxFuture<'_, Result<()>>;

    /// Leaves the duty to other workers, because this one stops.
    fn release(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}

/// Interval and limits of a duty.
#[derive(Debug, Clone, Copy)]
pub struct DutyPlan {
    /// Operation, for log messages.
    pub operation: &'static str,
    /// Average interval.
    pub every: Duration,
    /// True if the first round is at once; otherwise it is within the first interval, at a random time, because workers
    /// may have been restarted together.
    pub begins_at_once: bool,
    /// Time after which a round is interrupted, as it is when the worker stops; none if it must not be interrupted.
    pub time_max: Option<Duration>,
}

/// View of a running source, for users and for the engine.
pub trait SourceStatus: fmt::Debug + Send + Sync {
    /// Reason why the source waits, if it ends when nothing is left to do.
    fn drain_wait(&self) -> Option<DrainWait> {
        None
    }

    /// Shards that are served now.
    fn shards(&self) -> Vec<ShardRange> {
        Vec::new()
    }

    /// True if there is an inbox that is certainly held.
    fn has_inbox(&self) -> bool {
        false
    }

    /// The current outage of the store, if requests fail.
    fn outage(&self) -> Option<Outage> {
        None
    }

    /// True if the worker has to be restarted, because the number of shards has changed.
    fn is_outdated(&self) -> bool {
        false
    }

    /// The outage, once enough requests have failed to wait for the store: one or two failures are common.
    fn long_outage(&self) -> Option<Outage> {
        self.outage().filter(|outage| outage.failures >= OUTAGE_FAILURES)
    }

    /// Logs a request that failed. During an outage of the store, which is reported as a whole, only at debug level.
    fn request_failed(&self, operation: &'static str, error: &Error) {
        if self.outage().is_some() {
            tracing::debug!(operation, %error, "store request failed");
        } else {
            tracing::warn!(operation, %error, "store request failed");
        }
    }
}

/// The status of a store, for work that is not part of a source.
impl SourceStatus for Client {
    fn outage(&self) -> Option<Outage> {
        self.health().outage()
    }
}

/// A source without shards, inbox and waits.
impl SourceStatus for () {}

/// Slots of a worker, each for one task. Clones share their state.
#[derive(Debug, Clone)]
pub struct Slots {
    total: usize,
    state: watch::Sender<SlotState>,
}

/// State of the slots of a worker.
#[derive(Debug, Default)]
pub struct SlotState {
    /// Tasks that are being claimed, or run.
    tasks: BTreeSet<TaskId>,
    is_closed: bool,
}

impl Slots {
    /// Creates this many free slots.
    #[must_use]
    pub fn new(total: usize) -> Self {
        Self { total, state: watch::Sender::default() }
    }

    /// Takes a slot for a task; none if none is free, or the task has one.
    #[must_use]
    pub fn take(&self, id: TaskId) -> Option<Slot> {
        let mut is_taken = false;
        self.state.send_if_modified(|state| {
            is_taken = state.tasks.len() < self.total && state.tasks.insert(id);
            // Nobody waits for fewer free slots.
            false
        });
        is_taken.then(|| Slot { slots: self.clone(), id })
    }

    /// Number of slots.
    #[must_use]
    pub fn total(&self) -> usize {
        self.total
    }

    /// Number of free slots.
    #[must_use]
    pub fn free(&self) -> usize {
        self.total.saturating_sub(self.state.borrow().tasks.len())
    }

    /// True if no task is being claimed, and none runs.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.state.borrow().tasks.is_empty()
    }

    /// True if a task has a slot.
    #[must_use]
    pub fn contains(&self, id: &TaskId) -> bool {
        self.state.borrow().tasks.contains(id)
    }

    /// The tasks that have a slot.
    #[must_use]
    pub fn tasks(&self) -> HashSet<TaskId> {
        self.state.borrow().tasks.iter().copied().collect()
    }

    /// Closes the slots: no more tasks are to be claimed.
    pub fn close(&self) {
        self.state.send_if_modified(|state| !std::mem::replace(&mut state.is_closed, true));
    }

    /// True if the slots were closed.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.state.borrow().is_closed
    }

    /// Waits until the slots are closed.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when the future is dropped.
    pub async fn closed(&self) {
        let mut state = self.state.subscribe();
        // The sender lives in `self`, so the wait cannot fail.
        let _ = state.wait_for(|state| state.is_closed).await;
    }

    /// Subscribes to slots that become free, and to their closing.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<SlotState> {
        self.state.subscribe()
    }
}

/// A slot that is taken by a task. It is free again when this is dropped.
#[derive(Debug)]
pub struct Slot {
    slots: Slots,
    id: TaskId,
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.slots.state.send_if_modified(|state| state.tasks.remove(&self.id));
    }
}

/// Waits for the first of some futures to end, or for `other`, which has priority.
///
/// # Cancel safety
///
/// The output of a future that has ended is returned by the next call. `other` may be passed by reference.
pub async fn next_or<F: Future, T>(
    futures: &mut FuturesUnordered<F>,
    other: impl Future<Output = T> + Unpin,
) -> Either<F::Output, T> {
    if futures.is_empty() {
        return Either::Right(other.await);
    }
    match select(other, futures.select_next_some()).await {
        Either::Left((other, _)) => Either::Right(other),
        Either::Right((ended, _)) => Either::Left(ended),
    }
}
