//! The revisioned index as a model: one task, its entries, and everyone who writes them.
//!
//! Every operation is a plan: the requests that the queue makes, in its order, from a state of the task that was read
//! before. Between any two of them everyone else may act. A put on condition that is refused or not answered is followed
//! by a read, as in the store's client. Leases run out whenever the checker likes, and every grace is over at once: what
//! holds here does not depend on how long anything takes. Only a purge is kept away from a submit that is under way, since
//! a day lies between them.

mod plan;
mod run;
mod small;
mod told;

use small::{Due, Kind, Pointer, Small};
use stateright::{Model, Property};

/// What the index asks for; each can be left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Rule {
    NewBeforeOld,
    EntryFirst,
    RefusedRemovesNothing,
    CoverThenSweep,
    Revisions,
    PointerFirst,
    FenceOwnSubmit,
    WithdrawWhenSure,
    FenceBeforeRemoval,
    MarkBeforeDelete,
    OnCondition,
    OwnerLeavesEntry,
}

impl Rule {
    pub(super) const ALL: [Rule; 12] = [
        Rule::NewBeforeOld,
        Rule::EntryFirst,
        Rule::RefusedRemovesNothing,
        Rule::CoverThenSweep,
        Rule::Revisions,
        Rule::PointerFirst,
        Rule::FenceOwnSubmit,
        Rule::WithdrawWhenSure,
        Rule::FenceBeforeRemoval,
        Rule::MarkBeforeDelete,
        Rule::OnCondition,
        Rule::OwnerLeavesEntry,
    ];

    pub(super) fn told(self) -> &'static str {
        match self {
            Rule::NewBeforeOld => "1. the new entry is written before the old one is removed",
            Rule::EntryFirst => "1. what makes a task wait again writes its entry before the task",
            Rule::RefusedRemovesNothing => "1. a refused put removes nothing",
            Rule::CoverThenSweep => "2. the called-for entry is written before a stale one is removed",
            Rule::Revisions => "2. keys carry the revision",
            Rule::PointerFirst => "3. a submit writes its entry before the task",
            Rule::FenceOwnSubmit => "3. a submit that is given up fences its own id",
            Rule::WithdrawWhenSure => {
                "3. a submit removes its entry only if no put of the task can still land"
            }
            Rule::FenceBeforeRemoval => "4. an entry ahead of its task is removed only after a fence",
            Rule::MarkBeforeDelete => "a task is marked on condition before it is deleted",
            Rule::OnCondition => "a task is put on condition",
            Rule::OwnerLeavesEntry => "a shard's owner that writes no lease entry leaves the ready entry",
        }
    }
}

/// Whose claims are how.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Pull {
    /// With a lease entry.
    Shared,
    /// By the shard's owner, who leaves the ready entry where it is.
    Owner,
    Mixed,
}

/// How large the world is, and how much may go wrong in it.
#[derive(Debug, Clone)]
pub(super) struct IndexModel {
    pub(super) workers: u8,
    pub(super) pull: Pull,
    /// How many times an operator cancels, retries or reschedules.
    pub(super) operations: u8,
    /// How many times a janitor marks or deletes.
    pub(super) purges: u8,
    pub(super) crashes: u8,
    pub(super) lost_answers: u8,
    pub(super) late: u8,
    /// No task gets beyond this revision.
    pub(super) rev_max: u8,
    pub(super) without: Option<Rule>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Operation {
    Submit,
    Bury,
    Withdraw,
    Claim { owner: bool },
    Renew,
    Complete,
    Fail,
    FailForGood,
    Cancel,
    Retry,
    Reschedule(Due),
    Purge,
    Delete,
    Sweep(Pointer),
    TimeOut,
}

use Operation as Op;

/// An operation under way: decided upon by what was read, so many of its requests made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Doing {
    op: Operation,
    seen: Option<Small>,
    made: usize,
    /// A put of a submitted task may have been carried out, or still be.
    in_doubt: bool,
}

/// A claim as its worker knows it, and the entry that its task is found by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Held {
    seen: Small,
    entry: Option<Pointer>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
struct Actor {
    doing: Option<Doing>,
    held: Option<Held>,
    /// Operations that are left to whoever is not a worker.
    left: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Request {
    Write(Pointer),
    Remove(Pointer),
    /// On condition that this stands there, or nothing does.
    Put {
        to: Small,
        on: Option<Small>,
    },
    Delete,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[expect(clippy::struct_excessive_bools, reason = "each is something that has happened, or not")]
pub(super) struct World {
    object: Option<Small>,
    /// Who has written which revision, as its history tells.
    authors: [Option<(usize, Small)>; REVISIONS],
    entries: u32,
    actors: Vec<Actor>,
    late: Vec<(usize, Request)>,
    crashes: u8,
    lost_answers: u8,
    late_left: u8,
    /// Entries for later, up to this revision, are due by now: a task was claimed that had waited for it.
    later_until: u8,
    acknowledged: bool,
    denied: bool,
    completed: bool,
    deleted: bool,
    lost: bool,
}

/// More than any model's `rev_max`; entries have a bit each.
const REVISIONS: usize = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Action {
    Start(usize, Operation),
    Go(usize, Fate),
    GiveUp,
    /// The put of a submitted task surely fails, as on a full disk.
    Fail,
    Crash(usize),
    Land(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Fate {
    Answered,
    AnswerLost,
    Late,
}

const PRODUCER: usize = 0;
const OPERATOR: usize = 1;
const JANITOR: usize = 2;
const WORKERS: usize = 3;

impl IndexModel {
    fn has(&self, rule: Rule) -> bool {
        self.without != Some(rule)
    }

    fn bit(&self, pointer: Pointer) -> u32 {
        let rev = if self.has(Rule::Revisions) { u32::from(pointer.rev) } else { 0 };
        1 << (rev + 8 * u32::from(pointer.due == Due::Later) + 16 * u32::from(pointer.is_lease))
    }

    fn pointers(entries: u32) -> impl Iterator<Item = Pointer> {
        (0..32u8).filter(move |bit| entries & (1 << bit) != 0).map(|bit| {
            let due = if bit & 8 == 0 { Due::Soon } else { Due::Later };
            Pointer { is_lease: bit & 16 != 0, due, rev: bit % 8 }
        })
    }

    /// Only revisions that someone may still ask about need an author, and workers that do the same are the same.
    fn tidy(&self, world: &mut World) {
        let mut wanted = [false; REVISIONS];
        for actor in &world.actors {
            let plan = actor.doing.map(|doing| self.plan(doing, actor.held)).unwrap_or_default();
            for request in plan {
                if let Request::Put { to, .. } = request {
                    wanted[usize::from(to.rev)] = true;
                }
            }
        }
        for (author, wanted) in world.authors.iter_mut().zip(wanted) {
            *author = author.filter(|_| wanted);
        }
        // A counterexample is easier to read when nobody changes places.
        if self.without.is_none() {
            world.sort_workers();
        }
    }

    fn worker_starts(&self, world: &World, me: usize, actions: &mut Vec<Action>) {
        let mut start = |op| actions.push(Action::Start(me, op));
        if world.actors[me].held.is_some() {
            [Op::Renew, Op::Complete, Op::Fail, Op::FailForGood].into_iter().for_each(start);
            return;
        }
        let mut meets_ready = false;
        for pointer in Self::pointers(world.entries) {
            let is_ahead = world.object.is_none_or(|task| pointer.rev > task.rev);
            meets_ready |= !pointer.is_lease && !is_ahead;
            start(Op::Sweep(pointer));
        }
        if world.entries != 0 {
            start(Op::TimeOut);
        }
        if meets_ready && self.pull != Pull::Owner {
            start(Op::Claim { owner: false });
        }
        if meets_ready && self.pull != Pull::Shared {
            start(Op::Claim { owner: true });
        }
    }

    fn starts(&self, world: &World, me: usize, actions: &mut Vec<Action>) {
        let is_submit_over =
            world.actors[PRODUCER].doing.is_none() && world.late.iter().all(|(by, _)| *by != PRODUCER);
        match me {
            PRODUCER if world.actors[me].left > 0 => actions.push(Action::Start(me, Op::Submit)),
            OPERATOR if world.actors[me].left > 0 => {
                let plain = [Op::Cancel, Op::Retry, Op::Reschedule(Due::Soon), Op::Reschedule(Due::Later)];
                actions.extend(plain.map(|op| Action::Start(me, op)));
            }
            JANITOR if world.actors[me].left > 0 && is_submit_over => {
                actions.extend([Op::Purge, Op::Delete].map(|op| Action::Start(me, op)));
            }
            PRODUCER | OPERATOR | JANITOR => {}
            _ => self.worker_starts(world, me, actions),
        }
    }

    fn is_covered(world: &World) -> bool {
        let Some(task) = world.object.filter(|task| !task.is_final()) else { return true };
        Self::pointers(world.entries).any(|pointer| {
            let is_in_time = match task.kind {
                // A lease entry is due in time only if that lease has run out already.
                Kind::Waiting(due) if !pointer.is_lease => {
                    pointer.due <= due || pointer.rev <= world.later_until
                }
                Kind::Waiting(_) => task.claim == 0,
                _ => true,
            };
            pointer.rev <= task.rev && is_in_time
        })
    }
}

impl World {
    fn sort_workers(&mut self) {
        let mut order: Vec<usize> = (0..self.actors.len()).collect();
        order[WORKERS..].sort_by_key(|worker| self.actors[*worker]);
        if order.is_sorted() {
            return;
        }
        let place = |old: usize| order.iter().position(|known| *known == old).unwrap_or(old);
        self.actors = order.iter().map(|old| self.actors[*old]).collect();
        for (by, _) in self.authors.iter_mut().flatten() {
            *by = place(*by);
        }
        for (by, _) in &mut self.late {
            *by = place(*by);
        }
    }
}

impl Model for IndexModel {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        let mut actors = vec![Actor::default(); WORKERS + usize::from(self.workers)];
        actors[PRODUCER].left = 1;
        actors[OPERATOR].left = self.operations;
        actors[JANITOR].left = self.purges;
        vec![World {
            object: None,
            authors: [None; REVISIONS],
            entries: 0,
            actors,
            late: Vec::new(),
            crashes: self.crashes,
            lost_answers: self.lost_answers,
            late_left: self.late,
            later_until: 0,
            acknowledged: false,
            denied: false,
            completed: false,
            deleted: false,
            lost: false,
        }]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        for (me, actor) in world.actors.iter().enumerate() {
            let Some(doing) = actor.doing else {
                self.starts(world, me, actions);
                if world.crashes > 0 && actor.held.is_some() {
                    actions.push(Action::Crash(me));
                }
                continue;
            };
            actions.push(Action::Go(me, Fate::Answered));
            if world.lost_answers > 0 {
                actions.push(Action::Go(me, Fate::AnswerLost));
            }
            if world.late_left > 0 {
                actions.push(Action::Go(me, Fate::Late));
            }
            if world.crashes > 0 {
                actions.push(Action::Crash(me));
            }
            if doing.op == Op::Submit && doing.made > 0 {
                actions.push(Action::GiveUp);
            }
            if doing.op == Op::Submit
                && matches!(self.plan(doing, None).get(doing.made), Some(Request::Put { .. }))
                && !(doing.in_doubt && self.has(Rule::WithdrawWhenSure))
            {
                actions.push(Action::Fail);
            }
        }
        actions.extend((0..world.late.len()).map(Action::Land));
    }

    fn next_state(&self, last: &World, action: Action) -> Option<World> {
        let mut world = last.clone();
        self.act(&mut world, action)?;
        self.tidy(&mut world);
        (world != *last).then_some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("an unfinished task has an entry", |_, world: &World| Self::is_covered(world)),
            Property::always("an acknowledged task is there until it is purged", |_, world: &World| {
                let is_there = world.object.is_some_and(|task| task.kind != Kind::Tombstone);
                !world.lost && (!world.acknowledged || is_there || world.deleted)
            }),
            Property::always("a task that was said not to be submitted never is", |_, world: &World| {
                let is_mark = |task: Small| matches!(task.kind, Kind::Tombstone | Kind::Purged);
                !world.denied || world.object.is_none_or(is_mark)
            }),
            Property::always("what is completed stays so", |_, world: &World| {
                // A stale entry of a task that was deleted may leave a tombstone there, which nobody can run.
                let stays = |task: Small| match task.kind {
                    Kind::Completed | Kind::Purged => true,
                    Kind::Tombstone => world.deleted,
                    _ => false,
                };
                !world.completed || world.object.is_none_or(stays)
            }),
            Property::sometimes(
                "a task is completed and nothing is left of it in the index",
                |_, world: &World| world.completed && world.entries == 0,
            ),
        ]
    }
}
