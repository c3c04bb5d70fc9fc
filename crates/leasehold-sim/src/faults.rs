//! What can go wrong, and how often.
//!
//! Rates are in ten thousandths of all requests. One request meets at most one of these faults; its latencies are
//! drawn apart from that, so that a request can also be too slow by itself.

use leasehold_core::limits::ANSWER_WAIT;
use std::time::Duration;

use crate::chance::Chance;

/// How often each thing goes wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Faults {
    /// Never arrives.
    pub lost: u32,
    /// Carried out; nobody hears of it.
    pub answer_lost: u32,
    /// Carried out up to 20 minutes later, long after the client has given up.
    pub late: u32,
    /// A put on condition is refused with 409 although its condition holds.
    pub refused: u32,
    /// Turned away with 503, not carried out.
    pub throttled: u32,
    /// Answered 503 by something that stands before the store, and carried out.
    pub throttled_but_applied: u32,
    /// The connection is refused.
    pub unreached: u32,
    /// Takes seconds, either way.
    pub slow: u32,
    /// Takes longer than a client waits, either way.
    pub very_slow: u32,
    /// The sender of a write is killed in the instant in which the write is carried out.
    pub crash_at_write: u32,
    /// Troubles of the world: so long apart on average, if there are any.
    pub trouble_every: Option<Duration>,
    /// How often each trouble is chosen, as shares of their sum.
    pub troubles: Troubles,
}

/// The shares of the world's troubles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Troubles {
    /// A process is killed, and started again later; sometimes its whole machine is.
    pub crash: u64,
    /// A process stands still, sometimes for longer than any lease.
    pub pause: u64,
    /// A process stands still, and its boot clock with it.
    pub stall: u64,
    /// A wall clock is set forward or back.
    pub wall_jump: u64,
    /// The store's own time jumps.
    pub date_jump: u64,
}

/// What becomes of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
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
    /// Nothing goes wrong; answers take 10 to 100 ms.
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
            trouble_every: None,
            troubles: Troubles { crash: 4, pause: 4, stall: 2, wall_jump: 2, date_jump: 0 },
        }
    }

    /// A bad day: one request in fifty meets something.
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
            trouble_every: Some(Duration::from_mins(5)),
            ..Self::none()
        }
    }

    /// Worse than any day: one request in four meets something, and something happens twice a minute.
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
            trouble_every: Some(Duration::from_secs(30)),
            troubles: Troubles { date_jump: 1, ..Self::none().troubles },
        }
    }

    pub(crate) fn fate(&self, chance: &mut Chance, is_put_on_condition: bool) -> Fate {
        let late = chance.between(ANSWER_WAIT, Duration::from_mins(20));
        let refused = if is_put_on_condition { self.refused } else { 0 };
        let shares = [
            (self.lost, Fate::Lost),
            (self.answer_lost, Fate::AnswerLost),
            (self.late, Fate::Late(late)),
            (refused, Fate::Refused),
            (self.throttled, Fate::Throttled),
            (self.throttled_but_applied, Fate::ThrottledButApplied),
            (self.unreached, Fate::Unreached),
        ];
        let mut drawn = chance.below(10_000);
        for (rate, fate) in shares {
            match drawn.checked_sub(u64::from(rate)) {
                Some(rest) => drawn = rest,
                None => return fate,
            }
        }
        Fate::Served
    }

    /// How long one way takes.
    pub(crate) fn latency(&self, chance: &mut Chance) -> Duration {
        if chance.happens(self.very_slow) {
            chance.between(ANSWER_WAIT, Duration::from_mins(1))
        } else if chance.happens(self.slow) {
            chance.between(Duration::from_millis(500), Duration::from_secs(8))
        } else {
            chance.between(Duration::from_millis(5), Duration::from_millis(50))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_met() {
        let (faults, mut chance) = (Faults::wild(), Chance::new(3));
        let fates: Vec<_> = (0..100_000).map(|_| faults.fate(&mut chance, true)).collect();
        let count = |wanted: fn(&Fate) -> bool| fates.iter().filter(|fate| wanted(fate)).count();
        assert!((3_700..4_300).contains(&count(|fate| *fate == Fate::Lost)));
        assert!((1_800..2_200).contains(&count(|fate| matches!(fate, Fate::Late(_)))));
        assert!((800..1_200).contains(&count(|fate| *fate == Fate::ThrottledButApplied)));
        let unconditional = (0..10_000).map(|_| faults.fate(&mut chance, false));
        assert!(unconditional.into_iter().all(|fate| fate != Fate::Refused));
        assert!((0..10_000).all(|_| Faults::none().fate(&mut chance, true) == Fate::Served));
    }
}
