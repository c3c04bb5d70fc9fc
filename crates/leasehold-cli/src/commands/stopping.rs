//! Saying what a stop waits for.

use futures::future::{BoxFuture, Either, select};
use leasehold_worker::shutdown::Stage;
use leasehold_worker::{Monitor, Shutdown};
use std::convert::Infallible;
use std::time::Duration;

use crate::printer::Printer;
use crate::table::count;

/// Lets a worker run to its end. Once it is told to stop, says how many tasks it still runs, and for how long.
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
    // Said first, even if nothing is left to wait for.
    match select(Box::pin(telling), running).await {
        Either::Left((never, _)) => match never {},
        Either::Right((ended, _)) => ended,
    }
}
