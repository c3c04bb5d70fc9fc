//! Decisions on requests: pure and total functions of the state, by the same [`step`](crate::step()) as in the object
//! layout.
//!
//! A broker calls one of them and passes the decision to [`JournalState::log`](super::JournalState::log):
//!
//! ```text
//!   advance(now) ─▶ submit · claim · renew · settle · operate · purge · import · tick ─▶ log ─▶ the answer is held, then sent
//! ```

mod archive;
mod claim;
mod import;
mod operate;
mod purge;
mod renew;
mod settle;
mod submit;
mod tick;

pub use archive::{ArchiveWork, ObjectPurge, purge_archived, purges_archived};
pub use claim::{ClaimRequest, ClaimedTasks};
pub use import::check_same_task;
pub use operate::Operated;
pub use purge::{PurgeCursor, PurgePage};
pub use renew::{ClaimToRenew, RenewRequest, RenewedClaim};
pub use settle::SettleRequest;
pub use submit::SubmitRequest;
pub use tick::Ticked;

use super::change::TaskChange;
use super::record::{ChangeKind, JournalRecord};
use super::state::{ClaimRenewal, LoadedTask};
use super::task::JournalTask;
use crate::error::{Error, Reason, Result};
use crate::ids::TaskId;
use crate::random::SplitMix64;
use crate::record::short::write_id_of;
use crate::step::{Event, Rejected, StepContext, step};
use crate::task::Task;
use crate::time::Now;

/// Actor, time and random bits of a request.
#[derive(Debug, Clone, PartialEq)]
pub struct JournalContext {
    /// Actor, for the history. Claims and settlements have their worker instead.
    pub by: String,
    /// Current store time.
    pub now: Now,
    /// 64 random bits.
    pub random: u64,
}

/// Decision on a request.
#[derive(Debug)]
#[must_use = "a decision has no effect until it is logged"]
pub struct JournalDecision<T> {
    /// Records to append to the log and to apply.
    pub records: Vec<JournalRecord>,
    /// Tasks that the first records change, if the decision has parsed them: applying the records need not do it again.
    pub(super) parsed: Vec<JournalTask>,
    /// Renewals of claims, which are applied and not logged.
    pub renewals: Vec<(TaskId, ClaimRenewal)>,
    /// Answer to the request.
    pub answer: Result<T>,
    /// True if the answer says something about the state that nothing in `records` proves: that a claim was lost, that a
    /// task is unknown, or in which status it is. A broker that was superseded without noticing would be wrong about it, so
    /// the answer needs a proof that the broker is current (rules B8 and F11).
    pub is_refusal: bool,
}

impl<T> JournalDecision<T> {
    /// Decision with records: the commit proves that the broker is current.
    fn done(records: Vec<JournalRecord>, answer: T) -> Self {
        let (parsed, renewals) = (Vec::new(), Vec::new());
        Self { records, parsed, renewals, answer: Ok(answer), is_refusal: false }
    }

    /// Answer from the state, without records.
    fn refused(answer: Result<T>) -> Self {
        let (records, parsed, renewals) = (Vec::new(), Vec::new(), Vec::new());
        Self { records, parsed, renewals, answer, is_refusal: true }
    }

    /// Error in the request itself, which no state could change.
    fn invalid(error: Error) -> Self {
        Self { is_refusal: false, ..Self::refused(Err(error)) }
    }
}

impl JournalContext {
    /// Context for the next revision of a task. Its random bits differ from those of other tasks, so that many that fail
    /// together are not retried together.
    pub(super) fn for_step(&self, task: &Task, by: &str) -> StepContext {
        #[expect(clippy::cast_possible_truncation, reason = "the low bits are the random ones")]
        let seed = self.random ^ task.id.bits() as u64;
        StepContext {
            by: by.to_owned(),
            now: self.now,
            write_id: write_id_of(&task.id, task.rev + 1),
            random: SplitMix64::new(seed).draw(),
        }
    }
}

/// Decides an event of a task: the record of the change, and the task after it.
fn decide(
    task: &LoadedTask<'_>,
    event: &Event,
    by: &str,
    context: &JournalContext,
) -> Result<(JournalRecord, Task), Rejected> {
    let current = task.current();
    let step = step(&current, event, &context.for_step(&current, by))?;
    let Some(kind) = ChangeKind::of(event) else { return Err(Rejected::Status(current.status())) };
    // The difference to the logged task: it contains the last renewal and progress of a claim, too.
    let change = Box::new(TaskChange::between(&task.logged.task, &step.task));
    Ok((JournalRecord::Change { kind, task: step.task.id, change }, step.task))
}

fn unknown_task(id: &TaskId) -> Error {
    Error::invalid(format!("no task {id} in this queue")).with_reason(Reason::Missing)
}
