//! A worker whose handlers run in Python.
//!
//! A handler here is a future that puts a [`Run`] into the mail and waits for Python to finish it. A run that has to
//! stop is told so by another letter, and waited for all the same: a thread of Python's cannot be dropped.

use futures::future::{Either, select};
use leasehold_cli::front::{Front, RunDirectory};
use leasehold_core::{Error, Kind, Result};
use leasehold_worker::{Context, Monitor, Shutdown, TaskError, WorkerOptions};
use pyo3::prelude::*;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;

use crate::home::Home;
use crate::log;
use crate::mailbox::{Letter, Post};
use crate::queue::seconds;
use crate::told::{self, raised, told};

/// How a run has ended, as Python says it.
enum Ended {
    /// With this output, as JSON.
    Done(String),
    /// With an exception, which Python has logged.
    Raised(TaskError),
    /// To be run again later.
    Snoozed(TaskError),
}

/// What a worker is made of.
pub(crate) struct Plan<'a> {
    pub(crate) home: &'a Arc<Home>,
    pub(crate) queue: &'a leasehold_queue::Queue,
    pub(crate) front: &'a Front,
    pub(crate) post: &'a Arc<Post>,
    /// Of the call that starts it: its runs and its end are told under this number.
    pub(crate) number: u64,
    pub(crate) task_types: &'a [String],
    pub(crate) until_empty: bool,
}

/// A worker that runs.
#[pyclass(frozen)]
pub(crate) struct Worker {
    #[pyo3(get)]
    name: String,
    shutdown: Shutdown,
    monitor: Monitor,
}

impl Worker {
    pub(crate) fn start(plan: &Plan<'_>) -> PyResult<Self> {
        let (name, worker) = build(plan).map_err(|error| raised(&error))?;
        let (number, post) = (plan.number, plan.post.clone());
        let (shutdown, monitor) = (Shutdown::default(), worker.monitor());
        post.serves(shutdown.clone());
        let stop = shutdown.clone();
        // Someone waits for a worker that ends by itself; one that goes on for ever does not make time pass.
        plan.home.answer(plan.until_empty, (post, number), async move { told(worker.run(stop).await) })?;
        Ok(Self { name, shutdown, monitor })
    }
}

#[pymethods]
impl Worker {
    /// Claims nothing new, and lets handlers finish.
    fn drain(&self) {
        self.shutdown.drain();
    }

    /// Stops handlers, and gives their tasks back.
    fn abort(&self) {
        self.shutdown.abort();
    }

    /// What it has done so far, as JSON.
    fn counts(&self) -> PyResult<String> {
        told(Ok(self.monitor.counts())).map_err(told::Failure::new_err)
    }

    /// The ranges of shards that it serves at this moment.
    fn shards(&self) -> Vec<(String, String)> {
        let ends = |range: leasehold_core::ShardRange| {
            (range.first.as_str().to_owned(), range.last.as_str().to_owned())
        };
        self.monitor.shards().into_iter().map(ends).collect()
    }
}

fn build(plan: &Plan<'_>) -> Result<(String, leasehold_worker::Worker)> {
    let (name, mut worker, options) = plan.front.worker(plan.queue)?;
    let (number, until_empty) = (plan.number, plan.until_empty);
    let runs = Arc::new(AtomicU64::new(0));
    for (handler, task_type) in plan.task_types.iter().enumerate() {
        let (home, post, runs) = (Arc::downgrade(plan.home), plan.post.clone(), runs.clone());
        worker = worker.handle_awaited(task_type, move |context, _input: Value| {
            let still = home.upgrade().and_then(|home| home.hold_still());
            let run = runs.fetch_add(1, Relaxed);
            let running = run_in_python(post.clone(), context, (number, run, handler));
            async move {
                let ended = running.await;
                drop(still);
                ended
            }
        })?;
    }
    Ok((name, worker.options(WorkerOptions { until_empty, ..options })))
}

async fn run_in_python(
    post: Arc<Post>,
    context: Context,
    (worker, number, handler): (u64, u64, usize),
) -> Result<Value, TaskError> {
    let (tell, told) = oneshot::channel();
    let run = Run { worker, number, handler, context: context.clone(), tell: Mutex::new(Some(tell)) };
    post.put(Letter::Run(run));
    let ended = match select(told, Box::pin(context.cancelled())).await {
        Either::Left((ended, _)) => ended,
        Either::Right(((), told)) => {
            post.put(Letter::Stop { worker, run: number });
            told.await
        }
    };
    match ended {
        Ok(Ended::Done(output)) => serde_json::from_str(&output)
            .map_err(|error| TaskError::Permanent(format!("the output cannot be written as JSON: {error}"))),
        Ok(Ended::Raised(error)) => {
            log::mark_failure_as_logged();
            Err(error)
        }
        Ok(Ended::Snoozed(error)) => Err(error),
        // Dropped without an end: there is no event loop any more. It costs no attempt.
        Err(_) => Err(TaskError::Snooze(Duration::ZERO)),
    }
}

/// One run of a handler.
#[pyclass(frozen)]
pub(crate) struct Run {
    /// The number of the call that started the worker.
    #[pyo3(get)]
    worker: u64,
    /// Of this run, among those of its worker.
    #[pyo3(get)]
    number: u64,
    /// Which of the worker's handlers.
    #[pyo3(get)]
    handler: usize,
    context: Context,
    tell: Mutex<Option<oneshot::Sender<Ended>>>,
}

#[pymethods]
impl Run {
    /// The task as it was claimed, as JSON.
    fn task(&self) -> String {
        told::of_task(self.context.task())
    }

    /// The input, as JSON.
    fn input(&self) -> String {
        self.context.task().input.to_string()
    }

    #[getter]
    fn id(&self) -> String {
        self.context.task().id.to_string()
    }

    #[getter]
    fn attempt(&self) -> u32 {
        self.context.attempt()
    }

    #[getter]
    fn max_attempts(&self) -> u32 {
        self.context.task().max_attempts
    }

    #[getter]
    fn epoch(&self) -> u64 {
        self.context.epoch()
    }

    /// Whether the handler should stop.
    fn is_cancelled(&self) -> bool {
        self.context.is_cancelled()
    }

    /// Says how far the handler is, as JSON; written down with the next renewal.
    fn progress(&self, progress: &str) -> PyResult<()> {
        let progress: Value = serde_json::from_str(progress)
            .map_err(|error| raised(&Error::invalid(format!("the progress is not JSON: {error}"))))?;
        self.context.progress(progress);
        Ok(())
    }

    /// The files that the task was given: names and paths.
    fn artifacts(&self) -> BTreeMap<String, PathBuf> {
        let named = |(name, path): (leasehold_core::Name, PathBuf)| (name.to_string(), path);
        self.context.artifacts().into_iter().map(named).collect()
    }

    /// A fresh directory, which is removed when the run has ended and its results are published.
    fn directory(&self) -> PyResult<PathBuf> {
        let made = RunDirectory::new();
        let failed = |error: std::io::Error| {
            Error::new(Kind::Unavailable, format!("no directory for the run: {error}")).because(error)
        };
        let made = made.map_err(|error| raised(&failed(error)))?;
        let path = made.path().to_owned();
        self.context.keep(made);
        Ok(path)
    }

    /// Gives a file as a result.
    fn publish(&self, name: &str, path: PathBuf) -> PyResult<()> {
        self.context.publish(name, path).map_err(|error| raised(&error))
    }

    /// Renews the claim soon.
    fn extend(&self) {
        self.context.extend();
    }

    /// The handler has given this output, as JSON.
    fn complete(&self, output: String) {
        self.end(Ended::Done(output));
    }

    /// The handler has failed, which Python has logged; another attempt may help, after so many seconds or by the task's retry policy.
    fn fail(&self, error: String, after: Option<f64>) {
        let error = match after.map(|secs| seconds("after", secs)).transpose() {
            Ok(None) => TaskError::Retry(error),
            Ok(Some(pause)) => TaskError::RetryAfter(error, pause),
            Err(wrong) => TaskError::Permanent(wrong.to_string()),
        };
        self.end(Ended::Raised(error));
    }

    /// The handler has failed for good, which Python has logged.
    fn give_up(&self, error: String) {
        self.end(Ended::Raised(TaskError::Permanent(error)));
    }

    /// The handler has failed, which Python has logged, and allows no more attempts than this.
    fn exhaust(&self, error: String, max_attempts: u32) {
        self.end(Ended::Raised(TaskError::Exhausted(error, max_attempts)));
    }

    /// The handler wants to run again after so many seconds.
    fn snooze(&self, secs: f64) {
        let wrong = |error: Error| TaskError::Permanent(error.to_string());
        self.end(Ended::Snoozed(seconds("snooze", secs).map_or_else(wrong, TaskError::Snooze)));
    }

    /// The handler was stopped before its end: the task is as if it had not been run.
    fn hand_back(&self) {
        self.end(Ended::Snoozed(TaskError::Snooze(Duration::ZERO)));
    }
}

impl Run {
    fn end(&self, ended: Ended) {
        let tell = self.tell.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(tell) = tell {
            // Nobody listens if the run was given up.
            let _ = tell.send(ended);
        }
    }
}
