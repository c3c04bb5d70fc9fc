//! Operations: cancel, retry, reschedule.

use super::{JournalContext, JournalDecision, decide, unknown_task};
use crate::error::{Error, Result};
use crate::ids::TaskId;
use crate::journal::state::JournalState;
use crate::new_task::check_time;
use crate::step::{Event, Rejected};
use crate::task::Task;

/// Outcome of an operation.
#[derive(Debug, Clone, PartialEq)]
pub enum Operated {
    /// Applied; this is the new task.
    Done(Box<Task>),
    /// Not allowed in the task's current state, which this is.
    Rejected(Rejected, Box<Task>),
}

impl JournalState {
    /// Decides an operation. An unknown task is an error with [`Reason::Missing`](crate::Reason::Missing).
    pub fn operate(&self, id: &TaskId, event: &Event, context: &JournalContext) -> JournalDecision<Operated> {
        if let Err(error) = checked(event, context) {
            return JournalDecision::invalid(error);
        }
        let task = match self.load(id) {
            Ok(Some(task)) => task,
            Ok(None) => return JournalDecision::refused(Err(unknown_task(id))),
            Err(error) => return JournalDecision::refused(Err(error)),
        };
        match decide(&task, event, &context.by, context) {
            Ok((record, task)) => JournalDecision::done(vec![record], Operated::Done(Box::new(task))),
            Err(why) => {
                let answer = Operated::Rejected(why, Box::new(task.into_current()));
                JournalDecision::refused(Ok(answer))
            }
        }
    }
}

/// Rejects an event that is not an operation, or has an invalid time.
pub(super) fn checked(event: &Event, context: &JournalContext) -> Result<()> {
    match event {
        Event::Cancel | Event::Retry => Ok(()),
        Event::Reschedule { at } => check_time("time", *at, context.now.earliest),
        _ => Err(Error::invalid(format!("`{}` is not an operation", event.name()))),
    }
}
