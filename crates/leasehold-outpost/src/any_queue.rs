//! One interface for a queue in a bucket and for an outpost in a folder. A program that uses [`AnyQueue`] switches between
//! them with one setting, `LEASEHOLD_QUEUE_TYPE`.

use leasehold_core::{Error, NewTask, Reason, Rejected, Result, Task, TaskId};
use leasehold_queue::{Operated, Queue};
use leasehold_store::HostExt;
use leasehold_worker::Worker;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::spool::Spool;

/// Environment variable with the queue type.
pub const QUEUE_TYPE_VARIABLE: &str = "LEASEHOLD_QUEUE_TYPE";

/// Location of a program's tasks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum QueueType {
    /// In the bucket itself.
    #[default]
    Bucket,
    /// In a folder of this machine, which a supervisor syncs with a bucket.
    Filesystem,
}

impl QueueType {
    /// Reads the type from the environment; the bucket by default.
    pub fn from_env() -> Result<Self> {
        match std::env::var(QUEUE_TYPE_VARIABLE) {
            Ok(text) if !text.is_empty() => text.parse(),
            _ => Ok(Self::default()),
        }
    }
}

impl FromStr for QueueType {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "bucket" => Ok(Self::Bucket),
            "filesystem" => Ok(Self::Filesystem),
            _ => Err(Error::invalid(format!("unknown queue type `{text}`; use bucket or filesystem"))),
        }
    }
}

impl fmt::Display for QueueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Bucket => "bucket",
            Self::Filesystem => "filesystem",
        })
    }
}

/// A queue in a bucket, or an outpost.
#[derive(Debug, Clone)]
pub enum AnyQueue {
    /// The bucket itself.
    Bucket(Queue),
    /// A folder.
    Filesystem(Spool),
}

impl From<Queue> for AnyQueue {
    fn from(queue: Queue) -> Self {
        Self::Bucket(queue)
    }
}

impl From<Spool> for AnyQueue {
    fn from(spool: Spool) -> Self {
        Self::Filesystem(spool)
    }
}

impl AnyQueue {
    /// Submits a task.
    pub async fn submit(&self, order: NewTask) -> Result<TaskId> {
        match self {
            Self::Bucket(queue) => Ok(queue.submit_task(order).await?.id),
            Self::Filesystem(spool) => on_disk(spool, move |spool| spool.submit(order)).await,
        }
    }

    /// Reads a task; for an outpost, the node's copy.
    pub async fn get(&self, id: &TaskId) -> Result<Task> {
        match self {
            Self::Bucket(queue) => queue.get(id).await,
            Self::Filesystem(spool) => {
                let id = *id;
                let found = on_disk(spool, move |spool| spool.get(&id)).await?;
                let unknown =
                    || Error::invalid(format!("there is no task {id} on this node")).about(Reason::Missing);
                Ok(found.ok_or_else(unknown)?.task)
            }
        }
    }

    /// Cancels a task.
    pub async fn cancel(&self, id: &TaskId) -> Result<()> {
        match self {
            Self::Bucket(queue) => done(id, queue.cancel(id).await?),
            Self::Filesystem(spool) => {
                let id = *id;
                on_disk(spool, move |spool| spool.cancel(&id)).await
            }
        }
    }

    /// Retries a task that has failed, was cancelled or has expired.
    pub async fn retry(&self, id: &TaskId) -> Result<()> {
        match self {
            Self::Bucket(queue) => done(id, queue.retry(id).await?),
            Self::Filesystem(spool) => {
                let id = *id;
                on_disk(spool, move |spool| spool.requeue(&id).map(|_| ())).await
            }
        }
    }

    /// Creates a worker with this name and no handlers.
    pub fn worker(&self, id: &str) -> Result<Worker> {
        match self {
            Self::Bucket(queue) => Worker::new(queue.clone(), id, None),
            Self::Filesystem(spool) => Worker::at(Arc::new(spool.clone()), spool.host().clone(), id),
        }
    }
}

async fn on_disk<T: Send + 'static>(
    spool: &Spool,
    work: impl FnOnce(&Spool) -> Result<T> + Send + 'static,
) -> Result<T> {
    let (host, spool) = (spool.host().clone(), spool.clone());
    host.blocking(move || work(&spool)).await
}

/// Maps an outcome to a result. A task that is already in the requested state counts as done.
fn done(id: &TaskId, operated: Operated) -> Result<()> {
    match operated {
        Operated::Done(_) | Operated::Refused(Rejected::AlreadySo) => Ok(()),
        Operated::Refused(why) => Err(Error::invalid(format!("task {id}: {why}")).about(Reason::Conflict)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_for_an_unknown_type_names_the_known_ones() {
        for kind in [QueueType::Bucket, QueueType::Filesystem] {
            assert_eq!(kind.to_string().parse::<QueueType>().unwrap(), kind);
        }
        let error = "folder".parse::<QueueType>().unwrap_err();
        assert_eq!(error.to_string(), "unknown queue type `folder`; use bucket or filesystem");
    }
}
