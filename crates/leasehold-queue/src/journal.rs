//! The journal layout: one process at a time, the *broker*, keeps the live tasks in memory and writes the decisions for many
//! tasks in one commit of a log. The rules are `docs/protocol/journal.md`.

pub(crate) mod lease;

use futures::future::{BoxFuture, ready};
use leasehold_core::{Event, NewTask, Now, Result, Task, TaskId};
use leasehold_store::{Client, Host};
use std::sync::Arc;

use crate::connect::QueueConfig;
use crate::front::{QueueLayout, Submitted};
use crate::meta::{OpenedMeta, QueueMeta};
use crate::tasks::Transition;
use crate::unique::UniqueKey;

/// A task queue in the journal layout. Cheap to clone.
#[derive(Debug, Clone)]
pub struct JournalQueue {
    client: Client,
    meta: Arc<QueueMeta>,
    config: Arc<QueueConfig>,
}

impl JournalQueue {
    pub(crate) fn new(opened: OpenedMeta, config: QueueConfig) -> Self {
        Self { client: opened.client, meta: Arc::new(opened.meta), config: Arc::new(config) }
    }
}

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

    fn client(&self) -> Result<&Client> {
        Ok(&self.client)
    }

    fn submit_once(&self, _: NewTask, _: Option<UniqueKey>) -> BoxFuture<'_, Result<Submitted>> {
        Box::pin(ready(Err(self.unsupported("submit"))))
    }

    fn get<'a>(&'a self, _: &'a TaskId) -> BoxFuture<'a, Result<Task>> {
        Box::pin(ready(Err(self.unsupported("get"))))
    }

    fn operate<'a>(&'a self, _: &'a TaskId, _: Event) -> BoxFuture<'a, Result<Transition<Task>>> {
        Box::pin(ready(Err(self.unsupported("change tasks"))))
    }
}
