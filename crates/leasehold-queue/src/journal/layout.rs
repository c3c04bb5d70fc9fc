//! The operations of a queue in the journal layout.

use futures::future::{BoxFuture, select};
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use leasehold_core::filter::Filter;
use leasehold_core::journal::{
    ExportPage, JournalCounts, JournalState, JournalTask, Operated, SubmitRequest, TaskPage,
};
use leasehold_core::limits::BROKER_PAGE_MAX;
use leasehold_core::{Error, Event, NewTask, Now, Result, Status, Task, TaskId, TaskIdPrefix};
use leasehold_store::{Client, Host, HostExt, Version};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::JournalQueue;
use super::request::{BrokerRequest, Freshness};
use crate::check::Checked;
use crate::front::{QueueLayout, Submitted};
use crate::inspect::{Stats, unknown_task};
use crate::meta::QueueMeta;
use crate::purge::{Purged, PurgedAll, Retention};
use crate::source::OpenSource;
use crate::tasks::{TaskSnapshot, Transition};
use crate::unique::UniqueKey;

/// Number of concurrent submits of one caller. They share commits, and a commit in a bucket takes tens of milliseconds.
const SUBMITS_AT_ONCE: usize = 1_024;
/// Maximum number of attempts of a submit whose broker ends before its answer. They have one id, and create one task.
const SUBMIT_ATTEMPTS_MAX: u32 = 3;

impl QueueLayout for JournalQueue {
    fn describe(&self) -> String {
        self.client.describe()
    }

    fn host(&self) -> &Arc<dyn Host> {
        self.client.host()
    }

    fn now(&self) -> Result<Now> {
        self.client.known_now()
    }

    fn unsupported(&self, operation: &str) -> Error {
        Error::invalid(format!("a queue with the layout `journal` cannot {operation}"))
    }

    fn meta(&self) -> Option<&QueueMeta> {
        Some(&self.meta)
    }

    fn client(&self) -> Result<&Client> {
        Ok(&self.client)
    }

    fn task_source(&self) -> Option<Arc<dyn OpenSource>> {
        Some(Arc::new(self.clone()))
    }

    fn submits_at_once(&self) -> usize {
        SUBMITS_AT_ONCE
    }

    fn submit_once(&self, new_task: NewTask, key: Option<UniqueKey>) -> BoxFuture<'_, Result<Submitted>> {
        self.submit_once(new_task, key).boxed()
    }

    fn get<'a>(&'a self, id: &'a TaskId) -> BoxFuture<'a, Result<Task>> {
        self.read_task(*id, Freshness::Current).boxed()
    }

    fn poll<'a>(
        &'a self,
        id: &'a TaskId,
        known: Option<&'a TaskSnapshot>,
    ) -> BoxFuture<'a, Result<Option<TaskSnapshot>>> {
        Box::pin(async move {
            let task = self.read_task(*id, Freshness::Confirmed).await?;
            let version = Version::new(task.write_id.as_str());
            Ok(Some(TaskSnapshot { task, version }).filter(|read| known != Some(read)))
        })
    }

    fn until_changed<'a>(
        &'a self,
        id: &'a TaskId,
        known: Option<&'a TaskSnapshot>,
        pause: Duration,
    ) -> BoxFuture<'a, ()> {
        let rested = self.host().sleep(pause);
        let Some(known) = known else { return rested };
        Box::pin(async move {
            let changed = async {
                if !self.broker.watch(*id, known.task.rev).await {
                    std::future::pending::<()>().await;
                }
            };
            select(rested, Box::pin(changed)).await;
        })
    }

    fn operate<'a>(&'a self, id: &'a TaskId, event: Event) -> BoxFuture<'a, Result<Transition<Task>>> {
        let (id, by) = (*id, self.by.clone());
        Box::pin(async move {
            let operated = self.broker.ask(|answer| BrokerRequest::Operate { id, event, by, answer });
            Ok(match operated.await? {
                Operated::Done(task) => Transition::Done(*task),
                Operated::Rejected(why, task) => Transition::Rejected(why, *task),
            })
        })
    }

    fn find<'a>(&'a self, prefix: &'a TaskIdPrefix) -> BoxFuture<'a, Result<TaskId>> {
        let prefix = prefix.clone();
        self.read(Freshness::Current, move |state, _| prefix.resolve(&state.find(&prefix))).boxed()
    }

    fn list(&self, filter: Filter) -> BoxStream<'_, Result<Task>> {
        let filter = Arc::new(filter);
        let pages = stream::try_unfold(Some(None), move |after: Option<Option<TaskId>>| {
            let filter = filter.clone();
            async move {
                let Some(after) = after else { return Ok(None) };
                let TaskPage { tasks, next } = self.list_page(filter, after).await?;
                Ok(Some((stream::iter(tasks.into_iter().map(Ok)), next.map(Some))))
            }
        });
        pages.try_flatten().boxed()
    }

    fn purge<'a>(&'a self, task: &'a Task, retention: &'a Retention) -> BoxFuture<'a, Result<Purged>> {
        let (id, retention, by) = (task.id, Arc::new(retention.clone()), self.by.clone());
        self.broker.ask(move |answer| BrokerRequest::PurgeTask { id, retention, by, answer }).boxed()
    }

    fn purge_all<'a>(&'a self, retention: &'a Retention) -> BoxFuture<'a, Result<PurgedAll>> {
        self.purge_pages(retention.clone()).boxed()
    }

    fn export(&self) -> BoxStream<'_, Result<JournalTask>> {
        let pages = stream::try_unfold(Some(None), move |after: Option<Option<TaskId>>| async move {
            let Some(after) = after else { return Ok(None) };
            let read = move |state: &JournalState, _| state.export(after, BROKER_PAGE_MAX);
            let ExportPage { tasks, next } = self.read(Freshness::Current, read).await?;
            Ok(Some((stream::iter(tasks.into_iter().map(Ok)), next.map(Some))))
        });
        pages.try_flatten().boxed()
    }

    fn import(&self, task: JournalTask) -> BoxFuture<'_, Result<bool>> {
        let task = Box::new(task);
        self.broker.ask(|answer| BrokerRequest::Import { task, answer }).boxed()
    }

    fn stats(&self) -> BoxFuture<'_, Result<Stats>> {
        self.read(Freshness::Current, |state, now| Ok(stats(&state.counts(), now))).boxed()
    }

    fn check(&self, _repair: bool) -> BoxFuture<'_, Result<Checked>> {
        // There is no index that could disagree with the tasks, so there is nothing to repair.
        self.check_parts().boxed()
    }

    fn close(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async {
            self.broker.close().await;
            Ok(())
        })
    }
}

impl JournalQueue {
    async fn submit_once(&self, new_task: NewTask, key: Option<UniqueKey>) -> Result<Submitted> {
        let id = TaskId::from_time(self.now()?.earliest, self.host().random_bits());
        let request = SubmitRequest { id, new_task, key };
        let mut attempts = 1;
        loop {
            let (task, by) = (Box::new(request.clone()), self.by.clone());
            match self.broker.ask(|answer| BrokerRequest::Submit { task, by, answer }).await {
                Err(error) if error.outcome_is_unknown() && attempts < SUBMIT_ATTEMPTS_MAX => attempts += 1,
                // The first attempt may have succeeded.
                Err(error) if attempts > 1 => return Err(error.with_unknown_outcome()),
                submitted => return submitted,
            }
        }
    }

    async fn read_task(&self, id: TaskId, freshness: Freshness) -> Result<Task> {
        let get = move |state: &JournalState, _| state.get(&id)?.ok_or_else(|| unknown_task(&id));
        match self.read(freshness, get).await {
            // That a task does not exist needs a proof.
            Err(error) if freshness == Freshness::Confirmed && error.reason().is_some() => {
                self.read(Freshness::Current, get).await
            }
            read => read,
        }
    }

    async fn list_page(&self, filter: Arc<Filter>, after: Option<TaskId>) -> Result<TaskPage> {
        self.read(Freshness::Current, move |state, _| state.list(&filter, after, BROKER_PAGE_MAX)).await
    }

    async fn purge_pages(&self, retention: Retention) -> Result<PurgedAll> {
        let (retention, mut purged, mut after) = (Arc::new(retention), PurgedAll::default(), None);
        loop {
            let (retention, by) = (retention.clone(), self.by.clone());
            let page =
                self.broker.ask(|answer| BrokerRequest::Purge { retention, after, by, answer }).await?;
            purged.deleted += page.deleted;
            purged.corrupt.extend(page.corrupt);
            after = page.next;
            if after.is_none() {
                return Ok(purged);
            }
        }
    }
}

fn stats(counts: &JournalCounts, now: Now) -> Stats {
    let mut statuses = BTreeMap::<_, u64>::new();
    for (status, number) in counts.types.values().flatten() {
        *statuses.entry(*status).or_default() += number;
    }
    let running = statuses.remove(&Status::Running).unwrap_or(0);
    statuses.retain(|status, _| status.is_final());
    Stats {
        due: counts.due,
        scheduled: counts.scheduled,
        running,
        finished: Some(statuses),
        oldest_due_secs: counts.oldest_due.map(|minute| now.earliest.since(minute.start()).as_secs()),
        ..Stats::default()
    }
}
