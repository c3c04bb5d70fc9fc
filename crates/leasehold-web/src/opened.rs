//! Single tasks, read when someone opens them: once for all who do so within four seconds, the pace at which pages ask.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leasehold_core::{Error, Matter, Result, Task, TaskId};
use leasehold_store::host::Instant;
use tokio::sync::OnceCell;

use crate::sampler::Shared;

/// So long what was read serves others.
const SHARED_FOR: Duration = Duration::from_secs(4);
/// Most tasks that are kept at once: each can be a megabyte.
const OPEN_MAX: usize = 64;

/// Nothing if there is no such task.
type Opening = Arc<OnceCell<Option<Arc<Task>>>>;

/// What was opened lately.
#[derive(Debug, Default)]
pub(crate) struct Opened(Mutex<HashMap<TaskId, (Instant, Opening)>>);

impl Opened {
    /// The task, read at most four seconds ago.
    pub(crate) async fn get(&self, shared: &Shared, id: &TaskId) -> Result<Arc<Task>> {
        let opening = self.opening(id, shared.host().instant());
        // Whoever comes while it is being read waits for the same answer. A failure is not kept.
        let read = async || match shared.queue().get(id).await {
            Ok(task) => {
                shared.saw(&task);
                Ok(Some(Arc::new(task)))
            }
            Err(error) if error.matter() == Some(Matter::Missing) => {
                shared.missed(id);
                Ok(None)
            }
            Err(error) => Err(error),
        };
        let task = opening.get_or_try_init(read).await?.clone();
        task.ok_or_else(|| {
            Error::invalid(format!("there is no task {id} in this queue")).about(Matter::Missing)
        })
    }

    /// The task is not as it was.
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
