//! Command line of Leasehold.
//!
//! | module | contents |
//! | --- | --- |
//! | [`args`] | command-line arguments |
//! | [`commands`] | one file per command |
//! | [`durations`], [`json`] | parsing of durations such as `5m`, and of JSON with exact numbers |
//! | [`printer`] | the only module that prints: text, or JSON with `--json` |
//! | [`run_dirs`] | directories of runs, and removal of those of killed processes |
//! | [`table`] | tables for the terminal |
//! | [`settings`] | settings from files, variables and flags |
//! | [`telemetry`] | logs on standard error, and spans for OpenTelemetry (feature `otel`) |
//! | [`frontend`] | the settings and the lines of `submit-many` for other frontends, such as Python |

mod args;
mod commands;
mod durations;
pub mod frontend;
mod json;
mod printer;
#[cfg(test)]
mod reference;
mod run_dirs;
mod settings;
mod table;
mod telemetry;

use leasehold_core::{Error, Kind};
use leasehold_store::host::panic_message;
use leasehold_store::{Host, SystemHost};
use leasehold_worker::Shutdown;
use leasehold_worker::shutdown::Stage;
use std::ffi::OsString;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

use printer::Printer;

/// Time that blocking threads have to finish when everything else is done.
const THREADS_WAIT: Duration = Duration::from_secs(1);

/// Runs the command line and returns its exit code. The first argument is the name of the program. `program` is the command
/// that starts this command line: `demo` starts workers with it.
pub fn main(program: &[OsString], args: impl IntoIterator<Item = OsString>) -> u8 {
    let args = match args::Args::parse_line(args) {
        Ok(args) => args,
        Err(usage) => return printer::usage(&usage),
    };
    let printer = Printer::new(args.global.json);
    exit_code(&printer, || run(program, args, &printer))
}

/// Runs a command and returns its exit code. A panic becomes an internal error.
fn exit_code(printer: &Printer, run: impl FnOnce() -> anyhow::Result<()>) -> u8 {
    let result = catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let message = format!("internal error: {}; please report it", panic_message(&*panic));
        Err(Error::new(Kind::Internal, message).into())
    });
    match result {
        Ok(()) => 0,
        Err(error) => printer.error(&error),
    }
}

fn run(program: &[OsString], args: args::Args, printer: &Printer) -> anyhow::Result<()> {
    let telemetry = telemetry::start(matches!(args.command, args::Command::Demo));
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let shutdown = Shutdown::default();
    let result = runtime.block_on(async {
        // Commands that run until they are stopped: Ctrl-C drains, a second one aborts. All other commands end at once: a
        // client may stop at any point without harm to the queue.
        let signals = args
            .command
            .runs_until_stopped()
            .then(|| SystemHost.spawn(Box::pin(handle_signals(shutdown.clone()))));
        let result = commands::run(program, args, printer, shutdown).await;
        drop(signals);
        result
    });
    // A thread may still be reading a large file for a run that was aborted: it is not waited for.
    runtime.shutdown_timeout(THREADS_WAIT);
    telemetry.end();
    result
}

async fn handle_signals(shutdown: Shutdown) {
    let (Ok(mut interrupt), Ok(mut terminate)) =
        (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
    else {
        return;
    };
    loop {
        tokio::select! { biased; _ = interrupt.recv() => {} _ = terminate.recv() => {} }
        if shutdown.stage() == Stage::Running { shutdown.drain() } else { shutdown.abort() }
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
