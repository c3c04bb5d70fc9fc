//! Raw objects, parsed without the queue's own code, so that checks are independent of it.

use leasehold_core::StoreTime;
use serde_json::Value;
use std::fmt;

use crate::bucket::StoredObject;

/// A task's record.
#[derive(Debug, Clone)]
pub(crate) struct Raw(pub(crate) Value);

impl Raw {
    pub(crate) fn read(stored: &StoredObject) -> Result<Self, String> {
        serde_json::from_slice(&stored.object.body).map(Raw).map_err(|error| format!("not JSON: {error}"))
    }

    pub(crate) fn text(&self, field: &str) -> &str {
        self.0[field].as_str().unwrap_or_default()
    }

    pub(crate) fn number(&self, field: &str) -> u64 {
        self.0[field].as_u64().unwrap_or_default()
    }

    pub(crate) fn status(&self) -> &str {
        self.text("status")
    }

    pub(crate) fn is_final(&self) -> bool {
        !matches!(self.status(), "pending" | "running")
    }

    pub(crate) fn time(&self, field: &str) -> Option<i64> {
        self.text(field).parse::<StoreTime>().ok().map(StoreTime::as_millis)
    }

    pub(crate) fn history(&self) -> &[Value] {
        self.0["history"].as_array().map_or(&[], |history| history)
    }

    pub(crate) fn is_tombstone(&self) -> bool {
        self.0["history"][0]["event"] == "abandon"
    }

    /// Number of the submit that created it, if it had no key.
    pub(crate) fn submit(&self) -> Option<u64> {
        self.0["input"]["submit"].as_u64()
    }

    /// Minute by which it must be found, as entries spell it; none if it is final.
    pub(crate) fn due(&self) -> Option<String> {
        let minute = |field: &str| minute(self.0[field].as_str()?);
        match self.status() {
            "pending" => [minute("available_at"), minute("expires_at")].into_iter().flatten().min(),
            "running" => minute("lease_expires_at"),
            _ => None,
        }
    }
}

/// Minute of a time, as entries spell it.
pub(crate) fn minute(time: &str) -> Option<String> {
    let part = |from: usize, to: usize| time.get(from..to);
    let (date, clock) = ((part(0, 4)?, part(5, 7)?, part(8, 10)?), (part(11, 13)?, part(14, 16)?));
    Some(format!("{}{}{}-{}{}", date.0, date.1, date.2, clock.0, clock.1))
}

/// An index entry: the shard, if it is in one, the task, its revision and its minute.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RawEntry {
    pub(crate) shard: String,
    pub(crate) id: String,
    pub(crate) rev: u64,
    pub(crate) minute: String,
    pub(crate) index: String,
}

impl RawEntry {
    pub(crate) fn read(key: &str) -> Option<Self> {
        let parts: Vec<_> = key.split('/').collect();
        let (index, shard, minute, name) = match parts[..] {
            [index @ ("ready" | "leases"), shard, minute, name] => (index.to_owned(), shard, minute, name),
            ["inbox", worker, minute, name] => (format!("inbox of {worker}"), "", minute, name),
            ["overflow", minute, name] => ("overflow".to_owned(), "", minute, name),
            _ => return None,
        };
        let (id, rev) = name.rsplit_once('.')?;
        let id = if index == "leases" { id } else { id.get(1..)? };
        let rev = rev.parse().ok()?;
        let (shard, minute) = (shard.to_owned(), minute.to_owned());
        Some(Self { shard, id: id.to_owned(), rev, minute, index })
    }
}

impl fmt::Display for RawEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { shard, id, rev, minute, index } = self;
        let shard = if shard.is_empty() { String::new() } else { format!(" shard {shard}") };
        write!(f, "{index}{shard} of task {id} at rev {rev}, due {minute}")
    }
}

/// Returns the id of a task, by its key.
pub(crate) fn task_id(key: &str) -> Option<&str> {
    key.strip_prefix("tasks/")?.rsplit('/').next()?.strip_suffix(".json")
}

/// Returns the number of digits that name the shard in the key of a task.
pub(super) fn shard_digits(key: &str) -> usize {
    key.split('/').nth(1).map_or(0, str::len)
}
