//! `leasehold worker` and `leasehold monitor`.

use clap::Args;
use futures::FutureExt;
use leasehold_core::{Error, Kind, Result, Shard, WorkerId, keys};
use leasehold_queue::{Queue, read_lease};
use leasehold_store::{HostExt, Prices, Snapshot};
use leasehold_worker::{Counts, Shutdown, Worker, WorkerOptions};
use serde_json::json;

use super::exec::programs;
use super::serve_pieces::{Serving, by_chance};
use super::stopping::stoppable;
use super::{drain, pieces, up};
use crate::printer::{Printer, line};
use crate::settings::Settings;
use crate::settings::typed::{self, Polling, ShardChoice};

#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag")]
pub(crate) struct Work {
    /// The worker's name; by default one made by chance
    #[arg(long, value_name = "NAME")]
    pub(crate) id: Option<String>,
    /// Run tasks of a type with a program: input JSON on its standard input, output JSON from its standard output, exit
    /// code 0 = completed, 65 = failed for good, any other = failed, retried by the task's retry policy. Its files are in `LEASEHOLD_ARTIFACTS`, and what it puts into
    /// `LEASEHOLD_RESULTS` is published. Can be given several times; `*` stands for every other type
    #[arg(long, value_name = "TYPE=PROGRAM ARGS", required = true)]
    pub(crate) exec: Vec<String>,
    /// How many tasks run at once
    #[arg(long, value_name = "N")]
    pub(crate) concurrency: Option<usize>,
    /// Only these shards, separated by commas
    #[arg(long, value_name = "SHARDS", conflicts_with = "shard_range")]
    pub(crate) shards: Option<String>,
    /// Only the shards of this inclusive range, like 00-3f
    #[arg(long, value_name = "FIRST-LAST")]
    pub(crate) shard_range: Option<String>,
    /// Divide the shards with all workers that do so, and look only at a fair share
    #[arg(long, conflicts_with_all = ["shards", "shard_range"])]
    pub(crate) shard_leasing: bool,
    /// Have an inbox, into which producers put tasks for this worker alone (setting `queue.dispatch_mode`)
    #[arg(long)]
    pub(crate) direct: bool,
    /// How long a claim lasts without renewal, in seconds, at least 3 [default: 60]
    #[arg(long, value_name = "SECONDS")]
    pub(crate) lease_secs: Option<u64>,
    /// How long handlers may go on after Ctrl-C, in seconds
    #[arg(long, value_name = "SECONDS")]
    pub(crate) drain_secs: Option<u64>,
    /// Give the pieces of the artifacts in this machine's cache to peers (settings `[pieces]`)
    #[arg(long)]
    pub(crate) serve_pieces: bool,
    /// Let programs inherit the credentials of the store, the piece secret and the dashboard token
    #[arg(long)]
    pub(crate) pass_secrets: bool,
    /// Stop when there is nothing left to do
    #[arg(long)]
    drain: bool,
}

impl Work {
    /// Whether it is to stop when there is nothing left to do.
    pub(crate) fn is_drain(&self) -> bool {
        self.drain
    }
}

pub(crate) async fn work(
    queue: &Queue,
    args: &Work,
    settings: &Settings,
    printer: &Printer,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let name = name(queue, &settings.worker);
    let worker = with_programs(queue, &name, args, settings, printer)?;
    printer.note(&format!("worker {name} on {}; Ctrl-C drains", queue.client().describe()));
    warn_of_namesake(queue, &name, &settings.worker, printer).await?;
    let serving = serving(queue, &name, &settings.pieces, printer).await?;
    let monitor = worker.monitor();
    let waits = drain::tell(queue, worker.monitor(), printer).boxed();
    let running = worker.run(shutdown.clone()).boxed();
    let running = Serving::beside(serving, running, &shutdown, printer).boxed();
    let running = stoppable(running, &monitor, settings.worker.drain, &shutdown, printer).boxed();
    let counts = up::beside(running, waits).await?;
    summary(queue, &name, &counts, printer);
    Ok(())
}

/// The piece server of a worker that is to have one. Its name is not the worker's own, which a worker that was restarted
/// could not have again before the lease of its predecessor has run out. Of several workers with one cache, one serves it.
pub(super) async fn serving(
    queue: &Queue,
    name: &str,
    settings: &typed::Pieces,
    printer: &Printer,
) -> Result<Option<Serving>> {
    if !settings.serve {
        return Ok(None);
    }
    match Serving::start(queue.client(), &by_chance(queue.client(), name), settings).await {
        Ok(serving) => {
            printer.note(&format!("pieces are served at {}", serving.address));
            Ok(Some(serving))
        }
        Err(error) => {
            let cache = pieces::cache(settings)?;
            let other = queue.client().host().blocking(move || Ok(cache.served_as())).await?;
            let other = other.ok_or(error)?;
            printer.note(&format!("pieces of this cache are served by {other}"));
            Ok(None)
        }
    }
}

/// A worker whose name is in use leases nothing, and would seem to have nothing to do.
pub(super) async fn warn_of_namesake(
    queue: &Queue,
    name: &str,
    settings: &typed::Worker,
    printer: &Printer,
) -> Result<()> {
    if settings.leasing.is_none() {
        return Ok(());
    }
    let key = keys::worker_lease(&WorkerId::checked("worker id", name)?);
    match read_lease(queue.client(), &key).await {
        Ok(Some(lease)) if !lease.is_free(queue.now()?) => printer.note(&format!(
            "the name {name} is in use until {}; no shards are leased before it is free",
            lease.expires_at
        )),
        // What makes no sense is replaced in time.
        Err(error) if error.kind() != Kind::Corrupt => return Err(error),
        _ => {}
    }
    Ok(())
}

/// A worker that runs the programs of `--exec`.
pub(super) fn with_programs(
    queue: &Queue,
    name: &str,
    args: &Work,
    settings: &Settings,
    printer: &Printer,
) -> anyhow::Result<Worker> {
    let worker = Worker::new(queue.clone(), name, shards(queue, &settings.worker.shards)?)?;
    let mut worker = pieces::carry(worker, queue.client(), &settings.pieces)?;
    for (task_type, program) in programs(&args.exec, &settings.worker, printer)? {
        worker = worker.handle(&task_type, move |context, input| program.clone().run(context, input))?;
    }
    Ok(worker.options(WorkerOptions { until_empty: args.drain, ..options(&settings.worker) }))
}

pub(crate) async fn monitor(
    queue: &Queue,
    settings: &typed::Worker,
    printer: &Printer,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let name = name(queue, settings);
    let worker = Worker::new(queue.clone(), &name, shards(queue, &settings.shards)?)?;
    printer.note(&format!("monitor {name} on {}; Ctrl-C stops it", queue.client().describe()));
    let counts = worker.options(options(settings)).run_duties(shutdown).await?;
    summary(queue, &name, &counts, printer);
    Ok(())
}

pub(super) fn summary(queue: &Queue, name: &str, counts: &Counts, printer: &Printer) {
    let ledger = queue.client().ledger().snapshot();
    if printer.is_json() {
        line(json!({"worker": name, "counts": counts, "requests": ledger}));
        return;
    }
    let Counts { completed, failed, cancelled, put_back, lost, recovered, .. } = counts;
    line(format_args!(
        "{completed} completed, {failed} failed, {cancelled} cancelled, {put_back} put back, {lost} lost, \
         {recovered} recovered from others"
    ));
    line(format_args!("{} requests; on S3 they would cost US$ {:.6}", ledger.requests(), price(&ledger)));
}

/// What all of it would cost on S3, in US dollars.
pub(super) fn price(ledger: &Snapshot) -> f64 {
    Prices::of("aws").map(|prices| prices.total(ledger)).unwrap_or_default()
}

pub(crate) fn name(queue: &Queue, settings: &typed::Worker) -> String {
    match &settings.id {
        Some(id) => id.to_string(),
        None => format!("w-{:08x}", queue.client().host().random_bits() & 0xffff_ffff),
    }
}

pub(crate) fn shards(queue: &Queue, choice: &ShardChoice) -> Result<Option<Vec<Shard>>> {
    let len = queue.shard_len();
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

pub(crate) fn options(settings: &typed::Worker) -> WorkerOptions {
    let polling = match settings.polling {
        Polling::Adaptive { min, max, factor } => leasehold_worker::Polling { min, max, factor },
        Polling::Fixed { interval } => leasehold_worker::Polling::fixed(interval),
    };
    WorkerOptions {
        concurrency: settings.concurrency,
        lease: settings.lease,
        drain: settings.drain,
        stop_wait: settings.stop_wait,
        recover_every: settings.recover_every,
        sweep_every: settings.sweep_every,
        leasing: settings.leasing.clone(),
        inbox: settings.inbox.clone(),
        overflow_every: settings.overflow_every,
        polling,
        ..WorkerOptions::default()
    }
}
