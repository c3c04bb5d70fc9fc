//! The command `queue`: tasks are submitted and then worked off, 64 in flight, against the limit of the same store.
//!
//! ```text
//!   pace ─ submit ─ pace ─ work ─ pace ─ submit ─ pace ─ work ─ pace …        then one task at a time
//! ```
//!
//! The pace of plain calls is measured before and after every stage, and a stage is compared with the mean of the
//! two: whatever else the machine does hits all alike.

use anyhow::{Context as _, ensure};
use leasehold_core::NewTask;
use leasehold_queue::Queue;
use leasehold_store::ledger::Line;
use leasehold_store::{Ledger, Snapshot};
use leasehold_worker::{Context, Monitor, Shutdown, TaskError, Worker, WorkerOptions};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::args::{self, Place};
use crate::ground::Ground;
use crate::histogram::Histogram;
use crate::limit::{Mix, Pace};
use crate::measure::{UNTIMED, WORKERS, prepare, shares};
use crate::memory;
use crate::operation::{Operation, Spot};
use crate::report::Report;
use crate::side::{Calls, Plan, Round, Side, Tasks, cpu_time};

const TASK_TYPE: &str = "noop";
/// How often to look whether all is done: no event tells, and a round takes seconds.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// So many tasks are run one at a time.
const LONE: u64 = 100;

/// What the tasks of one store came to.
pub(crate) struct Worked {
    pub(crate) submit: Stage,
    pub(crate) work: Stage,
    /// From before the submit to the handler, with an idle worker in the same process.
    pub(crate) lone: Histogram,
    pub(crate) memory_peak: u64,
}

/// One half of the tasks' lives, in all rounds that count.
#[derive(Default)]
pub(crate) struct Stage {
    pub(crate) tasks: u64,
    pub(crate) requests: BTreeMap<Line, u64>,
    pub(crate) rounds: Vec<Rates>,
    pub(crate) latencies: Histogram,
    pub(crate) cpu: Duration,
}

/// Tasks in a second.
pub(crate) struct Rates {
    pub(crate) ours: f64,
    /// What all requests allow.
    pub(crate) limit: f64,
    /// What the writes alone allow.
    pub(crate) write_limit: f64,
}

pub(crate) fn run(args: &args::Queue) -> anyhow::Result<()> {
    ensure!(args.seconds > 0.0 && args.seconds < 60.0, "--seconds must be above 0 and below a minute");
    let runtime = Arc::new(tokio::runtime::Builder::new_multi_thread().enable_all().build()?);
    let mut report = Report::new(args.json);
    let mut folders = Vec::new();
    for place in args.site.places(&[Place::Folder, Place::S3]) {
        let ground = Ground::open(place, &args.site, &runtime)?;
        report.queue(place, &measure(args, &ground, &runtime)?);
        folders.push(ground.leave());
    }
    report.finish();
    Ok(())
}

fn measure(args: &args::Queue, ground: &Ground, runtime: &Arc<Runtime>) -> anyhow::Result<Worked> {
    let queue = runtime.block_on(Queue::connect(ground.client("ours")?))?;
    prepare(&*ground.plain)?;
    let mut paces = 0;
    let mut pace = || {
        paces += 1;
        Pace::measure(&*ground.plain, paces, Duration::from_secs_f64(args.seconds))
    };
    let (mut submit, mut work) = (Stage::default(), Stage::default());
    let mut before = pace()?;
    for round in 0..=args.rounds {
        Report::progress(ground.place, &format!("round {round} of {}", args.rounds));
        let submitted = counted(queue.client().ledger(), || submitted(&queue, args.tasks, runtime))?;
        let between = pace()?;
        let worked = counted(queue.client().ledger(), || runtime.block_on(worked(&queue, args.tasks)))?;
        let after = pace()?;
        // The first one warms up.
        if round > 0 {
            submit.count(&submitted, &before.mean(&between));
            work.count(&worked, &between.mean(&after));
        }
        before = after;
    }
    let lone = runtime.block_on(one_at_a_time(&queue))?;
    Ok(Worked { submit, work, lone, memory_peak: memory::peak()? })
}

/// A round, and the requests it took.
fn counted(
    ledger: &Ledger,
    round: impl FnOnce() -> anyhow::Result<Round>,
) -> anyhow::Result<(Round, Snapshot)> {
    let before = ledger.snapshot();
    let round = round()?;
    Ok((round, ledger.snapshot().since(&before)))
}

impl Stage {
    fn count(&mut self, (round, requests): &(Round, Snapshot), pace: &Pace) {
        let mix = Mix::of(requests, round.operations);
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

/// Submits so many tasks, 64 in flight.
pub(crate) fn submitted(queue: &Queue, tasks: u64, runtime: &Arc<Runtime>) -> anyhow::Result<Round> {
    let side = Tasks { calls: Arc::new(Submits(queue.clone())), runtime: runtime.clone() };
    // Tasks have keys of their own, so the plan's are not used.
    side.round(&Plan {
        operation: Operation::Put,
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

    async fn call(&self, _: Operation, _: Spot, _: &mut Option<()>) -> anyhow::Result<()> {
        self.0.submit_task(NewTask::new(TASK_TYPE, Value::Null)?).await?;
        Ok(())
    }
}

/// Works off at least so many tasks, 64 at once.
pub(crate) async fn worked(queue: &Queue, tasks: u64) -> anyhow::Result<Round> {
    let worker = worker(queue, || ())?;
    let (monitor, shutdown) = (worker.monitor(), Shutdown::default());
    let (cpu, began) = (cpu_time(), Instant::now());
    let mut watch = JoinSet::new();
    let stop = shutdown.clone();
    watch.spawn(async move {
        completed(&monitor, tasks).await;
        // What is still under way counts as well, so the end is when the worker has ended.
        stop.drain();
    });
    let counts = worker.run(shutdown).await?;
    Ok(Round {
        operations: counts.completed,
        latencies: Histogram::default(),
        lasted: began.elapsed(),
        cpu: cpu_time().saturating_sub(cpu),
    })
}

fn worker(queue: &Queue, started: impl Fn() + Send + Sync + 'static) -> anyhow::Result<Worker> {
    let worker = Worker::new(queue.clone(), "bench", None)?;
    let worker = worker.handle(TASK_TYPE, move |_: Context, _: Value| {
        started();
        async { Ok::<_, TaskError>(()) }
    })?;
    let concurrency = usize::try_from(WORKERS)?;
    Ok(worker.options(WorkerOptions { concurrency, ..WorkerOptions::default() }))
}

async fn completed(monitor: &Monitor, tasks: u64) {
    while monitor.counts().completed < tasks {
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// From before the submit to the handler, one task at a time.
async fn one_at_a_time(queue: &Queue) -> anyhow::Result<Histogram> {
    let (tell, told) = mpsc::unbounded_channel();
    let worker = worker(queue, move || {
        // Nobody listens any more once the last one was heard of.
        let _ = tell.send(Instant::now());
    })?;
    let (monitor, shutdown) = (worker.monitor(), Shutdown::default());
    let (producer, stop) = (queue.clone(), shutdown.clone());
    let mut submits = JoinSet::new();
    submits.spawn(async move {
        let latencies = lone(&producer, &monitor, told).await;
        stop.drain();
        latencies
    });
    worker.run(shutdown).await?;
    submits.join_next().await.context("it was spawned")??
}

async fn lone(
    queue: &Queue,
    monitor: &Monitor,
    mut started: mpsc::UnboundedReceiver<Instant>,
) -> anyhow::Result<Histogram> {
    let mut latencies = Histogram::default();
    for nth in 1..=LONE {
        let asked = Instant::now();
        queue.submit_task(NewTask::new(TASK_TYPE, Value::Null)?).await?;
        let started = started.recv().await.context("the worker has ended")?;
        latencies.add(started - asked);
        completed(monitor, nth).await;
    }
    Ok(latencies)
}
