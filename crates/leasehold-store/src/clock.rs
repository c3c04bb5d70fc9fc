//! The store's clock: what its answers prove about its time, as an interval that is never a guess.
//!
//! An answer dated `D` (whole seconds), sent for at `t0` and received at `t1` on the local boot clock, proves
//! that the store's time was within `[D − s, D + 1 s + s)` at some instant between `t0` and `t1`; `s` allows
//! for the many hosts that answer for one store. Kept as bounds on *store time − boot time* these facts can be
//! intersected, so that the interval narrows with every answer and costs no request. The bounds widen with
//! age, because local clocks are slewed.
//!
//! ```text
//!           t0 ───────────── request ─────────────▶ t1
//!   store:      D − s ≤ somewhere in here < D + 1 s + s
//!   hence       lower = (D − s) − t1        upper = (D + 1 s + s) − t0
//! ```
//!
//! Three things can go wrong, and each has its answer:
//!
//! * *The boot clock missed time* (a paused virtual machine): the wall clock has run ahead of it, and the
//!   upper bound is unknown until the next answer. The lower bound still holds, as time only went on. A wall
//!   clock that was set back could hide such a pause, so the two parting either way has the same consequence.
//! * *Answers contradict each other* (the store's time jumped, or one of its hosts is off): the union of old
//!   and new bounds is used, and [`Now::steady`] is false — nobody is declared expired — until three answers
//!   over at least five seconds agree again.
//! * *The local wall clock is wrong or jumps*: it is never used as a time.

use leasehold_core::{Now, StoreTime};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use crate::host::{Host, Instant};

/// Allowance for hosts of one store that differ, either way.
const HOSTS_DIFFER_NS: i64 = 500_000_000;
/// Dates are in whole seconds: the true time is up to this much later.
const DATE_STEP_NS: i64 = 1_000_000_000;
/// Clocks are slewed by up to 500 ppm; twice that, one part in a thousand, is safe.
const SLEW_PART: i64 = 1_000;
/// How far wall clock and boot clock may part before time may have been missed.
const MISSED_NS: u64 = 1_000_000_000;
/// After a contradiction so many answers must agree …
const AGREEING_ANSWERS: u32 = 3;
/// … over at least so long.
const AGREEING_NS: i64 = 5_000_000_000;

/// The store's time as far as this process knows it.
pub struct Clock {
    source: Source,
}

enum Source {
    /// A store that shares a clock with us: a folder on this machine, memory, a test.
    Exact(Arc<dyn Fn() -> StoreTime + Send + Sync>),
    /// A store that dates its answers.
    Dated { host: Arc<dyn Host>, state: Mutex<State> },
}

#[derive(Debug, Default)]
struct State {
    bounds: Option<Bounds>,
    doubt: Option<Doubt>,
}

/// Bounds on store time minus boot time, each with the boot time at which it was exact.
#[derive(Debug, Clone, Copy)]
struct Bounds {
    lower: Bound,
    /// None when time may have passed that the boot clock did not count.
    upper: Option<Bound>,
}

#[derive(Debug, Clone, Copy)]
#[expect(clippy::struct_field_names, reason = "units last")]
struct Bound {
    offset_ns: i64,
    at_ns: i64,
    /// How far the wall clock was ahead of the boot clock then.
    wall_lead_ns: i64,
}

/// Since answers contradicted each other: what the latest of them agree on.
#[derive(Debug)]
struct Doubt {
    agreed: Bounds,
    answers: u32,
    since_ns: i64,
}

impl Clock {
    /// The clock of a store whose time can simply be read.
    pub fn exact(read: impl Fn() -> StoreTime + Send + Sync + 'static) -> Self {
        Self { source: Source::Exact(Arc::new(read)) }
    }

    /// The clock of a store that dates its answers.
    pub fn dated(host: Arc<dyn Host>) -> Self {
        Self { source: Source::Dated { host, state: Mutex::default() } }
    }

    /// The present, or nothing before the first dated answer.
    #[must_use]
    pub fn now(&self) -> Option<Now> {
        match &self.source {
            Source::Exact(read) => Some(Now::exactly(read())),
            Source::Dated { host, state } => {
                state.lock().unwrap_or_else(PoisonError::into_inner).now(host.instant())
            }
        }
    }

    /// Learns from an answer with this date (seconds since 1970), sent for at `sent`, received at `received`.
    pub fn observe(&self, date_secs: i64, sent: Instant, received: Instant) {
        if let Source::Dated { state, .. } = &self.source {
            let heard = Bounds::proven_by(date_secs, sent, received);
            state.lock().unwrap_or_else(PoisonError::into_inner).hear(heard, received);
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
        let bounds = self.bounds.as_ref()?.seen_from(instant);
        let millis = |ns: i64| ns.div_euclid(1_000_000);
        let earliest = millis(instant.boot_ns + bounds.lower.offset_ns);
        let latest = bounds.upper.map(|upper| millis(instant.boot_ns + upper.offset_ns) + 1);
        Some(Now {
            earliest: StoreTime::from_millis(earliest),
            latest: latest.map_or(StoreTime::NEVER, StoreTime::from_millis),
            steady: self.doubt.is_none(),
        })
    }

    fn hear(&mut self, heard: Bounds, received: Instant) {
        let Some(known) = self.bounds.map(|bounds| bounds.seen_from(received)) else {
            self.bounds = Some(heard);
            return;
        };
        if let Some(doubt) = &mut self.doubt {
            self.bounds = Some(known.union(heard));
            if let Some(agreed) = doubt.hear(heard, received) {
                tracing::info!("the store's answers agree about its time again");
                self.bounds = Some(agreed);
                self.doubt = None;
            }
        } else if let Some(narrower) = known.intersection(heard) {
            self.bounds = Some(narrower);
        } else {
            tracing::warn!(
                "the store's answers contradict each other about its time; no lease is taken over until they agree"
            );
            self.bounds = Some(known.union(heard));
            self.doubt = Some(Doubt { agreed: heard, answers: 1, since_ns: received.boot_ns });
        }
    }
}

impl Doubt {
    /// The bounds to go on with, once enough answers agree.
    fn hear(&mut self, heard: Bounds, received: Instant) -> Option<Bounds> {
        match self.agreed.seen_from(received).intersection(heard) {
            Some(agreed) => {
                self.agreed = agreed;
                self.answers += 1;
            }
            None => *self = Doubt { agreed: heard, answers: 1, since_ns: received.boot_ns },
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
        Self { lower, upper: upper.seen_as_upper(received) }
    }

    /// The same bounds, widened by age, without an upper one if time was missed since.
    fn seen_from(self, instant: Instant) -> Self {
        let (slack, at_ns) = self.lower.slack(instant);
        let lower = Bound { offset_ns: self.lower.offset_ns - slack, at_ns, ..self.lower };
        Self { lower, upper: self.upper.and_then(|upper| upper.seen_as_upper(instant)) }
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
    /// How much the bound has to give by now, rounded up, and the boot time for which that is counted.
    fn slack(self, instant: Instant) -> (i64, i64) {
        let at_ns = self.at_ns.max(instant.boot_ns);
        ((at_ns - self.at_ns + SLEW_PART - 1) / SLEW_PART, at_ns)
    }

    /// This bound as an upper one; nothing if wall clock and boot clock have parted since.
    fn seen_as_upper(self, instant: Instant) -> Option<Self> {
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
