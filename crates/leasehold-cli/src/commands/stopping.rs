//! Notes about what a stopping worker waits for.

use futures::future::{BoxFuture, Either, select};
use leasehold_worker::shutdown::Stage;
use leasehold_worker::{Shutdown, WorkerView};
use std::convert::Infallible;
use std::time::Duration;

use crate::printer::Printer;
use crate::table::count;

/// Effect of Ctrl-C on a worker, for the note at its start.
pub(super) const STOP_HINT: &str = "Ctrl-C lets running tasks finish, a second Ctrl-C releases them";

/// Runs a worker to its end. When it is stopped, prints how many tasks still run, and the time they have to finish.
pub(super) async fn run_with_stop_notes<T>(
    running: BoxFuture<'_, T>,
    view: &WorkerView,
    drain: Duration,
    shutdown: &Shutdown,
    printer: &Printer,
) -> T {
    let notes = async {
        shutdown.reached(Stage::Drain).await;
        match view.running() {
            0 => printer.note("stopping; no task is running"),
            number => printer.note(&format!(
                "stopping: {} may finish, for up to {} s; a second Ctrl-C releases them",
                count(number, "task", "tasks"),
                drain.as_secs()
            )),
        }
        shutdown.reached(Stage::Abort).await;
        printer.note("stopping now; running tasks are released");
        std::future::pending::<Infallible>().await
    };
    // The notes are polled first, so that they are printed even if the worker ends at once.
    match select(Box::pin(notes), running).await {
        Either::Left((never, _)) => match never {},
        Either::Right((ended, _)) => ended,
    }
}
