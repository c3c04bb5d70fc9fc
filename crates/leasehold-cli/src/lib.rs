//! The command line of Leasehold.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`args`] | what can be asked for |
//! | [`commands`] | one file per command |
//! | [`durations`], [`json`] | text that is read: `5m`, and JSON without numbers that would change |
//! | [`printer`] | the only place that prints: for people on a terminal, for machines with `--json` |
//! | [`run_dirs`] | directories of runs, and what killed processes left of theirs |
//! | [`table`] | columns for people |
//! | [`settings`] | what a user has said in files, variables and flags, and which of it counts |
//! | [`telemetry`] | what happens, for whoever asks: on the standard error, and for OpenTelemetry (feature `otel`) |
//! | [`front`] | the same settings, and the orders of `submit-many`, for other fronts of the queue |

mod args;
mod commands;
mod durations;
pub mod front;
mod json;
mod printer;
#[cfg(test)]
mod reference;
mod run_dirs;
mod settings;
mod table;
mod telemetry;

use clap::Parser;
use leasehold_core::{Error, Kind};
use leasehold_store::host::words_of;
use leasehold_store::{Host, SystemHost};
use leasehold_worker::Shutdown;
use leasehold_worker::shutdown::Stage;
use std::ffi::OsString;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

use printer::Printer;

/// So long threads may go on with what they are at when all else is done.
const THREADS_WAIT: Duration = Duration::from_secs(1);

/// Does what the arguments ask for, the first of which is the program's name, and gives its exit code. `program` is how
/// this command line is started: the tour starts workers of its own.
pub fn main(program: &[OsString], args: impl IntoIterator<Item = OsString>) -> u8 {
    let args = match args::Args::try_parse_from(args) {
        Ok(args) => args,
        Err(usage) => return printer::usage(&usage),
    };
    let printer = Printer::new(args.global.json);
    exit_code(&printer, || run(program, args, &printer))
}

/// Runs a command and gives its exit code. A panic is an error like any other, and a bug.
fn exit_code(printer: &Printer, run: impl FnOnce() -> anyhow::Result<()>) -> u8 {
    let result = catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let message = format!("internal error: {}; please report it", words_of(&*panic));
        Err(Error::new(Kind::Internal, message).into())
    });
    match result {
        Ok(()) => 0,
        Err(error) => printer.error(&error),
    }
}

fn run(program: &[OsString], args: args::Args, printer: &Printer) -> anyhow::Result<()> {
    let telemetry = telemetry::start();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let shutdown = Shutdown::default();
    let result = runtime.block_on(async {
        // What runs until it is told to stop: Ctrl-C drains; twice, it aborts. Anything else ends at once, as programs
        // do; the queue is made for being left at any instant.
        let signals = args
            .command
            .runs_until_stopped()
            .then(|| SystemHost.spawn(Box::pin(obey_signals(shutdown.clone()))));
        let result = commands::run(program, args, printer, shutdown).await;
        drop(signals);
        result
    });
    // A thread may still be reading a large file for a run that was given up: nobody waits for that.
    runtime.shutdown_timeout(THREADS_WAIT);
    telemetry.end();
    result
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_internal_error_with_its_exit_code() {
        let printer = Printer::new(false);
        assert_eq!(exit_code(&printer, || panic!("no such luck")), Kind::Internal.exit_code());
        assert_eq!(exit_code(&printer, || Err(Error::invalid("no").into())), Kind::Invalid.exit_code());
        assert_eq!(exit_code(&printer, || Ok(())), 0);
    }
}
