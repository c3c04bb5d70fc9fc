//! Who runs tasks, wherever they come from: the handlers of a worker, and what they need.

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
use crate::hold::{Hold, Stop};
use crate::options::WorkerOptions;
use crate::run::{Counters, Counts};
use crate::shutdown::Shutdown;
use crate::staging::{Carrier, Outcome, Whole};

/// Where a worker has its tasks from, if not from a bucket.
pub trait Provider: fmt::Debug + Send + Sync + 'static {
    /// Lets this crew work until told to stop, or until nothing is left if it wants that
    /// ([`WorkerOptions::until_empty`]). When this returns, everything that was under way has ended or was given back.
    fn work(self: Arc<Self>, crew: Crew, shutdown: Shutdown) -> BoxFuture<'static, Result<Counts>>;
}

/// The handlers of a worker, and what they need. Clones are the same crew.
#[derive(Clone)]
pub struct Crew {
    pub(crate) id: WorkerId,
    pub(crate) handlers: Handlers,
    pub(crate) carrier: Option<Arc<dyn Carrier>>,
    pub(crate) options: WorkerOptions,
    pub(crate) counts: Arc<Counters>,
    pub(crate) host: Arc<dyn Host>,
}

/// The present, from which a task that is snoozed waits.
pub type Present<'a> = &'a (dyn Fn() -> Result<StoreTime> + Send + Sync);

impl Crew {
    pub(crate) fn new(id: WorkerId, host: Arc<dyn Host>) -> Self {
        let (handlers, options) = (Handlers::default(), WorkerOptions::default());
        Self { id, handlers, carrier: None, options, counts: Arc::default(), host }
    }

    /// The worker's name.
    #[must_use]
    pub fn id(&self) -> &WorkerId {
        &self.id
    }

    /// How it behaves.
    #[must_use]
    pub fn options(&self) -> &WorkerOptions {
        &self.options
    }

    /// The machine it works on.
    #[must_use]
    pub fn host(&self) -> &Arc<dyn Host> {
        &self.host
    }

    /// Whether it has a handler for tasks of this type.
    #[must_use]
    pub fn handles(&self, task_type: &TaskType) -> bool {
        self.handlers.get(task_type).is_some()
    }

    /// The types of the tasks that it has handlers for; nothing if it has one for all.
    #[must_use]
    pub fn types(&self) -> Option<Vec<TaskType>> {
        self.handlers.types()
    }

    /// What it has done so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts.read()
    }

    /// Runs the handler of a claimed task until it ends or has to stop. Gives how it ended, which is to be written down, or
    /// nothing if nothing is to be written any more. When this returns, the handler has stopped, or its claim is to be left
    /// to run out.
    pub async fn run(&self, task: Task, hold: &Arc<Hold>, now: Present<'_>) -> Option<Settlement> {
        tracing::info!("task started");
        self.counts.started.fetch_add(1, Relaxed);
        let _running = self.counts.run();
        self.run_handler(task, hold, now).await
    }

    /// The span of one run: all that happens to a task while it is ours happens in it, what its handler does too. Events
    /// inside do not repeat its fields. It has the highest level, so that it is there for every event that is logged.
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

    /// Counts and logs a run that has ended, by the task as it was written down; a claim that was lost has none.
    pub fn count(&self, settled: Option<&Task>) {
        let counter = match settled.map(|task| (task, task.status())) {
            None => {
                tracing::info!("task lost");
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
                // Releases and snoozes leave other events.
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

    async fn run_handler(&self, task: Task, hold: &Arc<Hold>, now: Present<'_>) -> Option<Settlement> {
        let Some(Handler { run, is_awaited }) = self.handlers.get(&task.task_type).cloned() else {
            return Some(Settlement::Release);
        };
        let timeout = task.timeout_secs;
        let (tell, told) = oneshot::channel::<Outcome>();
        let whole = Whole::new(self.carrier.clone(), run, task, hold.clone());
        let (limit, is_publishing) = (whole.too_long(self.host.clone()), whole.is_publishing());
        let work = async move {
            // Nobody listens any more if the run was given up.
            let _ = tell.send(whole.run().await);
        };
        let mut running = self.host.spawn(Box::pin(work.in_current_span()));
        let interrupted = select(Box::pin(hold.until_stopped()), limit);
        let (why, outcome) = match select(&mut running, interrupted).await {
            Either::Left((end, _)) => match hold.stopped() {
                None => return ended(end, told.await.ok(), now),
                // It was told to stop, and has heard of it before us.
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
            // It has come to its end all the same.
            (Stop::Shutdown, Some(Ok((output, results)))) => Some(Settlement::Complete { output, results }),
            (Stop::Shutdown, _) => Some(Settlement::Release),
            (Stop::TimedOut, _) => {
                Some(retry(format!("did not finish within {} s", timeout.unwrap_or_default())))
            }
        }
    }

    /// Waits for a handler that was told to stop; nothing if it does not. Then nothing may be written either: the claim
    /// is renewed no more, and runs out.
    async fn stopped_by_itself(&self, running: &mut Running) -> Option<()> {
        let late = self.host.sleep(self.options.stop_wait);
        if let Either::Left(_) = select(running, late).await {
            return Some(());
        }
        tracing::warn!("handler does not stop, its claim is left to expire");
        None
    }
}

impl fmt::Debug for Crew {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Crew").field("id", &self.id).finish_non_exhaustive()
    }
}

/// The first line of the error; the task's history has all of it.
fn first_line(task: &Task) -> &str {
    task.error.as_deref().and_then(|error| error.lines().next()).unwrap_or_default()
}

fn ended(end: End, outcome: Option<Outcome>, now: Present<'_>) -> Option<Settlement> {
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
