//! The mark that a task leaves where it was when the number of shards changes.
//!
//! A task cannot be at two keys at once, and no store moves an object. So the object at the old key is replaced, on
//! condition, by a mark that holds the whole record as it is to stand at the new one. From that write on the old key
//! is closed: whoever wanted to change the task there loses, reads the mark, and knows where to go and what to put
//! there if nobody has done so yet.
//!
//! ```text
//!   tasks/3/3f2c….json    task, rev 6 ──▶ mark { record: task, rev 7, shard 3f }
//!                                            │ the same bytes, whoever puts them
//!   tasks/3f/3f2c….json                      └──▶ task, rev 7 ──▶ rev 8 …
//! ```
//!
//! Every move raises the revision, so that of two marks the one with the higher revision is the newer, and so that a
//! record that comes back to an old key has bytes that were never there before.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{Error, Kind, Result};
use crate::ids::{TaskId, WriteId};
use crate::keys;
use crate::record;
use crate::shard::Shard;
use crate::task::Task;

/// What stands at the key of a task.
#[derive(Debug, Clone, PartialEq)]
pub enum Stored {
    /// The task.
    Task(Task),
    /// The mark of a task that has moved.
    Moved(Mark),
}

/// The mark of a task that has moved: the task as it is to stand in its new shard.
#[derive(Debug, Clone, PartialEq)]
pub struct Mark {
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

impl Mark {
    /// The key to which it has moved.
    #[must_use]
    pub fn key(&self) -> String {
        keys::task(&self.task.shard, &self.task.id)
    }

    /// The bytes of the mark.
    #[must_use]
    pub fn write(&self) -> Vec<u8> {
        let flat = Flat {
            format: record::FORMAT,
            id: self.task.id,
            moved_to: self.task.shard.clone(),
            record: record::value(&self.task),
        };
        serde_json::to_vec(&flat).expect("a mark has no keys that are not text")
    }
}

/// Reads the object at the key of a task.
pub fn read(key: &str, body: &[u8]) -> Result<Stored> {
    record::read(key, body).map(Stored::Task).or_else(|error| {
        // Marks are rare: what is no task pays for being read twice.
        let flat = serde_json::from_slice::<Flat>(body).map_err(|_| error)?;
        mark(key, &flat).map(Stored::Moved)
    })
}

/// Whether this write is among those that led to the object at the key of a task.
#[must_use]
pub fn has_write(key: &str, body: &[u8], write_id: &WriteId) -> bool {
    match read(key, body) {
        Ok(Stored::Task(task) | Stored::Moved(Mark { task })) => task.has_write(write_id),
        Err(_) => false,
    }
}

fn mark(key: &str, flat: &Flat) -> Result<Mark> {
    let corrupt = |why: String| Error::new(Kind::Corrupt, format!("`{key}` is not a task: {why}"));
    if flat.format > record::FORMAT {
        return Err(corrupt(format!(
            "it has format {}, and this program knows {}",
            flat.format,
            record::FORMAT
        )));
    }
    let target = keys::task(&flat.moved_to, &flat.id);
    let is_its_place = |key: &str| keys::task_place(key).is_some_and(|(_, id)| id == flat.id);
    if !is_its_place(key) || !is_its_place(&target) || target == key {
        return Err(corrupt(format!("it says that {} has moved to shard {}", flat.id, flat.moved_to)));
    }
    let task = record::read(&target, flat.record.to_string().as_bytes())
        .map_err(|error| corrupt(format!("it has moved, but {error}")))?;
    Ok(Mark { task })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{act_at, now, pending, running};
    use crate::{Event, ShardLen, step};

    fn moved(task: &Task) -> Mark {
        let shard = ShardLen::new(2).unwrap().shard_of(&task.id);
        Mark { task: step(task, &Event::Move { shard }, &act_at(now())).unwrap().task }
    }

    #[test]
    fn a_mark_gives_the_whole_task_back() {
        for task in [pending(), running()] {
            let (key, mark) = (keys::task(&task.shard, &task.id), moved(&task));
            assert_eq!(read(&key, &mark.write()).unwrap(), Stored::Moved(mark.clone()));
            assert_eq!(mark.task.rev, task.rev + 1);
            assert_eq!(mark.task.history, task.history, "a move is no change of state");
            let entry = mark.task.entry().unwrap();
            assert_eq!((entry.shard().unwrap().as_str(), entry.rev), ("00", task.rev + 1));
            let record = record::write(&mark.task);
            assert_eq!(read(&mark.key(), &record).unwrap(), Stored::Task(mark.task));
        }
    }

    #[test]
    fn marks_that_make_no_sense_are_corrupt() {
        let task = pending();
        let (key, mark) = (keys::task(&task.shard, &task.id), moved(&task));
        let good: Value = serde_json::from_slice(&mark.write()).unwrap();
        for (field, wrong) in [
            ("format", Value::from(2)),
            ("moved_to", "0".into()),
            ("moved_to", "ff".into()),
            ("id", TaskId::from_random(99).to_string().into()),
            ("record", Value::Null),
            ("record", record::value(&task)),
        ] {
            let mut mark = good.clone();
            mark[field] = wrong;
            let error = read(&key, mark.to_string().as_bytes()).unwrap_err();
            assert_eq!(error.kind(), Kind::Corrupt, "{mark}");
        }
        assert_eq!(
            read(&mark.key(), &mark.write()).unwrap_err().kind(),
            Kind::Corrupt,
            "not a mark of itself"
        );
    }
}
