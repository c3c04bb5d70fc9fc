//! The command `depth`: cost of a task and memory of the worker, with few and with many pending tasks.
//!
//! Each depth is a queue of its own in one store. It is filled up to its depth before every round; then a
//! worker, a process of its own, runs some of its tasks. The depths alternate, so that other load on the
//! machine affects all alike.

use anyhow::{Context, ensure};
use leasehold_queue::{ObjectQueue, Queue};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::sync::Arc;
use tokio::runtime::Runtime;

use crate::args::{self, BenchStore};
use crate::measure::WORKERS;
use crate::memory;
use crate::queue::{run_tasks, submit_tasks};
use crate::report::BenchReport;
use crate::store_under_test::StoreUnderTest;

/// A queue of one depth.
pub(crate) struct Level {
    pub(crate) waiting: u64,
    /// Measurements of its workers, in the measured rounds.
    pub(crate) rounds: Vec<WorkerMeasurement>,
    queue: Queue,
    missing: u64,
}

/// Measurement of one worker, reported by its process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct WorkerMeasurement {
    pub(crate) tasks: u64,
    pub(crate) seconds: f64,
    pub(crate) cpu_seconds: f64,
    /// Requests by verb, purpose and outcome.
    pub(crate) requests: BTreeMap<String, u64>,
    pub(crate) memory_peak: u64,
}

pub(crate) fn run(args: &args::DepthArgs) -> anyhow::Result<()> {
    let least = args.waiting.iter().min().copied().unwrap_or_default();
    ensure!(args.tasks < least, "--tasks must be below every --waiting, so that the worker never idles");
    let runtime = Arc::new(tokio::runtime::Builder::new_multi_thread().enable_all().build()?);
    let mut report = BenchReport::new(args.json);
    let mut folders = Vec::new();
    for place in args.site.stores(&[BenchStore::S3]) {
        let store = StoreUnderTest::open(place, &args.site, &runtime)?;
        report.depth(place, &measure(args, &store, &runtime)?);
        folders.push(store.into_folder());
    }
    report.finish();
    Ok(())
}

fn measure(
    args: &args::DepthArgs,
    store: &StoreUnderTest,
    runtime: &Arc<Runtime>,
) -> anyhow::Result<Vec<Level>> {
    let level = |waiting: &u64| {
        let client = store.client(&name(*waiting))?;
        let queue = runtime.block_on(ObjectQueue::connect(client))?.into();
        Ok(Level { waiting: *waiting, rounds: Vec::new(), queue, missing: *waiting })
    };
    let mut levels: Vec<_> = args.waiting.iter().map(level).collect::<anyhow::Result<_>>()?;
    for round in 0..=args.rounds {
        for level in &mut levels {
            BenchReport::progress(store.place, &format!("{} waiting, round {round}", level.waiting));
            submit_tasks(&level.queue, level.missing, runtime)?;
            let measured = run_worker(args, store, level.waiting)?;
            level.missing = measured.tasks;
            // The first round warms up.
            if round > 0 {
                level.rounds.push(measured);
            }
        }
    }
    Ok(levels)
}

fn name(waiting: u64) -> String {
    format!("waiting-{waiting}")
}

/// Runs a worker in a process of its own.
fn run_worker(
    args: &args::DepthArgs,
    store: &StoreUnderTest,
    waiting: u64,
) -> anyhow::Result<WorkerMeasurement> {
    let mut worker = Command::new(std::env::current_exe()?);
    worker.args(["work", "--place", store.place.name(), "--address", &store.address(&name(waiting))]);
    worker.args(["--tasks", &args.tasks.to_string()]);
    if let Some(endpoint) = store.endpoint() {
        worker.args(["--endpoint", endpoint]);
    }
    let ended = worker.stderr(Stdio::inherit()).output()?;
    ensure!(ended.status.success(), "the worker failed: {}", ended.status);
    serde_json::from_slice(&ended.stdout).context("failed to parse the output of the worker")
}

/// Process of a worker.
pub(crate) fn work(args: &args::WorkArgs) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let client = args.place.client()?;
    let queue = Queue::from(runtime.block_on(ObjectQueue::connect(client))?);
    let ledger = queue.client()?.ledger();
    let before = ledger.snapshot();
    let round = runtime.block_on(run_tasks(&queue, args.tasks, WORKERS))?;
    let requests = ledger.snapshot().since(&before);
    BenchReport::worker_measurement(&WorkerMeasurement {
        tasks: round.operations,
        seconds: round.lasted.as_secs_f64(),
        cpu_seconds: round.cpu.as_secs_f64(),
        requests: requests.lines().map(|(line, count)| (line.to_string(), count.requests)).collect(),
        memory_peak: memory::peak()?,
    })
}
