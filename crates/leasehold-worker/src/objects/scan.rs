//! Scanning the index: the inbox, the shards and the overflow, as the schedule decides.

use leasehold_core::limits::PAGE_KEYS_MAX;
use leasehold_core::scan::{BackoffAction, IndexHit, IndexScan, ScanScope, ScanTarget};
use leasehold_core::{Index, Minute, Now, Result};
use leasehold_queue::Bell;
use leasehold_queue::discover::{KeyRange, ScanPage};
use leasehold_queue::source::SourceStatus;
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
        let change = self.while_claiming(queue.read_bell(&mut bell)).await;
        *self.bell_of(place) = bell;
        if let Some(change) = change? {
            self.schedule.rung(place, change.second_scan_at, change.is_for_overflow);
        }
        Ok(())
    }

    fn bell_of(&mut self, place: ScanTarget) -> &mut Bell {
        if place == ScanTarget::Inbox { &mut self.inbox_bell } else { &mut self.bell }
    }

    /// Scans a part of the index until a claimable entry is found, or to the end.
    pub(super) async fn scan(&mut self, scan: IndexScan) -> Result<()> {
        let (objects, at, place) = (self.objects.clone(), self.moment()?, scan.scope.target());
        let served = self.served(at.now);
        let key_ranges = self.while_claiming(key_ranges(&objects, at.now, &scan)).await?;
        self.record_ends();
        self.entries.begin_scan(objects.side_location(place));
        self.schedule.started(&scan, &at, &served);
        let (mut key_ranges, mut is_partial) = (VecDeque::from(key_ranges), false);
        let mut is_crowded = self.schedule.is_crowded();
        while let Some(key_range) = key_ranges.pop_front().filter(|_| !is_partial) {
            let page = self.while_claiming(objects.queue.scan_page(Purpose::Discover, key_range)).await;
            let (page, rest) = page?;
            let has_found = self.sort_page(place, page)?;
            if rest.is_some() && scan.scope == ScanScope::OwnInOneList && !is_crowded {
                is_crowded = true;
                key_ranges.extend(objects.assignment.key_ranges(Index::Ready, at.now, None));
            } else {
                key_ranges.extend(rest);
            }
            is_partial = has_found && !key_ranges.is_empty();
        }
        let count = self.entries.count_in_scan();
        if place == ScanTarget::Shards && !is_partial {
            is_crowded &= objects.assignment.estimate_total(count, at.now) > PAGE_KEYS_MAX / 2;
        }
        self.schedule.ended(&scan, is_partial, is_crowded);
        match place {
            ScanTarget::Inbox if count > 0 => {
                objects.inbox.iter().for_each(|inbox| inbox.mark_busy());
                self.warn_of_old_tasks(scan.scope == ScanScope::Inbox { is_first: true });
            }
            ScanTarget::Overflow if count > 0 => {
                // Claims of other workers there are not rung for.
                objects.assignment.mark_active();
                self.entries.rotate_new(objects.host().random());
            }
            ScanTarget::Shards => self.entries.rotate_new(objects.host().random()),
            ScanTarget::Inbox | ScanTarget::Overflow => {}
        }
        let to_sweep = self.entries.end_scan(!is_partial);
        if place == ScanTarget::Shards {
            self.update_ready_empty();
        }
        self.sweep(to_sweep).await;
        if scan.has_reason {
            // Not before the scan: entries that it no longer found may have been claimed meanwhile.
            objects.assignment.mark_active();
        }
        Ok(())
    }

    /// Logs a warning if a worker that was away for long finds old tasks in its inbox.
    fn warn_of_old_tasks(&mut self, is_first: bool) {
        let (Some(oldest), Ok(now)) = (self.entries.new_in_scan().first(), self.objects.queue.now()) else {
            return;
        };
        let since = oldest.entry.minute.start();
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
                && now.is_past(found.written_at.plus(options.full_scan_every))
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

    /// Sweeps entries that may be unneeded.
    pub(super) async fn sweep(&mut self, to_sweep: Vec<(IndexHit, BackoffAction)>) {
        let objects = self.objects.clone();
        let mut is_failing = false;
        for (found, action) in to_sweep {
            let Ok(now) = objects.queue.now() else { return };
            let mut next = Some((now.latest_known().plus(FAILED_PAUSE), action));
            // After a failure during an outage, the other entries wait for the next probe.
            if !is_failing {
                match self.while_claiming(objects.sweep(&found, action)).await {
                    Ok(swept) => next = swept,
                    Err(error) => {
                        tracing::debug!(entry = %found.entry, %error, "failed to sweep index entry");
                        is_failing = objects.long_outage().is_some();
                    }
                }
            }
            self.entries.backoff().set(found, next);
        }
    }
}

/// Ranges to scan. With many ranges, if the bell has rung, it is cheaper to list first which shards have entries.
async fn key_ranges(objects: &Objects, now: Now, scan: &IndexScan) -> Result<Vec<KeyRange>> {
    if let Some(side) = objects.side_location(scan.scope.target()) {
        return Ok(vec![KeyRange::at(&side)]);
    }
    let random_start = scan.is_random_start.then(|| objects.host().random());
    match scan.scope {
        ScanScope::AllShards => {
            let all = ShardAssignment::new(objects.queue.shard_len(), None);
            return Ok(all.key_ranges(Index::Ready, now, random_start));
        }
        // All entries fit in one page most of the time: one list, however scattered the shards are.
        ScanScope::OwnInOneList => return Ok(vec![KeyRange::whole(Index::Ready)]),
        _ => {}
    }
    let key_ranges = objects.assignment.key_ranges(Index::Ready, now, random_start);
    let has_rung = scan.scope == ScanScope::Own { has_rung: true };
    if !has_rung || key_ranges.len() <= 2 || objects.queue.shard_len().count() > PAGE_KEYS_MAX {
        return Ok(key_ranges);
    }
    let shards = objects.queue.shards_with_entries(Purpose::Discover, Index::Ready).await?;
    Ok(objects.assignment.key_ranges_among(Index::Ready, now, shards))
}
