//! Archive: tasks leave the live state when objects have them, and become live again for an operation.

use std::collections::BTreeSet;

use super::operate::checked;
use super::purge::check_purge;
use super::settle::settled;
use super::submit::check_equal;
use super::{
    JournalContext, JournalDecision, Operated, SettleRequest, SubmitRequest, check_same_task, decide,
};
use crate::journal::archive::{
    ArchiveBatch, ArchiveChange, ArchiveName, ArchiveRef, ArchivedTask, MovedTask, OutdatedCopy,
    WrittenArchive,
};
use crate::journal::record::JournalRecord;
use crate::journal::state::{JournalState, LoadedTask};
use crate::journal::task::JournalTask;
use crate::new_task::Submitted;
use crate::retention::{Purged, Retention};
use crate::step::Event;
use crate::task::Task;
use crate::time::StoreTime;

/// Objects that were written, and what they replace.
#[derive(Debug, Clone)]
pub struct ArchiveWork {
    /// Live tasks in the objects, as they were copied.
    pub batch: ArchiveBatch,
    /// Objects that were merged, as the table had them then.
    pub merged: Vec<ArchiveRef>,
    /// Objects that were written.
    pub written: Vec<WrittenArchive>,
}

impl JournalState {
    /// Decides the change of the archive after objects were written. A task that has changed since it was copied stays
    /// live, and its copy is outdated from the start. No change if a merged object was removed meanwhile.
    pub fn archive_written(&self, work: ArchiveWork, context: &JournalContext) -> JournalDecision<bool> {
        let merged = work.merged.iter().map(|before| Some((before, self.archive.get(&before.name)?)));
        let Some(merged) = merged.collect::<Option<Vec<_>>>() else {
            return JournalDecision::done(Vec::new(), false);
        };
        let newly = |(before, now): &(&ArchiveRef, &ArchiveRef)| {
            now.outdated.difference(&before.outdated).copied().collect::<Vec<_>>()
        };
        let mut outdated: BTreeSet<_> = merged.iter().flat_map(newly).collect();
        let mut change = ArchiveChange::at(context.now.latest_known());
        for task in &work.batch.tasks {
            let (id, rev) = (task.id(), task.rev());
            if self.tasks.get(&id).is_some_and(|live| live.is_final_at(rev)) {
                change.tasks.push(MovedTask { id, rev });
            } else {
                outdated.insert(id);
            }
        }
        change.removed = work.merged.into_iter().map(|object| object.name).collect();
        change.added = work.written.into_iter().map(|object| object.without(&outdated)).collect();
        if change.is_empty() {
            return JournalDecision::done(Vec::new(), true);
        }
        JournalDecision::done(vec![JournalRecord::Archive(Box::new(change))], true)
    }

    /// Decides that removed objects were deleted.
    pub fn archive_deleted(&self, names: Vec<ArchiveName>, context: &JournalContext) -> JournalDecision<()> {
        let removed: BTreeSet<_> = self.archive.removed().map(|(name, _)| name).collect();
        let deleted: Vec<_> = names.into_iter().filter(|name| removed.contains(name)).collect();
        if deleted.is_empty() {
            return JournalDecision::done(Vec::new(), ());
        }
        let change = ArchiveChange { deleted, ..ArchiveChange::at(context.now.latest_known()) };
        JournalDecision::done(vec![JournalRecord::Archive(Box::new(change))], ())
    }

    /// Decides an operation on an archived task. If it is allowed, the task becomes live first.
    pub fn operate_archived(
        &self,
        archived: ArchivedTask,
        event: &Event,
        context: &JournalContext,
    ) -> JournalDecision<Operated> {
        if let Err(error) = checked(event, context) {
            return JournalDecision::invalid(error);
        }
        // Its key has expired, and may belong to another task.
        let task = JournalTask { key: None, ..archived.task };
        let (submit, id, status) = (JournalRecord::Submit(task.encode()), task.task.id, task.task.status());
        match decide(&LoadedTask::archived(task.clone()), event, &context.by, context) {
            Ok((record, task)) => {
                let outdated = vec![OutdatedCopy { object: archived.object, id, status }];
                let change = ArchiveChange { outdated, ..ArchiveChange::at(context.now.latest_known()) };
                let change = JournalRecord::Archive(Box::new(change));
                JournalDecision::done(vec![change, submit, record], Operated::Done(Box::new(task)))
            }
            Err(why) => JournalDecision::refused(Ok(Operated::Rejected(why, Box::new(task.task)))),
        }
    }

    /// Decides a submit whose id an archived task has: it was submitted by this request, sent before.
    pub fn submit_archived(
        &self,
        archived: &ArchivedTask,
        request: &SubmitRequest,
    ) -> JournalDecision<Submitted> {
        let id = request.id;
        match check_equal(&archived.task.task, &request.new_task, || format!("task id {id} is in use")) {
            Ok(()) => JournalDecision::done(Vec::new(), Submitted::new(id, true)),
            Err(error) => JournalDecision::refused(Err(error)),
        }
    }

    /// Decides the settlement of an archived task: a repeated one gets the task, any other claim is lost.
    pub fn settle_archived(
        &self,
        archived: ArchivedTask,
        request: SettleRequest,
        context: &JournalContext,
    ) -> JournalDecision<Option<Task>> {
        settled(LoadedTask::archived(archived.task), request, context)
    }

    /// Decides the import of a task whose id an archived task has: it is left as it is.
    pub fn import_archived(&self, archived: &ArchivedTask, imported: &JournalTask) -> JournalDecision<bool> {
        JournalDecision::refused(check_same_task(&archived.task.task, &imported.task).map(|()| false))
    }
}

impl WrittenArchive {
    /// Reference to the object, of which some copies may be outdated.
    fn without(mut self, outdated: &BTreeSet<crate::ids::TaskId>) -> ArchiveRef {
        for id in outdated {
            if let Some(status) = self.tasks.get(id) {
                self.reference.outdate(*id, *status);
            }
        }
        self.reference
    }
}

/// Retention applied to a task of the archive; true if it is removed.
#[must_use]
pub fn purges_archived(task: &JournalTask, retention: &Retention, context: &JournalContext) -> bool {
    check_purge(task, retention, context).is_ok()
}

/// Retention applied to one task of the archive.
#[must_use]
pub fn purge_archived(task: &JournalTask, retention: &Retention, context: &JournalContext) -> Purged {
    check_purge(task, retention, context).err().unwrap_or(Purged::Deleted)
}

/// Effect of a retention on an archive object, as far as the table tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjectPurge {
    /// All of its tasks stay.
    Nothing,
    /// All of its tasks are removed.
    Everything,
    /// The object must be read.
    MustRead,
}

impl ObjectPurge {
    /// Effect of a retention on an object.
    #[must_use]
    pub fn of(object: &ArchiveRef, retention: &Retention, context: &JournalContext) -> Self {
        let is_old = |at: StoreTime, age| context.now.is_past(at.plus(age));
        let grace = crate::retention::PURGE_GRACE;
        let mut included = object.counts.keys().map(|status| retention.includes(*status));
        if !is_old(object.earliest, retention.older_than) || !included.clone().any(|is_included| is_included)
        {
            return Self::Nothing;
        }
        // A task was created before it ended.
        let is_all_old = is_old(object.latest, retention.older_than.max(grace));
        let are_keys_old = object.keys_until.is_none_or(|until| is_old(until, grace));
        if is_all_old && are_keys_old && included.all(|is_included| is_included) {
            Self::Everything
        } else {
            Self::MustRead
        }
    }
}
