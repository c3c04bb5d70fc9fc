//! The object layout behind the front.
//!
//! Requests of cancel, retry and reschedule: 1 get, 1 put, and 1 put and 1 delete if the index entry changes.

use futures::future::BoxFuture;
use leasehold_core::{Event, NewTask, Now, Result, Task, TaskId, keys};
use leasehold_store::{Get, Host, Purpose};
use std::sync::Arc;

use super::{QueueLayout, Submitted};
use crate::connect::ObjectQueue;
use crate::inspect::unknown_task;
use crate::meta::QueueMeta;
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

    fn submit_once(&self, new_task: NewTask, key: Option<UniqueKey>) -> BoxFuture<'_, Result<Submitted>> {
        Box::pin(self.submit_once(new_task, key))
    }

    fn get<'a>(&'a self, id: &'a TaskId) -> BoxFuture<'a, Result<Task>> {
        Box::pin(self.get(id))
    }

    fn operate<'a>(&'a self, id: &'a TaskId, event: Event) -> BoxFuture<'a, Result<Transition<Task>>> {
        Box::pin(async move {
            match self.change(Purpose::Admin, ChangeFrom::Id(id), &event, IndexUpdate::Change).await? {
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
        Box::pin(async move {
            let key = known.map_or_else(|| self.task_key(id), |known| keys::task(&known.task.shard, id));
            let version = known.map(|known| &known.version);
            let object = match self.client.get_unless(Purpose::Admin, &key, version).await? {
                Get::Unchanged => return Ok(None),
                read => read.found(),
            };
            let loaded = self.load_from(Purpose::Admin, id, &key, object).await?;
            loaded.map(Some).ok_or_else(|| unknown_task(id))
        })
    }
}
