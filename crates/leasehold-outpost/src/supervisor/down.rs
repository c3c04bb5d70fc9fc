//! Down: copies tasks to this node that are free or whose lease has expired, and removes copies of tasks that other workers
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

use super::prefetch::{Capacity, PrefetchState};
use super::{BucketLink, Supervisor, Synced};
use crate::spool::{Copy, Mirrored, Spool};

/// Tasks that are read concurrently.
const AT_ONCE: usize = 16;
/// Reads after which a scan pauses: workers may wait for a claim to be sent, or for a renewal.
const READS_MAX: usize = 512;

impl Supervisor {
    pub(super) async fn down(&self, link: &BucketLink) -> Result<Synced> {
        let mut walk = link.walk.lock().await;
        let here = self.host().instant();
        let is_pass = walk.passed_at.is_none_or(|at| here.since(at) >= self.options.full_pass);
        if is_pass {
            walk.skip.clear();
        }
        let mut room = self.room().await?;
        let mut synced = self.take_from_the_dead(link, &mut walk, &mut room, is_pass).await?;
        if self.is_worth_a_look(link, &mut walk, &room).await? || is_pass {
            synced.add(self.look(link, &mut walk, room).await?);
        }
        if is_pass {
            walk.passed_at = Some(here);
        }
        Ok(synced)
    }

    /// Returns whether workers here will soon be idle although there are pending tasks.
    pub(super) async fn is_short(&self, link: &BucketLink) -> Result<bool> {
        let Ok(walk) = link.walk.try_lock() else { return Ok(false) };
        if !walk.is_unread && walk.more.is_empty() && !walk.has_unknown {
            return Ok(false);
        }
        Ok(walk.is_short(&self.room().await?))
    }

    async fn is_worth_a_look(
        &self,
        link: &BucketLink,
        walk: &mut PrefetchState,
        room: &Capacity,
    ) -> Result<bool> {
        let now = link.queue.now()?;
        // After a ring the index is scanned once more, a little later.
        let is_again_due = walk.bell.look_again_at().is_some_and(|at| now.has_reached(at));
        let is_next_due = walk.next.is_some_and(|at| now.is_due(at));
        let has_rung = link.queue.has_rung(&mut walk.bell).await?;
        let wants_other = walk.wants.as_ref() != Some(&room.wants);
        Ok(is_again_due || is_next_due || has_rung || wants_other || walk.is_short(room))
    }

    async fn look(&self, link: &BucketLink, walk: &mut PrefetchState, mut room: Capacity) -> Result<Synced> {
        walk.bell.looked(link.queue.now()?.earliest);
        walk.wants = Some(room.wants.clone());
        let look = link.queue.discover(Purpose::Sync, vec![KeyRange::whole(Index::Ready)]).await?;
        walk.next = look.next.map(Minute::start);
        let copies = self.on_disk(Spool::waiting).await?;
        let mut synced = Synced::default();
        let shown: HashMap<TaskId, u64> =
            look.due.iter().map(|found| (found.entry.id, found.entry.rev)).collect();
        let now = link.queue.now()?;
        let mut here: HashSet<TaskId> = HashSet::new();
        for copy in copies {
            let is_plain = copy.lease.is_none() && copy.checkout.is_none();
            match shown.get(&copy.task.id) {
                None if is_plain && is_due(&copy, now) => {
                    synced.forgotten += u64::from(self.forget_if_taken(link, &copy, now).await?);
                }
                // It has changed since, and may be due earlier.
                Some(rev) if is_plain && copy.base_rev < *rev => {}
                _ => {
                    here.insert(copy.task.id);
                }
            }
        }
        if synced.forgotten > 0 {
            room = self.room().await?;
        }
        let is_new = |found: &IndexHit| !here.contains(&found.entry.id) && !walk.is_skipped(found);
        let mut candidates: Vec<_> = look.due.into_iter().filter(is_new).collect();
        let host = self.host();
        candidates.sort_by_cached_key(|found| (Reverse(found.entry.priority), host.random()));
        synced.add(self.fetch(link, walk, candidates, room).await?);
        Ok(synced)
    }

    /// Copies as many free tasks here as there is capacity for.
    async fn fetch(
        &self,
        link: &BucketLink,
        walk: &mut PrefetchState,
        candidates: Vec<IndexHit>,
        mut room: Capacity,
    ) -> Result<Synced> {
        let mut synced = Synced::default();
        (walk.has_unknown, walk.is_unread) = (false, false);
        walk.more.clear();
        let (mut left, mut has_learnt) = (candidates.into_iter(), false);
        for reads in 0.. {
            if reads * AT_ONCE >= READS_MAX {
                walk.is_unread = has_learnt && left.next().is_some();
                break;
            }
            let some: Vec<_> =
                left.by_ref().filter(|found| walk.may_come(found, &room)).take(AT_ONCE).collect();
            if some.is_empty() {
                break;
            }
            let seen = stream::iter(some).map(|found| async {
                let seen = link.queue.see(Purpose::Sync, &found.entry.id).await;
                (found, seen)
            });
            let seen: Vec<_> = seen.buffer_unordered(AT_ONCE).collect().await;
            for (found, seen) in seen {
                let seen = match seen {
                    Ok(Some(seen)) => seen,
                    // The entry was written before its task.
                    Ok(None) => continue,
                    Err(error) if error.kind() == Kind::Corrupt => {
                        walk.skip.insert(found.entry.id, found.entry.rev);
                        continue;
                    }
                    Err(error) => return Err(error),
                };
                has_learnt = true;
                walk.learn_type(&found, &seen.task().task_type);
                synced.mirrored += u64::from(self.bring(link, walk, &found, &seen, &mut room).await?);
            }
        }
        Ok(synced)
    }

    /// Copies a task here that was read, if it is free and there is capacity for it.
    async fn bring(
        &self,
        link: &BucketLink,
        walk: &mut PrefetchState,
        found: &IndexHit,
        seen: &TaskSnapshot,
        room: &mut Capacity,
    ) -> Result<bool> {
        let (task, now) = (seen.task(), link.queue.now()?);
        let has_expired = task.expires_at.is_some_and(|at| now.is_past(at));
        if task.status() == Status::Pending && has_expired {
            link.queue.advance(Purpose::Sync, seen, &Event::Expire, self.name()).await?;
            return Ok(false);
        }
        let Some(view) = free_view(task, now) else {
            // A task that is older than its entry is about to change.
            if task.rev >= found.entry.rev {
                walk.skip.insert(found.entry.id, found.entry.rev);
            }
            return Ok(false);
        };
        if !walk.may_come(found, room) {
            return Ok(false);
        }
        link.remember(seen);
        let is_here = self.on_disk(move |spool| spool.mirror(&view, None)).await? == Mirrored::Written;
        if is_here {
            room.take(&task.task_type);
        }
        Ok(is_here)
    }

    /// Removes the copy of a task that is held or has ended. A missing ready entry suggests it, but an entry can be late, so
    /// the task itself is read.
    async fn forget_if_taken(&self, link: &BucketLink, copy: &Copy, now: Now) -> Result<bool> {
        let seen = match self.see(link, &copy.task.id).await {
            // A corrupt record is left for an operator.
            Err(error) if error.kind() == Kind::Corrupt => return Ok(false),
            seen => seen?,
        };
        if let Some(view) = seen.as_ref().and_then(|seen| free_view(seen.task(), now)) {
            return self.on_disk(move |spool| spool.mirror(&view, None)).await.map(|_| false);
        }
        link.forget(&copy.task.id);
        let id = copy.task.id;
        self.on_disk(move |spool| spool.forget(&id)).await
    }

    /// Copies tasks here whose lease has expired, like free ones. A task that has no attempt left, or was cancelled, ends.
    /// Without capacity, that is left to other workers until the next full scan.
    async fn take_from_the_dead(
        &self,
        link: &BucketLink,
        walk: &mut PrefetchState,
        room: &mut Capacity,
        is_pass: bool,
    ) -> Result<Synced> {
        let look = link.queue.discover(Purpose::Sync, vec![KeyRange::whole(Index::Lease)]).await?;
        let mut synced = Synced::default();
        let mut reads = 0;
        for found in look.due {
            if reads >= READS_MAX {
                break;
            }
            if !is_pass && !walk.may_come(&found, room) {
                continue;
            }
            reads += 1;
            let seen = match link.queue.see(Purpose::Sync, &found.entry.id).await {
                // A corrupt record is left for an operator.
                Err(error) if error.kind() == Kind::Corrupt => continue,
                seen => seen?,
            };
            let Some(seen) = seen else { continue };
            walk.learn_type(&found, &seen.task().task_type);
            let now = link.queue.now()?;
            let State::Running(claim) = &seen.task().state else {
                link.queue.sweep(&found).await?;
                continue;
            };
            if !now.is_past(claim.expires_at) {
                // It was renewed: its entry moves to its new expiry.
                link.queue.sweep(&found).await?;
            } else if free_view(seen.task(), now).is_some() {
                synced.mirrored += u64::from(self.bring(link, walk, &found, &seen, room).await?);
            } else {
                link.queue.advance(Purpose::Sync, &seen, &Event::TimeOut, self.name()).await?;
            }
        }
        Ok(synced)
    }
}

fn is_due(copy: &Copy, now: Now) -> bool {
    matches!(copy.task.state, State::Pending { available_at } if now.is_past(available_at))
}

/// Returns the task as pending, if any worker may start it.
fn free_view(task: &Task, now: Now) -> Option<Task> {
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
