//! Idempotency keys: submitting a task only once.
//!
//! A record under the hash of the key contains the task's id. It is created before the task, on condition that none
//! exists. If the producer crashes between the two, the next submit with that key creates the task. A client that
//! replaces or removes an expired record first puts a tombstone at its task id, so that a stalled producer can no
//! longer create the task.
//!
//! Requests: a first submit is 1 put more; a duplicate is 1 put (refused) and 2 gets. Removing an expired record is 1
//! get, 2 puts and 1 delete.

use bytes::Bytes;
use leasehold_core::journal::KeyReservation;
use leasehold_core::oversize::corrupt_reason;
pub use leasehold_core::unique::{LIFETIME, LIFETIME_MIN, Scope, UniqueKey};
use leasehold_core::{
    Error, Kind, NewTask, Now, Reason, Result, Status, StoreTime, Task, TaskId, TaskType, WriteId, keys,
    record,
};
use leasehold_store::{Client, Decision, HostExt, Object, Purpose, PutOutcome, When, update_from};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::time::Duration;

use crate::connect::ObjectQueue;
use crate::meta_cache::Intent;

/// Newest format that this program reads and writes.
const FORMAT: u32 = 1;
/// Time for which a record marked for removal is not overwritten: its one delete may not have been applied yet.
pub const MARK_GRACE: Duration = Duration::from_mins(30);

/// The stored record of a key.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct KeyRecord {
    format: u32,
    pub(crate) task_id: TaskId,
    task_type: TaskType,
    input_hash: String,
    pub(crate) expires_at: StoreTime,
    /// Time at which it was marked for removal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) removed_at: Option<StoreTime>,
    write_id: WriteId,
    /// Fields written by a newer program, preserved unchanged.
    #[serde(flatten)]
    unknown: Map<String, Value>,
}

impl KeyRecord {
    fn new(task_id: TaskId, task_type: TaskType, expires_at: StoreTime, write_id: WriteId) -> Self {
        let (input_hash, unknown) = (String::new(), Map::new());
        Self {
            format: FORMAT,
            task_id,
            task_type,
            input_hash,
            expires_at,
            removed_at: None,
            write_id,
            unknown,
        }
    }

    /// True if it has expired and no client is about to remove it.
    fn is_removable(&self, now: Now) -> bool {
        let is_left_behind = |removed_at: StoreTime| now.is_past(removed_at.plus(MARK_GRACE));
        now.is_past(self.expires_at) && self.removed_at.is_none_or(is_left_behind)
    }

    fn to_bytes(&self) -> Bytes {
        Bytes::from(serde_json::to_vec(self).expect("maps with text for keys, numbers and text"))
    }
}

/// Outcome of reserving a key.
pub(crate) enum Reserved {
    /// Another task has the key, in this status.
    Exists(TaskId, Status),
    /// The key is reserved for this task, by this submit or another one, and the task does not exist yet.
    Unfinished(TaskId),
}

impl ObjectQueue {
    /// Reserves the key for `fresh`, or finds the task that has it.
    pub(crate) async fn reserve(
        &self,
        key: &UniqueKey,
        fresh: TaskId,
        new_task: &NewTask,
    ) -> Result<Reserved> {
        key.check()?;
        let path = keys::unique(&key.hash(&new_task.task_type).to_hex());
        let expires_at = self.now()?.latest_known().plus(key.lifetime);
        let record = self.key_record(fresh, &new_task.task_type, &new_task.input, expires_at);
        let mut when = When::Absent;
        loop {
            match self.client.put(Purpose::Submit, &path, record.to_bytes(), &when).await? {
                PutOutcome::Written(_) | PutOutcome::Superseded(_) => return Ok(Reserved::Unfinished(fresh)),
                PutOutcome::Lost(None) => when = When::Absent,
                PutOutcome::Lost(Some(object)) => match self.reserved_by(key, &path, &object, &record).await?
                {
                    Some(reserved) => return Ok(reserved),
                    // Expired, and its task can no longer appear: the record may be replaced.
                    None => when = When::Unchanged(object.version),
                },
            }
        }
    }

    /// The task that has the key; none if the record may be replaced.
    async fn reserved_by(
        &self,
        key: &UniqueKey,
        path: &str,
        object: &Object,
        wanted: &KeyRecord,
    ) -> Result<Option<Reserved>> {
        let found = parsed(path, &object.body)?;
        let now = self.now()?;
        if let Some(removed_at) = found.removed_at {
            let until = removed_at.plus(MARK_GRACE);
            if now.is_past(until) {
                return Ok(None);
            }
            let message = format!("idempotency key `{}` is being removed; try again after {until}", key.key);
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
            .with_reason(Reason::Conflict));
        }
        Ok(match self.load(Purpose::Submit, &found.task_id).await? {
            None => Some(Reserved::Unfinished(found.task_id)),
            // Its submit was abandoned: the key is free again.
            Some(loaded) if loaded.task.is_tombstone() => None,
            Some(loaded) => Some(Reserved::Exists(found.task_id, loaded.task.status())),
        })
    }

    /// Puts a tombstone at an unused task id, so that the task can no longer be created; false if the task exists.
    pub(crate) async fn fence_task(&self, id: &TaskId) -> Result<bool> {
        Ok(matches!(self.put_tombstone(&self.client, Purpose::Sweep, id).await?, PutOutcome::Written(_)))
    }

    pub(crate) async fn put_tombstone(
        &self,
        client: &Client,
        purpose: Purpose,
        id: &TaskId,
    ) -> Result<PutOutcome> {
        self.ensure_allowed(Intent::Change).await?;
        let shard = self.shard_len().shard_of(id);
        let tombstone = Task::tombstone(*id, shard, "submit abandoned", &self.step_context()?);
        let body = Bytes::from(record::write(&tombstone));
        client.put(purpose, &self.task_key(id), body, &When::Absent).await
    }

    /// An expired record with the id of a task that never existed: the next submit under its key replaces it.
    pub(crate) fn expired_record(&self) -> Result<Bytes> {
        let (id, expires_at) =
            (TaskId::from_random(self.client.host().random_bits()), StoreTime::from_millis(0));
        let task_type = TaskType::checked("task type", "quarantined")?;
        let record = KeyRecord::new(id, task_type, expires_at, self.client.write_id());
        Ok(KeyRecord { removed_at: Some(expires_at), ..record }.to_bytes())
    }

    /// Removes an expired idempotency record: a tombstone at its task id, a mark in the record, then one delete that
    /// is never repeated. True if it was removed.
    pub async fn remove_expired_key(&self, path: &str) -> Result<bool> {
        let Some(object) = self.client.get(Purpose::Sweep, path).await? else { return Ok(false) };
        let found = parsed(path, &object.body)?;
        if !found.is_removable(self.now()?) {
            return Ok(false);
        }
        self.ensure_allowed(Intent::Change).await?;
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
            Ok(Decision::write(record.to_bytes(), Some(removed_at)))
        });
        let Some(removed_at) = marked.await?.result else { return Ok(false) };
        // The mark protects the record only for a while. A process that was suspended in between leaves the delete to
        // a later run: by the time it is applied, another submit could have the key.
        let is_ours = self.now()?.is_before(removed_at.plus(MARK_GRACE / 2));
        if is_ours {
            self.client.delete(Purpose::Sweep, path).await?;
        }
        Ok(is_ours)
    }

    /// Expiry of the idempotency record of a task, if a record still has its id.
    pub(crate) async fn key_expiry(&self, task: &Task) -> Result<Option<StoreTime>> {
        Ok(self.key_reservation(task).await?.map(|reservation| reservation.expires_at))
    }

    /// Reservation of the idempotency key of a task, if a record still has its id: the one that expires last.
    pub(crate) async fn key_reservation(&self, task: &Task) -> Result<Option<KeyReservation>> {
        let Some(key) = &task.idempotency_key else { return Ok(None) };
        let mut latest: Option<KeyReservation> = None;
        for scope in [Scope::Queue, Scope::TaskType] {
            let key = UniqueKey { scope, ..UniqueKey::new(key.clone()) };
            let path = keys::unique(&key.hash(&task.task_type).to_hex());
            let Some(object) = self.client.get(Purpose::Sweep, &path).await? else { continue };
            let record = parsed(&path, &object.body)?;
            let expires_at = record.expires_at;
            if record.task_id == task.id && latest.is_none_or(|latest| latest.expires_at < expires_at) {
                latest = Some(KeyReservation { scope, expires_at });
            }
        }
        Ok(latest)
    }

    /// Reserves the idempotency key of a task that is imported, until its expiry.
    pub(crate) async fn import_key(&self, task: &Task, reservation: KeyReservation) -> Result<()> {
        let KeyReservation { scope, expires_at } = reservation;
        let Some(key) = &task.idempotency_key else { return Ok(()) };
        if self.now()?.is_past(expires_at) {
            return Ok(());
        }
        let path = keys::unique(&scope.hash(key, &task.task_type).to_hex());
        let record = self.key_record(task.id, &task.task_type, &task.input, expires_at);
        match self.client.put(Purpose::Submit, &path, record.to_bytes(), &When::Absent).await? {
            PutOutcome::Lost(Some(object)) => {
                let found = parsed(&path, &object.body)?;
                if found.task_id == task.id {
                    return Ok(());
                }
                let (id, other) = (task.id, found.task_id);
                let message = format!("idempotency key of task {id} belongs to task {other}");
                Err(Error::invalid(message).with_reason(Reason::Conflict))
            }
            PutOutcome::Lost(None) => {
                Err(Error::new(Kind::Unavailable, format!("`{path}` was removed meanwhile; retry")))
            }
            PutOutcome::Written(_) | PutOutcome::Superseded(_) => Ok(()),
        }
    }

    /// Record by which a task has its key.
    fn key_record(
        &self,
        task_id: TaskId,
        task_type: &TaskType,
        input: &Value,
        expires_at: StoreTime,
    ) -> KeyRecord {
        // Two programs may serialize the same input in different order.
        let mut input = input.clone();
        input.sort_all_objects();
        KeyRecord {
            input_hash: blake3::hash(input.to_string().as_bytes()).to_hex().to_string(),
            ..KeyRecord::new(task_id, task_type.clone(), expires_at, self.client.write_id())
        }
    }
}

pub(crate) fn parsed(path: &str, body: &[u8]) -> Result<KeyRecord> {
    let corrupt =
        |why: String| Error::new(Kind::Corrupt, format!("`{path}` is not a valid idempotency record: {why}"));
    let record: KeyRecord =
        serde_json::from_slice(body).map_err(|error| corrupt(corrupt_reason(body, &error)))?;
    if record.format > FORMAT {
        return Err(corrupt(format!("format {} is not supported, only up to {FORMAT}", record.format)));
    }
    Ok(record)
}
