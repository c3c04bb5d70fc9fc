//! Difference between two revisions of a task.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use crate::error::{Error, Kind, Result};
use crate::ids::{LeaseId, WriteId};
use crate::record::short::write_id_of;
use crate::shard::Shard;
use crate::task::{Change, State, Task};
use crate::time::StoreTime;

/// Difference between a task and its next revision: the fields that have changed, and the one new event of its history.
///
/// It is the *result* of an event, not the event: a later version that would decide otherwise replays it with the same effect.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a change")]
pub struct TaskChange {
    /// New revision: one more than that of the task before.
    pub rev: u64,
    /// Time of the change.
    pub at: StoreTime,
    /// Write id, if it is not the one that follows from the id and the revision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    write_id: Option<WriteId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    shard: Option<Shard>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    state: Option<State>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    attempt: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    max_attempts: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    epoch: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    generation: Option<u64>,
    #[serde(default, skip_serializing_if = "Patch::is_keep")]
    lease_id: Patch<LeaseId>,
    #[serde(default, skip_serializing_if = "Patch::is_keep")]
    expires_at: Patch<StoreTime>,
    #[serde(default, skip_serializing_if = "Patch::is_keep")]
    error: Patch<String>,
    #[serde(default, skip_serializing_if = "Patch::is_keep")]
    progress: Patch<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    event: Option<LoggedEvent>,
}

/// New event of a history. Its time, its statuses, its epoch and its write id are those of the change.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LoggedEvent {
    name: String,
    by: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    why: Option<String>,
    /// Attempt to which it belongs, if that is not the one of the task after the change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    attempt: Option<u32>,
}

impl TaskChange {
    /// Returns the difference between a task and its next revision, as [`step`](crate::step()) returns it.
    #[must_use]
    pub fn between(old: &Task, new: &Task) -> Self {
        Self {
            rev: new.rev,
            at: new.updated_at,
            write_id: Some(&new.write_id).filter(|id| **id != write_id_of(&new.id, new.rev)).cloned(),
            shard: changed(&old.shard, &new.shard),
            state: changed(&old.state, &new.state),
            attempt: changed(&old.attempt, &new.attempt),
            max_attempts: changed(&old.max_attempts, &new.max_attempts),
            epoch: changed(&old.epoch, &new.epoch),
            generation: changed(&old.generation, &new.generation),
            lease_id: Patch::between(old.lease_id.as_ref(), new.lease_id.as_ref()),
            expires_at: Patch::between(old.expires_at.as_ref(), new.expires_at.as_ref()),
            error: Patch::between(old.error.as_ref(), new.error.as_ref()),
            progress: Patch::between(old.progress.as_ref(), new.progress.as_ref()),
            event: LoggedEvent::between(old, new),
        }
    }

    /// Checks that the change is that of the next revision of a task. The change of any other revision is corrupt.
    pub(super) fn check_follows(&self, task: &Task) -> Result<()> {
        if self.rev == task.rev + 1 {
            return Ok(());
        }
        let message =
            format!("revision {} of task {} follows revision {} in the journal", self.rev, task.id, task.rev);
        Err(Error::new(Kind::Corrupt, message))
    }

    /// Changes a task into its next revision.
    pub fn apply(self, task: &mut Task) -> Result<()> {
        self.check_follows(task)?;
        let from = task.status();
        task.rev = self.rev;
        task.updated_at = self.at;
        task.write_id = self.write_id.unwrap_or_else(|| write_id_of(&task.id, self.rev));
        set(&mut task.shard, self.shard);
        set(&mut task.state, self.state);
        set(&mut task.attempt, self.attempt);
        set(&mut task.max_attempts, self.max_attempts);
        set(&mut task.epoch, self.epoch);
        set(&mut task.generation, self.generation);
        self.lease_id.apply(&mut task.lease_id);
        self.expires_at.apply(&mut task.expires_at);
        self.error.apply(&mut task.error);
        self.progress.apply(&mut task.progress);
        if let Some(event) = self.event {
            task.history.add(Change {
                at: self.at,
                event: event.name,
                from: Some(from),
                to: task.status(),
                by: event.by,
                attempt: event.attempt.unwrap_or(task.attempt),
                epoch: task.epoch,
                why: event.why,
                write_id: task.write_id.clone(),
                unknown: Map::new(),
            });
        }
        Ok(())
    }
}

impl LoggedEvent {
    fn between(old: &Task, new: &Task) -> Option<Self> {
        let count = |task: &Task| task.history.folded + task.history.changes.len() as u64;
        let newest = new.history.changes.last().filter(|_| count(new) > count(old))?;
        Some(Self {
            name: newest.event.clone(),
            by: newest.by.clone(),
            why: newest.why.clone(),
            attempt: changed(&new.attempt, &newest.attempt),
        })
    }
}

fn changed<T: PartialEq + Clone>(old: &T, new: &T) -> Option<T> {
    (old != new).then(|| new.clone())
}

fn set<T>(field: &mut T, new: Option<T>) {
    if let Some(new) = new {
        *field = new;
    }
}

/// Change of a field that a task may lack. In JSON an absent field is kept, and null clears it.
#[derive(Debug, Clone, PartialEq, Default)]
enum Patch<T> {
    #[default]
    Keep,
    Clear,
    Set(T),
}

impl<T: PartialEq + Clone> Patch<T> {
    fn between(old: Option<&T>, new: Option<&T>) -> Self {
        match new {
            _ if old == new => Self::Keep,
            None => Self::Clear,
            Some(new) => Self::Set(new.clone()),
        }
    }
}

impl<T> Patch<T> {
    fn is_keep(&self) -> bool {
        matches!(self, Self::Keep)
    }

    fn apply(self, field: &mut Option<T>) {
        match self {
            Self::Keep => {}
            Self::Clear => *field = None,
            Self::Set(new) => *field = Some(new),
        }
    }
}

impl<T: Serialize> Serialize for Patch<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Keep | Self::Clear => serializer.serialize_none(),
            Self::Set(new) => new.serialize(serializer),
        }
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Patch<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Option::deserialize(deserializer)?.map_or(Self::Clear, Self::Set))
    }
}
