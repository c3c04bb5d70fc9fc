//! Renewing claims, on a thread that handlers cannot block.
//!
//! A claim is trusted only while even the latest possible current time is before its last *confirmed* expiry, whatever
//! happens: no answer, a slow answer, a machine that was suspended. After that the handler has to stop, and nothing
//! more is written for this claim.
//!
//! Most runs end before their first renewal is due. Until then a run is only an entry in a list, which does not wake the
//! thread: it sleeps until the earliest first renewal.

use futures::future::{Either, select};
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use leasehold_queue::source::{ClaimStatus, SourceStatus, next_or};
use leasehold_store::host::{Instant, lock};
use leasehold_store::{Host, HostExt};
use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::Notify;

use crate::run_handle::{RunHandle, Stop};

/// Divisor of the usual interval: a failed renewal is tried again after at most a fourth of it.
const RETRY_PART: u32 = 4;

/// Runs of a worker whose claims are to be renewed.
#[derive(Debug)]
pub(crate) struct Renewals {
    state: Mutex<RenewalState>,
    /// Notified when the renewer must not sleep any longer.
    changed: Notify,
}

#[derive(Debug)]
struct RenewalState {
    /// Runs that were not renewed yet, by the time of their first renewal.
    first: BTreeMap<FirstRenewal, (Arc<RunHandle>, WallTime)>,
    added: u64,
    /// Time until which the renewer sleeps.
    wakes_at: i64,
    is_closed: bool,
}

/// Time of the first renewal of a run, in nanoseconds since boot, and the number of the run.
type FirstRenewal = (i64, u64);

/// Time of the first renewal by the wall clock, in nanoseconds. It shows that the boot clock has missed some time, as while a
/// machine is paused; a renewal that is too early does no harm.
type WallTime = i64;

/// Entry of a run, which is removed when this is dropped.
#[derive(Debug)]
pub(crate) struct RenewalEntry {
    renewals: Arc<Renewals>,
    first: FirstRenewal,
}

/// Next work of the renewer.
enum RenewerWork {
    /// Renew these, and sleep for this time; forever if there is none.
    Due(Vec<Arc<RunHandle>>, Option<Duration>),
    /// No more runs will come, and none waits.
    Closed,
}

impl Renewals {
    pub(crate) fn new() -> Arc<Self> {
        let state = RenewalState { first: BTreeMap::new(), added: 0, wakes_at: i64::MAX, is_closed: false };
        Arc::new(Self { state: Mutex::new(state), changed: Notify::new() })
    }

    /// Adds a run, whose first renewal is due in some time.
    pub(crate) fn add(self: &Arc<Self>, run: Arc<RunHandle>, now: Instant, due_in: Duration) -> RenewalEntry {
        let nanos = i64::try_from(due_in.as_nanos()).unwrap_or(i64::MAX);
        let mut state = lock(&self.state);
        let first = (now.boot_ns.saturating_add(nanos), state.added);
        state.added += 1;
        state.first.insert(first, (run, now.wall_ns.saturating_add(nanos)));
        let is_earlier = first.0 < state.wakes_at;
        drop(state);
        if is_earlier {
            self.changed.notify_one();
        }
        RenewalEntry { renewals: self.clone(), first }
    }

    /// Wakes the renewer, because a handler has asked for a renewal.
    pub(crate) fn hurry(&self) {
        self.changed.notify_one();
    }

    /// Ends the renewer, after the runs that it renews have ended.
    pub(crate) fn close(&self) {
        lock(&self.state).is_closed = true;
        self.changed.notify_one();
    }

    /// Takes the runs whose first renewal is due, or was asked for.
    fn take_due(&self, now: Instant) -> RenewerWork {
        let mut state = lock(&self.state);
        let is_due = |(due, _): &FirstRenewal, (run, wall_due): &mut (Arc<RunHandle>, WallTime)| {
            *due <= now.boot_ns || *wall_due <= now.wall_ns || run.is_renewal_requested()
        };
        let due: Vec<_> = state.first.extract_if(.., is_due).map(|(_, (run, _))| run).collect();
        if due.is_empty() && state.first.is_empty() && state.is_closed {
            return RenewerWork::Closed;
        }
        // The nearer of both times: if the boot clock has missed some time, the claim may expire before its renewal is due by
        // the boot clock.
        let left = |((due, _), (_, wall_due)): (&FirstRenewal, &(Arc<RunHandle>, WallTime))| {
            (due - now.boot_ns).min(wall_due - now.wall_ns)
        };
        let left_ns = state.first.iter().map(left).min();
        state.wakes_at = left_ns.map_or(i64::MAX, |left_ns| now.boot_ns.saturating_add(left_ns));
        RenewerWork::Due(due, left_ns.map(|left_ns| Duration::from_nanos(left_ns.max(0).unsigned_abs())))
    }
}

impl Drop for RenewalEntry {
    fn drop(&mut self) {
        lock(&self.renewals.state).first.remove(&self.first);
    }
}

/// Renews the claims of runs, until no more will come and all of them have ended.
pub(crate) async fn run(host: Arc<dyn Host>, status: Arc<dyn SourceStatus>, renewals: Arc<Renewals>) {
    let mut renewing = FuturesUnordered::new();
    loop {
        let now = host.instant();
        let RenewerWork::Due(due, left) = renewals.take_due(now) else {
            return renewing.for_each(|()| async {}).await;
        };
        renewing.extend(due.into_iter().map(|run| Box::pin(renew(host.clone(), status.clone(), run))));
        let rested = match left {
            Some(left) => host.sleep(left),
            None => std::future::pending().boxed(),
        };
        let changed = pin!(renewals.changed.notified());
        let mut woken = select(changed, rested);
        while let Either::Left(()) = next_or(&mut renewing, &mut woken).await {}
    }
}

/// Renews a claim whose first renewal is due, until it ends.
async fn renew(host: Arc<dyn Host>, status: Arc<dyn SourceStatus>, run: Arc<RunHandle>) {
    let mut is_requested = run.take_renewal_request();
    loop {
        let mut claimed = run.claim.lock().await;
        if run.is_ended() {
            return;
        }
        let Some(left) = claimed.time_left() else { return run.stop(Stop::Lost) };
        let renewal = claimed.renew(run.take_progress(), is_requested);
        let renewed = match select(renewal, host.sleep(left)).await {
            Either::Left((renewed, _)) => renewed,
            Either::Right(_) => {
                tracing::warn!(task = %run.id, "claim expired before its renewal was confirmed");
                return run.stop(Stop::Lost);
            }
        };
        let mut pause = claimed.renew_every();
        match renewed {
            Ok(ClaimStatus::Held) => {}
            Ok(ClaimStatus::Cancelled) => run.stop(Stop::Cancelled),
            Ok(ClaimStatus::Lost) => {
                tracing::warn!(task = %run.id, "claim was lost");
                return run.stop(Stop::Lost);
            }
            Err(error) => {
                status.request_failed("renew a claim", &error);
                pause = host.random_below(pause / RETRY_PART);
            }
        }
        // An answer may have come so late that the claim has expired, or soon will.
        let Some(left) = claimed.time_left() else { return run.stop(Stop::Lost) };
        drop(claimed);
        let (ended, requested) = (pin!(run.until_ended()), pin!(run.renewal_requested()));
        is_requested = match select(ended, select(host.sleep(pause.min(left)), requested)).await {
            Either::Left(_) => return,
            Either::Right((due, _)) => matches!(due, Either::Right(_)),
        };
    }
}

#[cfg(test)]
mod tests;
