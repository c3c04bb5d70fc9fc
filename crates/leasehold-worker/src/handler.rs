//! What runs a task, and what it is given.

use futures::future::BoxFuture;
use leasehold_core::{ArtifactId, Error, Name, Result, Task, TaskType};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::hold::Hold;
use crate::staging::Files;

/// Why a handler did not finish a task.
#[derive(Debug, Clone, PartialEq)]
pub enum TaskError {
    /// It failed; another attempt may help.
    Retry(String),
    /// The same, and the next attempt begins after this pause rather than after that of the task's retry policy.
    RetryAfter(String, Duration),
    /// It failed for good: no attempt will help.
    Permanent(String),
    /// It failed, and the handler allows no more than this many attempts, whatever the task says. The task keeps the
    /// smaller number.
    Exhausted(String, u32),
    /// Not now: run it again after this pause. Does not count as an attempt.
    Snooze(Duration),
}

impl<E: std::error::Error> From<E> for TaskError {
    /// Any error is worth another attempt, unless the handler says otherwise.
    fn from(error: E) -> Self {
        TaskError::Retry(error.to_string())
    }
}

/// What a handler knows about the run it is in.
#[derive(Clone)]
pub struct Context {
    task: Arc<Task>,
    hold: Arc<Hold>,
    files: Arc<Files>,
}

impl Context {
    pub(crate) fn new(task: Task, hold: Arc<Hold>, files: Arc<Files>) -> Self {
        Self { task: Arc::new(task), hold, files }
    }

    /// The task as it was claimed.
    #[must_use]
    pub fn task(&self) -> &Task {
        &self.task
    }

    /// Which attempt this is, from 1.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.task.attempt
    }

    /// The fencing token: grows with every claim of this task. Pass it to whatever the handler changes, and let that
    /// refuse smaller ones, and a run that was overtaken can do no harm.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.task.epoch
    }

    /// Says how far the handler is; written down with the next renewal.
    pub fn progress(&self, progress: impl Into<Value>) {
        self.hold.set_progress(progress.into());
    }

    /// Whether the handler should stop: the task was cancelled, or is not ours any more, or the worker stops.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.hold.stopped().is_some()
    }

    /// Waits until the handler should stop.
    pub async fn cancelled(&self) {
        self.hold.until_stopped().await;
    }

    /// Where the artifact lies that the task was given under this name. It is only to be read.
    #[must_use]
    pub fn artifact(&self, name: &str) -> Option<&Path> {
        self.files.path(name)
    }

    /// Where all artifacts lie that the task was given.
    #[must_use]
    pub fn artifacts(&self) -> BTreeMap<Name, PathBuf> {
        self.files.paths()
    }

    /// Brings another artifact here. It stays as long as this run.
    pub async fn fetch(&self, artifact: &ArtifactId) -> Result<PathBuf> {
        self.files.fetch(artifact).await
    }

    /// Gives a file as a result: it is published when the handler has ended well, before the task is completed.
    pub fn publish(&self, name: &str, path: impl Into<PathBuf>) -> Result<()> {
        self.files.give(name, path.into())
    }

    /// Keeps something until the results are published, such as the directory that they lie in.
    pub fn keep(&self, what: impl Any + Send) {
        self.files.keep(Box::new(what));
    }

    /// Renews the claim soon, without waiting for the usual time.
    pub fn extend(&self) {
        self.hold.hurry();
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("task", &self.task.id).finish_non_exhaustive()
    }
}

/// A handler without types: JSON in, JSON out.
pub(crate) type Run =
    Arc<dyn Fn(Context, Value) -> BoxFuture<'static, Result<Value, TaskError>> + Send + Sync>;

/// What runs the tasks of one type.
#[derive(Clone)]
pub(crate) struct Handler {
    pub(crate) run: Run,
    /// What it has begun goes on when its future is dropped: it is told to stop, and waited for.
    pub(crate) is_awaited: bool,
}

/// The handlers of a worker, by task type.
#[derive(Clone, Default)]
pub(crate) struct Handlers {
    by_type: BTreeMap<TaskType, Handler>,
    /// Runs whatever has no handler of its own.
    any: Option<Handler>,
}

impl Handlers {
    pub(crate) fn add(&mut self, task_type: &str, handler: Handler) -> Result<()> {
        if task_type == "*" {
            self.any = Some(handler);
            return Ok(());
        }
        let name = Name::checked("task type", task_type)?;
        match self.by_type.insert(name, handler) {
            Some(_) => Err(Error::invalid(format!("task type `{task_type}` has two handlers"))),
            None => Ok(()),
        }
    }

    pub(crate) fn get(&self, task_type: &TaskType) -> Option<&Handler> {
        self.by_type.get(task_type).or(self.any.as_ref())
    }

    pub(crate) fn types(&self) -> Option<Vec<TaskType>> {
        self.any.is_none().then(|| self.by_type.keys().cloned().collect())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_type.is_empty() && self.any.is_none()
    }
}

/// Makes a handler of an async function over serde types. An input that does not fit its type fails for good.
pub(crate) fn typed<I, O, F, R>(run: F) -> Run
where
    I: DeserializeOwned + Send + 'static,
    O: Serialize + Send + 'static,
    F: Fn(Context, I) -> R + Send + Sync + 'static,
    R: Future<Output = Result<O, TaskError>> + Send + 'static,
{
    let run = Arc::new(run);
    Arc::new(move |context, input| {
        let run = run.clone();
        Box::pin(async move {
            let input = serde_json::from_value(input).map_err(|error| {
                TaskError::Permanent(format!("the input does not fit the handler: {error}"))
            })?;
            let output = run(context, input).await?;
            serde_json::to_value(output).map_err(|error| {
                TaskError::Permanent(format!("the output cannot be written as JSON: {error}"))
            })
        })
    })
}
