//! Queue, for Python. Asynchronous methods take the event queue for their answer and the number of the call.

use futures::StreamExt;
use leasehold_cli::frontend::{Frontend, TaskLine};
use leasehold_core::{Error, Reason, Result, Status, StoreTime, Task, TaskId};
use leasehold_pieces::{ArtifactStore, PublishOptions, Published};
use leasehold_queue::purge::Retention;
use leasehold_queue::{Submitted, Transition};
use leasehold_store::HostExt;
use pyo3::prelude::*;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::future::Future;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::event_queue::PyEventQueue;
use crate::json::{self, JsonAnswer, encode, exception};
use crate::listing::{ListQuery, Listing};
use crate::log;
use crate::runtime::{Call, SharedRuntime};
use crate::worker::{Worker, WorkerSpec};

/// Default name of the caller in the history of tasks.
const BY: &str = "python";

/// A queue that is open or being opened.
#[pyclass(frozen)]
pub(crate) struct Queue {
    runtime: Mutex<Option<Arc<SharedRuntime>>>,
    profile: Option<String>,
    opened: Arc<tokio::sync::OnceCell<leasehold_queue::Queue>>,
}

#[pymethods]
impl Queue {
    /// Opens the queue named by the settings; `overrides` take precedence over files and variables. The answer describes
    /// the queue.
    #[staticmethod]
    fn connect(
        event_queue: &PyEventQueue,
        number: u64,
        profile: Option<String>,
        overrides: BTreeMap<String, String>,
        by: Option<String>,
    ) -> PyResult<(Self, Call)> {
        log::start();
        let frontend =
            Frontend::load(profile.as_deref(), pairs(&overrides)).map_err(|error| exception(&error))?;
        let runtime = SharedRuntime::of_process().map_err(|error| exception(&error))?;
        Self::open(runtime, profile, frontend, event_queue, number, by)
    }

    /// Creates an empty in-memory queue with simulated time. Ignores settings files and variables.
    #[staticmethod]
    fn for_test(
        event_queue: &PyEventQueue,
        number: u64,
        overrides: BTreeMap<String, String>,
        by: Option<String>,
    ) -> PyResult<(Self, Call)> {
        log::start();
        let frontend = Frontend::from_overrides(pairs(&overrides)).map_err(|error| exception(&error))?;
        let runtime = SharedRuntime::for_test().map_err(|error| exception(&error))?;
        Self::open(runtime, None, frontend, event_queue, number, by)
    }

    /// Submits a task, given as a line of `submit-many`.
    fn submit(&self, event_queue: &PyEventQueue, number: u64, task: String) -> PyResult<Call> {
        self.call(event_queue, number, move |queue| async move {
            encode(
                async {
                    parse_task_line(&task)?.submit(&queue)?.await.map(|submitted| submitted_json(&submitted))
                }
                .await,
            )
        })
    }

    /// Submits many tasks; the answer is a list of results and errors, in the order of the tasks.
    fn submit_many(&self, event_queue: &PyEventQueue, number: u64, tasks: Vec<String>) -> PyResult<Call> {
        self.call(event_queue, number, move |queue| async move { encode(submit_many(&queue, &tasks).await) })
    }

    fn get(&self, event_queue: &PyEventQueue, number: u64, id: String) -> PyResult<Call> {
        self.call(event_queue, number, move |queue| async move {
            json::encode_task_result(async { queue.get(&id.parse()?).await }.await)
        })
    }

    /// Waits until a task is final, for at most `timeout` seconds.
    fn wait(
        &self,
        event_queue: &PyEventQueue,
        number: u64,
        id: String,
        timeout: Option<f64>,
    ) -> PyResult<Call> {
        self.call(event_queue, number, move |queue| async move {
            let timeout = timeout.map(|secs| seconds("timeout", secs)).transpose();
            json::encode_task_result(async { queue.wait(&id.parse()?, timeout?).await }.await)
        })
    }

    fn cancel(&self, event_queue: &PyEventQueue, number: u64, id: String) -> PyResult<Call> {
        self.call(event_queue, number, move |queue| async move {
            json::encode_task_result(
                async {
                    let id: TaskId = id.parse()?;
                    operation_result(&id, "be cancelled", queue.cancel(&id).await?)
                }
                .await,
            )
        })
    }

    fn retry(&self, event_queue: &PyEventQueue, number: u64, id: String) -> PyResult<Call> {
        self.call(event_queue, number, move |queue| async move {
            json::encode_task_result(
                async {
                    let id: TaskId = id.parse()?;
                    operation_result(&id, "be retried", queue.retry(&id).await?)
                }
                .await,
            )
        })
    }

    fn reschedule(&self, event_queue: &PyEventQueue, number: u64, id: String, at: String) -> PyResult<Call> {
        self.call(event_queue, number, move |queue| async move {
            json::encode_task_result(
                async {
                    let (id, at): (TaskId, StoreTime) = (id.parse()?, at.parse()?);
                    operation_result(&id, "be rescheduled", queue.reschedule(&id, at).await?)
                }
                .await,
            )
        })
    }

    /// Lists the tasks that match a filter, given as JSON.
    fn listing(&self, which: &str) -> PyResult<Listing> {
        let which: ListQuery = serde_json::from_str(which)
            .map_err(|error| exception(&Error::invalid(format!("invalid filter: {error}"))))?;
        let filter = which.filter().map_err(|error| exception(&error))?;
        let queue = self.opened()?;
        Listing::start(&self.runtime()?, queue, filter)
    }

    fn purge(
        &self,
        event_queue: &PyEventQueue,
        number: u64,
        statuses: Vec<String>,
        older_than: f64,
    ) -> PyResult<Call> {
        self.call(event_queue, number, move |queue| async move {
            encode(async { queue.purge_all(&retention(&statuses, older_than)?).await }.await)
        })
    }

    fn check(&self, event_queue: &PyEventQueue, number: u64, repair: bool) -> PyResult<Call> {
        self.call(event_queue, number, move |queue| async move { encode(queue.check(repair).await) })
    }

    fn stats(&self, event_queue: &PyEventQueue, number: u64) -> PyResult<Call> {
        self.call(event_queue, number, move |queue| async move { encode(queue.stats().await) })
    }

    /// Publishes a file as an artifact; the answer describes it.
    fn publish(
        &self,
        event_queue: &PyEventQueue,
        number: u64,
        path: PathBuf,
        name: Option<String>,
        media_type: Option<String>,
    ) -> PyResult<Call> {
        let artifacts = self.artifacts()?;
        self.call(event_queue, number, move |_| async move {
            encode(
                async {
                    let defaults = artifacts.publish_options().clone();
                    let options = PublishOptions { name, media_type, ..defaults };
                    artifacts.publish(&path, &options).await.map(|published| describe_artifact(&published))
                }
                .await,
            )
        })
    }

    /// Downloads an artifact to this path.
    fn fetch(
        &self,
        event_queue: &PyEventQueue,
        number: u64,
        artifact: String,
        to: PathBuf,
    ) -> PyResult<Call> {
        let artifacts = self.artifacts()?;
        self.call(event_queue, number, move |queue| async move {
            encode(
                async {
                    let (cached, _) = artifacts.fetch(&artifact.parse()?, &|_| ()).await?;
                    queue.host().blocking(move || cached.copy_to(&to)).await
                }
                .await,
            )
        })
    }

    /// Moves the simulated time of a test queue forward.
    fn advance(&self, event_queue: &PyEventQueue, number: u64, secs: f64) -> PyResult<Call> {
        let runtime = self.runtime()?;
        if !runtime.is_for_tests() {
            return Err(exception(&Error::invalid("only a test queue can advance time")));
        }
        let duration = seconds("time", secs).map_err(|error| exception(&error))?;
        self.call(event_queue, number, move |_| async move {
            let pause = runtime.pause_clock();
            leasehold::testing::advance(duration).await;
            drop(pause);
            encode(Ok(Value::Null))
        })
    }

    /// Panics, immediately or on the runtime. For the package's own tests, only on a test queue.
    fn panic(&self, event_queue: &PyEventQueue, number: u64, at_once: bool) -> PyResult<Call> {
        if !self.runtime()?.is_for_tests() {
            return Err(exception(&Error::invalid("only a test queue can panic on request")));
        }
        assert!(!at_once, "panicked on purpose");
        self.call(event_queue, number, |_| async { panic!("panicked on purpose") })
    }

    /// Returns the request counts so far, as JSON.
    fn ledger(&self) -> PyResult<String> {
        let snapshot = self.opened()?.client().map(|client| client.ledger().snapshot());
        encode(snapshot).map_err(crate::json::Failure::new_err)
    }

    /// Returns the lower bound of the store's current time.
    fn now(&self) -> PyResult<String> {
        let (runtime, queue) = (self.runtime()?, self.opened()?);
        let now = runtime.with_clock(|| queue.now()).map_err(|error| exception(&error))?;
        Ok(now.earliest.to_string())
    }

    /// Starts a worker with these handlers, which runs until it is stopped; the answer arrives when it has ended.
    fn work(
        &self,
        event_queue: &PyEventQueue,
        number: u64,
        overrides: BTreeMap<String, String>,
        task_types: Vec<String>,
        drain: bool,
    ) -> PyResult<Worker> {
        let (runtime, queue) = (self.runtime()?, self.opened()?);
        let frontend = self.frontend(&overrides)?;
        Worker::start(&WorkerSpec {
            runtime: &runtime,
            queue: &queue,
            frontend: &frontend,
            events: &event_queue.events,
            number,
            task_types: &task_types,
            until_empty: drain,
        })
    }

    /// Closes the queue: in the journal layout its broker shuts down: it commits what it decided and releases its
    /// lease. The last one ends the runtime's threads and waits for them.
    fn close(&self, py: Python<'_>) {
        let runtime = self.slot().take();
        if let (Some(runtime), Some(queue)) = (&runtime, self.opened.get()) {
            py.detach(|| runtime.close_queue(queue));
        }
        if let Some(threads) = runtime.and_then(SharedRuntime::close) {
            py.detach(|| threads.end());
        }
    }
}

impl Queue {
    fn open(
        runtime: Arc<SharedRuntime>,
        profile: Option<String>,
        frontend: Frontend,
        event_queue: &PyEventQueue,
        number: u64,
        by: Option<String>,
    ) -> PyResult<(Self, Call)> {
        let opened = Arc::<tokio::sync::OnceCell<_>>::default();
        let (slot, is_for_tests) = (opened.clone(), runtime.is_for_tests());
        let call = runtime.answer(true, (event_queue.events.clone(), number), async move {
            let connected = async {
                // Created here, because the clock of a test belongs to its runtime.
                let client = if is_for_tests { leasehold::testing::client() } else { frontend.client()? };
                frontend.connect(client, by.as_deref().unwrap_or(BY)).await
            };
            let described = connected.await.and_then(|queue| {
                let meta = queue.meta().ok_or_else(|| queue.unsupported("be opened from Python"))?;
                let described = json!({
                    "describe": queue.describe(),
                    "id": meta.queue_id.as_str(),
                    "shard_prefix_len": meta.shard_prefix_len.digits(),
                });
                // Set only here.
                let _ = slot.set(queue);
                Ok(described)
            });
            encode(described)
        })?;
        Ok((Self { runtime: Mutex::new(Some(runtime)), profile, opened }, call))
    }

    fn call<R>(
        &self,
        event_queue: &PyEventQueue,
        number: u64,
        work: impl FnOnce(leasehold_queue::Queue) -> R,
    ) -> PyResult<Call>
    where
        R: Future<Output = JsonAnswer> + Send + 'static,
    {
        let (runtime, work) = (self.runtime()?, work(self.opened()?));
        runtime.answer(true, (event_queue.events.clone(), number), work)
    }

    /// Loads the current settings; `overrides` take precedence over files and variables.
    fn frontend(&self, overrides: &BTreeMap<String, String>) -> PyResult<Frontend> {
        let frontend = if self.runtime()?.is_for_tests() {
            Frontend::from_overrides(pairs(overrides))
        } else {
            Frontend::load(self.profile.as_deref(), pairs(overrides))
        };
        frontend.map_err(|error| exception(&error))
    }

    fn artifacts(&self) -> PyResult<ArtifactStore> {
        let frontend = self.frontend(&BTreeMap::new())?;
        let artifacts = self.opened()?.client().and_then(|client| frontend.artifacts(client));
        artifacts.map_err(|error| exception(&error))
    }

    fn runtime(&self) -> PyResult<Arc<SharedRuntime>> {
        let runtime = self.slot().clone().ok_or_else(|| exception(&Error::invalid("the queue is closed")))?;
        runtime.check().map_err(|error| exception(&error))?;
        Ok(runtime)
    }

    fn opened(&self) -> PyResult<leasehold_queue::Queue> {
        self.runtime()?;
        self.opened.get().cloned().ok_or_else(|| exception(&Error::invalid("the queue is not open")))
    }

    fn slot(&self) -> std::sync::MutexGuard<'_, Option<Arc<SharedRuntime>>> {
        self.runtime.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn pairs(overrides: &BTreeMap<String, String>) -> impl Iterator<Item = (&str, String)> {
    overrides.iter().map(|(name, value)| (name.as_str(), value.clone()))
}

fn parse_task_line(line: &str) -> Result<TaskLine> {
    serde_json::from_str(line).map_err(|error| Error::invalid(format!("invalid task: {error}")))
}

fn describe_artifact(published: &Published) -> Value {
    let manifest = &published.manifest;
    json!({
        "id": manifest.artifact,
        "size": manifest.cut.size(),
        "name": manifest.name,
        "media_type": manifest.media_type,
        "was_there": published.was_there,
    })
}

fn submitted_json(submitted: &Submitted) -> Value {
    let Submitted { id, is_new, existing, is_retried } = submitted;
    json!({"id": id, "is_new": is_new, "existing": existing, "is_retried": is_retried})
}

async fn submit_many(queue: &leasehold_queue::Queue, tasks: &[String]) -> Result<Vec<Value>> {
    // If any task is invalid, nothing is submitted.
    let submits: Result<Vec<_>> = tasks
        .iter()
        .enumerate()
        .map(|(number, line)| {
            let submit = parse_task_line(line).and_then(|task| task.submit(queue));
            submit.map_err(|error| Error::invalid(format!("tasks[{number}]: {error}")))
        })
        .collect();
    let results: Vec<_> = queue.submit_many(submits?).collect().await;
    let answers = results.into_iter().map(|result| match result {
        Ok(submitted) => submitted_json(&submitted),
        Err(error) => json!({"error": json::describe_error(&error)}),
    });
    Ok(answers.collect())
}

fn operation_result(id: &TaskId, what: &str, operated: Transition<Task>) -> Result<Task> {
    let refused =
        |why: String| Error::invalid(format!("task {id} cannot {what}: {why}")).with_reason(Reason::Conflict);
    match operated {
        Transition::Rejected(why, _) => Err(refused(why.to_string())),
        operated => operated.done().ok_or_else(|| refused("it has changed".to_owned())),
    }
}

fn retention(statuses: &[String], older_than: f64) -> Result<Retention> {
    let statuses: Result<Vec<_>> = statuses.iter().map(|status| Status::parse(status)).collect();
    let statuses = statuses?;
    if let Some(status) = statuses.iter().find(|status| !status.is_final()) {
        return Err(Error::invalid(format!("cannot purge {status} tasks: the status must be final")));
    }
    Ok(Retention { statuses, older_than: seconds("age", older_than)? })
}

pub(crate) fn seconds(what: &str, secs: f64) -> Result<Duration> {
    Duration::try_from_secs_f64(secs).map_err(|_| {
        let most = u64::MAX;
        Error::invalid(format!("{what} must be a number of seconds from 0 to {most}, got {secs:?}"))
    })
}
