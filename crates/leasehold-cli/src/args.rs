//! What can be asked for.

use clap::{Args as ClapArgs, Parser, Subcommand};

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
    /// Where the queue is: a path, `s3://bucket/prefix`, `gs://…`, `az://…` or `memory://`
    #[arg(
        long,
        global = true,
        value_name = "URI",
        env = "LEASEHOLD_STORE",
        default_value = "./leasehold-data"
    )]
    pub(crate) store: String,
    /// Print JSON for machines instead of words for people
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Find out whether a store is good enough: it must honour conditions, list at once and tell the time
    #[command(after_help = "Example:\n  leasehold doctor --store s3://my-bucket/tasks")]
    Doctor,
}
