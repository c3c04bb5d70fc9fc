//! Filter for a list of tasks.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

use crate::task::{Status, Task};

/// Filter for a list of tasks.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Filter {
    /// Only tasks in this status.
    pub status: Option<Status>,
    /// Only tasks of this type.
    pub task_type: Option<String>,
    /// Only tasks with all of these tags.
    pub tags: BTreeMap<String, String>,
}

impl Filter {
    /// True if a task matches. Tombstones never do.
    #[must_use]
    pub fn matches(&self, task: &Task) -> bool {
        self.includes(task.status(), task.task_type.as_str())
            && self.tags.iter().all(|(key, value)| task.tags.get(key) == Some(value))
            && !task.is_tombstone()
    }

    /// True if tasks of this status and type can match, for a caller that has yet to read the task.
    #[must_use]
    pub fn includes(&self, status: Status, task_type: &str) -> bool {
        self.status.is_none_or(|wanted| wanted == status)
            && self.task_type.as_ref().is_none_or(|wanted| wanted == task_type)
    }
}
