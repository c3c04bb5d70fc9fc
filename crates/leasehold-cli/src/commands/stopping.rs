//! Notes about what a stopping worker waits for.

use futures::future::{BoxFuture, Either, select};
use leasehold_worker::shutdown::Stage;
use leasehold_worker::{Monitor, Shutdown};
use std::convert::Infallible;
use std::time::Duration;

use crate::printer::Printer;
use crate::table::count;

/// Runs a worker to its end. When it is stopped, prints how many tasks still run, and the time they have to finish.
pub(super) async fn stoppable<T>(
    running: BoxFuture<'_, T>,
    monitor: &Monitor,
    drain: Duration,
    shutdown: &Shutdown,
    printer: &Printer,
) -> T {
    let telling = async {
        shutdown.reached(Stage::Drain).await;
        match monitor.running() {
            0 => printer.note("stopping; no task is running"),
            number => printer.note(&format!(
                "draining {}, up to {} s; press again to stop now",
                count(number, "task", "tasks"),
                drain.as_secs()
            )),
        }
        shutdown.reached(Stage::Abort).await;
        printer.note("stopping now; running tasks are released");
        std::future::pending::<Infallible>().await
    };
    // The notes are polled first, so that they are printed even if the worker ends at once.
    match select(Box::pin(telling), running).await {
        Either::Left((never, _)) => match never {},
        Either::Right((ended, _)) => ended,
    }
}
