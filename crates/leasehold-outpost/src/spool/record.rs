//! Record of a task on disk, with the note of the node.

use leasehold_core::outpost::{BUCKET_TIME_MIN, ClockSource, NodeNow};
use leasehold_core::{Error, Kind, Now, Result, State, StoreTime, Task, TaskId, record};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Checkout;

/// Field of a record that only this node reads and writes; it is never sent to the bucket.
const FIELD: &str = "outpost";

/// Note of a node about a task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Note {
    /// Revision in the bucket that the record is based on; 0 if it is new here.
    pub(super) base_rev: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) checkout: Option<Checkout>,
    /// True if it was cancelled here while a worker held it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) cancelled: bool,
    /// Clock of the times of its last change.
    pub(super) clock: ClockSource,
    /// Boot id of its last change, if it was made here.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) boot_id: String,
}

/// A record with its note. The note is not part of the task itself.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct NotedRecord {
    pub(super) task: Task,
    pub(super) note: Note,
}

impl Note {
    /// Note about a task of the bucket.
    pub(super) fn of_bucket(base_rev: u64, checkout: Option<Checkout>) -> Self {
        Self { base_rev, checkout, cancelled: false, clock: ClockSource::Bucket, boot_id: String::new() }
    }

    /// Returns the note of a record that was changed here just now.
    pub(super) fn stamped(&self, now: &NodeNow) -> Self {
        Self { clock: now.clock(), boot_id: now.boot_id.clone(), ..self.clone() }
    }
}

impl NotedRecord {
    pub(super) fn read(id: &TaskId, body: &[u8]) -> Result<Self> {
        let corrupt = |why: &str| Error::new(Kind::Corrupt, format!("record of task {id} is corrupt: {why}"));
        let mut task = record::read_elsewhere(&format!("{id}.json"), body)?;
        if task.shard.len().shard_of(id) != task.shard || task.id != *id {
            return Err(corrupt("it is that of another task"));
        }
        let note = task.unknown.shift_remove(FIELD).map(serde_json::from_value).transpose();
        let note = note.map_err(|error| corrupt(&error.to_string()))?;
        Ok(Self { task, note: note.unwrap_or_else(|| Note::of_bucket(0, None)) })
    }

    pub(super) fn value(&self) -> Value {
        let mut value = record::value(&self.task);
        value[FIELD] = serde_json::to_value(&self.note).expect("names and numbers");
        value
    }

    /// Returns whether it may start now. A delayed task never starts early, also after a reboot, which resets the clock: then
    /// the delay counts from the boot.
    pub(super) fn is_due(&self, now: &NodeNow) -> bool {
        let State::Pending { available_at } = self.task.state else { return false };
        if self.has_expired(now) {
            return false;
        }
        let pause = available_at.since(self.task.updated_at);
        match self.now_by_clock_of(available_at, now) {
            Some(now) => now.is_due(available_at) && (pause.is_zero() || now.has_reached(available_at)),
            // It is unknown how much of the delay has passed.
            None if self.note.boot_id == now.boot_id => pause.is_zero(),
            None => now.boot.since(StoreTime::from_millis(0)) >= pause,
        }
    }

    /// Returns whether it is past its expiry.
    pub(super) fn has_expired(&self, now: &NodeNow) -> bool {
        self.task
            .expires_at
            .is_some_and(|at| self.now_by_clock_of(at, now).is_some_and(|now| now.is_past(at)))
    }

    /// Returns whether it has expired and only this node has it.
    pub(super) fn is_local_and_expired(&self, now: &NodeNow) -> bool {
        self.note.base_rev == 0 && self.has_expired(now)
    }

    /// Present by the clock of one of its times; `None` if that clock is not known now.
    pub(super) fn now_by_clock_of(&self, at: StoreTime, now: &NodeNow) -> Option<Now> {
        if at >= BUCKET_TIME_MIN || self.note.clock == ClockSource::Bucket {
            return now.bucket;
        }
        (self.note.boot_id == now.boot_id).then(|| Now::exactly(now.boot))
    }
}

/// Returns a task of the bucket as it is stored here: pending, so that applying its claim again gives the bucket's state.
pub(super) fn as_pending(remote: &Task) -> Task {
    let mut task = remote.clone();
    task.unknown.shift_remove(FIELD);
    if let State::Running(_) = task.state {
        task.state = State::Pending { available_at: task.updated_at };
        task.attempt = task.attempt.saturating_sub(1);
        task.epoch = task.epoch.saturating_sub(1);
    }
    task
}
