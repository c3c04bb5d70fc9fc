//! Model of the journal in a bucket: brokers that take over from each other, one log, one request by mail.
//!
//! There is no clock in this model: every lease may have expired when a process reads it, so a process may take over at
//! any moment, and no broker stops before a put tells it to. What holds here holds for every pause and every clock.
//! Four further simplifications allow no less than the protocol does:
//!
//! * A crash is a process that takes no further step, and a restart is another process: both have lost the same memory.
//! * Reading a slot and putting a fence are one step, *replay*: a slot that exists is read, an absent one gets the fence.
//! * A read confirms the lease; a renewal would in addition refuse the take-over of a process that has read before it.
//! * The lease contains the snapshot itself, and `floor` is its end: nothing is kept longer than the lease requires.
//!
//! A slot contains its commit and all commits before it: this is what the hash of the predecessor stands for.

mod describe;
mod possible;
mod run;
mod small;

use super::history::{COMMITS_MAX, CommitHistory};
use crate::model::RequestFate;
use small::{CommitKind, ModelCommit, ModelLease};
use stateright::{Model, Property};

/// Rule of the journal in a bucket; each can be left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::model) enum BucketRule {
    FencesStay,
    Confirm,
    ConfirmAfterFence,
    ReadBack,
    SameBytes,
    OnePut,
    FloorInLease,
    ReadAfterCommit,
    MailIsTask,
    MailAfterCommit,
    MailInTime,
    CorruptIfHeld,
    ConfirmedSnapshot,
}

impl BucketRule {
    /// Rules without which the checker finds a counterexample.
    pub(in crate::model) const ALL: [BucketRule; 12] = [
        BucketRule::FencesStay,
        BucketRule::Confirm,
        BucketRule::ConfirmAfterFence,
        BucketRule::ReadBack,
        BucketRule::SameBytes,
        BucketRule::OnePut,
        BucketRule::FloorInLease,
        BucketRule::ReadAfterCommit,
        BucketRule::MailIsTask,
        BucketRule::MailAfterCommit,
        BucketRule::MailInTime,
        BucketRule::CorruptIfHeld,
    ];

    /// Rule without which the checker finds none.
    pub(in crate::model) const SPARE: BucketRule = BucketRule::ConfirmedSnapshot;

    pub(in crate::model) fn description(self) -> &'static str {
        match self {
            BucketRule::FencesStay => "B1. fences are never deleted",
            BucketRule::Confirm => "B2. a new broker confirms its lease before it serves",
            BucketRule::ConfirmAfterFence => {
                "B3. the confirmation is sent after the fence was put, not before it"
            }
            BucketRule::ReadBack => "B4. a commit without an answer is read back before it is acknowledged",
            BucketRule::SameBytes => "B5. a commit is resent with the same bytes",
            BucketRule::OnePut => "B6. one put is in flight",
            BucketRule::FloorInLease => "B7. `snapshot` and `floor` are in the lease",
            BucketRule::ReadAfterCommit => {
                "B8. a refusal, and a read that must be current, waits for the commit in flight"
            }
            BucketRule::MailIsTask => "B9. the request id of mail is the task id",
            BucketRule::MailAfterCommit => "B10. mail is deleted after the commit that applies it",
            BucketRule::MailInTime => {
                "B11. mail that was put more than one hour after its id's time is not applied"
            }
            BucketRule::CorruptIfHeld => {
                "B12. a slot that does not continue the history is corrupt only if the lease is still held"
            }
            BucketRule::ConfirmedSnapshot => "B13. a snapshot covers confirmed commits only",
        }
    }
}

/// Bounds of the model: number of processes, slots and faults.
#[derive(Debug, Clone)]
pub(in crate::model) struct BucketModel {
    pub(in crate::model) processes: u8,
    /// Highest epoch: a lease of this epoch is not taken over.
    pub(in crate::model) epoch_max: u8,
    /// Number of log slots.
    pub(in crate::model) slots: u8,
    pub(in crate::model) lost_answers: u8,
    pub(in crate::model) late: u8,
    /// True if a client sends a request by mail.
    pub(in crate::model) mail: bool,
    pub(in crate::model) without: Option<BucketRule>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
enum Phase {
    #[default]
    Following,
    /// The lease was put, with an unknown outcome.
    Taking {
        to: ModelLease,
        on: Option<ModelLease>,
    },
    /// Reads the log, and puts a fence at its end.
    Replaying,
    Confirming,
    Serving,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
struct Broker {
    phase: Phase,
    /// Lease as it was confirmed last.
    lease: Option<ModelLease>,
    /// Commits that were replayed or confirmed.
    state: CommitHistory,
    /// Commit that was sent and is not confirmed; a second one only if rule B6 is left out.
    pending: [Option<ModelCommit>; 2],
    /// Lease with a new snapshot that was sent and is not confirmed.
    snapshot: Option<ModelLease>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Request {
    Lease {
        to: ModelLease,
        on: Option<ModelLease>,
    },
    /// Put if absent, in the slot of its last commit.
    Slot(CommitHistory),
    Mail,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum MailObject {
    Absent,
    InTime,
    /// Put more than one hour after its id's time.
    TooLate,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Client {
    Unsent,
    Waiting,
    Acknowledged,
}

/// The one request by mail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Mail {
    object: MailObject,
    client: Client,
    /// True if an hour has passed since the time of the request id.
    is_hour_over: bool,
    /// True if neither a broker nor the archive still knows the request id.
    is_forgotten: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(in crate::model) struct BucketWorld {
    lease: Option<ModelLease>,
    /// Content of each slot; empty if it is absent.
    log: [CommitHistory; COMMITS_MAX],
    /// True for every slot that was deleted.
    deleted: [bool; COMMITS_MAX],
    brokers: Vec<Broker>,
    mail: Mail,
    late: Vec<Request>,
    lost_answers: u8,
    late_left: u8,
    /// Longest history that a process has acknowledged.
    acknowledged: CommitHistory,
    /// True if a process has reported that the log is corrupt.
    is_corrupt: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::model) enum BucketAction {
    Take(usize, RequestFate),
    Replay(usize, RequestFate),
    Confirm(usize),
    /// Sends the commit at this place of `pending`, for the first time or again.
    Commit {
        me: usize,
        place: usize,
        of_mail: bool,
        fate: RequestFate,
    },
    Snapshot(usize, RequestFate),
    Delete(usize, usize),
    SendMail(RequestFate),
    DeleteMail(usize),
    HourPasses,
    Forget,
    Deliver(usize),
}

impl BucketModel {
    fn has(&self, rule: BucketRule) -> bool {
        self.without != Some(rule)
    }
}

impl BucketWorld {
    /// History that the next broker would replay.
    fn replayed(&self) -> CommitHistory {
        let mut replayed = self.lease.map_or(CommitHistory::default(), |lease| lease.snapshot);
        while let Some(slot) = self.log.get(replayed.len())
            && !slot.is_empty()
            && slot.starts_with(replayed)
        {
            replayed = *slot;
        }
        replayed
    }

    /// True if of any two histories of brokers that serve one continues the other, and the acknowledged one too.
    fn is_one_history(&self) -> bool {
        let serving = self.brokers.iter().filter(|broker| broker.phase == Phase::Serving);
        let mut histories: Vec<CommitHistory> = serving.map(|broker| broker.state).collect();
        histories.push(self.acknowledged);
        histories.sort_by_key(|history| history.len());
        histories.windows(2).all(|pair| pair[1].starts_with(pair[0]))
    }

    fn is_holder(&self, broker: &Broker) -> bool {
        match (self.lease, broker.lease) {
            (Some(found), Some(held)) => found.is_same_claim(held),
            _ => false,
        }
    }

    /// True if no slot is deleted that the holder of the lease may still read.
    fn is_kept_for_holder(&self) -> bool {
        self.brokers.iter().filter(|broker| self.is_holder(broker)).all(|broker| {
            let floor = broker.lease.map_or(0, |lease| lease.snapshot.len());
            (floor..COMMITS_MAX).all(|slot| !self.deleted[slot] || !self.log[slot].is_empty())
        })
    }

    /// True if a broker that finds the slot after its history absent, and answers, knows every acknowledged commit.
    fn is_current(&self, broker: &Broker, waits: bool) -> bool {
        broker.phase != Phase::Serving
            || waits && broker.pending[0].is_some()
            || self.log.get(broker.state.len()).is_none_or(|slot| !slot.is_empty())
            || broker.state.starts_with(self.acknowledged)
    }

    /// Merges equivalent states: brokers are sorted, and their instances renumbered.
    fn sort_brokers(&mut self) {
        let anonymous = |broker: &Broker| {
            let mut broker = *broker;
            broker.each_lease(|lease| lease.instance = 0);
            broker
        };
        let mut order: Vec<usize> = (0..self.brokers.len()).collect();
        order.sort_by_cached_key(|number| anonymous(&self.brokers[*number]));
        if !order.is_sorted() {
            self.brokers = order.iter().map(|old| self.brokers[*old]).collect();
            self.each_lease(|lease| {
                let place = order.iter().position(|old| *old == usize::from(lease.instance));
                lease.instance = place.and_then(|place| u8::try_from(place).ok()).unwrap_or(lease.instance);
            });
        }
        self.late.sort();
    }

    fn each_lease(&mut self, mut change: impl FnMut(&mut ModelLease)) {
        self.lease.iter_mut().for_each(&mut change);
        for broker in &mut self.brokers {
            broker.each_lease(&mut change);
        }
        for request in &mut self.late {
            if let Request::Lease { to, on } = request {
                change(to);
                on.iter_mut().for_each(&mut change);
            }
        }
    }
}

impl Broker {
    fn each_lease(&mut self, mut change: impl FnMut(&mut ModelLease)) {
        if let Phase::Taking { to, on } = &mut self.phase {
            change(to);
            on.iter_mut().for_each(&mut change);
        }
        self.lease.iter_mut().chain(&mut self.snapshot).for_each(change);
    }
}

impl Model for BucketModel {
    type State = BucketWorld;
    type Action = BucketAction;

    fn init_states(&self) -> Vec<BucketWorld> {
        vec![BucketWorld {
            lease: None,
            log: [CommitHistory::default(); COMMITS_MAX],
            deleted: [false; COMMITS_MAX],
            brokers: vec![Broker::default(); self.processes.into()],
            mail: Mail {
                object: MailObject::Absent,
                client: Client::Unsent,
                is_hour_over: false,
                is_forgotten: false,
            },
            late: Vec::new(),
            lost_answers: self.lost_answers,
            late_left: self.late,
            acknowledged: CommitHistory::default(),
            is_corrupt: false,
        }]
    }

    fn actions(&self, world: &BucketWorld, actions: &mut Vec<BucketAction>) {
        for me in 0..world.brokers.len() {
            self.broker_actions(world, me, actions);
        }
        self.mail_actions(world, actions);
        actions.extend((0..world.late.len()).map(BucketAction::Deliver));
    }

    fn next_state(&self, last: &BucketWorld, action: BucketAction) -> Option<BucketWorld> {
        let mut world = last.clone();
        self.act(&mut world, action)?;
        // Brokers keep their names in a counterexample, which is easier to read.
        if self.without.is_none_or(|rule| rule == BucketRule::SPARE) {
            world.sort_brokers();
        }
        (world != *last).then_some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(
                "every acknowledged commit is replayed by the next broker, in order",
                |_, world: &BucketWorld| world.replayed().starts_with(world.acknowledged),
            ),
            Property::always("brokers that serve have one history", |_, world: &BucketWorld| {
                world.is_one_history()
            }),
            Property::always(
                "refusals and current reads know every acknowledged commit",
                |model: &Self, world: &BucketWorld| {
                    let waits = model.has(BucketRule::ReadAfterCommit);
                    world.brokers.iter().all(|broker| world.is_current(broker, waits))
                },
            ),
            Property::always("acknowledged mail is applied exactly once", |_, world: &BucketWorld| {
                let applied = small::mails(world.replayed());
                let is_kept = world.mail.object == MailObject::InTime || applied > 0;
                applied < 2 && (is_kept || world.mail.client != Client::Acknowledged)
            }),
            Property::always("the holder of the lease finds the log complete", |_, world: &BucketWorld| {
                world.is_kept_for_holder()
            }),
            Property::always("no process reports a corrupt log", |_, world: &BucketWorld| !world.is_corrupt),
            Property::sometimes(
                "commits of two brokers are acknowledged, and slots deleted",
                |_, world: &BucketWorld| {
                    let commits = world.acknowledged.commits().map(ModelCommit::from_byte);
                    let epochs =
                        commits.filter(|commit| commit.kind != CommitKind::Fence).map(|commit| commit.epoch);
                    world.deleted.contains(&true) && epochs.clone().min() != epochs.max()
                },
            ),
        ]
    }
}
