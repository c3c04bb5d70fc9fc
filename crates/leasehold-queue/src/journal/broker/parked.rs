//! Requests that wait for a change of the state: claims of idle workers, and readers of one task.

use leasehold_core::journal::ClaimedTasks;
use leasehold_core::{HexName, Result, TaskId};
use std::collections::{BTreeMap, VecDeque};
use tokio::sync::oneshot;

use super::Broker;
use crate::journal::commit::Urgency;
use crate::journal::request::{BrokerRequest, ClaimAnswer, ClaimPoll, HeldAnswer};

/// Claims that wait for a task, in the order in which they came.
#[derive(Default)]
pub(super) struct ParkedClaims {
    polls: VecDeque<ClaimPoll>,
    /// True if a task has changed since they were served.
    pub(super) has_changes: bool,
    /// True if a scheduled task has become due since they were served. That makes no record.
    pub(super) is_any_due: bool,
}

impl ParkedClaims {
    /// Number of claims whose workers still wait.
    pub(super) fn waiting(&self) -> u64 {
        self.polls.iter().filter(|poll| !poll.answer.is_closed()).count() as u64
    }

    /// Ends all of them.
    pub(super) fn clear(&mut self) {
        self.polls.clear();
    }
}

/// Readers that wait until a task has another revision.
#[derive(Default)]
pub(super) struct Watches {
    tasks: BTreeMap<TaskId, Vec<TaskWatch>>,
    /// True if a task may have changed since they were served.
    pub(super) has_changes: bool,
}

struct TaskWatch {
    rev: u64,
    answer: oneshot::Sender<()>,
}

impl Watches {
    pub(super) fn contains(&self, id: &TaskId) -> bool {
        self.tasks.contains_key(id)
    }

    pub(super) fn add(&mut self, id: TaskId, rev: u64, answer: oneshot::Sender<()>) {
        self.tasks.entry(id).or_default().push(TaskWatch { rev, answer });
        self.has_changes = true;
    }

    /// Ends all of them.
    pub(super) fn clear(&mut self) {
        self.tasks.clear();
    }
}

impl Broker {
    /// Claims due tasks for a worker. If there are none, the request is parked, or answered with what to wait for.
    pub(super) fn claim(&mut self, poll: ClaimPoll) -> Result<()> {
        if let Some(poll) = self.claim_due(poll)? {
            self.parked.polls.push_back(poll);
        }
        Ok(())
    }

    /// Serves the parked claims, so that a new task is claimed in the commit in which it is submitted.
    pub(super) fn serve_parked(&mut self) -> Result<()> {
        while std::mem::take(&mut self.parked.has_changes) | std::mem::take(&mut self.parked.is_any_due) {
            let mut unserved = VecDeque::new();
            while let Some(poll) = self.parked.polls.pop_front() {
                if !poll.answer.is_closed() {
                    unserved.extend(self.claim_due(poll)?);
                }
            }
            self.parked.polls = unserved;
            // A claim makes no other task due.
            self.parked.has_changes = false;
        }
        Ok(())
    }

    /// Answers the parked claims of a source with nothing.
    pub(super) fn stop_claims(&mut self, source: &HexName) -> Result<()> {
        let polls = std::mem::take(&mut self.parked.polls).into_iter();
        let (stopped, kept): (VecDeque<_>, VecDeque<_>) = polls.partition(|poll| poll.source == *source);
        self.parked.polls = kept;
        let mut answers =
            stopped.into_iter().map(|poll| HeldAnswer::new(poll.answer, Ok(ClaimAnswer::default())));
        answers.try_for_each(|answer| self.send(answer))
    }

    /// Returns the request if there is nothing to answer it with.
    fn claim_due(&mut self, poll: ClaimPoll) -> Result<Option<ClaimPoll>> {
        let ClaimPoll { request, source, waits, answer } = poll;
        let worker = request.worker.to_string();
        let ClaimedTasks { tasks, evicted } =
            self.log(&worker, Urgency::Urgent, |state, context| state.claim(&request, context))?.answer?;
        if tasks.is_empty()
            && let Some(id) = evicted
        {
            let poll = ClaimPoll { request, source, waits, answer };
            return self.read_back(id, BrokerRequest::Claim(poll)).map(|()| None);
        }
        if tasks.is_empty() && waits {
            return Ok(Some(ClaimPoll { request, source, waits, answer }));
        }
        if let Some(id) = evicted.filter(|_| !self.is_closing) {
            // For the next claim.
            self.read_back_soon(id);
        }
        let upcoming = if tasks.is_empty() { self.state.upcoming(&request.types, self.now()?) } else { None };
        // A worker ends if nothing is left to do, and then it must be true.
        let needs_proof = tasks.is_empty() && upcoming.is_none();
        self.hold(HeldAnswer::of_claims(answer, ClaimAnswer { tasks, upcoming }), needs_proof)?;
        Ok(None)
    }

    /// Notifies the readers of tasks that have changed, when the change is confirmed.
    pub(super) fn serve_watches(&mut self) -> Result<()> {
        if !std::mem::take(&mut self.watches.has_changes) || self.watches.tasks.is_empty() {
            return Ok(());
        }
        let mut changed = Vec::new();
        let state = &self.state;
        self.watches.tasks.retain(|id, watches| {
            let rev = state.rev(id).ok().flatten();
            changed
                .extend(watches.extract_if(.., |watch| rev != Some(watch.rev) || watch.answer.is_closed()));
            !watches.is_empty()
        });
        for watch in changed {
            self.hold(HeldAnswer::of_notice(watch.answer), false)?;
        }
        Ok(())
    }
}
