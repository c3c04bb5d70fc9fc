//! Looking at the index: when, where, and what to make of what is there.

use leasehold_core::limits::PAGE_KEYS_MAX;
use leasehold_core::{Entry, Index, Minute, Now, Result, Where};
use leasehold_queue::Found;
use leasehold_queue::discover::{Look, Stretch};
use leasehold_queue::sweep::Swept;
use leasehold_store::Purpose;
use leasehold_store::host::Instant;
use std::collections::{HashSet, VecDeque};

use super::lane::Lane;
use super::{FAILED_PAUSE, OLD, Poller, Seen};
use crate::remember::{CORRUPT_PAUSE, Next};
use crate::run::Engine;
use crate::served::Served;

impl Poller {
    /// Looks wherever there is a reason to: into the inbox, at the shards, and now and then at the overflow.
    pub(super) async fn poll(&mut self) -> Result<()> {
        self.ended.clear();
        if let Some(mut inbox) = self.inbox.take() {
            let looked = self.look_aside(&mut inbox).await;
            self.inbox = Some(inbox);
            looked?;
        }
        self.poll_shards().await?;
        if self.bell.rang_for_overflow() {
            self.overflow.look_soon();
        }
        let mut overflow = std::mem::replace(&mut self.overflow, Lane::overflow(&self.engine));
        let looked = self.look_aside(&mut overflow).await;
        self.overflow = overflow;
        looked
    }

    /// Looks at what is not divided into shards.
    async fn look_aside(&mut self, lane: &mut Lane) -> Result<()> {
        let engine = self.engine.clone();
        if !engine.may_look_at(&lane.place, engine.queue.now()?) {
            // What is rung for now is not heard.
            lane.look_soon();
            return Ok(());
        }
        if !self.meanwhile(lane.has_reason(&engine)).await? {
            return Ok(());
        }
        let is_first = lane.is_new();
        lane.looked(&engine, engine.queue.now()?);
        let (mut stale, mut there, before) = (Vec::new(), HashSet::new(), self.waiting.len());
        let mut next = Some(Stretch::at(&lane.place));
        while let Some(stretch) = next {
            let looked = self.meanwhile(engine.queue.look(Purpose::Discover, stretch)).await;
            let (look, beyond) = looked.inspect_err(|_| lane.look_soon())?;
            let begins = look.next.map(Minute::start);
            lane.next = [lane.next, begins].into_iter().flatten().min();
            self.sort(look, &mut there, &mut stale)?;
            lane.is_partial = beyond.is_some() && self.waiting.len() > before;
            next = beyond.filter(|_| !lane.is_partial);
        }
        if !lane.is_partial {
            let is_elsewhere = |entry: &Entry| entry.place != lane.place;
            self.remembered.keep(|entry| is_elsewhere(entry) || there.contains(entry));
        }
        match (&lane.place, &engine.inbox) {
            (Where::Inbox(_), Some(inbox)) if !there.is_empty() => {
                inbox.found_something();
                self.warn_of_age(is_first, before);
            }
            (Where::Overflow, _) if !there.is_empty() => {
                // What others have claimed there was not rung for.
                engine.served.stir();
                self.start_anywhere(before);
            }
            _ => {}
        }
        self.sweep(stale).await;
        Ok(())
    }

    /// A worker that was away for long finds what was put into its inbox before.
    fn warn_of_age(&self, is_first: bool, before: usize) {
        let (Some(oldest), Ok(now)) = (self.waiting.get(before), self.engine.queue.now()) else { return };
        let since = oldest.entry.bucket.start();
        if is_first && now.is_past(since.plus(OLD)) {
            tracing::warn!("the inbox has waited since {since}: all of it is worked now, the oldest first");
        }
    }

    /// Asks for the bell, and looks at the shards if there is a reason to.
    async fn poll_shards(&mut self) -> Result<()> {
        let serves_nothing = self.engine.served.is_nothing(self.engine.queue.now()?);
        // Whoever takes long for a page would look at nothing but those of the sweep.
        let is_own_turn = self.seen.is_of_all && self.seen.is_partial && !serves_nothing;
        let is_sweep = !is_own_turn && self.is_sweep_due();
        if serves_nothing && !is_sweep {
            // What is rung for now is not heard: it is looked for when there is something to serve again.
            self.seen.ranges.clear();
            self.seen.next = None;
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
    pub(super) fn serves_others(&self) -> Result<bool> {
        Ok(self.engine.served.ranges(self.engine.queue.now()?) != self.seen.ranges)
    }

    /// Whether there may be something that the last look has not seen.
    fn is_more_there(&self) -> Result<bool> {
        let now = self.engine.queue.now()?;
        Ok(self.seen.at.is_none()
            || self.seen.is_partial
            || self.engine.crew.options.until_empty
            || self.seen.next.is_some_and(|at| now.is_due(at))
            || self.bell.look_again_at().is_some_and(|at| now.has_reached(at)))
    }

    /// Whether it is time to look without any other reason. A worker that leases shards looks at those of others then.
    fn is_sweep_due(&self) -> bool {
        let since = |at: Instant| self.engine.host().instant().since(at);
        let looked = if self.engine.crew.options.leasing.is_some() { self.swept } else { self.seen.at };
        looked.is_none_or(|at| since(at) >= self.engine.crew.options.sweep_every)
    }

    /// Whether an entry is ours to take up: of an inbox or a shard that is served here, or left alone for so long by
    /// whoever holds its shard that they may not be able to run it (promise P4).
    pub(super) fn is_ours(&self, found: &Found, now: Now) -> bool {
        let options = &self.engine.crew.options;
        self.engine.may_look_at(&found.entry.place, now)
            || found.entry.shard().is_some()
                && options.leasing.is_some()
                && now.is_past(found.written_at.plus(options.sweep_every))
    }

    /// Looks at the index until something is found to be claimed, or all of it was seen.
    async fn look(&mut self, has_rung: bool, is_sweep: bool) -> Result<()> {
        let engine = self.engine.clone();
        let now = engine.queue.now()?;
        self.bell.looked(now.earliest);
        let (is_partial, ranges) = (self.seen.is_partial, engine.served.ranges(now));
        let is_of_all = is_sweep && engine.crew.options.leasing.is_some();
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
        let (mut stale, mut there, before) = (Vec::new(), HashSet::new(), self.waiting.len());
        self.seen = Seen { at: Some(engine.host().instant()), is_of_all, ranges, ..Seen::default() };
        while let Some(stretch) = stretches.pop_front() {
            let (look, beyond) = self.meanwhile(engine.queue.look(Purpose::Discover, stretch)).await?;
            let begins = look.next.map(Minute::start);
            self.seen.next = [self.seen.next, begins].into_iter().flatten().min();
            self.sort(look, &mut there, &mut stale)?;
            if beyond.is_some() && is_at_a_glance && !self.is_crowded {
                self.is_crowded = true;
                stretches.extend(engine.served.stretches(Index::Ready, now, None));
            } else {
                stretches.extend(beyond);
            }
            if self.waiting.len() > before && !stretches.is_empty() {
                self.seen.is_partial = true;
                break;
            }
        }
        if is_sweep {
            self.swept = self.seen.at;
            self.was_swept_partly = self.seen.is_partial;
        }
        if !self.seen.is_partial {
            self.remembered.keep(|entry| entry.shard().is_none() || there.contains(entry));
            self.is_crowded &= engine.served.would_be_among_all(there.len(), now) > PAGE_KEYS_MAX / 2;
        }
        self.seen.waiting = there;
        engine.served.saw_ready(self.is_ready_empty());
        self.start_anywhere(before);
        self.sweep(stale).await;
        Ok(())
    }

    fn sort(&mut self, look: Look, there: &mut HashSet<Entry>, stale: &mut Vec<(Found, Next)>) -> Result<()> {
        for key in &look.odd {
            self.engine.report(&format!("`{key}` is not an index entry"));
        }
        let now = self.engine.queue.now()?;
        for found in look.due {
            if !self.is_ours(&found, now) {
                continue;
            }
            let is_new = there.insert(found.entry.clone());
            if !is_new || self.busy.contains(&found.entry.id) || self.ended.contains(&found.entry) {
                continue;
            }
            match self.remembered.next(&found.entry, now) {
                Some(Next::Claim | Next::Await) => self.waiting.push_back(found),
                Some(next) => stale.push((found, next)),
                None => {}
            }
        }
        Ok(())
    }

    /// Workers that start at different places rarely meet; within a shard the oldest still goes first. What was found
    /// before stays in front.
    fn start_anywhere(&mut self, before: usize) {
        let found = &mut self.waiting.make_contiguous()[before..];
        let Some(last) = found.len().checked_sub(1).filter(|last| *last > 0) else { return };
        let at = usize::try_from(self.engine.host().random() % (last as u64 + 1)).unwrap_or(0);
        let shard = found[at].entry.shard();
        let of_shard = found.iter().position(|found| found.entry.shard() == shard);
        found.rotate_left(shard.and(of_shard).unwrap_or(at));
    }

    pub(super) async fn sweep(&mut self, stale: Vec<(Found, Next)>) {
        let engine = self.engine.clone();
        let mut is_failing = false;
        for (found, next) in stale {
            let Ok(now) = self.engine.queue.now() else { return };
            if is_failing {
                self.remembered.until(found, now.latest_known().plus(FAILED_PAUSE), next);
                continue;
            }
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
                    // The rest waits for the next probe.
                    is_failing = engine.outage().is_some();
                    (now.latest_known().plus(FAILED_PAUSE), next)
                }
            };
            self.remembered.until(found, until, next);
        }
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
