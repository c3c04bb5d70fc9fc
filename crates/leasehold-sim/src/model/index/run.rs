//! Transitions of the model: each request is carried out, refused and read back, lost or delayed, and its actor
//! continues.

use super::small::{Due, SmallTask, TaskState};
use super::{
    Actor, IndexAction, IndexModel, IndexRule, IndexWorld, Op, Operation, PRODUCER, Progress, Request,
    RequestFate, WorkerClaim,
};

impl IndexModel {
    fn start(&self, world: &mut IndexWorld, me: usize, op: Operation) -> Option<()> {
        let actor = world.actors[me];
        let is_settlement = matches!(op, Op::Renew | Op::Complete | Op::Fail | Op::FailPermanently);
        let base = if is_settlement { Some(actor.held?.task) } else { world.object };
        let base = base.filter(|_| op != Op::Submit);
        let progress = Progress { op, base, sent: 0, in_doubt: false };
        if self.plan(progress, actor.held).is_empty() {
            return None;
        }
        world.actors[me] = Actor { progress: Some(progress), left: actor.left.saturating_sub(1), ..actor };
        Some(())
    }

    fn send(&self, world: &mut IndexWorld, me: usize, fate: RequestFate) -> Option<()> {
        let Actor { progress, held, .. } = world.actors[me];
        let progress = progress?;
        let plan = self.plan(progress, held);
        let request = *plan.get(progress.sent)?;
        if fate != RequestFate::Answered
            && progress.op == Op::Submit
            && matches!(request, Request::Put { .. })
        {
            world.actors[me].progress = Some(Progress { in_doubt: true, ..progress });
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
                    Self::count_sent(world, me, &plan)
                } else {
                    Some(())
                };
            }
        }
        if let Request::Put { to, .. } = request {
            return self.put(world, me, request, to, &plan);
        }
        self.perform(world, me, request);
        Self::count_sent(world, me, &plan)
    }

    /// A conditional put, with the read that follows a refusal.
    fn put(
        &self,
        world: &mut IndexWorld,
        me: usize,
        request: Request,
        to: SmallTask,
        plan: &[Request],
    ) -> Option<()> {
        let was_written = world.authors[usize::from(to.rev)] == Some((me, to));
        let is_current = world.object.is_some_and(|object| object.rev == to.rev);
        if was_written && is_current || !was_written && self.perform(world, me, request) {
            return Self::count_sent(world, me, plan);
        }
        let progress = world.actors[me].progress?;
        if was_written {
            // Other actors have written later revisions and updated the entries.
            Self::end(world, me, progress.op, Some(to));
            return Some(());
        }
        if !self.has(IndexRule::RefusedRemovesNothing)
            && let Some(place) = plan.iter().position(|request| matches!(request, Request::Remove(_)))
        {
            world.actors[me].progress = Some(Progress { sent: place, ..progress });
            return Some(());
        }
        self.decide_again(world, me, progress);
        Some(())
    }

    fn decide_again(&self, world: &mut IndexWorld, me: usize, progress: Progress) {
        let again = Progress { base: world.object, sent: 0, ..progress };
        let is_once = matches!(progress.op, Op::Submit | Op::Fence | Op::Sweep(_) | Op::TimeOut | Op::Purge);
        if is_once || self.plan(again, world.actors[me].held).is_empty() {
            if matches!(progress.op, Op::Submit | Op::Fence) {
                // An object exists already: the task, or a tombstone.
                let is_tombstone = world.object.is_some_and(|task| task.kind == TaskState::Tombstone);
                world.denied |= is_tombstone;
                world.acknowledged |= !is_tombstone;
            }
            world.actors[me].progress = None;
            world.actors[me].held = None;
        } else {
            world.actors[me].progress = Some(again);
        }
    }

    /// Counts a request as made; the last one ends the operation.
    fn count_sent(world: &mut IndexWorld, me: usize, plan: &[Request]) -> Option<()> {
        let progress = world.actors[me].progress?;
        if progress.sent + 1 < plan.len() {
            world.actors[me].progress = Some(Progress { sent: progress.sent + 1, ..progress });
            return Some(());
        }
        let written = plan.iter().find_map(|request| match request {
            Request::Put { to, .. } => Some(*to),
            _ => None,
        });
        Self::end(world, me, progress.op, written);
        Some(())
    }

    fn end(world: &mut IndexWorld, me: usize, op: Operation, written: Option<SmallTask>) {
        let base = world.actors[me].progress.and_then(|progress| progress.base);
        let actor = &mut world.actors[me];
        actor.progress = None;
        match (op, written) {
            (Op::Submit, _) => world.acknowledged = true,
            (Op::Fence | Op::Withdraw, _) => world.denied = true,
            (Op::Claim { holder }, Some(task)) => {
                let entry =
                    if holder { base.and_then(SmallTask::required_entry) } else { task.required_entry() };
                actor.held = Some(WorkerClaim { task, entry });
            }
            (Op::Renew, Some(task)) => actor.held = actor.held.map(|held| WorkerClaim { task, ..held }),
            (Op::Complete | Op::Fail | Op::FailPermanently, _) => actor.held = None,
            _ => {}
        }
    }

    /// Carries out a request. Returns whether its condition held.
    fn perform(&self, world: &mut IndexWorld, by: usize, request: Request) -> bool {
        match request {
            Request::Write(entry) => world.entries |= self.bit(entry),
            Request::Remove(entry) => world.entries &= !self.bit(entry),
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
            IndexAction::Send(me, fate) => self.send(world, me, fate)?,
            IndexAction::GiveUp if self.has(IndexRule::FenceOwnSubmit) => {
                let fence = Progress { op: Op::Fence, base: None, sent: 0, in_doubt: false };
                world.actors[PRODUCER].progress = Some(fence);
            }
            IndexAction::Fail => {
                let withdraw = Progress { op: Op::Withdraw, base: None, sent: 0, in_doubt: false };
                world.actors[PRODUCER].progress = Some(withdraw);
            }
            IndexAction::GiveUp => {
                world.denied = true;
                world.actors[PRODUCER].progress = None;
            }
            IndexAction::Crash(me) => {
                world.crashes -= 1;
                let left = if me == PRODUCER { 0 } else { world.actors[me].left };
                world.actors[me] = Actor { left, ..Actor::default() };
            }
            IndexAction::Deliver(number) => {
                let (by, request) = world.late.remove(number);
                self.perform(world, by, request);
            }
        }
        Some(())
    }
}
