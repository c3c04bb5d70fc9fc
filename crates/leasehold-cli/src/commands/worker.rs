//! `leasehold worker` and `leasehold monitor`.

use clap::Args;
use futures::FutureExt;
use leasehold_core::{Error, Kind, Result, Shard, WorkerId, keys};
use leasehold_queue::{Queue, read_lease};
use leasehold_store::{HostExt, Prices, Snapshot};
use leasehold_worker::{Counts, Shutdown, Worker, WorkerOptions};
use serde_json::json;

use super::exec::programs;
use super::serve_pieces::{AnnouncedServer, random_name};
use super::stopping::{STOP_HINT, run_with_stop_notes};
use super::submit::refuse_on_outpost;
use super::{objects, pieces, until_empty, up};
use crate::printer::{Printer, line};
use crate::settings::Settings;
use crate::settings::typed::{self, PollingSettings, ShardChoice};

/// Options of a worker, which work on a bucket and on an outpost.
#[derive(Debug, Args)]
pub(crate) struct ProgramArgs {
    /// Worker id [default: random]
    #[arg(long, value_name = "ID")]
    pub(crate) id: Option<String>,
    /// Run tasks of a type with a program: input JSON on standard input, output JSON on standard output, exit code 0 =
    /// completed, 65 = failed permanently, any other = failed, retried by the task's retry policy. Input files are in
    /// `LEASEHOLD_ARTIFACTS`; files written to `LEASEHOLD_RESULTS` are published. Repeatable; `*` matches every other type
    #[arg(long, value_name = "TYPE=PROGRAM ARGS", required = true)]
    pub(crate) exec: Vec<String>,
    /// Number of tasks to run at once [default: 8]
    #[arg(long, value_name = "N")]
    pub(crate) concurrency: Option<usize>,
    /// Seconds that running tasks have to finish after Ctrl-C or SIGTERM; unrelated to `--drain` [default: 30]
    #[arg(long, value_name = "SECONDS")]
    pub(crate) drain_secs: Option<u64>,
    /// Let programs inherit the credentials of the store, the piece secret and the dashboard token
    #[arg(long)]
    pub(crate) pass_secrets: bool,
    /// Exit when the queue is empty: no task is due or becomes due within a minute, and no other worker runs a task of these types
    #[arg(long, visible_alias = "until-empty")]
    pub(crate) drain: bool,
}

#[derive(Debug, Args)]
pub(crate) struct WorkerArgs {
    #[command(flatten)]
    pub(crate) programs: ProgramArgs,
    /// Scan only these shards, separated by commas [default: all]
    #[arg(long, value_name = "SHARDS", conflicts_with = "shard_range")]
    pub(crate) shards: Option<String>,
    /// Scan only the shards of this inclusive range, such as 00-3f [default: all]
    #[arg(long, value_name = "FIRST-LAST")]
    pub(crate) shard_range: Option<String>,
    /// Lease a fair share of the shards instead of scanning all (settings `[worker.shard_leasing]`)
    #[arg(long, conflicts_with_all = ["shards", "shard_range"])]
    pub(crate) shard_leasing: bool,
    /// Open an inbox for tasks that producers send to this worker (setting `queue.dispatch_mode`)
    #[arg(long)]
    pub(crate) direct: bool,
    /// Seconds until a claim expires unless it is renewed, 3–86400 [default: 60]
    #[arg(long, value_name = "SECONDS")]
    pub(crate) lease_secs: Option<u64>,
    /// Role of this process in the layout `journal`: `auto` becomes the broker if there is none, `never` does not, `only` is for
    /// `leasehold broker` and refuses to run tasks (setting `broker.role`) [default: auto]
    #[arg(long, value_name = "ROLE")]
    pub(crate) broker_role: Option<String>,
    /// Serve the pieces of cached artifacts to peers (settings `[pieces]`)
    #[arg(long)]
    pub(crate) serve_pieces: bool,
}

impl WorkerArgs {
    /// Options that also work on an outpost. Refuses the others.
    pub(crate) fn for_outpost(&self) -> Result<&ProgramArgs> {
        refuse_on_outpost(&[
            (self.shards.is_some(), "--shards"),
            (self.shard_range.is_some(), "--shard-range"),
            (self.shard_leasing, "--shard-leasing"),
            (self.direct, "--direct"),
            (self.lease_secs.is_some(), "--lease-secs"),
            (self.broker_role.is_some(), "--broker-role"),
            (self.serve_pieces, "--serve-pieces"),
        ])?;
        Ok(&self.programs)
    }
}

pub(crate) async fn work(
    queue: &Queue,
    args: &WorkerArgs,
    settings: &Settings,
    printer: &Printer,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let name = worker_id(queue, &settings.worker);
    let worker = with_programs(queue, &name, &args.programs, settings, printer)?;
    printer.note(&format!("worker {name} on {}; {STOP_HINT}", queue.describe()));
    warn_if_id_in_use(queue, &name, &settings.worker, printer).await?;
    let serving = start_serving(queue, &name, &settings.pieces, printer).await?;
    let view = worker.view();
    let waits = until_empty::print_waits(queue, worker.view(), printer).boxed();
    let running = worker.run(shutdown.clone()).boxed();
    let running = AnnouncedServer::run_beside(serving, running, &shutdown, printer).boxed();
    let running = run_with_stop_notes(running, &view, settings.worker.drain, &shutdown, printer).boxed();
    let counts = up::run_beside(running, waits).await?;
    Ok(summary(queue, &name, &counts, printer)?)
}

/// Starts the piece server of a worker, if the settings ask for one. Its peer id differs from the worker id, which a
/// restarted worker could not use before the lease of its predecessor expires. Of several workers with one cache, one
/// serves it.
pub(super) async fn start_serving(
    queue: &Queue,
    name: &str,
    settings: &typed::PiecesSettings,
    printer: &Printer,
) -> Result<Option<AnnouncedServer>> {
    if !settings.serve {
        return Ok(None);
    }
    let client = queue.client()?;
    match AnnouncedServer::start(client, &random_name(client, name), settings).await {
        Ok(serving) => {
            printer.note(&format!("serving pieces at {}", serving.address));
            Ok(Some(serving))
        }
        Err(error) => {
            let cache = pieces::cache(settings)?;
            let other = queue.host().blocking(move || Ok(cache.served_as())).await?;
            let other = other.ok_or(error)?;
            printer.note(&format!("peer {other} already serves the pieces of this cache"));
            Ok(None)
        }
    }
}

/// Prints a note if the worker id is in use: the worker leases nothing until the other process stops, and would seem idle.
pub(super) async fn warn_if_id_in_use(
    queue: &Queue,
    name: &str,
    settings: &typed::WorkerSettings,
    printer: &Printer,
) -> Result<()> {
    if settings.leasing.is_none() {
        return Ok(());
    }
    let key = keys::worker_lease(&WorkerId::checked("worker id", name)?);
    match read_lease(queue.client()?, &key).await {
        Ok(Some(lease)) if !lease.is_free(queue.now()?) => printer.note(&format!(
            "worker id `{name}` is in use by another process; this worker leases no shards until that one stops (its lease expires at \
             {} unless renewed)",
            lease.expires_at
        )),
        // The worker replaces a corrupt lease.
        Err(error) if error.kind() != Kind::Corrupt => return Err(error),
        _ => {}
    }
    Ok(())
}

/// Creates a worker that runs the programs of `--exec`.
pub(super) fn with_programs(
    queue: &Queue,
    name: &str,
    args: &ProgramArgs,
    settings: &Settings,
    printer: &Printer,
) -> anyhow::Result<Worker> {
    let worker = Worker::new(queue.clone(), name, shards(queue, &settings.worker.shards)?)?;
    let mut worker = pieces::with_artifacts(worker, queue.client()?, &settings.pieces)?;
    for (task_type, program) in programs(&args.exec, &settings.worker, printer)? {
        worker = worker.handle(&task_type, move |context, input| program.clone().run(context, input))?;
    }
    Ok(worker.options(WorkerOptions { until_empty: args.drain, ..options(&settings.worker) }))
}

pub(crate) async fn monitor(
    queue: &Queue,
    settings: &typed::WorkerSettings,
    printer: &Printer,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    objects(queue, "monitor", "its broker does the maintenance; run `leasehold broker`")?;
    let name = worker_id(queue, settings);
    let worker = Worker::new(queue.clone(), &name, shards(queue, &settings.shards)?)?;
    printer.note(&format!("monitor {name} on {}; Ctrl-C stops it", queue.describe()));
    let counts = worker.options(options(settings)).run_duties(shutdown).await?;
    Ok(summary(queue, &name, &counts, printer)?)
}

pub(super) fn summary(queue: &Queue, name: &str, counts: &Counts, printer: &Printer) -> Result<()> {
    let ledger = queue.client()?.ledger().snapshot();
    if printer.is_json() {
        line(json!({"worker": name, "counts": counts, "requests": ledger}));
        return Ok(());
    }
    let Counts { completed, failed, cancelled, requeued, lost, recovered, .. } = counts;
    line(format_args!(
        "{completed} completed, {failed} failed, {cancelled} cancelled, {requeued} requeued, {lost} claims lost, \
         {recovered} recovered from crashed workers"
    ));
    line(format_args!("{} requests; cost on S3: US$ {:.6}", ledger.requests(), price(&ledger)));
    Ok(())
}

/// Cost of these requests on S3, in US dollars.
pub(super) fn price(ledger: &Snapshot) -> f64 {
    Prices::of("aws").map(|prices| prices.total(ledger)).unwrap_or_default()
}

pub(crate) fn worker_id(queue: &Queue, settings: &typed::WorkerSettings) -> String {
    match &settings.id {
        Some(id) => id.to_string(),
        None => format!("w-{:08x}", queue.host().random_bits() & 0xffff_ffff),
    }
}

pub(crate) fn shards(queue: &Queue, choice: &ShardChoice) -> Result<Option<Vec<Shard>>> {
    if let ShardChoice::All = choice {
        return Ok(None);
    }
    let len = queue.objects()?.shard_len();
    match choice {
        ShardChoice::All => Ok(None),
        ShardChoice::Range(range) => len.parse_range(range).map(Some),
        ShardChoice::List(names) if names.is_empty() => Err(Error::invalid("the list of shards is empty")),
        ShardChoice::List(names) => {
            let shards: Result<Vec<_>> = names.iter().map(|name| len.parse(name)).collect();
            shards.map(Some)
        }
    }
}

pub(crate) fn options(settings: &typed::WorkerSettings) -> WorkerOptions {
    let polling = match settings.polling {
        PollingSettings::Adaptive { min, max, factor } => leasehold_worker::Polling { min, max, factor },
        PollingSettings::Fixed { interval } => leasehold_worker::Polling::fixed(interval),
    };
    WorkerOptions {
        concurrency: settings.concurrency,
        lease: settings.lease,
        drain: settings.drain,
        stop_wait: settings.stop_wait,
        recover_every: settings.recover_every,
        full_scan_every: settings.full_scan_every,
        leasing: settings.leasing.clone(),
        inbox: settings.inbox.clone(),
        overflow_every: settings.overflow_every,
        polling,
        ..WorkerOptions::default()
    }
}
