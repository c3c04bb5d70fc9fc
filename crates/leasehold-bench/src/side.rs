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
use crate::operation::{BenchRequest, Spot};

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
    fn spot(&self, worker: usize) -> Spot {
        let (workers, worker) = (self.shares.len() as u64, worker as u64);
        Spot { directory: self.directory, round: self.round, workers, worker, nth: 0 }
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
        spot: Spot,
        known: &mut Option<Self::Version>,
    ) -> impl Future<Output = anyhow::Result<()>> + Send;
}

/// Calls that block their thread.
pub(crate) trait BlockingCalls: Sync {
    fn call(&self, operation: BenchRequest, spot: Spot) -> anyhow::Result<()>;
}

pub(crate) struct Tasks<C> {
    pub(crate) calls: Arc<C>,
    pub(crate) runtime: Arc<Runtime>,
}

impl<C: Calls> Side for Tasks<C> {
    fn round(&self, plan: &RoundPlan) -> anyhow::Result<RoundResult> {
        self.runtime.block_on(async {
            let start = Arc::new(tokio::sync::Barrier::new(plan.shares.len()));
            let mut workers = JoinSet::new();
            for worker in 0..plan.shares.len() {
                let (calls, plan, start) = (self.calls.clone(), plan.clone(), start.clone());
                workers.spawn(async move {
                    let known = prepared(&*calls, &plan, worker).await;
                    start.wait().await;
                    let mut shift = Shift::begin(&plan, worker);
                    let mut known = known?;
                    while let Some(spot) = shift.next() {
                        calls.call(plan.operation, spot, &mut known).await?;
                        shift.done();
                    }
                    Ok(shift)
                });
            }
            let shifts = workers.join_all().await.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
            Ok(add_up(&shifts))
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
    calls.version(&plan.spot(worker).own_key()).await.map(Some)
}

pub(crate) struct Threads<C> {
    pub(crate) calls: C,
}

impl<C: BlockingCalls> Side for Threads<C> {
    fn round(&self, plan: &RoundPlan) -> anyhow::Result<RoundResult> {
        let start = Barrier::new(plan.shares.len());
        let work = |worker| {
            start.wait();
            let mut shift = Shift::begin(plan, worker);
            while let Some(spot) = shift.next() {
                self.calls.call(plan.operation, spot)?;
                shift.done();
            }
            Ok(shift)
        };
        let shifts: anyhow::Result<Vec<_>> = std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..plan.shares.len()).map(|worker| scope.spawn(move || work(worker))).collect();
            threads.into_iter().map(|thread| thread.join().expect("a worker does not panic")).collect()
        });
        Ok(add_up(&shifts?))
    }
}

/// Part of one worker in a round.
struct Shift {
    spot: Spot,
    share: u64,
    time: Duration,
    began: Instant,
    asked: Instant,
    ended: Instant,
    cpu_began: Duration,
    cpu_ended: Duration,
    latencies: Histogram,
}

impl Shift {
    fn begin(plan: &RoundPlan, worker: usize) -> Self {
        let spot = plan.spot(worker);
        // The histogram's allocation is no part of the round.
        let latencies = Histogram::default();
        let (cpu, now) = (cpu_time(), Instant::now());
        Self {
            spot,
            share: plan.shares[worker],
            time: plan.time,
            began: now,
            asked: now,
            ended: now,
            cpu_began: cpu,
            cpu_ended: cpu,
            latencies,
        }
    }

    fn next(&mut self) -> Option<Spot> {
        let due = self.spot.nth < self.share && self.ended - self.began < self.time;
        if !due {
            self.cpu_ended = cpu_time();
        }
        self.asked = self.ended;
        due.then_some(self.spot)
    }

    fn done(&mut self) {
        self.ended = Instant::now();
        self.latencies.add(self.ended - self.asked);
        self.spot.nth += 1;
    }
}

fn add_up(shifts: &[Shift]) -> RoundResult {
    let mut latencies = Histogram::default();
    for shift in shifts {
        latencies.merge(&shift.latencies);
    }
    let all = || shifts.iter();
    let lasted = all().map(|shift| shift.ended).max().zip(all().map(|shift| shift.began).min());
    let cpu = all().map(|shift| shift.cpu_ended).max().zip(all().map(|shift| shift.cpu_began).min());
    RoundResult {
        operations: all().map(|shift| shift.spot.nth).sum(),
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
