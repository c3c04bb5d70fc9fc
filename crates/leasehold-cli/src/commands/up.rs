//! `leasehold up`: runs a queue with one command. Creates the queue if there is none, runs programs for its tasks, runs
//! the maintenance duties of `monitor`, and shows the progress on one line and on the dashboard. In the layout `journal` the broker
//! does the maintenance; without programs this process is only the broker.
//!
//! Everything that runs beside the worker belongs into [`run_beside`]. It ends with the worker, not when the worker is
//! asked to stop, so that the tasks that still run can be watched.
//!
//! The display must not cost much on a bucket. The worker counts its own tasks and requests. Pending tasks are counted
//! with list requests on the index: every second while the worker is busy, up to every 30 seconds while it is idle.

use clap::Args;
use futures::future::{BoxFuture, Either, FutureExt, select};
use leasehold_core::{Error, Result};
use leasehold_queue::{BrokerRole, JournalQueue, Queue, Stats};
use leasehold_store::host::Instant;
use leasehold_store::{Client, Snapshot};
use leasehold_web::Dashboard;
use leasehold_worker::shutdown::Stage;
use leasehold_worker::{Counts, DrainWait, Shutdown, WorkerView};
use serde_json::{Value, json};
use std::convert::Infallible;
use std::time::Duration;

use super::live::{ProgressDisplay, ShownProgress};
use super::serve_pieces::AnnouncedServer;
use super::stopping::{STOP_HINT, run_with_stop_notes};
use super::until_empty::EmptyWaitReporter;
use super::worker::{self, ProgramArgs, WorkerArgs};
use super::{broker, dashboard};
use crate::printer::Printer;
use crate::settings::Settings;

/// Interval between two counts of the index while tasks change, and while none do: at least four lists for each count,
/// six cents a day at the longest interval.
const COUNT_MIN: Duration = Duration::from_secs(1);
const COUNT_MAX: Duration = Duration::from_secs(30);

#[derive(Debug, Args)]
pub(crate) struct UpArgs {
    #[command(flatten)]
    pub(crate) work: WorkerArgs,
    /// Do not serve the dashboard
    #[arg(long)]
    no_dashboard: bool,
    /// Port of the dashboard; if it is in use, one of the next 19 [default: 7423]
    #[arg(long, value_name = "N", conflicts_with = "no_dashboard")]
    pub(crate) dashboard_port: Option<u16>,
    /// Let viewers of the dashboard cancel, retry and reschedule tasks [default: read-only]
    #[arg(long, conflicts_with = "no_dashboard")]
    pub(crate) allow_actions: bool,
}

pub(crate) async fn run(
    queue: &Queue,
    UpArgs { work: WorkerArgs { programs: args, .. }, no_dashboard, .. }: &UpArgs,
    settings: &Settings,
    printer: &Printer,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    if args.exec.is_empty()
        && let Ok(journal) = queue.journal()
    {
        return hold_broker(queue, journal, *no_dashboard, settings, printer, &shutdown).await;
    }
    let name = worker::worker_id(queue, &settings.worker);
    let worker = worker::with_programs(queue, &name, args, settings, printer)?;
    print_start(queue, &name, args, printer);
    let dashboard =
        if *no_dashboard { None } else { dashboard::start_beside_worker(queue, settings, printer).await? };
    if !args.exec.is_empty() {
        worker::warn_if_id_in_use(queue, &name, &settings.worker, printer).await?;
    }
    let serving = worker::start_serving(queue, &name, &settings.pieces, printer).await?;
    let view = worker.view();
    let mut reader = ProgressReader::new(queue, view.clone(), shutdown.clone())?;
    let mut display = ProgressDisplay::new(printer);
    let stop = shutdown.clone();
    let running =
        if args.exec.is_empty() { worker.run_duties(stop).boxed() } else { worker.run(stop).boxed() };
    let running = AnnouncedServer::run_beside(serving, running, &shutdown, printer).boxed();
    let running = run_with_stop_notes(running, &view, settings.worker.drain, &shutdown, printer).boxed();
    let watching =
        async { select(show_progress(&mut reader, &mut display).boxed(), serve(dashboard).boxed()).await };
    let counts = run_beside(running, watching.map(|ended| ended.factor_first().0).boxed()).await?;
    display.clear();
    Ok(worker::summary(queue, &name, &counts, printer)?)
}

/// Is the broker of a journal beside the dashboard: without programs nothing else is to be done there.
async fn hold_broker(
    queue: &Queue,
    journal: &JournalQueue,
    no_dashboard: bool,
    settings: &Settings,
    printer: &Printer,
    shutdown: &Shutdown,
) -> anyhow::Result<()> {
    if settings.queue.broker_role == BrokerRole::Never {
        return Err(Error::invalid(
            "`up` without --exec is only a broker, but `broker.role` is `never`; add --exec, or set the role to `auto`",
        )
        .into());
    }
    printer
        .note(&format!("serving {} as its broker, or waiting to become it; Ctrl-C stops", queue.describe()));
    printer
        .note("this process is only the broker; to run tasks, add --exec 'TYPE=PROGRAM ARGS' for each type");
    let dashboard =
        if no_dashboard { None } else { dashboard::start_beside_worker(queue, settings, printer).await? };
    match select(broker::hold(journal, printer, shutdown).boxed(), serve(dashboard).boxed()).await {
        Either::Left((held, _)) => Ok(held?),
        Either::Right((never, _)) => match never {},
    }
}

fn print_start(queue: &Queue, name: &str, args: &ProgramArgs, printer: &Printer) {
    let shards = queue.objects().map(|objects| format!(", {} shards", objects.shard_len().count()));
    let shards = shards.unwrap_or_default();
    printer.note(&format!("worker {name} on {}{shards}; {STOP_HINT}", queue.describe()));
    if args.exec.is_empty() {
        printer.note(
            "recovering tasks of crashed workers only; to run tasks, add --exec 'TYPE=PROGRAM ARGS' for each type",
        );
    }
}

/// Runs another future until the worker has ended.
pub(super) async fn run_beside(
    worker: BoxFuture<'_, Result<Counts>>,
    other: BoxFuture<'_, Infallible>,
) -> Result<Counts> {
    match select(worker, other).await {
        Either::Left((counts, _)) => counts,
        Either::Right((never, _)) => match never {},
    }
}

async fn serve(dashboard: Option<Dashboard>) -> Infallible {
    if let Some(dashboard) = dashboard {
        dashboard.run(Shutdown::default()).await;
    }
    std::future::pending().await
}

async fn show_progress(
    reader: &mut ProgressReader<'_>,
    display: &mut ProgressDisplay<ProgressCounts>,
) -> Infallible {
    let host = reader.queue.host();
    loop {
        display.show(&reader.read().await);
        host.sleep(display.every()).await;
    }
}

/// State of the queue, the worker and its requests.
struct Progress {
    counts: ProgressCounts,
    requests: Snapshot,
    stage: Stage,
}

/// Part of the progress whose change is printed. Requests are not part of it: they change all the time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ProgressCounts {
    due: u64,
    scheduled: u64,
    running: u64,
    completed: u64,
    failed: u64,
    waits_for: Option<DrainWait>,
}

impl ShownProgress for Progress {
    type Figures = ProgressCounts;

    fn figures(&self) -> ProgressCounts {
        self.counts
    }

    fn text(&self) -> String {
        let ProgressCounts { due, scheduled, running, completed, failed, waits_for } = self.counts;
        let stage = if self.stage == Stage::Running { "" } else { "stopping: " };
        let waiting = due + scheduled;
        let later = if scheduled > 0 { format!(" ({scheduled} scheduled)") } else { String::new() };
        let (requests, price) = (self.requests.requests(), worker::price(&self.requests));
        let wait = waits_for.map(|wait| format!("; waiting for {wait}")).unwrap_or_default();
        format!(
            "{stage}{waiting} pending{later}, {running} running, {completed} completed, {failed} failed; \
             {requests} requests, US$ {price:.6} on S3{wait}"
        )
    }

    fn json(&self) -> Value {
        let ProgressCounts { due, scheduled, running, completed, failed, .. } = self.counts;
        json!({
            "due": due,
            "scheduled": scheduled,
            "running": running,
            "completed": completed,
            "failed": failed,
            "requests": self.requests.requests(),
            "us_dollars": worker::price(&self.requests),
        })
    }
}

/// Reads the progress from the worker and the index.
struct ProgressReader<'a> {
    queue: &'a Queue,
    client: &'a Client,
    view: WorkerView,
    waits: EmptyWaitReporter,
    shutdown: Shutdown,
    stats: Stats,
    counts: Counts,
    counted_at: Option<Instant>,
    pause: Duration,
}

impl<'a> ProgressReader<'a> {
    fn new(queue: &'a Queue, view: WorkerView, shutdown: Shutdown) -> Result<Self> {
        let (stats, counts, client) = (Stats::default(), Counts::default(), queue.client()?);
        let waits = EmptyWaitReporter::new(view.clone());
        let counted_at = None;
        Ok(Self { queue, client, view, waits, shutdown, stats, counts, counted_at, pause: COUNT_MIN })
    }

    async fn read(&mut self) -> Progress {
        let counts = self.view.counts();
        if counts != self.counts {
            self.pause = COUNT_MIN;
        }
        self.counts = counts;
        let now = self.queue.host().instant();
        if self.counted_at.is_none_or(|at| now.since(at) >= self.pause) {
            self.count().await;
            self.counted_at = Some(now);
        }
        let Stats { due, scheduled, running, .. } = self.stats;
        let Counts { completed, failed, .. } = self.counts;
        Progress {
            counts: ProgressCounts {
                due,
                scheduled,
                running,
                completed,
                failed,
                waits_for: self.waits.long_wait(now),
            },
            requests: self.client.ledger().snapshot(),
            stage: self.shutdown.stage(),
        }
    }

    async fn count(&mut self) {
        match self.queue.stats().await {
            Ok(stats) => {
                // The age of the oldest task is not compared: it changes all the time.
                let is_same = [stats.due, stats.scheduled, stats.running]
                    == [self.stats.due, self.stats.scheduled, self.stats.running];
                self.pause = if is_same { (self.pause * 2).min(COUNT_MAX) } else { COUNT_MIN };
                self.stats = stats;
            }
            // The worker retries its own requests. Until the next count, the display is stale.
            Err(error) => tracing::warn!(%error, "failed to count tasks, retrying"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_core::NewTask;
    use leasehold_store::testing::FakeHost;
    use leasehold_store::{Host, MemoryStore, Verb};
    use leasehold_worker::Worker;
    use std::sync::Arc;

    #[tokio::test]
    async fn an_idle_queue_is_counted_rarely() {
        let fake = FakeHost::new();
        let host: Arc<dyn Host> = Arc::new(fake.clone());
        let client = Client::new(Arc::new(MemoryStore::new(&host)), host);
        let queue = Queue::connect(client).await.unwrap();
        queue.submit_task(NewTask::new("nobody-runs-it", Value::Null).unwrap()).await.unwrap();
        let worker = Worker::new(queue.clone(), "w1", None).unwrap();
        let mut reader = ProgressReader::new(&queue, worker.view(), Shutdown::default()).unwrap();
        for _ in 0..600 {
            let progress = reader.read().await;
            assert!(progress.text().starts_with("1 pending, 0 running"), "{}", progress.text());
            fake.advance(Duration::from_secs(1));
        }
        let lists = queue.client().unwrap().ledger().snapshot().verb(Verb::List);
        assert!((80..120).contains(&lists), "{lists} lists in ten minutes");
    }
}
