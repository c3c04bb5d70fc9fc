//! Archive: final tasks outside of the live state, in objects that are written once.
//!
//! ```text
//!   final tasks ──▶ object is put ──▶ `archive` record: tasks leave the live state, the object enters the table
//!   archived task ── retry ──▶ `archive` record: its copy is outdated; `submit` and `retry`: the task is live
//! ```
//!
//! The [table](ArchiveTable) of the objects is part of the state and of each snapshot, so a task leaves the live state and
//! enters the archive in one record. Each task is either live or in exactly one object, because the table also has the ids
//! whose copy in an object is *outdated*. An object has the tasks of one day, at most about 4 MiB of them, sorted by id; a
//! reader reads it whole and verifies the hash that the table has. At most three objects cover an id.

pub mod object;
mod plan;
mod table;

pub use object::{ArchiveInput, WrittenArchive, decode_archive, encode_archives};
pub use plan::{ArchiveBatch, ArchiveLimits, ArchivePage};
pub use table::ArchiveTable;

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use super::commit::CommitHash;
use crate::error::{Error, Result};
use crate::ids::{HexName, TaskId};
use crate::task::Status;
use crate::time::{Minute, StoreTime};

/// Length of an id in a name.
const ID_CHARS: usize = 36;

/// Latest time that a day can be written for: the end of the year 9999.
const LAST_MILLIS: i64 = 253_402_300_799_999;

/// Day of the archive: the UTC day of the times of its ids. Ids without a time have a day of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ArchiveDay(u32);

impl ArchiveDay {
    /// Day of ids without a time.
    pub const UNDATED: ArchiveDay = ArchiveDay(u32::MAX);

    /// Day of an id.
    #[must_use]
    pub fn of(id: &TaskId) -> Self {
        const DAY_MILLIS: i64 = 24 * 60 * 60 * 1_000;
        let millis = id.time().map(StoreTime::as_millis).filter(|millis| *millis <= LAST_MILLIS);
        let day = millis.and_then(|millis| u32::try_from(millis / DAY_MILLIS).ok());
        day.map_or(Self::UNDATED, Self)
    }

    fn start(self) -> StoreTime {
        StoreTime::from_millis(i64::from(self.0) * 24 * 60 * 60 * 1_000)
    }
}

impl fmt::Display for ArchiveDay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::UNDATED {
            return f.write_str("undated");
        }
        let minute = Minute::of(self.start()).to_string();
        f.write_str(minute.split('-').next().unwrap_or_default())
    }
}

/// Name of an object: its day, its range of ids, and a random id, so that no two brokers write the same object. Written as
/// `{day}/{first}-{last}-{id}`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ArchiveName {
    day: ArchiveDay,
    first: TaskId,
    last: TaskId,
    id: HexName,
}

impl ArchiveName {
    /// Name of an object with the tasks from `first` to `last`, which have one day.
    #[must_use]
    pub fn new(first: TaskId, last: TaskId, id: HexName) -> Self {
        Self { day: ArchiveDay::of(&first), first, last, id }
    }

    /// Day of its ids.
    #[must_use]
    pub fn day(&self) -> ArchiveDay {
        self.day
    }

    /// Smallest of its ids.
    #[must_use]
    pub fn first(&self) -> TaskId {
        self.first
    }

    /// Largest of its ids.
    #[must_use]
    pub fn last(&self) -> TaskId {
        self.last
    }

    /// True if an object with this name can have the task.
    #[must_use]
    pub fn covers(&self, id: &TaskId) -> bool {
        (self.first..=self.last).contains(id) && self.day == ArchiveDay::of(id)
    }
}

impl fmt::Display for ArchiveName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}-{}-{}", self.day, self.first, self.last, self.id)
    }
}

impl FromStr for ArchiveName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let parse = || {
            let ids = text.split_once('/')?.1;
            let (first, rest) = ids.split_at_checked(ID_CHARS)?;
            let (last, id) = rest.strip_prefix('-')?.split_at_checked(ID_CHARS)?;
            let bits = u128::from_str_radix(id.strip_prefix('-')?, 16).ok()?;
            Some(Self::new(first.parse().ok()?, last.parse().ok()?, HexName::from_random(bits)))
        };
        let name = parse().filter(|name| name.to_string() == text && name.first <= name.last);
        name.ok_or_else(|| Error::invalid(format!("`{text}` is not the name of an archive object")))
    }
}

impl Serialize for ArchiveName {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ArchiveName {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// An archive object, as the table has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ArchiveRef {
    /// Its name.
    pub name: ArchiveName,
    /// Hash of the whole object.
    pub hash: CommitHash,
    /// Length of the whole object.
    pub bytes: u64,
    /// Number of its tasks by status, without those that are outdated.
    pub counts: BTreeMap<Status, u64>,
    /// Earliest time at which one of its tasks has ended.
    pub earliest: StoreTime,
    /// Latest time at which one of its tasks has ended.
    pub latest: StoreTime,
    /// Latest expiry of the idempotency keys of its tasks. All of them had expired when they were archived.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keys_until: Option<StoreTime>,
    /// Ids whose copy in this object is outdated: the task is live again, or was.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub outdated: BTreeSet<TaskId>,
}

impl ArchiveRef {
    /// Number of its tasks, without those that are outdated.
    #[must_use]
    pub fn tasks(&self) -> u64 {
        self.counts.values().sum()
    }

    /// True if it may have a task that is not outdated.
    #[must_use]
    pub fn may_have(&self, id: &TaskId) -> bool {
        self.name.covers(id) && !self.outdated.contains(id)
    }

    /// Notes that a copy is outdated; false if the object has no task of this status.
    pub(super) fn outdate(&mut self, id: TaskId, status: Status) -> bool {
        let Some(count) = self.counts.get_mut(&status) else { return false };
        *count -= 1;
        if *count == 0 {
            self.counts.remove(&status);
        }
        self.outdated.insert(id)
    }
}

/// A task that leaves the live state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MovedTask {
    /// Its id.
    pub id: TaskId,
    /// Its revision, which is that of its copy.
    pub rev: u64,
}

/// A copy in an object that becomes outdated, because its task becomes live in the same commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OutdatedCopy {
    /// Object that has it.
    pub object: ArchiveName,
    /// Id of the task.
    pub id: TaskId,
    /// Status of the copy.
    pub status: Status,
}

/// Change of the archive: the content of one record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a change of the archive")]
pub struct ArchiveChange {
    /// Time of the change.
    pub at: StoreTime,
    /// Objects that were written.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub added: Vec<ArchiveRef>,
    /// Objects that are no longer needed. They are deleted later.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub removed: Vec<ArchiveName>,
    /// Objects that were removed before, and are deleted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deleted: Vec<ArchiveName>,
    /// Tasks that leave the live state.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tasks: Vec<MovedTask>,
    /// Copies whose tasks become live.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outdated: Vec<OutdatedCopy>,
}

impl ArchiveChange {
    /// Change without content.
    #[must_use]
    pub fn at(at: StoreTime) -> Self {
        let (added, removed, deleted) = (Vec::new(), Vec::new(), Vec::new());
        Self { at, added, removed, deleted, tasks: Vec::new(), outdated: Vec::new() }
    }

    /// True if it changes nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::at(self.at)
    }
}

/// A task as an object of the archive has it.
#[derive(Debug, Clone, PartialEq)]
pub struct ArchivedTask {
    /// Object that has it.
    pub object: ArchiveName,
    /// The task.
    pub task: super::task::JournalTask,
}
