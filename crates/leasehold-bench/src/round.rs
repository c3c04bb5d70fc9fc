//! A round: several workers, each with one request in flight, for a short time.
//!
//! Workers read what they need before the round begins. All begin together, and the round lasts until the
//! last of them is done.

use std::future::Future;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use crate::histogram::Histogram;
use crate::operation::{BenchRequest, RequestSlot};

/// Plan of a round.
#[derive(Debug, Clone)]
pub(crate) struct RoundPlan {
    pub(crate) operation: BenchRequest,
    pub(crate) directory: &'static str,
    pub(crate) round: u32,
    /// Maximum number of requests of each worker.
    pub(crate) shares: Vec<u64>,
    /// Time after which no request begins.
    pub(crate) time: Duration,
}

impl RoundPlan {
    fn slot(&self, worker: usize) -> RequestSlot {
        let (workers, worker) = (self.shares.len() as u64, worker as u64);
        RequestSlot { directory: self.directory, round: self.round, workers, worker, nth: 0 }
    }
}

/// Measurements of a round.
pub(crate) struct RoundResult {
    pub(crate) operations: u64,
    pub(crate) latencies: Histogram,
    pub(crate) lasted: Duration,
    /// Processor time of this process.
    pub(crate) cpu: Duration,
}

impl RoundResult {
    #[expect(clippy::cast_precision_loss, reason = "a round has far fewer than 2^52 requests")]
    pub(crate) fn per_second(&self) -> f64 {
        self.operations as f64 / self.lasted.as_secs_f64()
    }
}

/// One of the two sides that are compared.
pub(crate) trait Side {
    fn round(&self, plan: &RoundPlan) -> anyhow::Result<RoundResult>;
}

/// Calls that are awaited.
pub(crate) trait Calls: Send + Sync + 'static {
    type Version: Send;

    /// Returns the version of an existing object.
    fn version(&self, key: &str) -> impl Future<Output = anyhow::Result<Self::Version>> + Send;

    /// Makes one request.
    fn call(
        &self,
        operation: BenchRequest,
        slot: RequestSlot,
        known: &mut Option<Self::Version>,
    ) -> impl Future<Output = anyhow::Result<()>> + Send;
}

/// Calls that block their thread.
pub(crate) trait BlockingCalls: Sync {
    fn call(&self, operation: BenchRequest, slot: RequestSlot) -> anyhow::Result<()>;
}

pub(crate) struct AsyncSide<C> {
    pub(crate) calls: Arc<C>,
    pub(crate) runtime: Arc<Runtime>,
}

impl<C: Calls> Side for AsyncSide<C> {
    fn round(&self, plan: &RoundPlan) -> anyhow::Result<RoundResult> {
        self.runtime.block_on(async {
            let start = Arc::new(tokio::sync::Barrier::new(plan.shares.len()));
            let mut workers = JoinSet::new();
            for worker in 0..plan.shares.len() {
                let (calls, plan, start) = (self.calls.clone(), plan.clone(), start.clone());
                workers.spawn(async move {
                    let known = prepared(&*calls, &plan, worker).await;
                    start.wait().await;
                    let mut run = WorkerRun::begin(&plan, worker);
                    let mut known = known?;
                    while let Some(slot) = run.next() {
                        calls.call(plan.operation, slot, &mut known).await?;
                        run.done();
                    }
                    Ok(run)
                });
            }
            let runs = workers.join_all().await.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
            Ok(add_up(&runs))
        })
    }
}

async fn prepared<C: Calls>(
    calls: &C,
    plan: &RoundPlan,
    worker: usize,
) -> anyhow::Result<Option<C::Version>> {
    if !plan.operation.needs_version() {
        return Ok(None);
    }
    calls.version(&plan.slot(worker).own_key()).await.map(Some)
}

pub(crate) struct ThreadSide<C> {
    pub(crate) calls: C,
}

impl<C: BlockingCalls> Side for ThreadSide<C> {
    fn round(&self, plan: &RoundPlan) -> anyhow::Result<RoundResult> {
        let start = Barrier::new(plan.shares.len());
        let work = |worker| {
            start.wait();
            let mut run = WorkerRun::begin(plan, worker);
            while let Some(slot) = run.next() {
                self.calls.call(plan.operation, slot)?;
                run.done();
            }
            Ok(run)
        };
        let runs: anyhow::Result<Vec<_>> = std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..plan.shares.len()).map(|worker| scope.spawn(move || work(worker))).collect();
            threads.into_iter().map(|thread| thread.join().expect("a worker does not panic")).collect()
        });
        Ok(add_up(&runs?))
    }
}

/// Part of one worker in a round.
struct WorkerRun {
    slot: RequestSlot,
    share: u64,
    time: Duration,
    began: Instant,
    sent: Instant,
    ended: Instant,
    cpu_began: Duration,
    cpu_ended: Duration,
    latencies: Histogram,
}

impl WorkerRun {
    fn begin(plan: &RoundPlan, worker: usize) -> Self {
        let slot = plan.slot(worker);
        // The histogram's allocation is no part of the round.
        let latencies = Histogram::default();
        let (cpu, now) = (cpu_time(), Instant::now());
        Self {
            slot,
            share: plan.shares[worker],
            time: plan.time,
            began: now,
            sent: now,
            ended: now,
            cpu_began: cpu,
            cpu_ended: cpu,
            latencies,
        }
    }

    fn next(&mut self) -> Option<RequestSlot> {
        let due = self.slot.nth < self.share && self.ended - self.began < self.time;
        if !due {
            self.cpu_ended = cpu_time();
        }
        self.sent = self.ended;
        due.then_some(self.slot)
    }

    fn done(&mut self) {
        self.ended = Instant::now();
        self.latencies.add(self.ended - self.sent);
        self.slot.nth += 1;
    }
}

fn add_up(runs: &[WorkerRun]) -> RoundResult {
    let mut latencies = Histogram::default();
    for run in runs {
        latencies.merge(&run.latencies);
    }
    let all = || runs.iter();
    let lasted = all().map(|run| run.ended).max().zip(all().map(|run| run.began).min());
    let cpu = all().map(|run| run.cpu_ended).max().zip(all().map(|run| run.cpu_began).min());
    RoundResult {
        operations: all().map(|run| run.slot.nth).sum(),
        latencies,
        lasted: lasted.map_or(Duration::ZERO, |(ended, began)| ended - began),
        cpu: cpu.map_or(Duration::ZERO, |(ended, began)| ended.saturating_sub(began)),
    }
}

/// Returns the processor time of all threads of this process so far.
pub(crate) fn cpu_time() -> Duration {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    used.try_into().unwrap_or_default()
}
