//! Scanning the index: the inbox, the shards and the overflow.

use leasehold_core::limits::PAGE_KEYS_MAX;
use leasehold_core::{Entry, Index, IndexLocation, Minute, Now, Result};
use leasehold_queue::IndexHit;
use leasehold_queue::discover::{KeyRange, ScanPage};
use leasehold_queue::sweep::Swept;
use leasehold_store::Purpose;
use leasehold_store::host::Instant;
use std::collections::{HashSet, VecDeque};

use super::side_index::SideIndex;
use super::{FAILED_PAUSE, LastScan, OLD, Poller};
use crate::backoff::{BackoffAction, CORRUPT_PAUSE};
use crate::run::Engine;
use crate::shard_assignment::ShardAssignment;

impl Poller {
    /// Scans where there is a reason to: the inbox, the shards, and periodically the overflow.
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
        let mut overflow = std::mem::replace(&mut self.overflow, SideIndex::overflow(&self.engine));
        let looked = self.look_aside(&mut overflow).await;
        self.overflow = overflow;
        looked
    }

    /// Scans the inbox or the overflow.
    async fn look_aside(&mut self, lane: &mut SideIndex) -> Result<()> {
        let engine = self.engine.clone();
        if !engine.may_look_at(&lane.place, engine.queue.now()?) {
            // Rings are not read meanwhile.
            lane.look_soon();
            return Ok(());
        }
        if !self.meanwhile(lane.has_reason(&engine)).await? {
            return Ok(());
        }
        let is_first = lane.is_new();
        lane.looked(&engine, engine.queue.now()?);
        let (mut stale, mut there, before) = (Vec::new(), HashSet::new(), self.waiting.len());
        let mut next = Some(KeyRange::at(&lane.place));
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
            (IndexLocation::Inbox(_), Some(inbox)) if !there.is_empty() => {
                inbox.found_something();
                self.warn_of_age(is_first, before);
            }
            (IndexLocation::Overflow, _) if !there.is_empty() => {
                // Claims of other workers there are not rung for.
                engine.assignment.mark_active();
                self.start_anywhere(before);
            }
            _ => {}
        }
        self.sweep(stale).await;
        Ok(())
    }

    /// Logs a warning if a worker that was away for long finds old tasks in its inbox.
    fn warn_of_age(&self, is_first: bool, before: usize) {
        let (Some(oldest), Ok(now)) = (self.waiting.get(before), self.engine.queue.now()) else { return };
        let since = oldest.entry.bucket.start();
        if is_first && now.is_past(since.plus(OLD)) {
            tracing::warn!(%since, "inbox has old tasks, running them oldest first");
        }
    }

    /// Reads the bell, and scans the shards if there is a reason to.
    async fn poll_shards(&mut self) -> Result<()> {
        let serves_nothing = self.engine.assignment.is_nothing(self.engine.queue.now()?);
        // A worker that needs long for a page would otherwise scan nothing but the periodic sweep.
        let is_own_turn = self.seen.is_of_all && self.seen.is_partial && !serves_nothing;
        let is_sweep = !is_own_turn && self.is_sweep_due();
        if serves_nothing && !is_sweep {
            // Rings are not read meanwhile: the shards are scanned when some are served again.
            self.seen.ranges.clear();
            self.seen.next = None;
            return Ok(());
        }
        // The bell first, so that the scan includes everything that was rung for.
        let has_rung = !serves_nothing && !self.seen.is_partial && self.has_rung().await?;
        let has_news = has_rung || self.serves_others()? || self.is_more_there()?;
        if !has_news && !is_sweep {
            return Ok(());
        }
        let looked = self.look(has_rung, is_sweep).await;
        if looked.is_err() {
            // The scan that the bell asked for is still to be made.
            self.seen.at = None;
        } else if has_news {
            // Not before the scan: entries that it no longer found may have been claimed meanwhile.
            self.engine.assignment.mark_active();
        }
        looked
    }

    async fn has_rung(&mut self) -> Result<bool> {
        let (queue, mut bell) = (self.engine.queue.clone(), std::mem::take(&mut self.bell));
        let has_rung = self.meanwhile(queue.has_rung(&mut bell)).await;
        self.bell = bell;
        has_rung
    }

    /// True if the served shards differ from those of the last scan. A lease that could not be trusted for a while
    /// may be the same as before, but rings were not read meanwhile.
    pub(super) fn serves_others(&self) -> Result<bool> {
        Ok(self.engine.assignment.ranges(self.engine.queue.now()?) != self.seen.ranges)
    }

    /// True if there may be entries that the last scan has not found.
    fn is_more_there(&self) -> Result<bool> {
        let now = self.engine.queue.now()?;
        Ok(self.seen.at.is_none()
            || self.seen.is_partial
            || self.engine.runner.options.until_empty
            || self.seen.next.is_some_and(|at| now.is_due(at))
            || self.bell.look_again_at().is_some_and(|at| now.has_reached(at)))
    }

    /// True if a periodic scan is due. A worker with shard leasing then scans the shards of other workers, too.
    fn is_sweep_due(&self) -> bool {
        let since = |at: Instant| self.engine.host().instant().since(at);
        let looked = if self.engine.runner.options.leasing.is_some() { self.swept } else { self.seen.at };
        looked.is_none_or(|at| since(at) >= self.engine.runner.options.sweep_every)
    }

    /// True if this worker may claim an entry: in an inbox or a shard that it serves, or not claimed for so long that
    /// the holder of its shard may not be able to run it (promise P4).
    pub(super) fn is_ours(&self, found: &IndexHit, now: Now) -> bool {
        let options = &self.engine.runner.options;
        self.engine.may_look_at(&found.entry.place, now)
            || found.entry.shard().is_some()
                && options.leasing.is_some()
                && now.is_past(found.written_at.plus(options.sweep_every))
    }

    /// Scans the index until a claimable entry is found, or to the end.
    async fn look(&mut self, has_rung: bool, is_sweep: bool) -> Result<()> {
        let engine = self.engine.clone();
        let now = engine.queue.now()?;
        self.bell.looked(now.earliest);
        let (is_partial, ranges) = (self.seen.is_partial, engine.assignment.ranges(now));
        let is_of_all = is_sweep && engine.runner.options.leasing.is_some();
        // All entries fit in one page most of the time: one list, however scattered the shards are.
        let is_at_a_glance = !is_of_all && !self.is_crowded && ranges.len() > 1;
        let mut stretches: VecDeque<_> = if is_of_all {
            // A random start, so that no shard waits for those before it.
            let anywhere = self.was_swept_partly.then(|| engine.host().random());
            ShardAssignment::new(engine.queue.shard_len(), None).stretches(Index::Ready, now, anywhere).into()
        } else if is_at_a_glance {
            [KeyRange::whole(Index::Ready)].into()
        } else {
            self.meanwhile(stretches(&engine, now, has_rung, is_partial)).await?.into()
        };
        let (mut stale, mut there, before) = (Vec::new(), HashSet::new(), self.waiting.len());
        self.seen = LastScan { at: Some(engine.host().instant()), is_of_all, ranges, ..LastScan::default() };
        while let Some(stretch) = stretches.pop_front() {
            let (look, beyond) = self.meanwhile(engine.queue.look(Purpose::Discover, stretch)).await?;
            let begins = look.next.map(Minute::start);
            self.seen.next = [self.seen.next, begins].into_iter().flatten().min();
            self.sort(look, &mut there, &mut stale)?;
            if beyond.is_some() && is_at_a_glance && !self.is_crowded {
                self.is_crowded = true;
                stretches.extend(engine.assignment.stretches(Index::Ready, now, None));
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
            self.is_crowded &= engine.assignment.would_be_among_all(there.len(), now) > PAGE_KEYS_MAX / 2;
        }
        self.seen.waiting = there;
        engine.assignment.saw_ready(self.is_ready_empty());
        self.start_anywhere(before);
        self.sweep(stale).await;
        Ok(())
    }

    fn sort(
        &mut self,
        look: ScanPage,
        there: &mut HashSet<Entry>,
        stale: &mut Vec<(IndexHit, BackoffAction)>,
    ) -> Result<()> {
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
                Some(BackoffAction::Claim | BackoffAction::Await) => self.waiting.push_back(found),
                Some(next) => stale.push((found, next)),
                None => {}
            }
        }
        Ok(())
    }

    /// Rotates the new entries to a random start, so that workers rarely compete; within a shard the oldest still
    /// goes first. Earlier entries stay in front.
    fn start_anywhere(&mut self, before: usize) {
        let found = &mut self.waiting.make_contiguous()[before..];
        let Some(last) = found.len().checked_sub(1).filter(|last| *last > 0) else { return };
        let at = usize::try_from(self.engine.host().random() % (last as u64 + 1)).unwrap_or(0);
        let shard = found[at].entry.shard();
        let of_shard = found.iter().position(|found| found.entry.shard() == shard);
        found.rotate_left(shard.and(of_shard).unwrap_or(at));
    }

    pub(super) async fn sweep(&mut self, stale: Vec<(IndexHit, BackoffAction)>) {
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
                Ok(Swept::Later(at)) => (at, BackoffAction::Sweep),
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
                    (now.latest_known().plus(CORRUPT_PAUSE), BackoffAction::Sweep)
                }
                Err(error) => {
                    tracing::debug!(entry = %found.entry, %error, "failed to sweep index entry");
                    // The other entries wait for the next probe.
                    is_failing = engine.outage().is_some();
                    (now.latest_known().plus(FAILED_PAUSE), next)
                }
            };
            self.remembered.until(found, until, next);
        }
    }
}

/// Ranges to scan. With many ranges it is cheaper to list first which shards have entries.
async fn stretches(engine: &Engine, now: Now, has_rung: bool, is_partial: bool) -> Result<Vec<KeyRange>> {
    let anywhere = is_partial.then(|| engine.host().random());
    let stretches = engine.assignment.stretches(Index::Ready, now, anywhere);
    if !has_rung || stretches.len() <= 2 || engine.queue.shard_len().count() > PAGE_KEYS_MAX {
        return Ok(stretches);
    }
    let shards = engine.queue.shards_with_entries(Purpose::Discover, Index::Ready).await?;
    Ok(engine.assignment.stretches_among(Index::Ready, now, shards))
}
