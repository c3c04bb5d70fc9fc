//! Submits, with and without an idempotency key.

use serde::{Deserialize, Serialize};
use std::time::Duration;

use super::{JournalContext, JournalDecision, decide};
use crate::error::{Error, Reason, Result};
use crate::ids::TaskId;
use crate::journal::record::JournalRecord;
use crate::journal::state::{JournalState, LoadedTask};
use crate::journal::task::{JournalTask, KeyHash, KeyReservation};
use crate::limits::TASK_ID_AGE_MAX;
use crate::new_task::{NewTask, Submitted};
use crate::record::short::write_id_of;
use crate::shard::ShardLen;
use crate::step::{Event, StepContext};
use crate::task::{Status, Task};
use crate::time::StoreTime;
use crate::unique::UniqueKey;

/// Task to submit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SubmitRequest {
    /// Id of the task, from [`TaskId::from_time`]. A repeated request has the id of the first, and creates no second task
    /// (rule B9).
    pub id: TaskId,
    /// The task.
    pub new_task: NewTask,
    /// Its idempotency key.
    pub key: Option<UniqueKey>,
}

impl JournalState {
    /// Decides a submit.
    pub fn submit(&self, request: SubmitRequest, context: &JournalContext) -> JournalDecision<Submitted> {
        let key_check = request.key.as_ref().map_or(Ok(()), UniqueKey::check);
        if let Err(error) = request.new_task.check(context.now.earliest).and(key_check) {
            return JournalDecision::invalid(error);
        }
        match self.existing(&request, context) {
            Err(error) => JournalDecision::refused(Err(error)),
            Ok(Some(existing)) => existing,
            Ok(None) => create(request, context),
        }
    }

    /// Evicted task without which a submit cannot be decided: the one that has its id, or its idempotency key.
    #[must_use]
    pub fn submit_needs(&self, request: &SubmitRequest) -> Option<TaskId> {
        if self.tasks.contains_key(&request.id) {
            return Some(request.id).filter(|id| self.is_evicted(id));
        }
        let key = request.key.as_ref()?;
        let hash = KeyHash::of(key.scope, &key.key, &request.new_task.task_type);
        self.indexes.owner(hash).map(|(id, _)| id).filter(|id| self.is_evicted(id))
    }

    /// Decision on a submit whose task exists; none if it does not.
    fn existing(
        &self,
        request: &SubmitRequest,
        context: &JournalContext,
    ) -> Result<Option<JournalDecision<Submitted>>> {
        if let Some(task) = self.load(&request.id)? {
            check_equal(&task.logged.task, &request.new_task, || {
                format!("task id {} is in use", request.id)
            })?;
            // It was submitted by this request, sent before. Its record is in the log, or in the same commit.
            return Ok(Some(JournalDecision::done(Vec::new(), Submitted::new(request.id, true))));
        }
        check_id(&request.id, context.now.earliest)?;
        let Some(key) = &request.key else { return Ok(None) };
        let hash = KeyHash::of(key.scope, &key.key, &request.new_task.task_type);
        let Some((id, expires_at)) = self.indexes.owner(hash) else { return Ok(None) };
        if context.now.is_past(expires_at) {
            return Ok(None);
        }
        let Some(task) = self.load(&id)? else { return Ok(None) };
        check_equal(&task.logged.task, &request.new_task, || {
            format!("idempotency key `{}` belongs to task {id}", key.key)
        })?;
        Ok(Some(duplicate(&task, key, context)))
    }
}

/// Answers with the task that has the key, and retries it if the key asks for that.
fn duplicate(task: &LoadedTask<'_>, key: &UniqueKey, context: &JournalContext) -> JournalDecision<Submitted> {
    let status = task.logged.task.status();
    let answer = Submitted { existing: Some(status), ..Submitted::new(task.logged.task.id, false) };
    if key.retry_failed && matches!(status, Status::Failed | Status::Expired) {
        // Rejected only for tombstones, which a journal has no use for.
        if let Ok((record, _)) = decide(task, &Event::Retry, &context.by, context) {
            return JournalDecision::done(vec![record], Submitted { is_retried: true, ..answer });
        }
    }
    JournalDecision::refused(Ok(answer))
}

fn create(request: SubmitRequest, context: &JournalContext) -> JournalDecision<Submitted> {
    let SubmitRequest { id, mut new_task, key } = request;
    let reservation = key.map(|key| {
        new_task.idempotency_key = Some(key.key);
        KeyReservation { scope: key.scope, expires_at: context.now.latest_known().plus(key.lifetime) }
    });
    let step_context = StepContext {
        by: context.by.clone(),
        now: context.now,
        write_id: write_id_of(&id, 1),
        random: context.random,
    };
    let task = new_task.submitted(id, ShardLen::DEFAULT.shard_of(&id), &step_context);
    let submitted = JournalTask { task, key: reservation, claim: None }.encode();
    JournalDecision::done(vec![JournalRecord::Submit(submitted)], Submitted::new(id, true))
}

/// Rejects a task that differs from the one that has its id or its key. The order of the fields of an input does not count.
pub(super) fn check_equal(task: &Task, new: &NewTask, whose: impl Fn() -> String) -> Result<()> {
    if (&task.task_type, &task.input) == (&new.task_type, &new.input) {
        return Ok(());
    }
    Err(Error::invalid(format!("{} with another type or input", whose())).with_reason(Reason::Conflict))
}

/// Rejects an id without a time, or with one that is too far from now: the id of a new task determines where it is kept.
fn check_id(id: &TaskId, now: StoreTime) -> Result<()> {
    let distance = |time: StoreTime| Duration::max(time.since(now), now.since(time));
    match id.time() {
        Some(time) if distance(time) <= TASK_ID_AGE_MAX => Ok(()),
        Some(time) => Err(Error::invalid(format!(
            "the time of task id {id} must be within {} minutes of {now}, got {time}",
            TASK_ID_AGE_MAX.as_secs() / 60
        ))),
        None => Err(Error::invalid(format!("task id {id} has no time; use a UUID of version 7"))),
    }
}
