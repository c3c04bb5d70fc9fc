//! The steps of a counterexample in words.

use super::small::{CommitKind, ModelCommit, ModelLease};
use super::{
    Broker, BucketAction, BucketModel, BucketRule, BucketWorld, CommitHistory, MailObject, Phase, Request,
};
use crate::model::{DescribeAction, RequestFate};

impl DescribeAction for BucketModel {
    fn describe(&self, world: &BucketWorld, action: &BucketAction) -> String {
        match action {
            BucketAction::Take(me, fate) => {
                let epoch = match world.brokers[*me].phase {
                    Phase::Taking { to, .. } => to.epoch,
                    _ => world.lease.map_or(1, |lease| lease.epoch + 1),
                };
                format!("{} takes the lease with epoch {epoch}{}", name(*me), outcome(*fate))
            }
            BucketAction::Replay(me, fate) => describe_replay(world, *me, *fate),
            BucketAction::Confirm(me) if world.is_holder(&world.brokers[*me]) => {
                format!("{} confirms its lease", name(*me))
            }
            BucketAction::Confirm(me) => format!("{} finds that its lease was taken over", name(*me)),
            BucketAction::Commit { me, place, of_mail, fate } => {
                self.describe_commit(world, *me, *place, *of_mail, *fate)
            }
            BucketAction::Snapshot(me, fate) => self.describe_snapshot(world, *me, *fate),
            BucketAction::Delete(me, slot) => format!("{} deletes slot {}", name(*me), slot + 1),
            BucketAction::SendMail(fate) => format!("the client puts its mail{}", outcome(*fate)),
            BucketAction::DeleteMail(me) => format!("{} deletes the mail", name(*me)),
            BucketAction::HourPasses => "an hour passes".into(),
            BucketAction::Forget => "the request id of the mail is forgotten".into(),
            BucketAction::Deliver(number) => {
                format!("the delayed request arrives: {}", describe_request(world, world.late[*number]))
            }
        }
    }
}

impl BucketModel {
    fn describe_snapshot(&self, world: &BucketWorld, me: usize, fate: RequestFate) -> String {
        let broker = &world.brokers[me];
        let covered = slots(broker.state.len());
        let place = if self.has(BucketRule::FloorInLease) { "in its lease" } else { "outside the lease" };
        let is_refused = self.has(BucketRule::FloorInLease)
            && fate == RequestFate::Answered
            && world.lease != broker.lease
            && world.lease != broker.snapshot;
        let how = if is_refused { ": refused, and stops" } else { outcome(fate) };
        format!("{} names a snapshot of {covered} {place}{how}", name(me))
    }

    fn describe_commit(
        &self,
        world: &BucketWorld,
        me: usize,
        place: usize,
        of_mail: bool,
        fate: RequestFate,
    ) -> String {
        let broker = &world.brokers[me];
        let slot = broker.state.len() + place;
        let is_resent = broker.pending[place].is_some();
        let what = match (is_resent, of_mail) {
            (true, _) if !self.has(BucketRule::SameBytes) && world.log[slot].is_empty() => "puts other bytes",
            (true, _) => "puts its commit again",
            (false, true) => "puts a commit that applies the mail",
            (false, false) => "puts a commit",
        };
        let how = if fate != RequestFate::Answered && !self.has(BucketRule::ReadBack) {
            " and acknowledges it without an answer"
        } else if fate != RequestFate::Answered {
            outcome(fate)
        } else if world.log[slot].is_empty() {
            " and acknowledges it"
        } else if world.log[slot]
            .last()
            .map(ModelCommit::from_byte)
            .is_some_and(|found| is_newer(found, broker))
        {
            ": refused, finds a newer epoch and stops"
        } else {
            ": refused, and reads the slot"
        };
        format!("{} {what} in slot {}{how}", name(me), slot + 1)
    }
}

fn is_newer(found: ModelCommit, broker: &Broker) -> bool {
    broker.lease.is_some_and(|lease| found.epoch > lease.epoch)
}

fn describe_replay(world: &BucketWorld, me: usize, fate: RequestFate) -> String {
    let slot = world.brokers[me].state.len();
    let (name, number) = (name(me), slot + 1);
    match world.log[slot].last().map(ModelCommit::from_byte) {
        None => format!("{name} puts a fence in slot {number}{}", outcome(fate)),
        Some(ModelCommit { epoch, kind: CommitKind::Fence }) => {
            format!("{name} reads slot {number}: a fence of epoch {epoch}")
        }
        Some(ModelCommit { epoch, .. }) => format!("{name} reads slot {number}: a commit of epoch {epoch}"),
    }
}

fn describe_request(world: &BucketWorld, request: Request) -> String {
    match request {
        Request::Lease { to: ModelLease { epoch, snapshot, .. }, .. } => {
            format!("the lease with epoch {epoch} and a snapshot of {}", slots(snapshot.len()))
        }
        Request::Slot(content) => describe_slot(content),
        Request::Mail if world.mail.object == MailObject::Absent => "the mail".into(),
        Request::Mail => "the mail, refused".into(),
    }
}

fn describe_slot(content: CommitHistory) -> String {
    let kind = content.last().map(|byte| ModelCommit::from_byte(byte).kind);
    let what = if kind == Some(CommitKind::Fence) { "the fence" } else { "the commit" };
    format!("{what} in slot {}", content.len())
}

fn slots(count: usize) -> String {
    match count {
        0 => "no slot".into(),
        1 => "slot 1".into(),
        _ => format!("slots 1 to {count}"),
    }
}

fn outcome(fate: RequestFate) -> &'static str {
    match fate {
        RequestFate::Answered => "",
        RequestFate::AnswerLost => ": the answer is lost",
        RequestFate::Late => ": the request is delayed",
    }
}

fn name(me: usize) -> char {
    ['A', 'B', 'C'][me]
}
