//! The command `depth`: cost of a task and memory of the worker, with few and with many waiting tasks.
//!
//! Each depth is a queue of its own in one store. It is filled up to its depth before every round; then a
//! worker, a process of its own, runs some of its tasks. The depths alternate, so that other load on the
//! machine affects all alike.

use anyhow::{Context, ensure};
use leasehold_queue::Queue;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::sync::Arc;
use tokio::runtime::Runtime;

use crate::args::{self, PlaceArgs};
use crate::ground::{self, Ground};
use crate::memory;
use crate::queue::{submitted, worked};
use crate::report::BenchReport;

/// A queue of one depth.
pub(crate) struct Level {
    pub(crate) waiting: u64,
    /// Measurements of its workers, in the measured rounds.
    pub(crate) shifts: Vec<Shift>,
    queue: Queue,
    missing: u64,
}

/// Measurement of one worker, reported by its process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Shift {
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
    for place in args.site.places(&[PlaceArgs::S3]) {
        let ground = Ground::open(place, &args.site, &runtime)?;
        report.depth(place, &measure(args, &ground, &runtime)?);
        folders.push(ground.leave());
    }
    report.finish();
    Ok(())
}

fn measure(args: &args::DepthArgs, ground: &Ground, runtime: &Arc<Runtime>) -> anyhow::Result<Vec<Level>> {
    let level = |waiting: &u64| {
        let client = ground.client(&name(*waiting))?;
        let queue = runtime.block_on(Queue::connect(client))?;
        Ok(Level { waiting: *waiting, shifts: Vec::new(), queue, missing: *waiting })
    };
    let mut levels: Vec<_> = args.waiting.iter().map(level).collect::<anyhow::Result<_>>()?;
    for round in 0..=args.rounds {
        for level in &mut levels {
            BenchReport::progress(ground.place, &format!("{} waiting, round {round}", level.waiting));
            submitted(&level.queue, level.missing, runtime)?;
            let shift = shift(args, ground, level.waiting)?;
            level.missing = shift.tasks;
            // The first round warms up.
            if round > 0 {
                level.shifts.push(shift);
            }
        }
    }
    Ok(levels)
}

fn name(waiting: u64) -> String {
    format!("waiting-{waiting}")
}

/// Runs a worker in a process of its own.
fn shift(args: &args::DepthArgs, ground: &Ground, waiting: u64) -> anyhow::Result<Shift> {
    let mut worker = Command::new(std::env::current_exe()?);
    worker.args(["work", "--place", ground.place.name(), "--address", &ground.address(&name(waiting))]);
    worker.args(["--tasks", &args.tasks.to_string()]);
    if let Some(endpoint) = ground.endpoint() {
        worker.args(["--endpoint", endpoint]);
    }
    let ended = worker.stderr(Stdio::inherit()).output()?;
    ensure!(ended.status.success(), "the worker failed: {}", ended.status);
    serde_json::from_slice(&ended.stdout).context("failed to parse the output of the worker")
}

/// Process of a worker.
pub(crate) fn work(args: &args::WorkArgs) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let client = ground::client(args.place, &args.address, args.endpoint.as_deref())?;
    let queue = runtime.block_on(Queue::connect(client))?;
    let before = queue.client().ledger().snapshot();
    let round = runtime.block_on(worked(&queue, args.tasks))?;
    let requests = queue.client().ledger().snapshot().since(&before);
    BenchReport::shift(&Shift {
        tasks: round.operations,
        seconds: round.lasted.as_secs_f64(),
        cpu_seconds: round.cpu.as_secs_f64(),
        requests: requests.lines().map(|(line, count)| (line.to_string(), count.requests)).collect(),
        memory_peak: memory::peak()?,
    })
}
