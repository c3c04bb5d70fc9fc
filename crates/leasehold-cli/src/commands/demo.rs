//! `leasehold demo`: creates a queue in a temporary folder, runs tasks in two worker processes, kills the broker and one of the
//! workers, recovers its tasks, and shows the history of one of them and what was written.

use anyhow::Context;
use futures::StreamExt;
use futures::future::{Either, select};
use leasehold_core::{Error, Kind, NewTask, Status, StoreTime, Task, TaskId};
use leasehold_queue::{BrokerRole, BrokerStatus, CommitFigures, Filter, FoundBroker, Queue, QueueConfig};
use leasehold_store::{Client, FolderOptions, FolderStore, Host, SystemHost};
use leasehold_worker::Shutdown;
use leasehold_worker::shutdown::Stage;
use rustix::process::{Pid, Signal};
use serde_json::json;
use std::ffi::OsString;
use std::path::Path;
use std::pin::pin;
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
    let submitted = submit_tasks(&client, &step, printer).await?;

    step(
        3,
        "Start a broker, which writes for all, and two workers, alice and bob. Kill the broker (kill -9).",
    );
    // This process only reads from here on.
    let queue = connect(&client, BrokerRole::Never).await?;
    let demo = Demo { queue: &queue, host, bar: printer.bar(TASKS, "working") };
    let mut broker = start(program, folder, &["broker"])?;
    demo.until_broker(&mut broker).await?;
    let mut alice = worker(program, folder, "alice", BrokerRole::Never)?;
    let mut bob = worker(program, folder, "bob", BrokerRole::Auto)?;
    while demo.finished().await? < TASKS / 8 {
        ensure_running(&mut bob)?;
        host.sleep(POLL_INTERVAL).await;
    }
    let by_broker = broker_of(&queue).await?.map(|status| status.commits);
    broker.kill().await?;
    let killed_at = host.instant();
    demo.bar.suspend(|| line(printer.paint(Style::Bad, "   the broker was killed")));
    demo.until_broker(&mut bob).await?;
    let took = host.instant().since(killed_at).as_secs_f64();
    let text = format!("   bob is the broker now, {took:.1} s later; running tasks have continued");
    demo.bar.suspend(|| line(printer.paint(Style::Good, &text)));

    demo.bar.suspend(|| step(4, "Kill alice, too, while it runs tasks."));
    let orphaned = demo.kill_alice(&mut alice, queue.now()?.latest).await?;
    let text = format!(
        "   alice was killed; {} of its tasks stay claimed until their claims expire, after {LEASE_SECS} s",
        orphaned.len()
    );
    demo.bar.suspend(|| line(printer.paint(Style::Bad, &text)));
    while demo.finished().await? < TASKS {
        ensure_running(&mut bob)?;
        host.sleep(POLL_INTERVAL).await;
    }
    demo.bar.finish_and_clear();
    let by_bob = broker_of(&queue).await?.map(|status| status.commits);
    stop(&mut bob).await?;
    line(printer.paint(Style::Good, "   bob has completed all tasks, including those of alice"));

    step(5, "Show the history of a recovered task. It is stored with the task itself.");
    let tasks = all_tasks(&queue).await?;
    let completed = tasks.iter().filter(|task| task.status() == Status::Completed).count() as u64;
    let recovered = tasks.iter().find(|task| orphaned.contains(&task.id)).or(tasks.first());
    if let Some(task) = recovered {
        print_history(task, queue.now()?.earliest, printer);
    }

    step(6, "Show what was written: every change of a task, many of them with one write to the disk.");
    print_writes(&[("demo", submitted), ("broker", by_broker), ("bob", by_bob)]);
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

async fn connect(client: &Client, broker_role: BrokerRole) -> anyhow::Result<Queue> {
    let config = QueueConfig { by: "demo".into(), broker_role, ..QueueConfig::default() };
    Ok(Queue::with_config(client.clone(), config).await?)
}

/// Creates the queue and submits the tasks, as the first broker; then another process can be the broker.
async fn submit_tasks(
    client: &Client,
    step: &impl Fn(u32, &str),
    printer: &Printer,
) -> anyhow::Result<Option<CommitFigures>> {
    let queue = connect(client, BrokerRole::Auto).await?;
    step(
        2,
        &format!("Submit {TASKS} tasks. They are written together, and each is safe once it is confirmed."),
    );
    let bar = printer.bar(TASKS, "submitting");
    let tasks = (0..TASKS).map(|number| NewTask::new(TYPE, json!({"image": number})));
    let tasks = tasks.collect::<leasehold_core::Result<Vec<_>>>()?;
    let submits = tasks.into_iter().map(|task| queue.submit_task(task));
    let mut submitted = pin!(queue.submit_many(submits));
    while let Some(one) = submitted.next().await {
        one?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    line(format_args!("   {TASKS} submitted"));
    let figures = broker_of(&queue).await?.map(|status| status.commits);
    queue.close().await?;
    Ok(figures)
}

/// The broker, if it can be reached.
async fn broker_of(queue: &Queue) -> anyhow::Result<Option<BrokerStatus>> {
    Ok(match queue.journal()?.find_broker().await? {
        FoundBroker::Reached(status) => Some(*status),
        FoundBroker::Unreached(_) => None,
    })
}

/// The queue while the workers run.
struct Demo<'a> {
    queue: &'a Queue,
    host: &'a Arc<dyn Host>,
    bar: indicatif::ProgressBar,
}

impl Demo<'_> {
    /// Waits until a process is the broker.
    async fn until_broker(&self, process: &mut Child) -> anyhow::Result<()> {
        while broker_of(self.queue).await?.map(|status| status.holder.pid) != process.id() {
            ensure_running(process)?;
            self.host.sleep(POLL_INTERVAL / 10).await;
        }
        Ok(())
    }

    /// Kills alice while it runs tasks, and returns those. They were all claimed since bob is the broker: bob extends earlier claims,
    /// because it does not know which of them the broker before it has renewed.
    async fn kill_alice(&self, alice: &mut Child, since: StoreTime) -> anyhow::Result<Vec<TaskId>> {
        let mut held = held_by_alice(self.queue).await?;
        while self.finished().await? < TASKS / 4
            || held.is_empty()
            || held.iter().any(|task| task.updated_at <= since)
        {
            ensure_running(alice)?;
            self.host.sleep(POLL_INTERVAL).await;
            held = held_by_alice(self.queue).await?;
        }
        alice.kill().await?;
        Ok(held_by_alice(self.queue).await?.iter().map(|task| task.id).collect())
    }

    /// Number of tasks that are neither pending nor running.
    async fn finished(&self) -> anyhow::Result<u64> {
        let stats = self.queue.stats().await?;
        let finished = TASKS.saturating_sub(stats.due + stats.scheduled + stats.running);
        self.bar.set_position(finished);
        Ok(finished)
    }
}

fn ensure_running(process: &mut Child) -> anyhow::Result<()> {
    match process.try_wait()? {
        None => Ok(()),
        Some(status) => {
            let message = format!("a process of the demo has ended: {status}; try again");
            Err(Error::new(Kind::Unavailable, message).into())
        }
    }
}

/// Interrupts a worker, and waits until it has ended.
async fn stop(worker: &mut Child) -> anyhow::Result<()> {
    if let Some(pid) = worker.id().and_then(|pid| Pid::from_raw(pid.cast_signed())) {
        rustix::process::kill_process(pid, Signal::TERM)?;
    }
    worker.wait().await?;
    Ok(())
}

/// Starts a worker process.
fn worker(program: &[OsString], folder: &Path, name: &str, role: BrokerRole) -> anyhow::Result<Child> {
    let (lease, exec) = (LEASE_SECS.to_string(), format!("{TYPE}=sleep 0.1"));
    let args = ["worker", "--concurrency", "4", "--id", name, "--lease-secs", &lease, "--exec", &exec];
    start(program, folder, &[&args[..], &["--broker-role", role.name()]].concat())
}

/// Starts a process of this program on the queue, which is killed on drop.
fn start(program: &[OsString], folder: &Path, args: &[&str]) -> anyhow::Result<Child> {
    let (first, rest) = program.split_first().context("path of the leasehold program is unknown")?;
    let mut command = Command::new(first);
    command.args(rest).args(args).arg("--store").arg(folder);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    Ok(command.spawn()?)
}

async fn all_tasks(queue: &Queue) -> anyhow::Result<Vec<Task>> {
    let tasks: Vec<_> = queue.list(Filter::default()).collect().await;
    Ok(tasks.into_iter().collect::<leasehold_core::Result<_>>()?)
}

async fn held_by_alice(queue: &Queue) -> anyhow::Result<Vec<Task>> {
    let is_held = |task: &Task| matches!(&task.state, leasehold_core::State::Running(claim) if claim.by.as_str() == "alice");
    Ok(all_tasks(queue).await?.into_iter().filter(is_held).collect())
}

/// Prints the changes and the writes of each broker.
fn print_writes(terms: &[(&str, Option<CommitFigures>)]) {
    line(format_args!("   {:<8} {:>8} {:>8}", "BROKER", "CHANGES", "WRITES"));
    for (name, figures) in terms {
        if let Some(CommitFigures { records, commits, .. }) = figures {
            line(format_args!("   {name:<8} {records:>8} {commits:>8}"));
        }
    }
    line("   (the broker as of a moment before it was killed)");
}
