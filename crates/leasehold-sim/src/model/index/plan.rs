//! Requests of each operation, in the queue's own order unless a rule is left out.

use super::small::{Happens, Pointer, Small, TaskState};
use super::{Doing, Held, IndexModel, IndexRule, Op, Operation, Request};

impl IndexModel {
    /// Requests of an operation, in order; empty if there is nothing to do.
    pub(super) fn plan(&self, doing: Doing, held: Option<Held>) -> Vec<Request> {
        let Doing { op, seen, .. } = doing;
        let put = |to: Small| Request::Put { to, on: seen };
        match (op, seen) {
            (Op::Submit, _) => {
                let write = Small::FIRST.called_for().map(Request::Write);
                let requests = write.into_iter().chain([put(Small::FIRST)]);
                if self.has(IndexRule::PointerFirst) { requests.collect() } else { reversed(requests) }
            }
            (Op::Bury, _) => vec![put(Small::TOMBSTONE)],
            (Op::Withdraw, _) => Small::FIRST.called_for().map(Request::Remove).into_iter().collect(),
            (Op::Sweep(met), _) => self.sweep(met, seen),
            (_, None) => Vec::new(),
            (Op::Delete, Some(task)) => {
                let may_go = task.kind == TaskState::Purged
                    || !self.has(IndexRule::MarkBeforeDelete) && task.is_final();
                if may_go { vec![Request::Delete] } else { Vec::new() }
            }
            (_, Some(task)) => self.change(op, task, held),
        }
    }

    fn change(&self, op: Operation, from: Small, held: Option<Held>) -> Vec<Request> {
        let claim = held.map_or(0, |held| held.seen.claim);
        let Some(moved) = from.moved(event(op, claim)).filter(|moved| moved.task.rev <= self.rev_max) else {
            return Vec::new();
        };
        let put = Request::Put { to: moved.task, on: Some(from) };
        let (before, after) = (moved.before.map(Request::Write), moved.after.map(Request::Write));
        let remove = moved.remove.map(Request::Remove);
        // A leftover of a renewal, or the ready entry that led an owner to the task.
        let other =
            held.and_then(|held| held.entry).map(Request::Remove).filter(|other| Some(*other) != remove);
        let all = match op {
            Op::Claim { owner: true } if self.has(IndexRule::OwnerLeavesEntry) => return vec![put],
            Op::Claim { owner: true } => [Some(put), remove, None, None, None],
            Op::Renew | Op::Cancel => [before, Some(put), after, remove, None],
            _ if !self.has(IndexRule::EntryFirst) => [Some(put), before, after, remove, other],
            _ if !self.has(IndexRule::NewBeforeOld) => [before, Some(put), remove, other, after],
            _ => [before, Some(put), after, remove, other],
        };
        all.into_iter().flatten().collect()
    }

    /// Index cleanup: rules 2 and 4.
    fn sweep(&self, met: Pointer, seen: Option<Small>) -> Vec<Request> {
        let (remove, fence) = (Request::Remove(met), self.has(IndexRule::FenceBeforeRemoval));
        match seen {
            Some(task) if met.rev <= task.rev => {
                let called_for = task.called_for();
                if called_for.is_some_and(|called_for| self.bit(called_for) == self.bit(met)) {
                    return Vec::new();
                }
                let cover = called_for.map(Request::Write).filter(|_| self.has(IndexRule::CoverThenSweep));
                cover.into_iter().chain([remove]).collect()
            }
            None if met.rev > 1 => vec![remove],
            None if fence => vec![Request::Put { to: Small::TOMBSTONE, on: None }, remove],
            Some(task) if fence && task.is_final() => match task.moved(Happens::Fence) {
                Some(moved) if moved.task.rev <= self.rev_max => {
                    vec![Request::Put { to: moved.task, on: Some(task) }, remove]
                }
                _ => Vec::new(),
            },
            Some(task) if !task.is_final() => Vec::new(),
            _ => vec![remove],
        }
    }
}

fn reversed(requests: impl DoubleEndedIterator<Item = Request>) -> Vec<Request> {
    requests.rev().collect()
}

fn event(op: Operation, claim: u8) -> Happens {
    match op {
        Op::Claim { .. } => Happens::Claim,
        Op::Renew => Happens::Renew(claim),
        Op::Complete => Happens::Complete(claim),
        Op::Fail => Happens::Fail(claim),
        Op::FailForGood => Happens::FailForGood(claim),
        Op::Cancel => Happens::Cancel,
        Op::Retry => Happens::Retry,
        Op::Reschedule(due) => Happens::Reschedule(due),
        Op::Purge => Happens::Purge,
        Op::TimeOut => Happens::TimeOut,
        Op::Submit | Op::Bury | Op::Withdraw | Op::Delete | Op::Sweep(_) => Happens::Fence,
    }
}
