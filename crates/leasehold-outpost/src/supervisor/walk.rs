//! What the looks at the index have shown, and how much more may come here.

use leasehold_core::{Result, StoreTime, TaskId, TaskType};
use leasehold_queue::Bell;
use leasehold_queue::discover::Found;
use leasehold_store::host::Instant;
use std::collections::{HashMap, HashSet};

use super::Supervisor;
use crate::spool::Wants;

/// So many types of tasks are remembered.
const TYPES_MAX: usize = 100_000;

/// What the looks at the index have shown.
#[derive(Default)]
pub(crate) struct Walk {
    pub(super) bell: Bell,
    /// When everything was last looked at, whatever the bell said.
    pub(super) passed_at: Option<Instant>,
    /// Entries whose task was not free, by the revision of the entry.
    pub(super) skip: HashMap<TaskId, u64>,
    /// Of which type a task is, by the revision of its entry: what nobody here handles is read once.
    types: HashMap<TaskId, (u64, TaskType)>,
    /// Types of which more wait than are kept here.
    pub(super) more: HashSet<TaskType>,
    /// More wait, of which nobody here knows the types, because there is enough of everything.
    pub(super) has_unknown: bool,
    /// A look has not come to its end: there was too much to read at once.
    pub(super) is_unread: bool,
    /// What workers here handled at the last look.
    pub(super) wants: Option<Wants>,
    /// When something becomes due that was not at the last look.
    pub(super) next: Option<StoreTime>,
}

impl Walk {
    /// The bucket was out of reach: everything is looked at again. Which task is of which type stays known.
    pub(super) fn begin_anew(&mut self) {
        let types = std::mem::take(&mut self.types);
        *self = Self { types, ..Self::default() };
    }

    pub(super) fn type_of(&self, found: &Found) -> Option<&TaskType> {
        self.types.get(&found.entry.id).filter(|(rev, _)| *rev == found.entry.rev).map(|(_, of)| of)
    }

    pub(super) fn learn_type(&mut self, found: &Found, task_type: &TaskType) {
        if self.types.len() >= TYPES_MAX {
            self.types.clear();
        }
        self.types.insert(found.entry.id, (found.entry.rev, task_type.clone()));
    }

    pub(super) fn is_skipped(&self, found: &Found) -> bool {
        self.skip.get(&found.entry.id) == Some(&found.entry.rev)
    }

    /// Whether it may be of use here. What waits here no longer than there is room for is noted.
    pub(super) fn may_come(&mut self, found: &Found, room: &Room) -> bool {
        let Some(of) = self.type_of(found).cloned() else {
            self.has_unknown |= room.is_full();
            return !room.is_full();
        };
        let is_for_it = room.is_for(&of);
        if !is_for_it && room.wants.includes(&of) {
            self.more.insert(of);
        }
        is_for_it
    }

    /// Whether those who work here will soon have nothing to do although there is something.
    pub(super) fn is_short(&self, room: &Room) -> bool {
        self.is_unread
            || self.more.iter().any(|of| room.is_short_of(of))
            || self.has_unknown && room.is_short()
    }
}

/// How much more may come here: so much of each type that somebody handles, so that none is in the way of another; of
/// everything together where somebody handles everything, or nobody has said what.
pub(super) struct Room {
    pub(super) wants: Wants,
    free: HashMap<TaskType, usize>,
    window: usize,
}

impl Room {
    fn of(&self, task_type: &TaskType) -> usize {
        if self.wants.types().is_some() {
            return self.free.get(task_type).copied().unwrap_or(0);
        }
        self.free.values().sum()
    }

    pub(super) fn is_for(&self, task_type: &TaskType) -> bool {
        self.wants.includes(task_type) && self.of(task_type) < self.window
    }

    pub(super) fn take(&mut self, task_type: &TaskType) {
        *self.free.entry(task_type.clone()).or_default() += 1;
    }

    fn is_short_of(&self, task_type: &TaskType) -> bool {
        self.wants.includes(task_type) && self.of(task_type) < self.window / 2
    }

    /// There is enough of everything.
    pub(super) fn is_full(&self) -> bool {
        self.are_all(|free| free >= self.window)
    }

    fn is_short(&self) -> bool {
        !self.are_all(|free| free >= self.window / 2)
    }

    fn are_all(&self, are_enough: impl Fn(usize) -> bool) -> bool {
        match self.wants.types() {
            Some(mut types) => types.all(|of| are_enough(self.of(of))),
            None => are_enough(self.free.values().sum()),
        }
    }
}

impl Supervisor {
    pub(super) async fn room(&self) -> Result<Room> {
        let (wants, free) = self.on_disk(|spool| Ok((spool.wants()?, spool.free()?))).await?;
        Ok(Room { wants, free, window: self.options.window })
    }
}
