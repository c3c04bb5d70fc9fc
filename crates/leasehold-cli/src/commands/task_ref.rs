//! Naming a task by its id, or by the first characters of it.

use leasehold_core::{Error, Matter, Result, TaskId, TaskIdPrefix};
use leasehold_outpost::Spool;
use leasehold_queue::Queue;
use std::str::FromStr;

use super::get::named;

/// A task as a person names it.
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
    /// The id. One list if only its first characters are given.
    pub(crate) async fn resolve(&self, queue: &Queue) -> Result<TaskId> {
        match self {
            Self::Id(id) => Ok(*id),
            Self::Prefix(prefix) => queue.find(prefix).await.map_err(|error| match error.matter() {
                Some(Matter::Missing) => named(queue, &error),
                _ => error,
            }),
        }
    }

    /// The id of a task of an outpost.
    pub(crate) fn resolve_here(&self, spool: &Spool) -> Result<TaskId> {
        match self {
            Self::Id(id) => Ok(*id),
            Self::Prefix(prefix) => spool.find(prefix),
        }
    }
}
