//! Reads of the state: requested by a process, answered by a broker or by a process that follows the log.

use leasehold_core::filter::Filter;
use leasehold_core::journal::{ArchiveRef, ExportPage, JournalCounts, JournalState, TaskPage, TaskPlace};
use leasehold_core::limits::BROKER_PAGE_MAX;
use leasehold_core::{Error, Kind, Result, TaskId, TaskIdPrefix};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Read of the state.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum StateQuery {
    /// Finds the place of a task.
    Place(TaskId),
    /// Finds ids by their first characters.
    Find(TaskIdPrefix),
    /// Lists a page of tasks, from an id on.
    List { filter: Filter, first: Option<TaskId> },
    /// Exports a page of tasks, from an id on.
    Export { first: Option<TaskId> },
    /// Counts the tasks.
    Count,
    /// Finds the archive objects with this many tasks, those that have ended last.
    NewestArchived { tasks: u64 },
}

/// Answer to a [`StateQuery`] of the same name; `Find` answers `NewestArchived`, too.
#[derive(Debug)]
pub(super) enum StateAnswer {
    Place(TaskPlace),
    Find(BTreeSet<TaskId>, Vec<ArchiveRef>),
    List(TaskPage),
    Export(ExportPage),
    Count(JournalCounts),
}

impl StateQuery {
    /// True if it may need more than one evicted task.
    pub(super) fn is_page(&self) -> bool {
        matches!(self, Self::List { .. } | Self::Export { .. })
    }

    /// Evicted task without which the state cannot be read.
    pub(super) fn needs(&self, state: &JournalState) -> Option<TaskId> {
        match self {
            Self::Place(id) => Some(*id).filter(|id| state.is_evicted(id)),
            Self::List { filter, first } => state.list_needs(filter, *first, BROKER_PAGE_MAX),
            Self::Export { first } => state.export_needs(*first, BROKER_PAGE_MAX),
            Self::Find(_) | Self::Count | Self::NewestArchived { .. } => None,
        }
    }

    /// Reads the state.
    pub(super) fn answer(&self, state: &JournalState) -> Result<StateAnswer> {
        Ok(match self {
            Self::Place(id) => StateAnswer::Place(state.place(id)?),
            Self::Find(prefix) => {
                let (ids, objects) = state.find(prefix);
                StateAnswer::Find(ids, objects)
            }
            Self::List { filter, first } => StateAnswer::List(state.list(filter, *first, BROKER_PAGE_MAX)?),
            Self::Export { first } => StateAnswer::Export(state.export(*first, BROKER_PAGE_MAX)?),
            Self::Count => StateAnswer::Count(state.counts()),
            Self::NewestArchived { tasks } => {
                StateAnswer::Find(BTreeSet::new(), state.newest_archived(*tasks))
            }
        })
    }
}

impl StateAnswer {
    /// Error of an answer to another query.
    pub(super) fn unexpected() -> Error {
        Error::new(Kind::Internal, "the broker answered another query")
    }
}
