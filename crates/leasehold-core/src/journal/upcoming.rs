//! Reasons for a worker to wait when no task is due.

use std::time::Duration;

use super::state::JournalState;
use crate::ids::{TaskId, TaskTypes};
use crate::scan::DrainWait;
use crate::time::Now;

/// Time within which a task must become due for a worker that drains the queue to wait for it.
const SOON: Duration = Duration::from_mins(1);

impl JournalState {
    /// Reason for a worker of these types to ask again although it can claim nothing now: a task that is due soon, or one
    /// that a worker holds, which may crash.
    #[must_use]
    pub fn upcoming(&self, types: &TaskTypes, now: Now) -> Option<DrainWait> {
        let soon = now.latest_known().plus(SOON);
        let is_ours = |number| types.contains(&self.indexes.types.row(number).name);
        let scheduled = self.indexes.scheduled.iter().take_while(|((at, _), _)| *at <= soon);
        let due = scheduled.filter(|(_, (number, _))| is_ours(*number)).map(|((at, _), _)| *at).next();
        let ready = || {
            let id = self.ready(types).next()?;
            self.tasks.get(&id).map(|live| live.indexed.time)
        };
        if let Some(at) = ready().or(due) {
            return Some(DrainWait::Due(at));
        }
        let is_ours = |id: &TaskId| self.tasks.get(id).is_some_and(|live| is_ours(live.indexed.task_type));
        let mut held = self.indexes.claims.iter().map(|(_, id)| *id);
        held.find(is_ours).map(DrainWait::Held)
    }
}
