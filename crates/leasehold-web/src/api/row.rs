//! Row of a task list.

use leasehold_core::{Status, StoreTime, TaskId};
use serde::Serialize;

use crate::table::{Row, Tags};

/// Row of a task list, as the page expects it.
#[derive(Debug, Serialize)]
pub(crate) struct TaskRow<'a> {
    id: TaskId,
    task_type: &'a str,
    status: Status,
    is_due: bool,
    shard: &'a str,
    attempt: u32,
    max_attempts: u32,
    created_at: StoreTime,
    updated_at: StoreTime,
    available_at: Option<StoreTime>,
    finished_at: Option<StoreTime>,
    worker: Option<&'a str>,
    tags: &'a Tags,
    error: Option<&'a str>,
    priority: u8,
}

impl<'a> TaskRow<'a> {
    pub(crate) fn new(row: &'a Row, now: StoreTime) -> Self {
        Self {
            id: row.id,
            task_type: &row.task_type,
            status: row.status,
            is_due: row.is_due(now),
            shard: &row.shard,
            attempt: row.attempt,
            max_attempts: row.max_attempts,
            created_at: row.created_at,
            updated_at: row.updated_at,
            available_at: row.available_at,
            finished_at: row.finished_at,
            worker: row.worker.as_deref(),
            tags: &row.tags,
            error: row.error.as_deref(),
            priority: row.priority,
        }
    }
}
