//! Cache of opened tasks: a task is read once for all viewers that open it within four seconds, the polling interval of
//! the page.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leasehold_core::{Error, Reason, Result, Task, TaskId};
use leasehold_store::host::Instant;
use tokio::sync::OnceCell;

use crate::sampler::Shared;

/// Time for which a read is shared with other viewers.
const SHARED_FOR: Duration = Duration::from_secs(4);
/// Largest number of cached tasks: each can be a megabyte.
const CACHED_MAX: usize = 64;

/// A read in progress or done; `None` if there is no such task.
type SharedRead = Arc<OnceCell<Option<Arc<Task>>>>;

/// Recently opened tasks.
#[derive(Debug, Default)]
pub(crate) struct TaskCache(Mutex<HashMap<TaskId, (Instant, SharedRead)>>);

impl TaskCache {
    /// Returns a task, read at most four seconds ago.
    pub(crate) async fn get(&self, shared: &Shared, id: &TaskId) -> Result<Arc<Task>> {
        let shared_read = self.shared_read(id, shared.host().instant());
        // Concurrent requests for the task wait for the same read. A failure is not cached.
        // The broker of a journal answers this without a request to the store.
        let read = async || match shared.queue().poll(id, None).await {
            Ok(read) => Ok(read.map(|read| {
                shared.update_task(&read.task);
                Arc::new(read.task)
            })),
            Err(error) if error.reason() == Some(Reason::Missing) => {
                shared.remove_task(id);
                Ok(None)
            }
            Err(error) => Err(error),
        };
        let task = shared_read.get_or_try_init(read).await?.clone();
        task.ok_or_else(|| Error::invalid(format!("no task {id} in this queue")).with_reason(Reason::Missing))
    }

    /// Drops a task that has changed.
    pub(crate) fn forget(&self, id: &TaskId) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
    }

    fn shared_read(&self, id: &TaskId, now: Instant) -> SharedRead {
        let mut cached = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        cached.retain(|_, (at, _)| now.since(*at) < SHARED_FOR);
        if cached.len() >= CACHED_MAX && !cached.contains_key(id) {
            cached.clear();
        }
        cached.entry(*id).or_insert_with(|| (now, SharedRead::default())).1.clone()
    }
}
