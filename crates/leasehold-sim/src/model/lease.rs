//! Model of the lease: processes that compete for one lease, passing time, and delayed or lost requests.
//!
//! A process decides by [`Lease::take`], [`Lease::renewed`] and [`Lease::released`], sends the put at some later moment
//! (a pause), and reads the object back when the put was refused or not answered. It may give up at any moment with an
//! unknown outcome of the put. Every process knows the exact time: of all intervals that contain the present, this is
//! the one that takes over earliest and trusts longest.

mod describe;
pub(super) mod small;

use super::RequestFate;
use leasehold_core::Lease;
use leasehold_core::Now;
use leasehold_core::lease::Take;
use serde_json::Map;
use small::{
    NOW, SmallLease, TTL, claim, earlier, holder, is_same_claim, lease, moment, now, unused_write_id,
};
use stateright::{Model, Property};
use std::time::Duration;

/// Rule of the lease protocol; each can be left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum LeaseRule {
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

impl LeaseRule {
    pub(super) const ALL: [LeaseRule; 10] = [
        LeaseRule::StoreTime,
        LeaseRule::TakeOnCondition,
        LeaseRule::RenewOnCondition,
        LeaseRule::RaiseEpoch,
        LeaseRule::Instance,
        LeaseRule::NeverDelete,
        LeaseRule::OwnAnew,
        LeaseRule::ConfirmedOnly,
        LeaseRule::StopBeforeRelease,
        LeaseRule::ReadBeforeLost,
    ];

    pub(super) fn description(self) -> &'static str {
        match self {
            LeaseRule::StoreTime => {
                "expiry is decided by the store's time, not by a clock that is ahead of it"
            }
            LeaseRule::TakeOnCondition => "a take-over is a conditional put",
            LeaseRule::RenewOnCondition => "a renewal is a conditional put",
            LeaseRule::RaiseEpoch => "every take-over raises the epoch",
            LeaseRule::Instance => "a holder is identified by its instance, not by its worker id",
            LeaseRule::NeverDelete => "a lease is never deleted",
            LeaseRule::OwnAnew => "a process that finds its own lease takes it again with a new epoch",
            LeaseRule::ConfirmedOnly => "only a confirmed expiry is trusted",
            LeaseRule::StopBeforeRelease => "a holder stops working before it sends its release",
            LeaseRule::ReadBeforeLost => "a refused put is read back before the lease counts as lost",
        }
    }
}

/// Bounds of the model: number of processes and faults.
#[derive(Debug, Clone)]
pub(super) struct LeaseModel {
    pub(super) processes: u8,
    pub(super) crashes: u8,
    pub(super) lost_answers: u8,
    pub(super) late: u8,
    /// Highest epoch: a lease of this epoch is not taken over.
    pub(super) epoch_max: u8,
    pub(super) without: Option<LeaseRule>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Phase {
    Idle,
    Taking { to: SmallLease, on: Option<u8> },
    Holding { held: SmallLease },
    Renewing { held: SmallLease, to: SmallLease },
    Releasing { held: SmallLease, to: SmallLease },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Process {
    instance: u8,
    phase: Phase,
}

/// A put, or a delete that the protocol forbids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Request {
    Put { to: SmallLease, on: Option<u8>, always: bool },
    Delete,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct LeaseWorld {
    object: Option<SmallLease>,
    processes: Vec<Process>,
    late: Vec<Request>,
    crashes: u8,
    lost_answers: u8,
    late_left: u8,
    /// Highest epoch that any process has held.
    highest: u8,
    /// True if a process held an epoch that was not above all earlier ones.
    repeated: bool,
    /// True if a process gave up its lease although it still held it.
    gave_up_held: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum LeaseAction {
    Tick,
    Take(usize),
    Renew(usize),
    Release(usize),
    Send(usize, RequestFate),
    GiveUp(usize),
    Crash(usize),
    Deliver(usize),
}

impl LeaseModel {
    fn has(&self, rule: LeaseRule) -> bool {
        self.without != Some(rule)
    }

    /// Decides whether to take the lease that was read, as the real code does.
    fn decide_take(&self, world: &mut LeaseWorld, me: usize, found: Option<SmallLease>) -> Phase {
        let instance = self.instance_of(world, me);
        if !self.has(LeaseRule::OwnAnew)
            && let Some(held) = found.filter(|held| held.instance == instance && held.expires != 0)
        {
            return self.hold(world, held);
        }
        let ahead = if self.has(LeaseRule::StoreTime) { 0 } else { TTL + 1 };
        let now = Now::exactly(moment(NOW + ahead));
        let taken = Lease::take(found.map(lease), &Map::new(), &holder(instance), now, unused_write_id());
        let Take::Write(lease) = taken else { return Phase::Idle };
        if lease.epoch > self.epoch_max.into() {
            return Phase::Idle;
        }
        let mut to = claim(&lease);
        to.expires -= ahead;
        if !self.has(LeaseRule::RaiseEpoch) {
            to.epoch = found.map_or(to.epoch, |found| found.epoch);
        }
        Phase::Taking { to, on: found.map(|found| found.write) }
    }

    fn instance_of(&self, world: &LeaseWorld, me: usize) -> u8 {
        if self.has(LeaseRule::Instance) { world.processes[me].instance } else { 0 }
    }

    fn hold(&self, world: &mut LeaseWorld, held: SmallLease) -> Phase {
        world.repeated |= held.epoch <= world.highest && self.has(LeaseRule::OwnAnew);
        world.highest = world.highest.max(held.epoch);
        Phase::Holding { held }
    }

    fn decide_renewal(held: SmallLease) -> Phase {
        let ttl = Duration::from_secs(TTL.into());
        Phase::Renewing { held, to: claim(&lease(held).renewed(ttl, now(), unused_write_id())) }
    }

    fn decide_release(held: SmallLease) -> Phase {
        Phase::Releasing { held, to: claim(&lease(held).released(now(), unused_write_id())) }
    }

    fn request(&self, phase: Phase) -> Option<Request> {
        Some(match phase {
            Phase::Idle | Phase::Holding { .. } => return None,
            Phase::Taking { to, on } => {
                Request::Put { to, on, always: !self.has(LeaseRule::TakeOnCondition) && on.is_some() }
            }
            Phase::Renewing { held, to } => {
                Request::Put { to, on: Some(held.write), always: !self.has(LeaseRule::RenewOnCondition) }
            }
            Phase::Releasing { .. } if !self.has(LeaseRule::NeverDelete) => Request::Delete,
            Phase::Releasing { held, to } => Request::Put { to, on: Some(held.write), always: false },
        })
    }

    /// Next phase of a process after an answer; a refusal is followed by a read.
    fn answered(&self, world: &mut LeaseWorld, me: usize, was_written: bool) -> Option<Phase> {
        let found = world.object;
        Some(match world.processes[me].phase {
            Phase::Taking { to, .. } if was_written => self.hold(world, to),
            Phase::Taking { .. } => self.decide_take(world, me, found),
            Phase::Renewing { to, .. } if was_written => Phase::Holding { held: to },
            Phase::Renewing { held, .. } => {
                let ours = found.filter(|found| is_same_claim(*found, held) && found.expires != 0);
                match ours {
                    Some(found) if self.has(LeaseRule::ReadBeforeLost) => Phase::Holding { held: found },
                    ours => {
                        world.gave_up_held |= ours.is_some();
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

    fn send(&self, world: &mut LeaseWorld, me: usize, fate: RequestFate) -> Option<()> {
        let request = self.request(world.processes[me].phase)?;
        match fate {
            RequestFate::Answered => {
                let is_there = matches!(request, Request::Put { to, .. } if world.object == Some(to));
                let was_written = perform(world, request) || is_there && self.has(LeaseRule::ReadBeforeLost);
                world.processes[me].phase = self.answered(world, me, was_written)?;
            }
            RequestFate::AnswerLost => {
                world.lost_answers -= 1;
                perform(world, request);
            }
            RequestFate::Late => {
                world.late_left -= 1;
                world.late.push(request);
            }
        }
        Some(())
    }

    fn trusts(&self, process: &Process) -> bool {
        let expires = match process.phase {
            Phase::Renewing { to, .. } if !self.has(LeaseRule::ConfirmedOnly) => to.expires,
            Phase::Renewing { held, .. } | Phase::Holding { held } => held.expires,
            Phase::Releasing { held, .. } if !self.has(LeaseRule::StopBeforeRelease) => held.expires,
            Phase::Releasing { .. } | Phase::Taking { .. } | Phase::Idle => return false,
        };
        now().is_before(moment(expires))
    }

    fn act(&self, world: &mut LeaseWorld, action: LeaseAction) -> Option<()> {
        match action {
            LeaseAction::Tick => world.each_claim(|claim| claim.expires = earlier(claim.expires)),
            // The real code begins with a put if absent.
            LeaseAction::Take(me) => world.processes[me].phase = self.decide_take(world, me, None),
            LeaseAction::Renew(me) => {
                let Phase::Holding { held } = world.processes[me].phase else { return None };
                world.processes[me].phase = Self::decide_renewal(held);
            }
            LeaseAction::Release(me) => {
                let Phase::Holding { held } = world.processes[me].phase else { return None };
                world.processes[me].phase = Self::decide_release(held);
            }
            LeaseAction::Send(me, fate) => self.send(world, me, fate)?,
            LeaseAction::GiveUp(me) => {
                let phase = &mut world.processes[me].phase;
                *phase = match *phase {
                    Phase::Renewing { held, .. } => Phase::Holding { held },
                    _ => Phase::Idle,
                };
            }
            LeaseAction::Crash(me) => {
                world.crashes -= 1;
                let process = &mut world.processes[me];
                *process = Process { instance: process.instance + self.processes, phase: Phase::Idle };
            }
            LeaseAction::Deliver(number) => {
                let request = world.late.remove(number);
                perform(world, request);
            }
        }
        Some(())
    }
}

impl Model for LeaseModel {
    type State = LeaseWorld;
    type Action = LeaseAction;

    fn init_states(&self) -> Vec<LeaseWorld> {
        let process = |instance| Process { instance, phase: Phase::Idle };
        vec![LeaseWorld {
            object: None,
            processes: (1..=self.processes).map(process).collect(),
            late: Vec::new(),
            crashes: self.crashes,
            lost_answers: self.lost_answers,
            late_left: self.late,
            highest: 0,
            repeated: false,
            gave_up_held: false,
        }]
    }

    fn actions(&self, world: &LeaseWorld, actions: &mut Vec<LeaseAction>) {
        actions.push(LeaseAction::Tick);
        for (me, process) in world.processes.iter().enumerate() {
            match process.phase {
                Phase::Idle => actions.push(LeaseAction::Take(me)),
                Phase::Holding { .. } => actions.extend([LeaseAction::Renew(me), LeaseAction::Release(me)]),
                Phase::Taking { .. } | Phase::Renewing { .. } | Phase::Releasing { .. } => {
                    actions.extend([LeaseAction::Send(me, RequestFate::Answered), LeaseAction::GiveUp(me)]);
                    if world.lost_answers > 0 {
                        actions.push(LeaseAction::Send(me, RequestFate::AnswerLost));
                    }
                    if world.late_left > 0 {
                        actions.push(LeaseAction::Send(me, RequestFate::Late));
                    }
                }
            }
            if world.crashes > 0 && process.phase != Phase::Idle {
                actions.push(LeaseAction::Crash(me));
            }
        }
        actions.extend((0..world.late.len()).map(LeaseAction::Deliver));
    }

    fn next_state(&self, last: &LeaseWorld, action: LeaseAction) -> Option<LeaseWorld> {
        let mut world = last.clone();
        self.act(&mut world, action)?;
        world.renumber();
        (world != *last).then_some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(
                "no two processes trust the lease at once",
                |model: &Self, world: &LeaseWorld| {
                    world.processes.iter().filter(|process| model.trusts(process)).count() < 2
                },
            ),
            Property::always("no epoch is held twice", |_, world: &LeaseWorld| !world.repeated),
            Property::always("no holder gives up a lease that it still holds", |_, world: &LeaseWorld| {
                !world.gave_up_held
            }),
            Property::sometimes("a lease is taken over twice", |_, world: &LeaseWorld| world.highest > 2),
        ]
    }
}

impl LeaseWorld {
    fn each_claim(&mut self, mut change: impl FnMut(&mut SmallLease)) {
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

    /// Merges equivalent states: only equality of writes matters, so they are numbered in order of appearance.
    fn renumber(&mut self) {
        let mut known = Vec::new();
        let mut number = |write: &mut u8| {
            let place = known.iter().position(|known| known == write).unwrap_or_else(|| {
                known.push(*write);
                known.len() - 1
            });
            *write = u8::try_from(place + 1).expect("the model is small");
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

/// Carries out a request. Returns whether it was written.
fn perform(world: &mut LeaseWorld, request: Request) -> bool {
    match request {
        Request::Delete => world.object = None,
        Request::Put { to, on, always } if always || world.object.map(|object| object.write) == on => {
            world.object = Some(to);
        }
        Request::Put { .. } => return false,
    }
    true
}
