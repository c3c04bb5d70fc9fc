//! The steps of a counterexample in words.

use super::{LeaseAction, LeaseModel, LeaseWorld, Request, RequestFate};
use crate::model::DescribeAction;

impl DescribeAction for LeaseModel {
    fn describe(&self, world: &LeaseWorld, action: &LeaseAction) -> String {
        match action {
            LeaseAction::Tick => "time passes".into(),
            LeaseAction::Take(me) => format!("{} decides to take the lease", name(*me)),
            LeaseAction::Renew(me) => format!("{} decides to renew the lease", name(*me)),
            LeaseAction::Release(me) => format!("{} decides to release the lease", name(*me)),
            LeaseAction::Send(me, fate) => format!("{} {}", name(*me), self.describe_send(world, *me, *fate)),
            LeaseAction::GiveUp(me) => format!("{} gives up waiting", name(*me)),
            LeaseAction::Crash(me) => format!("{} crashes and restarts", name(*me)),
            LeaseAction::Deliver(number) => {
                format!("the delayed request arrives: {}", describe_request(world.late[*number]))
            }
        }
    }
}

impl LeaseModel {
    fn describe_send(&self, world: &LeaseWorld, me: usize, fate: RequestFate) -> String {
        let Some(request) = self.request(world.processes[me].phase) else { return "continues".into() };
        let holds = match request {
            Request::Put { on, always, .. } => always || world.object.map(|object| object.write) == on,
            Request::Delete => true,
        };
        let how = match fate {
            RequestFate::Answered if !holds => ": refused",
            RequestFate::Answered => "",
            RequestFate::AnswerLost => ": the answer is lost",
            RequestFate::Late => ": the request is delayed",
        };
        format!("{}{how}", describe_request(request))
    }
}

fn describe_request(request: Request) -> String {
    match request {
        Request::Put { to, .. } if to.expires == 0 => format!("puts epoch {}, released", to.epoch),
        Request::Put { to, .. } => format!("puts epoch {}", to.epoch),
        Request::Delete => "deletes the lease".into(),
    }
}

fn name(me: usize) -> char {
    ['A', 'B', 'C'][me]
}
