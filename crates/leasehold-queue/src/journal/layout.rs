//! The operations of a queue in the journal layout.

use futures::FutureExt;
use futures::future::{BoxFuture, select};
use futures::stream::BoxStream;
use leasehold_core::filter::Filter;
use leasehold_core::journal::{JournalCounts, JournalTask, Operated, SubmitRequest};
use leasehold_core::{Error, Event, NewTask, Now, Result, Status, Task, TaskId, TaskIdPrefix};
use leasehold_store::mutant::breaks;
use leasehold_store::{Client, Host, HostExt, Version};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::JournalQueue;
use super::query::{StateAnswer, StateQuery};
use super::request::{BrokerRequest, Freshness, PurgePlace};
use crate::check::Checked;
use crate::front::{QueueLayout, Submitted};
use crate::inspect::Stats;
use crate::meta::QueueMeta;
use crate::purge::{Purged, PurgedAll, Retention};
use crate::source::TaskSourceFactory;
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

    fn journal(&self) -> Result<&JournalQueue> {
        Ok(self)
    }

    fn meta(&self) -> Option<&QueueMeta> {
        Some(&self.meta)
    }

    fn client(&self) -> Result<&Client> {
        Ok(&self.client)
    }

    fn task_source_factory(&self) -> Option<Arc<dyn TaskSourceFactory>> {
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
        self.find_task(prefix.clone()).boxed()
    }

    fn list(&self, filter: Filter) -> BoxStream<'_, Result<Task>> {
        self.list_tasks(filter)
    }

    fn purge<'a>(&'a self, task: &'a Task, retention: &'a Retention) -> BoxFuture<'a, Result<Purged>> {
        let (id, retention, by) = (task.id, Arc::new(retention.clone()), self.by.clone());
        self.broker.ask(move |answer| BrokerRequest::PurgeTask { id, retention, by, answer }).boxed()
    }

    fn purge_all<'a>(&'a self, retention: &'a Retention) -> BoxFuture<'a, Result<PurgedAll>> {
        self.purge_pages(retention.clone()).boxed()
    }

    fn export(&self) -> BoxStream<'_, Result<JournalTask>> {
        self.export_tasks()
    }

    fn import(&self, task: JournalTask) -> BoxFuture<'_, Result<bool>> {
        let task = Box::new(task);
        self.broker.ask(|answer| BrokerRequest::Import { task, answer }).boxed()
    }

    fn stats(&self) -> BoxFuture<'_, Result<Stats>> {
        Box::pin(async {
            match self.read(StateQuery::Count, Freshness::Current).await? {
                StateAnswer::Count(counts) => Ok(stats(&counts, self.now()?)),
                _ => Err(StateAnswer::unexpected()),
            }
        })
    }

    fn check(&self, repair: bool) -> BoxFuture<'_, Result<Checked>> {
        // There is no index that could disagree with the tasks: only archive objects that nothing refers to are removed.
        self.check_journal(repair).boxed()
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
        let mut request = SubmitRequest { id, new_task, key };
        let mut attempts = 1;
        loop {
            let (task, by) = (Box::new(request.clone()), self.by.clone());
            match self.broker.ask(|answer| BrokerRequest::Submit { task, by, answer }).await {
                Err(error) if error.outcome_is_unknown() && attempts < SUBMIT_ATTEMPTS_MAX => {
                    attempts += 1;
                    if breaks("resubmitted-under-new-id") {
                        request.id = TaskId::from_time(self.now()?.earliest, self.host().random_bits());
                    }
                }
                // The first attempt may have succeeded.
                Err(error) if attempts > 1 => return Err(outcome_unknown(&request.id, error)),
                submitted => return submitted,
            }
        }
    }

    async fn purge_pages(&self, retention: Retention) -> Result<PurgedAll> {
        let (retention, mut purged) = (Arc::new(retention), PurgedAll::default());
        let mut next = Some(PurgePlace::Live(None));
        while let Some(at) = next {
            let (retention, by) = (retention.clone(), self.by.clone());
            let page = self.broker.ask(|answer| BrokerRequest::Purge { retention, at, by, answer }).await?;
            purged.deleted += page.deleted;
            purged.corrupt.extend(page.corrupt);
            next = page.next;
        }
        Ok(purged)
    }
}

/// Error of a submit that may have succeeded.
fn outcome_unknown(id: &TaskId, error: Error) -> Error {
    let text = error.to_string();
    let why = text.strip_prefix("outcome unknown: ").unwrap_or(&text);
    let message = format!("outcome unknown: task {id} may or may not run: {why}");
    let unknown = Error::new(error.kind(), message).with_unknown_outcome();
    let unknown = if let Some(reason) = error.reason() { unknown.with_reason(reason) } else { unknown };
    unknown.because(error)
}

pub(super) fn stats(counts: &JournalCounts, now: Now) -> Stats {
    let mut statuses = BTreeMap::<_, u64>::new();
    for (status, number) in counts.types.values().flatten().chain(&counts.archived) {
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
