//! Making a task ours.
//!
//! Requests: 1 get (the task), 1 put (the claim), 1 put (the lease entry), 1 delete (the ready entry). Whoever holds the
//! lease on the shard, or on the inbox, leaves the entry where it is until the task is settled, and saves the last two:
//! should it be lost, the next holder, or whoever empties the inbox, finds the task by that entry.

use leasehold_core::{
    Entry, Error, Event, LeaseId, Rejected, Result, State, Status, StoreTime, Task, TaskType, Where, WorkerId,
};
use leasehold_store::Purpose;
use leasehold_store::mutant::{Rule, breaks};
use std::time::Duration;
use tracing::Instrument;

use crate::connect::Queue;
use crate::discover::Found;
use crate::layout::Intent;
use crate::tasks::{Follow, Loaded, Moved};

/// A task that is ours for a while.
#[derive(Debug, Clone, PartialEq)]
pub struct Claimed {
    pub(crate) loaded: Loaded,
    pub(crate) lease_id: LeaseId,
    pub(crate) by: WorkerId,
    /// The entry by which others find it, if it is known: the lease entry that was written with the claim, or the ready
    /// entry that was left. A renewal does not move it.
    pub(crate) entry: Option<Entry>,
    /// The revision that the claim made.
    pub(crate) rev: u64,
}

impl Claimed {
    /// The task as we last knew it.
    #[must_use]
    pub fn task(&self) -> &Task {
        &self.loaded.task
    }

    /// Until when it is ours for certain, by the store's time.
    #[must_use]
    pub fn expires_at(&self) -> StoreTime {
        match &self.loaded.task.state {
            State::Running(claim) => claim.expires_at,
            _ => StoreTime::from_millis(0),
        }
    }

    /// The entries that are there: the one that was written or left, and, after a renewal, the one that the record calls
    /// for by now and whoever swept the other has written.
    pub(crate) fn entries(&self) -> Option<Vec<Entry>> {
        let mut entries = vec![self.entry.clone()?];
        if self.loaded.task.rev > self.rev {
            entries.extend(self.loaded.task.entry());
        }
        Some(entries)
    }

    /// Whether someone has asked for it to be called off.
    #[must_use]
    pub fn cancel_requested(&self) -> bool {
        matches!(&self.loaded.task.state, State::Running(claim) if claim.cancel_requested)
    }
}

/// What meeting a ready entry came to.
#[derive(Debug)]
pub enum Met {
    /// The task is ours.
    Claimed(Box<Claimed>),
    /// It may start at this moment.
    NotDue(StoreTime),
    /// Nobody here can run its type.
    Foreign(TaskType),
    /// Its task is not there yet, or not yet as far.
    Ahead,
    /// Someone holds the task, until this moment if they do not renew; it could be run here.
    Held(StoreTime),
    /// The task has left this entry behind.
    Stale,
    /// Its record makes no sense: left for a person.
    Corrupt(Error),
    /// It is past its expiry.
    Expired,
}

impl Queue {
    /// Tries to claim the task of a ready entry. A claim whose outcome is unknown is an error: it counts as not held.
    pub async fn claim(
        &self,
        found: &Found,
        worker: &WorkerId,
        lease: Duration,
        handles: &(dyn Fn(&TaskType) -> bool + Sync),
    ) -> Result<Met> {
        let span = tracing::debug_span!("claim", "task.id" = %found.entry.id, %worker);
        self.claim_and(found, worker, lease, handles, Follow::Change).instrument(span).await
    }

    /// The same for whoever holds the lease on the task's shard, or on the inbox in which the entry lies: the entry stays
    /// until the task is settled.
    pub async fn claim_as_owner(
        &self,
        found: &Found,
        worker: &WorkerId,
        lease: Duration,
        handles: &(dyn Fn(&TaskType) -> bool + Sync),
    ) -> Result<Met> {
        let span = tracing::debug_span!("claim", "task.id" = %found.entry.id, %worker);
        self.claim_and(found, worker, lease, handles, Follow::Nothing).instrument(span).await
    }

    async fn claim_and(
        &self,
        found: &Found,
        worker: &WorkerId,
        lease: Duration,
        handles: &(dyn Fn(&TaskType) -> bool + Sync),
        follow: Follow,
    ) -> Result<Met> {
        let entry = &found.entry;
        self.may(Intent::Change).await?;
        if breaks(Rule::ReadsTwice) {
            self.load(Purpose::Claim, &entry.id).await?;
        }
        let loaded = match self.load(Purpose::Claim, &entry.id).await {
            Ok(Some(loaded)) => loaded,
            Ok(None) => return Ok(Met::Ahead),
            Err(error) if error.kind() == leasehold_core::Kind::Corrupt => return Ok(Met::Corrupt(error)),
            Err(error) => return Err(error),
        };
        if entry.rev > loaded.task.rev {
            return Ok(Met::Ahead);
        }
        match &loaded.task.state {
            State::Pending { .. } if handles(&loaded.task.task_type) => {}
            State::Pending { .. } => {
                if let Where::Inbox(_) = entry.place {
                    // Nobody else looks there.
                    self.cover_then_remove(loaded.task.entry().as_ref(), entry).await?;
                    self.ring(Purpose::Claim).await;
                }
                return Ok(Met::Foreign(loaded.task.task_type));
            }
            State::Running(claim) if handles(&loaded.task.task_type) => {
                return Ok(Met::Held(claim.expires_at));
            }
            _ => return Ok(Met::Stale),
        }
        let lease_id = self.random_name();
        let event = Event::Claim { worker: worker.clone(), lease_id: lease_id.clone(), lease };
        // A pointer that the task has left behind does not lead to it as the called-for entry does.
        let is_behind = entry.shard().is_none() && entry.rev < loaded.task.rev;
        let follow = if is_behind { Follow::Change } else { follow };
        let stays = matches!(follow, Follow::Nothing);
        let follow = match follow {
            // What is there is not what the record calls for.
            Follow::Change if entry.shard().is_none() && !is_behind => Follow::Removing(vec![entry.clone()]),
            follow => follow,
        };
        let moved = self.change_and(Purpose::Claim, &loaded, &event, worker.as_str(), follow).await?;
        let claimed = match moved {
            Moved::Done(loaded) => {
                let entry = if stays { Some(entry.clone()) } else { loaded.task.entry() };
                Claimed { entry, rev: loaded.task.rev, loaded, lease_id, by: worker.clone() }
            }
            Moved::Overtaken(loaded) if loaded.task.lease_id.as_ref() == Some(&lease_id) => {
                Claimed { entry: None, rev: loaded.task.rev, loaded, lease_id, by: worker.clone() }
            }
            Moved::Rejected(Rejected::NotBefore(_), _) if is_behind => return Ok(Met::Stale),
            Moved::Rejected(Rejected::NotBefore(at), _) => return Ok(Met::NotDue(at)),
            Moved::Rejected(Rejected::TooLate(_), _) => return Ok(Met::Expired),
            Moved::Rejected(_, loaded) | Moved::Overtaken(loaded) => return Ok(lost_to(&loaded.task)),
            Moved::Missing => return Ok(Met::Stale),
        };
        if claimed.loaded.task.status() != Status::Running {
            return Ok(Met::Stale);
        }
        Ok(Met::Claimed(Box::new(claimed)))
    }
}

/// Others were faster.
fn lost_to(task: &Task) -> Met {
    match &task.state {
        State::Running(claim) => Met::Held(claim.expires_at),
        _ => Met::Stale,
    }
}
