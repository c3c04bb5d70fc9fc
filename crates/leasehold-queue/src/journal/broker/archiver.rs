//! Archive beside the other work of a broker: before a snapshot, final tasks are written to objects; then the record that
//! refers to the objects is logged.
//!
//! One job is in progress at a time: tasks that are archived, objects that are merged, or objects that are rewritten by a
//! retention. So the objects that a job merges cannot be removed meanwhile. Only copies in them can become outdated, by a
//! retry, which the record observes.

use futures::FutureExt;
use futures::future::BoxFuture;
use leasehold_core::journal::{
    ArchiveBatch, ArchiveLimits, ArchiveName, ArchiveRef, ArchiveWork, ArchivedTask, JournalContext,
    JournalTask, ObjectPurge, purge_archived, purges_archived,
};
use leasehold_core::limits::BROKER_PAGE_MAX;
use leasehold_core::retention::{Purged, Retention};
use leasehold_core::{Result, StoreTime, TaskId};
use leasehold_store::mutant::breaks;
use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::Broker;
use super::decide::BROKER;
use crate::journal::archive::{ArchiveJob, ArchiveWritten, write};
use crate::journal::commit::Urgency;
use crate::journal::request::{AnswerTo, ArchiveRequest, BrokerRequest, HeldAnswer, PurgePlace, PurgedPage};

/// Kind of the records of the archive, which every broker must understand from then on.
pub(in crate::journal) const ARCHIVE_KIND: &str = "archive";

/// Changes of the archive by a broker.
pub(super) struct Archiver {
    pub(super) limits: ArchiveLimits,
    /// Tasks that are archived before the next snapshot.
    round: Option<ArchiveRound>,
    job: Option<BoxFuture<'static, ArchiveDone>>,
    /// True if a job of this round has failed: the next round tries again.
    has_failed: bool,
    /// Requests that wait for the end of the job.
    pub(super) requests: VecDeque<ArchiveRequest>,
    /// Removed objects that were deleted, which is yet to be logged.
    pub(super) deleted: Vec<ArchiveName>,
}

/// Archiving of everything that has ended long enough ago.
#[derive(Default)]
struct ArchiveRound {
    /// Position among the final tasks after which it continues; none at the begin.
    after: Option<(StoreTime, TaskId)>,
    /// True if all final tasks were examined.
    is_examined: bool,
    batches: VecDeque<ArchiveBatch>,
}

/// Next job of a round.
enum NextJob {
    Ready(ArchiveJob),
    /// A chunk is read back first.
    AfterRead,
    /// Nothing is left to do.
    None,
}

/// End of a job.
pub(super) struct ArchiveDone {
    written: Result<ArchiveWritten>,
    request: JobRequest,
}

/// Reason for a job.
enum JobRequest {
    Round,
    /// One page of a purge; the position of the next one.
    Purge(AnswerTo<PurgedPage>, PurgePlace),
    PurgeTask(AnswerTo<Purged>),
    /// Put of objects that were logged before: for a mutant.
    Late,
}

impl Archiver {
    pub(super) fn new(limits: ArchiveLimits) -> Self {
        Self {
            limits,
            round: None,
            job: None,
            has_failed: false,
            requests: VecDeque::new(),
            deleted: Vec::new(),
        }
    }

    pub(super) fn begin(&mut self) {
        (self.round, self.has_failed) = (Some(ArchiveRound::default()), false);
    }

    pub(super) fn is_idle(&self) -> bool {
        self.job.is_none() && self.requests.is_empty()
    }

    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<ArchiveDone> {
        let Some(job) = &mut self.job else { return Poll::Pending };
        let done = job.poll_unpin(context);
        if done.is_ready() {
            self.job = None;
        }
        done
    }
}

impl Broker {
    /// Starts the next job; true if all that is to be archived before a snapshot is archived.
    pub(super) fn archive(&mut self) -> Result<bool> {
        while self.archiver.job.is_none()
            && let Some(request) = self.archiver.requests.pop_front()
        {
            self.handle_archive(request)?;
        }
        if self.archiver.job.is_some() || self.archiver.round.is_none() {
            return Ok(false);
        }
        let is_over = self.is_closing || self.archiver.has_failed;
        match if is_over { NextJob::None } else { self.next_job()? } {
            NextJob::AfterRead => {}
            NextJob::Ready(_) if !self.lease.requires(ARCHIVE_KIND) => self.lease.require(ARCHIVE_KIND),
            NextJob::Ready(job) => {
                if let Some(round) = &mut self.archiver.round {
                    round.batches.pop_front();
                }
                self.start_job(job, JobRequest::Round);
            }
            NextJob::None => self.archiver.round = None,
        }
        Ok(self.archiver.round.is_none())
    }

    /// Next job of a round. The caller removes its batch, the first one of the round, when it starts the job.
    fn next_job(&mut self) -> Result<NextJob> {
        let (now, limits) = (self.now()?, self.archiver.limits);
        let Some(round) = &mut self.archiver.round else { return Ok(NextJob::None) };
        while round.batches.is_empty() && !round.is_examined {
            let page = self.state.archivable(round.after, now, &limits);
            if let Some(id) = page.evicted {
                // Without its chunk the rest is left to the next round.
                return Ok(if self.read_back_soon(id) { NextJob::AfterRead } else { NextJob::None });
            }
            round.batches.extend(page.batches);
            (round.after, round.is_examined) = (page.next, page.next.is_none());
        }
        while let Some(batch) = round.batches.front() {
            if let Some(merged) = self.state.archive().merge_with(batch, &limits) {
                let job = ArchiveJob { batch: batch.clone(), merged, purges: None };
                return Ok(NextJob::Ready(job));
            }
            if let Some((first, second)) = round.batches.pop_front().and_then(ArchiveBatch::split) {
                round.batches.push_front(second);
                round.batches.push_front(first);
            }
        }
        let merged = self.state.archive().next_merge(&limits);
        Ok(merged.map_or(NextJob::None, |merged| {
            let batch = ArchiveBatch { tasks: Vec::new() };
            NextJob::Ready(ArchiveJob { batch, merged, purges: None })
        }))
    }

    fn start_job(&mut self, job: ArchiveJob, request: JobRequest) {
        let client = self.client.clone();
        let run = async move { ArchiveDone { written: job.run(&client).await, request } };
        self.archiver.job = Some(run.boxed());
    }

    /// Logs what a job has written.
    pub(super) fn archived(&mut self, done: ArchiveDone) -> Result<()> {
        let ArchiveDone { written, request } = done;
        let written = match written {
            Ok(written) => written,
            Err(error) => {
                match request {
                    JobRequest::Purge(answer, _) => self.send(HeldAnswer::new(answer, Err(error)))?,
                    JobRequest::PurgeTask(answer) => self.send(HeldAnswer::new(answer, Err(error)))?,
                    JobRequest::Round | JobRequest::Late => {
                        tracing::warn!(%error, "failed to archive tasks of the journal, retrying");
                        if let Some(round) = &mut self.archiver.round {
                            *round = ArchiveRound { is_examined: true, ..ArchiveRound::default() };
                        }
                        self.archiver.has_failed = true;
                    }
                }
                return Ok(());
            }
        };
        let late = written.work.clone().filter(|_| breaks("archive-logged-first"));
        if let Some(work) = written.work {
            self.log_archive(work)?;
        }
        if let Some(work) = late {
            let client = self.client.clone();
            let put = async move {
                let written = write(&client, &work).await.map(|()| ArchiveWritten { work: None, purged: 0 });
                ArchiveDone { written, request: JobRequest::Late }
            };
            self.archiver.job = Some(put.boxed());
        }
        match request {
            JobRequest::Round | JobRequest::Late => Ok(()),
            JobRequest::Purge(answer, next) => {
                let page = PurgedPage { deleted: written.purged, corrupt: Vec::new(), next: Some(next) };
                self.hold(HeldAnswer::new(answer, Ok(page)), false)
            }
            JobRequest::PurgeTask(answer) => {
                let purged = if written.purged > 0 { Purged::Deleted } else { Purged::Kept };
                self.hold(HeldAnswer::new(answer, Ok(purged)), false)
            }
        }
    }

    fn log_archive(&mut self, work: ArchiveWork) -> Result<()> {
        let tasks = work.batch.tasks.len();
        let logged =
            self.log(BROKER, Urgency::Lazy, |state, context| state.archive_written(work, context))?;
        if !logged.answer? {
            tracing::warn!(tasks, "archive objects were removed while they were merged; tasks stay live");
        }
        Ok(())
    }

    /// Logs that removed objects were deleted.
    pub(super) fn archive_deleted(&mut self) -> Result<()> {
        let names = std::mem::take(&mut self.archiver.deleted);
        if names.is_empty() {
            return Ok(());
        }
        self.log(BROKER, Urgency::Lazy, |state, context| state.archive_deleted(names, context))?.answer
    }

    /// Handles a request while no job is in progress.
    fn handle_archive(&mut self, request: ArchiveRequest) -> Result<()> {
        match request {
            ArchiveRequest::Purge { retention, after, by, answer } => {
                self.purge_page(&retention, after.as_ref(), &by, answer)
            }
            ArchiveRequest::PurgeTask { id, object, retention, by, answer } => {
                match self.state.archive().get(&object).filter(|object| object.may_have(&id)).cloned() {
                    None => self.handle(BrokerRequest::PurgeTask { id, retention, by, answer }),
                    Some(object) => {
                        let purges = move |task: &JournalTask| task.task.id == id;
                        self.start_job(rewrite(object, purges), JobRequest::PurgeTask(answer));
                        Ok(())
                    }
                }
            }
            ArchiveRequest::Orphans { names, answer } => {
                let table = self.state.archive();
                let orphans = names.into_iter().filter(|name| !table.knows(name)).collect();
                // No earlier broker refers to them later, and no later broker has written them.
                self.hold(HeldAnswer::new(answer, Ok(orphans)), true)
            }
        }
    }

    /// Applies a retention to the next objects: removes those of which everything is past it, or rewrites one.
    fn purge_page(
        &mut self,
        retention: &Arc<Retention>,
        after: Option<&ArchiveName>,
        by: &str,
        answer: AnswerTo<PurgedPage>,
    ) -> Result<()> {
        let context = JournalContext { by: by.to_owned(), now: self.now()?, random: 0 };
        let (mut whole, mut place, mut mixed) = (Vec::new(), after.cloned(), None);
        for object in self.state.archive().objects_after(after) {
            match ObjectPurge::of(object, retention, &context) {
                ObjectPurge::Nothing => {}
                ObjectPurge::Everything if whole.len() < BROKER_PAGE_MAX => whole.push(object.clone()),
                ObjectPurge::MustRead if whole.is_empty() => {
                    mixed = Some(object.clone());
                    break;
                }
                _ => break,
            }
            place = Some(object.name.clone());
        }
        if let Some(object) = mixed {
            let retention = retention.clone();
            let next = PurgePlace::Archive(Some(object.name.clone()));
            let purges = move |task: &JournalTask| purges_archived(task, &retention, &context);
            self.start_job(rewrite(object, purges), JobRequest::Purge(answer, next));
            return Ok(());
        }
        let deleted = whole.iter().map(ArchiveRef::tasks).sum();
        let next = (!whole.is_empty()).then_some(PurgePlace::Archive(place));
        if !whole.is_empty() {
            let batch = ArchiveBatch { tasks: Vec::new() };
            self.log_archive(ArchiveWork { batch, merged: whole, written: Vec::new() })?;
        }
        self.hold(HeldAnswer::new(answer, Ok(PurgedPage { deleted, corrupt: Vec::new(), next })), false)
    }

    /// Applies a retention to one archived task.
    pub(super) fn purge_archived(
        &mut self,
        id: TaskId,
        retention: Arc<Retention>,
        by: Arc<str>,
        answer: AnswerTo<Purged>,
        archived: &ArchivedTask,
    ) -> Result<()> {
        let context = JournalContext { by: by.to_string(), now: self.now()?, random: 0 };
        match purge_archived(&archived.task, &retention, &context) {
            Purged::Deleted => {
                let object = archived.object.clone();
                let request = ArchiveRequest::PurgeTask { id, object, retention, by, answer };
                self.archiver.requests.push_back(request);
                Ok(())
            }
            kept => self.hold(HeldAnswer::new(answer, Ok(kept)), true),
        }
    }
}

/// Job that rewrites an object without some of its tasks.
fn rewrite(object: ArchiveRef, purges: impl Fn(&JournalTask) -> bool + Send + Sync + 'static) -> ArchiveJob {
    let batch = ArchiveBatch { tasks: Vec::new() };
    ArchiveJob { batch, merged: vec![object], purges: Some(Box::new(purges)) }
}
