//! Running handlers, whatever the source of the tasks.

use futures::future::{Either, select};
use leasehold_core::task::summary_line;
use leasehold_core::{Status, Task, WorkerId};
use leasehold_queue::Settlement;
use leasehold_store::Host;
use leasehold_store::host::End;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use tokio::sync::oneshot;
use tracing::Instrument;

use crate::handler::{Handler, Handlers, TaskError};
use crate::options::WorkerOptions;
use crate::run_handle::{Phase, RunHandle, Stop};
use crate::staging::{ArtifactAccess, NO_ARTIFACT_IO, RunOutcome, StagedRun, timed_out};
use crate::worker::{Counters, Counts};

/// Handlers of a worker, with everything they need. Clones share their state.
#[derive(Clone)]
pub(crate) struct TaskRunner {
    pub(crate) id: WorkerId,
    pub(crate) handlers: Handlers,
    pub(crate) artifact_io: ArtifactAccess,
    pub(crate) options: WorkerOptions,
    pub(crate) counts: Arc<Counters>,
    pub(crate) host: Arc<dyn Host>,
}

impl TaskRunner {
    pub(crate) fn new(id: WorkerId, host: Arc<dyn Host>) -> Self {
        let (handlers, options) = (Handlers::default(), WorkerOptions::default());
        Self { id, handlers, artifact_io: Err(NO_ARTIFACT_IO), options, counts: Arc::default(), host }
    }

    /// Runs the handler of a claimed task until it ends or has to stop. Returns the result to record, or none if
    /// nothing may be written. When this returns, the handler has stopped, or its claim is left to expire.
    pub(crate) async fn run(&self, task: Arc<Task>, run: &Arc<RunHandle>) -> Option<Settlement> {
        tracing::info!("task started");
        self.counts.add(|counts| &mut counts.started);
        self.counts.running.fetch_add(1, Relaxed);
        let end = self.run_handler(task, run).await;
        self.counts.running.fetch_sub(1, Relaxed);
        end
    }

    /// Span of one run, including everything that its handler does. Events inside do not repeat its fields. It has
    /// the highest level, so that it exists for every event that is logged.
    pub(crate) fn span(&self, task: &Task) -> tracing::Span {
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
    pub(crate) fn count(&self, settled: Option<&Task>) {
        let count: fn(&mut Counts) -> &mut u64 = match settled.map(|task| (task, task.status())) {
            None => {
                tracing::info!("task claim lost");
                |counts| &mut counts.lost
            }
            Some((_, Status::Completed)) => {
                tracing::info!("task completed");
                |counts| &mut counts.completed
            }
            Some((task, Status::Failed)) => {
                tracing::warn!(error = summary(task), "task failed");
                |counts| &mut counts.failed
            }
            Some((_, Status::Cancelled)) => {
                tracing::info!("task cancelled");
                |counts| &mut counts.cancelled
            }
            Some((task, _)) => {
                match task.history.events().next_back().map(|change| change.event.as_str()) {
                    Some("fail") => {
                        tracing::warn!(error = summary(task), "attempt failed, task will be retried");
                    }
                    Some("snooze") => tracing::info!("task snoozed"),
                    _ => tracing::info!("task released"),
                }
                |counts| &mut counts.requeued
            }
        };
        self.counts.add(count);
    }

    async fn run_handler(&self, task: Arc<Task>, run: &Arc<RunHandle>) -> Option<Settlement> {
        let Some(Handler { run: handler, is_awaited }) = self.handlers.get(&task.task_type).cloned() else {
            return Some(Settlement::Release);
        };
        let timeout = task.timeout_secs;
        let (sender, received) = oneshot::channel::<RunOutcome>();
        let (artifact_io, run_handle) = (self.artifact_io.clone(), run.clone());
        let staged = StagedRun { artifact_io, handler, task, run: run_handle };
        let work = async move {
            // The receiver is dropped if the run was abandoned.
            let _ = sender.send(staged.run().await);
        };
        let mut running = self.host.spawn(Box::pin(work.in_current_span()));
        let (stopped, limit) = (pin!(run.until_stopped()), pin!(timed_out(run, timeout, &*self.host)));
        let (reason, outcome) = match select(&mut running, select(stopped, limit)).await {
            Either::Left((end, _)) => match run.stop_reason() {
                None => return Some(ended(end, received.await.ok())),
                // It was asked to stop, and has stopped before this was polled.
                Some(reason) => (reason, received.await.ok()),
            },
            Either::Right((interrupted, _)) => {
                let reason = match interrupted {
                    Either::Left((reason, _)) => reason,
                    Either::Right(_) => Stop::TimedOut,
                };
                if is_awaited || run.phase() == Phase::Publishing {
                    run.stop(reason);
                    let timeout = self.host.sleep(self.options.stop_wait);
                    if let Either::Right(_) = select(&mut running, timeout).await {
                        tracing::warn!("handler does not stop, its claim is left to expire");
                        return None;
                    }
                    (reason, received.await.ok())
                } else {
                    running.stop();
                    running.await;
                    (reason, None)
                }
            }
        };
        Some(match (reason, outcome) {
            (Stop::Lost | Stop::Settled, _) => return None,
            (Stop::Cancelled, Some(Ok(_))) => {
                tracing::warn!("handler returned although its task was cancelled, its output is dropped");
                Settlement::Stop
            }
            (Stop::Cancelled, _) => Settlement::Stop,
            // It has finished all the same.
            (Stop::Shutdown, Some(Ok((output, results)))) => Settlement::Complete { output, results },
            (Stop::Shutdown, _) => Settlement::Release,
            (Stop::TimedOut, outcome) => {
                let remark = match outcome {
                    Some(Ok(_)) => "; it returned after that, and its output was dropped",
                    _ => "",
                };
                retry(format!("did not finish within {} s{remark}", timeout.unwrap_or_default()))
            }
        })
    }
}

/// Summary of the error; the task's history has all of it.
fn summary(task: &Task) -> &str {
    task.error.as_deref().map(summary_line).unwrap_or_default()
}

fn ended(end: End, outcome: Option<RunOutcome>) -> Settlement {
    match (end, outcome) {
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
        (_, Some(Err(TaskError::Snooze(pause)))) => Settlement::Snooze(pause),
        (End::Panicked(message), None) => retry(format!("the handler panicked: {message}")),
        (End::Done | End::Stopped, None) => Settlement::Release,
    }
}

fn retry(error: String) -> Settlement {
    Settlement::Fail { error, retryable: true, after: None }
}
