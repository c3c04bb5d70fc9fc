//! Down: what is free, or was left by the dead, comes here; what others have goes.
//!
//! A few tasks are kept here for the workers of this node, by priority and then by chance, so that nodes meet rarely. What
//! they are is read from the index: a list shows a thousand of them, and all pages are read, so that nothing hides behind
//! what others hold. Between full passes the index is looked at only when the bell says that there is something new.

use futures::{StreamExt, stream};
use leasehold_core::{Event, Index, Kind, Minute, Now, Result, State, Status, Task, TaskId};
use leasehold_queue::discover::{Found, Stretch};
use leasehold_store::Purpose;
use std::cmp::Reverse;
use std::collections::HashSet;

use super::{Link, Supervisor, Synced, Walk};
use crate::spool::{Copy, Mirrored, Spool};

/// So many tasks are read at once.
const AT_ONCE: usize = 16;

impl Supervisor {
    pub(super) async fn down(&self, link: &Link) -> Result<Synced> {
        let mut walk = link.walk.lock().await;
        let mut synced = self.take_from_the_dead(link, &mut walk).await?;
        if self.is_worth_a_look(link, &mut walk).await? {
            synced.add(self.look(link, &mut walk).await?);
        }
        Ok(synced)
    }

    /// Whether workers here will soon have nothing to do although there is something.
    pub(super) async fn is_short(&self, link: &Link) -> Result<bool> {
        let Ok(walk) = link.walk.try_lock() else { return Ok(false) };
        if !walk.has_more {
            return Ok(false);
        }
        drop(walk);
        let free = self.on_disk(Spool::free).await?;
        Ok(free < self.options.window / 2)
    }

    async fn is_worth_a_look(&self, link: &Link, walk: &mut Walk) -> Result<bool> {
        let (now, here) = (link.queue.now()?, self.host().instant());
        let is_pass_due = walk.looked_at.is_none_or(|at| here.since(at) >= self.options.full_pass);
        // What was rung for is looked at once more, a little later.
        let is_again_due = walk.bell.look_again_at().is_some_and(|at| now.has_reached(at));
        let is_next_due = walk.next.is_some_and(|at| now.is_due(at));
        let has_rung = link.queue.has_rung(&mut walk.bell).await?;
        if is_pass_due {
            walk.skip.clear();
        }
        Ok(is_pass_due || is_again_due || is_next_due || has_rung || walk.has_more)
    }

    async fn look(&self, link: &Link, walk: &mut Walk) -> Result<Synced> {
        walk.looked_at = Some(self.host().instant());
        walk.bell.looked(link.queue.now()?.earliest);
        let look = link.queue.discover(Purpose::Sync, vec![Stretch::whole(Index::Ready)]).await?;
        walk.next = look.next.map(Minute::start);
        let copies = self.on_disk(Spool::waiting).await?;
        let mut synced = Synced::default();
        let shown: HashSet<TaskId> = look.due.iter().map(|found| found.entry.id).collect();
        let now = link.queue.now()?;
        let mut here: HashSet<TaskId> = HashSet::new();
        let mut free = 0;
        for copy in copies {
            let is_plain = copy.lease.is_none() && copy.checkout.is_none();
            if is_plain && copy.base_rev > 0 && is_due(&copy, now) && !shown.contains(&copy.task.id) {
                synced.forgotten += u64::from(self.forget_if_taken(link, &copy, now).await?);
            } else {
                free += usize::from(is_plain);
                here.insert(copy.task.id);
            }
        }
        let is_new = |found: &Found| {
            let id = &found.entry.id;
            !here.contains(id) && walk.skip.get(id) != Some(&found.entry.rev)
        };
        let mut candidates: Vec<_> = look.due.into_iter().filter(is_new).collect();
        let host = self.host();
        candidates.sort_by_cached_key(|found| (Reverse(found.entry.priority), host.random()));
        let room = self.options.window.saturating_sub(free);
        synced.add(self.fetch(link, walk, candidates, room).await?);
        Ok(synced)
    }

    /// Brings as many free tasks here as there is room for.
    async fn fetch(
        &self,
        link: &Link,
        walk: &mut Walk,
        candidates: Vec<Found>,
        room: usize,
    ) -> Result<Synced> {
        let mut synced = Synced::default();
        let mut left = candidates.into_iter();
        let mut room = room;
        while room > 0 {
            let some: Vec<_> = left.by_ref().take(room.min(AT_ONCE)).collect();
            if some.is_empty() {
                break;
            }
            let seen = stream::iter(some).map(|found| async {
                let seen = link.queue.see(Purpose::Sync, &found.entry.id).await;
                (found, seen)
            });
            let seen: Vec<_> = seen.buffer_unordered(AT_ONCE).collect().await;
            for (found, seen) in seen {
                let view = match seen {
                    Ok(Some(seen)) => {
                        free_view(seen.task(), link.queue.now()?).inspect(|_| link.remember(&seen))
                    }
                    Ok(None) => None,
                    Err(error) if error.kind() == Kind::Corrupt => None,
                    Err(error) => return Err(error),
                };
                let Some(view) = view else {
                    walk.skip.insert(found.entry.id, found.entry.rev);
                    continue;
                };
                if self.on_disk(move |spool| spool.mirror(&view, None)).await? == Mirrored::Written {
                    synced.mirrored += 1;
                    room -= 1;
                }
            }
        }
        walk.has_more = left.next().is_some();
        Ok(synced)
    }

    /// What is not in the index of what waits is somebody's, or has ended: but an entry can be late, so the task itself is
    /// asked.
    async fn forget_if_taken(&self, link: &Link, copy: &Copy, now: Now) -> Result<bool> {
        let seen = self.see(link, &copy.task.id).await?;
        if let Some(view) = seen.as_ref().and_then(|seen| free_view(seen.task(), now)) {
            return self.on_disk(move |spool| spool.mirror(&view, None)).await.map(|_| false);
        }
        link.forget(&copy.task.id);
        let id = copy.task.id;
        self.on_disk(move |spool| spool.forget(&id)).await
    }

    /// Claims that have run out: their tasks come here like free ones. What has no attempt left, or was called off, ends.
    async fn take_from_the_dead(&self, link: &Link, walk: &mut Walk) -> Result<Synced> {
        let look = link.queue.discover(Purpose::Sync, vec![Stretch::whole(Index::Lease)]).await?;
        let mut synced = Synced::default();
        let mut room = self.options.window.saturating_sub(self.on_disk(Spool::free).await?);
        for found in look.due {
            let id = found.entry.id;
            let seen = match link.queue.see(Purpose::Sync, &id).await {
                // It is left for a person.
                Err(error) if error.kind() == Kind::Corrupt => continue,
                seen => seen?,
            };
            let Some(seen) = seen else { continue };
            let now = link.queue.now()?;
            let State::Running(claim) = &seen.task().state else {
                link.queue.sweep(&found).await?;
                continue;
            };
            if !now.is_past(claim.expires_at) {
                // It was renewed: its entry moves to where it is looked for next.
                link.queue.sweep(&found).await?;
            } else if let Some(view) = free_view(seen.task(), now) {
                if room > 0
                    && self.on_disk(move |spool| spool.mirror(&view, None)).await? == Mirrored::Written
                {
                    walk.skip.remove(&id);
                    link.remember(&seen);
                    synced.mirrored += 1;
                    room -= 1;
                }
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

/// The task as one that waits, if anybody may begin with it.
fn free_view(task: &Task, now: Now) -> Option<Task> {
    let available_at = match &task.state {
        State::Pending { available_at } => *available_at,
        State::Running(claim) => {
            let is_left = now.is_past(claim.expires_at) && !claim.cancel_requested;
            (is_left && task.attempt < task.max_attempts).then_some(claim.expires_at)?
        }
        _ => return None,
    };
    debug_assert!(matches!(task.status(), Status::Pending | Status::Running));
    Some(Task { state: State::Pending { available_at }, ..task.clone() })
}
