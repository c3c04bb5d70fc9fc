//! Everything that is counted over all tasks, in one go, and once for all viewers.

use leasehold_core::{Status, StoreTime, TaskId};
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::board::Board;
use crate::chart::{Chart, Slots};
use crate::cost::Bill;
use crate::table::{Row, Table, first_line};

/// Most types that are told apart.
const TYPES_MAX: usize = 50;
/// So many of the last errors are shown.
const FAILURES: usize = 5;
/// So long the due tasks of a type may wait before it counts as taken by no worker: workers look every few seconds, and
/// one whose hands are full comes back to a type long before.
const UNTAKEN_AFTER: Duration = Duration::from_mins(2);

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

/// Tasks of one type, by status.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct OfType {
    task_type: String,
    pending: u64,
    running: u64,
    completed: u64,
    failed: u64,
    other: u64,
    /// How many of the pending ones are due, and since when the first of them is.
    #[serde(skip)]
    due: u64,
    #[serde(skip)]
    due_since: Option<StoreTime>,
    /// When a worker last had one of them.
    #[serde(skip)]
    taken_at: Option<StoreTime>,
}

/// A type with due tasks that no worker takes. No worker writes down which types it handles, so the tasks have to tell.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Untaken {
    task_type: String,
    due: u64,
    /// Since when one of them is due and none was taken.
    since: StoreTime,
}

/// Failed tasks of one type with the same error.
#[derive(Debug, Clone)]
pub(crate) struct Failures {
    pub(crate) newest: TaskId,
    pub(crate) count: u64,
}

/// What is counted.
#[derive(Debug)]
pub(crate) struct Figures {
    pub(crate) counts: Counts,
    pub(crate) oldest_due_secs: Option<u64>,
    pub(crate) types: Vec<OfType>,
    pub(crate) untaken: Vec<Untaken>,
    pub(crate) chart: Chart,
    pub(crate) tasks: u64,
    pub(crate) bill: Bill,
    pub(crate) failures: Vec<Failures>,
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
            types.entry(&row.task_type).or_insert_with(|| OfType::new(&row.task_type)).add(row, now);
            slots.add(row);
            bill += row.requests;
            has_outposts |= row.outpost.is_some();
            if let Some(at) = row.available_at.filter(|_| row.is_due(now)) {
                oldest = Some(oldest.map_or(at, |oldest| oldest.min(at)));
            }
        }
        let types: Vec<_> = types.into_values().collect();
        Self {
            counts,
            untaken: untaken(&types, now),
            oldest_due_secs: oldest.map(|at| now.since(at).as_secs()),
            types: most(types),
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
        Self {
            task_type: task_type.to_owned(),
            pending: 0,
            running: 0,
            completed: 0,
            failed: 0,
            other: 0,
            due: 0,
            due_since: None,
            taken_at: None,
        }
    }

    fn add(&mut self, row: &Row, now: StoreTime) {
        *match row.status {
            Status::Pending => &mut self.pending,
            Status::Running => &mut self.running,
            Status::Completed => &mut self.completed,
            Status::Failed => &mut self.failed,
            Status::Cancelled | Status::Expired | Status::Purged => &mut self.other,
        } += 1;
        if let Some(at) = row.available_at.filter(|_| row.is_due(now)) {
            self.due += 1;
            // A task may be submitted for a time that has passed already.
            let since = at.max(row.created_at);
            self.due_since = Some(self.due_since.map_or(since, |first| first.min(since)));
        }
        let taken_at = row.worker.as_ref().and(match row.status {
            Status::Running => Some(now),
            // Given back by its worker.
            Status::Pending => Some(row.updated_at),
            _ => row.finished_at,
        });
        self.taken_at = self.taken_at.max(taken_at);
    }

    /// Since when its due tasks wait and none of the type was taken.
    fn untaken_since(&self) -> Option<StoreTime> {
        self.due_since.max(self.due_since.and(self.taken_at))
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

/// Types whose due tasks have waited for long while no worker has had one of the type, the longest first.
fn untaken(types: &[OfType], now: StoreTime) -> Vec<Untaken> {
    let untaken = types.iter().filter_map(|one| {
        let since = one.untaken_since().filter(|since| now.since(*since) >= UNTAKEN_AFTER)?;
        Some(Untaken { task_type: one.task_type.clone(), due: one.due, since })
    });
    let mut untaken: Vec<_> = untaken.collect();
    untaken.sort_unstable_by(|a, b| a.since.cmp(&b.since).then_with(|| a.task_type.cmp(&b.task_type)));
    untaken.truncate(TYPES_MAX);
    untaken
}

/// The last errors, the newest first; tasks of one type whose errors begin with the same line are one.
fn last_failures(table: &Table) -> Vec<Failures> {
    let newest = |row: &Row| (Reverse(row.finished_at), row.id);
    let mut groups: HashMap<(&str, &str), (u64, &Row)> = HashMap::new();
    for row in table.rows().filter(|row| row.status == Status::Failed) {
        let error = row.error.as_deref().map_or("", first_line);
        let (count, first) = groups.entry((&row.task_type, error)).or_insert((0, row));
        *count += 1;
        if newest(row) < newest(first) {
            *first = row;
        }
    }
    let mut groups: Vec<_> = groups.into_values().collect();
    groups.sort_unstable_by_key(|(_, row)| newest(row));
    groups.truncate(FAILURES);
    groups.into_iter().map(|(count, row)| Failures { newest: row.id, count }).collect()
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
