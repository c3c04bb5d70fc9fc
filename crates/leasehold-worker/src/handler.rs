//! Handlers: functions that run tasks, their context and their errors.

use futures::future::BoxFuture;
use leasehold_core::{Error, Name, Result, Task, TaskType};
use leasehold_queue::source::TaskTypes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use crate::run_handle::RunHandle;
use crate::staging::RunFiles;

/// Reason why a handler did not finish a task.
#[derive(Debug, Clone, PartialEq)]
pub enum TaskError {
    /// Failed; another attempt may succeed.
    Retry(String),
    /// Failed; the next attempt begins after this pause instead of that of the task's retry policy.
    RetryAfter(String, Duration),
    /// Failed permanently: no attempt will succeed.
    Permanent(String),
    /// Failed, and the handler allows at most this many attempts, whatever the task allows. The task keeps the
    /// smaller number.
    Exhausted(String, u32),
    /// Make the task pending again after this pause. Does not count as an attempt.
    Snooze(Duration),
}

impl<E: std::error::Error> From<E> for TaskError {
    /// Treats any error as retryable; a handler returns another variant explicitly.
    fn from(error: E) -> Self {
        TaskError::Retry(error.to_string())
    }
}

/// Context of a run, for its handler.
#[derive(Clone)]
pub struct Context {
    pub(crate) task: Arc<Task>,
    pub(crate) run: Arc<RunHandle>,
    pub(crate) files: Arc<RunFiles>,
}

impl Context {
    /// The task as it was claimed.
    #[must_use]
    pub fn task(&self) -> &Task {
        &self.task
    }

    /// Number of this attempt, from 1.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.task.attempt
    }

    /// Fencing token: grows with every claim of this task. Pass it to every system that the handler changes, and let
    /// that reject smaller ones: then a superseded run can do no harm.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.task.epoch
    }

    /// Reports progress, which is recorded with the next renewal.
    pub fn progress(&self, progress: impl Into<Value>) {
        self.run.set_progress(progress.into());
    }

    /// True if the handler should stop: the task was cancelled or has exceeded its timeout, the claim was lost, or the worker
    /// stops.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.run.stop_reason().is_some()
    }

    /// Waits until the handler should stop.
    pub async fn cancelled(&self) {
        self.run.until_stopped().await;
    }

    /// Renews the claim soon, ahead of the usual interval.
    pub fn extend(&self) {
        self.run.request_renewal();
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("task", &self.task.id).finish_non_exhaustive()
    }
}

/// A handler without types: JSON in, JSON out.
pub(crate) type HandlerFn =
    Arc<dyn Fn(Context, Value) -> BoxFuture<'static, Result<Value, TaskError>> + Send + Sync>;

/// The handler of one task type.
#[derive(Clone)]
pub(crate) struct Handler {
    pub(crate) run: HandlerFn,
    /// True if its work continues when its future is dropped: it is asked to stop, and waited for.
    pub(crate) is_awaited: bool,
}

/// The handlers of a worker, by task type.
#[derive(Clone, Default)]
pub(crate) struct Handlers {
    by_type: BTreeMap<TaskType, Handler>,
    /// Handler for all other task types.
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

    pub(crate) fn types(&self) -> TaskTypes {
        match self.any {
            Some(_) => TaskTypes::all(),
            None => self.by_type.keys().cloned().collect(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_type.is_empty() && self.any.is_none()
    }
}

/// Creates a handler from an async function over serde types. An input that does not fit its type fails permanently.
pub(crate) fn typed<I, O, F, R>(run: F) -> HandlerFn
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
