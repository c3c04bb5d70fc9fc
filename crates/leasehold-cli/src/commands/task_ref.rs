//! References to tasks: a whole id, or a prefix of one.

use leasehold_core::{Error, Reason, Result, TaskId, TaskIdPrefix};
use leasehold_outpost::Spool;
use leasehold_queue::Queue;
use std::str::FromStr;

use super::get::with_queue_name;

/// Reference to a task on the command line.
#[derive(Debug, Clone)]
pub(crate) enum TaskRef {
    Id(TaskId),
    Prefix(TaskIdPrefix),
}

impl FromStr for TaskRef {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text.parse() {
            Ok(id) => Ok(Self::Id(id)),
            Err(_) => text.parse().map(Self::Prefix),
        }
    }
}

impl TaskRef {
    /// Resolves the id. Requests: 1 list for a prefix, none for a whole id.
    pub(crate) async fn resolve(&self, queue: &Queue) -> Result<TaskId> {
        match self {
            Self::Id(id) => Ok(*id),
            Self::Prefix(prefix) => queue.find(prefix).await.map_err(|error| match error.reason() {
                Some(Reason::Missing) => with_queue_name(queue, &error),
                _ => error,
            }),
        }
    }

    /// Resolves the id of a task of an outpost.
    pub(crate) fn resolve_in_spool(&self, spool: &Spool) -> Result<TaskId> {
        match self {
            Self::Id(id) => Ok(*id),
            Self::Prefix(prefix) => spool.find(prefix),
        }
    }
}
