//! Table of the archive objects.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use super::{ArchiveChange, ArchiveDay, ArchiveName, ArchiveRef, OutdatedCopy};
use crate::ids::{HexName, TaskId};
use crate::task::Status;
use crate::time::StoreTime;

/// Archive objects, and those that are removed and yet to be deleted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ArchiveTable {
    pub(super) objects: BTreeMap<ArchiveName, ArchiveRef>,
    removed: BTreeMap<ArchiveName, StoreTime>,
    /// Largest id of each day: a new task is beyond it, and is not looked up.
    last: BTreeMap<ArchiveDay, TaskId>,
}

impl ArchiveTable {
    /// Table of a snapshot: its objects, and those that were removed, with the time of that.
    #[must_use]
    pub fn new(objects: Vec<ArchiveRef>, removed: Vec<(ArchiveName, StoreTime)>) -> Self {
        let objects = objects.into_iter().map(|object| (object.name.clone(), object)).collect();
        let mut table = Self { objects, removed: removed.into_iter().collect(), last: BTreeMap::new() };
        let days: BTreeSet<_> = table.objects.keys().map(ArchiveName::day).collect();
        for day in days {
            table.find_last(day);
        }
        table
    }

    /// Objects, in the order of days and ids.
    pub fn objects(&self) -> impl Iterator<Item = &ArchiveRef> {
        self.objects.values()
    }

    /// Objects after a name, in the order of days and ids.
    pub fn objects_after(&self, after: Option<&ArchiveName>) -> impl Iterator<Item = &ArchiveRef> {
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.objects.range((start, Bound::Unbounded)).map(|(_, object)| object)
    }

    /// Number of objects.
    #[must_use]
    pub fn len(&self) -> usize {
        self.objects.len()
    }

    /// True if there are no objects.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    /// Object with this name.
    #[must_use]
    pub fn get(&self, name: &ArchiveName) -> Option<&ArchiveRef> {
        self.objects.get(name)
    }

    /// Objects that were removed and are yet to be deleted, with the time of their removal.
    pub fn removed(&self) -> impl Iterator<Item = (&ArchiveName, StoreTime)> {
        self.removed.iter().map(|(name, at)| (name, *at))
    }

    /// True if the table has an object, or is yet to delete it.
    #[must_use]
    pub fn knows(&self, name: &ArchiveName) -> bool {
        self.objects.contains_key(name) || self.removed.contains_key(name)
    }

    /// Objects that may have a task: at most three.
    #[must_use]
    pub fn covering(&self, id: &TaskId) -> Vec<ArchiveRef> {
        let day = ArchiveDay::of(id);
        if self.last.get(&day).is_none_or(|last| last < id) {
            return Vec::new();
        }
        let day = self.of_day(day).take_while(|object| object.name.first() <= *id);
        day.filter(|object| object.may_have(id)).cloned().collect()
    }

    /// Objects with ids of a range, in the order of their first ids; `end` is not part of it.
    pub(in crate::journal) fn overlapping(
        &self,
        first: Option<TaskId>,
        end: Option<TaskId>,
    ) -> Vec<&ArchiveRef> {
        let is_in = |object: &&ArchiveRef| {
            first.is_none_or(|first| object.name.last() >= first)
                && end.is_none_or(|end| object.name.first() < end)
        };
        let mut objects: Vec<_> = self.objects.values().filter(is_in).collect();
        // Ids without a time are between those of all days.
        objects.sort_by_key(|object| object.name.first());
        objects
    }

    /// Number of archived tasks by status.
    #[must_use]
    pub fn counts(&self) -> BTreeMap<Status, u64> {
        let mut counts = BTreeMap::new();
        for (status, count) in self.objects.values().flat_map(|object| &object.counts) {
            *counts.entry(*status).or_default() += count;
        }
        counts
    }

    /// Objects of a day, in the order of their first ids.
    pub(super) fn of_day(&self, day: ArchiveDay) -> impl Iterator<Item = &ArchiveRef> {
        let least =
            ArchiveName { day, first: TaskId::least(), last: TaskId::least(), id: HexName::from_random(0) };
        let objects = self.objects.range((Bound::Included(least), Bound::Unbounded));
        objects.map(|(_, object)| object).take_while(move |object| object.name.day() == day)
    }

    fn find_last(&mut self, day: ArchiveDay) {
        match self.of_day(day).map(|object| object.name.last()).max() {
            Some(last) => self.last.insert(day, last),
            None => self.last.remove(&day),
        };
    }

    /// Applies a change, except for the tasks that leave the live state. Returns the reason if it does not follow from the
    /// changes before.
    pub(in crate::journal) fn apply(&mut self, change: ArchiveChange) -> Result<(), String> {
        let names = change.removed.iter().chain(change.added.iter().map(|object| &object.name));
        let days: BTreeSet<_> = names.map(ArchiveName::day).collect();
        for name in change.removed {
            self.objects
                .remove(&name)
                .ok_or_else(|| format!("archive object {name} is removed, but unknown"))?;
            self.removed.insert(name, change.at);
        }
        for name in change.deleted {
            self.removed
                .remove(&name)
                .ok_or_else(|| format!("archive object {name} is deleted, but not removed"))?;
        }
        for OutdatedCopy { object, id, status } in change.outdated {
            let found = self.objects.get_mut(&object).filter(|object| object.may_have(&id));
            if !found.is_some_and(|object| object.outdate(id, status)) {
                return Err(format!("task {id} is not a {status} task of archive object {object}"));
            }
        }
        for object in change.added {
            if self.knows(&object.name) {
                return Err(format!("archive object {} is added twice", object.name));
            }
            self.objects.insert(object.name.clone(), object);
        }
        for day in days {
            self.find_last(day);
        }
        Ok(())
    }
}
