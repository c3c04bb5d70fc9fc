//! One file per command, or per family of commands.

pub(crate) mod artifact;
pub(crate) mod broker;
mod config;
#[cfg(feature = "cost")]
pub(crate) mod cost;
#[cfg(not(feature = "cost"))]
#[path = "commands/no_cost.rs"]
pub(crate) mod cost;
pub(crate) mod dashboard;
mod demo;
mod doctor;
mod exec;
pub(crate) mod get;
mod guard;
pub(crate) mod leases;
pub(crate) mod list;
mod live;
pub(crate) mod migrate;
pub(crate) mod operate;
pub(crate) mod outpost;
pub(crate) mod overview;
pub(crate) mod pieces;
pub(crate) mod quarantine;
pub(crate) mod serve_pieces;
mod shards;
mod stopping;
pub(crate) mod submit;
pub(crate) mod submit_many;
pub(crate) mod tail;
pub(crate) mod task_ref;
pub(crate) mod transfer;
mod until_empty;
pub(crate) mod up;
pub(crate) mod worker;
pub(crate) mod workers;

use clap::CommandFactory;
use leasehold_broker::{BrokerConnections, UnixSockets};
use leasehold_core::Error;
use leasehold_core::limits::OPERATION_TIMEOUT;
use leasehold_outpost::QueueType;
use leasehold_queue::{BrokerRole, ObjectQueue, Queue, QueueConfig};
use leasehold_store::{Client, OpenMode, OpenOptions};
use leasehold_worker::Shutdown;
use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use crate::args::{Args, Command, ConfigCommand, Global, LeasesCommand};
use crate::printer::Printer;
use crate::settings::{self, Environment, Flags, Settings, typed};

pub(crate) async fn run(
    program: &[OsString],
    args: Args,
    printer: &Printer,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let environment = Environment::of_process()?;
    let flags = flags(&args.global, &args.command);
    let settings = || load_settings(&environment, &flags, printer);
    match &args.command {
        Command::Config { command: ConfigCommand::Paths } => config::paths(&environment, printer),
        Command::Config { command: ConfigCommand::Show } => config::show(&settings()?, printer),
        Command::Completions { shell } => completions(*shell),
        Command::Cost(args) => cost::run(args, printer)?,
        Command::Demo => demo::run(program, printer, shutdown).await?,
        Command::Doctor => {
            doctor::run(existing_client(&settings()?.queue, OpenMode::Create)?, printer).await?;
        }
        Command::Artifact { command } => artifact::run(command, &settings()?, printer).await?,
        Command::ServePieces(args) => serve_pieces::run(args, &settings()?, printer, shutdown).await?,
        Command::Outpost(_) => {
            let settings = settings()?;
            if let Command::Outpost(args) = args.command {
                Box::pin(outpost::run(args.command, settings, printer, shutdown)).await?;
            }
        }
        _ => Box::pin(run_on_queue(args.command, &args.name, &settings()?, printer, shutdown)).await?,
    }
    Ok(())
}

/// Loads the settings, and prints their warnings.
fn load_settings(
    environment: &Environment,
    flags: &Flags,
    printer: &Printer,
) -> leasehold_core::Result<Settings> {
    let settings = settings::load(environment, flags)?;
    for warning in &settings.warnings {
        printer.note(&format!("warning: {warning}"));
    }
    Ok(settings)
}

/// Refuses what works only on a bucket, not on an outpost.
pub(crate) fn require_bucket(settings: &Settings, what: &str) -> leasehold_core::Result<()> {
    if settings.queue.queue_type == QueueType::Filesystem {
        return Err(Error::invalid(format!(
            "`{what}` does not work on an outpost (`queue.type` is `filesystem`); set `queue.type` to `bucket` to use \
             the store directly"
        )));
    }
    Ok(())
}

/// Runs a command that also works on an outpost.
async fn run_on_outpost(
    command: Command,
    name: &str,
    settings: &Settings,
    printer: &Printer,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let spool = || outpost::open(settings);
    match command {
        Command::Submit(args) => outpost::submit(&spool()?, args.for_outpost()?, printer),
        Command::Worker(args) => {
            outpost::work(&spool()?, args.for_outpost()?, settings, printer, shutdown).await
        }
        Command::Get(args) => outpost::get(&spool()?, &args.id, printer),
        Command::Cancel(which) if which.task_type.is_none() => {
            outpost::cancel(&spool()?, &which.ids, printer)
        }
        Command::Retry(which) if which.task_type.is_none() => {
            outpost::requeue(&spool()?, &which.ids, printer)
        }
        Command::Cancel(_) | Command::Retry(_) => {
            Ok(require_bucket(settings, &format!("leasehold {name} --type"))?)
        }
        _ => Ok(require_bucket(settings, &format!("leasehold {name}"))?),
    }
}

async fn run_on_queue(
    command: Command,
    name: &str,
    settings: &Settings,
    printer: &Printer,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    if settings.queue.queue_type == QueueType::Filesystem {
        return Box::pin(run_on_outpost(command, name, settings, printer, shutdown)).await;
    }
    match &command {
        Command::Up(args) => exec::check_programs(&args.work.programs.exec)?,
        Command::Worker(args) => exec::check_programs(&args.programs.exec)?,
        _ => {}
    }
    let queue = open_queue(&command, settings).await?;
    let done = Box::pin(run_command(command, &queue, settings, printer, shutdown)).await;
    // The error of the command is the one to report.
    done.and(queue.close().await.map_err(Into::into))
}

/// Advice of a command about shards.
const NO_SHARDS: &str = "its tasks are not divided into shards, because one process writes all of them";

/// The queue in the layout `objects`, for a command that exists for this layout only.
/// `advice` says what to use instead.
fn objects<'a>(queue: &'a Queue, command: &str, advice: &str) -> leasehold_core::Result<&'a ObjectQueue> {
    queue.objects().map_err(|error| match queue.meta() {
        Some(meta) => Error::invalid(format!(
            "`leasehold {command}` needs a queue with the layout `objects`, but this queue has the layout `{}`: {advice}",
            meta.layout
        )),
        None => error,
    })
}

async fn run_command(
    command: Command,
    queue: &Queue,
    settings: &Settings,
    printer: &Printer,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    match command {
        Command::Init(_) => overview::init(queue, printer),
        Command::Submit(args) => submit::run(queue, &args, &settings.pieces, printer).await,
        Command::SubmitMany(args) => submit_many::run(queue, args, printer).await,
        Command::Up(args) => up::run(queue, &args, settings, printer, shutdown).await,
        Command::Worker(args) => worker::work(queue, &args, settings, printer, shutdown).await,
        Command::Broker(args) => broker::run(queue, &args, printer, &shutdown).await,
        Command::Monitor => worker::monitor(queue, &settings.worker, printer, shutdown).await,
        Command::List(args) => list::run(queue, &args, printer).await,
        Command::Get(args) => get::get(queue, &args, printer).await,
        Command::History(args) => get::history(queue, &args, printer).await,
        Command::Wait(args) => get::wait(queue, &args, printer).await,
        Command::Cancel(which) => operate::cancel(queue, &which, printer).await,
        Command::Retry(which) => operate::retry(queue, &which, printer).await,
        Command::Reschedule(args) => operate::reschedule(queue, &args, printer).await,
        Command::Purge(args) => operate::purge(queue, &args, printer).await,
        Command::Check(args) => overview::check(queue, &args, printer).await,
        Command::Quarantine(args) => {
            let advice =
                "`leasehold check` reports its corrupt parts; restore them from a backup of the store";
            quarantine::run(objects(queue, "quarantine", advice)?, &args, printer).await
        }
        Command::MigrateShards(args) => {
            let queue = objects(queue, "migrate-shards", NO_SHARDS)?;
            migrate::run(queue, &args, printer, &shutdown).await
        }
        Command::Export => transfer::export(queue, printer).await,
        Command::Import(args) => transfer::import(queue, &args, printer).await,
        Command::Stats(args) => overview::stats(queue, &args, printer).await,
        Command::Shards => shards::run(objects(queue, "shards", NO_SHARDS)?, printer).await,
        Command::Workers(args) => match queue.journal() {
            Ok(journal) => workers::run_of_journal(queue, journal, &args, printer).await,
            Err(_) => workers::run(queue.objects()?, &args, printer).await,
        },
        Command::Leases { command: LeasesCommand::Break(args) } => {
            let advice = "its only lease is that of the broker, which expires by itself; `leasehold broker status` shows it";
            leases::run_break(objects(queue, "leases break", advice)?, &args, printer).await
        }
        Command::Dashboard(_) => dashboard::run(queue, settings, printer, shutdown).await,
        Command::Tail(args) => tail::run(queue, &args, printer, &shutdown).await,
        Command::Artifact { .. }
        | Command::Outpost(_)
        | Command::ServePieces(_)
        | Command::Cost(_)
        | Command::Demo
        | Command::Doctor
        | Command::Config { .. }
        | Command::Completions { .. } => Ok(()),
    }
}

/// Flags of the command line as settings.
fn flags(global: &Global, command: &Command) -> Flags {
    let flags = Flags::default().with_profile(global.profile.as_deref());
    let flags = flags.with("--store", "queue.store", global.store.as_deref());
    let direct = |is_direct: bool| is_direct.then_some("direct");
    match command {
        Command::Init(init) => flags.with("--layout", "queue.layout", init.layout.as_deref()).with(
            "--shard-prefix-len",
            "queue.shard_prefix_len",
            init.shard_prefix_len,
        ),
        Command::Submit(submit) => flags.with("--direct", "queue.dispatch_mode", direct(submit.direct)),
        Command::SubmitMany(many) => flags.with("--direct", "queue.dispatch_mode", direct(many.direct)),
        Command::Worker(work) => with_worker_flags(flags, work),
        Command::Up(up) => {
            let actions = up.allow_actions.then_some(true);
            with_worker_flags(flags, &up.work)
                .with("--dashboard-port", "dashboard.port", up.dashboard_port)
                .with("--allow-actions", "dashboard.allow_actions", actions)
        }
        Command::Broker(args) if args.command.is_none() => {
            flags.with("leasehold broker", "broker.role", Some(BrokerRole::Only.name()))
        }
        Command::Outpost(args) => {
            let flags = flags.with("--campaign", "queue.campaign", args.campaign.as_deref()).with(
                "--data",
                "outpost.data",
                args.data.as_deref(),
            );
            match &args.command {
                outpost::OutpostCommand::Work(programs) => with_program_flags(flags, programs),
                _ => flags,
            }
        }
        Command::Artifact { command: artifact::ArtifactCommand::Get(get) } => flags
            .with("--cache", "pieces.cache", get.cache.as_deref())
            .with("--no-peers", "pieces.peers", get.no_peers.then_some(false)),
        Command::Dashboard(args) => flags
            .with("--host", "dashboard.host", args.host.as_deref())
            .with("--port", "dashboard.port", args.port)
            .with("--token", "dashboard.token", args.token.as_deref())
            .with("--allow-actions", "dashboard.allow_actions", args.allow_actions.then_some(true))
            .with("--provider", "dashboard.provider", args.provider.as_deref()),
        Command::ServePieces(serve) => flags
            .with("--listen", "pieces.listen", serve.listen.as_deref())
            .with("--advertise", "pieces.advertise", serve.advertise.as_deref())
            .with("--cache", "pieces.cache", serve.cache.as_deref()),
        _ => flags,
    }
}

/// Adds the flags of a worker on a bucket.
fn with_worker_flags(flags: Flags, work: &worker::WorkerArgs) -> Flags {
    let direct = work.direct.then_some("direct");
    with_program_flags(flags, &work.programs)
        .with("--direct", "queue.dispatch_mode", direct)
        .with("--shards", "worker.shards", work.shards.as_deref())
        .with("--shard-range", "worker.shard_range", work.shard_range.as_deref())
        .with("--shard-leasing", "worker.shard_leasing.enabled", work.shard_leasing.then_some(true))
        .with("--lease-secs", "worker.lease_secs", work.lease_secs)
        .with("--broker-role", "broker.role", work.broker_role.as_deref())
        .with("--serve-pieces", "pieces.serve", work.serve_pieces.then_some(true))
}

/// Adds the flags of a worker that also work on an outpost.
fn with_program_flags(flags: Flags, args: &worker::ProgramArgs) -> Flags {
    flags
        .with("--id", "worker.id", args.id.as_deref())
        .with("--concurrency", "worker.concurrency", args.concurrency)
        .with("--drain-secs", "worker.drain_secs", args.drain_secs)
        .with("--pass-secrets", "worker.pass_secrets", args.pass_secrets.then_some(true))
}

/// Client of the store. Creates a missing folder.
pub(crate) fn client(settings: &typed::QueueSettings) -> leasehold_core::Result<Client> {
    client_for(settings, OpenMode::Create)
}

fn client_for(settings: &typed::QueueSettings, mode: OpenMode) -> leasehold_core::Result<Client> {
    let folder = leasehold_store::FolderOptions { mode, ..settings.open.folder };
    Client::open(&settings.store, &OpenOptions { folder, ..settings.open.clone() })
}

/// Client of a store that need not contain a queue. A folder must exist.
pub(crate) fn existing_client(
    settings: &typed::QueueSettings,
    mode: OpenMode,
) -> leasehold_core::Result<Client> {
    match leasehold_store::open::folder(&settings.store)? {
        Some(path) if !path.exists() => {
            Err(Error::invalid(format!("no folder at {}; create it with `leasehold init`", path.display()))
                .with_reason(leasehold_core::Reason::Missing))
        }
        _ => client_for(settings, mode),
    }
}

/// Open mode of a command. Only commands that submit or run tasks create a queue, and those of an outpost that reach its bucket.
fn open_mode(command: &Command, settings: &Settings) -> OpenMode {
    match command {
        Command::Init(_)
        | Command::Submit(_)
        | Command::SubmitMany(_)
        | Command::Worker(_)
        | Command::Up(_) => OpenMode::Create,
        Command::List(_)
        | Command::Get(_)
        | Command::History(_)
        | Command::Wait(_)
        | Command::Export
        | Command::Stats(_)
        | Command::Shards
        | Command::Workers(_)
        | Command::Tail(_) => OpenMode::Read,
        Command::Broker(args) if args.command.is_some() => OpenMode::Read,
        Command::Check(check) if !check.repair => OpenMode::Read,
        Command::Dashboard(_) if !settings.dashboard.allows_actions => OpenMode::Read,
        _ => OpenMode::Write,
    }
}

pub(crate) fn config(settings: &typed::QueueSettings, by: &str) -> QueueConfig {
    QueueConfig {
        layout: settings.layout,
        needs_objects: settings.needs_objects,
        shard_prefix_len: settings.shard_len.map(leasehold_core::ShardLen::digits),
        by: by.into(),
        direct: settings.direct.clone(),
        broker_role: settings.broker_role,
        transport: Some(Arc::new(BrokerConnections::new(
            UnixSockets::usual_directory(),
            settings.broker_listen,
        ))),
        ..QueueConfig::default()
    }
}

async fn open_queue(command: &Command, settings: &Settings) -> anyhow::Result<Queue> {
    let mode = open_mode(command, settings);
    let settings = &settings.queue;
    let mut config = QueueConfig { mode, ..config(settings, "cli") };
    if let Command::Check(overview::CheckArgs { grace_secs: Some(grace), .. }) = command {
        config.ahead_grace = Duration::from_secs(*grace);
        config.outdated_grace = config.ahead_grace;
    }
    if let Command::SubmitMany(_) = command {
        // A store that fails for longer stops the command. Retrying lines with unknown outcome would only delay that.
        config.submit_wait = OPERATION_TIMEOUT;
    }
    if let Command::MigrateShards(_) = command {
        // The setting may be the old or the new number of digits.
        config.shard_prefix_len = None;
    }
    let client = client_for(settings, mode)?;
    Ok(match command {
        Command::Init(init) if init.restore => Queue::restore(client, config).await?,
        _ => Queue::with_config(client, config).await?,
    })
}

fn completions(shell: clap_complete::Shell) {
    clap_complete::generate(shell, &mut Args::command(), "leasehold", &mut std::io::stdout());
}
