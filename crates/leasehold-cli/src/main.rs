//! The command line of Leasehold.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`args`] | what can be asked for |
//! | [`commands`] | one file per command |
//! | [`printer`] | the only place that prints: for people on a terminal, for machines with `--json` |
//! | [`settings`] | what a user has said in files, variables and flags, and which of it counts |

mod args;
mod commands;
mod printer;
mod settings;

use clap::Parser;
use std::process::ExitCode;

use printer::Printer;

fn main() -> ExitCode {
    let args = match args::Args::try_parse() {
        Ok(args) => args,
        Err(usage) => return printer::usage(&usage),
    };
    let printer = Printer::new(args.global.json);
    match run(args, &printer) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => printer.error(&error),
    }
}

fn run(args: args::Args, printer: &Printer) -> anyhow::Result<()> {
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_env("LEASEHOLD_LOG"))
        .with_writer(std::io::stderr)
        .init();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(commands::run(args, printer))
}
