//! Worker whose handlers run in Python.
//!
//! A handler here is a future that puts a [`HandlerRun`] into the event queue and waits for Python to finish it.
//! To cancel a run it sends another event, and still waits for the run to end: a Python thread cannot be dropped.

use futures::future::{Either, select};
use leasehold_cli::frontend::{Frontend, RunDirectory};
use leasehold_core::{Error, Kind, Result};
use leasehold_worker::{Context, Shutdown, TaskError, WorkerOptions, WorkerView};
use pyo3::prelude::*;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;

use crate::event_queue::{EventQueue, LoopEvent};
use crate::json::{self, encode, exception};
use crate::log;
use crate::queue::seconds;
use crate::runtime::SharedRuntime;

/// Result of a run, as reported by Python.
enum RunResult {
    /// Completed with this output, as JSON.
    Done(String),
    /// Failed with an exception, which Python has logged.
    Raised(TaskError),
    /// Snoozed: to be run again later.
    Snoozed(TaskError),
}

/// Parts of a worker.
pub(crate) struct WorkerSpec<'a> {
    pub(crate) runtime: &'a Arc<SharedRuntime>,
    pub(crate) queue: &'a leasehold_queue::Queue,
    pub(crate) frontend: &'a Frontend,
    pub(crate) events: &'a Arc<EventQueue>,
    /// Number of the call that starts it, which identifies its runs and its end.
    pub(crate) number: u64,
    pub(crate) task_types: &'a [String],
    pub(crate) until_empty: bool,
}

/// A running worker.
#[pyclass(frozen)]
pub(crate) struct Worker {
    #[pyo3(get)]
    name: String,
    shutdown: Shutdown,
    view: WorkerView,
}

impl Worker {
    pub(crate) fn start(spec: &WorkerSpec<'_>) -> PyResult<Self> {
        let (name, worker) = build(spec).map_err(|error| exception(&error))?;
        let (number, events) = (spec.number, spec.events.clone());
        let (shutdown, view) = (Shutdown::default(), worker.view());
        events.abort_on_close(shutdown.clone());
        let stop = shutdown.clone();
        // A draining worker counts as waiting, which lets simulated time pass; one that runs until stopped does not.
        spec.runtime.answer(
            spec.until_empty,
            (events, number),
            async move { encode(worker.run(stop).await) },
        )?;
        Ok(Self { name, shutdown, view })
    }
}

#[pymethods]
impl Worker {
    /// Stops claiming tasks and lets handlers finish.
    fn drain(&self) {
        self.shutdown.drain();
    }

    /// Cancels handlers and releases their tasks.
    fn abort(&self) {
        self.shutdown.abort();
    }

    /// Returns the counts so far, as JSON.
    fn counts(&self) -> PyResult<String> {
        encode(Ok(self.view.counts())).map_err(json::Failure::new_err)
    }

    /// Returns the shard ranges that the worker serves now.
    fn shards(&self) -> Vec<(String, String)> {
        let ends = |range: leasehold_core::ShardRange| {
            (range.first.as_str().to_owned(), range.last.as_str().to_owned())
        };
        self.view.shards().into_iter().map(ends).collect()
    }
}

fn build(spec: &WorkerSpec<'_>) -> Result<(String, leasehold_worker::Worker)> {
    let (name, mut worker, options) = spec.frontend.worker(spec.queue)?;
    let (number, until_empty) = (spec.number, spec.until_empty);
    let runs = Arc::new(AtomicU64::new(0));
    for (handler, task_type) in spec.task_types.iter().enumerate() {
        let (runtime, events, runs) = (Arc::downgrade(spec.runtime), spec.events.clone(), runs.clone());
        worker = worker.handle_awaited(task_type, move |context, _input: Value| {
            let pause = runtime.upgrade().and_then(|runtime| runtime.pause_clock());
            let run = runs.fetch_add(1, Relaxed);
            let running = run_in_python(events.clone(), context, (number, run, handler));
            async move {
                let ended = running.await;
                drop(pause);
                ended
            }
        })?;
    }
    Ok((name, worker.options(WorkerOptions { until_empty, ..options })))
}

async fn run_in_python(
    events: Arc<EventQueue>,
    context: Context,
    (worker, number, handler): (u64, u64, usize),
) -> Result<Value, TaskError> {
    let (sender, receiver) = oneshot::channel();
    let run =
        HandlerRun { worker, number, handler, context: context.clone(), sender: Mutex::new(Some(sender)) };
    events.put(LoopEvent::Run(run));
    let result = match select(receiver, Box::pin(context.cancelled())).await {
        Either::Left((result, _)) => result,
        Either::Right(((), receiver)) => {
            events.put(LoopEvent::Stop { worker, run: number });
            receiver.await
        }
    };
    match result {
        Ok(RunResult::Done(output)) => serde_json::from_str(&output)
            .map_err(|error| TaskError::Permanent(format!("the output cannot be written as JSON: {error}"))),
        Ok(RunResult::Raised(error)) => {
            log::mark_failure_as_logged();
            Err(error)
        }
        Ok(RunResult::Snoozed(error)) => Err(error),
        // Dropped without a result: the event loop is gone. Does not count as an attempt.
        Err(_) => Err(TaskError::Snooze(Duration::ZERO)),
    }
}

/// One run of a handler.
#[pyclass(frozen, name = "Run")]
pub(crate) struct HandlerRun {
    /// Number of the call that started the worker.
    #[pyo3(get)]
    worker: u64,
    /// Number of this run among those of its worker.
    #[pyo3(get)]
    number: u64,
    /// Index of the handler.
    #[pyo3(get)]
    handler: usize,
    context: Context,
    sender: Mutex<Option<oneshot::Sender<RunResult>>>,
}

#[pymethods]
impl HandlerRun {
    /// Returns the task as it was claimed, as JSON.
    fn task(&self) -> String {
        json::encode_task(self.context.task())
    }

    /// Returns the input, as JSON.
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

    /// Returns true if the handler should stop.
    fn is_cancelled(&self) -> bool {
        self.context.is_cancelled()
    }

    /// Reports progress, as JSON; it is written with the next renewal.
    fn progress(&self, progress: &str) -> PyResult<()> {
        let progress: Value = serde_json::from_str(progress)
            .map_err(|error| exception(&Error::invalid(format!("the progress is not JSON: {error}"))))?;
        self.context.progress(progress);
        Ok(())
    }

    /// Returns the task's input files: paths by name.
    fn artifacts(&self) -> BTreeMap<String, PathBuf> {
        let named = |(name, path): (leasehold_core::Name, PathBuf)| (name.to_string(), path);
        self.context.artifacts().into_iter().map(named).collect()
    }

    /// Creates a directory, which is removed when the run has ended and its results are published.
    fn directory(&self) -> PyResult<PathBuf> {
        let directory = RunDirectory::new();
        let failed = |error: std::io::Error| {
            Error::new(Kind::Unavailable, format!("failed to create a directory for the run: {error}"))
                .because(error)
        };
        let directory = directory.map_err(|error| exception(&failed(error)))?;
        let path = directory.path().to_owned();
        self.context.keep(directory);
        Ok(path)
    }

    /// Adds a file to the results.
    fn publish(&self, name: &str, path: PathBuf) -> PyResult<()> {
        self.context.publish(name, path).map_err(|error| exception(&error))
    }

    /// Renews the claim soon.
    fn extend(&self) {
        self.context.extend();
    }

    /// Completes the run with this output, as JSON.
    fn complete(&self, output: String) {
        self.end(RunResult::Done(output));
    }

    /// Fails the attempt, which Python has logged. The task is retried after `after` seconds, or by its retry policy.
    fn fail(&self, error: String, after: Option<f64>) {
        let error = match after.map(|secs| seconds("after", secs)).transpose() {
            Ok(None) => TaskError::Retry(error),
            Ok(Some(pause)) => TaskError::RetryAfter(error, pause),
            Err(wrong) => TaskError::Permanent(wrong.to_string()),
        };
        self.end(RunResult::Raised(error));
    }

    /// Fails the task without further attempts. Python has logged the error.
    fn fail_permanently(&self, error: String) {
        self.end(RunResult::Raised(TaskError::Permanent(error)));
    }

    /// Fails the attempt, which Python has logged, with this upper limit of attempts.
    fn exhaust(&self, error: String, max_attempts: u32) {
        self.end(RunResult::Raised(TaskError::Exhausted(error, max_attempts)));
    }

    /// Snoozes the task for `secs` seconds.
    fn snooze(&self, secs: f64) {
        let wrong = |error: Error| TaskError::Permanent(error.to_string());
        self.end(RunResult::Snoozed(seconds("snooze", secs).map_or_else(wrong, TaskError::Snooze)));
    }

    /// Releases the task of a cancelled handler; does not count as an attempt.
    fn release(&self) {
        self.end(RunResult::Snoozed(TaskError::Snooze(Duration::ZERO)));
    }
}

impl HandlerRun {
    fn end(&self, result: RunResult) {
        let sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(sender) = sender {
            // The send fails if the run was abandoned.
            let _ = sender.send(result);
        }
    }
}
