//! Running handlers, whatever the source of the tasks.

use futures::future::{BoxFuture, Either, select};
use leasehold_core::{Result, Status, StoreTime, Task, TaskType, WorkerId};
use leasehold_queue::Settlement;
use leasehold_store::Host;
use leasehold_store::host::{End, Running};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use tokio::sync::oneshot;
use tracing::Instrument;

use crate::handler::{Handler, Handlers, TaskError};
use crate::options::WorkerOptions;
use crate::run::{Counters, Counts};
use crate::run_handle::{RunHandle, Stop};
use crate::shutdown::Shutdown;
use crate::staging::{ArtifactIo, RunOutcome, StagedRun};

/// Source of tasks other than a bucket, such as an outpost.
pub trait TaskSource: fmt::Debug + Send + Sync + 'static {
    /// Runs tasks with this runner until shutdown, or until nothing is left if [`WorkerOptions::until_empty`] is
    /// set. When this returns, every running task has ended or was released.
    fn work(self: Arc<Self>, runner: TaskRunner, shutdown: Shutdown) -> BoxFuture<'static, Result<Counts>>;
}

/// Handlers of a worker, with everything they need. Clones share their state.
#[derive(Clone)]
pub struct TaskRunner {
    pub(crate) id: WorkerId,
    pub(crate) handlers: Handlers,
    pub(crate) carrier: Option<Arc<dyn ArtifactIo>>,
    pub(crate) options: WorkerOptions,
    pub(crate) counts: Arc<Counters>,
    pub(crate) host: Arc<dyn Host>,
}

/// Current time, from which the pause of a snoozed task counts.
pub type NowFn<'a> = &'a (dyn Fn() -> Result<StoreTime> + Send + Sync);

impl TaskRunner {
    pub(crate) fn new(id: WorkerId, host: Arc<dyn Host>) -> Self {
        let (handlers, options) = (Handlers::default(), WorkerOptions::default());
        Self { id, handlers, carrier: None, options, counts: Arc::default(), host }
    }

    /// Worker id.
    #[must_use]
    pub fn id(&self) -> &WorkerId {
        &self.id
    }

    /// Options of the worker.
    #[must_use]
    pub fn options(&self) -> &WorkerOptions {
        &self.options
    }

    /// Host that it runs on.
    #[must_use]
    pub fn host(&self) -> &Arc<dyn Host> {
        &self.host
    }

    /// True if it has a handler for tasks of this type.
    #[must_use]
    pub fn handles(&self, task_type: &TaskType) -> bool {
        self.handlers.get(task_type).is_some()
    }

    /// Task types that it has handlers for; none if it has one for all.
    #[must_use]
    pub fn types(&self) -> Option<Vec<TaskType>> {
        self.handlers.types()
    }

    /// Counts so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts.read()
    }

    /// Runs the handler of a claimed task until it ends or has to stop. Returns the result to record, or none if
    /// nothing may be written. When this returns, the handler has stopped, or its claim is left to expire.
    pub async fn run(&self, task: Task, hold: &Arc<RunHandle>, now: NowFn<'_>) -> Option<Settlement> {
        tracing::info!("task started");
        self.counts.started.fetch_add(1, Relaxed);
        let _running = self.counts.run();
        self.run_handler(task, hold, now).await
    }

    /// Span of one run, including everything that its handler does. Events inside do not repeat its fields. It has
    /// the highest level, so that it exists for every event that is logged.
    #[must_use]
    pub fn span(&self, task: &Task) -> tracing::Span {
        tracing::error_span!(
            "task",
            "task.id" = %task.id,
            "task.type" = %task.task_type,
            attempt = task.attempt,
            shard = %task.shard,
            epoch = task.epoch,
            worker = %self.id,
        )
    }

    /// Counts and logs a run that has ended, by the recorded task; none if the claim was lost.
    pub fn count(&self, settled: Option<&Task>) {
        let counter = match settled.map(|task| (task, task.status())) {
            None => {
                tracing::info!("task claim lost");
                &self.counts.lost
            }
            Some((_, Status::Completed)) => {
                tracing::info!("task completed");
                &self.counts.completed
            }
            Some((task, Status::Failed)) => {
                tracing::warn!(error = first_line(task), "task failed");
                &self.counts.failed
            }
            Some((_, Status::Cancelled)) => {
                tracing::info!("task cancelled");
                &self.counts.cancelled
            }
            Some((task, _)) => {
                // Releases and snoozes record other events.
                if task.history.events().next_back().is_some_and(|change| change.event == "fail") {
                    tracing::warn!(error = first_line(task), "attempt failed, task will be retried");
                } else {
                    tracing::info!("task released");
                }
                &self.counts.put_back
            }
        };
        counter.fetch_add(1, Relaxed);
    }

    async fn run_handler(&self, task: Task, hold: &Arc<RunHandle>, now: NowFn<'_>) -> Option<Settlement> {
        let Some(Handler { run, is_awaited }) = self.handlers.get(&task.task_type).cloned() else {
            return Some(Settlement::Release);
        };
        let timeout = task.timeout_secs;
        let (tell, told) = oneshot::channel::<RunOutcome>();
        let whole = StagedRun::new(self.carrier.clone(), run, task, hold.clone());
        let (limit, is_publishing) = (whole.too_long(self.host.clone()), whole.is_publishing());
        let work = async move {
            // The receiver is dropped if the run was abandoned.
            let _ = tell.send(whole.run().await);
        };
        let mut running = self.host.spawn(Box::pin(work.in_current_span()));
        let interrupted = select(Box::pin(hold.until_stopped()), limit);
        let (why, outcome) = match select(&mut running, interrupted).await {
            Either::Left((end, _)) => match hold.stopped() {
                None => return ended(end, told.await.ok(), now),
                // It was asked to stop, and has stopped before this was polled.
                Some(why) => (why, told.await.ok()),
            },
            Either::Right((interrupted, _)) => {
                let why = match interrupted {
                    Either::Left((why, _)) => why,
                    Either::Right(_) => Stop::TimedOut,
                };
                if is_awaited || is_publishing() {
                    hold.stop(why);
                    self.stopped_by_itself(&mut running).await?;
                    (why, told.await.ok())
                } else {
                    running.stop();
                    running.await;
                    (why, None)
                }
            }
        };
        match (why, outcome) {
            (Stop::Lost | Stop::Settled, _) => None,
            (Stop::Cancelled, _) => Some(Settlement::Stop),
            // It has finished all the same.
            (Stop::Shutdown, Some(Ok((output, results)))) => Some(Settlement::Complete { output, results }),
            (Stop::Shutdown, _) => Some(Settlement::Release),
            (Stop::TimedOut, _) => {
                Some(retry(format!("did not finish within {} s", timeout.unwrap_or_default())))
            }
        }
    }

    /// Waits for a handler that was asked to stop; none if it does not. Then nothing may be written: the claim is no
    /// longer renewed, and expires.
    async fn stopped_by_itself(&self, running: &mut Running) -> Option<()> {
        let late = self.host.sleep(self.options.stop_wait);
        if let Either::Left(_) = select(running, late).await {
            return Some(());
        }
        tracing::warn!("handler does not stop, its claim is left to expire");
        None
    }
}

impl fmt::Debug for TaskRunner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskRunner").field("id", &self.id).finish_non_exhaustive()
    }
}

/// The first line of the error; the task's history has all of it.
fn first_line(task: &Task) -> &str {
    task.error.as_deref().and_then(|error| error.lines().next()).unwrap_or_default()
}

fn ended(end: End, outcome: Option<RunOutcome>, now: NowFn<'_>) -> Option<Settlement> {
    Some(match (end, outcome) {
        (_, Some(Ok((output, results)))) => Settlement::Complete { output, results },
        (_, Some(Err(TaskError::Retry(error)))) => retry(error),
        (_, Some(Err(TaskError::RetryAfter(error, pause)))) => {
            Settlement::Fail { error, retryable: true, after: Some(pause) }
        }
        (_, Some(Err(TaskError::Permanent(error)))) => {
            Settlement::Fail { error, retryable: false, after: None }
        }
        (_, Some(Err(TaskError::Exhausted(error, max_attempts)))) => {
            Settlement::Exhaust { error, max_attempts }
        }
        (_, Some(Err(TaskError::Snooze(pause)))) => Settlement::Snooze(now().ok()?.plus(pause)),
        (End::Panicked(words), None) => retry(format!("the handler panicked: {words}")),
        (End::Done | End::Stopped, None) => Settlement::Release,
    })
}

fn retry(error: String) -> Settlement {
    Settlement::Fail { error, retryable: true, after: None }
}
