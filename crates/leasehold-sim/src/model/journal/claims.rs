//! Model of claims in the journal: one task, workers that renew their claims, and brokers that come and go.
//!
//! A renewal is answered from memory, so the next broker cannot read it; the rules below make it respect the claim
//! nevertheless. The log is reduced to what the model `bucket` shows of it: one history, in which a broker can commit
//! until a newer broker has put its fence. Requests to the lease are therefore single steps here; `model/lease.rs` has
//! the rest. An answer reaches its worker at once, except for the response to a claim: a delayed answer is trusted for a
//! shorter time only. Every process knows the exact time: of all intervals that contain the present, this is the one
//! that takes over earliest, promises most and extends least.

mod describe;
mod run;

use crate::model::lease::small::{NOW, SmallLease, earlier};
use stateright::{Model, Property};

/// Rule for claims in the journal; each can be left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::model) enum ClaimRule {
    TrustedLease,
    CarryTrust,
    LogHeard,
    ExtendHeard,
    OnlyHeard,
    NoByteWritten,
    AbsoluteTime,
    SameAttempt,
}

impl ClaimRule {
    pub(in crate::model) const ALL: [ClaimRule; 8] = [
        ClaimRule::TrustedLease,
        ClaimRule::CarryTrust,
        ClaimRule::LogHeard,
        ClaimRule::ExtendHeard,
        ClaimRule::OnlyHeard,
        ClaimRule::NoByteWritten,
        ClaimRule::AbsoluteTime,
        ClaimRule::SameAttempt,
    ];

    pub(in crate::model) fn description(self) -> &'static str {
        match self {
            ClaimRule::TrustedLease => "C1. a broker answers renewals only while it trusts its lease",
            ClaimRule::CarryTrust => "C2. every new lease carries `trusted_until` forward",
            ClaimRule::LogHeard => "C3. the first renewal of a claim with a new broker is logged as `heard`",
            ClaimRule::ExtendHeard => {
                "C4. a new broker extends the claims that were made or renewed since the previous fence to \
                 `max(now, trusted_until)` and a claim's lease"
            }
            ClaimRule::OnlyHeard => "C5. a new broker does not extend other claims",
            ClaimRule::NoByteWritten => {
                "C6. a claim is released unused only if no byte of its response was written"
            }
            ClaimRule::AbsoluteTime => "C7. a claim is answered with an absolute time, not with a duration",
            ClaimRule::SameAttempt => "C8. a result is accepted only from the attempt that holds the claim",
        }
    }
}

/// Bounds of the model: number of processes, epochs and attempts, and durations in moments.
#[derive(Debug, Clone)]
pub(in crate::model) struct ClaimsModel {
    pub(in crate::model) brokers: u8,
    pub(in crate::model) workers: u8,
    /// Highest epoch: a lease of this epoch is not taken over.
    pub(in crate::model) epoch_max: u8,
    pub(in crate::model) attempts: u8,
    /// Number of takeovers of a lease that has not expired: broken by an operator, or of a holder that seems to have crashed.
    pub(in crate::model) early: u8,
    /// Duration of the broker's lease.
    pub(in crate::model) ttl: u8,
    /// Duration of a claim.
    pub(in crate::model) claim_ttl: u8,
    pub(in crate::model) without: Option<ClaimRule>,
}

/// The broker's lease, as it is in the store or as its holder has confirmed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct BrokerLease {
    lease: SmallLease,
    /// Latest moment at which any earlier holder may trust its lease.
    trusted_until: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct TaskClaim {
    worker: u8,
    attempt: u8,
    expires: u8,
    /// True if the log shows that the worker was alive since the last fence.
    is_heard: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
enum Phase {
    #[default]
    Following,
    /// Holds the lease.
    Taken,
    /// Has put its fence.
    Fenced,
    Serving,
}

/// Response to a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Response {
    worker: u8,
    attempt: u8,
    until: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
struct Broker {
    phase: Phase,
    held: Option<BrokerLease>,
    /// Claim in memory, with the expiry that renewals have moved.
    claim: Option<TaskClaim>,
    /// Response that was not written; one that was written only if rule C6 is left out.
    response: Option<Response>,
    is_written: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Worker {
    is_alive: bool,
    /// Attempt that it runs, and the time until which it trusts its claim.
    claim: Option<(u8, u8)>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(in crate::model) struct ClaimsWorld {
    lease: Option<BrokerLease>,
    /// Epoch of the last fence.
    fenced: u8,
    /// Claim in the log.
    claim: Option<TaskClaim>,
    /// Number of the last attempt.
    attempt: u8,
    brokers: Vec<Broker>,
    workers: Vec<Worker>,
    /// Response on its way to its worker.
    response: Option<Response>,
    early: u8,
    /// Number of times that the claim was extended after its worker had crashed.
    extended_dead: u8,
    /// True if a result was accepted from an attempt that did not hold the claim.
    is_overruled: bool,
    is_completed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::model) enum ClaimsAction {
    Tick,
    Take(usize),
    RenewLease(usize),
    Release(usize),
    Crash(usize),
    Fence(usize),
    Confirm(usize),
    Claim(usize, usize),
    Respond(usize),
    Close(usize),
    Receive,
    Renew(usize, usize),
    Expire(usize),
    Settle(usize, usize),
    Die(usize),
}

impl ClaimsModel {
    fn has(&self, rule: ClaimRule) -> bool {
        self.without != Some(rule)
    }

    fn broker_actions(&self, world: &ClaimsWorld, me: usize, actions: &mut Vec<ClaimsAction>) {
        let broker = &world.brokers[me];
        if broker.phase == Phase::Following {
            if self.taken(world).is_some() {
                actions.push(ClaimsAction::Take(me));
            }
            return;
        }
        actions.extend([ClaimsAction::RenewLease(me), ClaimsAction::Release(me), ClaimsAction::Crash(me)]);
        match broker.phase {
            Phase::Following => {}
            Phase::Taken => actions.push(ClaimsAction::Fence(me)),
            Phase::Fenced => actions.push(ClaimsAction::Confirm(me)),
            Phase::Serving => self.serving_actions(world, me, actions),
        }
    }

    fn serving_actions(&self, world: &ClaimsWorld, me: usize, actions: &mut Vec<ClaimsAction>) {
        let broker = &world.brokers[me];
        if broker.response.is_some() && !broker.is_written && world.response.is_none() {
            actions.push(ClaimsAction::Respond(me));
        }
        if broker.response.is_some() {
            actions.push(ClaimsAction::Close(me));
        }
        if broker.claim.is_some_and(|claim| claim.expires < NOW) {
            actions.push(ClaimsAction::Expire(me));
        }
        for (number, worker) in world.workers.iter().enumerate().filter(|(_, worker)| worker.is_alive) {
            match worker.claim {
                None if broker.claim.is_none() && world.attempt < self.attempts && !world.is_completed => {
                    actions.push(ClaimsAction::Claim(me, number));
                }
                None => {}
                Some((attempt, _)) => {
                    let is_known = broker.claim.is_some_and(|claim| claim.attempt == attempt);
                    let is_trusted = broker.held.is_some_and(|held| held.lease.expires > NOW);
                    if is_known && (is_trusted || !self.has(ClaimRule::TrustedLease)) {
                        actions.push(ClaimsAction::Renew(me, number));
                    }
                    if is_known || !self.has(ClaimRule::SameAttempt) {
                        actions.push(ClaimsAction::Settle(me, number));
                    }
                }
            }
        }
    }
}

impl ClaimsWorld {
    /// True if every worker that trusts its claim holds it in the log.
    fn is_one_holder(&self) -> bool {
        (0u8..).zip(&self.workers).all(|(number, worker)| match worker.claim {
            Some((attempt, until)) if until > NOW => {
                self.claim.is_some_and(|claim| (claim.worker, claim.attempt) == (number, attempt))
            }
            _ => true,
        })
    }

    fn each_moment(&mut self, mut change: impl FnMut(&mut u8)) {
        for lease in
            self.lease.iter_mut().chain(self.brokers.iter_mut().filter_map(|broker| broker.held.as_mut()))
        {
            change(&mut lease.lease.expires);
            change(&mut lease.trusted_until);
        }
        let in_memory = self.brokers.iter_mut().filter_map(|broker| broker.claim.as_mut());
        in_memory.chain(&mut self.claim).for_each(|claim| change(&mut claim.expires));
        let unwritten = self.brokers.iter_mut().filter_map(|broker| broker.response.as_mut());
        unwritten.chain(&mut self.response).for_each(|response| change(&mut response.until));
        self.workers
            .iter_mut()
            .filter_map(|worker| worker.claim.as_mut())
            .for_each(|(_, until)| change(until));
    }

    fn tick(&mut self) {
        self.each_moment(|moment| *moment = earlier(*moment));
    }
}

impl Model for ClaimsModel {
    type State = ClaimsWorld;
    type Action = ClaimsAction;

    fn init_states(&self) -> Vec<ClaimsWorld> {
        vec![ClaimsWorld {
            lease: None,
            fenced: 0,
            claim: None,
            attempt: 0,
            brokers: vec![Broker::default(); self.brokers.into()],
            workers: vec![Worker { is_alive: true, claim: None }; self.workers.into()],
            response: None,
            early: self.early,
            extended_dead: 0,
            is_overruled: false,
            is_completed: false,
        }]
    }

    fn actions(&self, world: &ClaimsWorld, actions: &mut Vec<ClaimsAction>) {
        actions.push(ClaimsAction::Tick);
        for me in 0..world.brokers.len() {
            self.broker_actions(world, me, actions);
        }
        if world.response.is_some() {
            actions.push(ClaimsAction::Receive);
        }
        let alive = world.workers.iter().enumerate().filter(|(_, worker)| worker.is_alive);
        actions.extend(alive.map(|(number, _)| ClaimsAction::Die(number)));
    }

    fn next_state(&self, last: &ClaimsWorld, action: ClaimsAction) -> Option<ClaimsWorld> {
        let mut world = last.clone();
        self.act(&mut world, action)?;
        // Brokers keep their names in a counterexample, which is easier to read.
        if self.without.is_none() {
            world.brokers.sort();
        }
        (world != *last).then_some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("a worker that trusts its claim holds it (P2)", |_, world: &ClaimsWorld| {
                world.is_one_holder()
            }),
            Property::always(
                "a worker that lost its claim cannot change the task (P3)",
                |_, world: &ClaimsWorld| !world.is_overruled,
            ),
            Property::always(
                "a crashed worker's claim is extended at most once",
                |_, world: &ClaimsWorld| world.extended_dead < 2,
            ),
            Property::sometimes(
                "a claim of an earlier broker is renewed and completed under a third one",
                |_, world: &ClaimsWorld| world.is_completed && world.fenced > 2 && world.attempt == 1,
            ),
        ]
    }
}
