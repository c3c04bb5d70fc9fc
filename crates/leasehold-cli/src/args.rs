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
    /// Where the queue is: a path, `s3://bucket/prefix`, `gs://…`, `az://…` or `memory://` (setting `queue.store`)
    #[arg(long, global = true, value_name = "URI")]
    pub(crate) store: Option<String>,
    /// Which `[profiles.NAME]` of the settings files to use; else `LEASEHOLD_PROFILE` says
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) profile: Option<String>,
    /// Print JSON for machines instead of words for people
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Find out whether a store is good enough: it must honour conditions, list at once and tell the time
    #[command(after_help = "Example:\n  leasehold doctor --store s3://my-bucket/tasks")]
    Doctor,
    /// See the settings: from defaults, files, a profile, the environment and flags
    #[command(after_help = "Example:\n  leasehold config show --profile production")]
    Config {
        #[command(subcommand)]
        command: ConfigCommand,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Print every setting, its value and where it came from; secrets are masked
    Show,
    /// Print where settings files are looked for, and which were read
    Paths,
}
