//! Command-line arguments.

use clap::{Parser, Subcommand, ValueEnum};
use std::path::PathBuf;

/// Measure requests first, then rates against a baseline of the same run
#[derive(Debug, Parser)]
#[command(version)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Measure the raw request rate of each store, against plain calls of the same kind
    Raw(RawArgs),
    /// Submit and run tasks, against the limit set by the raw request rate of the same store
    Queue(QueueArgs),
    /// Submit and run tasks of a journal, against bare appends and syncs in a folder, or bare puts in a bucket
    Journal(JournalArgs),
    /// Run one stage of a comparison of task queues, called by the program that compares
    #[command(hide = true)]
    Contestant(ContestantArgs),
    /// Fill a journal until killed, or open it, in a process of its own
    #[command(hide = true)]
    JournalProcess(JournalProcessArgs),
    /// Measure the cost of a task and the worker's memory, with few and with many pending tasks
    Depth(DepthArgs),
    /// Measure the time to assign pieces to peers, over whole transfers
    Manager(ManagerArgs),
    /// Measure the response time and memory of the dashboard over many tasks
    Dashboard(DashboardBenchArgs),
    /// Run the worker of `depth` in a process of its own
    #[command(hide = true)]
    Work(WorkArgs),
    /// Fetch one artifact from a bucket into a cache, against a plain download of the same object
    Artifact(ArtifactArgs),
    /// Run one fetch of `artifact` in a process of its own
    #[command(hide = true)]
    Fetch(BenchFetchArgs),
}

/// Stores to measure.
#[derive(Debug, clap::Args)]
pub(crate) struct StoreArgs {
    /// Measure only this store; can be repeated
    #[arg(long, value_enum)]
    pub(crate) only: Vec<BenchStore>,

    /// Directory for the folders [default: the directory of temporary files]
    #[arg(long)]
    pub(crate) dir: Option<PathBuf>,

    /// Path of the `SeaweedFS` binary; cargo sets the one that ./test installs
    #[arg(long, env = "LEASEHOLD_WEED")]
    pub(crate) weed: Option<PathBuf>,
}

impl StoreArgs {
    /// Returns the stores that were selected, or `usual`.
    pub(crate) fn stores(&self, usual: &[BenchStore]) -> Vec<BenchStore> {
        if self.only.is_empty() { usual.to_vec() } else { self.only.clone() }
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct RawArgs {
    /// Seconds per measurement, for both sides
    #[arg(long, default_value_t = 2.0)]
    pub(crate) seconds: f64,

    /// Measure only this operation, named as in the table; can be repeated
    #[arg(long)]
    pub(crate) operation: Vec<String>,

    /// Requests in flight, a power of two up to 64; can be repeated
    #[arg(long, default_values_t = [1, 16, 64], value_parser = in_flight)]
    pub(crate) in_flight: Vec<u32>,

    #[command(flatten)]
    pub(crate) site: StoreArgs,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct QueueArgs {
    /// Tasks per round
    #[arg(long, default_value_t = 2_000, value_parser = at_least_one)]
    pub(crate) tasks: u64,

    /// Measured rounds, after one that warms up
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) rounds: u32,

    /// Seconds per kind of request when the limit is measured
    #[arg(long, default_value_t = 0.5)]
    pub(crate) seconds: f64,

    #[command(flatten)]
    pub(crate) site: StoreArgs,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct JournalArgs {
    /// Tasks per round and stage; single submits make a tenth of it, in a bucket a two-hundredth
    #[arg(long, default_value_t = 20_000, value_parser = at_least_one)]
    pub(crate) tasks: u64,

    /// Measured rounds, after one that warms up
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) rounds: u32,

    /// Pending tasks with which memory and opening after `kill -9` are measured; 0 for none
    #[arg(long, default_value_t = 0)]
    pub(crate) waiting: u64,

    /// Size of the input of a task, in bytes; tasks that are submitted 64 in flight have none
    #[arg(long, default_value_t = 100)]
    pub(crate) input_bytes: usize,

    #[command(flatten)]
    pub(crate) site: StoreArgs,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ContestantArgs {
    /// Folder shared by all stages
    #[arg(long, env = "BENCH_DIR")]
    pub(crate) bench_dir: PathBuf,

    /// Slots of a worker
    #[arg(long, env = "BENCH_CONCURRENCY", default_value_t = 8)]
    pub(crate) concurrency: usize,

    /// `tuned` shortens leases, so that the tasks of a crashed worker start again sooner
    #[arg(long, env = "BENCH_MODE", default_value = "default")]
    pub(crate) mode: String,

    /// Use the layout `objects` instead of `journal`
    #[arg(long)]
    pub(crate) objects: bool,

    #[command(subcommand)]
    pub(crate) verb: ContestantVerb,
}

/// Stage of a comparison.
#[derive(Debug, Subcommand)]
pub(crate) enum ContestantVerb {
    /// Create the queue
    Init,
    /// Submit tasks one by one
    Enqueue { tasks: u64 },
    /// Submit tasks in bulk
    Bulk { tasks: u64 },
    /// Run tasks until SIGTERM
    Worker,
    /// Print the number of unfinished tasks until there are none
    Watch,
    /// Submit a task every few milliseconds
    Trickle { tasks: u64, every_ms: f64, first: u64 },
    /// Submit a task that sleeps
    Sleeper { seq: u64, seconds: f64 },
}

#[derive(Debug, clap::Args)]
pub(crate) struct PlaceArgs {
    /// Kind of store of the queue
    #[arg(long = "place", value_enum)]
    store: BenchStore,

    /// Address of the store
    #[arg(long)]
    address: String,

    /// Endpoint of the bucket
    #[arg(long)]
    endpoint: Option<String>,
}

impl PlaceArgs {
    /// Opens the store.
    pub(crate) fn client(&self) -> anyhow::Result<leasehold_store::Client> {
        crate::store_under_test::client(self.store, &self.address, self.endpoint.as_deref())
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct JournalProcessArgs {
    #[command(flatten)]
    pub(crate) place: PlaceArgs,

    /// Tasks to submit; 0 to open the queue
    #[arg(long)]
    pub(crate) fill: u64,

    /// Size of the input of a task, in bytes
    #[arg(long)]
    pub(crate) input_bytes: usize,
}

#[derive(Debug, clap::Args)]
pub(crate) struct DepthArgs {
    /// Pending tasks; can be repeated, and the first is the baseline of the others
    #[arg(long, default_values_t = [1_000, 100_000], value_parser = at_least_one)]
    pub(crate) waiting: Vec<u64>,

    /// Tasks that a worker runs per round
    #[arg(long, default_value_t = 500, value_parser = at_least_one)]
    pub(crate) tasks: u64,

    /// Measured rounds, after one that warms up
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) rounds: u32,

    #[command(flatten)]
    pub(crate) site: StoreArgs,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ManagerArgs {
    /// Pieces of the artifact
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(crate) pieces: u32,

    /// Peers that have some of the pieces
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) peers: u32,

    /// Transfers, each with a seed of its own
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) rounds: u32,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct DashboardBenchArgs {
    /// Tasks in the queue, which is in memory
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) tasks: u32,

    /// Requests per view
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) rounds: u32,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct WorkArgs {
    #[command(flatten)]
    pub(crate) place: PlaceArgs,

    /// Tasks to run before the worker stops
    #[arg(long)]
    pub(crate) tasks: u64,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ArtifactArgs {
    /// Size of the artifact in MiB
    #[arg(long, default_value_t = 256, value_parser = at_least_one)]
    pub(crate) mib: u64,

    /// Measured rounds, after one that warms up
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) rounds: u32,

    #[command(flatten)]
    pub(crate) site: StoreArgs,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct BenchFetchArgs {
    /// Address of the store, in a bucket
    #[arg(long)]
    pub(crate) address: String,

    /// Endpoint of the bucket
    #[arg(long)]
    pub(crate) endpoint: String,

    /// Artifact to fetch
    #[arg(long)]
    pub(crate) artifact: String,

    /// Folder to fetch it into
    #[arg(long)]
    pub(crate) to: PathBuf,

    /// Side that fetches
    #[arg(long, value_enum)]
    pub(crate) side: FetchSide,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum FetchSide {
    /// The fetcher, from the store alone
    Ours,
    /// Plain ranged reads
    Plain,
}

impl FetchSide {
    pub(crate) fn name(self) -> &'static str {
        match self {
            FetchSide::Ours => "ours",
            FetchSide::Plain => "plain",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum BenchStore {
    /// A folder whose writes count when they are on the disk
    Folder,
    /// A folder whose writes count when the operating system has them
    Os,
    /// A bucket on a `SeaweedFS` that is started for this
    S3,
}

impl BenchStore {
    /// All stores. The folders are measured apart in time: removals in one slow down creations in the next,
    /// for minutes.
    pub(crate) const ALL: [BenchStore; 3] = [BenchStore::Folder, BenchStore::S3, BenchStore::Os];

    pub(crate) fn name(self) -> &'static str {
        match self {
            BenchStore::Folder => "folder",
            BenchStore::Os => "os",
            BenchStore::S3 => "s3",
        }
    }
}

/// Parses a power of two, by which prepared keys can be divided evenly.
fn in_flight(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(number @ 1..=64u32) if number.is_power_of_two() => Ok(number),
        _ => Err("must be 1, 2, 4, 8, 16, 32 or 64".into()),
    }
}

fn at_least_one(text: &str) -> Result<u64, String> {
    text.parse().ok().filter(|number| *number > 0).ok_or_else(|| "must be a number above 0".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_arguments_are_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn a_command_has_default_stores_and_accepts_others() {
        let places = |line: &str| match Args::try_parse_from(line.split(' ')).unwrap().command {
            Command::Queue(queue) => queue.site.stores(&[BenchStore::Folder, BenchStore::S3]),
            other => panic!("{other:?}"),
        };
        assert_eq!(places("bench queue"), [BenchStore::Folder, BenchStore::S3]);
        assert_eq!(places("bench queue --only os"), [BenchStore::Os]);
    }

    #[test]
    fn a_round_without_tasks_is_refused() {
        for line in ["bench queue --tasks 0", "bench depth --waiting 0", "bench queue --rounds 0"] {
            assert!(Args::try_parse_from(line.split(' ')).is_err(), "{line}");
        }
    }
}
