//! Paged list of tasks, read from the store no faster than Python asks for it.

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

use crate::event_queue::PyEventQueue;
use crate::json::{describe_error, encode_task, exception};
use crate::runtime::{Call, SharedRuntime, panic_error};

/// Number of tasks that are read ahead.
const AHEAD: usize = 128;

/// Filter of a list, as Python sends it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListQuery {
    status: Option<String>,
    task_type: Option<String>,
    #[serde(default)]
    tags: BTreeMap<String, String>,
}

impl ListQuery {
    pub(crate) fn filter(self) -> Result<Filter> {
        let status = self.status.as_deref().map(Status::parse).transpose()?;
        Ok(Filter { status, task_type: self.task_type, tags: self.tags })
    }
}

/// A list in progress.
#[pyclass(frozen)]
pub(crate) struct Listing {
    /// Weak, so that an abandoned list does not keep the threads of a closed queue.
    runtime: Weak<SharedRuntime>,
    tasks: Arc<Mutex<mpsc::Receiver<Result<Task>>>>,
    reading: Call,
}

impl Listing {
    pub(crate) fn start(runtime: &Arc<SharedRuntime>, queue: Queue, filter: Filter) -> PyResult<Self> {
        let (sender, tasks) = mpsc::channel(AHEAD);
        let reading = runtime.start(false, async move {
            let read = async {
                let mut listed = std::pin::pin!(queue.list(filter));
                while let Some(task) = listed.next().await {
                    if sender.send(task).await.is_err() {
                        return;
                    }
                }
            };
            if let Err(panic) = AssertUnwindSafe(read).catch_unwind().await {
                // Without it the list would appear to end here. The send fails if the list was dropped.
                let _ = sender.send(Err(panic_error(&*panic))).await;
            }
        })?;
        Ok(Self { runtime: Arc::downgrade(runtime), tasks: Arc::new(Mutex::new(tasks)), reading })
    }
}

#[pymethods]
impl Listing {
    /// Reads the next tasks, and errors for corrupt records among them, as JSON. Both are empty at the end.
    fn next(&self, event_queue: &PyEventQueue, number: u64) -> PyResult<Call> {
        let (tasks, events) = (self.tasks.clone(), event_queue.events.clone());
        let runtime =
            self.runtime.upgrade().ok_or_else(|| exception(&Error::invalid("the queue is closed")))?;
        runtime.answer(true, (events, number), async move {
            let mut page = Vec::new();
            tasks.lock().await.recv_many(&mut page, AHEAD).await;
            encode_page(page).map_err(|error| describe_error(&error).to_string())
        })
    }
}

/// Encodes a page. A list continues after corrupt records.
fn encode_page(page: Vec<Result<Task>>) -> Result<String> {
    let (mut tasks, mut corrupt) = (Vec::new(), Vec::new());
    for task in page {
        match task {
            Ok(task) => tasks.push(encode_task(&task)),
            Err(error) if error.kind() == Kind::Corrupt => corrupt.push(describe_error(&error)),
            Err(error) => return Err(error),
        }
    }
    Ok(format!(r#"{{"tasks":[{}],"corrupt":{}}}"#, tasks.join(","), json!(corrupt)))
}

impl Drop for Listing {
    fn drop(&mut self) {
        self.reading.abort();
    }
}
