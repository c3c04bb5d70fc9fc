//! One interface for both: a queue in a bucket, or an outpost in a folder. A program that works with [`Either`] changes one
//! setting, `LEASEHOLD_QUEUE_TYPE`, and nothing else.

use leasehold_core::{Error, Matter, NewTask, Rejected, Result, Task, TaskId};
use leasehold_queue::{Operated, Queue};
use leasehold_store::HostExt;
use leasehold_worker::Worker;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::spool::Spool;

/// The variable that says where a program's tasks are.
pub const QUEUE_TYPE_VARIABLE: &str = "LEASEHOLD_QUEUE_TYPE";

/// Where a program's tasks are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum QueueType {
    /// In the bucket itself.
    #[default]
    Bucket,
    /// In a folder of this machine, which a supervisor keeps in step with a bucket.
    Filesystem,
}

impl QueueType {
    /// What the environment says; the bucket if it says nothing.
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
            _ => {
                Err(Error::invalid(format!("queue type `{text}` is not known; there are bucket, filesystem")))
            }
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
pub enum Either {
    /// The bucket itself.
    Bucket(Queue),
    /// A folder.
    Filesystem(Spool),
}

impl From<Queue> for Either {
    fn from(queue: Queue) -> Self {
        Self::Bucket(queue)
    }
}

impl From<Spool> for Either {
    fn from(spool: Spool) -> Self {
        Self::Filesystem(spool)
    }
}

impl Either {
    /// Submits a task.
    pub async fn submit(&self, order: NewTask) -> Result<TaskId> {
        match self {
            Self::Bucket(queue) => Ok(queue.submit_task(order).await?.id),
            Self::Filesystem(spool) => on_disk(spool, move |spool| spool.submit(order)).await,
        }
    }

    /// A task as it stands, as far as is known here.
    pub async fn get(&self, id: &TaskId) -> Result<Task> {
        match self {
            Self::Bucket(queue) => queue.get(id).await,
            Self::Filesystem(spool) => {
                let id = *id;
                let found = on_disk(spool, move |spool| spool.get(&id)).await?;
                let unknown =
                    || Error::invalid(format!("there is no task {id} on this node")).about(Matter::Missing);
                Ok(found.ok_or_else(unknown)?.task)
            }
        }
    }

    /// Calls a task off.
    pub async fn cancel(&self, id: &TaskId) -> Result<()> {
        match self {
            Self::Bucket(queue) => done(id, queue.cancel(id).await?),
            Self::Filesystem(spool) => {
                let id = *id;
                on_disk(spool, move |spool| spool.cancel(&id)).await
            }
        }
    }

    /// Lets a task run again that has failed, was called off or has expired.
    pub async fn retry(&self, id: &TaskId) -> Result<()> {
        match self {
            Self::Bucket(queue) => done(id, queue.retry(id).await?),
            Self::Filesystem(spool) => {
                let id = *id;
                on_disk(spool, move |spool| spool.requeue(&id).map(|_| ())).await
            }
        }
    }

    /// A worker with this name, which has no handlers yet.
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

/// What is so already is done.
fn done(id: &TaskId, operated: Operated) -> Result<()> {
    match operated {
        Operated::Done(_) | Operated::Refused(Rejected::AlreadySo) => Ok(()),
        Operated::Refused(why) => Err(Error::invalid(format!("task {id}: {why}")).about(Matter::Conflict)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_type_is_told_what_there_is() {
        for kind in [QueueType::Bucket, QueueType::Filesystem] {
            assert_eq!(kind.to_string().parse::<QueueType>().unwrap(), kind);
        }
        let error = "folder".parse::<QueueType>().unwrap_err();
        assert_eq!(error.to_string(), "queue type `folder` is not known; there are bucket, filesystem");
    }
}
