//! Requests of each operation, in the queue's own order unless a rule is left out.

use super::small::{SmallEntry, SmallEvent, SmallTask, TaskState};
use super::{IndexModel, IndexRule, Op, Operation, Progress, Request, WorkerClaim};

impl IndexModel {
    /// Requests of an operation, in order; empty if there is nothing to do.
    pub(super) fn plan(&self, progress: Progress, held: Option<WorkerClaim>) -> Vec<Request> {
        let Progress { op, base, .. } = progress;
        let put = |to: SmallTask| Request::Put { to, on: base };
        match (op, base) {
            (Op::Submit, _) => {
                let write = SmallTask::FIRST.required_entry().map(Request::Write);
                let requests = write.into_iter().chain([put(SmallTask::FIRST)]);
                if self.has(IndexRule::SubmitEntryFirst) { requests.collect() } else { reversed(requests) }
            }
            (Op::Fence, _) => vec![put(SmallTask::TOMBSTONE)],
            (Op::Withdraw, _) => SmallTask::FIRST.required_entry().map(Request::Remove).into_iter().collect(),
            (Op::Sweep(found), _) => self.sweep(found, base),
            (_, None) => Vec::new(),
            (Op::Delete, Some(task)) => {
                let may_go = task.kind == TaskState::Purged
                    || !self.has(IndexRule::MarkBeforeDelete) && task.is_final();
                if may_go { vec![Request::Delete] } else { Vec::new() }
            }
            (_, Some(task)) => self.change(op, task, held),
        }
    }

    fn change(&self, op: Operation, from: SmallTask, held: Option<WorkerClaim>) -> Vec<Request> {
        let claim = held.map_or(0, |held| held.task.claim);
        let Some(step_result) =
            from.apply(event(op, claim)).filter(|step_result| step_result.task.rev <= self.rev_max)
        else {
            return Vec::new();
        };
        let put = Request::Put { to: step_result.task, on: Some(from) };
        let (before, after) = (step_result.before.map(Request::Write), step_result.after.map(Request::Write));
        let remove = step_result.remove.map(Request::Remove);
        // A leftover of a renewal, or the ready entry that led a holder to the task.
        let other =
            held.and_then(|held| held.entry).map(Request::Remove).filter(|other| Some(*other) != remove);
        let all = match op {
            Op::Claim { holder: true } if self.has(IndexRule::HolderLeavesEntry) => return vec![put],
            Op::Claim { holder: true } => [Some(put), remove, None, None, None],
            Op::Renew | Op::Cancel => [before, Some(put), after, remove, None],
            _ if !self.has(IndexRule::EntryFirst) => [Some(put), before, after, remove, other],
            _ if !self.has(IndexRule::NewBeforeOld) => [before, Some(put), remove, other, after],
            _ => [before, Some(put), after, remove, other],
        };
        all.into_iter().flatten().collect()
    }

    /// Index cleanup: rules 2 and 4.
    fn sweep(&self, found: SmallEntry, base: Option<SmallTask>) -> Vec<Request> {
        let (remove, fence) = (Request::Remove(found), self.has(IndexRule::FenceBeforeRemoval));
        match base {
            Some(task) if found.rev <= task.rev => {
                let required_entry = task.required_entry();
                if required_entry.is_some_and(|required_entry| self.bit(required_entry) == self.bit(found)) {
                    return Vec::new();
                }
                let cover =
                    required_entry.map(Request::Write).filter(|_| self.has(IndexRule::CoverThenRemove));
                cover.into_iter().chain([remove]).collect()
            }
            None if found.rev > 1 => vec![remove],
            None if fence => vec![Request::Put { to: SmallTask::TOMBSTONE, on: None }, remove],
            Some(task) if fence && task.is_final() => match task.apply(SmallEvent::Fence) {
                Some(step_result) if step_result.task.rev <= self.rev_max => {
                    vec![Request::Put { to: step_result.task, on: Some(task) }, remove]
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

fn event(op: Operation, claim: u8) -> SmallEvent {
    match op {
        Op::Claim { .. } => SmallEvent::Claim,
        Op::Renew => SmallEvent::Renew(claim),
        Op::Complete => SmallEvent::Complete(claim),
        Op::Fail => SmallEvent::Fail(claim),
        Op::FailPermanently => SmallEvent::FailPermanently(claim),
        Op::Cancel => SmallEvent::Cancel,
        Op::Retry => SmallEvent::Retry,
        Op::Reschedule(due) => SmallEvent::Reschedule(due),
        Op::Purge => SmallEvent::Purge,
        Op::TimeOut => SmallEvent::TimeOut,
        Op::Submit | Op::Fence | Op::Withdraw | Op::Delete | Op::Sweep(_) => SmallEvent::Fence,
    }
}
