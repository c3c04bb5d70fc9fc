//! What can be asked for.

use clap::{Parser, Subcommand, ValueEnum};
use std::path::PathBuf;

/// Numbers: requests first, then rates against a baseline of the same run.
#[derive(Debug, Parser)]
#[command(version)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// The raw request rate of each store, against plain calls of the same kind.
    Raw(Raw),
    /// Submits tasks and works them off, against what the raw request rate of the same store allows.
    Queue(Queue),
    /// What a task costs a worker with few and with many waiting, and how much memory the worker takes.
    Depth(Depth),
    /// How long it takes to decide who fetches which piece, over whole transfers.
    Manager(Manager),
    /// How long the dashboard takes to answer over many tasks, and how much memory it takes.
    Dashboard(Dashboard),
    /// The worker of `depth`, in a process of its own.
    #[command(hide = true)]
    Work(Work),
    /// One artifact fetched from a bucket into a cache, against a plain download of the same object.
    Artifact(Artifact),
    /// One fetch of `artifact`, in a process of its own.
    #[command(hide = true)]
    Carry(Carry),
}

/// Where to measure.
#[derive(Debug, clap::Args)]
pub(crate) struct Site {
    /// Only this store; can be given more than once.
    #[arg(long, value_enum)]
    pub(crate) only: Vec<Place>,

    /// Where the folders are made; by default where temporary files go.
    #[arg(long)]
    pub(crate) dir: Option<PathBuf>,

    /// The `SeaweedFS` to start; cargo sets the one that ./test installs.
    #[arg(long, env = "LEASEHOLD_WEED")]
    pub(crate) weed: Option<PathBuf>,
}

impl Site {
    /// The stores that were asked for, else these.
    pub(crate) fn places(&self, usual: &[Place]) -> Vec<Place> {
        if self.only.is_empty() { usual.to_vec() } else { self.only.clone() }
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct Raw {
    /// Seconds for each measurement, ours and the baseline alike.
    #[arg(long, default_value_t = 2.0)]
    pub(crate) seconds: f64,

    /// Only this operation, as the table names it; can be given more than once.
    #[arg(long)]
    pub(crate) operation: Vec<String>,

    /// Requests in flight: a power of two up to 64; can be given more than once.
    #[arg(long, default_values_t = [1, 16, 64], value_parser = in_flight)]
    pub(crate) in_flight: Vec<u32>,

    #[command(flatten)]
    pub(crate) site: Site,

    /// Print JSON for machines.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Queue {
    /// Tasks in each round.
    #[arg(long, default_value_t = 2_000, value_parser = at_least_one)]
    pub(crate) tasks: u64,

    /// Rounds that count; one more goes before them.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) rounds: u32,

    /// Seconds for each kind of request when the limit is measured.
    #[arg(long, default_value_t = 0.5)]
    pub(crate) seconds: f64,

    #[command(flatten)]
    pub(crate) site: Site,

    /// Print JSON for machines.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Depth {
    /// How many tasks wait; can be given more than once, and the first is what the others are compared with.
    #[arg(long, default_values_t = [1_000, 100_000], value_parser = at_least_one)]
    pub(crate) waiting: Vec<u64>,

    /// How many of them a worker runs in each round.
    #[arg(long, default_value_t = 500, value_parser = at_least_one)]
    pub(crate) tasks: u64,

    /// Rounds that count; one more goes before them.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) rounds: u32,

    #[command(flatten)]
    pub(crate) site: Site,

    /// Print JSON for machines.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Manager {
    /// Pieces of the artifact.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(crate) pieces: u32,

    /// Peers that have some of them.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) peers: u32,

    /// Transfers, each with a seed of its own.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) rounds: u32,

    /// Print JSON for machines.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Dashboard {
    /// Tasks in the queue, which is in memory.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) tasks: u32,

    /// How often each view is asked for.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) rounds: u32,

    /// Print JSON for machines.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Work {
    /// What kind of store the queue is in.
    #[arg(long, value_enum)]
    pub(crate) place: Place,

    /// Where that is.
    #[arg(long)]
    pub(crate) address: String,

    /// The server of a bucket.
    #[arg(long)]
    pub(crate) endpoint: Option<String>,

    /// How many tasks to run before it stops.
    #[arg(long)]
    pub(crate) tasks: u64,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Artifact {
    /// Its size in MiB.
    #[arg(long, default_value_t = 256, value_parser = at_least_one)]
    pub(crate) mib: u64,

    /// Rounds that count; one more goes before them.
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) rounds: u32,

    #[command(flatten)]
    pub(crate) site: Site,

    /// Print JSON for machines.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Carry {
    /// The store, in a bucket.
    #[arg(long)]
    pub(crate) address: String,

    /// The server of the bucket.
    #[arg(long)]
    pub(crate) endpoint: String,

    /// What to fetch.
    #[arg(long)]
    pub(crate) artifact: String,

    /// The folder to fetch it into.
    #[arg(long)]
    pub(crate) to: PathBuf,

    /// Who fetches.
    #[arg(long, value_enum)]
    pub(crate) side: CarrySide,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum CarrySide {
    /// The fetcher, from the store alone.
    Ours,
    /// Plain ranged reads.
    Plain,
}

impl CarrySide {
    pub(crate) fn name(self) -> &'static str {
        match self {
            CarrySide::Ours => "ours",
            CarrySide::Plain => "plain",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Place {
    /// A folder whose writes count when they are on the disk.
    Folder,
    /// A folder whose writes count when the operating system has them.
    Os,
    /// A bucket on a `SeaweedFS` that is started for this.
    S3,
}

impl Place {
    /// The folders are kept apart in time: what one removes slows down what the next creates, for minutes.
    pub(crate) const ALL: [Place; 3] = [Place::Folder, Place::S3, Place::Os];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Place::Folder => "folder",
            Place::Os => "os",
            Place::S3 => "s3",
        }
    }
}

/// Powers of two, so that the keys that are prepared can be shared out evenly.
fn in_flight(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(number @ 1..=64u32) if number.is_power_of_two() => Ok(number),
        _ => Err("it must be 1, 2, 4, 8, 16, 32 or 64".into()),
    }
}

fn at_least_one(text: &str) -> Result<u64, String> {
    text.parse().ok().filter(|number| *number > 0).ok_or_else(|| "it must be a number above 0".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn what_can_be_asked_for_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn a_command_has_usual_stores_and_can_be_given_others() {
        let places = |line: &str| match Args::try_parse_from(line.split(' ')).unwrap().command {
            Command::Queue(queue) => queue.site.places(&[Place::Folder, Place::S3]),
            other => panic!("{other:?}"),
        };
        assert_eq!(places("bench queue"), [Place::Folder, Place::S3]);
        assert_eq!(places("bench queue --only os"), [Place::Os]);
    }

    #[test]
    fn a_round_without_tasks_is_refused() {
        for line in ["bench queue --tasks 0", "bench depth --waiting 0", "bench queue --rounds 0"] {
            assert!(Args::try_parse_from(line.split(' ')).is_err(), "{line}");
        }
    }
}
