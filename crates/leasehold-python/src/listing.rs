//! A list of tasks, page by page: as it is read from the store, not faster than it is asked for.

use futures::StreamExt;
use leasehold_core::{Error, Kind, Result, Status, Task};
use leasehold_queue::{Filter, Queue};
use pyo3::prelude::*;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::{Mutex, mpsc};

use crate::home::{Call, Home};
use crate::mailbox::Mailbox;
use crate::told::{described, of_task};

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
    home: Arc<Home>,
    tasks: Arc<Mutex<mpsc::Receiver<Result<Task>>>>,
    reading: Call,
}

impl Listing {
    pub(crate) fn start(home: &Arc<Home>, queue: Queue, filter: Filter) -> PyResult<Self> {
        let (give, tasks) = mpsc::channel(AHEAD);
        let reading = home.start(false, async move {
            let mut listed = std::pin::pin!(queue.list(filter));
            while let Some(task) = listed.next().await {
                if give.send(task).await.is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { home: home.clone(), tasks: Arc::new(Mutex::new(tasks)), reading })
    }
}

#[pymethods]
impl Listing {
    /// The next tasks as a JSON array; an empty one at the end. What cannot be read as a task is left out.
    fn next(&self, mailbox: &Mailbox, number: u64) -> PyResult<Call> {
        let (tasks, post) = (self.tasks.clone(), mailbox.post.clone());
        self.home.start(true, async move {
            let mut page = Vec::new();
            let mut tasks = tasks.lock().await;
            let told = loop {
                if tasks.recv_many(&mut page, AHEAD).await == 0 {
                    break Ok("[]".into());
                }
                match written(page.drain(..)) {
                    Ok(texts) if texts.is_empty() => {}
                    Ok(texts) => break Ok(format!("[{}]", texts.join(","))),
                    Err(error) => break Err(described(&error).to_string()),
                }
            };
            post.answer(number, told);
        })
    }
}

/// Objects that make no sense are for `check` to report; a list goes on without them.
fn written(page: impl Iterator<Item = Result<Task>>) -> Result<Vec<String>, Error> {
    page.filter_map(|task| match task {
        Ok(task) => Some(Ok(of_task(&task))),
        Err(error) if error.kind() == Kind::Corrupt => None,
        Err(error) => Some(Err(error)),
    })
    .collect()
}

impl Drop for Listing {
    fn drop(&mut self) {
        self.reading.give_up();
    }
}
