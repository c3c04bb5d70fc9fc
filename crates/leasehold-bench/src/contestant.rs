//! The command `contestant`: one stage of a comparison of task queues, in a process of its own.
//!
//! The program that compares starts a process per stage, in every queue the same way, and names the stage by a verb. Tasks do
//! nothing but append a line to a common file, the *marks*, when they start: number, time and process. The queue is in the
//! folder `q` below `BENCH_DIR`.

use anyhow::{Context as _, ensure};
use futures::TryStreamExt;
use leasehold_broker::BrokerConnections;
use leasehold_queue::{LayoutName, Queue, QueueConfig};
use leasehold_store::OpenMode;
use leasehold_worker::{Context, Shutdown, TaskError, Worker, WorkerOptions};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;

use crate::args::{ContestantArgs, ContestantVerb};
use crate::queue::TASK_TYPE;
use crate::report::BenchReport;

/// Interval of `watch`.
const WATCH_EVERY: Duration = Duration::from_millis(20);

/// Input of a task, about 100 bytes as JSON.
#[derive(Debug, Serialize, Deserialize)]
struct Input {
    seq: u64,
    sleep: f64,
    pad: String,
}

impl Input {
    fn new(seq: u64) -> Self {
        Self { seq, sleep: 0.0, pad: "x".repeat(66) }
    }
}

pub(crate) fn run(args: &ContestantArgs) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let queue = open(args).await?;
        stage(args, &queue).await?;
        Ok(queue.close().await?)
    })
}

async fn open(args: &ContestantArgs) -> anyhow::Result<Queue> {
    let config = QueueConfig {
        layout: Some(if args.objects { LayoutName::Objects } else { LayoutName::Journal }),
        transport: Some(Arc::new(BrokerConnections::new(args.bench_dir.join("sockets"), None))),
        mode: OpenMode::Create,
        ..QueueConfig::default()
    };
    Ok(Queue::with_config(args.bench_dir.join("q").as_path(), config).await?)
}

async fn stage(args: &ContestantArgs, queue: &Queue) -> anyhow::Result<()> {
    match args.verb {
        ContestantVerb::Init => Ok(()),
        ContestantVerb::Enqueue { tasks } => enqueue(queue, tasks).await,
        ContestantVerb::Bulk { tasks } => bulk(queue, tasks).await,
        ContestantVerb::Worker => work(args, queue).await,
        ContestantVerb::Watch => watch(queue).await,
        ContestantVerb::Trickle { tasks, every_ms, first } => trickle(queue, tasks, every_ms, first).await,
        ContestantVerb::Sleeper { seq, seconds } => {
            queue.submit(TASK_TYPE, Input { sleep: seconds, ..Input::new(seq) }).await?;
            Ok(())
        }
    }
}

async fn enqueue(queue: &Queue, tasks: u64) -> anyhow::Result<()> {
    unfinished(queue).await?;
    let began = Instant::now();
    for seq in 0..tasks {
        queue.submit(TASK_TYPE, Input::new(seq)).await?;
    }
    BenchReport::line(&json!({"n": tasks, "seconds": began.elapsed().as_secs_f64()}))
}

async fn bulk(queue: &Queue, tasks: u64) -> anyhow::Result<()> {
    unfinished(queue).await?;
    let began = Instant::now();
    let submits = (0..tasks).map(|seq| queue.submit(TASK_TYPE, Input::new(seq)));
    let submitted = queue.submit_many(submits).try_fold(0, async |count, _| Ok(count + 1)).await?;
    let seconds = began.elapsed().as_secs_f64();
    ensure!(submitted == tasks, "{submitted} of {tasks} tasks were submitted");
    BenchReport::line(&json!({"n": tasks, "seconds": seconds, "unfinished": unfinished(queue).await?}))
}

async fn work(args: &ContestantArgs, queue: &Queue) -> anyhow::Result<()> {
    let marks = OpenOptions::new().append(true).create(true).open(args.bench_dir.join("marks"))?;
    let marks = Arc::new(marks);
    let worker = Worker::new(queue.clone(), &format!("bench-{}", std::process::id()), None)?.handle(
        TASK_TYPE,
        move |_: Context, input: Input| {
            let marked = mark(&marks, input.seq);
            async move {
                marked?;
                if input.sleep > 0.0 {
                    tokio::time::sleep(Duration::from_secs_f64(input.sleep)).await;
                }
                Ok::<_, TaskError>(())
            }
        },
    )?;
    let mut options = WorkerOptions { concurrency: args.concurrency, ..WorkerOptions::default() };
    if args.mode == "tuned" {
        options.lease = Duration::from_secs(10);
    }
    let shutdown = Shutdown::default();
    let (stop, mut terminated) = (shutdown.clone(), signal(SignalKind::terminate())?);
    let mut stopper = JoinSet::new();
    stopper.spawn(async move {
        terminated.recv().await;
        stop.drain();
    });
    worker.options(options).run(shutdown).await?;
    Ok(())
}

/// Appends a line to the marks in one write.
fn mark(mut marks: &File, seq: u64) -> std::io::Result<()> {
    marks.write_all(format!("{seq} {} {}\n", unix_time().as_nanos(), std::process::id()).as_bytes())
}

async fn watch(queue: &Queue) -> anyhow::Result<()> {
    BenchReport::line(&json!({"ready": true, "unfinished": unfinished(queue).await?}))?;
    loop {
        let left = unfinished(queue).await?;
        BenchReport::line(&json!({"t": unix_time().as_secs_f64(), "unfinished": left}))?;
        if left == 0 {
            return Ok(());
        }
        tokio::time::sleep(WATCH_EVERY).await;
    }
}

async fn trickle(queue: &Queue, tasks: u64, every_ms: f64, first: u64) -> anyhow::Result<()> {
    unfinished(queue).await?;
    let mut submits = Vec::new();
    let mut durations = Vec::new();
    let mut tick = tokio::time::interval(Duration::from_secs_f64(every_ms / 1e3));
    tick.tick().await;
    for seq in first..first + tasks {
        tick.tick().await;
        let (at, began) = (unix_time(), Instant::now());
        queue.submit(TASK_TYPE, Input::new(seq)).await?;
        durations.push(u64::try_from(began.elapsed().as_nanos())?);
        submits.push(u64::try_from(at.as_nanos())?);
    }
    BenchReport::line(&json!({"submits": submits, "submit_ns": durations}))
}

/// Tasks that are not final. Also opens the connection to the broker, before anything is timed.
async fn unfinished(queue: &Queue) -> anyhow::Result<u64> {
    let stats = queue.stats().await.context("failed to count the tasks")?;
    Ok(stats.due + stats.scheduled + stats.running)
}

fn unix_time() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
