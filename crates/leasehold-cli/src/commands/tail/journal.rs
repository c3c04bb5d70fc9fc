//! `leasehold tail` on a queue in the layout `journal`: asks for the tasks that have changed since the last time.
//!
//! The broker answers from memory. Without one, the log is followed: 2 gets of the lease and 1 beyond the end of the log each time, and 1
//! for each commit. After another process has become the broker, or more has changed than the broker remembers, the live tasks are
//! read once, and those are printed that have changed since the last answer.

use futures::StreamExt;
use leasehold_core::{Result, StoreTime, Task, TaskId};
use leasehold_queue::{ChangePage, ChangePosition, JournalQueue, QueueLayout};
use std::collections::HashMap;

use super::{OVERLAP, REMEMBERED_MAX};

/// State of a reader of changes.
pub(super) struct JournalTail<'a> {
    journal: &'a JournalQueue,
    position: ChangePosition,
    /// Time before which every change was shown.
    shown_until: StoreTime,
    /// Revisions of the tasks that have changed since shortly before that time.
    shown: HashMap<TaskId, u64>,
}

impl<'a> JournalTail<'a> {
    /// Begins with the changes from now on.
    pub(super) async fn from_now(journal: &'a JournalQueue) -> Result<Self> {
        let ChangePage { position, .. } = journal.changes(None).await?;
        Ok(Self { journal, position, shown_until: journal.now()?.earliest, shown: HashMap::new() })
    }

    /// Shows the tasks that have changed since the last time.
    pub(super) async fn scan(&mut self, mut show: impl FnMut(&Task)) -> Result<()> {
        loop {
            let at = self.journal.now()?.earliest;
            let page = self.journal.changes(Some(&self.position)).await?;
            for task in page.tasks {
                if self.note(&task) {
                    show(&task);
                }
            }
            if page.is_gap {
                self.scan_all(&mut show).await?;
            }
            self.position = page.position;
            if !page.has_more {
                self.shown_until = at;
                // It only avoids that a task is shown twice after a gap.
                if self.shown.len() > REMEMBERED_MAX {
                    self.shown.clear();
                }
                return Ok(());
            }
        }
    }

    /// Shows the live tasks that have changed since the last answer.
    async fn scan_all(&mut self, show: &mut impl FnMut(&Task)) -> Result<()> {
        let since = self.shown_until.minus(OVERLAP);
        let mut tasks = self.journal.live_tasks();
        while let Some(task) = tasks.next().await {
            let task = task?;
            if task.updated_at >= since && self.note(&task) {
                show(&task);
            }
        }
        Ok(())
    }

    /// True if this revision was not noted before.
    fn note(&mut self, task: &Task) -> bool {
        self.shown.insert(task.id, task.rev) != Some(task.rev)
    }
}
