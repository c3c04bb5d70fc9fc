//! The command `journal`: tasks of a journal are submitted and run in this process, against the bare cost of a commit.
//!
//! ```text
//!   bare ─ single submits ─ bare ─ 64 in flight ─ bare ─ in bulk ─ bare ─ drain ─ bare …        then one task at a time
//! ```
//!
//! A bare commit is an append and a sync of a file in the same folder, or a put of a new object in the same bucket, one at a
//! time and of the size of a commit with one submit. It is measured before and after every stage, and a stage is compared
//! with the mean of the two, so that other load on the machine affects all alike.

use anyhow::{Context, ensure};
use futures::TryStreamExt;
use leasehold_queue::{LayoutName, Queue, QueueConfig};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

use crate::args::{self, BenchStore};
use crate::histogram::Histogram;
use crate::measure::WORKERS;
use crate::memory;
use crate::operation::BenchRequest;
use crate::queue::{LONE, TASK_TYPE, one_at_a_time, run_tasks, submit_tasks};
use crate::report::BenchReport;
use crate::round::{RoundPlan, cpu_time};
use crate::store_under_test::StoreUnderTest;

/// Size of a commit with one submit of a task of this benchmark.
const COMMIT_BYTES: usize = 700;
/// Slots of a worker on a bucket.
const BUCKET_SLOTS: u64 = 2_048;
/// Time of a measurement of bare commits.
const BARE_TIME: Duration = Duration::from_millis(500);

/// Measurements of one store.
pub(crate) struct JournalMeasurement {
    pub(crate) stages: Vec<JournalStage>,
    /// Latency from before the submit to the handler, with an idle worker in the same process.
    pub(crate) lone: Histogram,
    pub(crate) waiting: Option<Waiting>,
}

/// One stage, in all measured rounds.
pub(crate) struct JournalStage {
    pub(crate) name: &'static str,
    pub(crate) rounds: Vec<JournalRates>,
}

/// Rates of one round.
pub(crate) struct JournalRates {
    /// Tasks per second.
    pub(crate) ours: f64,
    /// Bare commits per second.
    pub(crate) bare: f64,
    /// Requests to the store per task. A folder's log makes none.
    pub(crate) requests: f64,
    /// Processor time of this process per task, in microseconds. Other load on the machine hardly changes it.
    pub(crate) cpu_micros: f64,
}

/// Measurements with many pending tasks.
pub(crate) struct Waiting {
    pub(crate) tasks: u64,
    /// Of the process that filled the queue.
    pub(crate) filled: ProcessMeasurement,
    /// Of the process that opened it after the first was killed.
    pub(crate) opened: ProcessMeasurement,
}

/// Measurement of another process.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ProcessMeasurement {
    /// Time to fill the queue, or from its opening until a task was submitted.
    pub(crate) seconds: f64,
    pub(crate) memory_bytes: u64,
}

pub(crate) fn run(args: &args::JournalArgs) -> anyhow::Result<()> {
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
    let queue = runtime.block_on(open(store.client("journal")?))?;
    let names = ["single", "64 in flight", "bulk", "drain"];
    let mut stages = names.map(|name| JournalStage { name, rounds: Vec::new() });
    // In a bucket a commit takes 60 ms: the time for which it waits for more records, and a put. So single submits are few,
    // and the rate of a worker depends on its slots.
    let (pace, lone, slots) =
        if store.place == BenchStore::S3 { (200, LONE / 5, BUCKET_SLOTS) } else { (10, LONE, WORKERS) };
    let mut bare = BareCommits { store, runtime, rounds: 0 };
    for round in 0..=args.rounds {
        BenchReport::progress(store.place, &format!("round {round} of {}", args.rounds));
        let single = (args.tasks / pace).max(1);
        let waiting = single + 2 * args.tasks;
        for (stage, tasks) in stages.iter_mut().zip([single, args.tasks, args.tasks, waiting]) {
            let before = bare.measure()?;
            let requests = queue.client()?.ledger().snapshot();
            let cpu = cpu_time();
            let ours = match stage.name {
                "single" => runtime.block_on(submit_one_by_one(&queue, tasks, args.input_bytes))?,
                "64 in flight" => submit_tasks(&queue, tasks, runtime)?.per_second(),
                "bulk" => runtime.block_on(submit_in_bulk(&queue, tasks, args.input_bytes))?,
                _ => runtime.block_on(run_tasks(&queue, tasks, slots))?.per_second(),
            };
            let cpu = cpu_time().saturating_sub(cpu);
            let requests: u64 = queue
                .client()?
                .ledger()
                .snapshot()
                .since(&requests)
                .lines()
                .map(|(_, count)| count.requests)
                .sum();
            let bare = f64::midpoint(before, bare.measure()?);
            // The first round warms up.
            if round > 0 {
                let cpu_micros = 1e6 * cpu.as_secs_f64() / count(tasks);
                stage.rounds.push(JournalRates {
                    ours,
                    bare,
                    requests: count(requests) / count(tasks),
                    cpu_micros,
                });
            }
        }
    }
    let lone = runtime.block_on(one_at_a_time(&queue, lone))?;
    runtime.block_on(queue.close())?;
    let waiting = if args.waiting > 0 { Some(measure_waiting(args, store)?) } else { None };
    Ok(JournalMeasurement { stages: stages.into(), lone, waiting })
}

async fn open(client: leasehold_store::Client) -> leasehold_core::Result<Queue> {
    let config = QueueConfig { layout: Some(LayoutName::Journal), transport: None, ..QueueConfig::default() };
    Queue::with_config(client, config).await
}

/// Input of this many bytes, at least eleven.
fn input(bytes: usize) -> Value {
    json!({"pad": "x".repeat(bytes.saturating_sub(r#"{"pad":""}"#.len()))})
}

async fn submit_one_by_one(queue: &Queue, tasks: u64, bytes: usize) -> anyhow::Result<f64> {
    let began = Instant::now();
    for _ in 0..tasks {
        queue.submit(TASK_TYPE, input(bytes)).await?;
    }
    Ok(rate(tasks, began))
}

async fn submit_in_bulk(queue: &Queue, tasks: u64, bytes: usize) -> anyhow::Result<f64> {
    let began = Instant::now();
    let submits = (0..tasks).map(|_| queue.submit(TASK_TYPE, input(bytes)));
    let submitted = queue.submit_many(submits).try_fold(0, async |count, _| Ok(count + 1)).await?;
    ensure!(submitted == tasks, "{submitted} of {tasks} tasks were submitted");
    Ok(rate(tasks, began))
}

/// Commits without Leasehold.
struct BareCommits<'a> {
    store: &'a StoreUnderTest,
    runtime: &'a Arc<Runtime>,
    rounds: u32,
}

impl BareCommits<'_> {
    /// Measures bare commits per second, one at a time.
    fn measure(&mut self) -> anyhow::Result<f64> {
        self.rounds += 1;
        match self.store.place {
            BenchStore::S3 => {
                let (operation, shares) = (BenchRequest::Put, vec![u64::MAX]);
                let plan =
                    RoundPlan { operation, directory: "bare", round: self.rounds, shares, time: BARE_TIME };
                // Puts of the bucket are asynchronous, as those of the journal are.
                let _runtime = self.runtime.enter();
                Ok(self.store.plain.round(&plan)?.per_second())
            }
            BenchStore::Folder | BenchStore::Os => {
                let path = self.store.address(&format!("bare-{}", self.rounds));
                append_and_sync(Path::new(&path), self.store.place == BenchStore::Folder)
            }
        }
    }
}

fn append_and_sync(path: &Path, is_synced: bool) -> anyhow::Result<f64> {
    let (mut file, bytes) = (File::create(path)?, [b'x'; COMMIT_BYTES]);
    let (began, mut count) = (Instant::now(), 0);
    while began.elapsed() < BARE_TIME {
        file.write_all(&bytes)?;
        if is_synced {
            file.sync_data()?;
        }
        count += 1;
    }
    Ok(rate(count, began))
}

/// Fills a queue in another process, kills it, and opens the queue in a third.
fn measure_waiting(args: &args::JournalArgs, store: &StoreUnderTest) -> anyhow::Result<Waiting> {
    let start = |fill: u64| {
        let mut command = Command::new(std::env::current_exe()?);
        command.args([
            "journal-process",
            "--place",
            store.place.name(),
            "--address",
            &store.address("waiting"),
        ]);
        command
            .args(["--fill", &fill.to_string(), "--input-bytes", &args.input_bytes.to_string()])
            .args(store.endpoint().map(|url| format!("--endpoint={url}")));
        let mut child = command.stdout(Stdio::piped()).stdin(Stdio::piped()).spawn()?;
        let mut line = String::new();
        let output = child.stdout.take().context("its output is a pipe")?;
        BufReader::new(output).read_line(&mut line)?;
        // SIGKILL: it has no time to write a snapshot, or to release its lease.
        child.kill()?;
        child.wait()?;
        serde_json::from_str(&line)
            .with_context(|| format!("failed to parse the output `{line}` of the process"))
    };
    Ok(Waiting { tasks: args.waiting, filled: start(args.waiting)?, opened: start(0)? })
}

/// Process that fills or opens a queue, reports, and waits to be killed.
pub(crate) fn process(args: &args::JournalProcessArgs) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let began = Instant::now();
    let client = args.place.client()?;
    let queue = runtime.block_on(open(client))?;
    runtime.block_on(submit_in_bulk(&queue, args.fill.max(1), args.input_bytes))?;
    let seconds = began.elapsed().as_secs_f64();
    BenchReport::process_measurement(&ProcessMeasurement { seconds, memory_bytes: memory::resident()? })?;
    // Until the parent ends, if it does not kill this process.
    std::io::stdin().lines().for_each(drop);
    Ok(())
}

fn rate(done: u64, began: Instant) -> f64 {
    count(done) / began.elapsed().as_secs_f64()
}

#[expect(clippy::cast_precision_loss, reason = "a round has far fewer than 2^52 tasks and requests")]
fn count(number: u64) -> f64 {
    number as f64
}
