//! Notes about what a worker with `--drain` waits for.

use leasehold_queue::Queue;
use leasehold_store::host::Instant;
use leasehold_worker::{DrainWait, WorkerView};
use std::convert::Infallible;
use std::time::Duration;

use crate::printer::Printer;

/// Duration from which on a wait is reported.
const REPORT_AFTER: Duration = Duration::from_secs(3);
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Current wait of a worker, and its start.
pub(super) struct EmptyWaitReporter {
    view: WorkerView,
    since: Option<(DrainWait, Instant)>,
}

impl EmptyWaitReporter {
    pub(super) fn new(view: WorkerView) -> Self {
        Self { view, since: None }
    }

    /// Current wait of the worker, if it has lasted long enough to be reported.
    pub(super) fn long_wait(&mut self, now: Instant) -> Option<DrainWait> {
        let wait = self.view.drain_wait();
        if self.since.map(|(known, _)| known) != wait {
            self.since = wait.map(|wait| (wait, now));
        }
        self.since.filter(|(_, since)| now.since(*since) >= REPORT_AFTER).map(|(wait, _)| wait)
    }
}

/// Prints what the worker waits for, each wait once.
pub(super) async fn print_waits(queue: &Queue, view: WorkerView, printer: &Printer) -> Infallible {
    let (host, mut waits, mut reported) = (queue.host(), EmptyWaitReporter::new(view), None);
    loop {
        host.sleep(POLL_INTERVAL).await;
        let wait = waits.long_wait(host.instant());
        if let Some(wait) = wait.filter(|wait| reported != Some(*wait)) {
            printer.note(&format!("waiting for {wait}"));
            reported = Some(wait);
        }
    }
}
