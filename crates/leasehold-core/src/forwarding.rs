//! Forwarding marker, which replaces a task at its old key when the number of shards changes.
//!
//! A task cannot be at two keys at once, and no store can move an object. So the object at the old key is replaced,
//! by a conditional put, with a marker that contains the whole record for the new key. From that write on the old key is closed:
//! a writer that wants to change the task there loses, reads the marker, puts the record at the new key if it is not
//! there yet, and continues there.
//!
//! ```text
//!   tasks/3/3f2c….json    task, rev 6 ──▶ marker { record: task, rev 7, shard 3f }
//!                                            │ every writer puts the same bytes
//!   tasks/3f/3f2c….json                      └──▶ task, rev 7 ──▶ rev 8 …
//! ```
//!
//! Every move increments the revision, so that of two markers the one with the higher revision is newer, and so that a
//! record that returns to an old key has bytes that were never there before.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{Error, Kind, Result};
use crate::ids::{TaskId, WriteId};
use crate::keys;
use crate::record;
use crate::shard::Shard;
use crate::task::Task;

/// Object at the key of a task.
#[derive(Debug, Clone, PartialEq)]
pub enum Stored {
    /// The task.
    Task(Task),
    /// Forwarding marker of a task that has moved.
    Moved(ForwardingMarker),
}

/// Forwarding marker: the task as it is written in its new shard.
#[derive(Debug, Clone, PartialEq)]
pub struct ForwardingMarker {
    /// The task.
    pub task: Task,
}

#[derive(Serialize, Deserialize)]
struct Flat {
    format: u32,
    id: TaskId,
    moved_to: Shard,
    record: Value,
}

impl ForwardingMarker {
    /// Returns the new key of the task.
    #[must_use]
    pub fn key(&self) -> String {
        keys::task(&self.task.shard, &self.task.id)
    }

    /// Returns the bytes of the marker.
    #[must_use]
    pub fn write(&self) -> Vec<u8> {
        let flat = Flat {
            format: record::FORMAT,
            id: self.task.id,
            moved_to: self.task.shard.clone(),
            record: record::value(&self.task),
        };
        serde_json::to_vec(&flat).expect("a marker has no keys that are not text")
    }
}

/// Parses the object at the key of a task.
pub fn read(key: &str, body: &[u8]) -> Result<Stored> {
    record::read(key, body).map(Stored::Task).or_else(|error| {
        // Markers are rare, so that parsing them twice costs little.
        let flat = serde_json::from_slice::<Flat>(body).map_err(|_| error)?;
        parse_marker(key, &flat).map(Stored::Moved)
    })
}

/// True if this write is among those that led to the object at the key of a task.
#[must_use]
pub fn has_write(key: &str, body: &[u8], write_id: &WriteId) -> bool {
    match read(key, body) {
        Ok(Stored::Task(task) | Stored::Moved(ForwardingMarker { task })) => task.has_write(write_id),
        Err(_) => false,
    }
}

fn parse_marker(key: &str, flat: &Flat) -> Result<ForwardingMarker> {
    let corrupt = |why: String| Error::new(Kind::Corrupt, format!("`{key}` is not a task: {why}"));
    if flat.format > record::FORMAT {
        return Err(corrupt(format!(
            "format {} is newer than the supported format {}; upgrade leasehold",
            flat.format,
            record::FORMAT
        )));
    }
    let target = keys::task(&flat.moved_to, &flat.id);
    let is_key_of_task = |key: &str| keys::parse_task_shard(key).is_some_and(|(_, id)| id == flat.id);
    if !is_key_of_task(key) || !is_key_of_task(&target) || target == key {
        return Err(corrupt(format!(
            "forwarding marker of {} to shard {} does not match the key",
            flat.id, flat.moved_to
        )));
    }
    let task = record::read(&target, flat.record.to_string().as_bytes())
        .map_err(|error| corrupt(format!("invalid forwarding marker: {error}")))?;
    Ok(ForwardingMarker { task })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{context_at, now, pending, running};
    use crate::{Event, ShardLen, step};

    fn moved(task: &Task) -> ForwardingMarker {
        let shard = ShardLen::new(2).unwrap().shard_of(&task.id);
        ForwardingMarker { task: step(task, &Event::Move { shard }, &context_at(now())).unwrap().task }
    }

    #[test]
    fn a_marker_contains_the_whole_task() {
        for task in [pending(), running()] {
            let (key, marker) = (keys::task(&task.shard, &task.id), moved(&task));
            assert_eq!(read(&key, &marker.write()).unwrap(), Stored::Moved(marker.clone()));
            assert_eq!(marker.task.rev, task.rev + 1);
            assert_eq!(marker.task.history, task.history, "a move is no change of state");
            let entry = marker.task.entry().unwrap();
            assert_eq!((entry.shard().unwrap().as_str(), entry.rev), ("00", task.rev + 1));
            let record = record::write(&marker.task);
            assert_eq!(read(&marker.key(), &record).unwrap(), Stored::Task(marker.task));
        }
    }

    #[test]
    fn inconsistent_markers_are_corrupt() {
        let task = pending();
        let (key, marker) = (keys::task(&task.shard, &task.id), moved(&task));
        let good: Value = serde_json::from_slice(&marker.write()).unwrap();
        for (field, wrong) in [
            ("format", Value::from(2)),
            ("moved_to", "0".into()),
            ("moved_to", "ff".into()),
            ("id", TaskId::from_random(99).to_string().into()),
            ("record", Value::Null),
            ("record", record::value(&task)),
        ] {
            let mut body = good.clone();
            body[field] = wrong;
            let error = read(&key, body.to_string().as_bytes()).unwrap_err();
            assert_eq!(error.kind(), Kind::Corrupt, "{body}");
        }
        assert_eq!(
            read(&marker.key(), &marker.write()).unwrap_err().kind(),
            Kind::Corrupt,
            "not a marker of itself"
        );
    }
}
