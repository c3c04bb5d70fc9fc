//! Availability of the store as this process sees it, and the two log messages about it.
//!
//! Reads and writes are tracked apart: a read-only folder, or credentials without the right to write, answer reads. One
//! message is logged when the store has failed for a while, and one when it is back, whichever of them failed.
//!
//! No request is held back here: a renewal must be tried whatever else failed. Callers that can wait check
//! [`Health::outage`] and pause for [`Outage::pause`].

use leasehold_core::{Kind, StoreTime};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::host::Instant;
use crate::store::{Cause, Failure};

/// Duration after which an outage is reported: one or two failed requests are nothing to act on.
pub const REPORT_AFTER: Duration = Duration::from_secs(3);
/// Minimum pause between two probes of a failing store.
const PROBE_MIN: Duration = Duration::from_secs(1);
/// Maximum pause between two probes, and so the maximum time until work resumes.
const PROBE_MAX: Duration = Duration::from_secs(30);
/// Age from which failed writes say nothing about a store that answers reads. A process that has something to write has
/// retried since.
const WRITES_FORGOTTEN_AFTER: Duration = Duration::from_mins(2);

/// Requests that fail together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestClass {
    /// Gets, also of a range, and lists.
    Read,
    /// Puts, deletes and the steps of an upload.
    Write,
}

/// Failed requests of one class without a successful one since.
#[derive(Debug, Clone)]
pub struct Outage {
    /// Time of the first failure.
    pub since: Instant,
    /// Number of requests that have failed.
    pub failures: u32,
    /// Error of the last failure.
    pub reason: String,
    last: Instant,
    /// True if the last failure was final.
    is_refused: bool,
}

impl Outage {
    /// Pause before the next probe: half of the duration of the outage, from 1 s to 30 s.
    #[must_use]
    pub fn pause(&self, now: Instant) -> Duration {
        (now.since(self.since) / 2).clamp(PROBE_MIN, PROBE_MAX)
    }
}

/// Outages of a store, shared by all clones of a client.
#[derive(Debug, Default)]
pub struct Health {
    /// False while no requests fail, which is nearly always.
    is_failing: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    reads: Option<Outage>,
    writes: Option<Outage>,
    /// Start of the reported outage.
    reported: Option<Instant>,
}

impl State {
    fn of(&mut self, class: RequestClass) -> &mut Option<Outage> {
        match class {
            RequestClass::Read => &mut self.reads,
            RequestClass::Write => &mut self.writes,
        }
    }

    /// Outage that has lasted longest, from its first failure to its last: one failed request says little beside many
    /// of the other class.
    fn outage(&self) -> Option<&Outage> {
        [&self.reads, &self.writes].into_iter().flatten().max_by_key(|outage| outage.last.since(outage.since))
    }
}

impl Health {
    /// Outage of reads or of writes, whichever has lasted longer; none while requests succeed.
    #[must_use]
    pub fn outage(&self) -> Option<Outage> {
        if self.is_failing() { self.state().outage().cloned() } else { None }
    }

    /// True if no read has succeeded since the last one that failed.
    #[must_use]
    pub fn reads_fail(&self) -> bool {
        self.state().reads.is_some()
    }

    pub(crate) fn is_failing(&self) -> bool {
        self.is_failing.load(Relaxed)
    }

    /// Records an answered request, with any outcome.
    pub(crate) fn succeeded(&self, class: RequestClass, store: impl FnOnce() -> String, now: Instant) {
        let mut state = self.state();
        *state.of(class) = None;
        state.writes.take_if(|writes| now.since(writes.last) >= WRITES_FORGOTTEN_AFTER);
        if state.outage().is_some() {
            return;
        }
        self.is_failing.store(false, Relaxed);
        if let Some(since) = state.reported.take() {
            tracing::warn!(
                store = store(),
                failed_secs = now.since(since).as_secs(),
                "store available again"
            );
        }
    }

    /// Records a failed request.
    pub(crate) fn failed(&self, class: RequestClass, failure: &Failure, now: Instant) {
        // About one object, not about the store.
        if matches!(failure.cause, Cause::Final(Kind::Corrupt | Kind::Lost)) {
            return;
        }
        let mut state = self.state();
        let before = state.of(class).take();
        *state.of(class) = Some(Outage {
            since: before.as_ref().map_or(now, |outage| outage.since),
            failures: before.map_or(0, |outage| outage.failures).saturating_add(1),
            reason: failure.error.to_string(),
            last: now,
            is_refused: matches!(failure.cause, Cause::Final(_)),
        });
        self.is_failing.store(true, Relaxed);
    }

    /// Logs the outage, once.
    pub(crate) fn report(&self, store: impl FnOnce() -> String) {
        let mut state = self.state();
        let Some(outage) = state.outage().cloned().filter(|_| state.reported.is_none()) else { return };
        state.reported = Some(outage.since);
        let (store, error) = (store(), outage.reason);
        let since = StoreTime::from_millis(outage.since.wall_ns.div_euclid(1_000_000));
        if outage.is_refused {
            tracing::warn!(store, %since, error, "store refuses requests, retrying");
        } else {
            tracing::warn!(store, %since, error, "store unreachable, retrying");
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: i64) -> Instant {
        Instant { boot_ns: secs * 1_000_000_000, wall_ns: secs * 1_000_000_000 }
    }

    fn unreached() -> Failure {
        Failure::transient(Cause::Unreached, "unreached")
    }

    #[test]
    fn a_single_failed_write_does_not_hide_a_long_outage_of_reads() {
        let health = Health::default();
        for secs in 0..100 {
            health.failed(RequestClass::Read, &unreached(), at(secs));
        }
        health.failed(RequestClass::Write, &unreached(), at(100));
        let outage = health.outage().unwrap();
        assert_eq!((outage.since, outage.failures), (at(0), 100));
        assert_eq!(outage.pause(at(100)), PROBE_MAX);
    }

    #[test]
    fn a_write_that_failed_once_long_ago_does_not_lengthen_the_pause_of_a_new_outage() {
        let health = Health::default();
        health.failed(RequestClass::Write, &unreached(), at(0));
        health.failed(RequestClass::Read, &unreached(), at(100));
        health.failed(RequestClass::Read, &unreached(), at(101));
        assert_eq!(health.outage().unwrap().pause(at(101)), PROBE_MIN);
    }

    #[test]
    fn refused_writes_are_forgotten_when_nothing_was_written_for_two_minutes() {
        let health = Health::default();
        health.failed(RequestClass::Write, &Failure::permanent(Kind::Denied, "refused"), at(0));
        health.succeeded(RequestClass::Read, String::new, at(119));
        assert!(health.outage().is_some());
        health.succeeded(RequestClass::Read, String::new, at(120));
        assert!(health.outage().is_none());
    }
}
