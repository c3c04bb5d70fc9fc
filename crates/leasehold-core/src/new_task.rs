//! New task of a producer, with validation. Every field is checked here, before the first write.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::ids::{Artifacts, Name, TaskId, TaskType};
use crate::limits::{
    ARTIFACTS_MAX, INLINE_BYTES_MAX, JSON_DEPTH_MAX, PLAN_AHEAD_MAX, TAG_BYTES_MAX, TAGS_MAX,
};
use crate::outpost::BUCKET_TIME_MIN;
use crate::retry::RetryPolicy;
use crate::shard::Shard;
use crate::step::StepContext;
use crate::task::{ABANDONED, CREATED, Change, History, Priority, State, Status, Task};
use crate::time::{Now, StoreTime};

/// Default number of attempts of a task that is submitted to a bucket or a folder.
pub const MAX_ATTEMPTS: u32 = 4;

/// Task to submit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NewTask {
    /// Type, which selects the handler.
    pub task_type: TaskType,
    /// Input of the handler.
    pub input: Value,
    /// Files that are staged on the worker before the handler runs. They must be published before the submit.
    pub artifacts: Artifacts,
    /// Earliest start.
    pub start: Start,
    /// Maximum number of attempts. `None`: the default, [`MAX_ATTEMPTS`], or 5 on an outpost.
    pub max_attempts: Option<u32>,
    /// Backoff between attempts. `None`: the default, [`RetryPolicy::default`], or 10 s to 10 min on an outpost.
    pub retry_policy: Option<RetryPolicy>,
    /// Maximum duration of one run of the handler.
    pub timeout_secs: Option<u64>,
    /// Time after the submit from which the task is no longer started.
    pub expires_in: Option<Duration>,
    /// Priority among tasks that are due in the same minute.
    pub priority: Priority,
    /// Labels for finding the task.
    pub tags: BTreeMap<String, String>,
    /// Idempotency key: only one submit with this key creates a task.
    pub idempotency_key: Option<String>,
}

/// Result of a submit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Submitted {
    /// Id of the task.
    pub id: TaskId,
    /// False if a task with this idempotency key existed already.
    pub is_new: bool,
    /// Status of the existing task.
    pub existing: Option<Status>,
    /// True if the existing task was retried ([`UniqueKey::retry_failed`](crate::unique::UniqueKey::retry_failed)).
    pub is_retried: bool,
}

impl Submitted {
    /// Result for a task that is new, or that existed already.
    #[must_use]
    pub fn new(id: TaskId, is_new: bool) -> Self {
        Self { id, is_new, existing: None, is_retried: false }
    }
}

/// Earliest start of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Start {
    /// Immediately.
    Now,
    /// After a delay.
    After(Duration),
    /// At this store time.
    At(StoreTime),
}

impl NewTask {
    /// Creates a task of this type, with defaults for all other fields.
    pub fn new(task_type: &str, input: Value) -> Result<Self> {
        Ok(Self {
            task_type: Name::checked("task type", task_type)?,
            input,
            artifacts: Artifacts::new(),
            start: Start::Now,
            max_attempts: None,
            retry_policy: None,
            timeout_secs: None,
            expires_in: None,
            priority: Priority::default(),
            tags: BTreeMap::new(),
            idempotency_key: None,
        })
    }

    /// Validates all fields.
    pub fn check(&self, now: StoreTime) -> Result<()> {
        check_size("input", &self.input)?;
        if let Some(policy) = &self.retry_policy {
            policy.check()?;
        }
        if self.max_attempts == Some(0) {
            return Err(Error::invalid("max_attempts must be at least 1, got 0"));
        }
        if self.timeout_secs == Some(0) {
            return Err(Error::invalid("timeout must be at least 1 second, got 0"));
        }
        self.check_times(now)?;
        check_artifacts(&self.artifacts)?;
        check_tags(&self.tags)?;
        match &self.idempotency_key {
            Some(key) if key.is_empty() => Err(Error::invalid("idempotency key must not be empty")),
            Some(key) if key.len() > TAG_BYTES_MAX => Err(Error::invalid(format!(
                "idempotency key must be at most {TAG_BYTES_MAX} bytes, got {}",
                key.len()
            ))),
            _ => Ok(()),
        }
    }

    fn check_times(&self, now: StoreTime) -> Result<()> {
        let start = self.available_at(Now::exactly(now));
        check_time("start", start, now)?;
        match self.expires_in {
            Some(after) if after > PLAN_AHEAD_MAX => Err(Error::invalid(format!(
                "expiry must be at most ten years ahead, got {} s; check the unit",
                after.as_secs()
            ))),
            Some(after) if now.plus(after) <= start => Err(Error::invalid(format!(
                "expiry must be after the start of the task ({start}), got {}",
                now.plus(after)
            ))),
            _ => Ok(()),
        }
    }

    /// Returns the earliest start. An immediate start counts from the earliest possible now, so that it never waits; a
    /// delay from the latest, so that it is never shorter than requested.
    fn available_at(&self, now: Now) -> StoreTime {
        match self.start {
            Start::Now => now.earliest,
            Start::After(pause) => now.latest_known().plus(pause),
            Start::At(time) => time,
        }
    }

    /// Returns the task in its first revision.
    #[must_use]
    pub fn submitted(self, id: TaskId, shard: Shard, context: &StepContext) -> Task {
        let now = context.now.earliest;
        let state = State::Pending { available_at: self.available_at(context.now) };
        Task {
            task_type: self.task_type,
            input: self.input,
            artifacts: self.artifacts,
            max_attempts: self.max_attempts.unwrap_or(MAX_ATTEMPTS),
            retry_policy: self.retry_policy.unwrap_or_default(),
            timeout_secs: self.timeout_secs,
            priority: self.priority,
            expires_at: self.expires_in.map(|after| now.plus(after)),
            tags: self.tags,
            idempotency_key: self.idempotency_key,
            ..first_revision(id, shard, state, CREATED, None, context)
        }
    }
}

impl Task {
    /// Returns the new task as if it had been submitted at `at`, for a task that was submitted where the store time was
    /// unknown. Absolute times set by the producer stay.
    #[must_use]
    pub fn submitted_at(mut self, at: StoreTime) -> Task {
        let before = std::mem::replace(&mut self.created_at, at);
        self.updated_at = at;
        let moved =
            |time: StoreTime| if time >= BUCKET_TIME_MIN { time } else { at.plus(time.since(before)) };
        self.expires_at = self.expires_at.map(moved);
        if let State::Pending { available_at } = &mut self.state {
            *available_at = moved(*available_at);
        }
        for change in &mut self.history.changes {
            change.at = at;
        }
        self
    }

    /// Returns a tombstone, for an abandoned submit or a quarantined task; `why` is its reason. A conditional put (if absent)
    /// of it fences off the submit permanently (rules 3 and 4 of the index).
    #[must_use]
    pub fn tombstone(id: TaskId, shard: Shard, why: &str, context: &StepContext) -> Task {
        let state = State::Cancelled { finished_at: context.now.earliest };
        first_revision(id, shard, state, ABANDONED, Some(why.to_owned()), context)
    }
}

fn first_revision(
    id: TaskId,
    shard: Shard,
    state: State,
    event: &str,
    why: Option<String>,
    context: &StepContext,
) -> Task {
    let now = context.now.earliest;
    let mut history = History::default();
    history.add(Change {
        at: now,
        event: event.to_owned(),
        from: None,
        to: state.status(),
        by: context.by.clone(),
        attempt: 0,
        epoch: 0,
        why,
        write_id: context.write_id.clone(),
        unknown: serde_json::Map::new(),
    });
    Task {
        id,
        task_type: Name::checked("task type", "abandoned").expect("the name is well formed"),
        shard,
        rev: 1,
        write_id: context.write_id.clone(),
        input: Value::Null,
        artifacts: Artifacts::new(),
        state,
        attempt: 0,
        max_attempts: MAX_ATTEMPTS,
        retry_policy: RetryPolicy::default(),
        timeout_secs: None,
        priority: Priority::default(),
        created_at: now,
        updated_at: now,
        expires_at: None,
        lease_id: None,
        epoch: 0,
        generation: 0,
        error: None,
        progress: None,
        tags: BTreeMap::new(),
        idempotency_key: None,
        history,
        unknown: serde_json::Map::new(),
    }
}

/// Rejects more artifacts than a task may have.
pub fn check_artifacts(artifacts: &Artifacts) -> Result<()> {
    if artifacts.len() > ARTIFACTS_MAX {
        let many = artifacts.len();
        return Err(Error::invalid(format!(
            "a task can have at most {ARTIFACTS_MAX} artifacts, got {many}; combine them into fewer files"
        )));
    }
    Ok(())
}

/// Rejects a time before 1970 or more than ten years ahead, which is a mistake in a unit.
pub fn check_time(what: &str, at: StoreTime, now: StoreTime) -> Result<()> {
    if at > now.plus(PLAN_AHEAD_MAX) {
        return Err(Error::invalid(format!(
            "{what} must be at most ten years ahead, got {at}; check the unit"
        )));
    }
    if at.as_millis() < 0 {
        return Err(Error::invalid(format!("{what} must not be before 1970, got {at}; check the unit")));
    }
    Ok(())
}

/// Rejects an input, an output or progress that does not fit into a record.
pub fn check_size(what: &str, value: &Value) -> Result<()> {
    if is_deeper(value, JSON_DEPTH_MAX) {
        return Err(Error::invalid(format!(
            "{what} must be nested at most {JSON_DEPTH_MAX} levels deep; store larger data as an artifact"
        )));
    }
    let bytes = serde_json::to_string(value).map_or(usize::MAX, |text| text.len());
    if bytes > INLINE_BYTES_MAX {
        return Err(Error::invalid(format!(
            "{what} must be at most {INLINE_BYTES_MAX} bytes, got {bytes}; store larger data as an artifact"
        )));
    }
    Ok(())
}

/// True if a value is nested deeper than `levels`. Descends no deeper than that.
fn is_deeper(value: &Value, levels: usize) -> bool {
    let inner = |value: &Value| is_deeper(value, levels - 1);
    match value {
        Value::Array(items) => levels == 0 || items.iter().any(inner),
        Value::Object(fields) => levels == 0 || fields.values().any(inner),
        _ => false,
    }
}

fn check_tags(tags: &BTreeMap<String, String>) -> Result<()> {
    if tags.len() > TAGS_MAX {
        return Err(Error::invalid(format!("a task can have at most {TAGS_MAX} tags, got {}", tags.len())));
    }
    match tags.iter().find(|(key, value)| key.is_empty() || key.len().max(value.len()) > TAG_BYTES_MAX) {
        Some((key, _)) => Err(Error::invalid(format!(
            "tag `{key}` must have a key of 1 to {TAG_BYTES_MAX} bytes and a value of at most {TAG_BYTES_MAX}"
        ))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::now;
    use serde_json::json;

    #[test]
    fn invalid_tasks_are_refused_with_an_explanation() {
        let good = || NewTask::new("resize", json!({"url": "x"})).unwrap();
        let secs = Duration::from_secs;
        let year = secs(365 * 86_400);
        let tasks = [
            NewTask { input: "x".repeat(300_000).into(), ..good() },
            NewTask { max_attempts: Some(0), ..good() },
            NewTask { timeout_secs: Some(0), ..good() },
            NewTask { start: Start::After(year * 11), ..good() },
            NewTask { start: Start::At(StoreTime::from_millis(-5)), ..good() },
            NewTask { start: Start::After(secs(60)), expires_in: Some(secs(60)), ..good() },
            NewTask { expires_in: Some(year * 20), ..good() },
            NewTask { tags: [(String::new(), String::new())].into(), ..good() },
            NewTask { idempotency_key: Some(String::new()), ..good() },
            NewTask { retry_policy: Some(RetryPolicy { factor: 0.0, ..RetryPolicy::default() }), ..good() },
        ];
        let errors: Vec<_> =
            tasks.iter().map(|task| task.check(now().earliest).unwrap_err().to_string()).collect();
        insta::assert_snapshot!(errors.join("\n"));
        good().check(now().earliest).unwrap();
    }
}
