//! Faults and their rates; as text `wild`, `mild` or `none`, with changes: `wild,late=0`.
//!
//! Rates are in ten thousandths of all requests. One request is hit by at most one of these faults; its
//! latencies are drawn separately, so a request can also be too slow by itself.

use leasehold_core::limits::RESPONSE_TIMEOUT;
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::random::SimRandom;

/// Rate of each fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Faults {
    /// Request never arrives.
    pub lost: u32,
    /// Request is carried out, but its answer is lost.
    pub answer_lost: u32,
    /// Request is carried out up to 20 minutes later, long after the client has given up.
    pub late: u32,
    /// Conditional put is refused with 409 although its condition holds.
    pub refused: u32,
    /// Request is answered 503 and not carried out.
    pub throttled: u32,
    /// Request is answered 503 by a proxy in front of the store, and carried out.
    pub throttled_but_applied: u32,
    /// Connection is refused.
    pub unreached: u32,
    /// Request or answer takes seconds.
    pub slow: u32,
    /// Request or answer takes longer than a client waits.
    pub very_slow: u32,
    /// Sender of a write is killed in the instant in which the write is carried out.
    pub crash_at_write: u32,
    /// Average time between faults of processes and clocks (crashes, pauses, jumps); none without a value.
    pub process_fault_every: Option<Duration>,
    /// Weights of the faults of processes and clocks.
    pub process_faults: ProcessFaults,
}

/// Weights of the faults of processes and clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessFaults {
    /// Process is killed and restarted later; sometimes its whole machine is.
    pub crash: u64,
    /// Process is paused, sometimes for longer than any lease.
    pub pause: u64,
    /// Process is paused, and its boot clock stops with it.
    pub stall: u64,
    /// Wall clock is set forward or back.
    pub wall_jump: u64,
    /// Store's own time jumps.
    pub date_jump: u64,
}

/// Names of the settings. Rates are in ten thousandths, `process-fault-every` in seconds; the last five are
/// weights. `CONTRIBUTING.md` explains each.
pub(crate) const NAMES: [&str; 16] = [
    "lost",
    "answer-lost",
    "late",
    "refused",
    "throttled",
    "throttled-but-applied",
    "unreached",
    "slow",
    "very-slow",
    "crash-at-write",
    "process-fault-every",
    "crash",
    "pause",
    "stall",
    "wall-jump",
    "date-jump",
];

/// Settings that have no effect without `process-fault-every`.
pub(crate) const SHARES: [&str; 5] = ["crash", "pause", "stall", "wall-jump", "date-jump"];

/// Numbering of faults, so that a world can be played with some of them only.
#[derive(Debug, Default)]
pub(crate) struct Events {
    pub(crate) only: Option<BTreeSet<u64>>,
    /// Number of faults drawn.
    pub(crate) drawn: u64,
    /// Number of faults injected.
    pub(crate) happened: u64,
}

impl Events {
    /// Draws the next fault. Returns whether it is injected.
    pub(crate) fn next_is_injected(&mut self) -> bool {
        let happens = self.only.as_ref().is_none_or(|only| only.contains(&self.drawn));
        self.drawn += 1;
        self.happened += u64::from(happens);
        happens
    }
}

/// Fault of one request; `Served` is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestFault {
    Served,
    Lost,
    AnswerLost,
    Late(Duration),
    Refused,
    Throttled,
    ThrottledButApplied,
    Unreached,
}

impl Faults {
    /// No faults; answers take 10 to 100 ms.
    #[must_use]
    pub fn none() -> Self {
        Self {
            lost: 0,
            answer_lost: 0,
            late: 0,
            refused: 0,
            throttled: 0,
            throttled_but_applied: 0,
            unreached: 0,
            slow: 0,
            very_slow: 0,
            crash_at_write: 0,
            process_fault_every: None,
            process_faults: ProcessFaults { crash: 4, pause: 4, stall: 2, wall_jump: 2, date_jump: 0 },
        }
    }

    /// Mild faults: one request in fifty is hit by a fault.
    #[must_use]
    pub fn mild() -> Self {
        Self {
            lost: 30,
            answer_lost: 30,
            late: 10,
            refused: 30,
            throttled: 50,
            throttled_but_applied: 5,
            unreached: 30,
            slow: 100,
            very_slow: 5,
            crash_at_write: 10,
            process_fault_every: Some(Duration::from_mins(5)),
            ..Self::none()
        }
    }

    /// Wild faults: one request in four is hit by a fault, and a crash, pause or clock jump comes twice a minute.
    #[must_use]
    pub fn wild() -> Self {
        Self {
            lost: 400,
            answer_lost: 500,
            late: 200,
            refused: 400,
            throttled: 300,
            throttled_but_applied: 100,
            unreached: 300,
            slow: 400,
            very_slow: 60,
            crash_at_write: 100,
            process_fault_every: Some(Duration::from_secs(30)),
            process_faults: ProcessFaults { date_jump: 1, ..Self::none().process_faults },
        }
    }

    /// Wild faults without jumps of the store's time.
    #[must_use]
    pub fn steady() -> Self {
        Self { process_faults: Self::none().process_faults, ..Self::wild() }
    }

    fn preset(name: &str) -> Option<Self> {
        match name {
            "wild" => Some(Self::wild()),
            "mild" => Some(Self::mild()),
            "none" => Some(Self::none()),
            _ => None,
        }
    }

    /// Values of the settings, in the order of [`NAMES`].
    pub(crate) fn values(&self) -> [u64; NAMES.len()] {
        let ProcessFaults { crash, pause, stall, wall_jump, date_jump } = self.process_faults;
        let [lost, answer_lost, late, refused] =
            [self.lost, self.answer_lost, self.late, self.refused].map(u64::from);
        let [throttled, but_applied, unreached] =
            [self.throttled, self.throttled_but_applied, self.unreached].map(u64::from);
        let [slow, very_slow, at_write] = [self.slow, self.very_slow, self.crash_at_write].map(u64::from);
        let every = self.process_fault_every.map_or(0, |every| every.as_secs());
        [
            lost,
            answer_lost,
            late,
            refused,
            throttled,
            but_applied,
            unreached,
            slow,
            very_slow,
            at_write,
            every,
            crash,
            pause,
            stall,
            wall_jump,
            date_jump,
        ]
    }

    /// Sets the value of one of [`NAMES`].
    pub(crate) fn with(mut self, name: &str, value: u64) -> Result<Self, String> {
        let rate = || u32::try_from(value).map_err(|_| format!("fault rate {name}={value} is too large"));
        match name {
            "lost" => self.lost = rate()?,
            "answer-lost" => self.answer_lost = rate()?,
            "late" => self.late = rate()?,
            "refused" => self.refused = rate()?,
            "throttled" => self.throttled = rate()?,
            "throttled-but-applied" => self.throttled_but_applied = rate()?,
            "unreached" => self.unreached = rate()?,
            "slow" => self.slow = rate()?,
            "very-slow" => self.very_slow = rate()?,
            "crash-at-write" => self.crash_at_write = rate()?,
            "process-fault-every" => {
                self.process_fault_every = (value > 0).then(|| Duration::from_secs(value));
            }
            "crash" => self.process_faults.crash = value,
            "pause" => self.process_faults.pause = value,
            "stall" => self.process_faults.stall = value,
            "wall-jump" => self.process_faults.wall_jump = value,
            "date-jump" => self.process_faults.date_jump = value,
            _ => return Err(format!("unknown fault `{name}`; use one of: {}", NAMES.join(", "))),
        }
        Ok(self)
    }

    /// Draws the fault of one request.
    pub(crate) fn request_fault(&self, rng: &mut SimRandom, is_conditional_put: bool) -> RequestFault {
        let late = rng.between(RESPONSE_TIMEOUT, Duration::from_mins(20));
        let refused = if is_conditional_put { self.refused } else { 0 };
        let shares = [
            (self.lost, RequestFault::Lost),
            (self.answer_lost, RequestFault::AnswerLost),
            (self.late, RequestFault::Late(late)),
            (refused, RequestFault::Refused),
            (self.throttled, RequestFault::Throttled),
            (self.throttled_but_applied, RequestFault::ThrottledButApplied),
            (self.unreached, RequestFault::Unreached),
        ];
        let mut drawn = rng.below(10_000);
        for (rate, fault) in shares {
            match drawn.checked_sub(u64::from(rate)) {
                Some(rest) => drawn = rest,
                None => return fault,
            }
        }
        RequestFault::Served
    }

    /// Draws the latency of one direction.
    pub(crate) fn latency(&self, rng: &mut SimRandom) -> Duration {
        if rng.happens(self.very_slow) {
            rng.between(RESPONSE_TIMEOUT, Duration::from_mins(1))
        } else if rng.happens(self.slow) {
            rng.between(Duration::from_millis(500), Duration::from_secs(8))
        } else {
            rng.between(Duration::from_millis(5), USUAL_LATENCY_MAX)
        }
    }
}

/// Upper bound of the usual latency of one direction.
pub(crate) const USUAL_LATENCY_MAX: Duration = Duration::from_millis(50);

/// Names of the presets.
const PRESETS: [&str; 3] = ["wild", "mild", "none"];

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let values = self.values();
        let differing = |preset: &Faults| -> Vec<usize> {
            let others = preset.values();
            (0..NAMES.len()).filter(|at| values[*at] != others[*at]).collect()
        };
        let nearest = PRESETS.iter().filter_map(|name| Some((differing(&Self::preset(name)?), name)));
        let Some((differing, name)) = nearest.min_by_key(|(differing, _)| differing.len()) else {
            return Ok(());
        };
        f.write_str(name)?;
        differing.into_iter().try_for_each(|at| write!(f, ",{}={}", NAMES[at], values[at]))
    }
}

impl FromStr for Faults {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut words = text.split(',');
        let name = words.next().unwrap_or_default();
        let known = PRESETS.join(", ");
        let preset = Self::preset(name)
            .ok_or_else(|| format!("unknown preset `{name}` of faults; use one of: {known}"))?;
        words.try_fold(preset, |faults, word| {
            let (name, value) = word
                .split_once('=')
                .ok_or_else(|| format!("a change of faults must look like late=0, got `{word}`"))?;
            faults.with(name, value.parse().map_err(|_| format!("`{value}` is not a number"))?)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_round_trip_as_text() {
        for text in [
            "wild",
            "mild",
            "none",
            "wild,late=0,date-jump=0",
            "none,slow=1500",
            "mild,process-fault-every=7",
        ] {
            assert_eq!(text.parse::<Faults>().unwrap().to_string(), text);
        }
        for name in NAMES {
            let faults = Faults::none().with(name, 77).unwrap();
            assert_eq!(faults.to_string(), format!("none,{name}=77"));
            assert_eq!(faults.to_string().parse::<Faults>().unwrap(), faults);
        }
        assert!("wild,odd=1".parse::<Faults>().unwrap_err().contains("use one of: lost, "));
        assert!("tame".parse::<Faults>().is_err() && "wild,late".parse::<Faults>().is_err());
    }

    #[test]
    fn rates_are_met() {
        let (faults, mut rng) = (Faults::wild(), SimRandom::new(3));
        let drawn: Vec<_> = (0..100_000).map(|_| faults.request_fault(&mut rng, true)).collect();
        let count = |wanted: fn(&RequestFault) -> bool| drawn.iter().filter(|fault| wanted(fault)).count();
        assert!((3_700..4_300).contains(&count(|fault| *fault == RequestFault::Lost)));
        assert!((1_800..2_200).contains(&count(|fault| matches!(fault, RequestFault::Late(_)))));
        assert!((800..1_200).contains(&count(|fault| *fault == RequestFault::ThrottledButApplied)));
        let unconditional = (0..10_000).map(|_| faults.request_fault(&mut rng, false));
        assert!(unconditional.into_iter().all(|fault| fault != RequestFault::Refused));
        assert!((0..10_000).all(|_| Faults::none().request_fault(&mut rng, true) == RequestFault::Served));
    }
}
