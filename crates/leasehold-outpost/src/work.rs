//! A worker on a spool: the same handlers as over a bucket, for tasks from a folder.
//!
//! ```text
//!   poll ──▶ claim ──▶ strict: wait for the bucket's word ──▶ run ──▶ settle     one slot per task under way
//!                                                              │
//!                                                          heartbeat             on a thread that no handler can starve
//! ```
//!
//! The spool refuses whoever has lost a task, under its lock: nothing that happens here can do harm. What is done here is
//! to notice it soon, and to stop the handler. Of a worker's options these count: `concurrency`, `drain`, `stop_wait`,
//! `until_empty`, and `polling` up to two seconds, because a folder may be asked more often than a bucket.
//!
//! In a strict queue nothing starts that the bucket has not confirmed. Who waits for that in vain gives the task back, and
//! for a while takes only what was checked out, so that a link that is down fills no outbox. In a relaxed queue a worker
//! waits for a moment only, and not at all while the bucket is not heard of.

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
use leasehold_worker::{Counts, Crew, Hold, Polling, Provider, Shutdown, Stage, Stop};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc;
use tracing::Instrument;

use crate::spool::{Copy, Held, SAID_EVERY, Spool};
use keep::Kept;

/// A folder is looked at this often at least.
const LOOK_EVERY_MAX: Duration = Duration::from_secs(2);
/// How often a strict worker looks whether the bucket has confirmed its claim.
const CONFIRMATION_EVERY: Duration = Duration::from_millis(100);
/// So long a relaxed worker waits for that, while the bucket is heard of: most of what others have is not run twice then.
const MOMENT: Duration = Duration::from_secs(1);
/// So long a strict one waits: the usual cycle of a supervisor.
const CONFIRMATION_WAIT: Duration = Duration::from_mins(1);
/// So long a strict worker takes only what was checked out after it has waited in vain, and a relaxed one waits for nothing;
/// twice as long after the next time.
const SILENCE_MIN: Duration = Duration::from_mins(1);
/// At most so long.
const SILENCE_MAX: Duration = Duration::from_mins(15);
/// Between two tries to write down how a run has ended.
const SETTLE_PAUSE: Duration = Duration::from_secs(1);
/// What becomes due in this time is waited for by a worker that works until nothing is left.
const SOON: Duration = Duration::from_mins(1);

impl Provider for Spool {
    fn work(self: Arc<Self>, crew: Crew, shutdown: Shutdown) -> BoxFuture<'static, Result<Counts>> {
        Box::pin(async move {
            let (beating, leases) = mpsc::unbounded_channel();
            let keeper = keep::run((*self).clone(), crew.host().clone(), leases);
            let keeping = crew.host().spawn_apart("leasehold-heartbeat", Box::pin(keeper));
            let shift = Arc::new(Shift {
                spool: (*self).clone(),
                instance: HexName::from_random(crew.host().random_bits()),
                crew,
                shutdown,
                under_way: Mutex::default(),
                silence: Mutex::default(),
                beating,
            });
            let mut slots = FuturesUnordered::new();
            let ended = shift.fill(&mut slots).await;
            shift.drain(&mut slots).await;
            shift.say_nothing_more().await;
            let counts = shift.crew.counts();
            drop((slots, shift));
            keeping.await;
            ended.map(|()| counts)
        })
    }
}

/// A worker at work.
struct Shift {
    spool: Spool,
    crew: Crew,
    /// This run of it: two processes of one name are two.
    instance: HexName,
    shutdown: Shutdown,
    /// What its slots are at; a run once there is one.
    under_way: Mutex<BTreeMap<TaskId, Option<Arc<Hold>>>>,
    silence: Mutex<Option<Silence>>,
    beating: mpsc::UnboundedSender<Arc<Kept>>,
}

/// The bucket has not confirmed a claim.
#[derive(Debug, Clone, Copy)]
struct Silence {
    since: Instant,
    /// For so long nothing more is asked of it.
    lasts: Duration,
}

/// Tasks under way; each says whether there was something to do.
type Slots = FuturesUnordered<BoxFuture<'static, bool>>;

impl Shift {
    async fn fill(self: &Arc<Self>, slots: &mut Slots) -> Result<()> {
        let most = self.crew.options().polling;
        let polling =
            Polling { min: most.min.min(LOOK_EVERY_MAX), max: most.max.min(LOOK_EVERY_MAX), ..most };
        let mut pause = polling.min;
        let mut said_at = None;
        while !self.shutdown.is_asked_for() {
            let now = self.crew.host().instant();
            if said_at.is_none_or(|at| now.since(at) >= SAID_EVERY) {
                self.say_what_is_wanted().await;
                said_at = Some(now);
            }
            self.look(slots).await?;
            if self.crew.options().until_empty && slots.is_empty() && !self.is_more_coming().await? {
                return Ok(());
            }
            pause = if self.rest(slots, pause).await { polling.min } else { polling.slower(pause) };
        }
        Ok(())
    }

    /// So that what comes to this node is of use here.
    async fn say_what_is_wanted(&self) {
        let (instance, types) = (self.instance.clone(), self.crew.types());
        if let Err(error) = self.blocking(move |spool| spool.want(&instance, types)).await {
            tracing::warn!("the supervisor was not told what is handled here: {error}");
        }
    }

    async fn say_nothing_more(&self) {
        let instance = self.instance.clone();
        if let Err(error) = self.blocking(move |spool| spool.want_no_more(&instance)).await {
            tracing::warn!("the supervisor was not told that this worker has ended: {error}");
        }
    }

    /// Fills the free slots with what there is.
    async fn look(self: &Arc<Self>, slots: &mut Slots) -> Result<()> {
        let free = self.crew.options().concurrency.saturating_sub(slots.len());
        if free == 0 {
            return Ok(());
        }
        let found = match self.find(free + slots.len()).await {
            Err(error) if error.kind() == Kind::Unavailable => {
                tracing::warn!("the folder could not be looked at: {error}");
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
        let crew = self.crew.clone();
        // Once nothing waits to be sent, the bucket was heard of.
        if self.is_silent() && !self.blocking(Spool::has_news).await? {
            *self.silence() = None;
        }
        let (is_relaxed, is_silent) = (self.is_relaxed(), self.is_silent());
        self.blocking(move |spool| {
            let now = spool.now();
            let mine =
                |copy: &Copy| crew.handles(&copy.task.task_type) && is_free_and_checked_out(copy, &now);
            // What was checked out needs nobody's word: those who wait for one must not be in its way.
            let checked_out = if is_relaxed { Vec::new() } else { spool.waiting()? };
            let mut found: Vec<_> = checked_out.into_iter().filter(mine).map(|copy| copy.task.id).collect();
            if is_relaxed || !is_silent {
                let others = spool.poll(most, &|of| crew.handles(of))?;
                found.extend(others.into_iter().filter(|id| !found.contains(id)).collect::<Vec<_>>());
            }
            found.truncate(most);
            Ok(found)
        })
        .await
    }

    /// Rests for a while; true as soon as a slot has become free that had something to do.
    async fn rest(&self, slots: &mut Slots, pause: Duration) -> bool {
        let asked = Box::pin(self.shutdown.reached(Stage::Drain));
        let mut rest = select(self.crew.host().sleep(pause), asked);
        loop {
            if slots.is_empty() {
                rest.await;
                return false;
            }
            match select(slots.next(), rest).await {
                Either::Left((Some(true), _)) => return true,
                // Another was faster: whoever looked again at once might find the same.
                Either::Left((_, left)) => rest = left,
                Either::Right(_) => return false,
            }
        }
    }

    /// Whether something waits here that is due, or soon will be, or that another has, who might be lost.
    async fn is_more_coming(&self) -> Result<bool> {
        let crew = self.crew.clone();
        self.blocking(move |spool| {
            let soon = spool.now().present().latest_known().plus(SOON);
            let is_coming = |copy: &Copy| {
                let is_due =
                    matches!(copy.task.state, State::Pending { available_at } if available_at <= soon);
                crew.handles(&copy.task.task_type) && (copy.lease.is_some() || is_due)
            };
            Ok(spool.waiting()?.iter().any(is_coming))
        })
        .await
    }

    /// Lets what runs finish; after the drain time, or when told to abort, stops it and gives it back.
    async fn drain(&self, slots: &mut Slots) {
        let late = self.crew.host().sleep(self.crew.options().drain);
        let impatient = select(late, Box::pin(self.shutdown.reached(Stage::Abort)));
        // A worker that has ended by itself starts nothing more either.
        self.shutdown.drain();
        if let Either::Left(_) = select(Box::pin(finish(slots)), impatient).await {
            return;
        }
        for hold in self.under_way().values().flatten() {
            hold.stop(Stop::Shutdown);
        }
        finish(slots).await;
    }

    /// Claims a task and, if it is ours, brings it to its end. False if there was nothing to do.
    async fn attempt(self: Arc<Self>, id: TaskId) -> bool {
        let (worker, instance) = (self.crew.id().clone(), self.instance.clone());
        let had_something = match self.blocking(move |spool| spool.claim(&id, &worker, &instance)).await {
            Ok(Some(held)) => self.execute(held).await,
            Ok(None) => false,
            Err(error) => {
                tracing::warn!(task = %id, "the claim failed: {error}");
                false
            }
        };
        self.under_way().remove(&id);
        had_something
    }

    async fn execute(&self, held: Held) -> bool {
        let span = self.crew.span(&held.task);
        self.run_and_settle(held).instrument(span).await
    }

    async fn run_and_settle(&self, held: Held) -> bool {
        let id = held.task.id;
        let kept = Kept::new(held);
        self.under_way().insert(id, Some(kept.hold.clone()));
        // The keeper ends only after the last sender is gone.
        let _ = self.beating.send(kept.clone());
        let task = self.confirmed(&kept).await;
        let (is_run, settlement) = match task {
            Some(task) => {
                let now = || Ok(self.spool.now().present().latest_known());
                (true, self.crew.run(task, &kept.hold, &now).await)
            }
            None => (false, unused(&kept.hold)),
        };
        let settled = match settlement {
            Some(settlement) => self.settle(&kept, settlement).await,
            None => None,
        };
        kept.hold.settled();
        if is_run {
            self.crew.count(settled.as_ref());
        }
        is_run
    }

    /// The task, once its handler may start; nothing if it may not.
    async fn confirmed(&self, kept: &Kept) -> Option<Task> {
        let held = kept.held().await.clone();
        let is_relaxed = self.is_relaxed();
        let is_heard_of = || !self.is_silent() && self.spool.now().bucket.is_some();
        if !held.lease.tentative || is_relaxed && !is_heard_of() {
            return Some(held.task);
        }
        let patience = if is_relaxed { MOMENT } else { CONFIRMATION_WAIT };
        let (host, began) = (self.crew.host(), self.crew.host().instant());
        while kept.hold.stopped().is_none() && !self.shutdown.is_asked_for() {
            if self.is_confirmed(&held).await.unwrap_or_else(|error| kept.heard(&error)) {
                *self.silence() = None;
                // The bucket says which attempt it is, under which epoch.
                kept.beat(&self.spool, host, true).await;
                return kept.hold.stopped().is_none().then_some(kept.held().await.task.clone());
            }
            if host.instant().since(began) >= patience {
                self.fall_silent(began);
                if is_relaxed {
                    return Some(held.task);
                }
                tracing::info!("task released, the bucket has not confirmed the claim");
                return None;
            }
            host.sleep(CONFIRMATION_EVERY).await;
        }
        if kept.hold.stopped() == Some(Stop::Lost)
            && let Err(error) = self.blocking(move |spool| spool.never_ran(&held)).await
        {
            tracing::warn!("a task counts as run twice that was not: {error}");
        }
        None
    }

    fn is_relaxed(&self) -> bool {
        self.spool.config().consistency == Consistency::Relaxed
    }

    async fn is_confirmed(&self, held: &Held) -> Result<bool> {
        let held = held.clone();
        Ok(self.blocking(move |spool| spool.standing(&held)).await?.confirmed)
    }

    /// Writes down how it ended.
    async fn settle(&self, kept: &Kept, settlement: Settlement) -> Option<Task> {
        let settlement = self.written(settlement);
        let (host, began) = (self.crew.host(), self.crew.host().instant());
        loop {
            // Nobody is heard of in between.
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

    /// A result that comes when others have the task is kept for a person.
    async fn keep_late(&self, held: &Held, settlement: Settlement) {
        let Settlement::Complete { output, results } = settlement else { return };
        let held = held.clone();
        if let Err(error) = self.blocking(move |spool| spool.keep_late(&held, output, results)).await {
            tracing::error!(%error, "failed to keep a result that came too late");
        }
    }

    /// What cannot be written down as it is fails, and no further attempt would change that.
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
        let now = self.crew.host().instant();
        self.silence().is_some_and(|silence| now.since(silence.since) < silence.lasts)
    }

    /// Several slots may have waited at once: that is one silence.
    fn fall_silent(&self, began: Instant) {
        let now = self.crew.host().instant();
        let mut silence = self.silence();
        let lasts = match *silence {
            Some(before) if before.since.since(began) > Duration::ZERO => return,
            Some(before) => (before.lasts * 2).min(SILENCE_MAX),
            None => SILENCE_MIN,
        };
        *silence = Some(Silence { since: now, lasts });
    }

    /// Does something with the spool where it holds nobody up.
    fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Spool) -> Result<T> + Send + 'static,
    ) -> BoxFuture<'static, Result<T>> {
        let spool = self.spool.clone();
        self.crew.host().blocking(move || work(&spool))
    }

    fn under_way(&self) -> MutexGuard<'_, BTreeMap<TaskId, Option<Arc<Hold>>>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn silence(&self) -> MutexGuard<'_, Option<Silence>> {
        self.silence.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn finish(slots: &mut Slots) {
    while slots.next().await.is_some() {}
}

/// What becomes of a task whose handler has not started.
fn unused(hold: &Hold) -> Option<Settlement> {
    match hold.stopped() {
        Some(Stop::Lost | Stop::Settled) => None,
        Some(Stop::Cancelled) => Some(Settlement::Stop),
        _ => Some(Settlement::Release),
    }
}

fn write(spool: &Spool, held: &Held, settlement: Settlement) -> Result<Task> {
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
