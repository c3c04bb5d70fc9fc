//! Maintenance duties: the one loop that gives them their interval, jitter, time limit and back-off.
//!
//! The duty with the shortest interval is done in every round of the loop, another one in the first round after its
//! interval has passed.

use futures::future::{Either, select};
use leasehold_core::Result;
use leasehold_queue::source::{Duty, Slots, SourceStatus};
use leasehold_store::HostExt;
use leasehold_store::host::{Host, Instant};
use std::sync::Arc;
use std::time::Duration;

use crate::engine::{long_outage, request_failed};

/// A duty, and when it is to be done.
struct Planned {
    duty: Box<dyn Duty>,
    last: Instant,
    /// Pause after the last time.
    pause: Duration,
}

/// Does these duties until the slots are closed. Fails if this worker can never do them again.
pub(crate) async fn run(
    duties: Vec<Box<dyn Duty>>,
    status: Arc<dyn SourceStatus>,
    host: Arc<dyn Host>,
    slots: Slots,
) -> Result<()> {
    let Some(every) = duties.iter().map(|duty| duty.every()).min() else { return Ok(()) };
    let plan = |duty: Box<dyn Duty>| {
        let pause = if duty.begins_at_once() { Duration::ZERO } else { host.random_below(duty.every()) };
        Planned { duty, last: host.instant(), pause }
    };
    let mut planned: Vec<_> = duties.into_iter().map(plan).collect();
    loop {
        for planned in &mut planned {
            if let Err(error) = planned.tick_if_due(&host, &slots, every).await {
                if status.is_outdated() {
                    return Err(error);
                }
                request_failed(planned.duty.operation(), &error, status.outage().as_ref());
            }
        }
        let pause = every.mul_f64(0.9) + host.random_below(every / 5);
        // One round is the probe of a failing store.
        let outage = long_outage(status.outage());
        let pause = outage.map_or(pause, |outage| outage.pause(host.instant()).max(pause));
        if let Either::Right(_) = select(host.sleep(pause), Box::pin(slots.closed())).await {
            for planned in &mut planned {
                planned.duty.release().await;
            }
            return Ok(());
        }
    }
}

impl Planned {
    async fn tick_if_due(&mut self, host: &Arc<dyn Host>, slots: &Slots, shortest: Duration) -> Result<()> {
        let now = host.instant();
        if now.since(self.last) < self.pause {
            return Ok(());
        }
        let every = self.duty.every();
        (self.last, self.pause) = (now, if every > shortest { every } else { Duration::ZERO });
        let Some(most) = self.duty.time_max() else { return self.duty.tick().await };
        let limit = select(host.sleep(most), Box::pin(slots.closed()));
        match select(self.duty.tick(), limit).await {
            Either::Left((done, _)) => done,
            Either::Right(_) => Ok(()),
        }
    }
}
