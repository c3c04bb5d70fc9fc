//! The steps of a counterexample in words.

use super::{Action, Fate, LeaseModel, Request, World};
use crate::model::Told;

impl Told for LeaseModel {
    fn tell(&self, world: &World, action: &Action) -> String {
        match action {
            Action::Tick => "time passes".into(),
            Action::Take(me) => format!("{} decides to take", name(*me)),
            Action::Renew(me) => format!("{} decides to renew", name(*me)),
            Action::Release(me) => format!("{} decides to release", name(*me)),
            Action::Send(me, fate) => format!("{} {}", name(*me), self.send_told(world, *me, *fate)),
            Action::GiveUp(me) => format!("{} gives up waiting", name(*me)),
            Action::Crash(me) => format!("{} crashes and starts anew", name(*me)),
            Action::Land(number) => format!("it lands: {}", request_told(world.late[*number])),
        }
    }
}

impl LeaseModel {
    fn send_told(&self, world: &World, me: usize, fate: Fate) -> String {
        let Some(request) = self.request(world.processes[me].phase) else { return "goes on".into() };
        let holds = match request {
            Request::Put { on, always, .. } => always || world.object.map(|object| object.write) == on,
            Request::Delete => true,
        };
        let how = match fate {
            Fate::Answered if !holds => ": refused",
            Fate::Answered => "",
            Fate::AnswerLost => ": its answer is lost",
            Fate::Late => ": it stays under way",
        };
        format!("{}{how}", request_told(request))
    }
}

fn request_told(request: Request) -> String {
    match request {
        Request::Put { to, .. } if to.expires == 0 => format!("puts epoch {}, released", to.epoch),
        Request::Put { to, .. } => format!("puts epoch {}", to.epoch),
        Request::Delete => "deletes the lease".into(),
    }
}

fn name(me: usize) -> char {
    ['A', 'B', 'C'][me]
}
