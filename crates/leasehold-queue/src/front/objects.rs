//! The object layout behind the front.
//!
//! Requests of cancel, retry and reschedule: 1 get, 1 put, and 1 put and 1 delete if the index entry changes.

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use leasehold_core::new_task::check_time;
use leasehold_core::{Event, NewTask, Now, Result, StoreTime, Task, TaskId, TaskIdPrefix};
use leasehold_store::{Client, Host, Purpose};
use std::sync::Arc;

use super::{QueueLayout, Submitted};
use crate::check::Checked;
use crate::connect::ObjectQueue;
use crate::meta::QueueMeta;
use crate::inspect::{Filter, Stats, unknown_task};
use crate::purge::{Purged, PurgedAll, Retention};
use crate::tasks::{ChangeFrom, IndexUpdate, TaskSnapshot, Transition};
use crate::unique::UniqueKey;

impl QueueLayout for ObjectQueue {
    fn describe(&self) -> String {
        self.client.describe()
    }

    fn host(&self) -> &Arc<dyn Host> {
        self.client.host()
    }

    fn now(&self) -> Result<Now> {
        self.now()
    }

    fn objects(&self) -> Result<&ObjectQueue> {
        Ok(self)
    }

    fn meta(&self) -> Option<&QueueMeta> {
        Some(self.meta())
    }

    fn client(&self) -> Result<&Client> {
        Ok(&self.client)
    }

    fn submit_once(&self, new_task: NewTask, key: Option<UniqueKey>) -> BoxFuture<'_, Result<Submitted>> {
        Box::pin(self.submit_once(new_task, key))
    }

    fn get<'a>(&'a self, id: &'a TaskId) -> BoxFuture<'a, Result<Task>> {
        Box::pin(self.get(id))
    }

    fn operate<'a>(&'a self, id: &'a TaskId, event: Event) -> BoxFuture<'a, Result<Transition<Task>>> {
        Box::pin(async move {
            let (from, by) = (ChangeFrom::Id(id), self.config.by.as_str());
            match self.change(Purpose::Admin, from, &event, by, IndexUpdate::Change).await? {
                Transition::Rejected(why, now) => Ok(Transition::Rejected(why, now.task)),
                applied => {
                    applied.done().map(|now| Transition::Done(now.task)).ok_or_else(|| unknown_task(id))
                }
            }
        })
    }

    fn poll<'a>(
        &'a self,
        id: &'a TaskId,
        known: Option<&'a TaskSnapshot>,
    ) -> BoxFuture<'a, Result<Option<TaskSnapshot>>> {
        Box::pin(self.read_unless(id, known))
    }

    fn find<'a>(&'a self, prefix: &'a TaskIdPrefix) -> BoxFuture<'a, Result<TaskId>> {
        Box::pin(self.find(prefix))
    }

    fn list(&self, filter: Filter) -> BoxStream<'_, Result<Task>> {
        self.list(filter).boxed()
    }

    fn purge<'a>(&'a self, task: &'a Task, retention: &'a Retention) -> BoxFuture<'a, Result<Purged>> {
        Box::pin(self.purge(task, retention))
    }

    fn purge_all<'a>(&'a self, retention: &'a Retention) -> BoxFuture<'a, Result<PurgedAll>> {
        Box::pin(self.purge_all(retention))
    }

    fn stats(&self) -> BoxFuture<'_, Result<Stats>> {
        Box::pin(self.stats())
    }

    fn check(&self, repair: bool) -> BoxFuture<'_, Result<Checked>> {
        Box::pin(self.check(repair))
    }
}

impl ObjectQueue {
    /// Cancels a task: at once if it is waiting; a running one is stopped by its worker at the next renewal.
    pub async fn cancel(&self, id: &TaskId) -> Result<Transition<Task>> {
        self.operate(id, Event::Cancel).await
    }

    /// Retries a task that has failed, was cancelled or has expired.
    pub async fn retry(&self, id: &TaskId) -> Result<Transition<Task>> {
        self.operate(id, Event::Retry).await
    }

    /// Reschedules a waiting task.
    pub async fn reschedule(&self, id: &TaskId, at: StoreTime) -> Result<Transition<Task>> {
        check_time("time", at, self.now()?.earliest)?;
        self.operate(id, Event::Reschedule { at }).await
    }
}
