//! Notes about what a worker with `--drain` waits for.

use leasehold_queue::Queue;
use leasehold_store::host::Instant;
use leasehold_worker::{DrainWait, Monitor};
use std::convert::Infallible;
use std::time::Duration;

use crate::printer::Printer;

/// Duration from which on a wait is reported.
const LASTING: Duration = Duration::from_secs(3);
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Current wait of a worker, and its start.
pub(super) struct DrainReporter {
    monitor: Monitor,
    since: Option<(DrainWait, Instant)>,
}

impl DrainReporter {
    pub(super) fn new(monitor: Monitor) -> Self {
        Self { monitor, since: None }
    }

    /// Current wait of the worker, if it has lasted long enough to be reported.
    pub(super) fn lasting(&mut self, now: Instant) -> Option<DrainWait> {
        let wait = self.monitor.drain_wait();
        if self.since.map(|(known, _)| known) != wait {
            self.since = wait.map(|wait| (wait, now));
        }
        self.since.filter(|(_, since)| now.since(*since) >= LASTING).map(|(wait, _)| wait)
    }
}

/// Prints what the worker waits for, each wait once.
pub(super) async fn tell(queue: &Queue, monitor: Monitor, printer: &Printer) -> Infallible {
    let (host, mut waits, mut reported) = (queue.client().host(), DrainReporter::new(monitor), None);
    loop {
        host.sleep(LOOK_EVERY).await;
        let wait = waits.lasting(host.instant());
        if let Some(wait) = wait.filter(|wait| reported != Some(*wait)) {
            printer.note(&format!("waiting for {wait}"));
            reported = Some(wait);
        }
    }
}
