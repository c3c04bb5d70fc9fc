//! The command `journal`: tasks of a queue in the journal layout, against a bare loop of the write that a commit needs: append
//! and `fdatasync` in a folder, a put in a bucket.
//!
//! ```text
//!   loop ─ submit, one at a time ─ loop ─ submit, 64 in flight ─ loop ─ submit in bulk ─ loop ─ drain, 8 slots ─ loop …
//! ```
//!
//! The loop is measured before and after every stage, and a stage is compared with the mean of the two.

use anyhow::{Context as _, ensure};
use futures::TryStreamExt;
use leasehold_core::NewTask;
use leasehold_queue::{JournalQueue, Queue, QueueConfig};
use leasehold_worker::{Context, TaskError, Worker, WorkerOptions};
use serde_json::{Value, json};
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use crate::args::{self, BenchStore};
use crate::measure::timed;
use crate::memory;
use crate::operation::BenchRequest;
use crate::report::BenchReport;
use crate::round::{RoundPlan, cpu_time};
use crate::store_under_test::StoreUnderTest;

const TASK_TYPE: &str = "noop";
/// Submits in flight.
const IN_FLIGHT: u64 = 64;
/// Slots of the worker.
const SLOTS: usize = 8;
/// Part of the tasks that are submitted one at a time: each takes a whole commit.
const SINGLE_PART: u64 = 20;
/// Bytes that the bare loop appends: about a commit with one task.
const FRAME_BYTES: usize = 512;

/// Stages of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum JournalStage {
    Single,
    InFlight,
    Bulk,
    Drain,
}

impl JournalStage {
    pub(crate) const ALL: [JournalStage; 4] =
        [JournalStage::Single, JournalStage::InFlight, JournalStage::Bulk, JournalStage::Drain];

    pub(crate) fn name(self) -> &'static str {
        match self {
            JournalStage::Single => "submit, 1 at a time",
            JournalStage::InFlight => "submit, 64 in flight",
            JournalStage::Bulk => "submit in bulk",
            JournalStage::Drain => "drain, 8 slots",
        }
    }
}

/// One stage of one round.
pub(crate) struct StageRound {
    pub(crate) tasks_per_second: f64,
    /// Writes per second of the bare loop.
    pub(crate) loops_per_second: f64,
    /// Processor time of a task, in microseconds.
    pub(crate) cpu_us: f64,
}

/// Measurements of one store.
pub(crate) struct JournalMeasurement {
    pub(crate) stages: Vec<(JournalStage, Vec<StageRound>)>,
    /// Time to open the queue again, with all of its tasks.
    pub(crate) reopened: Duration,
    pub(crate) tasks: u64,
    pub(crate) memory_peak: u64,
}

pub(crate) fn run(args: &args::JournalArgs) -> anyhow::Result<()> {
    ensure!(args.seconds > 0.0 && args.seconds < 60.0, "--seconds must be above 0 and below a minute");
    let runtime = Arc::new(tokio::runtime::Builder::new_multi_thread().enable_all().build()?);
    let mut report = BenchReport::new(args.json);
    let mut folders = Vec::new();
    for place in args.site.stores(&[BenchStore::Folder, BenchStore::S3]) {
        let store = StoreUnderTest::open(place, &args.site, &runtime)?;
        report.journal(place, &measure(args, &store, &runtime)?);
        folders.push(store.into_folder());
    }
    report.finish();
    Ok(())
}

fn measure(
    args: &args::JournalArgs,
    store: &StoreUnderTest,
    runtime: &Arc<Runtime>,
) -> anyhow::Result<JournalMeasurement> {
    let open = || {
        let opening = JournalQueue::with_config(store.client("journal")?, QueueConfig::default());
        anyhow::Ok(Queue::from(runtime.block_on(opening)?))
    };
    let queue = open()?;
    let mut bare = BareLoop::new(store, Duration::from_secs_f64(args.seconds))?;
    let mut stages: Vec<_> = JournalStage::ALL.map(|stage| (stage, Vec::new())).into();
    let mut before = bare.per_second()?;
    for round in 0..=args.rounds {
        for (stage, rounds) in &mut stages {
            BenchReport::progress(store.place, &format!("round {round} of {}: {}", args.rounds, stage.name()));
            let (cpu, began) = (cpu_time(), Instant::now());
            let tasks = runtime.block_on(run_stage(&queue, *stage, args.tasks))?;
            let (lasted, cpu) = (began.elapsed(), cpu_time().saturating_sub(cpu));
            let after = bare.per_second()?;
            // The first round warms up.
            if round > 0 {
                rounds.push(StageRound {
                    tasks_per_second: per(tasks, lasted),
                    loops_per_second: f64::midpoint(before, after),
                    cpu_us: cpu.as_secs_f64() * 1e6 / count(tasks),
                });
            }
            before = after;
        }
    }
    runtime.block_on(queue.close())?;
    let began = Instant::now();
    let again = open()?;
    runtime.block_on(async { again.submit_task(task()?).await.map_err(anyhow::Error::from) })?;
    let reopened = began.elapsed();
    let stats = runtime.block_on(again.stats())?;
    let finished: u64 = stats.finished.unwrap_or_default().values().sum();
    runtime.block_on(again.close())?;
    Ok(JournalMeasurement { stages, reopened, tasks: stats.due + finished, memory_peak: memory::peak()? })
}

fn task() -> anyhow::Result<NewTask> {
    Ok(NewTask::new(TASK_TYPE, json!({"url": "https://example.com/some/picture.png", "width": 640}))?)
}

/// Runs a stage, and returns its number of tasks.
async fn run_stage(queue: &Queue, stage: JournalStage, tasks: u64) -> anyhow::Result<u64> {
    match stage {
        JournalStage::Single => {
            let tasks = tasks.div_ceil(SINGLE_PART);
            for _ in 0..tasks {
                queue.submit_task(task()?).await?;
            }
            Ok(tasks)
        }
        JournalStage::InFlight => {
            let mut submits = JoinSet::new();
            for _ in 0..IN_FLIGHT {
                let queue = queue.clone();
                submits.spawn(async move {
                    for _ in 0..tasks / IN_FLIGHT {
                        queue.submit_task(task()?).await?;
                    }
                    anyhow::Ok(())
                });
            }
            while let Some(ended) = submits.join_next().await {
                ended??;
            }
            Ok(tasks / IN_FLIGHT * IN_FLIGHT)
        }
        JournalStage::Bulk => {
            let new_tasks = (0..tasks).map(|_| task()).collect::<anyhow::Result<Vec<_>>>()?;
            let submits = new_tasks.into_iter().map(|new_task| queue.submit_task(new_task));
            queue.submit_many(submits).try_for_each(|_| async { Ok(()) }).await?;
            Ok(tasks)
        }
        JournalStage::Drain => {
            let worker = Worker::new(queue.clone(), "bench", None)?;
            let worker = worker.handle(TASK_TYPE, |_: Context, _: Value| async { Ok::<_, TaskError>(()) })?;
            let options = WorkerOptions { concurrency: SLOTS, ..WorkerOptions::default() };
            Ok(worker.options(options).run_until_empty().await?.completed)
        }
    }
}

/// The write that a commit needs, in a loop without anything else.
struct BareLoop<'a> {
    store: &'a StoreUnderTest,
    file: Option<File>,
    time: Duration,
    round: u32,
}

impl<'a> BareLoop<'a> {
    fn new(store: &'a StoreUnderTest, time: Duration) -> anyhow::Result<Self> {
        let file = match store.place {
            BenchStore::S3 => None,
            BenchStore::Folder | BenchStore::Os => {
                Some(File::create(Path::new(&store.address("bare.log"))).context("failed to create a file")?)
            }
        };
        Ok(Self { store, file, time, round: 0 })
    }

    fn per_second(&mut self) -> anyhow::Result<f64> {
        self.round += 1;
        let Some(file) = &mut self.file else {
            let plan = RoundPlan {
                operation: BenchRequest::Put,
                directory: "bare",
                round: self.round,
                shares: vec![u64::MAX],
                time: self.time,
            };
            return Ok(timed(&*self.store.plain, &plan)?.per_second());
        };
        let (began, mut writes) = (Instant::now(), 0);
        while began.elapsed() < self.time {
            file.write_all(&[b'x'; FRAME_BYTES])?;
            if self.store.place == BenchStore::Folder {
                file.sync_data()?;
            }
            writes += 1;
        }
        Ok(per(writes, began.elapsed()))
    }
}

fn per(number: u64, time: Duration) -> f64 {
    count(number) / time.as_secs_f64()
}

#[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52 tasks")]
fn count(number: u64) -> f64 {
    number as f64
}
