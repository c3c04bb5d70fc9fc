//! Key of each task, by the raw objects: its record, or the forwarding marker that it left when it moved
//! (promise P8).
//!
//! A task is the record at its current key, or, until that was written, the record in the forwarding marker.
//! A submit or a tombstone that is written late at an old key may exist beside it for a while, as a *stray*:
//! no producer was answered with it, and index cleanup moves or removes it.

use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::raw::Raw;
use crate::bucket::StoredObject;

/// Maximum time from the switch to the last write of a client that has not read the migration: it was sent
/// long before, and is delayed for twenty minutes, beside what a slow network adds.
const LATE_WITHIN: Duration = Duration::from_mins(22);
/// Fields of a record that a move changes.
const MOVED: [&str; 4] = ["shard", "rev", "write_id", "updated_at"];

/// Object at the key of a task.
#[derive(Debug, Clone)]
pub(super) enum RawTaskObject {
    Task(Raw),
    /// Forwarding marker of a task that has moved, with its record for the new key.
    Marker(Raw),
}

/// `queue.json`, by its raw object.
#[derive(Debug, Clone, Default)]
pub(super) struct RawQueueMeta {
    pub(super) len: usize,
    migrating: Option<(usize, String)>,
    left: Option<(usize, bool)>,
    /// Virtual time of the last change of the length.
    switched_at: Option<Duration>,
}

/// Effect on a task of a change at one of its keys.
#[derive(Debug)]
pub(super) enum TaskEffect {
    /// The task was created or changed: its record now.
    Changed(Raw),
    /// The task is unchanged.
    Same,
    /// A record that no producer was answered with exists beside the task. If it is the one at the old key,
    /// it is removed.
    Stray(Raw),
    /// The task was deleted, as allowed.
    Gone,
}

impl fmt::Display for RawTaskObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RawTaskObject::Task(raw) => write!(f, "task {}", raw.0),
            RawTaskObject::Marker(raw) => write!(f, "forwarding marker of {}", raw.0),
        }
    }
}

impl fmt::Display for RawQueueMeta {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "shard length {}", self.len)?;
        if let Some((to, phase)) = &self.migrating {
            write!(f, ", a migration to {to} ({phase})")?;
        }
        if let Some((left, is_swept)) = self.left {
            write!(f, ", {} keys of length {left}", if is_swept { "deleted" } else { "old" })?;
        }
        Ok(())
    }
}

impl RawTaskObject {
    pub(super) fn read(stored: &StoredObject) -> Result<Self, String> {
        let Raw(value) = Raw::read(stored)?;
        Ok(match value.get("moved_to") {
            Some(_) => RawTaskObject::Marker(Raw(value["record"].clone())),
            None => RawTaskObject::Task(Raw(value)),
        })
    }
}

impl RawQueueMeta {
    /// Records a change of `queue.json`. Returns whether the length has changed.
    pub(super) fn change(&mut self, stored: &StoredObject, now: Duration) -> Result<bool, String> {
        let Raw(new) = Raw::read(stored)?;
        let length = |value: &Value| value.as_u64().and_then(|len| usize::try_from(len).ok());
        let len = length(&new["shard_prefix_len"]).ok_or("queue.json has no shard_prefix_len")?;
        let switches = self.len != 0 && self.len != len;
        if switches && self.migrating.as_ref().is_none_or(|(to, phase)| *to != len || phase != "moving") {
            return Err(format!("P8: the shard length changed to {len} from {self}"));
        }
        self.switched_at = if switches { Some(now) } else { self.switched_at };
        self.len = len;
        let (migrating, left) = (&new["migrating"], &new["left"]);
        self.migrating = length(&migrating["to"])
            .map(|to| (to, migrating["phase"].as_str().unwrap_or_default().to_owned()));
        self.left = length(&left["shard_prefix_len"]).map(|len| (len, left["swept_at"].is_string()));
        Ok(switches)
    }

    /// Returns whether no migration is in progress.
    pub(super) fn is_not_migrating(&self) -> bool {
        self.migrating.is_none()
    }

    fn is_swept(&self) -> bool {
        self.migrating.is_none() && self.left.is_none_or(|(_, is_swept)| is_swept)
    }

    /// Returns whether a forwarding marker may appear at keys of this length.
    fn may_hold_marker(&self, len: usize) -> bool {
        match (&self.migrating, self.left) {
            (Some((to, phase)), _) if phase == "aborting" => len == self.len || len == *to,
            (Some((_, phase)), _) => phase == "moving" && len == self.len,
            (None, Some((left, is_swept))) => !is_swept && len == left,
            (None, None) => false,
        }
    }

    /// Returns whether a task may be written at keys of this length: the queue's current one, the migration's
    /// target, and the previous one as long as a write can be delayed.
    fn may_write(&self, len: usize, now: Duration) -> bool {
        let goes = self.migrating.as_ref().is_some_and(|(to, _)| *to == len);
        let late = self.switched_at.is_none_or(|at| now.saturating_sub(at) <= LATE_WITHIN);
        len == self.len || goes || late
    }
}

/// Objects at the keys of one task.
#[derive(Debug, Clone, Default)]
pub(super) struct TaskObjects(BTreeMap<usize, RawTaskObject>);

/// Context of a change.
pub(super) struct ChangeContext<'a> {
    pub(super) meta: &'a RawQueueMeta,
    pub(super) now: Duration,
    /// True if the store's time has jumped: no grace period holds.
    pub(super) jumped: bool,
    /// Record of the task before the change, if it existed.
    pub(super) task: Option<&'a Raw>,
}

impl fmt::Display for TaskObjects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let objects = self.0.iter().map(|(len, object)| format!("{object} at a key of {len} digits"));
        f.write_str(&objects.collect::<Vec<_>>().join(", "))
    }
}

impl TaskObjects {
    /// Records a change at the key of this length.
    pub(super) fn change(
        &mut self,
        len: usize,
        after: Option<RawTaskObject>,
        context: &ChangeContext,
    ) -> Result<TaskEffect, String> {
        let before = match &after {
            Some(object) => self.0.insert(len, object.clone()),
            None => self.0.remove(&len),
        };
        let elsewhere = self.0.iter().find(|(other, _)| **other != len).map(|(_, object)| object);
        match (before, after) {
            (Some(before), None) => removed(&before, elsewhere, context),
            (None, None) => Ok(TaskEffect::Same),
            (before, Some(RawTaskObject::Marker(record))) => {
                if !context.meta.may_hold_marker(len) {
                    return Err(format!(
                        "P8: a forwarding marker at a key of {len} digits under {}",
                        context.meta
                    ));
                }
                marked(before, record, len, context)
            }
            (before, Some(RawTaskObject::Task(new))) => {
                if new.text("shard").len() != len {
                    return Err(format!("P8: shard {} at a key of {len} digits", new.text("shard")));
                }
                if !context.meta.may_write(len, context.now) {
                    let at = context.meta.switched_at.unwrap_or_default().as_secs_f64();
                    return Err(format!(
                        "P8: written at a key of {len} digits, which the queue left at {at:.6}"
                    ));
                }
                written(before, elsewhere, new, len, context)
            }
        }
    }

    /// Returns whether this revision is at its key, and not only in a forwarding marker.
    pub(super) fn has(&self, task: &Raw) -> bool {
        self.0.values().any(|object| matches!(object, RawTaskObject::Task(found) if is_same(found, task)))
    }

    /// Returns whether the task is at its key of this length.
    pub(super) fn is_at(&self, len: usize) -> bool {
        matches!(self.0.get(&len), Some(RawTaskObject::Task(_)))
    }

    /// Returns the record that a switch to a length wrongly left at the old key; a record that no producer
    /// was answered with is allowed.
    pub(super) fn left_by_switch(&self, len: usize) -> Option<&Raw> {
        self.0.iter().find_map(|(other, object)| match object {
            _ if self.is_at(len) || *other == len => None,
            RawTaskObject::Task(task) if task.number("rev") == 1 => None,
            RawTaskObject::Task(task) | RawTaskObject::Marker(task) => Some(task),
        })
    }

    /// Returns whether an object is at a key of another length than this.
    pub(super) fn has_other_length(&self, len: usize) -> bool {
        self.0.keys().any(|other| *other != len)
    }
}

fn is_same(one: &Raw, other: &Raw) -> bool {
    one.text("write_id") == other.text("write_id") && one.number("rev") == other.number("rev")
}

fn removed(
    before: &RawTaskObject,
    elsewhere: Option<&RawTaskObject>,
    context: &ChangeContext,
) -> Result<TaskEffect, String> {
    match (before, elsewhere) {
        // The task has changed since, or another was submitted under the same key.
        (RawTaskObject::Marker(left), Some(RawTaskObject::Task(there)))
            if there.number("rev") >= left.number("rev")
                || context.task.is_some_and(|task| is_same(task, there)) =>
        {
            Ok(TaskEffect::Same)
        }
        (RawTaskObject::Marker(left), _) => {
            Err(format!("P1: its forwarding marker was deleted, but the task does not exist: {}", left.0))
        }
        (RawTaskObject::Task(left), _) if left.status() == "purged" => Ok(TaskEffect::Gone),
        (RawTaskObject::Task(_), _) => Err("P1: it was deleted".into()),
    }
}

/// Checks that a task becomes a forwarding marker: only its key and its revision change.
fn marked(
    before: Option<RawTaskObject>,
    record: Raw,
    len: usize,
    context: &ChangeContext,
) -> Result<TaskEffect, String> {
    let Some(RawTaskObject::Task(old)) = before else {
        let before = before.map_or_else(|| "nothing".to_owned(), |before| before.to_string());
        return Err(format!("P8: a forwarding marker replaced {before}"));
    };
    let without = |raw: &Raw| {
        let mut value = raw.0.clone();
        for field in MOVED {
            value[field].take();
        }
        value
    };
    if without(&old) != without(&record) || record.text("shard").len() == len {
        return Err(format!("P8: {} was moved as {}", old.0, record.0));
    }
    let is_stray = context.task.is_some_and(|task| !is_same(task, &old));
    Ok(if is_stray { TaskEffect::Same } else { TaskEffect::Changed(record) })
}

fn written(
    before: Option<RawTaskObject>,
    elsewhere: Option<&RawTaskObject>,
    new: Raw,
    len: usize,
    context: &ChangeContext,
) -> Result<TaskEffect, String> {
    if let Some(RawTaskObject::Task(old)) = &before {
        if context.task.is_some_and(|task| !is_same(task, old)) {
            return Err(format!("P8: changed at a key that it has left: {}", old.0));
        }
        return Ok(TaskEffect::Changed(new));
    }
    // The record of a forwarding marker is written to its target key.
    if let Some(RawTaskObject::Marker(record)) = elsewhere
        && record.0 == new.0
    {
        return match before {
            Some(RawTaskObject::Marker(older)) if older.number("rev") >= new.number("rev") => {
                Err("P8: a newer forwarding marker was replaced".into())
            }
            _ => Ok(TaskEffect::Same),
        };
    }
    if before.is_some() {
        return Err(format!("P8: a forwarding marker was replaced by {}", new.0));
    }
    let Some(elsewhere) = elsewhere else { return Ok(TaskEffect::Changed(new)) };
    let shares_key = new.submit().is_none() || new.is_tombstone();
    if new.number("rev") != 1 || !context.jumped && (!shares_key || context.meta.is_swept()) {
        return Err(format!("P8: the task exists twice: as {elsewhere}, and as {}", new.0));
    }
    let is_removed =
        matches!(elsewhere, RawTaskObject::Task(old) if old.number("rev") == 1) && len == context.meta.len;
    Ok(if is_removed { TaskEffect::Stray(new) } else { TaskEffect::Same })
}
