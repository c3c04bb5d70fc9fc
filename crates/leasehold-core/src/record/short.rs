//! Short form of a record, for the journal: every field that follows from the others is left out.
//!
//! The log contains each submitted task in this form, and the memory of the broker each pending one, so its length counts:
//! a task that was submitted without options consists of its id, type, input, time and submitter, about a third of its
//! record. The values that stand for absent fields are part of the format. They never change, although the defaults of a
//! submit may.
//!
//! | field | value if left out |
//! | --- | --- |
//! | `format`, `rev` | 1 |
//! | `shard` | the first digit of the id: the journal has no shards |
//! | `status` | pending |
//! | `write_id` | derived from the id and the revision ([`write_id_of`]) |
//! | `input` | null |
//! | `attempt`, `epoch` | 0 |
//! | `max_attempts` | 4 |
//! | `retry_policy` | 1 s, factor 2, at most 300 s, jitter 0.2 |
//! | `priority` | 5 |
//! | `updated_at`, and `available_at` of a pending task | `created_at` |
//! | `history` | the submit, at `created_at`, by `submitted_by` |

use serde_json::{Map, Value};
use std::borrow::Cow;

use super::{FORMAT, Flat, flat};
use crate::ids::{HexName, TaskId, WriteId};
use crate::retry::RetryPolicy;
use crate::shard::ShardLen;
use crate::task::{CREATED, Change, Priority, Status, Task};
use crate::time::StoreTime;

/// Field with the actor of a submit that is the whole history.
const SUBMITTED_BY: &str = "submitted_by";

/// Size that most tasks with a small input do not exceed. A buffer that grows is copied several times.
const USUAL_BYTES: usize = 1_024;

const MAX_ATTEMPTS: u32 = 4;
const RETRY_POLICY: RetryPolicy =
    RetryPolicy { initial_secs: 1.0, factor: 2.0, max_secs: 300.0, jitter: 0.2 };

/// Write id of a revision in the journal. A commit has a write id of its own, by which its writer recognises it after a
/// lost answer, so that of a task need not be random. It has to differ from one revision to the next, nothing more.
pub(crate) fn write_id_of(id: &TaskId, rev: u64) -> WriteId {
    HexName::from_random(id.bits().wrapping_add(rev.into()))
}

/// Returns the short form of a task. `beside` are further fields; [`read`] returns them among the unknown ones.
pub(crate) fn write(task: &Task, beside: Map<String, Value>) -> Vec<u8> {
    let mut flat = flat(task);
    let created_at = task.created_at;
    leave_out(&mut flat.format, &FORMAT);
    leave_out(&mut flat.shard, &ShardLen::DEFAULT.shard_of(&task.id));
    leave_out(&mut flat.status, &Status::Pending);
    leave_out(&mut flat.write_id, &write_id_of(&task.id, task.rev));
    leave_out(&mut flat.rev, &1);
    leave_out(&mut flat.input, &Cow::Owned(Value::Null));
    leave_out(&mut flat.attempt, &0);
    leave_out(&mut flat.epoch, &0);
    leave_out(&mut flat.max_attempts, &MAX_ATTEMPTS);
    leave_out(&mut flat.retry_policy, &RETRY_POLICY);
    leave_out(&mut flat.priority, &Priority::default());
    leave_out(&mut flat.available_at, &created_at);
    leave_out(&mut flat.updated_at, &created_at);
    let submitted_by = submitter(task).map(|by| (SUBMITTED_BY.to_owned(), by.into()));
    if submitted_by.is_some() {
        flat.history = None;
    }
    if submitted_by.is_some() || !beside.is_empty() {
        flat.unknown.to_mut().extend(submitted_by.into_iter().chain(beside));
    }
    let mut body = Vec::with_capacity(USUAL_BYTES);
    serde_json::to_writer(&mut body, &flat).expect("a task has no keys that are not text");
    body
}

/// Parses the short form of a task; the error is the reason why it is corrupt.
pub(crate) fn read(body: &[u8]) -> Result<Task, String> {
    let mut flat: Flat = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    let (id, created_at) = (flat.id, flat.created_at);
    let status = *flat.status.get_or_insert(Status::Pending);
    let rev = *flat.rev.get_or_insert(1);
    flat.format.get_or_insert(FORMAT);
    flat.shard.get_or_insert_with(|| ShardLen::DEFAULT.shard_of(&id));
    flat.write_id.get_or_insert_with(|| write_id_of(&id, rev));
    flat.attempt.get_or_insert(0);
    flat.epoch.get_or_insert(0);
    flat.max_attempts.get_or_insert(MAX_ATTEMPTS);
    flat.retry_policy.get_or_insert(RETRY_POLICY);
    flat.updated_at.get_or_insert(created_at);
    if status == Status::Pending {
        flat.available_at.get_or_insert(created_at);
    }
    if flat.history.is_none() {
        let Some(Value::String(by)) = flat.unknown.to_mut().shift_remove(SUBMITTED_BY) else {
            return Err(format!("missing field `{SUBMITTED_BY}`, required without a history"));
        };
        flat.history = Some(Cow::Owned(vec![submit(id, by, created_at)]));
    }
    super::task(flat)
}

fn leave_out<T: PartialEq>(field: &mut Option<T>, default: &T) {
    if field.as_ref() == Some(default) {
        *field = None;
    }
}

/// Actor of the submit, if that is all that has happened to the task.
fn submitter(task: &Task) -> Option<String> {
    let [only] = &task.history.changes[..] else { return None };
    let is_plain = task.history.folded == 0 && *only == submit(task.id, only.by.clone(), task.created_at);
    is_plain.then(|| only.by.clone())
}

fn submit(id: TaskId, by: String, at: StoreTime) -> Change {
    Change {
        at,
        event: CREATED.to_owned(),
        from: None,
        to: Status::Pending,
        by,
        attempt: 0,
        epoch: 0,
        why: None,
        write_id: write_id_of(&id, 1),
        unknown: Map::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step::tests::tasks;
    use crate::testing::pending;

    fn text(task: &Task) -> String {
        String::from_utf8(write(task, Map::new())).unwrap()
    }

    #[test]
    fn a_task_without_options_has_five_fields() {
        let mut task = pending();
        task.write_id = write_id_of(&task.id, 1);
        task.history.changes[0].write_id = task.write_id.clone();
        insta::assert_snapshot!(text(&task));
        assert!(
            text(&task).len() * 5 < super::super::write(&task).len() * 2,
            "at most two fifths of the record"
        );
    }

    #[test]
    fn every_state_is_read_as_it_was_written() {
        for (name, task) in tasks() {
            assert_eq!(read(text(&task).as_bytes()).unwrap(), task, "{name}");
        }
    }

    #[test]
    fn further_fields_are_read_among_the_unknown_ones() {
        let beside: Map<_, _> = [("colour".to_owned(), Value::from("blue"))].into_iter().collect();
        let read_back = read(&write(&pending(), beside.clone())).unwrap();
        assert_eq!(read_back, Task { unknown: beside, ..pending() });
    }
}
