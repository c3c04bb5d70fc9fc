//! Retention: removing final tasks after a while.
//!
//! The conditions are those of the object layout. Unlike there, a task is removed at once: one record removes it, so that no
//! write to it can be in flight. A task stays as long as its idempotency key can still refer to it.

use serde::{Deserialize, Serialize};
use std::ops::Bound;

use super::{JournalContext, JournalDecision, decide};
use crate::ids::TaskId;
use crate::journal::record::JournalRecord;
use crate::journal::state::{JournalState, LiveTask, LoadedTask};
use crate::journal::task::JournalTask;
use crate::retention::{PURGE_GRACE, Purged, Retention};
use crate::step::Event;
use crate::time::StoreTime;

/// Position among the final tasks at which a purge continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PurgeCursor {
    finished_at: StoreTime,
    id: TaskId,
}

/// Result of one page of a purge.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PurgePage {
    /// Number of tasks that were removed.
    pub deleted: u64,
    /// Corrupt tasks with their error; they are kept.
    pub corrupt: Vec<String>,
    /// Position at which the next page begins; none if this was the last.
    pub next: Option<PurgeCursor>,
    /// First task of the page, if it is [evicted](crate::journal::evicted): then nothing was decided, and the page is to be
    /// repeated.
    pub evicted: Option<TaskId>,
}

impl JournalState {
    /// Decides which of the next `max` final tasks a retention removes, oldest first. The page ends before an evicted task.
    pub fn purge(
        &self,
        retention: &Retention,
        after: Option<PurgeCursor>,
        max: usize,
        context: &JournalContext,
    ) -> JournalDecision<PurgePage> {
        let (mut page, mut records) = (PurgePage::default(), Vec::new());
        let start = after.map_or(Bound::Unbounded, |cursor| Bound::Excluded((cursor.finished_at, cursor.id)));
        let finished = self.indexes.finished.range((start, Bound::Unbounded));
        let is_old = |at: StoreTime| context.now.is_past(at.plus(retention.older_than));
        let mut old = finished.take_while(|(at, _)| is_old(*at)).peekable();
        for _ in 0..max {
            let Some((finished_at, id)) = old.peek() else { break };
            let live = self.tasks.get(id).filter(|live| retention.includes(live.indexed.status));
            if live.is_some_and(LiveTask::is_evicted) {
                page.evicted = Some(*id).filter(|_| page.next.is_none());
                break;
            }
            page.next = Some(PurgeCursor { finished_at: *finished_at, id: *id });
            match live.map(|live| live.load(id)) {
                Some(Ok(task)) => records.extend(purged(&task, retention, context).ok()),
                Some(Err(error)) => page.corrupt.push(error.to_string()),
                None => {}
            }
            old.next();
        }
        page.next = page.next.filter(|_| old.peek().is_some());
        page.deleted = records.len() as u64;
        JournalDecision::done(records, page)
    }

    /// Decides whether a retention removes one task.
    pub fn purge_task(
        &self,
        id: &TaskId,
        retention: &Retention,
        context: &JournalContext,
    ) -> JournalDecision<Purged> {
        match self.load(id) {
            Ok(Some(task)) => match purged(&task, retention, context) {
                Ok(record) => JournalDecision::done(vec![record], Purged::Deleted),
                Err(kept) => JournalDecision::refused(Ok(kept)),
            },
            Ok(None) => JournalDecision::refused(Ok(Purged::Kept)),
            Err(error) => JournalDecision::refused(Err(error)),
        }
    }
}

/// The record that removes a task, or the outcome for a task that is kept.
fn purged(
    task: &LoadedTask<'_>,
    retention: &Retention,
    context: &JournalContext,
) -> Result<JournalRecord, Purged> {
    check_purge(&task.logged, retention, context)?;
    decide(task, &Event::Purge, &context.by, context).map(|(record, _)| record).map_err(|_| Purged::Kept)
}

/// Returns the outcome for a task that is kept.
pub(super) fn check_purge(
    task: &JournalTask,
    retention: &Retention,
    context: &JournalContext,
) -> Result<(), Purged> {
    let now = context.now;
    if !retention.covers(&task.task, now) {
        return Err(Purged::Kept);
    }
    if !now.is_past(task.task.created_at.plus(PURGE_GRACE)) {
        return Err(Purged::TooNew);
    }
    if task.key.is_some_and(|key| !now.is_past(key.expires_at.plus(PURGE_GRACE))) {
        return Err(Purged::Kept);
    }
    Ok(())
}
