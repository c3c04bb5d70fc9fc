//! Command-line arguments: global options and commands.

#[cfg(test)]
#[cfg(feature = "cost")]
mod reference;

use clap::{Args as ClapArgs, CommandFactory, FromArgMatches, Parser, Subcommand};
use std::ffi::OsString;

use crate::commands::{
    artifact, broker, cost, dashboard, get, leases, list, migrate, operate, outpost, overview, quarantine,
    serve_pieces, submit, submit_many, tail, transfer, up, worker, workers,
};

/// Heading of the global options in every help text.
const GLOBAL: &str = "Options of every command";

/// A task queue on object storage: needs a bucket or a folder, and no server
#[derive(Debug, Parser)]
#[command(name = "leasehold", version, max_term_width = 100)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
    /// Name of the command.
    #[arg(skip)]
    pub(crate) name: String,
}

impl Args {
    /// Parses the command line.
    pub(crate) fn parse_line(line: impl IntoIterator<Item = OsString>) -> Result<Self, clap::Error> {
        let matches = Self::command().try_get_matches_from(line)?;
        let name = matches.subcommand_name().unwrap_or_default().to_owned();
        let args = Self::from_arg_matches(&matches).map_err(|error| error.format(&mut Self::command()))?;
        Ok(Self { name, ..args })
    }
}

/// Options of every command, accepted before and after its name.
#[derive(Debug, ClapArgs)]
pub(crate) struct Global {
    /// Store of the queue: a path, `s3://bucket/prefix`, `gs://…`, `az://…` or `memory://` (setting `queue.store`)
    /// [default: ./leasehold-data]
    #[arg(long, global = true, value_name = "URI", help_heading = GLOBAL)]
    pub(crate) store: Option<String>,
    /// Use the profile `[profiles.NAME]` of the settings files [env: `LEASEHOLD_PROFILE`] [default: none]
    #[arg(long, global = true, value_name = "NAME", help_heading = GLOBAL)]
    pub(crate) profile: Option<String>,
    /// Print JSON instead of text
    #[arg(long, global = true, help_heading = GLOBAL)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a queue with one command: create it, run tasks, recover tasks of crashed workers, serve the
    /// dashboard
    #[command(
        after_help = "Example:\n  leasehold up --exec 'resize=./resize.sh --fast'",
        // The options of `worker`, except that `--exec` is optional.
        mut_arg("exec", |exec| exec.required(false)),
        mut_arg("drain", |drain| drain.requires("exec"))
    )]
    Up(up::UpArgs),
    /// Run a short demo in a temporary folder: run tasks, kill the broker and a worker, recover its tasks
    #[command(after_help = "Example:\n  leasehold demo")]
    Demo,
    /// Create a queue, or verify that it exists
    #[command(after_help = "Example:\n  leasehold init --store s3://my-bucket/tasks --shard-prefix-len 2")]
    Init(overview::InitArgs),
    /// Submit a task
    #[command(
        after_help = "Example:\n  leasehold submit -t resize -i '{\"url\": \"a.png\"}' --delay 5m --key img-1"
    )]
    Submit(submit::SubmitArgs),
    /// Submit many tasks from a file, one JSON object per line
    #[command(
        after_help = "Example:\n  echo '{\"task_type\": \"resize\", \"input\": 1}' | leasehold submit-many -"
    )]
    SubmitMany(submit_many::SubmitManyArgs),
    /// Run tasks with programs
    #[command(after_help = "Example:\n  leasehold worker --exec 'resize=./resize.sh --fast' --concurrency 4")]
    Worker(worker::WorkerArgs),
    /// Recover tasks of crashed workers, clean up the index and expire tasks, without running any
    #[command(after_help = "Example:\n  leasehold monitor --store s3://my-bucket/tasks")]
    Monitor,
    /// Be the broker of a queue with the layout `journal`, or wait to become it, without running any tasks
    #[command(after_help = "Example:\n  leasehold broker --store s3://my-bucket/tasks")]
    Broker(broker::BrokerArgs),
    /// List tasks, newest first
    #[command(after_help = "Example:\n  leasehold list --status failed --type resize --sort updated")]
    List(list::ListArgs),
    /// Show a task
    #[command(after_help = "Example:\n  leasehold get 3f2c9a4e")]
    Get(get::GetArgs),
    /// Show a task's history; `--json` prints reasons in full
    #[command(after_help = "Example:\n  leasehold history 3f2c9a4e-0d1b-4c6f-9a57-2e8b6f10c4d3")]
    History(get::GetArgs),
    /// Wait until a task is final; the exit code shows its status
    #[command(after_help = "Example:\n  leasehold wait 3f2c9a4e-0d1b-4c6f-9a57-2e8b6f10c4d3 --timeout 5m")]
    Wait(get::WaitArgs),
    /// Cancel tasks
    #[command(
        after_help = "Example:\n  leasehold cancel --type resize",
        mut_arg("task_type", |arg| arg.help("Cancel all pending and running tasks of this type"))
    )]
    Cancel(operate::TaskSelector),
    /// Retry failed, cancelled or expired tasks
    #[command(
        after_help = "Example:\n  leasehold retry 3f2c9a4e-0d1b-4c6f-9a57-2e8b6f10c4d3",
        mut_arg("task_type", |arg| arg.help("Retry all failed, cancelled and expired tasks of this type"))
    )]
    Retry(operate::TaskSelector),
    /// Change the start time of a pending task
    #[command(after_help = "Example:\n  leasehold reschedule ID --at 2026-12-24T18:00:00Z")]
    Reschedule(operate::RescheduleArgs),
    /// Delete final tasks that are past their retention, in two runs a day apart (in the layout `journal` in one)
    #[command(after_help = "Example:\n  leasehold purge --older-than-days 30 --status completed")]
    Purge(operate::PurgeArgs),
    /// Check the queue for inconsistencies
    #[command(after_help = "Example:\n  leasehold check --repair")]
    Check(overview::CheckArgs),
    /// Quarantine corrupt objects: cancel the task, free the key or release the lease, and keep a copy
    #[command(
        after_help = "Example:\n  leasehold quarantine tasks/3/3f2c9a4e-0d1b-4c6f-9a57-2e8b6f10c4d3.json"
    )]
    Quarantine(quarantine::QuarantineArgs),
    /// Change the number of shards of a live queue; resumes an interrupted migration
    #[command(after_help = "Example:\n  leasehold migrate-shards --to 2 --dry-run")]
    MigrateShards(migrate::MigrateArgs),
    /// Print all tasks as lines that `import` reads, to move them to another queue; stop its workers first
    #[command(after_help = "Example:\n  leasehold export --store ./queue > tasks.ndjson")]
    Export,
    /// Import the tasks of another queue, with their ids, states and histories; a task that exists is left as it is
    #[command(after_help = "Example:\n  leasehold import tasks.ndjson --store s3://my-bucket/tasks")]
    Import(transfer::ImportArgs),
    /// Count tasks by status: one request per task, up to 10,000 tasks; in the layout `journal` one read
    #[command(after_help = "Example:\n  leasehold stats --json")]
    Stats(overview::StatsArgs),
    /// Show which worker holds which shards, and until when
    #[command(
        after_help = "Example:\n  leasehold shards --json | jq -r 'select(.state == \"free\") | .shards'"
    )]
    Shards,
    /// List workers: those that lease shards or have an inbox; in the layout `journal` those that report themselves to the broker
    #[command(after_help = "Example:\n  leasehold workers --store s3://my-bucket/tasks")]
    Workers(workers::WorkersArgs),
    /// Manage leases on shards, worker ids and inboxes
    #[command(after_help = "Example:\n  leasehold leases break worker:w-3f2c9a4e")]
    Leases {
        #[command(subcommand)]
        command: LeasesCommand,
    },
    /// Print tasks as they change, until interrupted
    #[command(after_help = "Example:\n  leasehold tail --every 5")]
    Tail(tail::TailArgs),
    /// Serve the dashboard until interrupted: tasks, workers, shards, cost
    #[command(after_help = "Example:\n  leasehold dashboard --allow-actions")]
    Dashboard(dashboard::DashboardArgs),
    /// Publish, fetch, list and prune artifacts: large files in the store
    #[command(after_help = "Example:\n  leasehold artifact put model.bin")]
    Artifact {
        #[command(subcommand)]
        command: artifact::ArtifactCommand,
    },
    /// Serve the pieces of cached artifacts to peers, until interrupted
    #[command(
        after_help = "Example:\n  leasehold serve-pieces --listen 0.0.0.0:7400 --advertise 10.0.0.5:7400"
    )]
    ServePieces(serve_pieces::ServePiecesArgs),
    /// Run an outpost: a queue in a folder of this machine that works offline and syncs with a bucket
    #[command(after_help = "Example:\n  leasehold outpost init --campaign survey/photos --node pi-1")]
    Outpost(outpost::OutpostArgs),
    /// Estimate the monthly cost of a workload: simulate it in virtual time and count the requests
    #[command(
        hide = cfg!(not(feature = "cost")),
        disable_help_flag = cfg!(not(feature = "cost")),
        after_help = "Example:\n  leasehold cost --workers 50 --tasks-per-day 100000 --mode shard-leasing"
    )]
    Cost(cost::CostArgs),
    /// Check whether a store meets the requirements: conditional writes, consistent listing, a clock
    #[command(after_help = "Example:\n  leasehold doctor --store s3://my-bucket/tasks")]
    Doctor,
    /// Show the settings: from defaults, files, a profile, the environment and flags
    #[command(after_help = "Example:\n  leasehold config show --profile production")]
    Config {
        #[command(subcommand)]
        command: ConfigCommand,
    },
    /// Print shell completions
    #[command(
        after_help = "Example:\n  leasehold completions bash > ~/.local/share/bash-completion/completions/leasehold"
    )]
    Completions {
        /// Shell to print completions for
        shell: clap_complete::Shell,
    },
}

impl Command {
    /// True for a command that runs until it is stopped, and so handles signals itself.
    pub(crate) fn runs_until_stopped(&self) -> bool {
        use Command::{Broker, Dashboard, Demo, Monitor, Outpost, ServePieces, Tail, Up, Worker};
        use outpost::OutpostCommand;
        match self {
            Broker(args) => args.command.is_none(),
            Outpost(args) => matches!(args.command, OutpostCommand::Run | OutpostCommand::Work(_)),
            _ => matches!(self, Dashboard(_) | Demo | Monitor | ServePieces(_) | Tail(_) | Up(_) | Worker(_)),
        }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Print every setting, its value and its source; secrets are masked
    Show,
    /// Print the paths of settings files, and which of them were read
    Paths,
}

#[derive(Debug, Subcommand)]
pub(crate) enum LeasesCommand {
    /// Break a lease: other workers may take it at once, and its holder loses it at the next renewal
    #[command(after_help = "Example:\n  leasehold leases break shard:40")]
    Break(leases::BreakLeaseArgs),
}
