//! Finding work and filling the slots.
//!
//! Entries that a look has shown are worked off before the next look, so that a list serves up to a thousand tasks. What
//! is under way goes on during a look: a page takes as long as many tasks.
//!
//! An idle worker does not look at the index: it asks whether the bell has rung, one get whatever the number of shards, and
//! looks when it has, when a minute begins in which something is planned, and from time to time anyway. A poll that finds
//! nothing makes the next pause longer; anything found, and any task made pending in this process, makes it short again.

use futures::StreamExt;
use futures::future::{BoxFuture, Either, select, select_all};
use futures::stream::FuturesUnordered;
use leasehold_core::limits::PAGE_KEYS_MAX;
use leasehold_core::{Entry, Index, Kind, Minute, Now, Result, ShardRange, StoreTime, TaskId};
use leasehold_queue::discover::{Look, Stretch};
use leasehold_queue::sweep::Swept;
use leasehold_queue::{Bell, Found, Met, News};
use leasehold_store::host::Instant;
use leasehold_store::{HostExt, Purpose};
use std::collections::{HashSet, VecDeque};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use crate::remember::{CORRUPT_PAUSE, Next, Remembered};
use crate::run::Engine;
use crate::served::Served;
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
            pause: engine.options.polling.min,
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
        }
    }

    /// Polls until told to stop, or until there is nothing left to do. Fails when this worker can never claim again.
    pub(crate) async fn run(&mut self, shutdown: &Shutdown) -> Result<()> {
        let mut is_paused = false;
        while shutdown.stage() == Stage::Go {
            let engine = self.engine.clone();
            if let Err(error) = self.meanwhile(engine.queue.may_change()).await {
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
                (self.rest, self.seen.at) = (None, None);
            }
            self.recall().await;
            self.fill();
            if self.slots.len() >= self.engine.options.concurrency {
                self.next_slot(shutdown).await;
                continue;
            }
            if let Some(left) = self.left_to_rest() {
                self.idle(left, shutdown).await;
                continue;
            }
            // A look that began while something was under way may not have seen what that has put back.
            let saw_all = self.slots.is_empty();
            if let Err(error) = self.poll().await {
                tracing::warn!("looking for work failed: {error}");
                self.idle(FAILED_PAUSE, shutdown).await;
                continue;
            }
            if !self.waiting.is_empty() {
                self.pause = self.engine.options.polling.min;
                // What was seen whole needs no second look at once.
                self.rest = (!self.seen.is_partial).then(|| (self.engine.host().instant(), self.pause));
                continue;
            }
            if self.engine.options.until_empty && saw_all && !self.is_more_coming().await {
                return Ok(());
            }
            self.rest = Some((self.engine.host().instant(), self.next_pause()));
            self.pause = self.engine.options.polling.slower(self.pause);
        }
        Ok(())
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
                Next::Claim => {
                    // What becomes due was not rung for.
                    self.engine.served.stir();
                    self.waiting.push_back(found);
                }
                Next::Recover | Next::Sweep => held.push((found, next)),
            }
        }
        self.sweep(held).await;
    }

    fn fill(&mut self) {
        let Ok(now) = self.engine.queue.now() else { return };
        while self.slots.len() < self.engine.options.concurrency {
            let Some(found) = self.waiting.pop_front() else { return };
            if !self.is_ours(&found, now) {
                // Should we serve it again, another look has to find it.
                self.seen.at = None;
            } else if self.busy.insert(found.entry.id) {
                self.slots.push(Box::pin(self.engine.clone().attempt(found)));
            }
        }
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
        self.seen.next.and_then(|at| self.until_possible(at)).map_or(usual, |minute| minute.min(usual))
    }

    /// How long it is until *now* may have reached this moment.
    fn until_possible(&self, at: StoreTime) -> Option<Duration> {
        Some(at.since(self.engine.queue.now().ok()?.latest_known()).max(AGAIN_MIN))
    }

    /// Waits for one slot to become free.
    async fn next_slot(&mut self, shutdown: &Shutdown) {
        if let Either::Left((Some((found, met)), _)) =
            select(self.slots.next(), Box::pin(shutdown.reached(Stage::Drain))).await
        {
            self.learn(found, &met);
        }
    }

    /// Waits for an answer while what is under way goes on.
    async fn meanwhile<T>(&mut self, answer: impl Future<Output = T>) -> T {
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
            (self.rest, self.seen.at) = (None, None);
        }
    }

    /// Whether nothing waits here: all that was seen is ours, or others have it.
    fn is_ready_empty(&self) -> bool {
        self.seen.waiting.is_empty() && !self.seen.is_partial
    }

    fn learn(&mut self, found: Found, met: &Met) {
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
                (soon.plus((age / 4).clamp(AHEAD_PAUSE, AHEAD_PAUSE_MAX)), Next::Claim)
            }
            Met::Corrupt(error) => {
                self.engine.report(&error.to_string());
                (now.latest_known().plus(CORRUPT_PAUSE), Next::Sweep)
            }
        };
        self.remembered.until(found, until, next);
    }

    /// Asks for the bell, and looks at the index if there is a reason to.
    async fn poll(&mut self) -> Result<()> {
        let serves_nothing = self.engine.served.is_nothing(self.engine.queue.now()?);
        // Whoever takes long for a page would look at nothing but those of the sweep.
        let is_own_turn = self.seen.is_of_all && self.seen.is_partial && !serves_nothing;
        let is_sweep = !is_own_turn && self.is_sweep_due();
        if serves_nothing && !is_sweep {
            // What is rung for now is not heard: it is looked for when there is something to serve again.
            self.seen.ranges.clear();
            return Ok(());
        }
        // The bell first: what it stands for is then surely seen by the look.
        let has_rung = !serves_nothing && !self.seen.is_partial && self.has_rung().await?;
        let has_news = has_rung || self.serves_others()? || self.is_more_there()?;
        if !has_news && !is_sweep {
            return Ok(());
        }
        let looked = self.look(has_rung, is_sweep).await;
        if looked.is_err() {
            // What the bell stood for is still to be seen.
            self.seen.at = None;
        } else if has_news {
            // Not before the look: what it did not see any more, someone may have claimed meanwhile.
            self.engine.served.stir();
        }
        looked
    }

    async fn has_rung(&mut self) -> Result<bool> {
        let (queue, mut bell) = (self.engine.queue.clone(), std::mem::take(&mut self.bell));
        let has_rung = self.meanwhile(queue.has_rung(&mut bell)).await;
        self.bell = bell;
        has_rung
    }

    /// Whether other shards are served than the last look has seen. A lease that could not be trusted for a while may be
    /// the same as before, but what was rung for meanwhile was not seen.
    fn serves_others(&self) -> Result<bool> {
        Ok(self.engine.served.ranges(self.engine.queue.now()?) != self.seen.ranges)
    }

    /// Whether there may be something that the last look has not seen.
    fn is_more_there(&self) -> Result<bool> {
        let now = self.engine.queue.now()?;
        Ok(self.seen.at.is_none()
            || self.seen.is_partial
            || self.engine.options.until_empty
            || self.seen.next.is_some_and(|at| now.is_due(at))
            || self.bell.look_again_at().is_some_and(|at| now.has_reached(at)))
    }

    /// Whether it is time to look without any other reason. A worker that leases shards looks at those of others then.
    fn is_sweep_due(&self) -> bool {
        let since = |at: Instant| self.engine.host().instant().since(at);
        let looked = if self.engine.options.leasing.is_some() { self.swept } else { self.seen.at };
        looked.is_none_or(|at| since(at) >= self.engine.options.sweep_every)
    }

    /// Whether an entry is ours to take up: of a shard that is served here, or left alone for so long by whoever holds its
    /// shard that they may not be able to run it (promise P4).
    fn is_ours(&self, found: &Found, now: Now) -> bool {
        let options = &self.engine.options;
        self.engine.served.contains(&found.entry.shard, now)
            || options.leasing.is_some() && now.is_past(found.written_at.plus(options.sweep_every))
    }

    /// Looks at the index until something is found to be claimed, or all of it was seen.
    async fn look(&mut self, has_rung: bool, is_sweep: bool) -> Result<()> {
        let engine = self.engine.clone();
        let now = engine.queue.now()?;
        self.bell.looked(now.earliest);
        let (is_partial, ranges) = (self.seen.is_partial, engine.served.ranges(now));
        self.ended.clear();
        let is_of_all = is_sweep && engine.options.leasing.is_some();
        // What all have fits in one page most of the time: one list, in however many places our own shards lie.
        let is_at_a_glance = !is_of_all && !self.is_crowded && ranges.len() > 1;
        let mut stretches: VecDeque<_> = if is_of_all {
            // No shard waits for those before it.
            let anywhere = self.was_swept_partly.then(|| engine.host().random());
            Served::new(engine.queue.shard_len(), None).stretches(Index::Ready, now, anywhere).into()
        } else if is_at_a_glance {
            [Stretch::whole(Index::Ready)].into()
        } else {
            self.meanwhile(stretches(&engine, now, has_rung, is_partial)).await?.into()
        };
        let (mut stale, mut there) = (Vec::new(), HashSet::new());
        self.seen = Seen { at: Some(engine.host().instant()), is_of_all, ranges, ..Seen::default() };
        while let Some(stretch) = stretches.pop_front() {
            let (look, beyond) = self.meanwhile(engine.queue.look(Purpose::Discover, stretch)).await?;
            self.sort(look, &mut there, &mut stale)?;
            if beyond.is_some() && is_at_a_glance && !self.is_crowded {
                self.is_crowded = true;
                stretches.extend(engine.served.stretches(Index::Ready, now, None));
            } else {
                stretches.extend(beyond);
            }
            if !self.waiting.is_empty() && !stretches.is_empty() {
                self.seen.is_partial = true;
                break;
            }
        }
        if is_sweep {
            self.swept = self.seen.at;
            self.was_swept_partly = self.seen.is_partial;
        }
        if !self.seen.is_partial {
            self.remembered.keep(|entry| there.contains(entry));
            self.is_crowded &= engine.served.would_be_among_all(there.len(), now) > PAGE_KEYS_MAX / 2;
        }
        self.seen.waiting = there;
        engine.served.saw_ready(self.is_ready_empty());
        self.start_anywhere();
        self.sweep(stale).await;
        Ok(())
    }

    fn sort(&mut self, look: Look, there: &mut HashSet<Entry>, stale: &mut Vec<(Found, Next)>) -> Result<()> {
        for key in &look.odd {
            self.engine.report(&format!("`{key}` is not an index entry"));
        }
        let now = self.engine.queue.now()?;
        self.seen.next = [self.seen.next, look.next.map(Minute::start)].into_iter().flatten().min();
        for found in look.due {
            if !self.is_ours(&found, now) {
                continue;
            }
            let is_new = there.insert(found.entry.clone());
            if !is_new || self.busy.contains(&found.entry.id) || self.ended.contains(&found.entry) {
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
        let engine = self.engine.clone();
        for (found, next) in stale {
            let Ok(now) = self.engine.queue.now() else { return };
            let (until, next) = match self.meanwhile(engine.queue.sweep(&found)).await {
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
                    (now.latest_known().plus(FAILED_PAUSE), next)
                }
            };
            self.remembered.until(found, until, next);
        }
    }

    /// Whether something will be due soon, or may come back from another worker. A worker that stops when there is
    /// nothing left does not leave behind what a lost one has held.
    async fn is_more_coming(&mut self) -> bool {
        let Ok(now) = self.engine.queue.now() else { return true };
        let due = [self.seen.next, self.remembered.first_run()].into_iter().flatten().min();
        due.is_some_and(|due| due <= now.latest_known().plus(SOON))
            || !self.engine.served.is_settled_in(now)
            || self.serves_others().unwrap_or(true)
            || self.remembered.is_any_held()
            || self.engine.do_others_hold_ours().await.unwrap_or(true)
    }
}

/// Where to look. With many stretches it is cheaper to ask first where there is anything at all.
async fn stretches(engine: &Engine, now: Now, has_rung: bool, is_partial: bool) -> Result<Vec<Stretch>> {
    let anywhere = is_partial.then(|| engine.host().random());
    let stretches = engine.served.stretches(Index::Ready, now, anywhere);
    if !has_rung || stretches.len() <= 2 || engine.queue.shard_len().count() > PAGE_KEYS_MAX {
        return Ok(stretches);
    }
    let shards = engine.queue.shards_with_entries(Purpose::Discover, Index::Ready).await?;
    Ok(engine.served.stretches_among(Index::Ready, now, shards))
}
