//! Operations on tasks by operators and programs: cancel, retry, reschedule.
//!
//! Requests: 1 get, 1 put, and 1 put and 1 delete if the index entry changes.

use leasehold_core::new_task::check_time;
use leasehold_core::{Error, Event, Reason, Rejected, Result, StoreTime, Task, TaskId};
use leasehold_store::Purpose;

use crate::connect::Queue;
use crate::tasks::Transition;

/// Outcome of an operation.
#[derive(Debug, Clone, PartialEq)]
pub enum Operated {
    /// Applied; this is the task now.
    Done(Box<Task>),
    /// Not allowed in the task's current status.
    Refused(Rejected),
}

impl Queue {
    /// Cancels a task: at once if it is waiting; a running one is stopped by its worker at the next renewal.
    pub async fn cancel(&self, id: &TaskId) -> Result<Operated> {
        self.operate(id, &Event::Cancel).await
    }

    /// Retries a task that has failed, was cancelled or has expired.
    pub async fn retry(&self, id: &TaskId) -> Result<Operated> {
        self.operate(id, &Event::Retry).await
    }

    /// Reschedules a waiting task.
    pub async fn reschedule(&self, id: &TaskId, at: StoreTime) -> Result<Operated> {
        check_time("time", at, self.now()?.earliest)?;
        self.operate(id, &Event::Reschedule { at }).await
    }

    async fn operate(&self, id: &TaskId, event: &Event) -> Result<Operated> {
        match self.change(Purpose::Admin, id, event, &self.config.by).await? {
            Transition::Done(loaded) | Transition::Overtaken(loaded) => {
                Ok(Operated::Done(Box::new(loaded.task)))
            }
            Transition::Rejected(rejected, _) => Ok(Operated::Refused(rejected)),
            Transition::Missing => Err(unknown_task(id)),
        }
    }
}

pub(crate) fn unknown_task(id: &TaskId) -> Error {
    Error::invalid(format!("there is no task {id} in this queue")).about(Reason::Missing)
}
