//! What a worker with `--drain` waits for, for the person who waits for it.

use leasehold_queue::Queue;
use leasehold_store::host::Instant;
use leasehold_worker::{DrainWait, Monitor};
use std::convert::Infallible;
use std::time::Duration;

use crate::printer::Printer;

/// A wait that is shorter than this is not worth a word.
const LASTING: Duration = Duration::from_secs(3);
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Watches what a worker waits for.
pub(super) struct Waits {
    monitor: Monitor,
    since: Option<(DrainWait, Instant)>,
}

impl Waits {
    pub(super) fn new(monitor: Monitor) -> Self {
        Self { monitor, since: None }
    }

    /// What the worker has been waiting for long enough to be told.
    pub(super) fn lasting(&mut self, now: Instant) -> Option<DrainWait> {
        let wait = self.monitor.drain_wait();
        if self.since.map(|(known, _)| known) != wait {
            self.since = wait.map(|wait| (wait, now));
        }
        self.since.filter(|(_, since)| now.since(*since) >= LASTING).map(|(wait, _)| wait)
    }
}

/// Tells what the worker waits for, each wait once.
pub(super) async fn tell(queue: &Queue, monitor: Monitor, printer: &Printer) -> Infallible {
    let (host, mut waits, mut told) = (queue.client().host(), Waits::new(monitor), None);
    loop {
        host.sleep(LOOK_EVERY).await;
        let wait = waits.lasting(host.instant());
        if let Some(wait) = wait.filter(|wait| told != Some(*wait)) {
            printer.note(&format!("waiting for {wait}"));
            told = Some(wait);
        }
    }
}
