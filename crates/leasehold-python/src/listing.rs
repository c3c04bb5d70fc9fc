//! A list of tasks, page by page: as it is read from the store, not faster than it is asked for.

use futures::{FutureExt, StreamExt};
use leasehold_core::{Error, Kind, Result, Status, Task};
use leasehold_queue::{Filter, Queue};
use pyo3::prelude::*;
use serde::Deserialize;
use serde_json::json;
use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Weak};
use tokio::sync::{Mutex, mpsc};

use crate::home::{Call, Home, panicked};
use crate::mailbox::Mailbox;
use crate::told::{described, of_task, raised};

/// So many tasks are read ahead.
const AHEAD: usize = 128;

/// Which tasks, as Python says it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Which {
    status: Option<String>,
    task_type: Option<String>,
    #[serde(default)]
    tags: BTreeMap<String, String>,
}

impl Which {
    pub(crate) fn filter(self) -> Result<Filter> {
        let status = self.status.as_deref().map(Status::parse).transpose()?;
        Ok(Filter { status, task_type: self.task_type, tags: self.tags })
    }
}

/// A list under way.
#[pyclass(frozen)]
pub(crate) struct Listing {
    /// A list that was not read to its end does not keep the threads of a queue that is closed.
    home: Weak<Home>,
    tasks: Arc<Mutex<mpsc::Receiver<Result<Task>>>>,
    reading: Call,
}

impl Listing {
    pub(crate) fn start(home: &Arc<Home>, queue: Queue, filter: Filter) -> PyResult<Self> {
        let (give, tasks) = mpsc::channel(AHEAD);
        let reading = home.start(false, async move {
            let read = async {
                let mut listed = std::pin::pin!(queue.list(filter));
                while let Some(task) = listed.next().await {
                    if give.send(task).await.is_err() {
                        return;
                    }
                }
            };
            if let Err(panic) = AssertUnwindSafe(read).catch_unwind().await {
                // Without it the list would seem to end here. Nobody listens if it was given up.
                let _ = give.send(Err(panicked(&*panic))).await;
            }
        })?;
        Ok(Self { home: Arc::downgrade(home), tasks: Arc::new(Mutex::new(tasks)), reading })
    }
}

#[pymethods]
impl Listing {
    /// The next tasks, and what stands among them and cannot be read as a task, as JSON; nothing of either at the end.
    fn next(&self, mailbox: &Mailbox, number: u64) -> PyResult<Call> {
        let (tasks, post) = (self.tasks.clone(), mailbox.post.clone());
        let home = self.home.upgrade().ok_or_else(|| raised(&Error::invalid("the queue is closed")))?;
        home.answer(true, (post, number), async move {
            let mut page = Vec::new();
            tasks.lock().await.recv_many(&mut page, AHEAD).await;
            written(page).map_err(|error| described(&error).to_string())
        })
    }
}

/// A list goes on after objects that make no sense.
fn written(page: Vec<Result<Task>>) -> Result<String> {
    let (mut tasks, mut corrupt) = (Vec::new(), Vec::new());
    for task in page {
        match task {
            Ok(task) => tasks.push(of_task(&task)),
            Err(error) if error.kind() == Kind::Corrupt => corrupt.push(described(&error)),
            Err(error) => return Err(error),
        }
    }
    Ok(format!(r#"{{"tasks":[{}],"corrupt":{}}}"#, tasks.join(","), json!(corrupt)))
}

impl Drop for Listing {
    fn drop(&mut self) {
        self.reading.give_up();
    }
}
