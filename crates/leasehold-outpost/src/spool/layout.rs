//! A spool as the layout of a queue: a program that uses [`Queue`](leasehold_queue::Queue) works on a bucket and on an
//! outpost.

use futures::future::{BoxFuture, ready};
use leasehold_core::{Error, Event, NewTask, Now, Reason, Rejected, Result, Task, TaskId, TaskIdPrefix};
use leasehold_queue::source::TaskSourceFactory;
use leasehold_queue::{QueueLayout, Submitted, Transition, UniqueKey};
use leasehold_store::{Host, HostExt};
use std::sync::Arc;

use super::Spool;
use crate::config::QUEUE_TYPE_VARIABLE;

impl QueueLayout for Spool {
    fn describe(&self) -> String {
        format!("the outpost in {}", self.root.display())
    }

    fn host(&self) -> &Arc<dyn Host> {
        &self.host
    }

    fn now(&self) -> Result<Now> {
        Ok(self.now().present())
    }

    fn unsupported(&self, operation: &str) -> Error {
        Error::invalid(format!(
            "an outpost cannot {operation}; open its queue in the bucket instead, with {QUEUE_TYPE_VARIABLE}=bucket"
        ))
    }

    fn task_source_factory(&self) -> Option<Arc<dyn TaskSourceFactory>> {
        Some(Arc::new(self.clone()))
    }

    fn submit_once(&self, new_task: NewTask, key: Option<UniqueKey>) -> BoxFuture<'_, Result<Submitted>> {
        // The id of a task is derived from its key, so the key never expires, and covers the whole queue.
        if key.is_some_and(|key| key != UniqueKey::new(key.key.as_str())) {
            let error = self.unsupported("use a scope, a lifetime or retries of an idempotency key");
            return Box::pin(ready(Err(error)));
        }
        self.on_disk(move |spool| spool.submit_once(new_task))
    }

    fn get<'a>(&'a self, id: &'a TaskId) -> BoxFuture<'a, Result<Task>> {
        let id = *id;
        self.on_disk(move |spool| spool.task(&id))
    }

    fn operate<'a>(&'a self, id: &'a TaskId, event: Event) -> BoxFuture<'a, Result<Transition<Task>>> {
        let id = *id;
        self.on_disk(move |spool| spool.operate(&id, &event))
    }

    fn find<'a>(&'a self, prefix: &'a TaskIdPrefix) -> BoxFuture<'a, Result<TaskId>> {
        let prefix = prefix.clone();
        self.on_disk(move |spool| spool.find(&prefix))
    }
}

impl Spool {
    fn operate(&self, id: &TaskId, event: &Event) -> Result<Transition<Task>> {
        let applied = match event {
            Event::Cancel => self.cancel(id),
            Event::Retry => self.requeue(id).map(drop),
            event => Err(self.unsupported(event.name())),
        };
        match applied {
            Ok(()) => self.task(id).map(Transition::Done),
            Err(error) if error.reason() == Some(Reason::Conflict) => {
                let task = self.task(id)?;
                Ok(Transition::Rejected(Rejected::Status(task.status()), task))
            }
            Err(error) => Err(error),
        }
    }

    /// Works on the files, on a thread that may block.
    pub(crate) fn on_disk<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Spool) -> Result<T> + Send + 'static,
    ) -> BoxFuture<'static, Result<T>> {
        let (host, spool) = (self.host.clone(), self.clone());
        Box::pin(async move { host.blocking(move || work(&spool)).await })
    }
}
