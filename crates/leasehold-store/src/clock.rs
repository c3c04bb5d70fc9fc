//! Clock of a store: an interval that surely contains the store time, derived from the dates of its answers.
//!
//! An answer dated `D` (whole seconds), requested at `t0` and received at `t1` on the local boot clock, proves that
//! the store time was within `[D − s, D + 1 s + s)` at some instant between `t0` and `t1`; `s` allows for different
//! hosts of one store. Kept as bounds on *store time − boot time*, these intervals can be intersected, so that the
//! result narrows with every answer and costs no request. The bounds widen with age, because local clocks are slewed.
//!
//! ```text
//!           t0 ───────────── request ─────────────▶ t1
//!   store:      D − s ≤ somewhere in here < D + 1 s + s
//!   hence       lower = (D − s) − t1        upper = (D + 1 s + s) − t0
//! ```
//!
//! Three things can go wrong:
//!
//! * *The boot clock missed time* (a paused virtual machine): the wall clock is ahead of it, and the upper bound is
//!   unknown until the next answer. The lower bound still holds, because time only went on. A wall clock that was set
//!   back could hide such a pause, so a difference in either direction has the same consequence.
//! * *Answers contradict each other* (the store's time jumped, or one of its hosts is off): the union of old
//!   and new bounds is used, and [`Now::is_consistent`] is false (no lease is declared expired) until three answers
//!   over at least five seconds agree again.
//! * *The local wall clock is wrong or jumps*: it is never used as a time.

use leasehold_core::{Now, StoreTime};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use crate::host::{Host, Instant};

/// Allowance for clock differences between the hosts of one store, in either direction.
const HOSTS_DIFFER_NS: i64 = 500_000_000;
/// Resolution of dates: the true time is up to this much later.
const DATE_STEP_NS: i64 = 1_000_000_000;
/// Reciprocal of the assumed slew. Clocks are slewed by up to 500 ppm; twice that, one part in a thousand, is safe.
const SLEW_PART: i64 = 1_000;
/// Difference between wall clock and boot clock from which time may have been missed.
const MISSED_NS: u64 = 1_000_000_000;
/// Number of answers that must agree after a contradiction.
const AGREEING_ANSWERS: u32 = 3;
/// Minimum time over which answers must agree after a contradiction.
const AGREEING_NS: i64 = 5_000_000_000;

/// Store time, as far as this process knows it.
pub struct Clock {
    source: Source,
}

enum Source {
    /// Store that shares a clock with this process: a folder on this machine, memory, a test.
    Exact(Arc<dyn Fn() -> StoreTime + Send + Sync>),
    /// Store with dates in its answers.
    Dated { host: Arc<dyn Host>, state: Mutex<State> },
}

#[derive(Debug, Default)]
struct State {
    bounds: Option<Bounds>,
    contradiction: Option<Contradiction>,
}

/// Bounds on store time minus boot time, each with the boot time at which it was exact.
#[derive(Debug, Clone, Copy)]
struct Bounds {
    lower: Bound,
    /// None if time may have passed that the boot clock did not count.
    upper: Option<Bound>,
}

#[derive(Debug, Clone, Copy)]
#[expect(clippy::struct_field_names, reason = "units last")]
struct Bound {
    offset_ns: i64,
    at_ns: i64,
    /// Lead of the wall clock over the boot clock at that time.
    wall_lead_ns: i64,
}

/// State after a contradiction: the bounds on which the latest answers agree.
#[derive(Debug)]
struct Contradiction {
    agreed: Bounds,
    answers: u32,
    since_ns: i64,
}

impl Clock {
    /// Creates the clock of a store whose time can be read directly.
    pub fn exact(read: impl Fn() -> StoreTime + Send + Sync + 'static) -> Self {
        Self { source: Source::Exact(Arc::new(read)) }
    }

    /// Creates the clock of a store with dates in its answers.
    pub fn dated(host: Arc<dyn Host>) -> Self {
        Self { source: Source::Dated { host, state: Mutex::default() } }
    }

    /// Current time; none before the first dated answer.
    #[must_use]
    pub fn now(&self) -> Option<Now> {
        match &self.source {
            Source::Exact(read) => Some(Now::exactly(read())),
            Source::Dated { host, state } => {
                state.lock().unwrap_or_else(PoisonError::into_inner).now(host.instant())
            }
        }
    }

    /// Updates the bounds from an answer with this date, in seconds since 1970.
    pub fn observe(&self, date_secs: i64, sent: Instant, received: Instant) {
        if let Source::Dated { state, .. } = &self.source {
            let observed = Bounds::proven_by(date_secs, sent, received);
            state.lock().unwrap_or_else(PoisonError::into_inner).observe(observed, received);
        }
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Clock").field("now", &self.now()).finish()
    }
}

impl State {
    fn now(&self, instant: Instant) -> Option<Now> {
        let bounds = self.bounds.as_ref()?.aged_to(instant);
        let millis = |ns: i64| ns.div_euclid(1_000_000);
        let earliest = millis(instant.boot_ns + bounds.lower.offset_ns);
        let latest = bounds.upper.map(|upper| millis(instant.boot_ns + upper.offset_ns) + 1);
        Some(Now {
            earliest: StoreTime::from_millis(earliest),
            latest: latest.map_or(StoreTime::NEVER, StoreTime::from_millis),
            is_consistent: self.contradiction.is_none(),
        })
    }

    fn observe(&mut self, observed: Bounds, received: Instant) {
        let Some(known) = self.bounds.map(|bounds| bounds.aged_to(received)) else {
            self.bounds = Some(observed);
            return;
        };
        if let Some(contradiction) = &mut self.contradiction {
            self.bounds = Some(known.union(observed));
            if let Some(agreed) = contradiction.observe(observed, received) {
                tracing::info!("store clock consistent again");
                self.bounds = Some(agreed);
                self.contradiction = None;
            }
        } else if let Some(narrower) = known.intersection(observed) {
            self.bounds = Some(narrower);
        } else {
            tracing::warn!(
                "store clock answers contradict each other, taking over no leases until they agree"
            );
            self.bounds = Some(known.union(observed));
            self.contradiction =
                Some(Contradiction { agreed: observed, answers: 1, since_ns: received.boot_ns });
        }
    }
}

impl Contradiction {
    /// Returns the new bounds once enough answers agree.
    fn observe(&mut self, observed: Bounds, received: Instant) -> Option<Bounds> {
        match self.agreed.aged_to(received).intersection(observed) {
            Some(agreed) => {
                self.agreed = agreed;
                self.answers += 1;
            }
            None => *self = Contradiction { agreed: observed, answers: 1, since_ns: received.boot_ns },
        }
        let enough = self.answers >= AGREEING_ANSWERS && received.boot_ns - self.since_ns >= AGREEING_NS;
        enough.then_some(self.agreed)
    }
}

impl Bounds {
    fn proven_by(date_secs: i64, sent: Instant, received: Instant) -> Self {
        let date_ns = date_secs.saturating_mul(1_000_000_000);
        let lower = Bound {
            offset_ns: date_ns - HOSTS_DIFFER_NS - received.boot_ns,
            at_ns: received.boot_ns,
            wall_lead_ns: lead(received),
        };
        let upper = Bound {
            offset_ns: date_ns + DATE_STEP_NS + HOSTS_DIFFER_NS - sent.boot_ns,
            at_ns: sent.boot_ns,
            wall_lead_ns: lead(sent),
        };
        Self { lower, upper: upper.aged_as_upper(received) }
    }

    /// Returns the bounds widened by age, without an upper bound if time was missed since.
    fn aged_to(self, instant: Instant) -> Self {
        let (slack, at_ns) = self.lower.slack(instant);
        let lower = Bound { offset_ns: self.lower.offset_ns - slack, at_ns, ..self.lower };
        Self { lower, upper: self.upper.and_then(|upper| upper.aged_as_upper(instant)) }
    }

    fn intersection(self, other: Self) -> Option<Self> {
        let lower = if self.lower.offset_ns >= other.lower.offset_ns { self.lower } else { other.lower };
        let upper = match (self.upper, other.upper) {
            (Some(a), Some(b)) => Some(if a.offset_ns <= b.offset_ns { a } else { b }),
            (a, b) => a.or(b),
        };
        match upper {
            Some(upper) if upper.offset_ns < lower.offset_ns => None,
            _ => Some(Self { lower, upper }),
        }
    }

    fn union(self, other: Self) -> Self {
        let lower = if self.lower.offset_ns <= other.lower.offset_ns { self.lower } else { other.lower };
        let upper = match (self.upper, other.upper) {
            (Some(a), Some(b)) => Some(if a.offset_ns >= b.offset_ns { a } else { b }),
            _ => None,
        };
        Self { lower, upper }
    }
}

impl Bound {
    /// Widening of the bound by now, rounded up, and the boot time for which it is computed.
    fn slack(self, instant: Instant) -> (i64, i64) {
        let at_ns = self.at_ns.max(instant.boot_ns);
        ((at_ns - self.at_ns + SLEW_PART - 1) / SLEW_PART, at_ns)
    }

    /// Returns this bound as an upper bound; none if wall clock and boot clock have diverged since.
    fn aged_as_upper(self, instant: Instant) -> Option<Self> {
        let (slack, at_ns) = self.slack(instant);
        let missed = lead(instant).abs_diff(self.wall_lead_ns) > MISSED_NS;
        (!missed).then_some(Self { offset_ns: self.offset_ns + slack, at_ns, ..self })
    }
}

fn lead(instant: Instant) -> i64 {
    instant.wall_ns.saturating_sub(instant.boot_ns)
}

#[cfg(test)]
mod tests;
