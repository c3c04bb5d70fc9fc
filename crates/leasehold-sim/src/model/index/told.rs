//! The steps of a counterexample in words.

use super::small::{Due, Pointer, TaskState};
use super::{
    IndexAction, IndexModel, IndexRule, IndexWorld, JANITOR, OPERATOR, Op, Operation, PRODUCER, Request,
    RequestFate, WORKERS,
};
use crate::model::Told;

impl Told for IndexModel {
    fn tell(&self, world: &IndexWorld, action: &IndexAction) -> String {
        match action {
            IndexAction::Start(me, op) => format!("{} begins to {}", name(*me), op_told(*op)),
            IndexAction::Go(me, fate) => format!("{} {}", name(*me), self.go_told(world, *me, *fate)),
            IndexAction::GiveUp => "producer abandons its submit".into(),
            IndexAction::Fail => "producer's put of the task fails".into(),
            IndexAction::Crash(me) => format!("{} crashes", name(*me)),
            IndexAction::Land(number) => {
                format!("the delayed request arrives: {}", request_told(world.late[*number].1))
            }
        }
    }
}

impl IndexModel {
    fn go_told(&self, world: &IndexWorld, me: usize, fate: RequestFate) -> String {
        let actor = world.actors[me];
        let request = actor.doing.and_then(|doing| self.plan(doing, actor.held).get(doing.made).copied());
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
        format!("{}{how}", request_told(request))
    }
}

fn request_told(request: Request) -> String {
    match request {
        Request::Write(pointer) => format!("writes {}", pointer_told(pointer)),
        Request::Remove(pointer) => format!("removes {}", pointer_told(pointer)),
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

fn pointer_told(pointer: Pointer) -> String {
    let index = if pointer.is_lease { "lease" } else { "ready" };
    format!("the {index} entry of revision {}", pointer.rev)
}

fn name(me: usize) -> String {
    match me {
        PRODUCER => "producer".into(),
        OPERATOR => "operator".into(),
        JANITOR => "janitor".into(),
        worker => format!("worker {}", worker + 1 - WORKERS),
    }
}

fn op_told(op: Operation) -> String {
    match op {
        Op::Submit => "submit".into(),
        Op::Bury => "fence its submit".into(),
        Op::Withdraw => "remove the entry of its submit".into(),
        Op::Claim { owner: true } => "claim as the shard's owner".into(),
        Op::Claim { owner: false } => "claim".into(),
        Op::Renew => "renew".into(),
        Op::Complete => "complete".into(),
        Op::Fail => "fail with a retry".into(),
        Op::FailForGood => "fail without a retry".into(),
        Op::Cancel => "cancel".into(),
        Op::Retry => "retry".into(),
        Op::Reschedule(Due::Soon) => "reschedule to an earlier time".into(),
        Op::Reschedule(Due::Later) => "reschedule to a later time".into(),
        Op::Purge => "mark as purged".into(),
        Op::Delete => "delete".into(),
        Op::Sweep(pointer) => format!("clean up {}", pointer_told(pointer)),
        Op::TimeOut => "time out".into(),
    }
}
