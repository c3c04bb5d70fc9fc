//! Pull: copies tasks to this node that are free or whose lease has expired, and removes copies of tasks that other workers
//! hold.
//!
//! A few tasks are kept here for the workers of this node, of each type that they handle, by priority and then in random
//! order, so that nodes rarely compete. They are read from the index: a list returns a thousand entries, and all pages are
//! read, so that held tasks do not hide free ones. Between full scans the index is scanned only when the bell has rung, or
//! when the workers here handle other types than before.

use futures::{StreamExt, stream};
use leasehold_core::{Event, Index, Kind, Minute, Now, Result, State, Status, Task, TaskId};
use leasehold_queue::TaskSnapshot;
use leasehold_queue::discover::{IndexHit, KeyRange};
use leasehold_store::Purpose;
use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

use super::BucketLink;
use super::prefetch::PrefetchState;
use crate::spool::{LocalTask, Mirrored, Spool};

/// Tasks that are read concurrently.
const CONCURRENCY: usize = 16;
/// Reads after which a scan pauses: workers may wait for a claim to be sent, or for a renewal.
const READS_MAX: usize = 512;

impl BucketLink {
    /// Copies tasks to this node, up to its capacity.
    pub(super) async fn pull(&self) -> Result<()> {
        let mut prefetch = self.prefetch.lock().await;
        let here = self.host().instant();
        let is_full_scan =
            prefetch.full_scan_at.is_none_or(|at| here.since(at) >= self.options.full_scan_interval);
        if is_full_scan {
            prefetch.skip.clear();
        }
        prefetch.capacity = self.capacity().await?;
        self.take_expired(&mut prefetch, is_full_scan).await?;
        if self.is_scan_due(&mut prefetch).await? || is_full_scan {
            self.scan(&mut prefetch).await?;
        }
        if is_full_scan {
            prefetch.full_scan_at = Some(here);
        }
        Ok(())
    }

    /// Returns whether workers here will soon be idle although there are pending tasks.
    pub(super) async fn is_running_short(&self) -> Result<bool> {
        let mut prefetch = self.prefetch.lock().await;
        if !prefetch.is_cut_off && prefetch.types_with_more.is_empty() && !prefetch.has_unknown {
            return Ok(false);
        }
        prefetch.capacity = self.capacity().await?;
        Ok(prefetch.is_running_short())
    }

    /// Returns whether the ready index may have changed, or is needed for more tasks.
    async fn is_scan_due(&self, prefetch: &mut PrefetchState) -> Result<bool> {
        let now = self.queue.now()?;
        // After a ring the index is scanned once more, a little later.
        let is_again_due = prefetch.second_scan_at.is_some_and(|at| now.has_reached(at));
        let is_next_due = prefetch.next_due_at.is_some_and(|at| now.is_due(at));
        let change = self.queue.read_bell(&mut prefetch.bell).await?;
        prefetch.second_scan_at = change.map_or(prefetch.second_scan_at, |change| change.second_scan_at);
        let has_other_subscriptions =
            prefetch.subscriptions.as_ref() != Some(&prefetch.capacity.subscriptions);
        Ok(is_again_due
            || is_next_due
            || change.is_some()
            || has_other_subscriptions
            || prefetch.is_running_short())
    }

    /// Scans the ready index: removes copies of tasks that were taken, and fetches free ones.
    async fn scan(&self, prefetch: &mut PrefetchState) -> Result<()> {
        let now = self.queue.now()?;
        prefetch.second_scan_at = prefetch.second_scan_at.filter(|at| !now.has_reached(*at));
        prefetch.subscriptions = Some(prefetch.capacity.subscriptions.clone());
        let page = self.queue.discover(Purpose::Sync, vec![KeyRange::whole(Index::Ready)]).await?;
        prefetch.next_due_at = page.next.map(Minute::start);
        let copies = self.spool.on_disk(Spool::local_tasks).await?;
        let mut has_forgotten = false;
        let shown: HashMap<TaskId, u64> = page.due.iter().map(|hit| (hit.entry.id, hit.entry.rev)).collect();
        let now = self.queue.now()?;
        let mut here: HashSet<TaskId> = HashSet::new();
        for copy in copies {
            let is_plain = copy.lease.is_none() && copy.checkout.is_none();
            match shown.get(&copy.task.id) {
                None if is_plain && is_due(&copy, now) => {
                    has_forgotten |= self.remove_if_taken(&copy, now).await?;
                }
                // It has changed since, and may be due earlier.
                Some(rev) if is_plain && copy.base_rev < *rev => {}
                _ => {
                    here.insert(copy.task.id);
                }
            }
        }
        if has_forgotten {
            prefetch.capacity = self.capacity().await?;
        }
        let is_skipped = |hit: &IndexHit| prefetch.skip.get(&hit.entry.id) == Some(&hit.entry.rev);
        let is_new = |hit: &IndexHit| !here.contains(&hit.entry.id) && !is_skipped(hit);
        let mut candidates: Vec<_> = page.due.into_iter().filter(is_new).collect();
        let host = self.host();
        candidates.sort_by_cached_key(|hit| (Reverse(hit.entry.priority), host.random()));
        self.fetch(prefetch, candidates).await
    }

    /// Copies as many free tasks here as there is capacity for.
    async fn fetch(&self, prefetch: &mut PrefetchState, candidates: Vec<IndexHit>) -> Result<()> {
        (prefetch.has_unknown, prefetch.is_cut_off) = (false, false);
        prefetch.types_with_more.clear();
        let (mut left, mut has_read) = (candidates.into_iter(), false);
        for batch in 0.. {
            if batch * CONCURRENCY >= READS_MAX {
                prefetch.is_cut_off = has_read && left.next().is_some();
                break;
            }
            let some: Vec<_> =
                left.by_ref().filter(|hit| prefetch.is_useful(hit)).take(CONCURRENCY).collect();
            if some.is_empty() {
                break;
            }
            let reads = stream::iter(some).map(|hit| async {
                let snapshot = self.queue.load(Purpose::Sync, &hit.entry.id).await;
                (hit, snapshot)
            });
            let snapshots: Vec<_> = reads.buffer_unordered(CONCURRENCY).collect().await;
            for (hit, snapshot) in snapshots {
                let snapshot = match snapshot {
                    Ok(Some(snapshot)) => snapshot,
                    // The entry was written before its task.
                    Ok(None) => continue,
                    Err(error) if error.kind() == Kind::Corrupt => {
                        prefetch.skip.insert(hit.entry.id, hit.entry.rev);
                        continue;
                    }
                    Err(error) => return Err(error),
                };
                has_read = true;
                prefetch.cache_type(&hit, &snapshot.task.task_type);
                self.copy_if_free(prefetch, &hit, &snapshot).await?;
            }
        }
        Ok(())
    }

    /// Copies a task here that was read, if it is free and there is capacity for it.
    async fn copy_if_free(
        &self,
        prefetch: &mut PrefetchState,
        hit: &IndexHit,
        snapshot: &TaskSnapshot,
    ) -> Result<()> {
        let (task, now) = (&snapshot.task, self.queue.now()?);
        let has_expired = task.expires_at.is_some_and(|at| now.is_past(at));
        if task.status() == Status::Pending && has_expired {
            self.queue.update_if(snapshot, &Event::Expire).await?;
            return Ok(());
        }
        let Some(view) = as_free(task, now) else {
            // A task that is older than its entry is about to change.
            if task.rev >= hit.entry.rev {
                prefetch.skip.insert(hit.entry.id, hit.entry.rev);
            }
            return Ok(());
        };
        if !prefetch.is_useful(hit) {
            return Ok(());
        }
        self.cache_snapshot(snapshot);
        let is_here = self.spool.on_disk(move |spool| spool.mirror(&view, None)).await? == Mirrored::Written;
        if is_here {
            *prefetch.capacity.free.entry(task.task_type.clone()).or_default() += 1;
            self.count(|synced| synced.mirrored += 1);
        }
        Ok(())
    }

    /// Removes the copy of a task that is held or has ended. A missing ready entry suggests it, but an entry can be late, so
    /// the task itself is read.
    async fn remove_if_taken(&self, copy: &LocalTask, now: Now) -> Result<bool> {
        let snapshot = match self.queue.load(Purpose::Sync, &copy.task.id).await {
            // A corrupt record is left for an operator.
            Err(error) if error.kind() == Kind::Corrupt => return Ok(false),
            snapshot => snapshot?,
        };
        if let Some(view) = snapshot.as_ref().and_then(|snapshot| as_free(&snapshot.task, now)) {
            return self.spool.on_disk(move |spool| spool.mirror(&view, None)).await.map(|_| false);
        }
        self.evict(&copy.task.id);
        let id = copy.task.id;
        let is_gone = self.spool.on_disk(move |spool| spool.remove_copy(&id)).await?;
        self.count(|synced| synced.forgotten += u64::from(is_gone));
        Ok(is_gone)
    }

    /// Copies tasks here whose lease has expired, like free ones. A task that has no attempt left, or was cancelled, ends.
    /// Without capacity, that is left to other workers until the next full scan.
    async fn take_expired(&self, prefetch: &mut PrefetchState, is_full_scan: bool) -> Result<()> {
        let page = self.queue.discover(Purpose::Sync, vec![KeyRange::whole(Index::Lease)]).await?;
        let mut reads = 0;
        for hit in page.due {
            if reads >= READS_MAX {
                break;
            }
            if !is_full_scan && !prefetch.is_useful(&hit) {
                continue;
            }
            reads += 1;
            let Some(snapshot) = self.load_valid(&hit.entry.id).await? else { continue };
            prefetch.cache_type(&hit, &snapshot.task.task_type);
            let now = self.queue.now()?;
            let State::Running(claim) = &snapshot.task.state else {
                self.queue.sweep(&hit).await?;
                continue;
            };
            if !now.is_past(claim.expires_at) {
                // It was renewed: its entry moves to its new expiry.
                self.queue.sweep(&hit).await?;
            } else if as_free(&snapshot.task, now).is_some() {
                self.copy_if_free(prefetch, &hit, &snapshot).await?;
            } else {
                self.queue.update_if(&snapshot, &Event::TimeOut).await?;
            }
        }
        Ok(())
    }
}

fn is_due(copy: &LocalTask, now: Now) -> bool {
    matches!(copy.task.state, State::Pending { available_at } if now.is_past(available_at))
}

/// Returns the task as pending, if any worker may start it.
fn as_free(task: &Task, now: Now) -> Option<Task> {
    let available_at = match &task.state {
        State::Pending { available_at } => *available_at,
        State::Running(claim) => {
            let is_left = now.is_past(claim.expires_at) && !claim.cancel_requested;
            (is_left && task.attempt < task.max_attempts).then_some(claim.expires_at)?
        }
        _ => return None,
    };
    Some(Task { state: State::Pending { available_at }, ..task.clone() })
}
