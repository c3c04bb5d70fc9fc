//! The steps that are possible in a state.

use super::small::{self, CommitKind, ModelCommit};
use super::{
    Broker, BucketAction, BucketModel, BucketRule, BucketWorld, Client, MailObject, Phase, RequestFate,
};

impl BucketModel {
    fn is_free(&self, world: &BucketWorld, slot: usize) -> bool {
        slot < self.slots.into() && world.log[slot].is_empty()
    }

    /// Adds the fates of a request. A fault of a request that is refused anyway would change nothing.
    fn fates(world: &BucketWorld, is_written: bool, mut add: impl FnMut(RequestFate)) {
        add(RequestFate::Answered);
        if is_written && world.lost_answers > 0 {
            add(RequestFate::AnswerLost);
        }
        if is_written && world.late_left > 0 {
            add(RequestFate::Late);
        }
    }

    pub(super) fn broker_actions(&self, world: &BucketWorld, me: usize, actions: &mut Vec<BucketAction>) {
        let broker = &world.brokers[me];
        match broker.phase {
            Phase::Following => {
                if world.lease.is_none_or(|lease| lease.epoch < self.epoch_max) {
                    Self::fates(world, true, |fate| actions.push(BucketAction::Take(me, fate)));
                }
            }
            Phase::Taking { on, .. } => {
                Self::fates(world, world.lease == on, |fate| actions.push(BucketAction::Take(me, fate)));
            }
            Phase::Replaying => {
                let is_free = self.is_free(world, broker.state.len());
                if is_free || broker.state.len() < self.slots.into() {
                    Self::fates(world, is_free, |fate| actions.push(BucketAction::Replay(me, fate)));
                }
            }
            Phase::Confirming => actions.push(BucketAction::Confirm(me)),
            Phase::Serving => self.serving_actions(world, me, actions),
        }
    }

    fn serving_actions(&self, world: &BucketWorld, me: usize, actions: &mut Vec<BucketAction>) {
        let broker = &world.brokers[me];
        let slot = broker.state.len();
        match broker.pending {
            [None, _] if slot < self.slots.into() => {
                for of_mail in [false, true] {
                    if !of_mail || self.applies_mail(world, broker) {
                        Self::fates(world, self.is_free(world, slot), |fate| {
                            actions.push(BucketAction::Commit { me, place: 0, of_mail, fate });
                        });
                    }
                }
            }
            [None, _] => {}
            [Some(_), _] => {
                let places = if self.has(BucketRule::OnePut) { 1 } else { 2 };
                for place in (0..places).filter(|place| slot + place < self.slots.into()) {
                    Self::fates(world, self.is_free(world, slot + place), |fate| {
                        actions.push(BucketAction::Commit { me, place, of_mail: false, fate });
                    });
                }
            }
        }
        let floor = broker.lease.map_or(0, |lease| lease.snapshot.len());
        if broker.snapshot.is_some() || slot > floor {
            let is_written = world.lease == broker.lease && self.has(BucketRule::FloorInLease);
            Self::fates(world, is_written, |fate| actions.push(BucketAction::Snapshot(me, fate)));
        }
        for (slot, commit) in broker.state.commits().enumerate().take(floor) {
            let may_go =
                !self.has(BucketRule::FencesStay) || ModelCommit::from_byte(commit).kind != CommitKind::Fence;
            if may_go && !world.log[slot].is_empty() {
                actions.push(BucketAction::Delete(me, slot));
            }
        }
        let is_applied = small::mails(broker.state) > 0;
        let is_sent = broker.pending[0].is_some_and(|commit| commit.kind == CommitKind::Mail);
        if world.mail.object != MailObject::Absent
            && (is_applied || is_sent && !self.has(BucketRule::MailAfterCommit))
        {
            actions.push(BucketAction::DeleteMail(me));
        }
    }

    /// True if the broker applies the mail that it finds.
    fn applies_mail(&self, world: &BucketWorld, broker: &Broker) -> bool {
        let is_accepted = match world.mail.object {
            MailObject::Absent => false,
            MailObject::InTime => true,
            MailObject::TooLate => !self.has(BucketRule::MailInTime),
        };
        let epoch = broker.lease.map_or(0, |lease| lease.epoch);
        let is_known = broker.state.commits().map(ModelCommit::from_byte).any(|commit| {
            // Without the rule a broker still remembers what it has applied itself.
            commit.kind == CommitKind::Mail && (self.has(BucketRule::MailIsTask) || commit.epoch == epoch)
        });
        is_accepted && (!is_known || world.mail.is_forgotten)
    }

    pub(super) fn mail_actions(&self, world: &BucketWorld, actions: &mut Vec<BucketAction>) {
        if !self.mail {
            return;
        }
        let mail = &world.mail;
        // A client gives up after an hour.
        if mail.client != Client::Acknowledged && !mail.is_hour_over {
            Self::fates(world, true, |fate| actions.push(BucketAction::SendMail(fate)));
        }
        if mail.client != Client::Unsent && !mail.is_hour_over {
            actions.push(BucketAction::HourPasses);
        }
        // Request ids are kept for two hours, and mail is listed every minute: what was applied is deleted by then.
        let is_applied = small::mails(world.acknowledged) > 0;
        if mail.is_hour_over && is_applied && mail.object == MailObject::Absent && !mail.is_forgotten {
            actions.push(BucketAction::Forget);
        }
    }
}
