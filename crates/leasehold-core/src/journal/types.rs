//! Task types of the live tasks, with the counts and the due tasks of each.
//!
//! A type is stored once and referred to by a number, which saves its name in each of a million tasks.

use std::collections::{BTreeMap, BTreeSet};

use crate::ids::{TaskId, TaskType};
use crate::task::{Priority, Status};
use crate::time::{Minute, StoreTime};

/// Number of a task type while it has tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TypeNumber(u32);

/// Task types by number and by name.
#[derive(Debug, Default)]
pub(super) struct TypeTable {
    rows: Vec<TypeRow>,
    by_name: BTreeMap<TaskType, TypeNumber>,
    /// Numbers of rows without tasks. A queue may see any number of types in its life.
    unused: Vec<TypeNumber>,
}

/// Live tasks of one type.
#[derive(Debug)]
pub(super) struct TypeRow {
    pub(super) name: TaskType,
    /// Number of tasks by status, in the order of [`Status::ALL`].
    pub(super) counts: [u64; Status::ALL.len()],
    /// Tasks that are due, in the order in which they are claimed.
    pub(super) ready: BTreeSet<ReadyKey>,
}

/// Position of a due task: by the minute in which it became available, then by priority, then by the exact time, as far as
/// the object layout has an order, and then by id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ReadyKey {
    /// Minute, priority and millisecond of the minute in one number: a third less memory than three fields.
    order: u64,
    pub(super) id: TaskId,
}

impl ReadyKey {
    pub(super) fn new(available_at: StoreTime, priority: Priority, id: TaskId) -> Self {
        let minute = Minute::of(available_at).start();
        let minutes = u64::try_from(minute.as_millis() / 60_000).unwrap_or(0);
        let millis = u64::try_from(available_at.since(minute).as_millis()).unwrap_or(0);
        Self { order: minutes << 20 | u64::from(priority.inverted()) << 16 | millis, id }
    }

    /// Minute in which the task became available.
    pub(super) fn minute(&self) -> Minute {
        Minute::of(StoreTime::from_millis(i64::try_from(self.order >> 20).unwrap_or(0) * 60_000))
    }
}

impl TypeTable {
    pub(super) fn row(&self, number: TypeNumber) -> &TypeRow {
        &self.rows[number.0 as usize]
    }

    pub(super) fn row_mut(&mut self, number: TypeNumber) -> &mut TypeRow {
        &mut self.rows[number.0 as usize]
    }

    /// Types that have tasks, by name.
    pub(super) fn rows(&self) -> impl Iterator<Item = &TypeRow> {
        self.by_name.values().map(|number| self.row(*number))
    }

    pub(super) fn find(&self, name: &TaskType) -> Option<&TypeRow> {
        self.by_name.get(name).map(|number| self.row(*number))
    }

    /// Counts one more task of a type.
    pub(super) fn add(&mut self, name: &TaskType, status: Status) -> TypeNumber {
        let number = match self.by_name.get(name) {
            Some(number) => *number,
            None => self.add_row(name),
        };
        self.row_mut(number).counts[status as usize] += 1;
        number
    }

    /// Counts one task less, and forgets the type with its last task.
    pub(super) fn remove(&mut self, number: TypeNumber, status: Status) {
        let row = self.row_mut(number);
        row.counts[status as usize] -= 1;
        if row.counts == [0; Status::ALL.len()] {
            let name = row.name.clone();
            self.by_name.remove(&name);
            self.unused.push(number);
        }
    }

    fn add_row(&mut self, name: &TaskType) -> TypeNumber {
        let row = TypeRow { name: name.clone(), counts: Default::default(), ready: BTreeSet::new() };
        let number = if let Some(number) = self.unused.pop() {
            *self.row_mut(number) = row;
            number
        } else {
            self.rows.push(row);
            TypeNumber(u32::try_from(self.rows.len() - 1).expect("the types of live tasks fit into memory"))
        };
        self.by_name.insert(name.clone(), number);
        number
    }
}
