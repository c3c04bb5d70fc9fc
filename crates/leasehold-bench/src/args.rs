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
}

#[derive(Debug, clap::Args)]
pub(crate) struct Raw {
    /// Seconds for each measurement, ours and the baseline alike.
    #[arg(long, default_value_t = 2.0)]
    pub(crate) seconds: f64,

    /// Only this store; can be given more than once.
    #[arg(long, value_enum)]
    pub(crate) only: Vec<Place>,

    /// Only this operation, as the table names it; can be given more than once.
    #[arg(long)]
    pub(crate) operation: Vec<String>,

    /// Requests in flight: a power of two up to 64; can be given more than once.
    #[arg(long, default_values_t = [1, 16, 64], value_parser = in_flight)]
    pub(crate) in_flight: Vec<u32>,

    /// Where the folders are made; by default where temporary files go.
    #[arg(long)]
    pub(crate) dir: Option<PathBuf>,

    /// The `SeaweedFS` to start; cargo sets the one that ./test installs.
    #[arg(long, env = "LEASEHOLD_WEED")]
    pub(crate) weed: Option<PathBuf>,

    /// Print JSON for machines.
    #[arg(long)]
    pub(crate) json: bool,
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
