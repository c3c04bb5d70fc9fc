//! Source of a worker's tasks over a spool: the same handlers as over a bucket, for tasks from a folder.
//!
//! ```text
//!   poll ──▶ claim ──▶ strict: wait for confirmation ──▶ to the engine of the worker
//! ```
//!
//! The spool rejects a worker that has lost its task, under the task's lock, so correctness does not depend on this module.
//! It only notices a lost task soon, so that the handler is stopped. Of a worker's options these apply: `concurrency`,
//! `drain`, `stop_wait`, `until_empty`, and `polling` up to two seconds, because a folder may be polled more often than a
//! bucket.
//!
//! In a strict queue no handler starts before the bucket has confirmed the claim. A worker that gets no confirmation in time
//! releases the task, and for a while claims only checked-out tasks, so that a failed link does not fill the outbox. In a
//! relaxed queue a worker waits for a moment only, and not at all while the bucket is unreachable.

mod claim;

use futures::future::{BoxFuture, Either, select};
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use leasehold_core::outpost::{Consistency, NodeNow};
use leasehold_core::scan::Polling;
use leasehold_core::{HexName, Kind, Result, State, TaskId};
use leasehold_queue::Settlement;
use leasehold_queue::source::{
    ClaimStatus, ClaimedTask, DrainWait, Slot, SlotState, SourceStatus, TaskInSlot, TaskSource,
    TaskSourceFactory, WorkerInfo, next_or,
};
use leasehold_store::host::{Instant, lock};
use leasehold_store::{Host, HostExt};
use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;

use self::claim::SpoolClaim;
use crate::spool::{LocalTask, SUBSCRIPTION_RENEWAL, Spool};

/// Longest pause between two scans of a folder.
const SCAN_PAUSE_MAX: Duration = Duration::from_secs(2);
/// Pause between two checks whether the bucket has confirmed a claim.
const CONFIRMATION_POLL: Duration = Duration::from_millis(100);
/// Longest wait of a relaxed worker for a confirmation while the bucket is reachable. It avoids most duplicate runs of tasks
/// that other workers hold.
const RELAXED_CONFIRMATION_WAIT: Duration = Duration::from_secs(1);
/// Longest wait of a strict worker for a confirmation: the default cycle of a supervisor. A claim lasts longer without a
/// heartbeat.
const STRICT_CONFIRMATION_WAIT: Duration = Duration::from_mins(1);
/// Back-off after a missing confirmation: a strict worker claims only checked-out tasks, and a relaxed one does not wait for
/// confirmations. It doubles each time.
const BACKOFF_MIN: Duration = Duration::from_mins(1);
/// Longest back-off after a missing confirmation.
const BACKOFF_MAX: Duration = Duration::from_mins(15);
/// Pause between two attempts to release a task that was not started.
const RELEASE_PAUSE: Duration = Duration::from_secs(1);
/// Time within which a task must become due for a worker with `until_empty` to wait for it.
const SOON: Duration = Duration::from_mins(1);

impl TaskSourceFactory for Spool {
    fn open(&self, worker: WorkerInfo) -> BoxFuture<'static, Result<Box<dyn TaskSource>>> {
        let polling = worker.polling.at_most(SCAN_PAUSE_MAX);
        let source = SpoolSource {
            slot_changes: worker.slots.changes(),
            polling,
            pause: polling.min,
            polled_at: None,
            subscribed_at: None,
            claims: FuturesUnordered::new(),
            running: HashSet::new(),
            node: Arc::new(NodeWorker {
                instance: self.host().random_name(),
                spool: self.clone(),
                worker,
                backoff: Mutex::default(),
                drain_wait: Mutex::default(),
            }),
        };
        Box::pin(async { Ok(Box::new(source) as Box<dyn TaskSource>) })
    }

    fn artifact_error(&self) -> Option<&'static str> {
        Some("artifacts are not supported on an outpost; run the task with a worker on the bucket")
    }
}

/// Source of the tasks of one worker.
struct SpoolSource {
    node: Arc<NodeWorker>,
    /// Claims that are being made and confirmed.
    claims: FuturesUnordered<BoxFuture<'static, Option<TaskInSlot>>>,
    /// Tasks that were claimed, and have not ended.
    running: HashSet<TaskId>,
    slot_changes: watch::Receiver<SlotState>,
    polling: Polling,
    /// Current pause between two polls.
    pause: Duration,
    /// Time of the last poll; none to poll at once.
    polled_at: Option<Instant>,
    subscribed_at: Option<Instant>,
}

/// State of a worker that its claims share.
#[derive(Debug)]
struct NodeWorker {
    spool: Spool,
    worker: WorkerInfo,
    /// Random id of this process: two processes with one worker id have different ones.
    instance: HexName,
    /// Start and duration of the back-off because the bucket has not confirmed a claim.
    backoff: Mutex<Option<(Instant, Duration)>>,
    drain_wait: Mutex<Option<DrainWait>>,
}

impl TaskSource for SpoolSource {
    fn next(&mut self) -> BoxFuture<'_, Result<Option<TaskInSlot>>> {
        Box::pin(async {
            while !self.node.worker.slots.is_closed() {
                let left = self.until_poll();
                if !left.is_zero() {
                    match self.wait(left).await {
                        None => continue,
                        claim => return Ok(claim),
                    }
                }
                self.subscribe().await;
                self.claim_due_tasks().await?;
                if self.node.worker.until_empty && self.node.worker.slots.is_idle() {
                    let wait = self.node.upcoming().await?;
                    *lock(&self.node.drain_wait) = wait;
                    if wait.is_none() {
                        return Ok(None);
                    }
                }
                self.polled_at = Some(self.node.host().instant());
            }
            while let Some(claim) = self.claims.next().await {
                if claim.is_some() {
                    return Ok(claim);
                }
            }
            Ok(None)
        })
    }

    fn status(&self) -> Arc<dyn SourceStatus> {
        self.node.clone()
    }

    fn close(self: Box<Self>) -> BoxFuture<'static, Result<()>> {
        Box::pin(async move {
            let instance = self.node.instance.clone();
            if let Err(error) = self.node.spool.on_disk(move |spool| spool.unsubscribe(&instance)).await {
                tracing::warn!(%error, "failed to remove the task types of this worker");
            }
            Ok(())
        })
    }
}

impl SourceStatus for NodeWorker {
    fn drain_wait(&self) -> Option<DrainWait> {
        *lock(&self.drain_wait)
    }
}

impl SpoolSource {
    fn until_poll(&self) -> Duration {
        let now = self.node.host().instant();
        self.polled_at.map_or(Duration::ZERO, |at| self.pause.saturating_sub(now.since(at)))
    }

    /// Waits for a claim, or until the next poll, which is at once when a task has ended.
    async fn wait(&mut self, left: Duration) -> Option<TaskInSlot> {
        let changed = Box::pin(self.slot_changes.changed());
        let mut rested =
            select(self.node.host().sleep(left), changed).map(|by| matches!(by, Either::Left(_)));
        let is_rested = loop {
            match next_or(&mut self.claims, &mut rested).await {
                Either::Left(Some(claim)) => {
                    self.running.insert(claim.task.task().id);
                    return Some(claim);
                }
                // Another worker was faster: an immediate scan might find the same task again.
                Either::Left(None) => {}
                Either::Right(is_rested) => break is_rested,
            }
        };
        drop(rested);
        let running = self.running.len();
        self.running.retain(|id| self.node.worker.slots.contains(id));
        if self.running.len() < running {
            (self.pause, self.polled_at) = (self.polling.min, None);
        } else if is_rested {
            self.pause = self.polling.slower(self.pause);
        }
        None
    }

    /// Records the task types of this worker, so that the supervisor copies such tasks to this node.
    async fn subscribe(&mut self) {
        let now = self.node.host().instant();
        if self.subscribed_at.is_some_and(|at| now.since(at) < SUBSCRIPTION_RENEWAL) {
            return;
        }
        self.subscribed_at = Some(now);
        let (instance, types) = (self.node.instance.clone(), self.node.worker.types.names());
        if let Err(error) = self.node.spool.on_disk(move |spool| spool.subscribe(&instance, types)).await {
            tracing::warn!(%error, "failed to record the task types of this worker");
        }
    }

    /// Begins to claim due tasks for the free slots.
    async fn claim_due_tasks(&mut self) -> Result<()> {
        let slots = self.node.worker.slots.clone();
        if slots.free() == 0 {
            return Ok(());
        }
        let found = match self.node.due_tasks(slots.free() + slots.tasks().len()).await {
            Err(error) if error.kind() == Kind::Unavailable => {
                tracing::warn!(%error, "failed to read the spool, retrying");
                return Ok(());
            }
            found => found?,
        };
        for id in found {
            if let Some(slot) = slots.take(id) {
                self.claims.push(Box::pin(self.node.clone().claim(id, slot)));
            }
        }
        Ok(())
    }
}

impl NodeWorker {
    fn host(&self) -> &Arc<dyn Host> {
        self.spool.host()
    }

    fn is_relaxed(&self) -> bool {
        self.spool.config().consistency == Consistency::Relaxed
    }

    /// Finds up to `most` tasks that a worker may claim now.
    async fn due_tasks(&self, most: usize) -> Result<Vec<TaskId>> {
        let types = self.worker.types.clone();
        // An empty outbox means that the bucket was reached.
        if self.is_backing_off() && !self.spool.on_disk(Spool::has_unsent_ops).await? {
            *lock(&self.backoff) = None;
        }
        let (is_relaxed, is_backing_off) = (self.is_relaxed(), self.is_backing_off());
        self.spool
            .on_disk(move |spool| {
                let now = spool.now();
                let is_claimable = |copy: &LocalTask| {
                    types.contains(&copy.task.task_type) && is_free_and_checked_out(copy, &now)
                };
                // Checked-out tasks need no confirmation: claims that wait for one must not block them.
                let checked_out = if is_relaxed { Vec::new() } else { spool.local_tasks()? };
                let mut found: Vec<_> =
                    checked_out.into_iter().filter(is_claimable).map(|copy| copy.task.id).collect();
                if is_relaxed || !is_backing_off {
                    let others = spool.poll(most, &types)?;
                    found.extend(others.into_iter().filter(|id| !found.contains(id)).collect::<Vec<_>>());
                }
                found.truncate(most);
                Ok(found)
            })
            .await
    }

    /// A task here that is due, will be soon, or is held by another worker, which may lose it.
    async fn upcoming(&self) -> Result<Option<DrainWait>> {
        let types = self.worker.types.clone();
        self.spool
            .on_disk(move |spool| {
                let soon = spool.now().present().latest_known().plus(SOON);
                let wait = |copy: LocalTask| match copy.task.state {
                    _ if !types.contains(&copy.task.task_type) => None,
                    _ if copy.lease.is_some() => Some(DrainWait::Held(copy.task.id)),
                    State::Pending { available_at } if available_at <= soon => {
                        Some(DrainWait::Due(available_at))
                    }
                    _ => None,
                };
                Ok(spool.local_tasks()?.into_iter().find_map(wait))
            })
            .await
    }

    /// Claims a task, and waits until its handler may start; none if it may not.
    async fn claim(self: Arc<Self>, id: TaskId, slot: Slot) -> Option<TaskInSlot> {
        let (worker, instance) = (self.worker.id.clone(), self.instance.clone());
        let held = self.spool.on_disk(move |spool| spool.claim(&id, &worker, &instance)).await;
        let held = held.inspect_err(|error| tracing::warn!(task = %id, %error, "failed to claim task"));
        let mut task = SpoolClaim::new(self.spool.clone(), held.ok()??);
        match self.confirmed(&mut task).await {
            Ok(()) => return Some(TaskInSlot { task: Box::new(task), slot }),
            Err(Some(settlement)) => self.end_unstarted(task, settlement).await,
            Err(None) => task.remove_conflict().await,
        }
        None
    }

    /// Waits until the handler of a claimed task may start. If it may not, returns the end of the claim; none if it was lost.
    async fn confirmed(&self, claim: &mut SpoolClaim) -> Result<(), Option<Settlement>> {
        let is_relaxed = self.is_relaxed();
        let is_bucket_reachable = || !self.is_backing_off() && self.spool.now().bucket.is_some();
        if !claim.is_tentative() || is_relaxed && !is_bucket_reachable() {
            return Ok(());
        }
        let timeout = if is_relaxed { RELAXED_CONFIRMATION_WAIT } else { STRICT_CONFIRMATION_WAIT };
        let began = self.host().instant();
        while !self.worker.slots.is_closed() {
            match claim.renew(None, false).await {
                Ok(ClaimStatus::Lost) => return Err(None),
                Ok(ClaimStatus::Cancelled) => return Err(Some(Settlement::Stop)),
                Ok(ClaimStatus::Held) if !claim.is_tentative() => {
                    *lock(&self.backoff) = None;
                    return Ok(());
                }
                Ok(ClaimStatus::Held) | Err(_) => {}
            }
            if self.host().instant().since(began) >= timeout {
                self.back_off(began);
                if is_relaxed {
                    return Ok(());
                }
                let id = claim.task().id;
                tracing::info!(task = %id, "task released, claim not confirmed by the bucket in time");
                break;
            }
            self.host().sleep(CONFIRMATION_POLL).await;
        }
        Err(Some(Settlement::Release))
    }

    /// Ends the claim on a task whose handler has not started.
    async fn end_unstarted(&self, mut claim: SpoolClaim, settlement: Settlement) {
        while claim.time_left().is_some() {
            let Err(error) = claim.finish(settlement.clone()).await else { return };
            tracing::warn!(task = %claim.task().id, %error, "failed to release task, retrying");
            self.host().sleep(RELEASE_PAUSE).await;
        }
    }

    fn is_backing_off(&self) -> bool {
        let now = self.host().instant();
        lock(&self.backoff).is_some_and(|(since, duration)| now.since(since) < duration)
    }

    /// Starts or doubles the back-off. Claims that have waited at the same time count once.
    fn back_off(&self, began: Instant) {
        let now = self.host().instant();
        let mut backoff = lock(&self.backoff);
        let duration = match *backoff {
            Some((since, _)) if since.since(began) > Duration::ZERO => return,
            Some((_, duration)) => (duration * 2).min(BACKOFF_MAX),
            None => BACKOFF_MIN,
        };
        *backoff = Some((now, duration));
    }
}

fn is_free_and_checked_out(copy: &LocalTask, now: &NodeNow) -> bool {
    let is_free = copy.lease.as_ref().is_none_or(|lease| lease.is_stale(now));
    let is_live = |expires_at| now.bucket.is_some_and(|now| now.is_before(expires_at));
    is_free && copy.checkout.as_ref().is_some_and(|checkout| is_live(checkout.expires_at))
}
