//! What can be asked for.

#[cfg(test)]
mod reference;

use clap::{Args as ClapArgs, Parser, Subcommand};

use crate::commands::{
    artifact, cost, dashboard, get, leases, list, migrate, operate, outpost, overview, quarantine,
    serve_pieces, submit, submit_many, tail, up, worker, workers,
};

/// Below the options of the command itself.
const GLOBAL: &str = "Options of every command";

/// A task queue with no server of its own: a bucket, or a folder, is enough.
#[derive(Debug, Parser)]
#[command(name = "leasehold", version, max_term_width = 100)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What every command understands, before or after its name.
#[derive(Debug, ClapArgs)]
pub(crate) struct Global {
    /// Where the queue is: a path, `s3://bucket/prefix`, `gs://…`, `az://…` or `memory://` (setting `queue.store`)
    #[arg(long, global = true, value_name = "URI", help_heading = GLOBAL)]
    pub(crate) store: Option<String>,
    /// Which `[profiles.NAME]` of the settings files to use; else `LEASEHOLD_PROFILE` says
    #[arg(long, global = true, value_name = "NAME", help_heading = GLOBAL)]
    pub(crate) profile: Option<String>,
    /// Print JSON for machines instead of words for people
    #[arg(long, global = true, help_heading = GLOBAL)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Make a queue usable with one command: found it if need be, run tasks with programs, recover lost ones, show how
    /// it goes, also on a page for browsers
    #[command(
        after_help = "Example:\n  leasehold up --exec 'resize=./resize.sh --fast'",
        // All of `worker`, but a program can be added later.
        mut_arg("exec", |exec| exec.required(false)),
        mut_arg("drain", |drain| drain.requires("exec"))
    )]
    Up(up::Up),
    /// A tour that ends by itself: tasks worked in a folder, a worker killed, its tasks recovered
    #[command(after_help = "Example:\n  leasehold demo")]
    Demo,
    /// Create a queue, or verify that it exists
    #[command(after_help = "Example:\n  leasehold init --store s3://my-bucket/tasks --shard-prefix-len 2")]
    Init(overview::Init),
    /// Submit a task
    #[command(
        after_help = "Example:\n  leasehold submit -t resize -i '{\"url\": \"a.png\"}' --delay 5m --key img-1"
    )]
    Submit(submit::Submit),
    /// Submit many tasks, one JSON object per line
    #[command(
        after_help = "Example:\n  echo '{\"task_type\": \"resize\", \"input\": 1}' | leasehold submit-many -"
    )]
    SubmitMany(submit_many::SubmitMany),
    /// Run tasks with programs
    #[command(after_help = "Example:\n  leasehold worker --exec 'resize=./resize.sh --fast' --concurrency 4")]
    Worker(worker::Work),
    /// Only recover, sweep and expire: what every worker also does
    #[command(after_help = "Example:\n  leasehold monitor --store s3://my-bucket/tasks")]
    Monitor,
    /// List tasks, newest first
    #[command(after_help = "Example:\n  leasehold list --status failed --type resize --sort updated")]
    List(list::List),
    /// Show a task
    #[command(after_help = "Example:\n  leasehold get 3f2c9a4e")]
    Get(get::Get),
    /// Show a task's history; `--json` has whole reasons
    #[command(after_help = "Example:\n  leasehold history 3f2c9a4e-0d1b-4c6f-9a57-2e8b6f10c4d3")]
    History(get::Get),
    /// Wait until a task is final; the exit code tells how it ended
    #[command(after_help = "Example:\n  leasehold wait 3f2c9a4e-0d1b-4c6f-9a57-2e8b6f10c4d3 --timeout 5m")]
    Wait(get::Wait),
    /// Call tasks off
    #[command(after_help = "Example:\n  leasehold cancel --type resize")]
    Cancel(operate::Which),
    /// Let tasks run again that have failed, were cancelled or have expired
    #[command(after_help = "Example:\n  leasehold retry 3f2c9a4e-0d1b-4c6f-9a57-2e8b6f10c4d3")]
    Retry(operate::Which),
    /// Plan a waiting task for another time
    #[command(after_help = "Example:\n  leasehold reschedule ID --at 2026-12-24T18:00:00Z")]
    Reschedule(operate::Reschedule),
    /// Remove final tasks that are past their retention
    #[command(after_help = "Example:\n  leasehold purge --older-than-days 30 --status completed")]
    Purge(operate::Purge),
    /// Check the queue for inconsistencies
    #[command(after_help = "Example:\n  leasehold check --repair")]
    Check(overview::Check),
    /// Take corrupt objects out of the way: cancel the task, free the key or the lease, and keep a copy
    #[command(
        after_help = "Example:\n  leasehold quarantine tasks/3/3f2c9a4e-0d1b-4c6f-9a57-2e8b6f10c4d3.json"
    )]
    Quarantine(quarantine::Quarantine),
    /// Change the number of shards of a live queue; takes up a migration from wherever it stands
    #[command(after_help = "Example:\n  leasehold migrate-shards --to 2 --dry-run")]
    MigrateShards(migrate::Migrate),
    /// Count tasks by status: one request per task, up to 10,000
    #[command(after_help = "Example:\n  leasehold stats --json")]
    Stats(overview::Stats),
    /// Show which worker holds which shards, and until when
    #[command(
        after_help = "Example:\n  leasehold shards --json | jq -r 'select(.state == \"free\") | .shards'"
    )]
    Shards,
    /// Show the workers that divide the shards among themselves or have inboxes: until when they are counted on, and what
    /// is in the inboxes
    #[command(after_help = "Example:\n  leasehold workers --store s3://my-bucket/tasks")]
    Workers(workers::Workers),
    /// Change leases on shards and on workers' names
    #[command(after_help = "Example:\n  leasehold leases break worker:w-3f2c9a4e")]
    Leases {
        #[command(subcommand)]
        command: LeasesCommand,
    },
    /// Print tasks as they change from now on, until interrupted
    #[command(after_help = "Example:\n  leasehold tail --every 5")]
    Tail(tail::Tail),
    /// Show the queue on a page for browsers, until interrupted: how full it is, every task, workers, shards, cost
    #[command(after_help = "Example:\n  leasehold dashboard --allow-actions")]
    Dashboard(dashboard::Dashboard),
    /// Put large files into the store, get them, list them, remove what is not kept any more
    #[command(after_help = "Example:\n  leasehold artifact put model.bin")]
    Artifact {
        #[command(subcommand)]
        command: artifact::Artifact,
    },
    /// Give the pieces of the artifacts in this machine's cache to peers, until interrupted
    #[command(
        after_help = "Example:\n  leasehold serve-pieces --listen 0.0.0.0:7400 --advertise 10.0.0.5:7400"
    )]
    ServePieces(serve_pieces::ServePieces),
    /// A queue in a folder of this machine, for links that come and go: work goes on, and a supervisor keeps it in step
    /// with a bucket
    #[command(after_help = "Example:\n  leasehold outpost init --campaign survey/photos --node pi-1")]
    Outpost(outpost::Outpost),
    /// What a workload would cost in a month: the real code in virtual time, every request counted
    #[command(
        after_help = "Example:\n  leasehold cost --workers 50 --tasks-per-day 100000 --mode leased --provider aws"
    )]
    Cost(cost::Cost),
    /// Find out whether a store is good enough: it must honour conditions, list at once and tell the time
    #[command(after_help = "Example:\n  leasehold doctor --store s3://my-bucket/tasks")]
    Doctor,
    /// See the settings: from defaults, files, a profile, the environment and flags
    #[command(after_help = "Example:\n  leasehold config show --profile production")]
    Config {
        #[command(subcommand)]
        command: ConfigCommand,
    },
    /// Print completions for a shell
    #[command(
        after_help = "Example:\n  leasehold completions bash > ~/.local/share/bash-completion/completions/leasehold"
    )]
    Completions {
        /// For which shell
        shell: clap_complete::Shell,
    },
}

impl Command {
    /// Whether it goes on until someone stops it, and wants to be told.
    pub(crate) fn runs_until_stopped(&self) -> bool {
        use Command::{Dashboard, Demo, Monitor, Outpost, ServePieces, Tail, Up, Worker};
        use outpost::OutpostCommand;
        match self {
            Outpost(args) => matches!(args.command, OutpostCommand::Run | OutpostCommand::Work(_)),
            _ => matches!(self, Dashboard(_) | Demo | Monitor | ServePieces(_) | Tail(_) | Up(_) | Worker(_)),
        }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Print every setting, its value and where it came from; secrets are masked
    Show,
    /// Print where settings files are looked for, and which were read
    Paths,
}

#[derive(Debug, Subcommand)]
pub(crate) enum LeasesCommand {
    /// End a lease, whoever holds it: others may take it at once. Its holder notices when it renews it next
    #[command(after_help = "Example:\n  leasehold leases break shard:40")]
    Break(leases::Break),
}
