//! The steps of a counterexample in words.

use super::small::{Due, SmallEntry, TaskState};
use super::{
    IndexAction, IndexModel, IndexRule, IndexWorld, OPERATOR, Op, Operation, PRODUCER, PURGE, Request,
    RequestFate, WORKERS,
};
use crate::model::DescribeAction;

impl DescribeAction for IndexModel {
    fn describe(&self, world: &IndexWorld, action: &IndexAction) -> String {
        match action {
            IndexAction::Start(me, op) => format!("{} begins to {}", name(*me), describe_op(*op)),
            IndexAction::Send(me, fate) => format!("{} {}", name(*me), self.describe_send(world, *me, *fate)),
            IndexAction::GiveUp => "producer abandons its submit".into(),
            IndexAction::Fail => "producer's put of the task fails".into(),
            IndexAction::Crash(me) => format!("{} crashes", name(*me)),
            IndexAction::Deliver(number) => {
                format!("the delayed request arrives: {}", describe_request(world.late[*number].1))
            }
        }
    }
}

impl IndexModel {
    fn describe_send(&self, world: &IndexWorld, me: usize, fate: RequestFate) -> String {
        let actor = world.actors[me];
        let request =
            actor.progress.and_then(|progress| self.plan(progress, actor.held).get(progress.sent).copied());
        let Some(request) = request else { return "continues".into() };
        let holds = match request {
            Request::Put { on, .. } => world.object == on,
            _ => true,
        };
        let how = match fate {
            RequestFate::Answered if !holds && self.has(IndexRule::OnCondition) => ": refused",
            RequestFate::Answered => "",
            RequestFate::AnswerLost => ": the answer is lost",
            RequestFate::Late => ": the request is delayed",
        };
        format!("{}{how}", describe_request(request))
    }
}

fn describe_request(request: Request) -> String {
    match request {
        Request::Write(entry) => format!("writes {}", describe_entry(entry)),
        Request::Remove(entry) => format!("removes {}", describe_entry(entry)),
        Request::Put { to, .. } => {
            let kind = match to.kind {
                TaskState::Waiting(Due::Soon) => "pending",
                TaskState::Waiting(Due::Later) => "pending, due later",
                TaskState::Running { cancel: false } => "running",
                TaskState::Running { cancel: true } => "running, cancel requested",
                TaskState::Completed => "completed",
                TaskState::Failed => "failed",
                TaskState::Cancelled => "cancelled",
                TaskState::Tombstone => "tombstone",
                TaskState::Purged => "purged",
            };
            format!("puts revision {}, {kind}", to.rev)
        }
        Request::Delete => "deletes the task".into(),
    }
}

fn describe_entry(entry: SmallEntry) -> String {
    let index = if entry.is_lease { "lease" } else { "ready" };
    format!("the {index} entry of revision {}", entry.rev)
}

fn name(me: usize) -> String {
    match me {
        PRODUCER => "producer".into(),
        OPERATOR => "operator".into(),
        PURGE => "purge".into(),
        worker => format!("worker {}", worker + 1 - WORKERS),
    }
}

fn describe_op(op: Operation) -> String {
    match op {
        Op::Submit => "submit".into(),
        Op::Fence => "fence its submit".into(),
        Op::Withdraw => "remove the entry of its submit".into(),
        Op::Claim { holder: true } => "claim as the shard's holder".into(),
        Op::Claim { holder: false } => "claim".into(),
        Op::Renew => "renew".into(),
        Op::Complete => "complete".into(),
        Op::Fail => "fail with a retry".into(),
        Op::FailPermanently => "fail without a retry".into(),
        Op::Cancel => "cancel".into(),
        Op::Retry => "retry".into(),
        Op::Reschedule(Due::Soon) => "reschedule to an earlier time".into(),
        Op::Reschedule(Due::Later) => "reschedule to a later time".into(),
        Op::Purge => "mark as purged".into(),
        Op::Delete => "delete".into(),
        Op::Sweep(entry) => format!("clean up {}", describe_entry(entry)),
        Op::TimeOut => "time out".into(),
    }
}
