//! Record of a task: one flat JSON object, readable by people and from any language.
//!
//! Parsing is strict about consistency (the id and shard with the key, the fields with the status), because a corrupt
//! record must be left for an operator and not acted upon. It is lenient about unknown fields: those of a newer
//! writer are kept and written back.

pub(crate) mod short;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::borrow::Cow;
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

/// Fields of a record. Those without which no record can be read are optional here, because the [short form](short) leaves
/// out every field that follows from the others.
#[derive(Serialize, Deserialize)]
struct Flat<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    format: Option<u32>,
    id: TaskId,
    task_type: TaskType,
    #[serde(skip_serializing_if = "Option::is_none")]
    shard: Option<Shard>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<Status>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rev: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    write_id: Option<WriteId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    input: Option<Cow<'a, Value>>,
    #[serde(default, skip_serializing_if = "is_empty")]
    artifacts: Cow<'a, Artifacts>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output: Option<Cow<'a, Value>>,
    #[serde(default, skip_serializing_if = "is_empty")]
    results: Cow<'a, Artifacts>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    attempt: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_attempts: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_policy: Option<RetryPolicy>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout_secs: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    priority: Option<Priority>,
    #[serde(skip_serializing_if = "Option::is_none")]
    available_at: Option<StoreTime>,
    created_at: StoreTime,
    #[serde(skip_serializing_if = "Option::is_none")]
    updated_at: Option<StoreTime>,
    #[serde(skip_serializing_if = "Option::is_none")]
    finished_at: Option<StoreTime>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<StoreTime>,
    #[serde(skip_serializing_if = "Option::is_none")]
    claimed_by: Option<WorkerId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lease_id: Option<LeaseId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lease_expires_at: Option<StoreTime>,
    #[serde(skip_serializing_if = "Option::is_none")]
    renewed_at: Option<StoreTime>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    cancel_requested: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    epoch: Option<u64>,
    #[serde(default, skip_serializing_if = "is_zero")]
    generation: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    progress: Option<Cow<'a, Value>>,
    #[serde(default, skip_serializing_if = "is_empty")]
    tags: Cow<'a, BTreeMap<String, String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    idempotency_key: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    history: Option<Cow<'a, [Change]>>,
    #[serde(default, skip_serializing_if = "is_zero")]
    history_folded: u64,
    #[serde(flatten)]
    unknown: Cow<'a, Map<String, Value>>,
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
    let task = read_elsewhere(key, body)?;
    if keys::parse_task(key) != Some((task.shard.as_str().to_owned(), task.id)) {
        let why = format!("id {} and shard {} do not match the key", task.id, task.shard);
        return Err(corrupt(key, &why));
    }
    Ok(task)
}

/// Parses a record that is not stored at its key, such as on a node; `name` is for the error.
pub fn read_elsewhere(name: &str, body: &[u8]) -> Result<Task> {
    let corrupt = |why: String| corrupt(name, &why);
    let flat: Flat = serde_json::from_slice(body).map_err(|error| corrupt(corrupt_reason(body, &error)))?;
    task(flat).map_err(corrupt)
}

fn corrupt(name: &str, why: &str) -> Error {
    Error::new(Kind::Corrupt, format!("`{name}` is not a task: {why}"))
}

/// Returns the task of a record, or the reason why the record is corrupt.
fn task(mut flat: Flat) -> Result<Task, String> {
    let format = required("format", flat.format)?;
    if format > FORMAT {
        return Err(format!(
            "format {format} is newer than the supported format {FORMAT}; upgrade leasehold"
        ));
    }
    let rev = required("rev", flat.rev)?;
    if !(1..=REV_MAX).contains(&rev) {
        return Err(format!("revision must be 1 to {REV_MAX}, got {rev}"));
    }
    Ok(Task {
        state: state(&mut flat)?,
        id: flat.id,
        task_type: flat.task_type,
        shard: required("shard", flat.shard)?,
        rev,
        write_id: required("write_id", flat.write_id)?,
        input: flat.input.unwrap_or_default().into_owned(),
        artifacts: flat.artifacts.into_owned(),
        attempt: required("attempt", flat.attempt)?,
        max_attempts: required("max_attempts", flat.max_attempts)?,
        retry_policy: flat.retry_policy.unwrap_or_default(),
        timeout_secs: flat.timeout_secs,
        priority: flat.priority.unwrap_or_default(),
        created_at: flat.created_at,
        updated_at: required("updated_at", flat.updated_at)?,
        expires_at: flat.expires_at,
        lease_id: flat.lease_id,
        epoch: required("epoch", flat.epoch)?,
        generation: flat.generation,
        error: flat.error.map(Cow::into_owned),
        progress: flat.progress.map(Cow::into_owned),
        tags: flat.tags.into_owned(),
        idempotency_key: flat.idempotency_key.map(Cow::into_owned),
        history: History {
            changes: required("history", flat.history)?.into_owned(),
            folded: flat.history_folded,
        },
        unknown: flat.unknown.into_owned(),
    })
}

fn state(flat: &mut Flat) -> Result<State, String> {
    let finished_at = by_status("finished_at", flat.finished_at);
    Ok(match required("status", flat.status)? {
        Status::Pending => State::Pending { available_at: by_status("available_at", flat.available_at)? },
        Status::Running => {
            by_status("lease_id", flat.lease_id.as_ref())?;
            State::Running(Claim {
                by: by_status("claimed_by", flat.claimed_by.take())?,
                expires_at: by_status("lease_expires_at", flat.lease_expires_at)?,
                renewed_at: flat.renewed_at,
                cancel_requested: flat.cancel_requested,
            })
        }
        Status::Completed => State::Completed {
            output: flat.output.take().unwrap_or_default().into_owned(),
            results: std::mem::take(&mut flat.results).into_owned(),
            finished_at: finished_at?,
        },
        Status::Failed => State::Failed { finished_at: finished_at? },
        Status::Cancelled => State::Cancelled { finished_at: finished_at? },
        Status::Expired => State::Expired { finished_at: finished_at? },
        Status::Purged => State::Purged { finished_at: finished_at? },
    })
}

fn required<T>(name: &str, field: Option<T>) -> Result<T, String> {
    field.ok_or_else(|| format!("missing field `{name}`"))
}

fn by_status<T>(name: &str, field: Option<T>) -> Result<T, String> {
    field.ok_or_else(|| format!("missing field `{name}`, required by its status"))
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde calls for")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

#[expect(clippy::ptr_arg, reason = "the signature that serde calls for")]
fn is_empty<K: Clone, V: Clone>(map: &Cow<'_, BTreeMap<K, V>>) -> bool {
    map.is_empty()
}

fn flat(task: &Task) -> Flat<'_> {
    let claim = if let State::Running(claim) = &task.state { Some(claim) } else { None };
    let available_at =
        if let State::Pending { available_at } = task.state { Some(available_at) } else { None };
    Flat {
        format: Some(FORMAT),
        id: task.id,
        task_type: task.task_type.clone(),
        shard: Some(task.shard.clone()),
        status: Some(task.status()),
        rev: Some(task.rev),
        write_id: Some(task.write_id.clone()),
        input: Some(Cow::Borrowed(&task.input)),
        artifacts: Cow::Borrowed(&task.artifacts),
        output: task.output().map(Cow::Borrowed),
        results: task.results().map(Cow::Borrowed).unwrap_or_default(),
        error: task.error.as_deref().map(Cow::Borrowed),
        attempt: Some(task.attempt),
        max_attempts: Some(task.max_attempts),
        retry_policy: Some(task.retry_policy.clone()),
        timeout_secs: task.timeout_secs,
        priority: Some(task.priority),
        available_at,
        created_at: task.created_at,
        updated_at: Some(task.updated_at),
        finished_at: task.state.finished_at(),
        expires_at: task.expires_at,
        claimed_by: claim.map(|claim| claim.by.clone()),
        lease_id: task.lease_id.clone(),
        lease_expires_at: claim.map(|claim| claim.expires_at),
        renewed_at: claim.and_then(|claim| claim.renewed_at),
        cancel_requested: claim.is_some_and(|claim| claim.cancel_requested),
        epoch: Some(task.epoch),
        generation: task.generation,
        progress: task.progress.as_ref().map(Cow::Borrowed),
        tags: Cow::Borrowed(&task.tags),
        idempotency_key: task.idempotency_key.as_deref().map(Cow::Borrowed),
        history: Some(Cow::Borrowed(&task.history.changes)),
        history_folded: task.history.folded,
        unknown: Cow::Borrowed(&task.unknown),
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
