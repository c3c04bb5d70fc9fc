//! Polling: finding work and filling the slots.
//!
//! Entries that a scan has found are claimed before the next scan, so that one list serves up to a thousand tasks.
//! Running tasks continue during a scan: reading a page takes as long as many tasks.
//!
//! An idle worker does not scan the index. It reads the bell (the notification object), 1 get whatever the number of
//! shards, and scans when the bell has changed, when a minute begins that has scheduled tasks, and periodically. A
//! poll that finds nothing makes the next pause longer; any task that is found, and any task that becomes pending in
//! this process, makes it short again.
//!
//! Requests: 1 get per poll while idle; 1 list per thousand due entries.

mod scan;
mod side_index;

use futures::future::{BoxFuture, Either, select, select_all};
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use leasehold_core::{Entry, Error, IndexLocation, Kind, Result, ShardRange, StoreTime, TaskId};
use leasehold_queue::{Bell, ClaimOutcome, IndexHit, PendingSignal};
use leasehold_store::HostExt;
use leasehold_store::health::REPORT_AFTER;
use leasehold_store::host::Instant;
use std::collections::{HashSet, VecDeque};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use self::side_index::SideIndex;
use crate::backoff::{BackoffAction, CORRUPT_PAUSE, EntryBackoff};
use crate::run::{DrainWait, Engine};
use crate::shutdown::{Shutdown, Stage};

/// Pause before a task type without a handler is checked again: the worker that can run it may be gone.
const FOREIGN_PAUSE: Duration = Duration::from_mins(5);
/// Pause before an entry ahead of its task is checked again: its producer is probably between its two writes.
const AHEAD_PAUSE: Duration = Duration::from_secs(1);
/// Maximum of that pause: the producer may have problems, and succeed later.
const AHEAD_PAUSE_MAX: Duration = Duration::from_mins(1);
/// Minimum pause before a known due time: a scan that is a moment early finds nothing.
const AGAIN_MIN: Duration = Duration::from_millis(10);
/// Pause after a failed scan, and while nothing may be claimed.
const FAILED_PAUSE: Duration = Duration::from_secs(1);
/// Maximum pause while `queue.json` is missing or corrupt: an operator has to restore it.
const NO_LAYOUT_PAUSE_MAX: Duration = Duration::from_secs(30);
/// Time within which a due task keeps a worker running that stops when nothing is left.
pub(crate) const SOON: Duration = Duration::from_mins(1);
/// Age of the oldest task in an inbox from which on a warning is logged: its worker was away.
const OLD: Duration = Duration::from_hours(24);

pub(crate) struct Poller {
    engine: Arc<Engine>,
    slots: FuturesUnordered<BoxFuture<'static, (IndexHit, ClaimOutcome)>>,
    busy: HashSet<TaskId>,
    /// Entries whose tasks have ended since the current scan began: its pages may still contain them.
    ended: HashSet<Entry>,
    waiting: VecDeque<IndexHit>,
    news: PendingSignal,
    bell: Bell,
    remembered: EntryBackoff,
    pause: Duration,
    /// Start and duration of the pause until the next poll; none means to poll at once.
    rest: Option<(Instant, Duration)>,
    /// Time of the last periodic scan of the index.
    swept: Option<Instant>,
    /// True if that scan was incomplete: the next one begins at another position.
    was_swept_partly: bool,
    /// True if the ready index does not fit in one page.
    is_crowded: bool,
    seen: LastScan,
    /// Time since which no slot was free.
    full_since: Option<Instant>,
    inbox: Option<SideIndex>,
    overflow: SideIndex,
    /// Time of the last probe of a failing store.
    probed: Option<Instant>,
    /// The task whose claim is the probe.
    probe: Option<TaskId>,
    /// Time since which `queue.json` is missing or corrupt.
    no_layout_since: Option<Instant>,
}

/// Result of the last scan.
#[derive(Default)]
struct LastScan {
    /// Time of the scan.
    at: Option<Instant>,
    /// The first future minute that has entries.
    next: Option<StoreTime>,
    /// Ready entries that it found and that may still be waiting.
    waiting: HashSet<Entry>,
    /// True if it was incomplete.
    is_partial: bool,
    /// True if it included the shards of other workers.
    is_of_all: bool,
    /// Shards that were served at that time.
    ranges: Vec<ShardRange>,
}

impl Poller {
    pub(crate) fn new(engine: Arc<Engine>) -> Self {
        Self {
            pause: engine.runner.options.polling.min,
            inbox: SideIndex::inbox(&engine),
            overflow: SideIndex::overflow(&engine),
            news: engine.queue.listen(),
            engine,
            slots: FuturesUnordered::new(),
            busy: HashSet::new(),
            ended: HashSet::new(),
            waiting: VecDeque::new(),
            bell: Bell::default(),
            remembered: EntryBackoff::default(),
            rest: None,
            swept: None,
            was_swept_partly: false,
            is_crowded: false,
            seen: LastScan::default(),
            full_since: None,
            probed: None,
            probe: None,
            no_layout_since: None,
        }
    }

    /// Polls until shutdown, or until nothing is left to do. Fails if this worker can never claim again.
    pub(crate) async fn run(&mut self, shutdown: &Shutdown) -> Result<()> {
        let mut is_paused = false;
        while shutdown.stage() == Stage::Go {
            let engine = self.engine.clone();
            if let Some(inbox) = &engine.inbox {
                inbox.turn();
            }
            let is_probe = match self.until_probe() {
                None => false,
                // A probe does not wait for the usual pause.
                Some(left) if left.is_zero() => {
                    (self.probed, self.rest) = (Some(engine.host().instant()), None);
                    true
                }
                Some(left) => {
                    self.idle(left, shutdown).await;
                    continue;
                }
            };
            if let Err(error) = self.meanwhile(engine.queue.ensure_writable()).await {
                if error.kind() == Kind::Invalid && engine.queue.is_outdated() {
                    return Err(error);
                }
                // The queue is being migrated, or unreachable: running tasks continue, and polling resumes later.
                if !is_paused && engine.outage().is_none() {
                    tracing::warn!(%error, "claiming paused");
                }
                is_paused = true;
                let pause = self.pause_after(&error);
                self.idle(pause, shutdown).await;
                continue;
            }
            if std::mem::take(&mut is_paused) {
                if self.no_layout_since.take().is_some() {
                    // Records that were corrupt meanwhile may have been so for the same reason.
                    self.remembered = EntryBackoff::default();
                }
                // Changes made meanwhile were not rung for.
                (self.rest, self.seen.at) = (None, None);
                self.overflow.look_soon();
                self.inbox.iter_mut().for_each(SideIndex::look_soon);
            }
            self.recall().await;
            self.fill(is_probe);
            if is_probe && !self.waiting.is_empty() {
                // The claim is the probe. A scan would find the waiting entries again.
                continue;
            }
            if self.slots.len() >= self.engine.runner.options.concurrency {
                self.next_slot(shutdown).await;
                self.pass_on().await;
                continue;
            }
            self.full_since = None;
            if let Some(left) = self.left_to_rest() {
                self.idle(left, shutdown).await;
                continue;
            }
            // A scan that began while a task was running may have missed what that task released.
            let saw_all = self.slots.is_empty();
            if let Err(error) = self.poll().await {
                engine.request_failed("scan for tasks", &error);
                self.idle(FAILED_PAUSE, shutdown).await;
                continue;
            }
            if !self.waiting.is_empty() {
                self.engine.set_drain_wait(None);
                self.pause = self.engine.runner.options.polling.min;
                // A complete scan need not be repeated at once.
                self.rest = (!self.is_more_to_see()).then(|| (self.engine.host().instant(), self.pause));
                continue;
            }
            if self.engine.runner.options.until_empty && saw_all {
                let wait = self.drain_wait().await;
                self.engine.set_drain_wait(wait);
                if wait.is_none() {
                    return Ok(());
                }
            }
            self.rest = Some((self.engine.host().instant(), self.next_pause()));
            self.pause = self.engine.runner.options.polling.slower(self.pause);
        }
        Ok(())
    }

    /// Time until a failing store is probed again; none while it answers. One probe serves all waiting work: a claim
    /// if there is something to claim, and the usual poll.
    fn until_probe(&mut self) -> Option<Duration> {
        let now = self.engine.host().instant();
        let Some(outage) = self.engine.outage() else {
            (self.probed, self.probe) = (None, None);
            return None;
        };
        if now.since(outage.since) >= REPORT_AFTER {
            self.engine.queue.client().report_outage();
        }
        let pause = outage.pause(now);
        Some(self.probed.map_or(Duration::ZERO, |probed| pause.saturating_sub(now.since(probed))))
    }

    /// Pause after `queue.json` could not be read, or does not allow claims. It grows while `queue.json` is missing,
    /// corrupt or foreign: such a store answers, so it is not probed.
    fn pause_after(&mut self, error: &Error) -> Duration {
        if !matches!(error.kind(), Kind::Invalid | Kind::Corrupt) {
            return FAILED_PAUSE;
        }
        let now = self.engine.host().instant();
        let since = *self.no_layout_since.get_or_insert(now);
        (now.since(since) / 2).clamp(FAILED_PAUSE, NO_LAYOUT_PAUSE_MAX)
    }

    /// Waits for all running tasks.
    pub(crate) async fn finish(&mut self) {
        while let Some((found, met)) = self.slots.next().await {
            self.learn(found, &met);
        }
    }

    /// Resumes entries whose pause is over.
    async fn recall(&mut self) {
        let Ok(now) = self.engine.queue.now() else { return };
        let mut held = Vec::new();
        for (found, next) in self.remembered.recall(now) {
            match next {
                BackoffAction::Claim | BackoffAction::Await => {
                    // A task that becomes due is not rung for.
                    self.engine.assignment.mark_active();
                    self.waiting.push_back(found);
                }
                BackoffAction::Recover | BackoffAction::Sweep => held.push((found, next)),
            }
        }
        self.sweep(held).await;
    }

    /// Starts attempts in the free slots; only one as a probe.
    fn fill(&mut self, is_probe: bool) {
        let Ok(now) = self.engine.queue.now() else { return };
        if is_probe && self.probe.is_some_and(|id| self.busy.contains(&id)) {
            return;
        }
        while self.slots.len() < self.engine.runner.options.concurrency {
            let Some(found) = self.waiting.pop_front() else { return };
            if !self.is_ours(&found, now) {
                // If the shard is served again, another scan has to find it.
                self.seen.at = None;
                self.inbox.iter_mut().for_each(SideIndex::look_soon);
            } else if self.busy.insert(found.entry.id) {
                self.probe = is_probe.then_some(found.entry.id);
                self.slots.push(Box::pin(self.engine.clone().attempt(found)));
                if is_probe {
                    return;
                }
            }
        }
    }

    /// True if the last scans were incomplete.
    fn is_more_to_see(&self) -> bool {
        self.seen.is_partial || self.lanes().any(|lane| lane.is_partial)
    }

    /// Moves the tasks in the inbox to the overflow when no slot was free for long (promise P4).
    async fn pass_on(&mut self) {
        let Some(inbox) = self.engine.inbox.clone() else { return };
        let now = self.engine.host().instant();
        let since = *self.full_since.get_or_insert(now);
        if now.since(since) < self.engine.runner.options.sweep_every {
            return;
        }
        self.full_since = Some(now);
        self.waiting.retain(|found| !matches!(found.entry.place, IndexLocation::Inbox(_)));
        self.inbox.iter_mut().for_each(SideIndex::look_soon);
        let (queue, busy) = (self.engine.queue.clone(), self.busy.clone());
        let passed = self.meanwhile(queue.pass_on_inbox(inbox.worker(), &busy)).await;
        if let Err(error) = passed {
            self.engine.request_failed("move the inbox to the overflow", &error);
        }
    }

    /// The first future minute that has entries, from the last scans.
    fn next_minute(&self) -> Option<StoreTime> {
        self.lanes().filter_map(|lane| lane.next).chain(self.seen.next).min()
    }

    fn lanes(&self) -> impl Iterator<Item = &SideIndex> {
        self.inbox.iter().chain([&self.overflow])
    }

    /// Time until the next poll, or until an entry's pause is over.
    fn left_to_rest(&self) -> Option<Duration> {
        let (since, rest) = self.rest?;
        let left = rest.checked_sub(self.engine.host().instant().since(since))?;
        let recall = self.remembered.first_run().and_then(|at| self.until_possible(at));
        Some(recall.map_or(left, |recall| recall.min(left))).filter(|left| !left.is_zero())
    }

    /// The usual pause, or less if a minute with entries begins before.
    fn next_pause(&self) -> Duration {
        let usual = self.pause.mul_f64(0.9) + self.engine.host().random_below(self.pause / 5);
        self.next_minute().and_then(|at| self.until_possible(at)).map_or(usual, |minute| minute.min(usual))
    }

    /// Time until *now* may have reached this time.
    fn until_possible(&self, at: StoreTime) -> Option<Duration> {
        Some(at.since(self.engine.queue.now().ok()?.latest_known()).max(AGAIN_MIN))
    }

    /// Waits for a slot to become free, but never so long that this loop seems to hang.
    async fn next_slot(&mut self, shutdown: &Shutdown) {
        let turn = match &self.engine.inbox {
            Some(inbox) => self.engine.host().sleep(inbox.turn()),
            None => futures::future::pending().boxed(),
        };
        let waited = select(turn, Box::pin(shutdown.reached(Stage::Drain)));
        if let Either::Left((Some((found, met)), _)) = select(self.slots.next(), waited).await {
            self.learn(found, &met);
        }
    }

    /// Waits for an answer while running tasks continue.
    async fn meanwhile<T>(&mut self, answer: impl Future<Output = T>) -> T {
        if let Some(inbox) = &self.engine.inbox {
            inbox.turn();
        }
        // Boxed, because it is large and passed through several futures.
        let mut answer = Box::pin(answer);
        while !self.slots.is_empty() {
            match select(answer.as_mut(), self.slots.next()).await {
                Either::Left((answer, _)) => return answer,
                Either::Right((ended, _)) => {
                    if let Some((found, met)) = ended {
                        self.ended.insert(found.entry.clone());
                        self.learn(found, &met);
                    }
                }
            }
        }
        answer.await
    }

    /// Waits for a pause, a free slot, or a task that becomes pending in this process.
    async fn idle(&mut self, pause: Duration, shutdown: &Shutdown) {
        // Never so long that this loop seems to hang.
        let pause = self.engine.inbox.as_ref().map_or(pause, |inbox| pause.min(inbox.turn()));
        let host = self.engine.host().clone();
        let waits: Vec<BoxFuture<'_, ()>> =
            vec![host.sleep(pause), Box::pin(self.news.heard()), Box::pin(shutdown.reached(Stage::Drain))];
        let waited = select_all(waits);
        if self.slots.is_empty() {
            let ((), which, _) = waited.await;
            self.heard(which);
            return;
        }
        let (ended, which) = match select(self.slots.next(), waited).await {
            Either::Left((ended, _)) => (ended, None),
            Either::Right((((), which, _), _)) => (None, Some(which)),
        };
        if let Some((found, met)) = ended {
            self.learn(found, &met);
        }
        if let Some(which) = which {
            self.heard(which);
        }
    }

    fn heard(&mut self, which: usize) {
        if which == 1 {
            self.pause = self.engine.runner.options.polling.min;
            self.inbox.iter_mut().for_each(SideIndex::look_soon);
            (self.rest, self.seen.at) = (None, None);
        }
    }

    /// True if nothing waits here: every entry that was found is claimed, here or by other workers.
    fn is_ready_empty(&self) -> bool {
        self.seen.waiting.is_empty() && !self.seen.is_partial
    }

    fn learn(&mut self, found: IndexHit, met: &ClaimOutcome) {
        self.full_since = None;
        self.busy.remove(&found.entry.id);
        if matches!(met, ClaimOutcome::Claimed(_) | ClaimOutcome::Held(_) | ClaimOutcome::Stale)
            && self.seen.waiting.remove(&found.entry)
        {
            self.engine.assignment.saw_ready(self.is_ready_empty());
        }
        let Ok(now) = self.engine.queue.now() else { return };
        let soon = now.latest_known();
        let (until, next) = match met {
            ClaimOutcome::Claimed(_) => return self.remembered.forget(&found.entry),
            // A scheduled task starts when even the earliest value of *now* has reached its time.
            ClaimOutcome::NotDue(at) => (soon.plus(at.since(now.earliest)), BackoffAction::Claim),
            // It was moved to the shared index.
            ClaimOutcome::Foreign(_) if matches!(found.entry.place, IndexLocation::Inbox(_)) => {
                return self.remembered.forget(&found.entry);
            }
            ClaimOutcome::Foreign(_) => (soon.plus(FOREIGN_PAUSE), BackoffAction::Claim),
            ClaimOutcome::Held(at) => {
                ((*at).min(soon.plus(self.engine.queue.config().stale_grace)), BackoffAction::Recover)
            }
            // If the next scan still finds it, it is swept.
            ClaimOutcome::Stale | ClaimOutcome::Expired => (soon, BackoffAction::Sweep),
            // Its producer has given up, or is dead.
            ClaimOutcome::Ahead
                if now.is_past(found.written_at.plus(self.engine.queue.config().ahead_grace)) =>
            {
                (soon, BackoffAction::Sweep)
            }
            // The older it is, the less likely is its task to appear.
            ClaimOutcome::Ahead => {
                let age = soon.since(found.written_at);
                (soon.plus((age / 4).clamp(AHEAD_PAUSE, AHEAD_PAUSE_MAX)), BackoffAction::Await)
            }
            ClaimOutcome::Corrupt(error) => {
                self.engine.report(&error.to_string());
                (now.latest_known().plus(CORRUPT_PAUSE), BackoffAction::Sweep)
            }
        };
        self.remembered.until(found, until, next);
    }

    /// Reason to wait before stopping: a task is due soon, or may be released by another worker. A worker that stops
    /// when nothing is left does not leave behind the tasks of a dead one.
    async fn drain_wait(&mut self) -> Option<DrainWait> {
        let Ok(now) = self.engine.queue.now() else { return Some(DrainWait::Store) };
        let due = [self.next_minute(), self.remembered.first_due()].into_iter().flatten().min();
        if let Some(due) = due.filter(|due| *due <= now.latest_known().plus(SOON)) {
            return Some(DrainWait::Due(due));
        }
        if !self.engine.assignment.is_settled_in(now) || self.serves_others().unwrap_or(true) {
            return Some(DrainWait::ShardLeases);
        }
        if let Some(id) = self.remembered.any_held() {
            return Some(DrainWait::Held(id));
        }
        let wait = match self.engine.held_by_others().await {
            Ok(held) => held.map(DrainWait::Held),
            Err(_) => Some(DrainWait::Store),
        };
        if wait.is_some() {
            // It may be in the overflow already or soon, and its ring may be lost.
            self.overflow.look_soon();
            self.inbox.iter_mut().for_each(SideIndex::look_soon);
        }
        wait
    }
}
