//! `leasehold demo`: creates a queue in a temporary folder, runs tasks in two processes, kills one of them, recovers its
//! tasks, and shows the history of one of them and the cost on S3.

use anyhow::Context;
use futures::StreamExt;
use futures::future::{Either, select};
use leasehold_core::{Error, Kind, NewTask, Status, Task, TaskId};
use leasehold_queue::{Filter, Queue, QueueConfig};
use leasehold_store::{Client, FolderOptions, FolderStore, Host, Prices, SystemHost, Verb};
use leasehold_worker::Shutdown;
use leasehold_worker::shutdown::Stage;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use tokio::process::{Child, Command};

use super::get::print_history;
use crate::printer::{Printer, Style, line};
use crate::run_dirs::RunDirectory;

const TASKS: u64 = 200;
/// Short, so that the tasks of the killed worker are recovered within seconds.
const LEASE_SECS: u64 = 3;
/// Time limit of the demo. It takes about ten seconds; a busy machine may need a few times that.
const TIME_LIMIT: Duration = Duration::from_mins(3);
/// Interval at which the progress of the workers is read.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Task type of the demo.
const TYPE: &str = "resize";

pub(crate) async fn run(program: &[OsString], printer: &Printer, shutdown: Shutdown) -> anyhow::Result<()> {
    let folder = RunDirectory::new()?;
    let host: Arc<dyn Host> = Arc::new(SystemHost);
    let late = host.sleep(TIME_LIMIT);
    let stop = select(late, Box::pin(shutdown.reached(Stage::Drain)));
    match select(Box::pin(run_steps(program, folder.path(), &host, printer)), stop).await {
        Either::Left((result, _)) => result,
        Either::Right((Either::Left(_), _)) => {
            let message = format!("demo did not finish within {} s; try again", TIME_LIMIT.as_secs());
            Err(Error::new(Kind::Unavailable, message).into())
        }
        Either::Right((Either::Right(_), _)) => Ok(()),
    }
}

async fn run_steps(
    program: &[OsString],
    folder: &Path,
    host: &Arc<dyn Host>,
    printer: &Printer,
) -> anyhow::Result<()> {
    let step = |number: u32, text: &str| {
        line(format_args!("\n{} {text}", printer.paint(Style::Strong, &format!("{number}."))));
    };
    step(1, &format!("Create a queue in the folder {}: no server, no database.", folder.display()));
    let store = FolderStore::open(folder, FolderOptions::default(), host)?;
    let client = Client::new(Arc::new(store), host.clone());
    let queue =
        Queue::with_config(client, QueueConfig { by: "demo".into(), ..QueueConfig::default() }).await?;

    step(2, &format!("Submit {TASKS} tasks. Each is one file, created with a conditional write."));
    let bar = printer.bar(TASKS, "submitting");
    let tasks = (0..TASKS).map(|number| NewTask::new(TYPE, json!({"image": number})));
    let tasks = tasks.collect::<leasehold_core::Result<Vec<_>>>()?;
    let submits = tasks.into_iter().map(|task| queue.submit_task(task));
    let mut submitted = std::pin::pin!(queue.submit_many(submits));
    while let Some(one) = submitted.next().await {
        one?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    line(format_args!("   {TASKS} submitted"));

    step(3, "Start two worker processes, alice and bob. Kill alice (kill -9) while it runs tasks.");
    let mut alice = worker(program, folder, "alice")?;
    // On a busy machine alice may start late, and bob alone would finish before.
    while alice.try_wait()?.is_none() && held_by(&queue, "alice").await?.is_empty() {
        host.sleep(POLL_INTERVAL).await;
    }
    let mut bob = worker(program, folder, "bob")?;
    let bar = printer.bar(TASKS, "working");
    let orphaned = loop {
        let mut done = finished(&queue, &bar).await?;
        while done < TASKS / 4 || done < TASKS && held_by(&queue, "alice").await?.is_empty() {
            host.sleep(POLL_INTERVAL).await;
            done = finished(&queue, &bar).await?;
        }
        if alice.try_wait()?.is_none() {
            alice.kill().await?;
        }
        let orphaned = held_by(&queue, "alice").await?;
        if !orphaned.is_empty() || done >= TASKS {
            break orphaned;
        }
        // Killed between two tasks: there is nothing to recover. Try again.
        alice = worker(program, folder, "alice")?;
    };
    bar.suspend(|| {
        let text = format!(
            "   alice was killed; {} of its tasks stay claimed until their claims expire, after {LEASE_SECS} s",
            orphaned.len()
        );
        line(printer.paint(Style::Bad, &text));
    });
    // Wait for bob, which exits when no task is left. The index does not suffice: alice may have left entries in it.
    while bob.try_wait()?.is_none() {
        finished(&queue, &bar).await?;
        host.sleep(POLL_INTERVAL).await;
    }
    bar.finish_and_clear();
    let output = bob.wait_with_output().await?;
    line(printer.paint(Style::Good, "   bob has completed all tasks, including those of alice"));

    step(4, "Show the history of a recovered task. It is stored in the task itself.");
    let tasks = all_tasks(&queue).await?;
    let completed = tasks.iter().filter(|task| task.status() == Status::Completed).count() as u64;
    let recovered = tasks.iter().find(|task| orphaned.contains(&task.id)).or(tasks.first());
    if let Some(task) = recovered {
        print_history(task, queue.now()?.earliest, printer);
    }

    step(5, "Show the requests, and their cost on S3.");
    print_cost(&queue, &output.stdout, printer)?;
    if completed != TASKS {
        let message = format!("demo completed only {completed} of {TASKS} tasks; please report it");
        return Err(Error::new(Kind::Internal, message).into());
    }
    line(format_args!(
        "\nAll {TASKS} tasks were completed, none was lost. Next: run {}",
        printer.paint(Style::Strong, "leasehold --help")
    ));
    Ok(())
}

/// Starts a worker process, which is killed on drop.
fn worker(program: &[OsString], folder: &Path, name: &str) -> anyhow::Result<Child> {
    let (first, rest) = program.split_first().context("path of the leasehold program is unknown")?;
    let mut command = Command::new(first);
    command
        .args(rest)
        .args(["worker", "--json", "--drain", "--concurrency", "4", "--id", name])
        .args(["--lease-secs", &LEASE_SECS.to_string()])
        .args(["--exec", &format!("{TYPE}=sleep 0.1")])
        .arg("--store")
        .arg(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true);
    Ok(command.spawn()?)
}

/// Number of tasks that are neither pending nor running, by the index.
async fn finished(queue: &Queue, bar: &indicatif::ProgressBar) -> anyhow::Result<u64> {
    let stats = queue.stats().await?;
    let finished = TASKS.saturating_sub(stats.due + stats.scheduled + stats.running);
    bar.set_position(finished);
    Ok(finished)
}

async fn all_tasks(queue: &Queue) -> anyhow::Result<Vec<Task>> {
    let tasks: Vec<_> = queue.list(Filter::default()).collect().await;
    Ok(tasks.into_iter().collect::<leasehold_core::Result<_>>()?)
}

async fn held_by(queue: &Queue, worker: &str) -> anyhow::Result<Vec<TaskId>> {
    let is_held = |task: &Task| matches!(&task.state, leasehold_core::State::Running(claim) if claim.by.as_str() == worker);
    Ok(all_tasks(queue).await?.iter().filter(|task| is_held(task)).map(|task| task.id).collect())
}

/// Prints the requests of the demo and of bob. Those of alice were lost with its process.
fn print_cost(queue: &Queue, stdout: &[u8], printer: &Printer) -> anyhow::Result<()> {
    let prices = Prices::of("aws")?;
    let mut by_purpose: BTreeMap<String, [u64; 4]> = BTreeMap::new();
    let own = serde_json::to_value(queue.client()?.ledger().snapshot())?;
    let bobs: Value = serde_json::from_slice(stdout)?;
    let verbs = [Verb::Put, Verb::Get, Verb::List, Verb::Delete];
    for row in [&own, &bobs["requests"]].into_iter().filter_map(Value::as_array).flatten() {
        let purpose = row["purpose"].as_str().unwrap_or_default();
        let verb = verbs.iter().position(|verb| row["verb"] == verb.name());
        if let (Some(verb), Some(requests), false) = (verb, row["requests"].as_u64(), purpose == "admin") {
            by_purpose.entry(purpose.to_owned()).or_default()[verb] += requests;
        }
    }
    line(format_args!(
        "   {:<10} {:>6} {:>6} {:>6} {:>7}  {:>12}",
        "PURPOSE", "PUT", "GET", "LIST", "DELETE", "US$"
    ));
    let mut total = 0.0;
    for (purpose, counts) in &by_purpose {
        let price: f64 = verbs.iter().zip(counts).map(|(verb, count)| prices.cost(*verb, *count)).sum();
        total += price;
        let [put, get, list, delete] = counts;
        line(format_args!("   {purpose:<10} {put:>6} {get:>6} {list:>6} {delete:>7}  {price:>12.6}"));
    }
    #[expect(clippy::cast_precision_loss, reason = "a few hundred tasks")]
    let per_million = total / TASKS as f64 * 1e6;
    let sum = format!("US$ {total:.4}, or US$ {per_million:.2} for a million tasks");
    line(format_args!("   {} (without the requests of alice)", printer.paint(Style::Strong, &sum)));
    Ok(())
}
