//! The command line of Leasehold.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`args`] | what can be asked for |
//! | [`commands`] | one file per command |
//! | [`printer`] | the only place that prints: for people on a terminal, for machines with `--json` |
//! | [`table`] | columns for people |
//! | [`settings`] | what a user has said in files, variables and flags, and which of it counts |

mod args;
mod commands;
mod printer;
#[cfg(test)]
mod reference;
mod settings;
mod table;

use clap::Parser;
use leasehold_store::{Host, SystemHost};
use leasehold_worker::Shutdown;
use leasehold_worker::shutdown::Stage;
use std::process::ExitCode;
use tokio::signal::unix::{SignalKind, signal};

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
    let shutdown = Shutdown::default();
    runtime.block_on(async {
        // What runs until it is told to stop: Ctrl-C drains; twice, it aborts. Anything else ends at once, as programs
        // do; the queue is made for being left at any instant.
        let signals = args
            .command
            .runs_until_stopped()
            .then(|| SystemHost.spawn(Box::pin(obey_signals(shutdown.clone()))));
        let result = commands::run(args, printer, shutdown).await;
        drop(signals);
        result
    })
}

async fn obey_signals(shutdown: Shutdown) {
    let (Ok(mut interrupt), Ok(mut terminate)) =
        (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
    else {
        return;
    };
    loop {
        tokio::select! { biased; _ = interrupt.recv() => {} _ = terminate.recv() => {} }
        if shutdown.stage() == Stage::Go { shutdown.drain() } else { shutdown.abort() }
    }
}
