//! Everything that is counted over all tasks, in one go, and once for all viewers.

use leasehold_core::{Status, StoreTime, TaskId};
use serde::Serialize;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::board::Board;
use crate::chart::{Chart, Slots};
use crate::cost::Bill;
use crate::table::{Row, Table};

/// Most types that are told apart.
const TYPES_MAX: usize = 50;
/// So many of the last failures are shown.
const FAILURES: usize = 5;

/// How many tasks there are, by status.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Counts {
    pub(crate) pending: u64,
    pub(crate) due: u64,
    pub(crate) scheduled: u64,
    pub(crate) running: u64,
    pub(crate) completed: u64,
    pub(crate) failed: u64,
    pub(crate) cancelled: u64,
    pub(crate) expired: u64,
}

/// The same for one type.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct OfType {
    task_type: String,
    pending: u64,
    running: u64,
    completed: u64,
    failed: u64,
    other: u64,
}

/// What is counted.
#[derive(Debug)]
pub(crate) struct Figures {
    pub(crate) counts: Counts,
    pub(crate) oldest_due_secs: Option<u64>,
    pub(crate) types: Vec<OfType>,
    pub(crate) chart: Chart,
    pub(crate) tasks: u64,
    pub(crate) bill: Bill,
    pub(crate) failures: Vec<TaskId>,
    pub(crate) has_outposts: bool,
}

impl Figures {
    pub(crate) fn of(table: &Table, now: StoreTime) -> Self {
        let (mut counts, mut bill, mut slots) = (Counts::default(), Bill::default(), Slots::until(now));
        let mut types: HashMap<&str, OfType> = HashMap::new();
        let mut oldest: Option<StoreTime> = None;
        let mut has_outposts = false;
        for row in table.rows() {
            counts.add(row, now);
            types.entry(&row.task_type).or_insert_with(|| OfType::new(&row.task_type)).add(row);
            slots.add(row);
            bill += row.requests;
            has_outposts |= row.outpost.is_some();
            if let Some(at) = row.available_at.filter(|_| row.is_due(now)) {
                oldest = Some(oldest.map_or(at, |oldest| oldest.min(at)));
            }
        }
        Self {
            counts,
            oldest_due_secs: oldest.map(|at| now.since(at).as_secs()),
            types: most(types.into_values().collect()),
            chart: slots.chart(),
            tasks: table.len() as u64,
            bill,
            failures: last_failures(table),
            has_outposts,
        }
    }
}

impl Counts {
    fn add(&mut self, row: &Row, now: StoreTime) {
        match row.status {
            Status::Pending if row.is_due(now) => {
                self.pending += 1;
                self.due += 1;
            }
            Status::Pending => {
                self.pending += 1;
                self.scheduled += 1;
            }
            Status::Running => self.running += 1,
            Status::Completed => self.completed += 1,
            Status::Failed => self.failed += 1,
            Status::Cancelled => self.cancelled += 1,
            Status::Expired => self.expired += 1,
            Status::Purged => {}
        }
    }
}

impl OfType {
    fn new(task_type: &str) -> Self {
        Self { task_type: task_type.to_owned(), pending: 0, running: 0, completed: 0, failed: 0, other: 0 }
    }

    fn add(&mut self, row: &Row) {
        *match row.status {
            Status::Pending => &mut self.pending,
            Status::Running => &mut self.running,
            Status::Completed => &mut self.completed,
            Status::Failed => &mut self.failed,
            Status::Cancelled | Status::Expired | Status::Purged => &mut self.other,
        } += 1;
    }

    fn all(&self) -> u64 {
        self.pending + self.running + self.completed + self.failed + self.other
    }
}

/// Those with the most tasks, the most first.
fn most(mut types: Vec<OfType>) -> Vec<OfType> {
    types.sort_unstable_by(|a, b| b.all().cmp(&a.all()).then_with(|| a.task_type.cmp(&b.task_type)));
    types.truncate(TYPES_MAX);
    types
}

fn last_failures(table: &Table) -> Vec<TaskId> {
    let mut failed: Vec<_> = table.rows().filter(|row| row.status == Status::Failed).collect();
    let newest = |row: &&Row| (std::cmp::Reverse(row.finished_at), row.id);
    if failed.len() > FAILURES {
        failed.select_nth_unstable_by_key(FAILURES, newest);
        failed.truncate(FAILURES);
    }
    failed.sort_unstable_by_key(newest);
    failed.into_iter().map(|row| row.id).collect()
}

/// The figures as they were last counted: for a second they serve everyone.
#[derive(Debug, Default)]
pub(crate) struct Counted(Mutex<Option<(u64, i64, Arc<Figures>)>>);

impl Counted {
    pub(crate) fn get(&self, board: &Board, now: StoreTime) -> Arc<Figures> {
        let mut counted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let second = now.as_millis().div_euclid(1_000);
        if let Some((revision, at, figures)) = &*counted
            && (*revision, *at) == (board.revision(), second)
        {
            return figures.clone();
        }
        let figures = Arc::new(Figures::of(&board.table, now));
        *counted = Some((board.revision(), second, figures.clone()));
        figures
    }
}
