//! The engine of a worker: runs the tasks of a source in slots, until shutdown. It knows no layout.
//!
//! A running task and the source are polled together, so that a task goes on while the source scans for others. The
//! result of a handler is written only while the claim is held. If the store fails, recording is retried until the claim
//! expires; after that another worker recovers the task. After a shutdown was requested the source claims nothing new,
//! and running tasks may finish; after the drain time, or on abort, they are stopped and released.

use futures::future::{Either, select};
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use leasehold_core::{Kind, Result, Task};
use leasehold_queue::Settlement;
use leasehold_queue::source::{
    ClaimedTask, Duty, DutyPlan, Slot, Slots, SourceStatus, TaskInSlot, TaskSource,
};
use leasehold_store::HostExt;
use leasehold_store::host::{Host, Instant};
use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::renew::{self, Renewals};
use crate::run_handle::{RunHandle, Stop};
use crate::runner::TaskRunner;
use crate::shutdown::{Shutdown, Stage};

/// Pause between two attempts to record a result.
const SETTLE_PAUSE: Duration = Duration::from_secs(1);

/// State of a running worker.
struct Engine {
    runner: TaskRunner,
    slots: Slots,
    status: Arc<dyn SourceStatus>,
    renewals: Arc<Renewals>,
    /// Cancelled if all runs have to stop, and those that would start.
    stopping: CancellationToken,
}

/// Runs the tasks of a source and does its duties, until shutdown or until nothing is left. When this returns, every
/// running task has ended or was released.
pub(crate) async fn run(
    runner: TaskRunner,
    mut source: Box<dyn TaskSource>,
    slots: Slots,
    shutdown: Shutdown,
) -> Result<()> {
    let (renewals, status) = (Renewals::new(), source.status());
    let renewer = renew::run(runner.host.clone(), status.clone(), renewals.clone());
    let renewing = runner.host.spawn_thread("leasehold-renew", Box::pin(renewer));
    let duties = run_duties(source.duties(), source.status(), runner.host.clone(), slots.clone());
    let duties = runner.host.spawn(Box::pin(async move {
        if let Err(error) = duties.await {
            // The source fails with the same error, or other workers do these duties.
            tracing::warn!(%error, "maintenance duties stopped, expired claims are no longer recovered by this worker");
        }
    }));
    let engine = Engine { runner, slots, status, renewals, stopping: CancellationToken::new() };
    let work = Box::pin(engine.work(&mut *source, &shutdown));
    // In this order, so that a task that ends after the request to drain frees its slot when the slots are closed.
    let ended = match select(Box::pin(engine.stop_in_stages(&shutdown)), work).await {
        Either::Left((never, _)) => match never {},
        Either::Right((ended, _)) => ended,
    };
    // Recovery must not be interrupted in the middle of a change.
    duties.await;
    let closed = source.close().await;
    engine.renewals.close();
    renewing.await;
    ended.and(closed)
}

impl Engine {
    /// Runs the tasks of a source until it has no more, and then waits for the last of them.
    async fn work(&self, source: &mut dyn TaskSource, shutdown: &Shutdown) -> Result<()> {
        let mut running = FuturesUnordered::new();
        let ended = loop {
            let mut next = source.next();
            // All runs that have ended first: the source claims for all of their slots at once.
            let next = poll_fn(|context| {
                while let Poll::Ready(Some(())) = running.poll_next_unpin(context) {}
                next.poll_unpin(context)
            });
            let next = next.await;
            match next {
                Ok(Some(claim)) => running.push(Box::pin(self.execute(claim))),
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        self.slots.close();
        match &ended {
            Err(error) if error.kind() == Kind::Lost => shutdown.abort(),
            _ => shutdown.drain(),
        }
        while running.next().await.is_some() {}
        ended
    }

    /// Claims nothing new when a shutdown is requested; after the drain time, or on abort, stops all runs.
    async fn stop_in_stages(&self, shutdown: &Shutdown) -> Infallible {
        shutdown.reached(Stage::Drain).await;
        self.slots.close();
        let timeout = self.runner.host.sleep(self.runner.options.drain);
        select(timeout, Box::pin(shutdown.reached(Stage::Abort))).await;
        self.stopping.cancel();
        std::future::pending().await
    }

    /// Runs a claimed task to its end, and frees its slot.
    async fn execute(&self, TaskInSlot { task, slot }: TaskInSlot) {
        let span = self.runner.span(task.task());
        self.run_and_settle(task, slot).instrument(span).await;
    }

    async fn run_and_settle(&self, claimed: Box<dyn ClaimedTask>, slot: Slot) {
        let Some(left) = claimed.time_left() else {
            // The answer came so late that the claim has expired: another worker recovers the task.
            tracing::warn!("claim expired before it was confirmed");
            return self.runner.count(None);
        };
        tracing::info!("task claimed");
        let mut slot = Some(slot);
        let frees_slot = claimed.frees_slot_before_finish();
        let (task, renewed_in) = (Arc::new(claimed.task().clone()), claimed.renew_every().min(left));
        let run = RunHandle::new(claimed, self.renewals.clone());
        let _renewed = self.renewals.add(run.clone(), self.runner.host.instant(), renewed_in);
        let running = pin!(self.runner.run(task, &run));
        let end = match select(running, pin!(self.stopping.cancelled())).await {
            Either::Left((end, _)) => end,
            Either::Right(((), running)) => {
                run.stop(Stop::Shutdown);
                running.await
            }
        };
        if frees_slot {
            slot.take();
        }
        let settled = match end {
            Some(settlement) => self.settle(&run, settlement).await,
            None => None,
        };
        run.mark_settled();
        self.runner.count(settled.as_ref());
    }

    /// Records the result of a run, as long as the claim can be trusted. During an outage the claim is renewed and
    /// recording is retried; any other error is retried only until the lease expires that was held at that time.
    async fn settle(&self, run: &RunHandle, settlement: Settlement) -> Option<Task> {
        let mut limit = None;
        let mut claim = run.claim.lock().await;
        while run.stop_reason() != Some(Stop::Lost) {
            let error = match claim.finish(settlement.clone()).await {
                Ok(None) => {
                    tracing::warn!("claim was lost before the task's result was recorded");
                    break;
                }
                Ok(settled) => return settled,
                Err(error) => error,
            };
            self.status.request_failed("record a task's result", &error);
            let (now, outage) = (self.runner.host.instant(), self.status.long_outage());
            let is_outage = matches!(error.kind(), Kind::Unavailable | Kind::Denied) || outage.is_some();
            let held_for = claim.time_left();
            limit = if is_outage { None } else { limit.or(held_for.map(|left| (now, left))) };
            let until_limit =
                limit.map_or(Duration::MAX, |(since, left)| left.saturating_sub(now.since(since)));
            let Some(left) = held_for.map(|left| left.min(until_limit)).filter(|left| !left.is_zero()) else {
                tracing::warn!("claim expired before the task's result was recorded");
                break;
            };
            drop(claim);
            let pause = outage.map_or(SETTLE_PAUSE, |outage| outage.pause(now).min(left / 2));
            self.runner.host.sleep(pause.max(SETTLE_PAUSE)).await;
            claim = run.claim.lock().await;
        }
        claim.keep_late_result(settlement).await;
        None
    }
}

/// A duty, and when it is to be done.
struct Planned {
    duty: Box<dyn Duty>,
    plan: DutyPlan,
    last: Instant,
    /// Pause after the last time.
    pause: Duration,
}

/// Does these duties until the slots are closed: the one loop that gives them their interval, jitter, time limit and
/// back-off. The duty with the shortest interval is done in every round, another one in the first round after its
/// interval has passed. Fails if this worker can never do them again.
pub(crate) async fn run_duties(
    duties: Vec<Box<dyn Duty>>,
    status: Arc<dyn SourceStatus>,
    host: Arc<dyn Host>,
    slots: Slots,
) -> Result<()> {
    let Some(every) = duties.iter().map(|duty| duty.plan().every).min() else { return Ok(()) };
    let planned = |duty: Box<dyn Duty>| {
        let plan = duty.plan();
        let pause = if plan.begins_at_once { Duration::ZERO } else { host.random_below(plan.every) };
        Planned { duty, plan, last: host.instant(), pause }
    };
    let mut planned: Vec<_> = duties.into_iter().map(planned).collect();
    loop {
        for planned in &mut planned {
            if let Err(error) = planned.tick_if_due(&host, &slots, every).await {
                if status.is_outdated() {
                    return Err(error);
                }
                status.request_failed(planned.plan.operation, &error);
            }
        }
        let pause = every.mul_f64(0.9) + host.random_below(every / 5);
        // One round is the probe of a failing store.
        let outage = status.long_outage();
        let pause = outage.map_or(pause, |outage| outage.pause(host.instant()).max(pause));
        if let Either::Right(_) = select(host.sleep(pause), Box::pin(slots.closed())).await {
            for planned in &mut planned {
                planned.duty.release().await;
            }
            return Ok(());
        }
    }
}

impl Planned {
    async fn tick_if_due(&mut self, host: &Arc<dyn Host>, slots: &Slots, shortest: Duration) -> Result<()> {
        let now = host.instant();
        if now.since(self.last) < self.pause {
            return Ok(());
        }
        let every = self.plan.every;
        (self.last, self.pause) = (now, if every > shortest { every } else { Duration::ZERO });
        let Some(most) = self.plan.time_max else { return self.duty.tick().await };
        let limit = select(host.sleep(most), Box::pin(slots.closed()));
        match select(self.duty.tick(), limit).await {
            Either::Left((done, _)) => done,
            Either::Right(_) => Ok(()),
        }
    }
}
