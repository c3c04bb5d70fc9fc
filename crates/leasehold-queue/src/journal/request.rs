//! Requests to a broker, and its answers.

use leasehold_core::ids::TaskTypes;
use leasehold_core::journal::{
    ArchiveName, ClaimRequest, JournalTask, Operated, PurgeCursor, RenewRequest, RenewedClaim, SettleRequest,
    SubmitRequest,
};
use leasehold_core::new_task::Submitted;
use leasehold_core::retention::{Purged, Retention};
use leasehold_core::scan::DrainWait;
use leasehold_core::{Event, HexName, LeaseId, Result, Task, TaskId, WorkerId};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

use super::changes::{ChangePage, ChangePosition};
use super::query::{StateAnswer, StateQuery};
use super::status::{BrokerStatus, JournalWorker};

/// Receiver of an answer, in the process of the broker.
pub(super) type AnswerTo<T> = oneshot::Sender<Result<T>>;

/// Request to a broker. `by` is the actor, for the history of tasks.
pub(super) enum BrokerRequest {
    /// Submits a task.
    Submit { task: Box<SubmitRequest>, by: Arc<str>, answer: AnswerTo<Submitted> },
    /// Claims tasks for the free slots of a worker.
    Claim(ClaimPoll),
    /// Renews claims.
    Renew { renewal: RenewRequest, answer: AnswerTo<Vec<Option<RenewedClaim>>> },
    /// Ends a claim.
    Settle { settlement: Box<SettleRequest>, answer: AnswerTo<Option<Task>> },
    /// Cancels, retries or reschedules a task.
    Operate { id: TaskId, event: Event, by: Arc<str>, answer: AnswerTo<Operated> },
    /// Applies a retention to one page of final tasks.
    Purge { retention: Arc<Retention>, at: PurgePlace, by: Arc<str>, answer: AnswerTo<PurgedPage> },
    /// Applies a retention to one task.
    PurgeTask { id: TaskId, retention: Arc<Retention>, by: Arc<str>, answer: AnswerTo<Purged> },
    /// Imports a task of another queue.
    Import { task: Box<JournalTask>, answer: AnswerTo<bool> },
    /// Selects the archive objects to which no record refers, and to which no later record can refer, from `names`.
    Orphans { names: Vec<ArchiveName>, answer: AnswerTo<Vec<ArchiveName>> },
    /// Reads the state.
    Read { query: StateQuery, freshness: Freshness, answer: AnswerTo<StateAnswer> },
    /// Waits until a task has another revision.
    Watch { id: TaskId, rev: u64, answer: oneshot::Sender<()> },
    /// Answers the waiting claims of a source at once, because its worker claims no more tasks.
    StopClaims { source: HexName },
    /// Reports the state of the broker.
    Status { answer: AnswerTo<BrokerStatus> },
    /// Lists the workers that have reported themselves.
    Workers { answer: AnswerTo<Vec<JournalWorker>> },
    /// Reads the tasks that have changed after a position.
    Changes { since: Option<ChangePosition>, answer: AnswerTo<ChangePage> },
    /// Tells the broker about a worker.
    Report(WorkerReport),
    /// Shuts the broker down: it commits what was decided, and releases its lease.
    Close,
}

/// Position at which a purge continues: it goes through the live tasks, and then through the archive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum PurgePlace {
    Live(Option<PurgeCursor>),
    Archive(Option<ArchiveName>),
}

/// Result of one page of a purge.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct PurgedPage {
    /// Number of tasks that were removed.
    pub(super) deleted: u64,
    /// Corrupt tasks with their error; they are kept.
    pub(super) corrupt: Vec<String>,
    /// Position at which the next page begins; none if this was the last.
    pub(super) next: Option<PurgePlace>,
}

/// Request that waits until no objects of the archive are being written.
pub(super) enum ArchiveRequest {
    Purge {
        retention: Arc<Retention>,
        after: Option<ArchiveName>,
        by: Arc<str>,
        answer: AnswerTo<PurgedPage>,
    },
    PurgeTask {
        id: TaskId,
        object: ArchiveName,
        retention: Arc<Retention>,
        by: Arc<str>,
        answer: AnswerTo<Purged>,
    },
    Orphans {
        names: Vec<ArchiveName>,
        answer: AnswerTo<Vec<ArchiveName>>,
    },
}

/// Request of a worker for tasks.
pub(super) struct ClaimPoll {
    pub(super) request: ClaimRequest,
    /// Source of tasks that has sent it.
    pub(super) source: HexName,
    /// True if it waits for a task. Otherwise it is answered at once, with what the worker could wait for.
    pub(super) waits: bool,
    pub(super) answer: AnswerTo<ClaimAnswer>,
}

/// A worker, as it reports itself to the broker from time to time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct WorkerReport {
    pub(super) worker: WorkerId,
    /// Its source of tasks: two workers may have the same id.
    pub(super) source: HexName,
    pub(super) host: String,
    pub(super) pid: u32,
    pub(super) types: TaskTypes,
    pub(super) slots: u64,
    /// Duration of the lease of its claims.
    pub(super) lease: Duration,
    pub(super) stage: WorkerStage,
}

/// Stage in the life of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum WorkerStage {
    Working,
    /// It claims no more tasks, and waits for those that run.
    Stopping,
    Ended,
}

/// Answer to a request for tasks.
#[derive(Debug, Default)]
pub(super) struct ClaimAnswer {
    /// Claimed tasks.
    pub(super) tasks: Vec<Task>,
    /// Reason to ask again soon, if there is one and no task was claimed.
    pub(super) upcoming: Option<DrainWait>,
}

/// Proof that a read needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Freshness {
    /// No other broker has acknowledged anything that the answer does not show (rules B8 and F11).
    Current,
    /// Everything that the answer shows is confirmed.
    Confirmed,
}

/// Answer that is sent when it is confirmed. If it is dropped instead, its receiver knows that the broker has ended.
pub(super) struct HeldAnswer {
    send: Box<dyn FnOnce() -> UnusedClaims + Send>,
}

/// Claims that were not delivered, because their worker no longer waits.
pub(super) type UnusedClaims = Vec<(TaskId, LeaseId)>;

impl HeldAnswer {
    pub(super) fn new<T: Send + 'static>(answer: AnswerTo<T>, value: Result<T>) -> Self {
        let send = move || {
            // The caller may have given up.
            let _ = answer.send(value);
            UnusedClaims::new()
        };
        Self { send: Box::new(send) }
    }

    /// Answer whose claims are to be released if it cannot be delivered (rule C6).
    pub(super) fn of_claims(answer: AnswerTo<ClaimAnswer>, value: ClaimAnswer) -> Self {
        let send = move || {
            let Err(Ok(unsent)) = answer.send(Ok(value)) else { return UnusedClaims::new() };
            unsent.tasks.into_iter().filter_map(|task| Some((task.id, task.lease_id?))).collect()
        };
        Self { send: Box::new(send) }
    }

    /// Notice without content.
    pub(super) fn of_notice(answer: oneshot::Sender<()>) -> Self {
        let send = move || {
            let _ = answer.send(());
            UnusedClaims::new()
        };
        Self { send: Box::new(send) }
    }

    pub(super) fn send(self) -> UnusedClaims {
        (self.send)()
    }
}

impl fmt::Debug for HeldAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HeldAnswer")
    }
}
