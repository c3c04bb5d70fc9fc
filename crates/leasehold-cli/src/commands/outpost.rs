//! `leasehold outpost`: a queue in a folder of this machine, which a supervisor keeps in step with a bucket. The commands
//! that also work on a bucket (`submit`, `worker`, `get`, `cancel`, `retry`) are the same here, and come here by themselves
//! when `queue.type` is `filesystem`.

use clap::{Args, Subcommand};
use futures::FutureExt;
use leasehold_core::outpost::Consistency;
use leasehold_core::{Error, Kind, Matter, Name, Result, StoreTime, Task, TaskId};
use leasehold_outpost::{Durability, OutpostConfig, Recovered, Spool, Supervisor, SupervisorOptions, Synced};
use leasehold_queue::Queue;
use leasehold_store::{HostExt, SystemHost};
use leasehold_worker::{Counts, Shutdown, Worker, WorkerOptions};
use serde_json::json;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::exec::programs;
use super::stopping::stoppable;
use super::task_ref::TaskRef;
use super::{submit, worker};
use crate::durations::duration;
use crate::printer::{Printer, line};
use crate::settings::Settings;
use crate::settings::kind::without_user;

mod status;

#[derive(Debug, Args)]
pub(crate) struct Outpost {
    #[command(subcommand)]
    pub(crate) command: OutpostCommand,
    /// Which queue: CAMPAIGN/QUEUE (setting `queue.campaign`)
    #[arg(long, value_name = "CAMPAIGN/QUEUE", global = true)]
    pub(crate) campaign: Option<String>,
    /// Where the folders of this machine's outposts are (setting `outpost.data`)
    #[arg(long, value_name = "PATH", global = true)]
    pub(crate) data: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum OutpostCommand {
    /// Make the folder, and the queue in the bucket if that can be reached
    #[command(after_help = "Example:\n  leasehold outpost init --campaign survey/photos --node pi-1")]
    Init(Init),
    /// Submit a task here; the bucket hears of it when it can be reached
    #[command(after_help = "Example:\n  leasehold outpost submit -t resize -i '{\"file\": \"a.png\"}'")]
    Submit(submit::Submit),
    /// Run tasks with programs, from the folder alone
    #[command(after_help = "Example:\n  leasehold outpost work --exec 'resize=./resize.sh'")]
    Work(worker::Work),
    /// Count what is here, and what the bucket does not know yet
    #[command(after_help = "Example:\n  leasehold outpost status --json")]
    Status,
    /// Bring folder and bucket into line once
    #[command(after_help = "Example:\n  leasehold outpost sync")]
    Sync,
    /// Keep folder and bucket in step, until interrupted
    #[command(after_help = "Example:\n  leasehold outpost run")]
    Run,
    /// Claim tasks in advance, for a time without the bucket
    #[command(after_help = "Example:\n  leasehold outpost checkout 50 --for 12h")]
    Checkout(Checkout),
    /// Let tasks run again that have failed or were cancelled here
    #[command(after_help = "Example:\n  leasehold outpost requeue 3f2c9a4e-0d1b-4c6f-9a57-2e8b6f10c4d3")]
    Requeue(Ids),
    /// Call tasks off
    #[command(after_help = "Example:\n  leasehold outpost cancel 3f2c9a4e-0d1b-4c6f-9a57-2e8b6f10c4d3")]
    Cancel(Ids),
    /// Bring the folder into order after a crash: every command that opens it does so, too
    #[command(after_help = "Example:\n  leasehold outpost recover")]
    Recover,
}

#[derive(Debug, Args)]
pub(crate) struct Init {
    /// The name of this machine; by default one made by chance
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    /// strict: only what the bucket has confirmed is started; relaxed: work goes on without the bucket, and some of it may
    /// be done twice
    #[arg(long, value_name = "RULE", default_value = "strict")]
    consistency: Consistency,
    /// light: heartbeats are not forced to the disk; full: everything is
    #[arg(long, value_name = "RULE", default_value = "light")]
    durability: Durability,
    /// Let a program come to its end although others have its task by now
    #[arg(long)]
    finish: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Checkout {
    /// How many at most; without it, all
    #[arg(value_name = "N")]
    most: Option<usize>,
    /// Only those of these shards, separated by commas
    #[arg(long, value_name = "SHARDS")]
    shards: Option<String>,
    /// Until then
    #[arg(long, value_name = "TIME", required_unless_present = "lasting")]
    until: Option<StoreTime>,
    /// For so long: seconds, or like 45m, 12h, 2d
    #[arg(long = "for", value_name = "DURATION", value_parser = duration, conflicts_with = "until")]
    lasting: Option<Duration>,
}

#[derive(Debug, Args)]
pub(crate) struct Ids {
    /// Task ids, or their first 4 or more characters
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
            say(&synced, printer);
        }
        OutpostCommand::Run => {
            let of = spool.campaign();
            let bucket = without_user(&settings.queue.store);
            printer.note(&format!("supervisor of {of} on {bucket}; Ctrl-C stops it"));
            let synced = supervisor(&spool, &settings).run(shutdown).await?;
            say(&synced, printer);
        }
        OutpostCommand::Checkout(args) => checkout(&spool, &args, &settings, printer).await?,
        OutpostCommand::Requeue(args) => requeue(&spool, &args.ids, printer)?,
        OutpostCommand::Cancel(args) => cancel(&spool, &args.ids, printer)?,
        OutpostCommand::Recover => {
            let recovered = spool.recover()?;
            if printer.is_json() {
                line(serde_json::to_value(recovered)?);
            } else {
                let Recovered { finished, unreadable, swept } = recovered;
                line(format_args!(
                    "{finished} changes finished, {unreadable} tasks unreadable, {swept} files removed"
                ));
            }
        }
    }
    Ok(())
}

/// The outpost of these settings.
pub(crate) fn open(settings: &Settings) -> Result<Spool> {
    let (data, of) = place(settings)?;
    Spool::open(&data, &of, Arc::new(SystemHost))
}

fn place(settings: &Settings) -> Result<(PathBuf, leasehold_core::outpost::Campaign)> {
    let of = settings.queue.campaign.clone();
    let of = of.ok_or_else(|| {
        Error::invalid("an outpost needs to know its queue; set queue.campaign, like `survey/photos`")
    })?;
    let data = settings.outpost.data.clone();
    let data = data.ok_or_else(|| Error::invalid("there is no home for an outpost; set outpost.data"))?;
    Ok((data, of))
}

async fn init(args: &Init, settings: &Settings, printer: &Printer) -> anyhow::Result<()> {
    let (data, of) = place(settings)?;
    // Who asks again without a name means the node that is there.
    let there = match Spool::open(&data, &of, Arc::new(SystemHost)) {
        Err(error) if error.matter() == Some(Matter::Missing) => None,
        there => Some(there?.config().node_id.to_string()),
    };
    let by_chance = || format!("node-{:08x}", SystemHost.random_bits() & 0xffff_ffff);
    let node_id = Name::checked("node", &args.node.clone().or(there).unwrap_or_else(by_chance))?;
    let config = OutpostConfig {
        consistency: args.consistency,
        durability: args.durability,
        finishes: args.finish,
        ..OutpostConfig::new(node_id)
    };
    let is_reached = reach(settings).await?;
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
        printer.note("the bucket cannot be reached now; `leasehold outpost run` tries again");
    }
    Ok(())
}

/// Founds the queue in the bucket; false if that is out of reach.
async fn reach(settings: &Settings) -> Result<bool> {
    let client = super::client(&settings.queue)?.with_patience(Duration::from_secs(3));
    match Queue::with_config(client, super::config(&settings.queue, "cli")).await {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == Kind::Unavailable => Ok(false),
        Err(error) => Err(error),
    }
}

/// Puts one task into the folder.
pub(crate) fn submit(spool: &Spool, args: &submit::Submit, printer: &Printer) -> anyhow::Result<()> {
    let id = spool.submit(submit::order_here(args)?)?;
    if printer.is_json() {
        line(json!({"id": id}));
    } else {
        line(id);
    }
    Ok(())
}

/// A worker that runs the programs of `--exec` for tasks of the folder.
pub(crate) async fn work(
    spool: &Spool,
    args: &worker::Work,
    settings: &Settings,
    printer: &Printer,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let by_chance = || format!("w-{:08x}", SystemHost.random_bits() & 0xffff_ffff);
    let name = settings.worker.id.as_ref().map_or_else(by_chance, ToString::to_string);
    let mut worker = Worker::at(Arc::new(spool.clone()), Arc::new(SystemHost), &name)?;
    for (task_type, program) in programs(&args.exec, &settings.worker, printer)? {
        worker = worker.handle(&task_type, move |context, input| program.clone().run(context, input))?;
    }
    let options = WorkerOptions { until_empty: args.is_drain(), ..worker::options(&settings.worker) };
    printer.note(&format!("worker {name} on {}; Ctrl-C drains", spool.root().display()));
    let worker = worker.options(options);
    let monitor = worker.monitor();
    let running = worker.run(shutdown.clone()).boxed();
    let counts = stoppable(running, &monitor, settings.worker.drain, &shutdown, printer).await?;
    if printer.is_json() {
        line(json!({"worker": name, "counts": counts}));
        return Ok(());
    }
    let Counts { completed, failed, cancelled, put_back, lost, .. } = counts;
    line(format_args!(
        "{completed} completed, {failed} failed, {cancelled} cancelled, {put_back} put back, {lost} lost"
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
            Queue::with_config(client, super::config(&settings.queue, "outpost")).await
        }
        .boxed()
    });
    Supervisor::new(spool.clone(), connect, options)
}

fn say(synced: &Synced, printer: &Printer) {
    if printer.is_json() {
        return line(serde_json::to_value(synced).unwrap_or_default());
    }
    let Synced { sent, confirmed, refused, conflicts, duplicates, mirrored, forgotten, renewed } = synced;
    line(format_args!(
        "{sent} sent, {mirrored} fetched, {forgotten} taken by others, {confirmed} claims confirmed, {refused} refused, \
         {renewed} renewed, {conflicts} conflicts, {duplicates} run twice"
    ));
}

async fn checkout(
    spool: &Spool,
    args: &Checkout,
    settings: &Arc<Settings>,
    printer: &Printer,
) -> anyhow::Result<()> {
    let mut supervisor = supervisor(spool, settings);
    let until = match (args.until, args.lasting) {
        (Some(until), _) => until,
        (None, lasting) => supervisor.now().await?.latest_known().plus(lasting.unwrap_or_default()),
    };
    let names: Option<Vec<_>> =
        args.shards.as_ref().map(|text| text.split(',').map(|name| name.trim().to_owned()).collect());
    let taken = supervisor.check_out(args.most.unwrap_or(usize::MAX), names.as_deref(), until).await?;
    if printer.is_json() {
        line(json!({"checked_out": taken, "until": until}));
    } else {
        line(format_args!("{taken} tasks are this node's until {until}"));
    }
    Ok(())
}

/// The ids of tasks that a person has named; all are resolved before any is changed.
fn resolved(spool: &Spool, ids: &[TaskRef]) -> Result<Vec<TaskId>> {
    ids.iter().map(|id| id.resolve_here(spool)).collect()
}

pub(crate) fn requeue(spool: &Spool, ids: &[TaskRef], printer: &Printer) -> anyhow::Result<()> {
    for id in resolved(spool, ids)? {
        let task = spool.requeue(&id)?;
        told(&task, "put back", printer);
    }
    Ok(())
}

pub(crate) fn cancel(spool: &Spool, ids: &[TaskRef], printer: &Printer) -> anyhow::Result<()> {
    for id in resolved(spool, ids)? {
        spool.cancel(&id)?;
        if printer.is_json() {
            line(json!({"id": id, "cancelled": true}));
        } else {
            line(format_args!("{id} cancelled"));
        }
    }
    Ok(())
}

fn told(task: &Task, what: &str, printer: &Printer) {
    if printer.is_json() {
        submit::json_line(task);
    } else {
        line(format_args!("{} {what}", task.id));
    }
}

/// Shows a task of the folder.
pub(crate) fn get(spool: &Spool, id: &TaskRef, printer: &Printer) -> anyhow::Result<()> {
    let id = id.resolve_here(spool)?;
    let found = spool.get(&id)?.ok_or_else(|| {
        let message = format!("there is no task {id} in {}; the bucket may have it", spool.root().display());
        Error::invalid(message).about(Matter::Missing)
    })?;
    super::get::print(&found.task, printer);
    Ok(())
}
