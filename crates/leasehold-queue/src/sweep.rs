//! The rules of the index, for those who meet entries that are not what they should be.
//!
//! * **Cover, then sweep** (rule 2). An entry that is not ahead of its task and is not the one the record calls for is
//!   removed only after the called-for one was written.
//! * **No removal without a fence** (rule 4). An entry *ahead* of its task — no task, or a smaller revision — is left
//!   alone for the grace. After that a write on condition makes sure that it can never become true, and only then is
//!   it removed.
//!
//! Leaving an entry is always safe (promise P9); removing it never is without having read the task since.

use leasehold_core::{Entry, Error, Event, Kind, Result, State, Status, StoreTime, Task};
use leasehold_store::Purpose;
use leasehold_store::mutant::{Rule, breaks};

use crate::connect::Queue;
use crate::discover::Found;
use crate::layout::Intent;
use crate::tasks::{Loaded, Moved};

/// What sweeping an entry came to.
#[derive(Debug)]
pub enum Swept {
    /// It is as it should be.
    Fine,
    /// Look again at this moment.
    Later(StoreTime),
    /// Someone holds the task: look again at this moment, when the claim runs out or before.
    Held(StoreTime),
    /// The task was moved on: timed out, or expired.
    Moved(Box<Task>),
    /// The entry was removed.
    Removed,
    /// Its task makes no sense: left for a person.
    Corrupt(Error),
}

impl Queue {
    /// Looks after one entry of either index.
    pub async fn sweep(&self, found: &Found) -> Result<Swept> {
        let entry = &found.entry;
        self.may(Intent::Change).await?;
        let loaded = match self.load(Purpose::Sweep, &entry.id).await {
            Ok(loaded) => loaded,
            Err(error) if error.kind() == Kind::Corrupt => return Ok(Swept::Corrupt(error)),
            Err(error) => return Err(error),
        };
        match loaded {
            Some(loaded) if entry.rev <= loaded.task.rev => self.sweep_met(found, loaded).await,
            ahead => self.sweep_ahead(found, ahead).await,
        }
    }

    async fn sweep_met(&self, found: &Found, loaded: Loaded) -> Result<Swept> {
        let entry = &found.entry;
        let event = match &loaded.task.state {
            State::Running(claim) if self.now()?.is_past(claim.expires_at) => Some(Event::TimeOut),
            State::Pending { .. }
                if loaded.task.expires_at.is_some_and(|at| self.now().is_ok_and(|now| now.is_past(at))) =>
            {
                Some(Event::Expire)
            }
            _ => None,
        };
        if let Some(event) = event {
            let moved = self.change_loaded(Purpose::Sweep, &loaded, &event, &self.config.by).await?;
            if let Moved::Done(moved) = moved {
                return Ok(Swept::Moved(Box::new(moved.task)));
            }
            return Ok(Swept::Fine);
        }
        let called_for = loaded.task.entry();
        if called_for.as_ref() == Some(entry) || is_pointer_to(entry, &loaded.task) {
            return Ok(match &loaded.task.state {
                State::Running(claim) => Swept::Held(claim.expires_at),
                _ => Swept::Fine,
            });
        }
        let left_at = found.written_at.max(loaded.task.updated_at).plus(self.config.stale_grace);
        if !self.now()?.is_past(left_at) {
            // Whoever moved the task is probably about to remove it. If a claimer was lost before it wrote its lease
            // entry, this one is all there is to find the task by.
            return Ok(match &loaded.task.state {
                State::Running(claim) => Swept::Held(claim.expires_at.min(left_at)),
                _ => Swept::Later(left_at),
            });
        }
        self.cover_then_remove(called_for.as_ref(), entry).await?;
        Ok(Swept::Removed)
    }

    pub(crate) async fn cover_then_remove(&self, called_for: Option<&Entry>, met: &Entry) -> Result<()> {
        if let Some(called_for) = called_for.filter(|_| !breaks(Rule::NoCover)) {
            self.put_entry(Purpose::Sweep, called_for).await?;
        }
        self.remove_entry(Purpose::Sweep, met).await;
        Ok(())
    }

    async fn sweep_ahead(&self, found: &Found, loaded: Option<Loaded>) -> Result<Swept> {
        let until = found.written_at.plus(self.config.ahead_grace);
        if !self.now()?.is_past(until) {
            return Ok(Swept::Later(until));
        }
        if self.is_for_the_migration(&found.entry) {
            return Ok(Swept::Later(self.now()?.latest_known().plus(self.config.ahead_grace)));
        }
        let is_fenced = match loaded {
            None if found.entry.rev == 1 => self.fence_task(&found.entry.id).await?,
            // Only a task that was there has entries of later revisions: it was purged.
            None => true,
            Some(loaded) if loaded.task.status().is_final() => {
                let moved =
                    self.change_loaded(Purpose::Sweep, &loaded, &Event::Fence, &self.config.by).await?;
                matches!(moved, Moved::Done(_))
            }
            Some(_) => false,
        };
        if !is_fenced {
            return Ok(Swept::Fine);
        }
        self.remove_entry(Purpose::Sweep, &found.entry).await;
        Ok(Swept::Removed)
    }
}

impl Queue {
    /// Whether an entry lies in the place that a migration has left, or goes to. Its task may stand there, too, where
    /// no fence of ours would reach it.
    pub(crate) fn is_for_the_migration(&self, entry: &Entry) -> bool {
        !entry.has_shard_of(self.shard_len()) && self.layout.known().agreement.is_between()
    }
}

/// Whether an entry in an inbox or in the overflow leads to a waiting task just as the entry does that its record calls
/// for: it was put there in the place of that one.
pub(crate) fn is_pointer_to(entry: &Entry, task: &Task) -> bool {
    entry.shard().is_none() && entry.rev == task.rev && task.status() == Status::Pending
}

impl Swept {
    /// Whether the task was put back for another attempt.
    #[must_use]
    pub fn is_requeued(&self) -> bool {
        matches!(self, Swept::Moved(task) if task.status() == Status::Pending)
    }
}
