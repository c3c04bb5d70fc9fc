//! Model of the revisioned index: one task, its entries, and every process that writes them.
//!
//! Every operation is a plan: the queue's requests in the queue's order, computed from a record that was read before.
//! Between any two requests every other process may act. A conditional put that is refused or not answered is followed
//! by a read, as in the store's client. Leases may expire at any step, and every grace period has length zero, so the
//! properties do not depend on durations. The one exception: a purge does not overlap a submit, since a day lies
//! between them.

mod describe;
mod plan;
mod run;
mod small;

use super::RequestFate;
use small::{Due, SmallEntry, SmallTask, TaskState};
use stateright::{Model, Property};

/// Rule of the index protocol; each can be left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum IndexRule {
    NewBeforeOld,
    EntryFirst,
    RefusedRemovesNothing,
    CoverThenRemove,
    Revisions,
    SubmitEntryFirst,
    FenceOwnSubmit,
    WithdrawWhenSure,
    FenceBeforeRemoval,
    MarkBeforeDelete,
    OnCondition,
    HolderLeavesEntry,
}

impl IndexRule {
    pub(super) const ALL: [IndexRule; 12] = [
        IndexRule::NewBeforeOld,
        IndexRule::EntryFirst,
        IndexRule::RefusedRemovesNothing,
        IndexRule::CoverThenRemove,
        IndexRule::Revisions,
        IndexRule::SubmitEntryFirst,
        IndexRule::FenceOwnSubmit,
        IndexRule::WithdrawWhenSure,
        IndexRule::FenceBeforeRemoval,
        IndexRule::MarkBeforeDelete,
        IndexRule::OnCondition,
        IndexRule::HolderLeavesEntry,
    ];

    pub(super) fn description(self) -> &'static str {
        match self {
            IndexRule::NewBeforeOld => "1. the new entry is written before the old one is removed",
            IndexRule::EntryFirst => {
                "1. an operation that makes a task pending again writes its entry before the task"
            }
            IndexRule::RefusedRemovesNothing => "1. a refused put removes nothing",
            IndexRule::CoverThenRemove => "2. the current entry is written before an outdated one is removed",
            IndexRule::Revisions => "2. keys carry the revision",
            IndexRule::SubmitEntryFirst => "3. a submit writes its entry before the task",
            IndexRule::FenceOwnSubmit => "3. an abandoned submit fences its own id",
            IndexRule::WithdrawWhenSure => {
                "3. a submit removes its entry only if no put of the task can still be carried out"
            }
            IndexRule::FenceBeforeRemoval => "4. an entry ahead of its task is removed only after a fence",
            IndexRule::MarkBeforeDelete => {
                "a task is marked as purged by a conditional put before it is deleted"
            }
            IndexRule::OnCondition => "a task is written by conditional puts",
            IndexRule::HolderLeavesEntry => "a shard holder that writes no lease entry keeps the ready entry",
        }
    }
}

/// Kind of claims that workers make.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum ClaimKind {
    /// With a lease entry.
    Shared,
    /// By the shard's holder, which keeps the ready entry instead of writing a lease entry.
    Holder,
    Mixed,
}

/// Bounds of the model: number of processes and faults.
#[derive(Debug, Clone)]
pub(super) struct IndexModel {
    pub(super) workers: u8,
    pub(super) claims: ClaimKind,
    /// Number of cancels, retries and reschedules by an operator.
    pub(super) operations: u8,
    /// Number of purge marks and deletes by a purge.
    pub(super) purges: u8,
    pub(super) crashes: u8,
    pub(super) lost_answers: u8,
    pub(super) late: u8,
    /// Highest revision that a task may reach.
    pub(super) rev_max: u8,
    pub(super) without: Option<IndexRule>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Operation {
    Submit,
    Fence,
    Withdraw,
    Claim { holder: bool },
    Renew,
    Complete,
    Fail,
    FailPermanently,
    Cancel,
    Retry,
    Reschedule(Due),
    Purge,
    Delete,
    Sweep(SmallEntry),
    TimeOut,
}

use Operation as Op;

/// An operation in progress: the record it was decided from, and the number of requests made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Progress {
    op: Operation,
    base: Option<SmallTask>,
    sent: usize,
    /// True if a put of a submitted task has an unknown outcome: it was, or may still be, carried out.
    in_doubt: bool,
}

/// A worker's copy of its claim, and the entry that leads to the task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct WorkerClaim {
    task: SmallTask,
    entry: Option<SmallEntry>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
struct Actor {
    progress: Option<Progress>,
    held: Option<WorkerClaim>,
    /// Remaining operations of an actor that is not a worker.
    left: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Request {
    Write(SmallEntry),
    Remove(SmallEntry),
    /// Conditional on this record, or on absence.
    Put {
        to: SmallTask,
        on: Option<SmallTask>,
    },
    Delete,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[expect(clippy::struct_excessive_bools, reason = "each is something that has happened, or not")]
pub(super) struct IndexWorld {
    object: Option<SmallTask>,
    /// Actor and record of each revision, as the task's history shows them.
    authors: [Option<(usize, SmallTask)>; REVISIONS],
    entries: u32,
    actors: Vec<Actor>,
    late: Vec<(usize, Request)>,
    crashes: u8,
    lost_answers: u8,
    late_left: u8,
    /// Revision up to which entries due later are due by now: a task that had waited for that time was claimed.
    later_until: u8,
    acknowledged: bool,
    denied: bool,
    completed: bool,
    deleted: bool,
    lost: bool,
}

/// Number of revisions, above any model's `rev_max`; each entry is one bit.
const REVISIONS: usize = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum IndexAction {
    Start(usize, Operation),
    Send(usize, RequestFate),
    GiveUp,
    /// The put of a submitted task definitely fails, as on a full disk.
    Fail,
    Crash(usize),
    Deliver(usize),
}

const PRODUCER: usize = 0;
const OPERATOR: usize = 1;
const PURGE: usize = 2;
const WORKERS: usize = 3;

impl IndexModel {
    fn has(&self, rule: IndexRule) -> bool {
        self.without != Some(rule)
    }

    fn bit(&self, entry: SmallEntry) -> u32 {
        let rev = if self.has(IndexRule::Revisions) { u32::from(entry.rev) } else { 0 };
        1 << (rev + 8 * u32::from(entry.due == Due::Later) + 16 * u32::from(entry.is_lease))
    }

    fn small_entries(entries: u32) -> impl Iterator<Item = SmallEntry> {
        (0..32u8).filter(move |bit| entries & (1 << bit) != 0).map(|bit| {
            let due = if bit & 8 == 0 { Due::Soon } else { Due::Later };
            SmallEntry { is_lease: bit & 16 != 0, due, rev: bit % 8 }
        })
    }

    /// Merges equivalent states: drops the authors of revisions that no plan refers to, and sorts the workers.
    fn canonicalize(&self, world: &mut IndexWorld) {
        let mut wanted = [false; REVISIONS];
        for actor in &world.actors {
            let plan = actor.progress.map(|progress| self.plan(progress, actor.held)).unwrap_or_default();
            for request in plan {
                if let Request::Put { to, .. } = request {
                    wanted[usize::from(to.rev)] = true;
                }
            }
        }
        for (author, wanted) in world.authors.iter_mut().zip(wanted) {
            *author = author.filter(|_| wanted);
        }
        // Workers keep their numbers in a counterexample, which is easier to read.
        if self.without.is_none() {
            world.sort_workers();
        }
    }

    fn worker_starts(&self, world: &IndexWorld, me: usize, actions: &mut Vec<IndexAction>) {
        let mut start = |op| actions.push(IndexAction::Start(me, op));
        if world.actors[me].held.is_some() {
            [Op::Renew, Op::Complete, Op::Fail, Op::FailPermanently].into_iter().for_each(start);
            return;
        }
        let mut meets_ready = false;
        for entry in Self::small_entries(world.entries) {
            let is_ahead = world.object.is_none_or(|task| entry.rev > task.rev);
            meets_ready |= !entry.is_lease && !is_ahead;
            start(Op::Sweep(entry));
        }
        if world.entries != 0 {
            start(Op::TimeOut);
        }
        if meets_ready && self.claims != ClaimKind::Holder {
            start(Op::Claim { holder: false });
        }
        if meets_ready && self.claims != ClaimKind::Shared {
            start(Op::Claim { holder: true });
        }
    }

    fn starts(&self, world: &IndexWorld, me: usize, actions: &mut Vec<IndexAction>) {
        let is_submit_over =
            world.actors[PRODUCER].progress.is_none() && world.late.iter().all(|(by, _)| *by != PRODUCER);
        match me {
            PRODUCER if world.actors[me].left > 0 => actions.push(IndexAction::Start(me, Op::Submit)),
            OPERATOR if world.actors[me].left > 0 => {
                let plain = [Op::Cancel, Op::Retry, Op::Reschedule(Due::Soon), Op::Reschedule(Due::Later)];
                actions.extend(plain.map(|op| IndexAction::Start(me, op)));
            }
            PURGE if world.actors[me].left > 0 && is_submit_over => {
                actions.extend([Op::Purge, Op::Delete].map(|op| IndexAction::Start(me, op)));
            }
            PRODUCER | OPERATOR | PURGE => {}
            _ => self.worker_starts(world, me, actions),
        }
    }

    fn is_covered(world: &IndexWorld) -> bool {
        let Some(task) = world.object.filter(|task| !task.is_final()) else { return true };
        Self::small_entries(world.entries).any(|entry| {
            let is_in_time = match task.kind {
                // A lease entry is due in time only if that lease has expired already.
                TaskState::Waiting(due) if !entry.is_lease => {
                    entry.due <= due || entry.rev <= world.later_until
                }
                TaskState::Waiting(_) => task.claim == 0,
                _ => true,
            };
            entry.rev <= task.rev && is_in_time
        })
    }
}

impl IndexWorld {
    fn sort_workers(&mut self) {
        let mut order: Vec<usize> = (0..self.actors.len()).collect();
        order[WORKERS..].sort_by_key(|worker| self.actors[*worker]);
        if order.is_sorted() {
            return;
        }
        let place = |old: usize| order.iter().position(|known| *known == old).unwrap_or(old);
        self.actors = order.iter().map(|old| self.actors[*old]).collect();
        for (by, _) in self.authors.iter_mut().flatten() {
            *by = place(*by);
        }
        for (by, _) in &mut self.late {
            *by = place(*by);
        }
    }
}

impl Model for IndexModel {
    type State = IndexWorld;
    type Action = IndexAction;

    fn init_states(&self) -> Vec<IndexWorld> {
        let mut actors = vec![Actor::default(); WORKERS + usize::from(self.workers)];
        actors[PRODUCER].left = 1;
        actors[OPERATOR].left = self.operations;
        actors[PURGE].left = self.purges;
        vec![IndexWorld {
            object: None,
            authors: [None; REVISIONS],
            entries: 0,
            actors,
            late: Vec::new(),
            crashes: self.crashes,
            lost_answers: self.lost_answers,
            late_left: self.late,
            later_until: 0,
            acknowledged: false,
            denied: false,
            completed: false,
            deleted: false,
            lost: false,
        }]
    }

    fn actions(&self, world: &IndexWorld, actions: &mut Vec<IndexAction>) {
        for (me, actor) in world.actors.iter().enumerate() {
            let Some(progress) = actor.progress else {
                self.starts(world, me, actions);
                if world.crashes > 0 && actor.held.is_some() {
                    actions.push(IndexAction::Crash(me));
                }
                continue;
            };
            actions.push(IndexAction::Send(me, RequestFate::Answered));
            if world.lost_answers > 0 {
                actions.push(IndexAction::Send(me, RequestFate::AnswerLost));
            }
            if world.late_left > 0 {
                actions.push(IndexAction::Send(me, RequestFate::Late));
            }
            if world.crashes > 0 {
                actions.push(IndexAction::Crash(me));
            }
            if progress.op == Op::Submit && progress.sent > 0 {
                actions.push(IndexAction::GiveUp);
            }
            if progress.op == Op::Submit
                && matches!(self.plan(progress, None).get(progress.sent), Some(Request::Put { .. }))
                && !(progress.in_doubt && self.has(IndexRule::WithdrawWhenSure))
            {
                actions.push(IndexAction::Fail);
            }
        }
        actions.extend((0..world.late.len()).map(IndexAction::Deliver));
    }

    fn next_state(&self, last: &IndexWorld, action: IndexAction) -> Option<IndexWorld> {
        let mut world = last.clone();
        self.act(&mut world, action)?;
        self.canonicalize(&mut world);
        (world != *last).then_some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("an unfinished task has an entry", |_, world: &IndexWorld| {
                Self::is_covered(world)
            }),
            Property::always("an acknowledged task exists until it is purged", |_, world: &IndexWorld| {
                let is_there = world.object.is_some_and(|task| task.kind != TaskState::Tombstone);
                !world.lost && (!world.acknowledged || is_there || world.deleted)
            }),
            Property::always("a submit reported as failed never creates a task", |_, world: &IndexWorld| {
                let is_mark = |task: SmallTask| matches!(task.kind, TaskState::Tombstone | TaskState::Purged);
                !world.denied || world.object.is_none_or(is_mark)
            }),
            Property::always("the status completed is final", |_, world: &IndexWorld| {
                // An unneeded entry of a deleted task may leave a tombstone, which no worker can run.
                let stays = |task: SmallTask| match task.kind {
                    TaskState::Completed | TaskState::Purged => true,
                    TaskState::Tombstone => world.deleted,
                    _ => false,
                };
                !world.completed || world.object.is_none_or(stays)
            }),
            Property::sometimes("a task is completed and has no index entry", |_, world: &IndexWorld| {
                world.completed && world.entries == 0
            }),
        ]
    }
}
