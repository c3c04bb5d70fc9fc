//! Submitting only once: idempotency keys.
//!
//! A record under the hash of the key names the task's id. It is created, on condition *absent*, before the task; a
//! producer that dies between the two is completed by the next submit with that key. Whoever replaces or removes an
//! expired record first puts a tombstone at its task id, so that a stalled producer can not still create the task.

use bytes::Bytes;
use leasehold_core::limits::PLAN_AHEAD_MAX;
use leasehold_core::unread::why_corrupt;
use leasehold_core::{
    Error, HexName, Kind, Matter, NewTask, Now, Result, Status, StoreTime, Task, TaskId, TaskType, keys,
    record,
};
use leasehold_store::{Decision, HostExt, Object, Purpose, Put, When, update_from};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::time::Duration;

use crate::connect::Queue;
use crate::layout::Intent;

/// The newest format that this program writes and reads.
const FORMAT: u32 = 1;
/// Shortest lifetime of a key: below an hour a slow producer could outlive it.
pub const LIFETIME_MIN: Duration = Duration::from_hours(1);
/// Usual lifetime of a key.
pub const LIFETIME: Duration = Duration::from_hours(24);
/// A record marked for removal is not overwritten for so long: its one delete may still be on its way.
pub const MARK_GRACE: Duration = Duration::from_mins(30);

/// A key under which a task is submitted only once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UniqueKey {
    /// The key itself.
    pub key: String,
    /// Among which tasks it is unique.
    pub scope: Scope,
    /// For how long.
    pub lifetime: Duration,
    /// Retries the task of this key if it has failed or expired. A task that someone has cancelled stays cancelled.
    pub retry_failed: bool,
}

/// Among which tasks a key is unique.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Scope {
    /// All tasks of the queue.
    #[default]
    Queue,
    /// The tasks of one type.
    TaskType,
}

impl UniqueKey {
    /// A key that is unique in the whole queue for a day.
    pub fn new(key: impl Into<String>) -> Self {
        Self { key: key.into(), scope: Scope::Queue, lifetime: LIFETIME, retry_failed: false }
    }

    fn hash(&self, task_type: &TaskType) -> String {
        let scope = match self.scope {
            Scope::Queue => String::new(),
            Scope::TaskType => task_type.to_string(),
        };
        blake3::hash(format!("{scope}\n{}", self.key).as_bytes()).to_hex().to_string()
    }
}

impl<T: Into<String>> From<T> for UniqueKey {
    fn from(key: T) -> Self {
        Self::new(key)
    }
}

/// What stands in the store for a key.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Record {
    format: u32,
    pub(crate) task_id: TaskId,
    task_type: TaskType,
    input_hash: String,
    pub(crate) expires_at: StoreTime,
    /// Set once it is about to be removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) removed_at: Option<StoreTime>,
    write_id: HexName,
    /// Fields of a newer program: kept as they are.
    #[serde(flatten)]
    unknown: Map<String, Value>,
}

impl Record {
    /// Whether it has expired and nobody is about to remove it.
    fn is_removable(&self, now: Now) -> bool {
        let is_left_behind = |removed_at: StoreTime| now.is_past(removed_at.plus(MARK_GRACE));
        now.is_past(self.expires_at) && self.removed_at.is_none_or(is_left_behind)
    }
}

/// What a producer finds under its key.
pub(crate) enum Reserved {
    /// Nothing: the key is ours now.
    Ours,
    /// A task that is there, in this status.
    Exists(TaskId, Status),
    /// A task that is not there yet.
    Unfinished(TaskId),
}

impl Queue {
    /// Takes the key for `fresh`, or finds whose it is.
    pub(crate) async fn reserve(&self, key: &UniqueKey, fresh: TaskId, order: &NewTask) -> Result<Reserved> {
        if key.lifetime < LIFETIME_MIN {
            return Err(Error::invalid("the lifetime of an idempotency key must be at least one hour"));
        }
        if key.lifetime > PLAN_AHEAD_MAX {
            return Err(Error::invalid("the lifetime of an idempotency key must be at most ten years"));
        }
        let path = keys::unique(&key.hash(&order.task_type));
        let input = canonical(&order.input).to_string();
        let record = Record {
            format: FORMAT,
            task_id: fresh,
            task_type: order.task_type.clone(),
            input_hash: blake3::hash(input.as_bytes()).to_hex().to_string(),
            expires_at: self.now()?.latest_known().plus(key.lifetime),
            removed_at: None,
            write_id: self.client.write_id(),
            unknown: Map::new(),
        };
        let mut when = When::Absent;
        loop {
            let body = Bytes::from(written(&record)?);
            match self.client.put(Purpose::Submit, &path, body, &when).await? {
                Put::Written(_) | Put::Overtaken(_) => return Ok(Reserved::Ours),
                Put::Lost(None) => when = When::Absent,
                Put::Lost(Some(object)) => match self.reserved_by(key, &path, &object, &record).await? {
                    Some(reserved) => return Ok(reserved),
                    // Expired, and its task can never appear: ours to replace.
                    None => when = When::Unchanged(object.version),
                },
            }
        }
    }

    /// Whose the key is; nothing if the record may be replaced.
    async fn reserved_by(
        &self,
        key: &UniqueKey,
        path: &str,
        object: &Object,
        wanted: &Record,
    ) -> Result<Option<Reserved>> {
        let found = parsed(path, &object.body)?;
        let now = self.now()?;
        if let Some(removed_at) = found.removed_at {
            let until = removed_at.plus(MARK_GRACE);
            if now.is_past(until) {
                return Ok(None);
            }
            let message =
                format!("idempotency key `{}` is just being removed; try again after {until}", key.key);
            return Err(Error::new(Kind::Unavailable, message));
        }
        if now.is_past(found.expires_at) {
            self.fence_task(&found.task_id).await?;
            return Ok(None);
        }
        if (&found.task_type, &found.input_hash) != (&wanted.task_type, &wanted.input_hash) {
            return Err(Error::invalid(format!(
                "idempotency key `{}` belongs to task {} with another type or input",
                key.key, found.task_id
            ))
            .about(Matter::Conflict));
        }
        Ok(match self.load(Purpose::Submit, &found.task_id).await? {
            None => Some(Reserved::Unfinished(found.task_id)),
            // Its submit was given up for good: the key is free again.
            Some(loaded) if loaded.task.is_tombstone() => None,
            Some(loaded) => Some(Reserved::Exists(found.task_id, loaded.task.status())),
        })
    }

    /// Puts a tombstone where a task is not, so that it can never appear; false if it is there after all, and stays.
    pub(crate) async fn fence_task(&self, id: &TaskId) -> Result<bool> {
        self.may(Intent::Change).await?;
        let shard = self.shard_len().shard_of(id);
        let tombstone = Task::tombstone(*id, shard, "submit abandoned", &self.act()?);
        let body = Bytes::from(record::write(&tombstone));
        let put = self.client.put(Purpose::Sweep, &self.task_key(id), body, &When::Absent).await?;
        Ok(matches!(put, Put::Written(_)))
    }

    /// A record that has expired and names a task that never was: the next submit under its key replaces it.
    pub(crate) fn expired_record(&self) -> Result<Bytes> {
        let expires_at = StoreTime::from_millis(0);
        let record = Record {
            format: FORMAT,
            task_id: TaskId::from_random(self.client.host().random_bits()),
            task_type: TaskType::checked("task type", "quarantined")?,
            input_hash: String::new(),
            expires_at,
            removed_at: Some(expires_at),
            write_id: self.client.write_id(),
            unknown: Map::new(),
        };
        written(&record).map(Bytes::from)
    }

    /// Removes an idempotency record that has expired: tombstone, mark, one delete that is never repeated. True if it
    /// was removed.
    pub async fn remove_expired_key(&self, path: &str) -> Result<bool> {
        let Some(object) = self.client.get(Purpose::Sweep, path).await? else { return Ok(false) };
        let found = parsed(path, &object.body)?;
        if !found.is_removable(self.now()?) {
            return Ok(false);
        }
        self.may(Intent::Change).await?;
        self.fence_task(&found.task_id).await?;
        let marked = update_from(&self.client, Purpose::Sweep, path, Some(object), |object| {
            let Some(object) = object else { return Ok(Decision::Leave(None)) };
            let (mut record, now) = (parsed(path, &object.body)?, self.now()?);
            // Only the record whose task was fenced.
            if record.task_id != found.task_id || !record.is_removable(now) {
                return Ok(Decision::Leave(None));
            }
            let removed_at = now.latest_known();
            record.removed_at = Some(removed_at);
            record.write_id = self.client.write_id();
            Ok(Decision::write(written(&record)?, Some(removed_at)))
        });
        let Some(removed_at) = marked.await?.result else { return Ok(false) };
        // The mark holds others off only for a while. Whoever slept in between leaves the delete to the next one: by
        // the time it arrives the key could be someone else's.
        let is_ours = self.now()?.is_before(removed_at.plus(MARK_GRACE / 2));
        if is_ours {
            self.client.delete(Purpose::Sweep, path).await?;
        }
        Ok(is_ours)
    }

    /// When the idempotency record of a task expires, if it has one that still names it.
    pub(crate) async fn key_expiry(&self, task: &Task) -> Result<Option<StoreTime>> {
        let Some(key) = &task.idempotency_key else { return Ok(None) };
        let mut latest = None;
        for scope in [Scope::Queue, Scope::TaskType] {
            let key = UniqueKey { scope, ..UniqueKey::new(key.clone()) };
            let path = keys::unique(&key.hash(&task.task_type));
            let Some(object) = self.client.get(Purpose::Sweep, &path).await? else { continue };
            let record = parsed(&path, &object.body)?;
            if record.task_id == task.id {
                latest = latest.max(Some(record.expires_at));
            }
        }
        Ok(latest)
    }
}

pub(crate) fn parsed(path: &str, body: &[u8]) -> Result<Record> {
    let corrupt =
        |why: String| Error::new(Kind::Corrupt, format!("`{path}` is not an idempotency record: {why}"));
    let record: Record = serde_json::from_slice(body).map_err(|error| corrupt(why_corrupt(body, &error)))?;
    if record.format > FORMAT {
        return Err(corrupt(format!("it has format {}, and this program knows {FORMAT}", record.format)));
    }
    Ok(record)
}

/// The value with the fields of its objects in order: two programs may write the same input differently.
fn canonical(value: &Value) -> Value {
    match value {
        Value::Array(items) => items.iter().map(canonical).collect(),
        Value::Object(fields) => {
            let sorted: BTreeMap<_, _> =
                fields.iter().map(|(name, value)| (name, canonical(value))).collect();
            sorted.into_iter().map(|(name, value)| (name.clone(), value)).collect()
        }
        plain => plain.clone(),
    }
}

fn written(record: &Record) -> Result<Vec<u8>> {
    serde_json::to_vec(record)
        .map_err(|error| Error::new(Kind::Internal, "an idempotency record cannot be written").because(error))
}
