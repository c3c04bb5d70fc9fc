//! Record of a task: one flat JSON object, readable by people and from any language.
//!
//! Parsing is strict about consistency (the id and shard with the key, the fields with the status), because a corrupt
//! record must be left for an operator and not acted upon. It is lenient about unknown fields: those of a newer
//! writer are kept and written back.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

use crate::error::{Error, Kind, Result};
use crate::ids::{Artifacts, LeaseId, TaskId, TaskType, WorkerId, WriteId};
use crate::keys;
use crate::oversize::corrupt_reason;
use crate::retry::RetryPolicy;
use crate::shard::Shard;
use crate::task::{Change, Claim, History, Priority, State, Status, Task};
use crate::time::StoreTime;

/// Newest format that this program reads and writes.
pub const FORMAT: u32 = 1;

/// Maximum revision: keys of index entries have room for ten digits. A task that is written once a second reaches it
/// after three centuries.
const REV_MAX: u64 = 9_999_999_999;

#[derive(Serialize, Deserialize)]
struct Flat {
    format: u32,
    id: TaskId,
    task_type: TaskType,
    shard: Shard,
    status: Status,
    rev: u64,
    write_id: WriteId,
    #[serde(default)]
    input: Value,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    artifacts: Artifacts,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    output: Option<Value>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    results: Artifacts,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    attempt: u32,
    max_attempts: u32,
    #[serde(default)]
    retry_policy: RetryPolicy,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    timeout_secs: Option<u64>,
    #[serde(default)]
    priority: Priority,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    available_at: Option<StoreTime>,
    created_at: StoreTime,
    updated_at: StoreTime,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    finished_at: Option<StoreTime>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    expires_at: Option<StoreTime>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    claimed_by: Option<WorkerId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lease_id: Option<LeaseId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lease_expires_at: Option<StoreTime>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    renewed_at: Option<StoreTime>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    cancel_requested: bool,
    epoch: u64,
    #[serde(default, skip_serializing_if = "is_zero")]
    generation: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    progress: Option<Value>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    tags: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    idempotency_key: Option<String>,
    history: Vec<Change>,
    #[serde(default, skip_serializing_if = "is_zero")]
    history_folded: u64,
    #[serde(flatten)]
    unknown: Map<String, Value>,
}

/// Returns the bytes of a task.
#[must_use]
pub fn write(task: &Task) -> Vec<u8> {
    serde_json::to_vec(&flat(task)).expect("a task has no keys that are not text")
}

/// Returns the task as a JSON value.
#[must_use]
pub fn value(task: &Task) -> Value {
    serde_json::to_value(flat(task)).expect("a task has no keys that are not text")
}

/// Parses the object at the key of a task.
pub fn read(key: &str, body: &[u8]) -> Result<Task> {
    let corrupt = |why: String| Error::new(Kind::Corrupt, format!("`{key}` is not a task: {why}"));
    let flat: Flat = serde_json::from_slice(body).map_err(|error| corrupt(corrupt_reason(body, &error)))?;
    if flat.format > FORMAT {
        return Err(corrupt(format!(
            "format {} is newer than the supported format {FORMAT}; upgrade leasehold",
            flat.format
        )));
    }
    if !(1..=REV_MAX).contains(&flat.rev) {
        return Err(corrupt(format!("revision must be 1 to {REV_MAX}, got {}", flat.rev)));
    }
    if keys::parse_task(key) != Some((flat.shard.as_str().to_owned(), flat.id)) {
        return Err(corrupt(format!("id {} and shard {} do not match the key", flat.id, flat.shard)));
    }
    task(flat).map_err(|missing| corrupt(format!("missing field `{missing}`, required by its status")))
}

fn task(flat: Flat) -> Result<Task, &'static str> {
    let finished_at = flat.finished_at.ok_or("finished_at");
    let state = match flat.status {
        Status::Pending => State::Pending { available_at: flat.available_at.ok_or("available_at")? },
        Status::Running => State::Running(Claim {
            by: flat.claimed_by.ok_or("claimed_by")?,
            expires_at: flat.lease_expires_at.ok_or("lease_expires_at")?,
            renewed_at: flat.renewed_at,
            cancel_requested: flat.cancel_requested,
        }),
        Status::Completed => State::Completed {
            output: flat.output.unwrap_or_default(),
            results: flat.results,
            finished_at: finished_at?,
        },
        Status::Failed => State::Failed { finished_at: finished_at? },
        Status::Cancelled => State::Cancelled { finished_at: finished_at? },
        Status::Expired => State::Expired { finished_at: finished_at? },
        Status::Purged => State::Purged { finished_at: finished_at? },
    };
    if matches!(state, State::Running(_)) && flat.lease_id.is_none() {
        return Err("lease_id");
    }
    Ok(Task {
        id: flat.id,
        task_type: flat.task_type,
        shard: flat.shard,
        rev: flat.rev,
        write_id: flat.write_id,
        input: flat.input,
        artifacts: flat.artifacts,
        state,
        attempt: flat.attempt,
        max_attempts: flat.max_attempts,
        retry_policy: flat.retry_policy,
        timeout_secs: flat.timeout_secs,
        priority: flat.priority,
        created_at: flat.created_at,
        updated_at: flat.updated_at,
        expires_at: flat.expires_at,
        lease_id: flat.lease_id,
        epoch: flat.epoch,
        generation: flat.generation,
        error: flat.error,
        progress: flat.progress,
        tags: flat.tags,
        idempotency_key: flat.idempotency_key,
        history: History { changes: flat.history, folded: flat.history_folded },
        unknown: flat.unknown,
    })
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde calls for")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

fn flat(task: &Task) -> Flat {
    let claim = if let State::Running(claim) = &task.state { Some(claim) } else { None };
    let available_at =
        if let State::Pending { available_at } = task.state { Some(available_at) } else { None };
    Flat {
        format: FORMAT,
        id: task.id,
        task_type: task.task_type.clone(),
        shard: task.shard.clone(),
        status: task.status(),
        rev: task.rev,
        write_id: task.write_id.clone(),
        input: task.input.clone(),
        artifacts: task.artifacts.clone(),
        output: task.output().cloned(),
        results: task.results().cloned().unwrap_or_default(),
        error: task.error.clone(),
        attempt: task.attempt,
        max_attempts: task.max_attempts,
        retry_policy: task.retry_policy.clone(),
        timeout_secs: task.timeout_secs,
        priority: task.priority,
        available_at,
        created_at: task.created_at,
        updated_at: task.updated_at,
        finished_at: task.state.finished_at(),
        expires_at: task.expires_at,
        claimed_by: claim.map(|claim| claim.by.clone()),
        lease_id: task.lease_id.clone(),
        lease_expires_at: claim.map(|claim| claim.expires_at),
        renewed_at: claim.and_then(|claim| claim.renewed_at),
        cancel_requested: claim.is_some_and(|claim| claim.cancel_requested),
        epoch: task.epoch,
        generation: task.generation,
        progress: task.progress.clone(),
        tags: task.tags.clone(),
        idempotency_key: task.idempotency_key.clone(),
        history: task.history.changes.clone(),
        history_folded: task.history.folded,
        unknown: task.unknown.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::pending;
    use proptest::prelude::*;

    fn key(task: &Task) -> String {
        keys::task(&task.shard, &task.id)
    }

    #[test]
    fn a_record_is_flat_and_readable() {
        insta::assert_snapshot!(serde_json::to_string_pretty(&value(&pending())).unwrap());
    }

    #[test]
    fn fields_of_a_newer_writer_survive() {
        let task = pending();
        let mut value = value(&task);
        value["color"] = serde_json::json!({"of": ["the", "future"]});
        let read_back = read(&key(&task), value.to_string().as_bytes()).unwrap();
        assert_eq!(serde_json::from_slice::<Value>(&write(&read_back)).unwrap(), value);
    }

    #[test]
    fn numbers_are_read_as_they_were_written() {
        // A parser that rounds carelessly reads each of these as a neighbouring number.
        for number in [-2.858_992_373_682_444e-135, -1.470_243_778_765_827_3e-207, 4.647_966_660_963_532e286]
        {
            let mut task = pending();
            task.input = Value::from(number);
            assert_eq!(read(&key(&task), &write(&task)).unwrap().input, task.input);
        }
    }

    #[test]
    fn inconsistent_records_are_corrupt() {
        let task = pending();
        let good = value(&task);
        let mut cases = Vec::new();
        for (field, wrong) in [
            ("format", Value::from(2)),
            ("status", "asleep".into()),
            ("status", "running".into()),
            ("status", "completed".into()),
            ("id", TaskId::from_random(99).to_string().into()),
            ("shard", "f".into()),
            ("rev", (-1).into()),
            ("created_at", "yesterday".into()),
            ("priority", 10.into()),
            ("task_type", "a/b".into()),
        ] {
            let mut record = good.clone();
            record[field] = wrong;
            let error = read(&key(&task), record.to_string().as_bytes()).unwrap_err();
            assert_eq!(error.kind(), Kind::Corrupt);
            cases.push(error.to_string());
        }
        for body in ["", "{", "null", "[]", "\u{0}"] {
            assert_eq!(read(&key(&task), body.as_bytes()).unwrap_err().kind(), Kind::Corrupt);
        }
        insta::assert_snapshot!(cases.join("\n"));
    }

    proptest! {
        #[test]
        fn no_body_panics(body in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = read("tasks/0/x.json", &body);
        }
    }
}
