//! Counts over all tasks, computed in one pass and once for all viewers.

use leasehold_core::task::summary_line;
use leasehold_core::{Status, StoreTime, TaskId, TaskType};
use leasehold_queue::{JournalWorker, JournalWorkerState};
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::chart::{Chart, ChartBuilder};
use crate::cost::CostEstimate;
use crate::snapshot::QueueSnapshot;
use crate::table::{Row, TaskTable};

/// Largest number of task types that are shown.
const TYPES_MAX: usize = 50;
/// Number of recent errors that are shown.
const FAILURES: usize = 5;
/// Time that the due tasks of a type may wait before the type counts as not claimed by any worker: workers poll every few
/// seconds, and a busy one returns to each type long before that.
const UNCLAIMED_AFTER: Duration = Duration::from_mins(2);

/// Number of tasks by status.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct StatusCounts {
    pub(crate) pending: u64,
    pub(crate) due: u64,
    pub(crate) scheduled: u64,
    pub(crate) running: u64,
    pub(crate) completed: u64,
    pub(crate) failed: u64,
    pub(crate) cancelled: u64,
    pub(crate) expired: u64,
}

/// Number of tasks of one type, by status.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct TypeCounts {
    pub(crate) task_type: String,
    pub(crate) pending: u64,
    pub(crate) running: u64,
    completed: u64,
    pub(crate) failed: u64,
    other: u64,
    /// Number of due tasks, and the time since when the first of them is due.
    #[serde(skip)]
    due: u64,
    #[serde(skip)]
    due_since: Option<StoreTime>,
    /// Time when a worker last held a task of this type.
    #[serde(skip)]
    claimed_at: Option<StoreTime>,
}

/// A type with due tasks that no worker claims. Workers do not record which types they handle, so this is derived from the
/// tasks.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct UnclaimedType {
    pub(crate) task_type: String,
    pub(crate) due: u64,
    /// Time since when a task is due and none was claimed.
    since: StoreTime,
}

/// Group of failed tasks of one type with the same error.
#[derive(Debug, Clone)]
pub(crate) struct Failures {
    pub(crate) newest: TaskId,
    pub(crate) count: u64,
}

/// Counts over all tasks.
#[derive(Debug)]
pub(crate) struct Figures {
    pub(crate) counts: StatusCounts,
    pub(crate) oldest_due_secs: Option<u64>,
    pub(crate) types: Vec<TypeCounts>,
    pub(crate) unclaimed: Vec<UnclaimedType>,
    pub(crate) chart: Chart,
    pub(crate) tasks: u64,
    pub(crate) cost: CostEstimate,
    pub(crate) failures: Vec<Failures>,
    pub(crate) has_outposts: bool,
}

impl Figures {
    /// `workers` are those that have told their types.
    pub(crate) fn of(table: &TaskTable, workers: &[JournalWorker], now: StoreTime) -> Self {
        let (mut counts, mut cost, mut slots) =
            (StatusCounts::default(), CostEstimate::default(), ChartBuilder::until(now));
        let mut types: HashMap<&str, TypeCounts> = HashMap::new();
        let mut oldest: Option<StoreTime> = None;
        let mut has_outposts = false;
        for row in table.rows() {
            counts.add(row, now);
            types.entry(&row.task_type).or_insert_with(|| TypeCounts::new(&row.task_type)).add(row, now);
            slots.add(row);
            cost += row.requests;
            has_outposts |= row.outpost.is_some();
            if let Some(at) = row.available_at.filter(|_| row.is_due(now)) {
                oldest = Some(oldest.map_or(at, |oldest| oldest.min(at)));
            }
        }
        let types: Vec<_> = types.into_values().collect();
        Self {
            counts,
            unclaimed: unclaimed_types(&types, workers, now),
            oldest_due_secs: oldest.map(|at| now.since(at).as_secs()),
            types: largest_types(types),
            chart: slots.chart(),
            tasks: table.len() as u64,
            cost,
            failures: last_failures(table),
            has_outposts,
        }
    }
}

impl Figures {
    /// Takes the counts of a queue that counts its finished tasks, which may have more than the table.
    fn corrected(self, snapshot: &QueueSnapshot) -> Self {
        let Some((stats, finished)) = snapshot
            .index
            .as_ref()
            .and_then(|index| Some((&index.value, index.value.finished.as_ref()?)))
            .filter(|_| snapshot.pass.ended.is_some())
        else {
            return self;
        };
        let of = |status| finished.get(&status).copied().unwrap_or(0);
        let counts = StatusCounts {
            pending: stats.due + stats.scheduled,
            due: stats.due,
            scheduled: stats.scheduled,
            running: stats.running,
            completed: of(Status::Completed),
            failed: of(Status::Failed),
            cancelled: of(Status::Cancelled),
            expired: of(Status::Expired),
        };
        Self { counts, ..self }
    }
}

impl StatusCounts {
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

impl TypeCounts {
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
            claimed_at: None,
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
        let claimed_at = row.worker.as_ref().and(match row.status {
            Status::Running => Some(now),
            // Released by its worker.
            Status::Pending => Some(row.updated_at),
            _ => row.finished_at,
        });
        self.claimed_at = self.claimed_at.max(claimed_at);
    }

    /// Returns the time since when its tasks are due and none of the type was claimed.
    fn unclaimed_since(&self) -> Option<StoreTime> {
        self.due_since.max(self.due_since.and(self.claimed_at))
    }

    fn all(&self) -> u64 {
        self.pending + self.running + self.completed + self.failed + self.other
    }
}

/// Types with the most tasks, largest first.
fn largest_types(mut types: Vec<TypeCounts>) -> Vec<TypeCounts> {
    types.sort_unstable_by(|a, b| b.all().cmp(&a.all()).then_with(|| a.task_type.cmp(&b.task_type)));
    types.truncate(TYPES_MAX);
    types
}

/// Types whose due tasks have waited too long while no worker claimed one of the type, longest first. A type that a worker
/// handles is not among them: its tasks wait for a free slot.
fn unclaimed_types(types: &[TypeCounts], workers: &[JournalWorker], now: StoreTime) -> Vec<UnclaimedType> {
    let is_handled = |task_type: &str| {
        TaskType::checked("task type", task_type).is_ok_and(|task_type| {
            let handles = |worker: &JournalWorker| {
                worker.state == JournalWorkerState::Alive && worker.types.contains(&task_type)
            };
            workers.iter().any(handles)
        })
    };
    let unclaimed = types.iter().filter(|one| !is_handled(&one.task_type)).filter_map(|one| {
        let since = one.unclaimed_since().filter(|since| now.since(*since) >= UNCLAIMED_AFTER)?;
        Some(UnclaimedType { task_type: one.task_type.clone(), due: one.due, since })
    });
    let mut unclaimed: Vec<_> = unclaimed.collect();
    unclaimed.sort_unstable_by(|a, b| a.since.cmp(&b.since).then_with(|| a.task_type.cmp(&b.task_type)));
    unclaimed.truncate(TYPES_MAX);
    unclaimed
}

/// Recent errors, newest first. Tasks of one type whose errors have the same first line form one group.
fn last_failures(table: &TaskTable) -> Vec<Failures> {
    let newest = |row: &Row| (Reverse(row.finished_at), row.id);
    let mut groups: HashMap<(&str, &str), (u64, &Row)> = HashMap::new();
    for row in table.rows().filter(|row| row.status == Status::Failed) {
        let error = row.error.as_deref().map_or("", summary_line);
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

/// Cache of the last counts, valid for one second for all viewers.
#[derive(Debug, Default)]
pub(crate) struct FiguresCache(Mutex<Option<(u64, i64, Arc<Figures>)>>);

impl FiguresCache {
    pub(crate) fn get(&self, snapshot: &QueueSnapshot, now: StoreTime) -> Arc<Figures> {
        let mut counted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let second = now.as_millis().div_euclid(1_000);
        if let Some((revision, at, figures)) = &*counted
            && (*revision, *at) == (snapshot.revision(), second)
        {
            return figures.clone();
        }
        let workers = snapshot.journal.workers.as_ref().filter(|_| snapshot.journal.absence.is_none());
        let workers = workers.map_or(&[][..], |workers| &workers.value);
        let figures = Arc::new(Figures::of(&snapshot.table, workers, now).corrected(snapshot));
        *counted = Some((snapshot.revision(), second, figures.clone()));
        figures
    }
}
