//! Finding work and filling the slots.
//!
//! Entries that a look has shown are worked off before the next look, so that a list serves up to a thousand tasks. What
//! is under way goes on during a look: a page takes as long as many tasks.
//!
//! An idle worker does not look at the index: it asks whether the bell has rung, one get whatever the number of shards, and
//! looks when it has, when a minute begins in which something is planned, and from time to time anyway. A poll that finds
//! nothing makes the next pause longer; anything found, and any task made pending in this process, makes it short again.

mod lane;
mod look;

use futures::future::{BoxFuture, Either, select, select_all};
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use leasehold_core::{Entry, Error, Kind, Result, ShardRange, StoreTime, TaskId, Where};
use leasehold_queue::{Bell, Found, Met, News};
use leasehold_store::HostExt;
use leasehold_store::health::REPORT_AFTER;
use leasehold_store::host::Instant;
use std::collections::{HashSet, VecDeque};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use self::lane::Lane;
use crate::remember::{CORRUPT_PAUSE, Next, Remembered};
use crate::run::{DrainWait, Engine};
use crate::shutdown::{Shutdown, Stage};

/// Types without a handler here are looked at again after this: someone may have added one elsewhere and gone.
const FOREIGN_PAUSE: Duration = Duration::from_mins(5);
/// An entry whose task is not there yet: its producer is probably between its two writes.
const AHEAD_PAUSE: Duration = Duration::from_secs(1);
/// The same, when it has not come for a while: its producer may be in trouble, and succeed later.
const AHEAD_PAUSE_MAX: Duration = Duration::from_mins(1);
/// Shortest pause before something known to be due: a look that comes a moment early is a look for nothing.
const AGAIN_MIN: Duration = Duration::from_millis(10);
/// Pause after a look that failed, and while nothing may be claimed.
const FAILED_PAUSE: Duration = Duration::from_secs(1);
/// Longest pause while `queue.json` is missing or corrupt: a person has to restore it.
const NO_LAYOUT_PAUSE_MAX: Duration = Duration::from_secs(30);
/// A worker that stops when there is nothing left waits for what is due so soon.
pub(crate) const SOON: Duration = Duration::from_mins(1);
/// What has waited in an inbox for so long is worth a warning: its worker was away.
const OLD: Duration = Duration::from_hours(24);

pub(crate) struct Poller {
    engine: Arc<Engine>,
    slots: FuturesUnordered<BoxFuture<'static, (Found, Met)>>,
    busy: HashSet<TaskId>,
    /// What has ended since the look under way began: its pages may still show these.
    ended: HashSet<Entry>,
    waiting: VecDeque<Found>,
    news: News,
    bell: Bell,
    remembered: Remembered,
    pause: Duration,
    /// When to poll again; at once if there is no such moment.
    rest: Option<(Instant, Duration)>,
    /// When the index was last looked at without any other reason.
    swept: Option<Instant>,
    /// That look did not see the whole index: the next one begins elsewhere.
    was_swept_partly: bool,
    /// One page does not show all that waits in the queue.
    is_crowded: bool,
    seen: Seen,
    /// No slot was free since then.
    full_since: Option<Instant>,
    inbox: Option<Lane>,
    overflow: Lane,
    /// When a store that fails was last probed.
    probed: Option<Instant>,
    /// The task whose claim is the probe.
    probe: Option<TaskId>,
    /// Since when `queue.json` is missing or corrupt.
    no_layout_since: Option<Instant>,
}

/// What the last look has shown.
#[derive(Default)]
struct Seen {
    /// When it was.
    at: Option<Instant>,
    /// The first minute that had not begun and has entries.
    next: Option<StoreTime>,
    /// The ready entries that it has shown and that may still wait.
    waiting: HashSet<Entry>,
    /// It did not see the whole index.
    is_partial: bool,
    /// It was at all shards, also those of others.
    is_of_all: bool,
    /// The shards that were served then.
    ranges: Vec<ShardRange>,
}

impl Poller {
    pub(crate) fn new(engine: Arc<Engine>) -> Self {
        Self {
            pause: engine.crew.options.polling.min,
            inbox: Lane::inbox(&engine),
            overflow: Lane::overflow(&engine),
            news: engine.queue.listen(),
            engine,
            slots: FuturesUnordered::new(),
            busy: HashSet::new(),
            ended: HashSet::new(),
            waiting: VecDeque::new(),
            bell: Bell::default(),
            remembered: Remembered::default(),
            rest: None,
            swept: None,
            was_swept_partly: false,
            is_crowded: false,
            seen: Seen::default(),
            full_since: None,
            probed: None,
            probe: None,
            no_layout_since: None,
        }
    }

    /// Polls until told to stop, or until there is nothing left to do. Fails when this worker can never claim again.
    pub(crate) async fn run(&mut self, shutdown: &Shutdown) -> Result<()> {
        let mut is_paused = false;
        while shutdown.stage() == Stage::Go {
            let engine = self.engine.clone();
            if let Some(inbox) = &engine.inbox {
                inbox.turn();
            }
            let is_probe = match self.until_probe() {
                None => false,
                // A probe does not wait for the usual rest: it would ask nothing.
                Some(left) if left.is_zero() => {
                    (self.probed, self.rest) = (Some(engine.host().instant()), None);
                    true
                }
                Some(left) => {
                    self.idle(left, shutdown).await;
                    continue;
                }
            };
            if let Err(error) = self.meanwhile(engine.queue.may_change()).await {
                if error.kind() == Kind::Invalid && engine.queue.is_outdated() {
                    return Err(error);
                }
                // The queue is being migrated, or out of reach: what is held goes on, and so does this later.
                if !is_paused && engine.outage().is_none() {
                    tracing::warn!(%error, "nothing is claimed for now");
                }
                is_paused = true;
                let pause = self.pause_after(&error);
                self.idle(pause, shutdown).await;
                continue;
            }
            if std::mem::take(&mut is_paused) {
                if self.no_layout_since.take().is_some() {
                    // What was read meanwhile may have been corrupt for the same reason.
                    self.remembered = Remembered::default();
                }
                // What moved meanwhile was not announced to anyone.
                (self.rest, self.seen.at) = (None, None);
                self.overflow.look_soon();
                self.inbox.iter_mut().for_each(Lane::look_soon);
            }
            self.recall().await;
            self.fill(is_probe);
            if is_probe && !self.waiting.is_empty() {
                // The claim is the probe. A scan would find again what waits already.
                continue;
            }
            if self.slots.len() >= self.engine.crew.options.concurrency {
                self.next_slot(shutdown).await;
                self.pass_on().await;
                continue;
            }
            self.full_since = None;
            if let Some(left) = self.left_to_rest() {
                self.idle(left, shutdown).await;
                continue;
            }
            // A look that began while something was under way may not have seen what that has put back.
            let saw_all = self.slots.is_empty();
            if let Err(error) = self.poll().await {
                engine.request_failed("look for tasks", &error);
                self.idle(FAILED_PAUSE, shutdown).await;
                continue;
            }
            if !self.waiting.is_empty() {
                self.engine.set_drain_wait(None);
                self.pause = self.engine.crew.options.polling.min;
                // What was seen whole needs no second look at once.
                self.rest = (!self.is_more_to_see()).then(|| (self.engine.host().instant(), self.pause));
                continue;
            }
            if self.engine.crew.options.until_empty && saw_all {
                let wait = self.drain_wait().await;
                self.engine.set_drain_wait(wait);
                if wait.is_none() {
                    return Ok(());
                }
            }
            self.rest = Some((self.engine.host().instant(), self.next_pause()));
            self.pause = self.engine.crew.options.polling.slower(self.pause);
        }
        Ok(())
    }

    /// Time until a store that fails is probed again; none while it answers. One probe serves all that waits: a claim if
    /// there is something to claim, and the usual poll.
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

    /// Pause after `queue.json` could not be read, or tells us to wait. It grows while there is something else in its place:
    /// such a store answers, so it is not probed.
    fn pause_after(&mut self, error: &Error) -> Duration {
        if !matches!(error.kind(), Kind::Invalid | Kind::Corrupt) {
            return FAILED_PAUSE;
        }
        let now = self.engine.host().instant();
        let since = *self.no_layout_since.get_or_insert(now);
        (now.since(since) / 2).clamp(FAILED_PAUSE, NO_LAYOUT_PAUSE_MAX)
    }

    /// Waits for everything that is under way.
    pub(crate) async fn finish(&mut self) {
        while let Some((found, met)) = self.slots.next().await {
            self.learn(found, &met);
        }
    }

    /// Takes up again what was seen before and whose moment has come.
    async fn recall(&mut self) {
        let Ok(now) = self.engine.queue.now() else { return };
        let mut held = Vec::new();
        for (found, next) in self.remembered.recall(now) {
            match next {
                Next::Claim | Next::Await => {
                    // What becomes due was not rung for.
                    self.engine.served.stir();
                    self.waiting.push_back(found);
                }
                Next::Recover | Next::Sweep => held.push((found, next)),
            }
        }
        self.sweep(held).await;
    }

    /// Starts attempts; a single one as a probe.
    fn fill(&mut self, is_probe: bool) {
        let Ok(now) = self.engine.queue.now() else { return };
        if is_probe && self.probe.is_some_and(|id| self.busy.contains(&id)) {
            return;
        }
        while self.slots.len() < self.engine.crew.options.concurrency {
            let Some(found) = self.waiting.pop_front() else { return };
            if !self.is_ours(&found, now) {
                // Should we serve it again, another look has to find it.
                self.seen.at = None;
                self.inbox.iter_mut().for_each(Lane::look_soon);
            } else if self.busy.insert(found.entry.id) {
                self.probe = is_probe.then_some(found.entry.id);
                self.slots.push(Box::pin(self.engine.clone().attempt(found)));
                if is_probe {
                    return;
                }
            }
        }
    }

    /// Whether the last looks did not see all that there is.
    fn is_more_to_see(&self) -> bool {
        self.seen.is_partial || self.lanes().any(|lane| lane.is_partial)
    }

    /// A worker that takes nothing up for long keeps nothing for itself (promise P4): what waits in its inbox goes to others.
    async fn pass_on(&mut self) {
        let Some(inbox) = self.engine.inbox.clone() else { return };
        let now = self.engine.host().instant();
        let since = *self.full_since.get_or_insert(now);
        if now.since(since) < self.engine.crew.options.sweep_every {
            return;
        }
        self.full_since = Some(now);
        self.waiting.retain(|found| !matches!(found.entry.place, Where::Inbox(_)));
        self.inbox.iter_mut().for_each(Lane::look_soon);
        let (queue, busy) = (self.engine.queue.clone(), self.busy.clone());
        let passed = self.meanwhile(queue.pass_on_inbox(inbox.worker(), &busy)).await;
        if let Err(error) = passed {
            self.engine.request_failed("pass the inbox on", &error);
        }
    }

    /// The first minute that had not begun at the last looks and has entries.
    fn next_minute(&self) -> Option<StoreTime> {
        self.lanes().filter_map(|lane| lane.next).chain(self.seen.next).min()
    }

    fn lanes(&self) -> impl Iterator<Item = &Lane> {
        self.inbox.iter().chain([&self.overflow])
    }

    /// How long to rest until the next poll, or until something is recalled.
    fn left_to_rest(&self) -> Option<Duration> {
        let (since, rest) = self.rest?;
        let left = rest.checked_sub(self.engine.host().instant().since(since))?;
        let recall = self.remembered.first_run().and_then(|at| self.until_possible(at));
        Some(recall.map_or(left, |recall| recall.min(left))).filter(|left| !left.is_zero())
    }

    /// The usual pause, or less if another minute begins before.
    fn next_pause(&self) -> Duration {
        let usual = self.pause.mul_f64(0.9) + self.engine.host().random_below(self.pause / 5);
        self.next_minute().and_then(|at| self.until_possible(at)).map_or(usual, |minute| minute.min(usual))
    }

    /// How long it is until *now* may have reached this moment.
    fn until_possible(&self, at: StoreTime) -> Option<Duration> {
        Some(at.since(self.engine.queue.now().ok()?.latest_known()).max(AGAIN_MIN))
    }

    /// Waits for one slot to become free, but not for so long that this loop would seem to hang.
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

    /// Waits for an answer while what is under way goes on.
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

    /// Waits for a while, or for a slot, or for news.
    async fn idle(&mut self, pause: Duration, shutdown: &Shutdown) {
        // Not for so long that this loop would seem to hang.
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
            self.pause = self.engine.crew.options.polling.min;
            self.inbox.iter_mut().for_each(Lane::look_soon);
            (self.rest, self.seen.at) = (None, None);
        }
    }

    /// Whether nothing waits here: all that was seen is ours, or others have it.
    fn is_ready_empty(&self) -> bool {
        self.seen.waiting.is_empty() && !self.seen.is_partial
    }

    fn learn(&mut self, found: Found, met: &Met) {
        self.full_since = None;
        self.busy.remove(&found.entry.id);
        if matches!(met, Met::Claimed(_) | Met::Held(_) | Met::Stale)
            && self.seen.waiting.remove(&found.entry)
        {
            self.engine.served.saw_ready(self.is_ready_empty());
        }
        let Ok(now) = self.engine.queue.now() else { return };
        let soon = now.latest_known();
        let (until, next) = match met {
            Met::Claimed(_) => return self.remembered.forget(&found.entry),
            // What was planned starts when even the earliest that now can be has come so far.
            Met::NotDue(at) => (soon.plus(at.since(now.earliest)), Next::Claim),
            // It was passed on.
            Met::Foreign(_) if matches!(found.entry.place, Where::Inbox(_)) => {
                return self.remembered.forget(&found.entry);
            }
            Met::Foreign(_) => (soon.plus(FOREIGN_PAUSE), Next::Claim),
            Met::Held(at) => ((*at).min(soon.plus(self.engine.queue.config().stale_grace)), Next::Recover),
            // The next look tells whether it is still there, and then it is swept.
            Met::Stale | Met::Expired => (soon, Next::Sweep),
            // Its producer has given up, or never will be heard of again.
            Met::Ahead if now.is_past(found.written_at.plus(self.engine.queue.config().ahead_grace)) => {
                (soon, Next::Sweep)
            }
            // The older it is, the less likely its task still comes.
            Met::Ahead => {
                let age = soon.since(found.written_at);
                (soon.plus((age / 4).clamp(AHEAD_PAUSE, AHEAD_PAUSE_MAX)), Next::Await)
            }
            Met::Corrupt(error) => {
                self.engine.report(&error.to_string());
                (now.latest_known().plus(CORRUPT_PAUSE), Next::Sweep)
            }
        };
        self.remembered.until(found, until, next);
    }

    /// What will be due soon, or may come back from another worker. A worker that stops when there is nothing left does
    /// not leave behind what a lost one has held.
    async fn drain_wait(&mut self) -> Option<DrainWait> {
        let Ok(now) = self.engine.queue.now() else { return Some(DrainWait::Store) };
        let due = [self.next_minute(), self.remembered.first_due()].into_iter().flatten().min();
        if let Some(due) = due.filter(|due| *due <= now.latest_known().plus(SOON)) {
            return Some(DrainWait::Due(due));
        }
        if !self.engine.served.is_settled_in(now) || self.serves_others().unwrap_or(true) {
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
            // It may be in the overflow, or come there, or its ring was lost.
            self.overflow.look_soon();
            self.inbox.iter_mut().for_each(Lane::look_soon);
        }
        wait
    }
}
