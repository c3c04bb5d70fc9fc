//! Transitions of the model: each request is carried out, refused and read back, lost or delayed, and its actor
//! continues.

use super::small::{Due, Small, TaskState};
use super::{
    Actor, Doing, Held, IndexAction, IndexModel, IndexRule, IndexWorld, Op, Operation, PRODUCER, Request,
    RequestFate,
};

impl IndexModel {
    fn start(&self, world: &mut IndexWorld, me: usize, op: Operation) -> Option<()> {
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

    fn go(&self, world: &mut IndexWorld, me: usize, fate: RequestFate) -> Option<()> {
        let Actor { doing, held, .. } = world.actors[me];
        let doing = doing?;
        let plan = self.plan(doing, held);
        let request = *plan.get(doing.made)?;
        if fate != RequestFate::Answered && doing.op == Op::Submit && matches!(request, Request::Put { .. }) {
            world.actors[me].doing = Some(Doing { in_doubt: true, ..doing });
        }
        match fate {
            RequestFate::Answered => {}
            RequestFate::AnswerLost => {
                world.lost_answers -= 1;
                self.perform(world, me, request);
                return Some(());
            }
            RequestFate::Late => {
                world.late_left -= 1;
                world.late.push((me, request));
                // A removal is sent once, without waiting for its answer.
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

    /// A conditional put, with the read that follows a refusal.
    fn put(
        &self,
        world: &mut IndexWorld,
        me: usize,
        request: Request,
        to: Small,
        plan: &[Request],
    ) -> Option<()> {
        let was_written = world.authors[usize::from(to.rev)] == Some((me, to));
        let stands = world.object.is_some_and(|object| object.rev == to.rev);
        if was_written && stands || !was_written && self.perform(world, me, request) {
            return Self::made(world, me, plan);
        }
        let doing = world.actors[me].doing?;
        if was_written {
            // Other actors have written later revisions and updated the entries.
            Self::end(world, me, doing.op, Some(to));
            return Some(());
        }
        if !self.has(IndexRule::RefusedRemovesNothing)
            && let Some(place) = plan.iter().position(|request| matches!(request, Request::Remove(_)))
        {
            world.actors[me].doing = Some(Doing { made: place, ..doing });
            return Some(());
        }
        self.decide_again(world, me, doing);
        Some(())
    }

    fn decide_again(&self, world: &mut IndexWorld, me: usize, doing: Doing) {
        let again = Doing { seen: world.object, made: 0, ..doing };
        let is_once = matches!(doing.op, Op::Submit | Op::Bury | Op::Sweep(_) | Op::TimeOut | Op::Purge);
        if is_once || self.plan(again, world.actors[me].held).is_empty() {
            if matches!(doing.op, Op::Submit | Op::Bury) {
                // An object exists already: the task, or a tombstone.
                let is_tombstone = world.object.is_some_and(|task| task.kind == TaskState::Tombstone);
                world.denied |= is_tombstone;
                world.acknowledged |= !is_tombstone;
            }
            world.actors[me].doing = None;
            world.actors[me].held = None;
        } else {
            world.actors[me].doing = Some(again);
        }
    }

    /// Counts a request as made; the last one ends the operation.
    fn made(world: &mut IndexWorld, me: usize, plan: &[Request]) -> Option<()> {
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

    fn end(world: &mut IndexWorld, me: usize, op: Operation, written: Option<Small>) {
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

    /// Carries out a request. Returns whether its condition held.
    fn perform(&self, world: &mut IndexWorld, by: usize, request: Request) -> bool {
        match request {
            Request::Write(pointer) => world.entries |= self.bit(pointer),
            Request::Remove(pointer) => world.entries &= !self.bit(pointer),
            Request::Put { to, on } => {
                if world.object != on && self.has(IndexRule::OnCondition) {
                    return false;
                }
                let had_waited = world.object.is_some_and(|task| task.kind == TaskState::Waiting(Due::Later));
                if had_waited && matches!(to.kind, TaskState::Running { .. }) {
                    world.later_until = to.rev;
                }
                world.object = Some(to);
                world.authors[usize::from(to.rev)] = Some((by, to));
                world.completed |= to.kind == TaskState::Completed;
            }
            Request::Delete => {
                world.lost |= world.object.is_some_and(|task| !task.is_final());
                world.deleted = true;
                world.object = None;
            }
        }
        true
    }

    pub(super) fn act(&self, world: &mut IndexWorld, action: IndexAction) -> Option<()> {
        match action {
            IndexAction::Start(me, op) => self.start(world, me, op)?,
            IndexAction::Go(me, fate) => self.go(world, me, fate)?,
            IndexAction::GiveUp if self.has(IndexRule::FenceOwnSubmit) => {
                let bury = Doing { op: Op::Bury, seen: None, made: 0, in_doubt: false };
                world.actors[PRODUCER].doing = Some(bury);
            }
            IndexAction::Fail => {
                let withdraw = Doing { op: Op::Withdraw, seen: None, made: 0, in_doubt: false };
                world.actors[PRODUCER].doing = Some(withdraw);
            }
            IndexAction::GiveUp => {
                world.denied = true;
                world.actors[PRODUCER].doing = None;
            }
            IndexAction::Crash(me) => {
                world.crashes -= 1;
                let left = if me == PRODUCER { 0 } else { world.actors[me].left };
                world.actors[me] = Actor { left, ..Actor::default() };
            }
            IndexAction::Land(number) => {
                let (by, request) = world.late.remove(number);
                self.perform(world, by, request);
            }
        }
        Some(())
    }
}
