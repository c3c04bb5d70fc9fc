//! `leasehold outpost`: runs a queue in a local folder, which a supervisor syncs with a bucket. The commands that also work
//! on a bucket (`submit`, `worker`, `get`, `cancel`, `retry`) use these functions when `queue.type` is `filesystem`.

use clap::{Args, Subcommand};
use futures::FutureExt;
use leasehold_core::outpost::Consistency;
use leasehold_core::{Error, Kind, Name, Reason, Result, StoreTime, Task, TaskId};
use leasehold_outpost::{
    OutpostConfig, Recovered, Spool, SpoolDurability, Supervisor, SupervisorOptions, Synced,
};
use leasehold_queue::ObjectQueue;
use leasehold_store::{HostExt, SystemHost};
use leasehold_worker::{Counts, Shutdown, Worker, WorkerOptions};
use serde_json::json;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::exec::programs;
use super::stopping::{STOP_HINT, run_with_stop_notes};
use super::task_ref::TaskRef;
use super::{submit, worker};
use crate::durations::duration;
use crate::printer::{Printer, line};
use crate::settings::Settings;
use crate::settings::kind::without_user;

mod status;

/// Help of `--exec`: artifacts need the bucket.
const EXEC_HELP: &str = "Run tasks of a type with a program: input JSON on standard input, output JSON on standard output, exit \
                         code 0 = completed, 65 = failed permanently, any other = failed, retried by the task's retry \
                         policy. Without input and result files. Repeatable; `*` matches every other type";

#[derive(Debug, Args)]
pub(crate) struct OutpostArgs {
    #[command(subcommand)]
    pub(crate) command: OutpostCommand,
    /// Queue of the outpost, as campaign (a group of queues) and queue, required (setting `queue.campaign`)
    #[arg(long, value_name = "CAMPAIGN/QUEUE", global = true)]
    pub(crate) campaign: Option<String>,
    /// Directory of the outposts of this machine (setting `outpost.data`) [default: ~/.local/share/leasehold]
    #[arg(long, value_name = "PATH", global = true)]
    pub(crate) data: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum OutpostCommand {
    /// Create the outpost folder, and the queue in the bucket if it is reachable
    #[command(after_help = "Example:\n  leasehold outpost init --campaign survey/photos --node pi-1")]
    Init(OutpostInitArgs),
    /// Submit a task to the outpost folder; the next sync sends it to the bucket
    #[command(
        after_help = "Example:\n  leasehold outpost submit -t resize -i '{\"file\": \"a.png\"}'",
        mut_arg("max_attempts", |arg| arg.help("Maximum number of attempts [default: 5]")),
        mut_arg("key", |arg| arg.help("Idempotency key: one task with this key, without a time limit [default: none]"))
    )]
    Submit(submit::NewTaskArgs),
    /// Run tasks with programs, using only the outpost folder
    #[command(
        after_help = "Example:\n  leasehold outpost work --exec 'resize=./resize.sh'",
        mut_arg("exec", |arg| arg.help(EXEC_HELP))
    )]
    Work(worker::ProgramArgs),
    /// Count the tasks of the outpost folder, and the changes not yet sent to the bucket
    #[command(after_help = "Example:\n  leasehold outpost status --json")]
    Status,
    /// Sync the outpost folder with the bucket once
    #[command(after_help = "Example:\n  leasehold outpost sync")]
    Sync,
    /// Sync the outpost folder with the bucket until interrupted
    #[command(after_help = "Example:\n  leasehold outpost run")]
    Run,
    /// Claim tasks in advance, to run them without the bucket
    #[command(after_help = "Example:\n  leasehold outpost checkout 50 --for 12h")]
    Checkout(CheckoutArgs),
    /// Retry tasks of this outpost folder that failed, were cancelled or expired
    #[command(
        visible_alias = "retry",
        after_help = "Example:\n  leasehold outpost requeue 3f2c9a4e-0d1b-4c6f-9a57-2e8b6f10c4d3"
    )]
    Requeue(TaskIdsArgs),
    /// Cancel tasks
    #[command(after_help = "Example:\n  leasehold outpost cancel 3f2c9a4e-0d1b-4c6f-9a57-2e8b6f10c4d3")]
    Cancel(TaskIdsArgs),
    /// Recover the outpost folder after a crash; every command that opens the folder does this too
    #[command(after_help = "Example:\n  leasehold outpost recover")]
    Recover,
}

#[derive(Debug, Args)]
pub(crate) struct OutpostInitArgs {
    /// Node id of this machine [default: random]
    #[arg(long, value_name = "ID")]
    node: Option<String>,
    /// strict: start only tasks whose claim the bucket has confirmed; relaxed: start tasks without the bucket, some may run
    /// twice
    #[arg(long, value_name = "RULE", default_value = "strict")]
    consistency: Consistency,
    /// light: fsync everything except leases; full: fsync everything
    #[arg(long, value_name = "RULE", default_value = "light")]
    durability: SpoolDurability,
    /// Let a program finish although another worker has taken over its task [default: stop it]
    #[arg(long)]
    finish: bool,
}

#[derive(Debug, Args)]
pub(crate) struct CheckoutArgs {
    /// Maximum number of tasks to claim [default: all]
    #[arg(value_name = "N")]
    most: Option<usize>,
    /// Claim only tasks of these shards, separated by commas [default: all]
    #[arg(long, value_name = "SHARDS")]
    shards: Option<String>,
    /// Time at which the claims expire, such as 2026-12-24T18:00:00Z; this or --for is required
    #[arg(long, value_name = "TIME", required_unless_present = "lasting")]
    until: Option<StoreTime>,
    /// Duration of the claims, in seconds, or with a unit such as 45m, 12h, 2d; this or --until is required
    #[arg(long = "for", value_name = "DURATION", value_parser = duration, conflicts_with = "until")]
    lasting: Option<Duration>,
}

#[derive(Debug, Args)]
pub(crate) struct TaskIdsArgs {
    /// Task ids, or prefixes of at least 4 characters
    #[arg(value_name = "ID", required = true)]
    ids: Vec<TaskRef>,
}

pub(crate) async fn run(
    command: OutpostCommand,
    settings: Settings,
    printer: &Printer,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let settings = Arc::new(settings);
    if let OutpostCommand::Init(args) = command {
        return init(&args, &settings, printer).await;
    }
    let spool = open(&settings)?;
    match command {
        OutpostCommand::Init(_) => {}
        OutpostCommand::Submit(args) => submit(&spool, &args, printer)?,
        OutpostCommand::Work(args) => work(&spool, &args, &settings, printer, shutdown).await?,
        OutpostCommand::Status => status::run(&spool, printer)?,
        OutpostCommand::Sync => {
            let synced = supervisor(&spool, &settings).sync().await?;
            print_synced(&synced, printer);
        }
        OutpostCommand::Run => {
            let of = spool.queue_path();
            let bucket = without_user(&settings.queue.store);
            printer.note(&format!("supervisor of {of} on {bucket}; Ctrl-C stops it"));
            let synced = supervisor(&spool, &settings).run(shutdown).await?;
            print_synced(&synced, printer);
        }
        OutpostCommand::Checkout(args) => checkout(&spool, &args, &settings, printer).await?,
        OutpostCommand::Requeue(args) => requeue(&spool, &args.ids, printer)?,
        OutpostCommand::Cancel(args) => cancel(&spool, &args.ids, printer)?,
        OutpostCommand::Recover => {
            let recovered = spool.recover()?;
            if printer.is_json() {
                line(serde_json::to_value(recovered)?);
            } else {
                let Recovered { finished, corrupt, deleted } = recovered;
                line(format_args!(
                    "{finished} changes finished, {corrupt} tasks corrupt, {deleted} files deleted"
                ));
            }
        }
    }
    Ok(())
}

/// Opens the outpost of the settings.
pub(crate) fn open(settings: &Settings) -> Result<Spool> {
    let (data, of) = location(settings)?;
    Spool::open(&data, &of, Arc::new(SystemHost))
}

fn location(settings: &Settings) -> Result<(PathBuf, leasehold_core::outpost::QueuePath)> {
    let of = settings.queue.campaign.clone();
    let of =
        of.ok_or_else(|| Error::invalid("outpost has no queue; set queue.campaign, like `survey/photos`"))?;
    let data = settings.outpost.data.clone();
    let data = data.ok_or_else(|| Error::invalid("no directory for outposts; set outpost.data, or HOME"))?;
    Ok((data, of))
}

async fn init(args: &OutpostInitArgs, settings: &Settings, printer: &Printer) -> anyhow::Result<()> {
    let (data, of) = location(settings)?;
    // Without --node, an existing outpost keeps its node id.
    let existing = match Spool::open(&data, &of, Arc::new(SystemHost)) {
        Err(error) if error.reason() == Some(Reason::Missing) => None,
        existing => Some(existing?.config().node_id.to_string()),
    };
    let random = || format!("node-{:08x}", SystemHost.random_bits() & 0xffff_ffff);
    let node_id = Name::checked("node", &args.node.clone().or(existing).unwrap_or_else(random))?;
    let config = OutpostConfig {
        consistency: args.consistency,
        durability: args.durability,
        finish_after_takeover: args.finish,
        ..OutpostConfig::new(node_id)
    };
    let is_reached = create_remote_queue(settings).await?;
    let spool = Spool::create(&data, &of, config, Arc::new(SystemHost))?;
    let config = spool.config();
    if printer.is_json() {
        line(json!({
            "folder": spool.root(), "node": config.node_id, "consistency": config.consistency,
            "bucket": without_user(&settings.queue.store), "is_reached": is_reached,
        }));
        return Ok(());
    }
    line(format_args!("outpost of {of} in {}", spool.root().display()));
    let bucket = without_user(&settings.queue.store);
    line(format_args!("node {}, {}, {bucket}", config.node_id, config.consistency));
    if !is_reached {
        printer.note("bucket unreachable; `leasehold outpost run` retries");
    }
    Ok(())
}

/// Creates the queue in the bucket. Returns false if the bucket is unreachable.
async fn create_remote_queue(settings: &Settings) -> Result<bool> {
    let client = super::client(&settings.queue)?.with_timeout(Duration::from_secs(3));
    match ObjectQueue::with_config(client, super::config(&settings.queue, "cli")).await {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == Kind::Unavailable => Ok(false),
        Err(error) => Err(error),
    }
}

/// Submits one task to the folder.
pub(crate) fn submit(spool: &Spool, args: &submit::NewTaskArgs, printer: &Printer) -> anyhow::Result<()> {
    let id = spool.submit(submit::outpost_task(args)?)?;
    if printer.is_json() {
        line(json!({"id": id}));
    } else {
        line(id);
    }
    Ok(())
}

/// Runs a worker with the programs of `--exec` on the tasks of the folder.
pub(crate) async fn work(
    spool: &Spool,
    args: &worker::ProgramArgs,
    settings: &Settings,
    printer: &Printer,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let random = || format!("w-{:08x}", SystemHost.random_bits() & 0xffff_ffff);
    let name = settings.worker.id.as_ref().map_or_else(random, ToString::to_string);
    let mut worker = Worker::from_source(Arc::new(spool.clone()), Arc::new(SystemHost), &name)?;
    for (task_type, program) in programs(&args.exec, &settings.worker, printer)? {
        worker = worker.handle(&task_type, move |context, input| program.clone().run(context, input))?;
    }
    let options = WorkerOptions { until_empty: args.drain, ..worker::options(&settings.worker) };
    printer.note(&format!("worker {name} on {}; {STOP_HINT}", spool.root().display()));
    let worker = worker.options(options);
    let view = worker.view();
    let running = worker.run(shutdown.clone()).boxed();
    let counts = run_with_stop_notes(running, &view, settings.worker.drain, &shutdown, printer).await?;
    if printer.is_json() {
        line(json!({"worker": name, "counts": counts}));
        return Ok(());
    }
    let Counts { completed, failed, cancelled, requeued, lost, .. } = counts;
    line(format_args!(
        "{completed} completed, {failed} failed, {cancelled} cancelled, {requeued} requeued, {lost} claims lost"
    ));
    Ok(())
}

fn supervisor(spool: &Spool, settings: &Arc<Settings>) -> Supervisor {
    let options = SupervisorOptions {
        cycle: settings.outpost.cycle,
        window: settings.outpost.window,
        ..SupervisorOptions::default()
    };
    let settings = settings.clone();
    let connect = Arc::new(move || {
        let settings = settings.clone();
        async move {
            let client = super::client(&settings.queue)?;
            ObjectQueue::with_config(client, super::config(&settings.queue, "outpost")).await
        }
        .boxed()
    });
    Supervisor::new(spool.clone(), connect, options)
}

fn print_synced(synced: &Synced, printer: &Printer) {
    if printer.is_json() {
        return line(serde_json::to_value(synced).unwrap_or_default());
    }
    let Synced { sent, confirmed, refused, conflicts, duplicates, mirrored, forgotten, renewed } = synced;
    line(format_args!(
        "{sent} sent, {mirrored} fetched, {forgotten} taken by other workers, {confirmed} claims confirmed, {refused} \
         refused, {renewed} renewed, {conflicts} conflicts, {duplicates} run twice"
    ));
}

async fn checkout(
    spool: &Spool,
    args: &CheckoutArgs,
    settings: &Arc<Settings>,
    printer: &Printer,
) -> anyhow::Result<()> {
    let mut supervisor = supervisor(spool, settings);
    let until = match (args.until, args.lasting) {
        (Some(until), _) => until,
        (None, lasting) => supervisor.now().await?.latest_known().plus(lasting.unwrap_or_default()),
    };
    let names = args.shards.iter().flat_map(|text| text.split(','));
    let names: Vec<_> = names.map(|name| name.trim().to_owned()).collect();
    let taken = supervisor.check_out(args.most.unwrap_or(usize::MAX), &names, until).await?;
    if printer.is_json() {
        line(json!({"checked_out": taken, "until": until}));
    } else {
        line(format_args!("{taken} tasks claimed for this node until {until}"));
    }
    Ok(())
}

/// Resolves task ids. All are resolved before any task is changed.
fn resolve_ids(spool: &Spool, ids: &[TaskRef]) -> Result<Vec<TaskId>> {
    ids.iter().map(|id| id.resolve_in_spool(spool)).collect()
}

pub(crate) fn requeue(spool: &Spool, ids: &[TaskRef], printer: &Printer) -> anyhow::Result<()> {
    for id in resolve_ids(spool, ids)? {
        let task = spool.requeue(&id)?;
        print_task(&task, "retried", printer);
    }
    Ok(())
}

pub(crate) fn cancel(spool: &Spool, ids: &[TaskRef], printer: &Printer) -> anyhow::Result<()> {
    for id in resolve_ids(spool, ids)? {
        spool.cancel(&id)?;
        if printer.is_json() {
            line(json!({"id": id, "cancelled": true}));
        } else {
            line(format_args!("{id} cancelled"));
        }
    }
    Ok(())
}

fn print_task(task: &Task, what: &str, printer: &Printer) {
    if printer.is_json() {
        submit::json_line(task);
    } else {
        line(format_args!("{} {what}", task.id));
    }
}

/// Shows a task of the folder.
pub(crate) fn get(spool: &Spool, id: &TaskRef, printer: &Printer) -> anyhow::Result<()> {
    let id = id.resolve_in_spool(spool)?;
    let found = spool.get(&id)?.ok_or_else(|| {
        let message = format!("no task {id} in {}; the bucket may have it", spool.root().display());
        Error::invalid(message).with_reason(Reason::Missing)
    })?;
    super::get::print(&found, printer);
    Ok(())
}
