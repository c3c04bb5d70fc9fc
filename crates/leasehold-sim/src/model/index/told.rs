//! The steps of a counterexample in words.

use super::small::{Due, Kind, Pointer};
use super::{
    Action, Fate, IndexModel, JANITOR, OPERATOR, Op, Operation, PRODUCER, Request, Rule, WORKERS, World,
};
use crate::model::Told;

impl Told for IndexModel {
    fn tell(&self, world: &World, action: &Action) -> String {
        match action {
            Action::Start(me, op) => format!("{} begins to {}", name(*me), op_told(*op)),
            Action::Go(me, fate) => format!("{} {}", name(*me), self.go_told(world, *me, *fate)),
            Action::GiveUp => "producer gives up".into(),
            Action::Fail => "producer's put of the task fails".into(),
            Action::Crash(me) => format!("{} crashes", name(*me)),
            Action::Land(number) => format!("it lands: {}", request_told(world.late[*number].1)),
        }
    }
}

impl IndexModel {
    fn go_told(&self, world: &World, me: usize, fate: Fate) -> String {
        let actor = world.actors[me];
        let request = actor.doing.and_then(|doing| self.plan(doing, actor.held).get(doing.made).copied());
        let Some(request) = request else { return "goes on".into() };
        let holds = match request {
            Request::Put { on, .. } => world.object == on,
            _ => true,
        };
        let how = match fate {
            Fate::Answered if !holds && self.has(Rule::OnCondition) => ": refused",
            Fate::Answered => "",
            Fate::AnswerLost => ": its answer is lost",
            Fate::Late => ": it stays under way",
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
                Kind::Waiting(Due::Soon) => "pending",
                Kind::Waiting(Due::Later) => "pending for later",
                Kind::Running { cancel: false } => "running",
                Kind::Running { cancel: true } => "running, to be cancelled",
                Kind::Completed => "completed",
                Kind::Failed => "failed",
                Kind::Cancelled => "cancelled",
                Kind::Tombstone => "tombstone",
                Kind::Purged => "purged",
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
        Op::Fail => "fail with another attempt".into(),
        Op::FailForGood => "fail for good".into(),
        Op::Cancel => "cancel".into(),
        Op::Retry => "retry".into(),
        Op::Reschedule(Due::Soon) => "reschedule to earlier".into(),
        Op::Reschedule(Due::Later) => "reschedule to later".into(),
        Op::Purge => "mark as purged".into(),
        Op::Delete => "delete".into(),
        Op::Sweep(pointer) => format!("sweep {}", pointer_told(pointer)),
        Op::TimeOut => "time out".into(),
    }
}
