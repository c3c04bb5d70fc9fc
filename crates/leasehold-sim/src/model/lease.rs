//! The lease as a model: processes that want the same lease, time that passes, requests that go astray.
//!
//! A process decides by [`Lease::take`], [`Lease::renewed`] and [`Lease::released`], sends the put at some later moment
//! — that is the pause — and reads the object back whenever the put was refused or not answered. It may give up at any
//! moment without knowing what becomes of the put. Everyone knows the time exactly: for those who take over and for those
//! who trust, that is the most daring of the intervals that hold the present.

mod small;
mod told;

use leasehold_core::Lease;
use leasehold_core::Now;
use leasehold_core::lease::Take;
use serde_json::Map;
use small::{Claim, NOW, TTL, claim, earlier, fresh, holder, is_same_claim, lease, moment, now};
use stateright::{Model, Property};
use std::time::Duration;

/// What the protocol asks for; each can be left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Rule {
    StoreTime,
    TakeOnCondition,
    RenewOnCondition,
    RaiseEpoch,
    Instance,
    NeverDelete,
    OwnAnew,
    ConfirmedOnly,
    StopBeforeRelease,
    ReadBeforeLost,
}

impl Rule {
    pub(super) const ALL: [Rule; 10] = [
        Rule::StoreTime,
        Rule::TakeOnCondition,
        Rule::RenewOnCondition,
        Rule::RaiseEpoch,
        Rule::Instance,
        Rule::NeverDelete,
        Rule::OwnAnew,
        Rule::ConfirmedOnly,
        Rule::StopBeforeRelease,
        Rule::ReadBeforeLost,
    ];

    pub(super) fn told(self) -> &'static str {
        match self {
            Rule::StoreTime => "expiry is judged by the store's time, not by a clock that is ahead of it",
            Rule::TakeOnCondition => "a take-over is put on condition",
            Rule::RenewOnCondition => "a renewal is put on condition",
            Rule::RaiseEpoch => "every take-over raises the epoch",
            Rule::Instance => "a holder is known by its instance, not by its name",
            Rule::NeverDelete => "a lease is never deleted",
            Rule::OwnAnew => "one's own lease is taken anew, not gone on with",
            Rule::ConfirmedOnly => "only a confirmed expiry is trusted",
            Rule::StopBeforeRelease => "a holder stops before its release is sent",
            Rule::ReadBeforeLost => "a refusal is followed by a read before it counts as lost",
        }
    }
}

/// How large the world is, and how much may go wrong in it.
#[derive(Debug, Clone)]
pub(super) struct LeaseModel {
    pub(super) processes: u8,
    pub(super) crashes: u8,
    pub(super) lost_answers: u8,
    pub(super) late: u8,
    /// Nobody takes a lease of this epoch over.
    pub(super) epoch_max: u8,
    pub(super) without: Option<Rule>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Phase {
    Idle,
    Taking { to: Claim, on: Option<u8> },
    Holding { held: Claim },
    Renewing { held: Claim, to: Claim },
    Releasing { held: Claim, to: Claim },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Process {
    instance: u8,
    phase: Phase,
}

/// A put, or a delete that should not be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Request {
    Put { to: Claim, on: Option<u8>, always: bool },
    Delete,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct World {
    object: Option<Claim>,
    processes: Vec<Process>,
    late: Vec<Request>,
    crashes: u8,
    lost_answers: u8,
    late_left: u8,
    /// The highest epoch that anyone has held.
    highest: u8,
    /// An epoch was held that was not above all before it.
    repeated: bool,
    /// Someone was told to stop whose lease stood there.
    wronged: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Action {
    Tick,
    Take(usize),
    Renew(usize),
    Release(usize),
    Send(usize, Fate),
    GiveUp(usize),
    Crash(usize),
    Land(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Fate {
    Answered,
    AnswerLost,
    Late,
}

impl LeaseModel {
    fn has(&self, rule: Rule) -> bool {
        self.without != Some(rule)
    }

    /// Decides upon taking what was found, as the real code does.
    fn decide_take(&self, world: &mut World, me: usize, found: Option<Claim>) -> Phase {
        let instance = self.known_as(world, me);
        if !self.has(Rule::OwnAnew)
            && let Some(held) = found.filter(|held| held.instance == instance && held.expires != 0)
        {
            return self.hold(world, held);
        }
        let ahead = if self.has(Rule::StoreTime) { 0 } else { TTL + 1 };
        let now = Now::exactly(moment(NOW + ahead));
        let taken = Lease::take(found.map(lease), &Map::new(), &holder(instance), now, fresh());
        let Take::Write(lease) = taken else { return Phase::Idle };
        if lease.epoch > self.epoch_max.into() {
            return Phase::Idle;
        }
        let mut to = claim(&lease);
        to.expires -= ahead;
        if !self.has(Rule::RaiseEpoch) {
            to.epoch = found.map_or(to.epoch, |found| found.epoch);
        }
        Phase::Taking { to, on: found.map(|found| found.write) }
    }

    fn known_as(&self, world: &World, me: usize) -> u8 {
        if self.has(Rule::Instance) { world.processes[me].instance } else { 0 }
    }

    fn hold(&self, world: &mut World, held: Claim) -> Phase {
        world.repeated |= held.epoch <= world.highest && self.has(Rule::OwnAnew);
        world.highest = world.highest.max(held.epoch);
        Phase::Holding { held }
    }

    fn decide_renewal(held: Claim) -> Phase {
        let ttl = Duration::from_secs(TTL.into());
        Phase::Renewing { held, to: claim(&lease(held).renewed(ttl, now(), fresh())) }
    }

    fn decide_release(held: Claim) -> Phase {
        Phase::Releasing { held, to: claim(&lease(held).released(now(), fresh())) }
    }

    fn request(&self, phase: Phase) -> Option<Request> {
        Some(match phase {
            Phase::Idle | Phase::Holding { .. } => return None,
            Phase::Taking { to, on } => {
                Request::Put { to, on, always: !self.has(Rule::TakeOnCondition) && on.is_some() }
            }
            Phase::Renewing { held, to } => {
                Request::Put { to, on: Some(held.write), always: !self.has(Rule::RenewOnCondition) }
            }
            Phase::Releasing { .. } if !self.has(Rule::NeverDelete) => Request::Delete,
            Phase::Releasing { held, to } => Request::Put { to, on: Some(held.write), always: false },
        })
    }

    /// What a process makes of an answer; a refusal comes with what was read.
    fn answered(&self, world: &mut World, me: usize, was_written: bool) -> Option<Phase> {
        let found = world.object;
        Some(match world.processes[me].phase {
            Phase::Taking { to, .. } if was_written => self.hold(world, to),
            Phase::Taking { .. } => self.decide_take(world, me, found),
            Phase::Renewing { to, .. } if was_written => Phase::Holding { held: to },
            Phase::Renewing { held, .. } => {
                let ours = found.filter(|found| is_same_claim(*found, held) && found.expires != 0);
                match ours {
                    Some(found) if self.has(Rule::ReadBeforeLost) => Phase::Holding { held: found },
                    ours => {
                        world.wronged |= ours.is_some();
                        Phase::Idle
                    }
                }
            }
            Phase::Releasing { held, .. } => match found.filter(|found| is_same_claim(*found, held)) {
                Some(found) if !was_written && found.expires != 0 => Self::decide_release(found),
                _ => Phase::Idle,
            },
            Phase::Idle | Phase::Holding { .. } => return None,
        })
    }

    fn send(&self, world: &mut World, me: usize, fate: Fate) -> Option<()> {
        let request = self.request(world.processes[me].phase)?;
        match fate {
            Fate::Answered => {
                let is_there = matches!(request, Request::Put { to, .. } if world.object == Some(to));
                let was_written = perform(world, request) || is_there && self.has(Rule::ReadBeforeLost);
                world.processes[me].phase = self.answered(world, me, was_written)?;
            }
            Fate::AnswerLost => {
                world.lost_answers -= 1;
                perform(world, request);
            }
            Fate::Late => {
                world.late_left -= 1;
                world.late.push(request);
            }
        }
        Some(())
    }

    fn trusts(&self, process: &Process) -> bool {
        let expires = match process.phase {
            Phase::Renewing { to, .. } if !self.has(Rule::ConfirmedOnly) => to.expires,
            Phase::Renewing { held, .. } | Phase::Holding { held } => held.expires,
            Phase::Releasing { held, .. } if !self.has(Rule::StopBeforeRelease) => held.expires,
            Phase::Releasing { .. } | Phase::Taking { .. } | Phase::Idle => return false,
        };
        now().is_before(moment(expires))
    }

    fn act(&self, world: &mut World, action: Action) -> Option<()> {
        match action {
            Action::Tick => world.each_claim(|claim| claim.expires = earlier(claim.expires)),
            // The real code begins with a put on condition *absent*.
            Action::Take(me) => world.processes[me].phase = self.decide_take(world, me, None),
            Action::Renew(me) => {
                let Phase::Holding { held } = world.processes[me].phase else { return None };
                world.processes[me].phase = Self::decide_renewal(held);
            }
            Action::Release(me) => {
                let Phase::Holding { held } = world.processes[me].phase else { return None };
                world.processes[me].phase = Self::decide_release(held);
            }
            Action::Send(me, fate) => self.send(world, me, fate)?,
            Action::GiveUp(me) => {
                let phase = &mut world.processes[me].phase;
                *phase = match *phase {
                    Phase::Renewing { held, .. } => Phase::Holding { held },
                    _ => Phase::Idle,
                };
            }
            Action::Crash(me) => {
                world.crashes -= 1;
                let process = &mut world.processes[me];
                *process = Process { instance: process.instance + self.processes, phase: Phase::Idle };
            }
            Action::Land(number) => {
                let request = world.late.remove(number);
                perform(world, request);
            }
        }
        Some(())
    }
}

impl Model for LeaseModel {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        let process = |instance| Process { instance, phase: Phase::Idle };
        vec![World {
            object: None,
            processes: (1..=self.processes).map(process).collect(),
            late: Vec::new(),
            crashes: self.crashes,
            lost_answers: self.lost_answers,
            late_left: self.late,
            highest: 0,
            repeated: false,
            wronged: false,
        }]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        actions.push(Action::Tick);
        for (me, process) in world.processes.iter().enumerate() {
            match process.phase {
                Phase::Idle => actions.push(Action::Take(me)),
                Phase::Holding { .. } => actions.extend([Action::Renew(me), Action::Release(me)]),
                Phase::Taking { .. } | Phase::Renewing { .. } | Phase::Releasing { .. } => {
                    actions.extend([Action::Send(me, Fate::Answered), Action::GiveUp(me)]);
                    if world.lost_answers > 0 {
                        actions.push(Action::Send(me, Fate::AnswerLost));
                    }
                    if world.late_left > 0 {
                        actions.push(Action::Send(me, Fate::Late));
                    }
                }
            }
            if world.crashes > 0 && process.phase != Phase::Idle {
                actions.push(Action::Crash(me));
            }
        }
        actions.extend((0..world.late.len()).map(Action::Land));
    }

    fn next_state(&self, last: &World, action: Action) -> Option<World> {
        let mut world = last.clone();
        self.act(&mut world, action)?;
        world.renumber();
        (world != *last).then_some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("no two trust at once", |model: &Self, world: &World| {
                world.processes.iter().filter(|process| model.trusts(process)).count() < 2
            }),
            Property::always("no epoch is held twice", |_, world: &World| !world.repeated),
            Property::always("no holder is told to stop", |_, world: &World| !world.wronged),
            Property::sometimes("a lease is taken over twice", |_, world: &World| world.highest > 2),
        ]
    }
}

impl World {
    fn each_claim(&mut self, mut change: impl FnMut(&mut Claim)) {
        self.object.iter_mut().for_each(&mut change);
        for process in &mut self.processes {
            match &mut process.phase {
                Phase::Idle => {}
                Phase::Holding { held: one } | Phase::Taking { to: one, .. } => change(one),
                Phase::Renewing { held, to } | Phase::Releasing { held, to } => {
                    change(held);
                    change(to);
                }
            }
        }
        for request in &mut self.late {
            if let Request::Put { to, .. } = request {
                change(to);
            }
        }
    }

    /// Only which writes are the same matters, so they are numbered in the order in which they are met.
    fn renumber(&mut self) {
        let mut known = Vec::new();
        let mut number = |write: &mut u8| {
            let place = known.iter().position(|known| known == write).unwrap_or_else(|| {
                known.push(*write);
                known.len() - 1
            });
            *write = u8::try_from(place + 1).expect("the world is small");
        };
        for on in self.conditions() {
            number(on);
        }
        self.each_claim(|claim| number(&mut claim.write));
    }

    fn conditions(&mut self) -> impl Iterator<Item = &mut u8> {
        let taking = self.processes.iter_mut().filter_map(|process| match &mut process.phase {
            Phase::Taking { on, .. } => on.as_mut(),
            _ => None,
        });
        taking.chain(self.late.iter_mut().filter_map(|request| match request {
            Request::Put { on, .. } => on.as_mut(),
            Request::Delete => None,
        }))
    }
}

/// Carries out a request; whether it was written.
fn perform(world: &mut World, request: Request) -> bool {
    match request {
        Request::Delete => world.object = None,
        Request::Put { to, on, always } if always || world.object.map(|object| object.write) == on => {
            world.object = Some(to);
        }
        Request::Put { .. } => return false,
    }
    true
}
