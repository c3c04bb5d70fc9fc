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
const OPEN_MAX: usize = 64;

/// A read in progress or done; `None` if there is no such task.
type Opening = Arc<OnceCell<Option<Arc<Task>>>>;

/// Recently opened tasks.
#[derive(Debug, Default)]
pub(crate) struct TaskCache(Mutex<HashMap<TaskId, (Instant, Opening)>>);

impl TaskCache {
    /// Returns a task, read at most four seconds ago.
    pub(crate) async fn get(&self, shared: &Shared, id: &TaskId) -> Result<Arc<Task>> {
        let opening = self.opening(id, shared.host().instant());
        // Concurrent requests for the task wait for the same read. A failure is not cached.
        let read = async || match shared.queue().get(id).await {
            Ok(task) => {
                shared.saw(&task);
                Ok(Some(Arc::new(task)))
            }
            Err(error) if error.matter() == Some(Reason::Missing) => {
                shared.missed(id);
                Ok(None)
            }
            Err(error) => Err(error),
        };
        let task = opening.get_or_try_init(read).await?.clone();
        task.ok_or_else(|| {
            Error::invalid(format!("there is no task {id} in this queue")).about(Reason::Missing)
        })
    }

    /// Drops a task that has changed.
    pub(crate) fn forget(&self, id: &TaskId) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
    }

    fn opening(&self, id: &TaskId, now: Instant) -> Opening {
        let mut opened = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        opened.retain(|_, (at, _)| now.since(*at) < SHARED_FOR);
        if opened.len() >= OPEN_MAX && !opened.contains_key(id) {
            opened.clear();
        }
        opened.entry(*id).or_insert_with(|| (now, Opening::default())).1.clone()
    }
}
