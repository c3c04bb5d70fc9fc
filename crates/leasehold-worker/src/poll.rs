//! Finding work and filling the slots.
//!
//! Entries that a look has shown are worked off before the next look, so that a list serves up to a thousand tasks.
//! A look that finds nothing makes the next pause longer; anything found, and any task made pending in this process,
//! makes it short again.

use futures::StreamExt;
use futures::future::{BoxFuture, Either, select, select_all};
use futures::stream::FuturesUnordered;
use leasehold_core::{Entry, Index, Kind, Result, StoreTime, TaskId};
use leasehold_queue::discover::{Look, lists_of};
use leasehold_queue::sweep::Swept;
use leasehold_queue::{Found, Met, News};
use leasehold_store::host::Instant;
use leasehold_store::{HostExt, List, Purpose};
use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::remember::{CORRUPT_PAUSE, Next, Remembered};
use crate::run::Engine;
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
/// A worker that stops when there is nothing left waits for what is due so soon.
const SOON: Duration = Duration::from_mins(1);

pub(crate) struct Poller {
    engine: Arc<Engine>,
    slots: FuturesUnordered<BoxFuture<'static, (Found, Met)>>,
    busy: HashSet<TaskId>,
    waiting: VecDeque<Found>,
    news: News,
    remembered: Remembered,
    pause: Duration,
    /// How long to wait after the last look.
    wait: Duration,
    /// When something known will be due.
    next_due: Option<StoreTime>,
    /// The last look did not see the whole index.
    is_partial: bool,
    /// When the whole index was last seen.
    look_after: Option<Instant>,
}

impl Poller {
    pub(crate) fn new(engine: Arc<Engine>) -> Self {
        Self {
            pause: engine.options.polling.min,
            wait: Duration::ZERO,
            news: engine.queue.listen(),
            engine,
            slots: FuturesUnordered::new(),
            busy: HashSet::new(),
            waiting: VecDeque::new(),
            remembered: Remembered::default(),
            next_due: None,
            is_partial: false,
            look_after: None,
        }
    }

    /// Polls until told to stop, or until there is nothing left to do. Fails when this worker can never claim again.
    pub(crate) async fn run(&mut self, shutdown: &Shutdown) -> Result<()> {
        let mut is_paused = false;
        while shutdown.stage() == Stage::Go {
            if let Err(error) = self.engine.queue.may_change().await {
                if error.kind() == Kind::Invalid {
                    return Err(error);
                }
                // The queue is being migrated, or out of reach: what is held goes on, and so does this later.
                if !is_paused {
                    tracing::warn!("nothing is claimed for now: {error}");
                }
                is_paused = true;
                self.idle(FAILED_PAUSE, shutdown).await;
                continue;
            }
            if std::mem::take(&mut is_paused) {
                // What moved meanwhile was not announced to anyone.
                self.look_after = None;
            }
            self.recall().await;
            self.fill();
            if self.slots.len() >= self.engine.options.concurrency {
                self.next_slot(shutdown).await;
                continue;
            }
            if let Some(left) = self.before_next_look() {
                self.idle(left, shutdown).await;
                continue;
            }
            if let Err(error) = self.look().await {
                tracing::warn!("looking for work failed: {error}");
                self.idle(FAILED_PAUSE, shutdown).await;
                continue;
            }
            if !self.waiting.is_empty() {
                self.pause = self.engine.options.polling.min;
                self.wait = self.pause;
                continue;
            }
            if self.engine.options.until_empty && self.slots.is_empty() && !self.is_more_coming().await {
                return Ok(());
            }
            self.wait = self.until_next();
            self.pause = self.engine.options.polling.slower(self.pause);
        }
        Ok(())
    }

    /// Takes up again what was seen before and whose moment has come.
    async fn recall(&mut self) {
        let Ok(now) = self.engine.queue.now() else { return };
        let mut held = Vec::new();
        for (found, next) in self.remembered.recall(now) {
            match next {
                Next::Claim => self.waiting.push_back(found),
                Next::Recover | Next::Sweep => held.push((found, next)),
            }
        }
        self.sweep(held).await;
    }

    /// How long to wait until the index is looked at again, or something is recalled.
    fn before_next_look(&self) -> Option<Duration> {
        let passed = self.engine.host().instant().since(self.look_after?);
        let left = self.wait.checked_sub(passed).filter(|left| !left.is_zero())?;
        Some(self.until(self.remembered.first_run()).map_or(left, |until| until.min(left)))
    }

    /// How long it is until this moment.
    fn until(&self, at: Option<StoreTime>) -> Option<Duration> {
        let now = self.engine.queue.now().ok()?;
        Some(at?.since(now.latest_known()).max(AGAIN_MIN))
    }

    /// Waits for everything that is under way.
    pub(crate) async fn finish(&mut self) {
        while let Some((found, met)) = self.slots.next().await {
            self.learn(found, &met);
        }
    }

    fn fill(&mut self) {
        while self.slots.len() < self.engine.options.concurrency {
            let Some(found) = self.waiting.pop_front() else { return };
            if self.busy.insert(found.entry.id) {
                self.slots.push(Box::pin(self.engine.clone().attempt(found)));
            }
        }
    }

    /// Waits for one slot to become free.
    async fn next_slot(&mut self, shutdown: &Shutdown) {
        if let Either::Left((Some((found, met)), _)) =
            select(self.slots.next(), Box::pin(shutdown.reached(Stage::Drain))).await
        {
            self.learn(found, &met);
        }
    }

    /// Waits for a while, or for a slot, or for news.
    async fn idle(&mut self, pause: Duration, shutdown: &Shutdown) {
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
            self.pause = self.engine.options.polling.min;
            self.look_after = None;
        }
    }

    fn learn(&mut self, found: Found, met: &Met) {
        self.busy.remove(&found.entry.id);
        let Ok(now) = self.engine.queue.now() else { return };
        let soon = now.latest_known();
        let (until, next) = match met {
            Met::Claimed(_) => return self.remembered.forget(&found.entry),
            // What was planned starts when even the earliest that now can be has come so far.
            Met::NotDue(at) => (soon.plus(at.since(now.earliest)), Next::Claim),
            Met::Foreign(_) => (soon.plus(FOREIGN_PAUSE), Next::Claim),
            Met::Held(at) => ((*at).min(soon.plus(self.engine.queue.options().stale_grace)), Next::Recover),
            // The next look tells whether it is still there, and then it is swept.
            Met::Stale | Met::Expired => (soon, Next::Sweep),
            // Its producer has given up, or never will be heard of again.
            Met::Ahead if now.is_past(found.written_at.plus(self.engine.queue.options().ahead_grace)) => {
                (soon, Next::Sweep)
            }
            // The older it is, the less likely its task still comes.
            Met::Ahead => {
                let age = soon.since(found.written_at);
                (soon.plus((age / 4).clamp(AHEAD_PAUSE, AHEAD_PAUSE_MAX)), Next::Claim)
            }
            Met::Corrupt(error) => {
                self.engine.report(&error.to_string());
                (now.latest_known().plus(CORRUPT_PAUSE), Next::Sweep)
            }
        };
        self.remembered.until(found, until, next);
    }

    /// Looks at the index until something is found to be claimed, or all of it was seen.
    async fn look(&mut self) -> Result<()> {
        let engine = self.engine.clone();
        let (shards, all) = engine.shards();
        let mut lists: VecDeque<List> =
            if all { self.root_lists() } else { lists_of(Index::Ready, shards).into() };
        let (mut stale, mut there) = (Vec::new(), HashSet::new());
        (self.is_partial, self.next_due) = (false, None);
        while let Some(list) = lists.pop_front() {
            let (look, beyond) = engine.queue.look(Purpose::Discover, list).await?;
            self.sort(look, &mut there, &mut stale)?;
            lists.extend(beyond);
            if !self.waiting.is_empty() && !lists.is_empty() {
                self.is_partial = true;
                break;
            }
        }
        if !self.is_partial {
            self.remembered.keep(|entry| there.contains(entry));
        }
        self.start_anywhere();
        self.sweep(stale).await;
        let now = engine.host().instant();
        // What was seen whole needs no second look before the pause is over.
        self.look_after = if self.is_partial { None } else { Some(now) };
        Ok(())
    }

    /// The whole index from its beginning while it fits on a page; else from a shard chosen by chance, so that no shard
    /// has to wait for those before it.
    fn root_lists(&self) -> VecDeque<List> {
        let whole = List::all(Index::Ready.root());
        if !self.is_partial {
            return [whole].into();
        }
        let (shards, _) = self.engine.shards();
        let at = usize::try_from(self.engine.host().random() % shards.len() as u64).unwrap_or(0);
        [whole.clone().after(Index::Ready.prefix(&shards[at])), whole].into()
    }

    fn sort(&mut self, look: Look, there: &mut HashSet<Entry>, stale: &mut Vec<(Found, Next)>) -> Result<()> {
        for key in &look.odd {
            self.engine.report(&format!("`{key}` is not an index entry"));
        }
        let now = self.engine.queue.now()?;
        let next = look.next.map(leasehold_core::Minute::start);
        self.next_due = [self.next_due, next].into_iter().flatten().min();
        for found in look.due {
            if self.busy.contains(&found.entry.id) || !there.insert(found.entry.clone()) {
                continue;
            }
            match self.remembered.next(&found.entry, now) {
                Some(Next::Claim) => self.waiting.push_back(found),
                Some(next) => stale.push((found, next)),
                None => {}
            }
        }
        Ok(())
    }

    /// Workers that start at different places rarely meet; within a shard the oldest still goes first.
    fn start_anywhere(&mut self) {
        let Some(last) = self.waiting.len().checked_sub(1).filter(|last| *last > 0) else { return };
        let host = self.engine.host();
        let at = usize::try_from(host.random() % (last as u64 + 1)).unwrap_or(0);
        let shard = self.waiting[at].entry.shard.clone();
        let start = self.waiting.iter().position(|found| found.entry.shard == shard).unwrap_or(0);
        self.waiting.rotate_left(start);
    }

    async fn sweep(&mut self, stale: Vec<(Found, Next)>) {
        for (found, next) in stale {
            let Ok(now) = self.engine.queue.now() else { return };
            let (until, next) = match self.engine.queue.sweep(&found).await {
                Ok(Swept::Held(at)) => (at, next),
                Ok(Swept::Later(at)) => (at, Next::Sweep),
                Ok(Swept::Fine) => {
                    self.remembered.forget(&found.entry);
                    continue;
                }
                Ok(Swept::Moved(task)) => {
                    self.engine.recovered(&task);
                    continue;
                }
                Ok(Swept::Removed) => continue,
                Ok(Swept::Corrupt(error)) => {
                    self.engine.report(&error.to_string());
                    (now.latest_known().plus(CORRUPT_PAUSE), Next::Sweep)
                }
                Err(error) => {
                    tracing::debug!("an entry was not swept: {error}");
                    continue;
                }
            };
            self.remembered.until(found, until, next);
        }
    }

    /// The usual pause, or less if another minute of the index begins before.
    fn until_next(&self) -> Duration {
        let pause = self.pause.mul_f64(0.9) + self.engine.host().random_below(self.pause / 5);
        self.until(self.next_due).map_or(pause, |until| until.min(pause))
    }

    /// Whether something will be due soon, or may come back from another worker. A worker that stops when there is
    /// nothing left does not leave behind what a lost one has held.
    async fn is_more_coming(&mut self) -> bool {
        let Ok(now) = self.engine.queue.now() else { return true };
        let due = [self.next_due, self.remembered.first_run()].into_iter().flatten().min();
        due.is_some_and(|due| due <= now.latest_known().plus(SOON))
            || self.remembered.is_any_held()
            || self.engine.do_others_hold_ours().await.unwrap_or(true)
    }
}
