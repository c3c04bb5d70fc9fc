//! One request after another: carried out, refused and read, lost, late; and what whoever made it does next.

use super::small::{Due, Kind, Small};
use super::{Action, Actor, Doing, Fate, Held, IndexModel, Op, Operation, PRODUCER, Request, Rule, World};

impl IndexModel {
    fn start(&self, world: &mut World, me: usize, op: Operation) -> Option<()> {
        let actor = world.actors[me];
        let is_settlement = matches!(op, Op::Renew | Op::Complete | Op::Fail | Op::FailForGood);
        let seen = if is_settlement { Some(actor.held?.seen) } else { world.object };
        let seen = seen.filter(|_| op != Op::Submit);
        let doing = Doing { op, seen, made: 0, in_doubt: false };
        if self.plan(doing, actor.held).is_empty() {
            return None;
        }
        world.actors[me] = Actor { doing: Some(doing), left: actor.left.saturating_sub(1), ..actor };
        Some(())
    }

    fn go(&self, world: &mut World, me: usize, fate: Fate) -> Option<()> {
        let Actor { doing, held, .. } = world.actors[me];
        let doing = doing?;
        let plan = self.plan(doing, held);
        let request = *plan.get(doing.made)?;
        if fate != Fate::Answered && doing.op == Op::Submit && matches!(request, Request::Put { .. }) {
            world.actors[me].doing = Some(Doing { in_doubt: true, ..doing });
        }
        match fate {
            Fate::Answered => {}
            Fate::AnswerLost => {
                world.lost_answers -= 1;
                self.perform(world, me, request);
                return Some(());
            }
            Fate::Late => {
                world.late_left -= 1;
                world.late.push((me, request));
                // A removal is sent once and not waited for.
                return if matches!(request, Request::Remove(_) | Request::Delete) {
                    Self::made(world, me, &plan)
                } else {
                    Some(())
                };
            }
        }
        if let Request::Put { to, .. } = request {
            return self.put(world, me, request, to, &plan);
        }
        self.perform(world, me, request);
        Self::made(world, me, &plan)
    }

    /// A put on condition with the read that follows a refusal.
    fn put(&self, world: &mut World, me: usize, request: Request, to: Small, plan: &[Request]) -> Option<()> {
        let was_written = world.authors[usize::from(to.rev)] == Some((me, to));
        let stands = world.object.is_some_and(|object| object.rev == to.rev);
        if was_written && stands || !was_written && self.perform(world, me, request) {
            return Self::made(world, me, plan);
        }
        let doing = world.actors[me].doing?;
        if was_written {
            // Others have gone on from it, and seen to its entries.
            Self::end(world, me, doing.op, Some(to));
            return Some(());
        }
        if !self.has(Rule::RefusedRemovesNothing)
            && let Some(place) = plan.iter().position(|request| matches!(request, Request::Remove(_)))
        {
            world.actors[me].doing = Some(Doing { made: place, ..doing });
            return Some(());
        }
        self.decide_again(world, me, doing);
        Some(())
    }

    fn decide_again(&self, world: &mut World, me: usize, doing: Doing) {
        let again = Doing { seen: world.object, made: 0, ..doing };
        let is_once = matches!(doing.op, Op::Submit | Op::Bury | Op::Sweep(_) | Op::TimeOut | Op::Purge);
        if is_once || self.plan(again, world.actors[me].held).is_empty() {
            if matches!(doing.op, Op::Submit | Op::Bury) {
                // It stands there already: the task, or a tombstone.
                let is_tombstone = world.object.is_some_and(|task| task.kind == Kind::Tombstone);
                world.denied |= is_tombstone;
                world.acknowledged |= !is_tombstone;
            }
            world.actors[me].doing = None;
            world.actors[me].held = None;
        } else {
            world.actors[me].doing = Some(again);
        }
    }

    /// One request more is made; the last one ends the operation.
    fn made(world: &mut World, me: usize, plan: &[Request]) -> Option<()> {
        let doing = world.actors[me].doing?;
        if doing.made + 1 < plan.len() {
            world.actors[me].doing = Some(Doing { made: doing.made + 1, ..doing });
            return Some(());
        }
        let written = plan.iter().find_map(|request| match request {
            Request::Put { to, .. } => Some(*to),
            _ => None,
        });
        Self::end(world, me, doing.op, written);
        Some(())
    }

    fn end(world: &mut World, me: usize, op: Operation, written: Option<Small>) {
        let seen = world.actors[me].doing.and_then(|doing| doing.seen);
        let actor = &mut world.actors[me];
        actor.doing = None;
        match (op, written) {
            (Op::Submit, _) => world.acknowledged = true,
            (Op::Bury | Op::Withdraw, _) => world.denied = true,
            (Op::Claim { owner }, Some(task)) => {
                let entry = if owner { seen.and_then(Small::called_for) } else { task.called_for() };
                actor.held = Some(Held { seen: task, entry });
            }
            (Op::Renew, Some(task)) => actor.held = actor.held.map(|held| Held { seen: task, ..held }),
            (Op::Complete | Op::Fail | Op::FailForGood, _) => actor.held = None,
            _ => {}
        }
    }

    /// Carries out a request; whether its condition held.
    fn perform(&self, world: &mut World, by: usize, request: Request) -> bool {
        match request {
            Request::Write(pointer) => world.entries |= self.bit(pointer),
            Request::Remove(pointer) => world.entries &= !self.bit(pointer),
            Request::Put { to, on } => {
                if world.object != on && self.has(Rule::OnCondition) {
                    return false;
                }
                let had_waited = world.object.is_some_and(|task| task.kind == Kind::Waiting(Due::Later));
                if had_waited && matches!(to.kind, Kind::Running { .. }) {
                    world.later_until = to.rev;
                }
                world.object = Some(to);
                world.authors[usize::from(to.rev)] = Some((by, to));
                world.completed |= to.kind == Kind::Completed;
            }
            Request::Delete => {
                world.lost |= world.object.is_some_and(|task| !task.is_final());
                world.deleted = true;
                world.object = None;
            }
        }
        true
    }

    pub(super) fn act(&self, world: &mut World, action: Action) -> Option<()> {
        match action {
            Action::Start(me, op) => self.start(world, me, op)?,
            Action::Go(me, fate) => self.go(world, me, fate)?,
            Action::GiveUp if self.has(Rule::FenceOwnSubmit) => {
                let bury = Doing { op: Op::Bury, seen: None, made: 0, in_doubt: false };
                world.actors[PRODUCER].doing = Some(bury);
            }
            Action::Fail => {
                let withdraw = Doing { op: Op::Withdraw, seen: None, made: 0, in_doubt: false };
                world.actors[PRODUCER].doing = Some(withdraw);
            }
            Action::GiveUp => {
                world.denied = true;
                world.actors[PRODUCER].doing = None;
            }
            Action::Crash(me) => {
                world.crashes -= 1;
                let left = if me == PRODUCER { 0 } else { world.actors[me].left };
                world.actors[me] = Actor { left, ..Actor::default() };
            }
            Action::Land(number) => {
                let (by, request) = world.late.remove(number);
                self.perform(world, by, request);
            }
        }
        Some(())
    }
}
