//! One task, from claim to settlement.

use futures::future::{Either, select};
use leasehold_core::{Kind, Status, Task};
use leasehold_queue::{Claimed, Found, Met, Settlement};
use leasehold_store::host::{End, Running};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::sync::oneshot;

use crate::handler::{Handler, TaskError};
use crate::renew::{Held, Stop, time_left};
use crate::run::Engine;
use crate::staging::{Outcome, Whole};

/// Before a claim that failed is tried again: what is wrong with the store does not go away by asking at once.
const CLAIM_PAUSE: Duration = Duration::from_secs(1);

/// Between two tries to settle with a store that does not answer.
const SETTLE_PAUSE: Duration = Duration::from_secs(1);

impl Engine {
    /// Claims the task of an entry and, if it is ours, runs it to its end. Says what became of the entry.
    pub(crate) async fn attempt(self: Arc<Self>, found: Found) -> (Found, Met) {
        let handles = |task_type: &_| self.handlers.get(task_type).is_some();
        let (queue, id, lease) = (&self.queue, &self.id, self.options.lease);
        let met = if queue.now().is_ok_and(|now| self.is_owner(&found.entry.place, now)) {
            queue.claim_as_owner(&found, id, lease, &handles).await
        } else {
            queue.claim(&found, id, lease, &handles).await
        };
        let met = met.unwrap_or_else(|error| {
            // Not held, as far as running it goes; whoever finds its lease run out puts it back.
            tracing::warn!(task = %found.entry.id, "the claim failed: {error}");
            let now = self.queue.now().map_or(found.written_at, |now| now.latest_known());
            Met::NotDue(now.plus(CLAIM_PAUSE))
        });
        match &met {
            // The answer came so late that nothing is left of the claim: whoever finds that puts the task back.
            Met::Claimed(claimed) if time_left(&self.queue, claimed.expires_at()).is_none() => {
                tracing::warn!(task = %found.entry.id, "the claim ran out before it was confirmed");
                self.count(None);
            }
            Met::Claimed(claimed) => self.execute(claimed).await,
            _ => {}
        }
        (found, met)
    }

    async fn execute(&self, claimed: &Claimed) {
        let task = claimed.task().clone();
        let held = Held::new(claimed.clone());
        self.keep(&held);
        tracing::info!(task = %task.id, task_type = %task.task_type, attempt = task.attempt, "started");
        self.counts.started.fetch_add(1, Relaxed);
        let settlement = self.run_handler(task, &held).await;
        let settled = match settlement {
            Some(settlement) => self.settle(&held, settlement).await,
            None => None,
        };
        held.settled();
        self.forget(&held);
        self.count(settled.as_ref());
    }

    /// Runs the handler until it ends or has to stop; nothing if there is nothing to be written any more. When this
    /// returns, the handler has stopped.
    async fn run_handler(&self, task: Task, held: &Arc<Held>) -> Option<Settlement> {
        let Some(Handler { run, is_awaited }) = self.handlers.get(&task.task_type).cloned() else {
            return Some(Settlement::Release);
        };
        let timeout = task.timeout_secs;
        let (tell, told) = oneshot::channel::<Outcome>();
        let whole = Whole::new(self.carrier.clone(), run, task, held.clone());
        let (limit, is_publishing) = (whole.too_long(self.host().clone()), whole.is_publishing());
        let mut running = self.host().spawn(Box::pin(async move {
            // Nobody listens any more if the run was given up.
            let _ = tell.send(whole.run().await);
        }));
        let interrupted = select(Box::pin(held.until_stopped()), limit);
        let (why, outcome) = match select(&mut running, interrupted).await {
            Either::Left((end, _)) => match held.stopped() {
                None => return self.ended(end, told.await.ok()),
                // It was told to stop, and has heard of it before us.
                Some(why) => (why, told.await.ok()),
            },
            Either::Right((interrupted, _)) => {
                let why = match interrupted {
                    Either::Left((why, _)) => why,
                    Either::Right(_) => Stop::TimedOut,
                };
                if is_awaited || is_publishing() {
                    held.stop(why);
                    self.stopped_by_itself(&mut running, held).await?;
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
    async fn stopped_by_itself(&self, running: &mut Running, held: &Held) -> Option<()> {
        let late = self.host().sleep(self.options.stop_wait);
        if let Either::Left(_) = select(running, late).await {
            return Some(());
        }
        tracing::warn!(task = %held.id, "the handler does not stop; its claim is left to run out");
        None
    }

    fn ended(&self, end: End, outcome: Option<Outcome>) -> Option<Settlement> {
        Some(match (end, outcome) {
            (_, Some(Ok((output, results)))) => Settlement::Complete { output, results },
            (_, Some(Err(TaskError::Retry(error)))) => retry(error),
            (_, Some(Err(TaskError::RetryAfter(error, pause)))) => {
                Settlement::Fail { error, retryable: true, after: Some(pause) }
            }
            (_, Some(Err(TaskError::Permanent(error)))) => {
                Settlement::Fail { error, retryable: false, after: None }
            }
            (_, Some(Err(TaskError::Snooze(pause)))) => {
                Settlement::Snooze(self.queue.now().ok()?.latest_known().plus(pause))
            }
            (End::Panicked(words), None) => retry(format!("the handler panicked: {words}")),
            (End::Done | End::Stopped, None) => Settlement::Release,
        })
    }

    /// Writes down how it ended, as long as the claim can be trusted.
    async fn settle(&self, held: &Held, settlement: Settlement) -> Option<Task> {
        loop {
            let claimed = held.claim().await;
            if held.stopped() == Some(Stop::Lost) {
                return None;
            }
            match self.queue.settle(&claimed, settlement.clone()).await {
                Ok(None) => {
                    tracing::warn!(task = %held.id, "the claim was lost before its end was written down");
                    return None;
                }
                Ok(settled) => return settled,
                Err(error) if error.kind() == Kind::Unavailable => {
                    tracing::warn!(task = %held.id, "its end could not be written down yet: {error}");
                }
                Err(error) => {
                    tracing::error!(task = %held.id, "its end cannot be written down: {error}");
                    return None;
                }
            }
            let expires_at = claimed.expires_at();
            drop(claimed);
            if !self.queue.now().is_ok_and(|now| now.is_before(expires_at)) {
                return None;
            }
            self.host().sleep(SETTLE_PAUSE).await;
        }
    }

    fn count(&self, settled: Option<&Task>) {
        let counter = match settled.map(Task::status) {
            None => &self.counts.lost,
            Some(Status::Completed) => &self.counts.completed,
            Some(Status::Failed) => &self.counts.failed,
            Some(Status::Cancelled) => &self.counts.cancelled,
            Some(_) => &self.counts.put_back,
        };
        counter.fetch_add(1, Relaxed);
    }
}

fn retry(error: String) -> Settlement {
    Settlement::Fail { error, retryable: true, after: None }
}
