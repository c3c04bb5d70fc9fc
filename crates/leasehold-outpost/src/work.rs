//! Worker on a spool: runs the same handlers as over a bucket, for tasks from a folder.
//!
//! ```text
//!   poll ──▶ claim ──▶ strict: wait for confirmation ──▶ run ──▶ settle     one slot per task in progress
//!                                                         │
//!                                                     heartbeat             on a thread that no handler can starve
//! ```
//!
//! The spool rejects a worker that has lost its task, under the task's lock, so correctness does not depend on this module.
//! It only notices a lost task soon, and stops the handler. Of a worker's options these apply: `concurrency`, `drain`,
//! `stop_wait`, `until_empty`, and `polling` up to two seconds, because a folder may be polled more often than a bucket.
//!
//! In a strict queue no handler starts before the bucket has confirmed the claim. A worker that gets no confirmation in time
//! releases the task, and for a while claims only checked-out tasks, so that a failed link does not fill the outbox. In a
//! relaxed queue a worker waits for a moment only, and not at all while the bucket is unreachable.

mod keep;

use futures::StreamExt;
use futures::future::{BoxFuture, Either, select};
use futures::stream::FuturesUnordered;
use leasehold_core::limits::{DISK_LEASE_STALE, PLAN_AHEAD_MAX};
use leasehold_core::new_task::{check_artifacts, check_size, check_time};
use leasehold_core::outpost::{Consistency, NodeNow};
use leasehold_core::{HexName, Kind, Result, State, Task, TaskId};
use leasehold_queue::Settlement;
use leasehold_store::HostExt;
use leasehold_store::host::Instant;
use leasehold_worker::{Counts, Polling, RunHandle, Shutdown, Stage, Stop, TaskRunner, TaskSource};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc;
use tracing::Instrument;

use crate::spool::{Copy, HeldTask, SAID_EVERY, Spool};
use keep::RenewedLease;

/// Longest pause between two scans of a folder.
const LOOK_EVERY_MAX: Duration = Duration::from_secs(2);
/// Pause between two checks whether the bucket has confirmed a claim.
const CONFIRMATION_EVERY: Duration = Duration::from_millis(100);
/// Longest wait of a relaxed worker for a confirmation while the bucket is reachable. It avoids most duplicate runs of tasks
/// that other workers hold.
const MOMENT: Duration = Duration::from_secs(1);
/// Longest wait of a strict worker for a confirmation: the default cycle of a supervisor.
const CONFIRMATION_WAIT: Duration = Duration::from_mins(1);
/// Back-off after a missing confirmation: a strict worker claims only checked-out tasks, and a relaxed one does not wait for
/// confirmations. It doubles each time.
const SILENCE_MIN: Duration = Duration::from_mins(1);
/// Longest back-off after a missing confirmation.
const SILENCE_MAX: Duration = Duration::from_mins(15);
/// Pause between two attempts to record the result of a run.
const SETTLE_PAUSE: Duration = Duration::from_secs(1);
/// Time within which a task must become due for a worker with `until_empty` to wait for it.
const SOON: Duration = Duration::from_mins(1);

impl TaskSource for Spool {
    fn work(self: Arc<Self>, runner: TaskRunner, shutdown: Shutdown) -> BoxFuture<'static, Result<Counts>> {
        Box::pin(async move {
            let (beating, leases) = mpsc::unbounded_channel();
            let keeper = keep::run((*self).clone(), runner.host().clone(), leases);
            let keeping = runner.host().spawn_apart("leasehold-heartbeat", Box::pin(keeper));
            let shift = Arc::new(Shift {
                spool: (*self).clone(),
                instance: HexName::from_random(runner.host().random_bits()),
                runner,
                shutdown,
                under_way: Mutex::default(),
                silence: Mutex::default(),
                beating,
            });
            let mut slots = FuturesUnordered::new();
            let ended = shift.fill(&mut slots).await;
            shift.drain(&mut slots).await;
            shift.say_nothing_more().await;
            let counts = shift.runner.counts();
            drop((slots, shift));
            keeping.await;
            ended.map(|()| counts)
        })
    }
}

/// A running worker.
struct Shift {
    spool: Spool,
    runner: TaskRunner,
    /// Id of this run: two processes of one name have two.
    instance: HexName,
    shutdown: Shutdown,
    /// Tasks of its slots, with the run once it has started.
    under_way: Mutex<BTreeMap<TaskId, Option<Arc<RunHandle>>>>,
    silence: Mutex<Option<Silence>>,
    beating: mpsc::UnboundedSender<Arc<RenewedLease>>,
}

/// Back-off because the bucket has not confirmed a claim.
#[derive(Debug, Clone, Copy)]
struct Silence {
    since: Instant,
    /// Duration of the back-off.
    lasts: Duration,
}

/// Tasks in progress; each returns whether a handler ran.
type Slots = FuturesUnordered<BoxFuture<'static, bool>>;

impl Shift {
    async fn fill(self: &Arc<Self>, slots: &mut Slots) -> Result<()> {
        let most = self.runner.options().polling;
        let polling =
            Polling { min: most.min.min(LOOK_EVERY_MAX), max: most.max.min(LOOK_EVERY_MAX), ..most };
        let mut pause = polling.min;
        let mut said_at = None;
        while !self.shutdown.is_asked_for() {
            let now = self.runner.host().instant();
            if said_at.is_none_or(|at| now.since(at) >= SAID_EVERY) {
                self.say_what_is_wanted().await;
                said_at = Some(now);
            }
            self.look(slots).await?;
            if self.runner.options().until_empty && slots.is_empty() && !self.is_more_coming().await? {
                return Ok(());
            }
            pause = if self.rest(slots, pause).await { polling.min } else { polling.slower(pause) };
        }
        Ok(())
    }

    /// Records the task types of this worker, so that the supervisor copies such tasks to this node.
    async fn say_what_is_wanted(&self) {
        let (instance, types) = (self.instance.clone(), self.runner.types());
        if let Err(error) = self.blocking(move |spool| spool.want(&instance, types)).await {
            tracing::warn!(%error, "failed to record the task types of this worker");
        }
    }

    async fn say_nothing_more(&self) {
        let instance = self.instance.clone();
        if let Err(error) = self.blocking(move |spool| spool.want_no_more(&instance)).await {
            tracing::warn!(%error, "failed to remove the task types of this worker");
        }
    }

    /// Fills the free slots with tasks that are due.
    async fn look(self: &Arc<Self>, slots: &mut Slots) -> Result<()> {
        let free = self.runner.options().concurrency.saturating_sub(slots.len());
        if free == 0 {
            return Ok(());
        }
        let found = match self.find(free + slots.len()).await {
            Err(error) if error.kind() == Kind::Unavailable => {
                tracing::warn!(%error, "failed to read the spool, retrying");
                return Ok(());
            }
            found => found?,
        };
        let new: Vec<_> = found.into_iter().filter(|id| !self.under_way().contains_key(id)).collect();
        for id in new.into_iter().take(free) {
            self.under_way().insert(id, None);
            slots.push(Box::pin(self.clone().attempt(id)));
        }
        Ok(())
    }

    async fn find(&self, most: usize) -> Result<Vec<TaskId>> {
        let runner = self.runner.clone();
        // An empty outbox means that the bucket was reached.
        if self.is_silent() && !self.blocking(Spool::has_news).await? {
            *self.silence() = None;
        }
        let (is_relaxed, is_silent) = (self.is_relaxed(), self.is_silent());
        self.blocking(move |spool| {
            let now = spool.now();
            let mine =
                |copy: &Copy| runner.handles(&copy.task.task_type) && is_free_and_checked_out(copy, &now);
            // Checked-out tasks need no confirmation: claims that wait for one must not block them.
            let checked_out = if is_relaxed { Vec::new() } else { spool.waiting()? };
            let mut found: Vec<_> = checked_out.into_iter().filter(mine).map(|copy| copy.task.id).collect();
            if is_relaxed || !is_silent {
                let others = spool.poll(most, &|of| runner.handles(of))?;
                found.extend(others.into_iter().filter(|id| !found.contains(id)).collect::<Vec<_>>());
            }
            found.truncate(most);
            Ok(found)
        })
        .await
    }

    /// Waits for `pause`; returns true as soon as a slot becomes free in which a handler ran.
    async fn rest(&self, slots: &mut Slots, pause: Duration) -> bool {
        let asked = Box::pin(self.shutdown.reached(Stage::Drain));
        let mut rest = select(self.runner.host().sleep(pause), asked);
        loop {
            if slots.is_empty() {
                rest.await;
                return false;
            }
            match select(slots.next(), rest).await {
                Either::Left((Some(true), _)) => return true,
                // Another worker was faster: an immediate scan might find the same task again.
                Either::Left((_, left)) => rest = left,
                Either::Right(_) => return false,
            }
        }
    }

    /// Returns whether a task here is due, will be soon, or is held by another worker, which may lose it.
    async fn is_more_coming(&self) -> Result<bool> {
        let runner = self.runner.clone();
        self.blocking(move |spool| {
            let soon = spool.now().present().latest_known().plus(SOON);
            let is_coming = |copy: &Copy| {
                let is_due =
                    matches!(copy.task.state, State::Pending { available_at } if available_at <= soon);
                runner.handles(&copy.task.task_type) && (copy.lease.is_some() || is_due)
            };
            Ok(spool.waiting()?.iter().any(is_coming))
        })
        .await
    }

    /// Waits for running handlers; after the drain time, or on abort, stops them and releases their tasks.
    async fn drain(&self, slots: &mut Slots) {
        let late = self.runner.host().sleep(self.runner.options().drain);
        let impatient = select(late, Box::pin(self.shutdown.reached(Stage::Abort)));
        // A worker that ends by itself starts no more tasks either.
        self.shutdown.drain();
        if let Either::Left(_) = select(Box::pin(finish(slots)), impatient).await {
            return;
        }
        for hold in self.under_way().values().flatten() {
            hold.stop(Stop::Shutdown);
        }
        finish(slots).await;
    }

    /// Claims a task, runs it and settles it. False if no handler ran.
    async fn attempt(self: Arc<Self>, id: TaskId) -> bool {
        let (worker, instance) = (self.runner.id().clone(), self.instance.clone());
        let had_something = match self.blocking(move |spool| spool.claim(&id, &worker, &instance)).await {
            Ok(Some(held)) => self.execute(held).await,
            Ok(None) => false,
            Err(error) => {
                tracing::warn!(task = %id, %error, "failed to claim task");
                false
            }
        };
        self.under_way().remove(&id);
        had_something
    }

    async fn execute(&self, held: HeldTask) -> bool {
        let span = self.runner.span(&held.task);
        self.run_and_settle(held).instrument(span).await
    }

    async fn run_and_settle(&self, held: HeldTask) -> bool {
        let id = held.task.id;
        let kept = RenewedLease::new(held);
        self.under_way().insert(id, Some(kept.hold.clone()));
        // Cannot fail: the heartbeat task ends only after the last sender is gone.
        let _ = self.beating.send(kept.clone());
        let task = self.confirmed(&kept).await;
        let (is_run, settlement) = match task {
            Some(task) => {
                let now = || Ok(self.spool.now().present().latest_known());
                (true, self.runner.run(task, &kept.hold, &now).await)
            }
            None => (false, unused(&kept.hold)),
        };
        let settled = match settlement {
            Some(settlement) => self.settle(&kept, settlement).await,
            None => None,
        };
        kept.hold.settled();
        if is_run {
            self.runner.count(settled.as_ref());
        }
        is_run
    }

    /// Waits until the handler may start, and returns the task; `None` if it may not.
    async fn confirmed(&self, kept: &RenewedLease) -> Option<Task> {
        let held = kept.held().await.clone();
        let is_relaxed = self.is_relaxed();
        let is_heard_of = || !self.is_silent() && self.spool.now().bucket.is_some();
        if !held.lease.tentative || is_relaxed && !is_heard_of() {
            return Some(held.task);
        }
        let patience = if is_relaxed { MOMENT } else { CONFIRMATION_WAIT };
        let (host, began) = (self.runner.host(), self.runner.host().instant());
        while kept.hold.stopped().is_none() && !self.shutdown.is_asked_for() {
            if self.is_confirmed(&held).await.unwrap_or_else(|error| kept.heard(&error)) {
                *self.silence() = None;
                // The confirmation may have changed attempt and epoch.
                kept.beat(&self.spool, host, true).await;
                return kept.hold.stopped().is_none().then_some(kept.held().await.task.clone());
            }
            if host.instant().since(began) >= patience {
                self.fall_silent(began);
                if is_relaxed {
                    return Some(held.task);
                }
                tracing::info!("task released, claim not confirmed by the bucket in time");
                return None;
            }
            host.sleep(CONFIRMATION_EVERY).await;
        }
        if kept.hold.stopped() == Some(Stop::Lost)
            && let Err(error) = self.blocking(move |spool| spool.never_ran(&held)).await
        {
            tracing::warn!(%error, "failed to remove a conflict, task counts as run twice");
        }
        None
    }

    fn is_relaxed(&self) -> bool {
        self.spool.config().consistency == Consistency::Relaxed
    }

    async fn is_confirmed(&self, held: &HeldTask) -> Result<bool> {
        let held = held.clone();
        Ok(self.blocking(move |spool| spool.standing(&held)).await?.confirmed)
    }

    /// Records the result of a run.
    async fn settle(&self, kept: &RenewedLease, settlement: Settlement) -> Option<Task> {
        let settlement = self.written(settlement);
        let (host, began) = (self.runner.host(), self.runner.host().instant());
        loop {
            // The lock keeps heartbeats out.
            let held = kept.held().await;
            if kept.hold.stopped() == Some(Stop::Lost) {
                self.keep_late(&held, settlement).await;
                return None;
            }
            let (ours, written) = (held.clone(), settlement.clone());
            match self.blocking(move |spool| write(spool, &ours, written)).await {
                Ok(task) => return Some(task),
                Err(error) if error.kind() == Kind::Lost => {
                    self.keep_late(&held, settlement).await;
                    return None;
                }
                Err(error) if error.kind() == Kind::Unavailable => {
                    tracing::warn!(%error, "failed to record task result, retrying");
                }
                Err(error) => {
                    tracing::error!(%error, "failed to record task result");
                    return None;
                }
            }
            drop(held);
            if host.instant().since(began) >= DISK_LEASE_STALE {
                return None;
            }
            host.sleep(SETTLE_PAUSE).await;
        }
    }

    /// Keeps a result in `conflicts/` whose task another worker holds by now.
    async fn keep_late(&self, held: &HeldTask, settlement: Settlement) {
        let Settlement::Complete { output, results } = settlement else { return };
        let held = held.clone();
        if let Err(error) = self.blocking(move |spool| spool.keep_late(&held, output, results)).await {
            tracing::error!(%error, "failed to keep the result of a lost task");
        }
    }

    /// Turns a settlement that cannot be recorded, such as an output that is too large, into a failure without retry.
    fn written(&self, settlement: Settlement) -> Settlement {
        let checked = match &settlement {
            Settlement::Complete { output, results } => {
                check_size("output", output).and_then(|()| check_artifacts(results))
            }
            Settlement::Snooze(until) => check_time("snooze", *until, self.spool.now().present().earliest),
            _ => Ok(()),
        };
        match (checked, settlement) {
            (Err(error), _) => Settlement::Fail { error: error.to_string(), retryable: false, after: None },
            (Ok(()), Settlement::Fail { error, retryable, after }) => {
                let after = after.map(|pause| pause.min(PLAN_AHEAD_MAX));
                Settlement::Fail { error, retryable, after }
            }
            (Ok(()), settlement) => settlement,
        }
    }

    fn is_silent(&self) -> bool {
        let now = self.runner.host().instant();
        self.silence().is_some_and(|silence| now.since(silence.since) < silence.lasts)
    }

    /// Starts or doubles the back-off. Slots that have waited at the same time count once.
    fn fall_silent(&self, began: Instant) {
        let now = self.runner.host().instant();
        let mut silence = self.silence();
        let lasts = match *silence {
            Some(before) if before.since.since(began) > Duration::ZERO => return,
            Some(before) => (before.lasts * 2).min(SILENCE_MAX),
            None => SILENCE_MIN,
        };
        *silence = Some(Silence { since: now, lasts });
    }

    /// Works on the spool, on a thread that may block.
    fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Spool) -> Result<T> + Send + 'static,
    ) -> BoxFuture<'static, Result<T>> {
        let spool = self.spool.clone();
        self.runner.host().blocking(move || work(&spool))
    }

    fn under_way(&self) -> MutexGuard<'_, BTreeMap<TaskId, Option<Arc<RunHandle>>>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn silence(&self) -> MutexGuard<'_, Option<Silence>> {
        self.silence.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn finish(slots: &mut Slots) {
    while slots.next().await.is_some() {}
}

/// Settlement of a task whose handler has not started.
fn unused(hold: &RunHandle) -> Option<Settlement> {
    match hold.stopped() {
        Some(Stop::Lost | Stop::Settled) => None,
        Some(Stop::Cancelled) => Some(Settlement::Stop),
        _ => Some(Settlement::Release),
    }
}

fn write(spool: &Spool, held: &HeldTask, settlement: Settlement) -> Result<Task> {
    match settlement {
        Settlement::Complete { output, results } => spool.complete(held, output, results),
        Settlement::Fail { error, retryable, after } => spool.fail(held, &error, retryable, after),
        Settlement::Exhaust { error, max_attempts } => spool.exhaust(held, &error, max_attempts),
        Settlement::Snooze(until) => spool.release(held, Some(until)),
        Settlement::Release => spool.release(held, None),
        Settlement::Stop => spool.stop(held),
    }
}

fn is_free_and_checked_out(copy: &Copy, now: &NodeNow) -> bool {
    let is_free = copy.lease.as_ref().is_none_or(|lease| lease.is_stale(now));
    let is_live = |expires_at| now.bucket.is_some_and(|now| now.is_before(expires_at));
    is_free && copy.checkout.as_ref().is_some_and(|checkout| is_live(checkout.expires_at))
}
