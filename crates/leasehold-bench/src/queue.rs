//! The command `queue`: tasks are submitted and then run, 64 in flight, against the limit of the same store.
//!
//! ```text
//!   pace ─ submit ─ pace ─ work ─ pace ─ submit ─ pace ─ work ─ pace …        then one task at a time
//! ```
//!
//! The pace of plain calls is measured before and after every stage, and a stage is compared with the mean of
//! the two, so that other load on the machine affects all alike.

use anyhow::{Context as _, ensure};
use leasehold_core::NewTask;
use leasehold_queue::{ObjectQueue, Queue};
use leasehold_store::ledger::LedgerLine;
use leasehold_store::{Ledger, Snapshot};
use leasehold_worker::{Context, Shutdown, TaskError, Worker, WorkerOptions, WorkerView};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::args::{self, BenchStore};
use crate::histogram::Histogram;
use crate::limit::{RequestMix, RequestPace};
use crate::measure::{UNTIMED, WORKERS, prepare, shares};
use crate::memory;
use crate::operation::{BenchRequest, RequestSlot};
use crate::report::BenchReport;
use crate::round::{AsyncSide, Calls, RoundPlan, RoundResult, Side, cpu_time};
use crate::store_under_test::StoreUnderTest;

pub(crate) const TASK_TYPE: &str = "noop";
/// Interval at which completion is polled: there is no event for it, and a round takes seconds.
const POLL_EVERY: Duration = Duration::from_millis(1);
/// Number of tasks that are run one at a time.
pub(crate) const LONE: u64 = 100;

/// Measurements of one store.
pub(crate) struct QueueMeasurement {
    pub(crate) submit: TaskStage,
    pub(crate) work: TaskStage,
    /// Latency from before the submit to the handler, with an idle worker in the same process.
    pub(crate) lone: Histogram,
    pub(crate) memory_peak: u64,
}

/// One half of the tasks' lives, in all measured rounds.
#[derive(Default)]
pub(crate) struct TaskStage {
    pub(crate) tasks: u64,
    pub(crate) requests: BTreeMap<LedgerLine, u64>,
    pub(crate) rounds: Vec<Rates>,
    pub(crate) latencies: Histogram,
    pub(crate) cpu: Duration,
}

/// Tasks per second.
pub(crate) struct Rates {
    pub(crate) ours: f64,
    /// Limit set by all requests.
    pub(crate) limit: f64,
    /// Limit set by the writes alone.
    pub(crate) write_limit: f64,
}

pub(crate) fn run(args: &args::QueueArgs) -> anyhow::Result<()> {
    ensure!(args.seconds > 0.0 && args.seconds < 60.0, "--seconds must be above 0 and below a minute");
    let runtime = Arc::new(tokio::runtime::Builder::new_multi_thread().enable_all().build()?);
    let mut report = BenchReport::new(args.json);
    let mut folders = Vec::new();
    for place in args.site.stores(&[BenchStore::Folder, BenchStore::S3]) {
        let store = StoreUnderTest::open(place, &args.site, &runtime)?;
        report.queue(place, &measure(args, &store, &runtime)?);
        folders.push(store.into_folder());
    }
    report.finish();
    Ok(())
}

fn measure(
    args: &args::QueueArgs,
    store: &StoreUnderTest,
    runtime: &Arc<Runtime>,
) -> anyhow::Result<QueueMeasurement> {
    let objects = runtime.block_on(ObjectQueue::connect(store.client("ours")?))?;
    let (ledger, queue) = (objects.client().ledger(), Queue::from(objects.clone()));
    prepare(&*store.plain)?;
    let mut paces = 0;
    let mut pace = || {
        paces += 1;
        RequestPace::measure(&*store.plain, paces, Duration::from_secs_f64(args.seconds))
    };
    let (mut submit, mut work) = (TaskStage::default(), TaskStage::default());
    let mut before = pace()?;
    for round in 0..=args.rounds {
        BenchReport::progress(store.place, &format!("round {round} of {}", args.rounds));
        let submitted = with_requests(ledger, || submit_tasks(&queue, args.tasks, runtime))?;
        let between = pace()?;
        let worked = with_requests(ledger, || runtime.block_on(run_tasks(&queue, args.tasks, WORKERS)))?;
        let after = pace()?;
        // The first round warms up.
        if round > 0 {
            submit.count(&submitted, &before.mean(&between));
            work.count(&worked, &between.mean(&after));
        }
        before = after;
    }
    let lone = runtime.block_on(one_at_a_time(&queue, LONE))?;
    Ok(QueueMeasurement { submit, work, lone, memory_peak: memory::peak()? })
}

/// Runs a round. Returns it with its requests.
fn with_requests(
    ledger: &Ledger,
    round: impl FnOnce() -> anyhow::Result<RoundResult>,
) -> anyhow::Result<(RoundResult, Snapshot)> {
    let before = ledger.snapshot();
    let round = round()?;
    Ok((round, ledger.snapshot().since(&before)))
}

impl TaskStage {
    fn count(&mut self, (round, requests): &(RoundResult, Snapshot), pace: &RequestPace) {
        let mix = RequestMix::of(requests, round.operations);
        let (limit, write_limit) = (pace.limit(&mix), pace.limit(&mix.writes()));
        self.rounds.push(Rates { ours: round.per_second(), limit, write_limit });
        self.tasks += round.operations;
        self.latencies.merge(&round.latencies);
        self.cpu += round.cpu;
        for (line, count) in requests.lines() {
            *self.requests.entry(line).or_default() += count.requests;
        }
    }
}

/// Submits a number of tasks, 64 in flight.
pub(crate) fn submit_tasks(queue: &Queue, tasks: u64, runtime: &Arc<Runtime>) -> anyhow::Result<RoundResult> {
    let side = AsyncSide { calls: Arc::new(Submits(queue.clone())), runtime: runtime.clone() };
    // Tasks have keys of their own, so the plan's are not used.
    side.round(&RoundPlan {
        operation: BenchRequest::Put,
        directory: TASK_TYPE,
        round: 0,
        shares: shares(tasks),
        time: UNTIMED,
    })
}

struct Submits(Queue);

impl Calls for Submits {
    type Version = ();

    async fn version(&self, _: &str) -> anyhow::Result<()> {
        Ok(())
    }

    async fn call(&self, _: BenchRequest, _: RequestSlot, _: &mut Option<()>) -> anyhow::Result<()> {
        self.0.submit_task(NewTask::new(TASK_TYPE, Value::Null)?).await?;
        Ok(())
    }
}

/// Runs at least a number of tasks, `slots` at once.
pub(crate) async fn run_tasks(queue: &Queue, tasks: u64, slots: u64) -> anyhow::Result<RoundResult> {
    let worker = worker(queue, slots, || ())?;
    let (view, shutdown) = (worker.view(), Shutdown::default());
    let (cpu, began) = (cpu_time(), Instant::now());
    let mut stopper = JoinSet::new();
    let stop = shutdown.clone();
    stopper.spawn(async move {
        wait_until_completed(&view, tasks).await;
        // Tasks still running count as well, so the round ends when the worker has ended.
        stop.drain();
    });
    let counts = worker.run(shutdown).await?;
    Ok(RoundResult {
        operations: counts.completed,
        latencies: Histogram::default(),
        lasted: began.elapsed(),
        cpu: cpu_time().saturating_sub(cpu),
    })
}

fn worker(queue: &Queue, slots: u64, started: impl Fn() + Send + Sync + 'static) -> anyhow::Result<Worker> {
    let worker = Worker::new(queue.clone(), "bench", None)?;
    let worker = worker.handle(TASK_TYPE, move |_: Context, _: Value| {
        started();
        async { Ok::<_, TaskError>(()) }
    })?;
    let concurrency = usize::try_from(slots)?;
    Ok(worker.options(WorkerOptions { concurrency, ..WorkerOptions::default() }))
}

async fn wait_until_completed(view: &WorkerView, tasks: u64) {
    while view.counts().completed < tasks {
        tokio::time::sleep(POLL_EVERY).await;
    }
}

/// Measures the time from before the submit to the handler, one task at a time.
pub(crate) async fn one_at_a_time(queue: &Queue, tasks: u64) -> anyhow::Result<Histogram> {
    let (sender, receiver) = mpsc::unbounded_channel();
    let worker = worker(queue, WORKERS, move || {
        // The receiver is gone once the last start was received.
        let _ = sender.send(Instant::now());
    })?;
    let (view, shutdown) = (worker.view(), Shutdown::default());
    let (producer, stop) = (queue.clone(), shutdown.clone());
    let mut submits = JoinSet::new();
    submits.spawn(async move {
        let latencies = measure_lone(&producer, &view, receiver, tasks).await;
        stop.drain();
        latencies
    });
    worker.run(shutdown).await?;
    submits.join_next().await.context("the submits were spawned")??
}

async fn measure_lone(
    queue: &Queue,
    view: &WorkerView,
    mut started: mpsc::UnboundedReceiver<Instant>,
    tasks: u64,
) -> anyhow::Result<Histogram> {
    let mut latencies = Histogram::default();
    for nth in 1..=tasks {
        let sent = Instant::now();
        queue.submit_task(NewTask::new(TASK_TYPE, Value::Null)?).await?;
        let started = started.recv().await.context("the worker ended")?;
        latencies.add(started - sent);
        wait_until_completed(view, nth).await;
    }
    Ok(latencies)
}
