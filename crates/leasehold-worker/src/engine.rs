//! The engine of a worker: runs the tasks of a source in slots, until shutdown. It knows no layout.
//!
//! A running task and the source are polled together, so that a task goes on while the source scans for others. After
//! a shutdown was requested the source claims nothing new, and running tasks may finish; after the drain time, or on
//! abort, they are stopped and released.

use futures::StreamExt;
use futures::future::{Either, select};
use futures::stream::FuturesUnordered;
use leasehold_core::{Kind, Result};
use leasehold_queue::source::{Duty, DutyPlan, Slots, SourceStatus, TaskSource, next_or};
use leasehold_store::HostExt;
use leasehold_store::host::{Host, Instant, Running};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::renew::{self, ActiveClaim};
use crate::runner::TaskRunner;
use crate::shutdown::{Shutdown, Stage};

/// State of a running worker.
pub(crate) struct Engine {
    pub(crate) runner: TaskRunner,
    slots: Slots,
    pub(crate) status: Arc<dyn SourceStatus>,
    /// Claims to renew. The renewer ends after the last sender was dropped.
    pub(crate) renewals: mpsc::UnboundedSender<Arc<ActiveClaim>>,
    /// Cancelled if all runs have to stop, and those that would start.
    pub(crate) stopping: CancellationToken,
}

/// Runs the tasks of a source and does its duties, until shutdown or until nothing is left. When this returns, every
/// running task has ended or was released.
pub(crate) async fn run(
    runner: TaskRunner,
    mut source: Box<dyn TaskSource>,
    slots: Slots,
    shutdown: Shutdown,
) -> Result<()> {
    let (renewals, claims) = mpsc::unbounded_channel();
    let status = source.status();
    let renewer = renew::run(runner.host.clone(), status.clone(), claims);
    let renewing = runner.host.spawn_thread("leasehold-renew", Box::pin(renewer));
    let duties = spawn_duties(&*source, &runner, &slots);
    let engine = Engine { runner, slots, status, renewals, stopping: CancellationToken::new() };
    let work = Box::pin(engine.work(&mut *source, &shutdown));
    let ended = match select(work, Box::pin(engine.stop_in_stages(&shutdown))).await {
        Either::Left((ended, _)) => ended,
        Either::Right((never, _)) => match never {},
    };
    // Recovery must not be interrupted in the middle of a change.
    duties.await;
    let closed = source.close().await;
    drop(engine);
    renewing.await;
    ended.and(closed)
}

fn spawn_duties(source: &dyn TaskSource, runner: &TaskRunner, slots: &Slots) -> Running {
    let duties = run_duties(source.duties(), source.status(), runner.host.clone(), slots.clone());
    runner.host.spawn(Box::pin(async move {
        if let Err(error) = duties.await {
            // The source fails with the same error, or other workers do these duties.
            tracing::warn!(%error, "duties stopped, lost claims are no longer recovered by this worker");
        }
    }))
}

impl Engine {
    /// Runs the tasks of a source until it has no more, and then waits for the last of them.
    async fn work(&self, source: &mut dyn TaskSource, shutdown: &Shutdown) -> Result<()> {
        let mut running = FuturesUnordered::new();
        let ended = loop {
            let mut next = source.next();
            let next = loop {
                if let Either::Right(next) = next_or(&mut running, &mut next).await {
                    break next;
                }
            };
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
