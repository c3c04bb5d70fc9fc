//! Scanning the index: the inbox, the shards and the overflow, as the schedule decides.

use leasehold_core::limits::PAGE_KEYS_MAX;
use leasehold_core::scan::{BackoffAction, CORRUPT_PAUSE, IndexHit, ScanTarget, ShardScan, ShardScope};
use leasehold_core::{Index, IndexLocation, Minute, Now, Result, StoreTime};
use leasehold_queue::Bell;
use leasehold_queue::discover::{KeyRange, ScanPage};
use leasehold_queue::sweep::Swept;
use leasehold_store::Purpose;
use std::collections::VecDeque;
use std::time::Duration;

use super::Objects;
use super::poll::{FAILED_PAUSE, Poller};
use super::shard_assignment::ShardAssignment;

/// Age of the oldest task in an inbox from which on a warning is logged: its worker was away.
const OLD_TASK_AGE: Duration = Duration::from_hours(24);

impl Poller {
    /// Reads the bell of a place.
    pub(super) async fn read_bell(&mut self, place: ScanTarget) -> Result<()> {
        let (queue, mut bell) = (self.objects.queue.clone(), std::mem::take(self.bell_of(place)));
        let has_rung = self.while_claiming(queue.has_rung(&mut bell)).await;
        let is_for_overflow = bell.rang_for_overflow();
        self.schedule.bell_read(place, matches!(has_rung, Ok(true)), bell.second_scan_at(), is_for_overflow);
        *self.bell_of(place) = bell;
        has_rung.map(drop)
    }

    fn bell_of(&mut self, place: ScanTarget) -> &mut Bell {
        if place == ScanTarget::Inbox { &mut self.inbox_bell } else { &mut self.bell }
    }

    /// Scans the inbox.
    pub(super) async fn scan_inbox(&mut self, is_first: bool) -> Result<()> {
        let location = IndexLocation::Inbox(self.objects.worker.id.clone());
        let is_partial = self.scan_side(ScanTarget::Inbox, location).await?;
        if self.entries.count_in_scan() > 0 {
            self.objects.inbox.iter().for_each(|inbox| inbox.mark_busy());
            self.warn_of_old_tasks(is_first);
        }
        let stale = self.entries.end_scan(!is_partial);
        self.sweep(stale).await;
        Ok(())
    }

    /// Scans the overflow.
    pub(super) async fn scan_overflow(&mut self) -> Result<()> {
        let is_partial = self.scan_side(ScanTarget::Overflow, IndexLocation::Overflow).await?;
        if self.entries.count_in_scan() > 0 {
            // Claims of other workers there are not rung for.
            self.objects.assignment.mark_active();
            self.entries.rotate_new(self.objects.host().random());
        }
        let stale = self.entries.end_scan(!is_partial);
        self.sweep(stale).await;
        Ok(())
    }

    /// Scans the inbox or the overflow until a claimable entry is found, or to the end. Returns true if it has not
    /// reached the end.
    async fn scan_side(&mut self, place: ScanTarget, location: IndexLocation) -> Result<bool> {
        let (queue, at) = (self.objects.queue.clone(), self.moment()?);
        let key_range = KeyRange::at(&location);
        self.begin_scan(Some(location));
        let bell = (place == ScanTarget::Inbox).then_some(&mut self.inbox_bell);
        let second_scan_at = bell.and_then(|bell| scan_started(bell, at.now));
        self.schedule.started(place, &at, second_scan_at);
        let (mut next, mut is_partial) = (Some(key_range), false);
        while let Some(key_range) = next {
            let (page, rest) = self.while_claiming(queue.scan_page(Purpose::Discover, key_range)).await?;
            is_partial = self.sort_page(place, page)? && rest.is_some();
            next = rest.filter(|_| !is_partial);
        }
        self.schedule.ended(place, is_partial);
        Ok(is_partial)
    }

    /// Scans shards until a claimable entry is found, or to the end.
    pub(super) async fn scan_shards(&mut self, scan: ShardScan) -> Result<()> {
        let (objects, at) = (self.objects.clone(), self.moment()?);
        let served = self.served(at.now);
        let key_ranges = self.while_claiming(key_ranges(&objects, at.now, &scan)).await?;
        self.begin_scan(None);
        let second_scan_at = scan_started(&mut self.bell, at.now);
        self.schedule.shards_started(&scan, &at, &served, second_scan_at);
        let (mut key_ranges, mut is_partial) = (VecDeque::from(key_ranges), false);
        let mut is_crowded = self.schedule.is_crowded();
        while let Some(key_range) = key_ranges.pop_front().filter(|_| !is_partial) {
            let page = self.while_claiming(objects.queue.scan_page(Purpose::Discover, key_range)).await;
            let (page, rest) = page?;
            let has_found = self.sort_page(ScanTarget::Shards, page)?;
            if rest.is_some() && scan.scope == ShardScope::OwnInOneList && !is_crowded {
                is_crowded = true;
                key_ranges.extend(objects.assignment.key_ranges(Index::Ready, at.now, None));
            } else {
                key_ranges.extend(rest);
            }
            is_partial = has_found && !key_ranges.is_empty();
        }
        if !is_partial {
            let total = objects.assignment.estimate_total(self.entries.count_in_scan(), at.now);
            is_crowded &= total > PAGE_KEYS_MAX / 2;
        }
        self.schedule.shards_ended(&scan, is_partial, is_crowded);
        self.entries.rotate_new(objects.host().random());
        let stale = self.entries.end_scan(!is_partial);
        self.update_ready_empty();
        self.sweep(stale).await;
        if scan.has_reason {
            // Not before the scan: entries that it no longer found may have been claimed meanwhile.
            objects.assignment.mark_active();
        }
        Ok(())
    }

    fn begin_scan(&mut self, other: Option<IndexLocation>) {
        self.record_ends();
        self.entries.begin_scan(other);
    }

    /// Logs a warning if a worker that was away for long finds old tasks in its inbox.
    fn warn_of_old_tasks(&mut self, is_first: bool) {
        let (Some(oldest), Ok(now)) = (self.entries.new_in_scan().first(), self.objects.queue.now()) else {
            return;
        };
        let since = oldest.entry.bucket.start();
        if is_first && now.is_past(since.plus(OLD_TASK_AGE)) {
            tracing::warn!(%since, "inbox has old tasks, running them oldest first");
        }
    }

    /// True if this worker may claim an entry: in an inbox or a shard that it serves, or not claimed for so long that
    /// the holder of its shard may not be able to run it (promise P4).
    pub(super) fn may_claim(&self, found: &IndexHit, now: Now) -> bool {
        let options = &self.objects.options;
        self.objects.may_scan(&found.entry.location, now)
            || found.entry.shard().is_some()
                && options.leasing.is_some()
                && now.is_past(found.written_at.plus(options.sweep_every))
    }

    /// Adds the entries of a page. Returns true if the scan has found some to claim.
    fn sort_page(&mut self, place: ScanTarget, page: ScanPage) -> Result<bool> {
        self.schedule.page_read(place, page.next.map(Minute::start));
        for key in &page.invalid_keys {
            self.objects.report(&format!("`{key}` is not an index entry"));
        }
        let now = self.objects.queue.now()?;
        self.record_ends();
        for hit in page.due {
            if self.may_claim(&hit, now) {
                let is_busy = self.objects.slots().contains(&hit.entry.id);
                self.entries.add(hit, now, is_busy);
            }
        }
        Ok(!self.entries.new_in_scan().is_empty())
    }

    /// Sweeps entries that may be stale.
    pub(super) async fn sweep(&mut self, stale: Vec<(IndexHit, BackoffAction)>) {
        let objects = self.objects.clone();
        let mut is_failing = false;
        for (found, next) in stale {
            let Ok(now) = objects.queue.now() else { return };
            let soon = now.latest_known();
            let swept =
                if is_failing { None } else { Some(self.while_claiming(objects.queue.sweep(&found)).await) };
            let (until, next) = match swept {
                // The other entries wait for the next probe.
                None => (soon.plus(FAILED_PAUSE), next),
                Some(Ok(Swept::Held(at))) => (at, next),
                Some(Ok(Swept::Later(at))) => (at, BackoffAction::Sweep),
                Some(Ok(Swept::Fine)) => {
                    self.entries.backoff().remove(&found.entry);
                    continue;
                }
                Some(Ok(Swept::Moved(task))) => {
                    objects.recovered(&task);
                    continue;
                }
                Some(Ok(Swept::Removed)) => continue,
                Some(Ok(Swept::Corrupt(error))) => {
                    objects.report(&error.to_string());
                    (soon.plus(CORRUPT_PAUSE), BackoffAction::Sweep)
                }
                Some(Err(error)) => {
                    tracing::debug!(entry = %found.entry, %error, "failed to sweep index entry");
                    is_failing = objects.long_outage().is_some();
                    (soon.plus(FAILED_PAUSE), next)
                }
            };
            self.entries.backoff().set(found, until, next);
        }
    }
}

/// Records the start of a scan in its bell. Returns the time of the second scan after the last ring.
fn scan_started(bell: &mut Bell, now: Now) -> Option<StoreTime> {
    bell.scan_started(now.earliest);
    bell.second_scan_at()
}

/// Ranges to scan. With many ranges, if the bell has rung, it is cheaper to list first which shards have entries.
async fn key_ranges(objects: &Objects, now: Now, scan: &ShardScan) -> Result<Vec<KeyRange>> {
    let random_start = scan.is_random_start.then(|| objects.host().random());
    let has_rung = match scan.scope {
        ShardScope::All => {
            let all = ShardAssignment::new(objects.queue.shard_len(), None);
            return Ok(all.key_ranges(Index::Ready, now, random_start));
        }
        // All entries fit in one page most of the time: one list, however scattered the shards are.
        ShardScope::OwnInOneList => return Ok(vec![KeyRange::whole(Index::Ready)]),
        ShardScope::Own { has_rung } => has_rung,
    };
    let key_ranges = objects.assignment.key_ranges(Index::Ready, now, random_start);
    if !has_rung || key_ranges.len() <= 2 || objects.queue.shard_len().count() > PAGE_KEYS_MAX {
        return Ok(key_ranges);
    }
    let shards = objects.queue.shards_with_entries(Purpose::Discover, Index::Ready).await?;
    Ok(objects.assignment.key_ranges_among(Index::Ready, now, shards))
}
