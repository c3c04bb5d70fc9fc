//! What people and tools do to tasks: cancel, retry, reschedule.

use leasehold_core::new_task::check_time;
use leasehold_core::{Error, Event, Matter, Rejected, Result, StoreTime, Task, TaskId};
use leasehold_store::Purpose;

use crate::connect::Queue;
use crate::tasks::Moved;

/// What became of it.
#[derive(Debug, Clone, PartialEq)]
pub enum Operated {
    /// It happened; this is the task now.
    Done(Box<Task>),
    /// It cannot happen to the task as it stands.
    Refused(Rejected),
}

impl Queue {
    /// Calls a task off: at once if it waits; a running one is stopped by its worker at the next renewal.
    pub async fn cancel(&self, id: &TaskId) -> Result<Operated> {
        self.operate(id, &Event::Cancel).await
    }

    /// Lets a task run again that has failed, was cancelled or has expired.
    pub async fn retry(&self, id: &TaskId) -> Result<Operated> {
        self.operate(id, &Event::Retry).await
    }

    /// Plans a waiting task for another time.
    pub async fn reschedule(&self, id: &TaskId, at: StoreTime) -> Result<Operated> {
        check_time("time", at, self.now()?.earliest)?;
        self.operate(id, &Event::Reschedule { at }).await
    }

    async fn operate(&self, id: &TaskId, event: &Event) -> Result<Operated> {
        match self.change(Purpose::Admin, id, event, &self.config.by).await? {
            Moved::Done(loaded) | Moved::Overtaken(loaded) => Ok(Operated::Done(Box::new(loaded.task))),
            Moved::Rejected(rejected, _) => Ok(Operated::Refused(rejected)),
            Moved::Missing => Err(unknown_task(id)),
        }
    }
}

pub(crate) fn unknown_task(id: &TaskId) -> Error {
    Error::invalid(format!("there is no task {id} in this queue")).about(Matter::Missing)
}
