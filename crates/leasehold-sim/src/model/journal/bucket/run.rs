//! The steps of brokers, clients and the store.

use super::small::{CommitKind, ModelCommit, ModelLease};
use super::{
    Broker, BucketAction, BucketModel, BucketRule, BucketWorld, Client, CommitHistory, MailObject, Phase,
    Request, RequestFate,
};

impl BucketModel {
    pub(super) fn act(&self, world: &mut BucketWorld, action: BucketAction) -> Option<()> {
        match action {
            BucketAction::Take(me, fate) => self.take(world, me, fate),
            BucketAction::Replay(me, fate) => self.replay(world, me, fate),
            BucketAction::Confirm(me) => self.confirm(world, me),
            BucketAction::Commit { me, place, of_mail, fate } => {
                self.commit(world, me, place, of_mail, fate);
            }
            BucketAction::Snapshot(me, fate) => self.snapshot(world, me, fate)?,
            BucketAction::Delete(_, slot) => {
                world.log[slot] = CommitHistory::default();
                world.deleted[slot] = true;
            }
            BucketAction::SendMail(fate) => self.send_mail(world, fate),
            BucketAction::DeleteMail(_) => world.mail.object = MailObject::Absent,
            BucketAction::HourPasses => world.mail.is_hour_over = true,
            BucketAction::Forget => world.mail.is_forgotten = true,
            BucketAction::Deliver(number) => {
                let request = world.late.remove(number);
                self.perform(world, request);
            }
        }
        Some(())
    }

    /// Carries out a put. Returns false if it is refused.
    fn perform(&self, world: &mut BucketWorld, request: Request) -> bool {
        match request {
            Request::Lease { mut to, on } => {
                let is_unchanged = match (world.lease, on) {
                    (Some(found), Some(on)) if !self.has(BucketRule::FloorInLease) => {
                        to.snapshot = found.snapshot;
                        found.is_same_claim(on)
                    }
                    (found, on) => found == on,
                };
                if is_unchanged {
                    world.lease = Some(to);
                }
                is_unchanged
            }
            Request::Slot(content) => {
                let slot = &mut world.log[content.len() - 1];
                let is_absent = slot.is_empty();
                if is_absent {
                    *slot = content;
                }
                is_absent
            }
            Request::Mail => {
                let is_absent = world.mail.object == MailObject::Absent;
                if is_absent {
                    let is_late = world.mail.is_hour_over;
                    world.mail.object = if is_late { MailObject::TooLate } else { MailObject::InTime };
                }
                is_absent
            }
        }
    }

    /// Sends a put. Returns true if it was written and answered.
    fn send(&self, world: &mut BucketWorld, request: Request, fate: RequestFate) -> bool {
        match fate {
            RequestFate::Answered => return self.perform(world, request),
            RequestFate::AnswerLost => {
                world.lost_answers -= 1;
                self.perform(world, request);
            }
            RequestFate::Late => {
                world.late_left -= 1;
                world.late.push(request);
            }
        }
        false
    }

    fn take(&self, world: &mut BucketWorld, me: usize, fate: RequestFate) {
        let (to, on) = if let Phase::Taking { to, on } = world.brokers[me].phase {
            (to, on)
        } else {
            let instance = u8::try_from(me).expect("the model is small");
            (ModelLease::taken(world.lease, instance), world.lease)
        };
        let was_written = self.send(world, Request::Lease { to, on }, fate);
        let is_ours = world.lease.is_some_and(|found| found.is_same_claim(to));
        world.brokers[me] = match fate {
            RequestFate::Answered if was_written || is_ours => {
                let phase = if self.has(BucketRule::ConfirmAfterFence) {
                    Phase::Replaying
                } else {
                    Phase::Confirming
                };
                Broker { phase, lease: Some(to), state: to.snapshot, ..Broker::default() }
            }
            RequestFate::Answered => Broker::default(),
            RequestFate::AnswerLost | RequestFate::Late => {
                Broker { phase: Phase::Taking { to, on }, ..Broker::default() }
            }
        };
    }

    /// Reads the next slot, or puts the fence there if it is absent.
    fn replay(&self, world: &mut BucketWorld, me: usize, fate: RequestFate) {
        let broker = world.brokers[me];
        let epoch = broker.lease.map_or(0, |lease| lease.epoch);
        let fence = broker.state.with(ModelCommit { epoch, kind: CommitKind::Fence }.byte());
        let found = world.log[broker.state.len()];
        if found.is_empty() {
            if self.send(world, Request::Slot(fence), fate) {
                self.fenced(&mut world.brokers[me], fence);
            }
            return;
        }
        let by = found.last().map_or(0, |byte| ModelCommit::from_byte(byte).epoch);
        if found == fence {
            self.fenced(&mut world.brokers[me], fence);
        } else if by >= epoch || !found.starts_with(broker.state) {
            self.stop(world, me, by < epoch);
        } else {
            world.brokers[me].state = found;
        }
    }

    fn fenced(&self, broker: &mut Broker, fence: CommitHistory) {
        broker.state = fence;
        let confirms = self.has(BucketRule::Confirm) && self.has(BucketRule::ConfirmAfterFence);
        broker.phase = if confirms { Phase::Confirming } else { Phase::Serving };
    }

    fn confirm(&self, world: &mut BucketWorld, me: usize) {
        let next = if self.has(BucketRule::ConfirmAfterFence) { Phase::Serving } else { Phase::Replaying };
        if world.is_holder(&world.brokers[me]) {
            world.brokers[me].phase = next;
        } else {
            world.brokers[me] = Broker::default();
        }
    }

    fn commit(&self, world: &mut BucketWorld, me: usize, place: usize, of_mail: bool, fate: RequestFate) {
        let broker = world.brokers[me];
        let epoch = broker.lease.map_or(0, |lease| lease.epoch);
        let before = broker.pending[..place].iter().flatten();
        let before = before.fold(broker.state, |history, commit| history.with(commit.byte()));
        let commit = match broker.pending[place] {
            Some(sent) if self.has(BucketRule::SameBytes) || !world.log[before.len()].is_empty() => sent,
            Some(sent) => ModelCommit { kind: CommitKind::OtherBytes, ..sent },
            None => ModelCommit { epoch, kind: if of_mail { CommitKind::Mail } else { CommitKind::Plain } },
        };
        let content = before.with(commit.byte());
        world.brokers[me].pending[place] = Some(commit);
        let was_written = self.send(world, Request::Slot(content), fate);
        let found = world.log[before.len()];
        let is_confirmed = was_written || fate == RequestFate::Answered && found == content;
        if is_confirmed || !self.has(BucketRule::ReadBack) {
            world.acknowledge(content);
            let broker = &mut world.brokers[me];
            broker.state = content;
            broker.pending = if place == 0 { [broker.pending[1], None] } else { [None; 2] };
        } else if fate == RequestFate::Answered {
            let by = found.last().map_or(0, |byte| ModelCommit::from_byte(byte).epoch);
            self.stop(world, me, by <= epoch);
        }
    }

    /// Drops everything. A slot that does not continue the history is reported only by the holder of the lease: for any
    /// other process it may be one that was deleted and written again by a process that has lost its lease.
    fn stop(&self, world: &mut BucketWorld, me: usize, is_unexpected: bool) {
        let is_held = world.is_holder(&world.brokers[me]) || !self.has(BucketRule::CorruptIfHeld);
        world.is_corrupt |= is_unexpected && is_held;
        world.brokers[me] = Broker::default();
    }

    fn snapshot(&self, world: &mut BucketWorld, me: usize, fate: RequestFate) -> Option<()> {
        let broker = world.brokers[me];
        let lease = broker.lease?;
        let covered = match broker.pending[0] {
            Some(sent) if !self.has(BucketRule::ConfirmedSnapshot) => broker.state.with(sent.byte()),
            _ => broker.state,
        };
        let to = broker.snapshot.unwrap_or(ModelLease { snapshot: covered, ..lease });
        if !self.has(BucketRule::FloorInLease) {
            let newest = world.lease.as_mut()?;
            if newest.snapshot.len() < to.snapshot.len() {
                newest.snapshot = to.snapshot;
            }
            world.brokers[me].lease = Some(to);
            return Some(());
        }
        let was_written = self.send(world, Request::Lease { to, on: Some(lease) }, fate);
        let is_ours = world.lease == Some(to);
        world.brokers[me] = match fate {
            RequestFate::Answered if was_written || is_ours => {
                Broker { lease: Some(to), snapshot: None, ..broker }
            }
            RequestFate::Answered => Broker::default(),
            RequestFate::AnswerLost | RequestFate::Late => Broker { snapshot: Some(to), ..broker },
        };
        Some(())
    }

    fn send_mail(&self, world: &mut BucketWorld, fate: RequestFate) {
        self.send(world, Request::Mail, fate);
        let is_there = world.mail.object == MailObject::InTime;
        world.mail.client = match fate {
            RequestFate::Answered if is_there => Client::Acknowledged,
            _ => Client::Waiting,
        };
    }
}

impl BucketWorld {
    /// Notes the longest history, or one that contradicts it.
    fn acknowledge(&mut self, history: CommitHistory) {
        if !self.acknowledged.starts_with(history) {
            self.acknowledged = history;
        }
    }
}
