//! A task with what the journal keeps beside it, and its encoding.
//!
//! In the object layout an idempotency key has an object of its own. In the journal its reservation is part of the entry of
//! its task, and so are the terms of a claim that a fence needs. The encoding is the [short form](crate::record) of the
//! task's record with these fields beside it:
//!
//! | field | content |
//! | --- | --- |
//! | `key_scope` | scope of its idempotency key, unless that is the queue |
//! | `key_expires_at` | expiry of its idempotency key |
//! | `lease_ms` | duration of the lease of its claim |
//! | `heard` | true if its claim was made or renewed since the last fence |
//!
//! An encoded task has a head (`TaskHead`): the few fields by which it is indexed, parsed without the rest. A broker that
//! replays a million pending tasks parses no more than that.

use serde::Deserialize;
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::time::Duration;

use super::change::TaskChange;
use crate::error::{Error, Kind, Result};
use crate::ids::{TaskId, TaskType};
use crate::record::short;
use crate::task::{Priority, State, Status, Task};
use crate::time::StoreTime;
use crate::unique::Scope;

/// A task of the journal, as the log has it.
#[derive(Debug, Clone, PartialEq)]
pub struct JournalTask {
    /// The task. Its claim has the expiry that was logged; renewals are not part of it. In an export they are.
    pub task: Task,
    /// Reservation of its idempotency key.
    pub key: Option<KeyReservation>,
    /// Terms of its claim, while it runs.
    pub claim: Option<LoggedClaim>,
}

/// Reservation of an idempotency key. It lasts until its expiry. The task stays live at least that long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyReservation {
    /// Tasks among which the key is unique.
    pub scope: Scope,
    /// Time from which another task can have the key.
    pub expires_at: StoreTime,
}

/// Terms of a claim that a fence needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoggedClaim {
    /// Duration of the lease. A renewal promises no more than this: a fence extends a claim by it.
    pub lease: Duration,
    /// True if the log shows that the claim was made or renewed since the last fence.
    pub is_heard: bool,
}

/// An encoded task with its head.
#[derive(Debug, Clone, PartialEq)]
pub struct EncodedTask {
    head: TaskHead,
    body: Box<[u8]>,
}

/// Fields by which a task is indexed.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct TaskHead {
    pub(super) id: TaskId,
    pub(super) rev: u64,
    pub(super) task_type: TaskType,
    pub(super) status: Status,
    pub(super) priority: Priority,
    /// Time at which it is available if it is pending; at which its claim expires if it runs; at which it ended.
    pub(super) time: StoreTime,
    /// True if it is pending, and was scheduled for a later time when it became pending.
    pub(super) was_scheduled: bool,
    pub(super) expires_at: Option<StoreTime>,
    pub(super) key: Option<ReservedKey>,
}

/// Idempotency key in the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ReservedKey {
    pub(super) hash: KeyHash,
    pub(super) expires_at: StoreTime,
}

/// Hash of an idempotency key in its scope. Half of a BLAKE3 hash: no two keys have the same one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct KeyHash([u8; 16]);

impl KeyHash {
    pub(super) fn of(scope: Scope, key: &str, task_type: &TaskType) -> Self {
        let hash = *scope.hash(key, task_type).as_bytes();
        Self(std::array::from_fn(|place| hash[place]))
    }
}

const KEY_SCOPE: &str = "key_scope";
const KEY_EXPIRES_AT: &str = "key_expires_at";
const LEASE_MS: &str = "lease_ms";
const HEARD: &str = "heard";

impl JournalTask {
    /// Returns the encoded task.
    #[must_use]
    pub fn encode(&self) -> EncodedTask {
        let mut beside = Map::new();
        if let Some(key) = self.key {
            if key.scope != Scope::default() {
                beside.insert(KEY_SCOPE.into(), serde_json::json!(key.scope));
            }
            beside.insert(KEY_EXPIRES_AT.into(), key.expires_at.to_string().into());
        }
        if let Some(claim) = self.claim {
            beside.insert(LEASE_MS.into(), millis(claim.lease).into());
            if claim.is_heard {
                beside.insert(HEARD.into(), true.into());
            }
        }
        // A copy of the right size takes less time than to shrink the buffer, and leaves no holes between tasks.
        EncodedTask { head: self.head(), body: short::write(&self.task, beside)[..].into() }
    }

    /// Parses an encoded task.
    pub fn decode(body: &[u8]) -> Result<Self> {
        let mut task = short::read(body).map_err(corrupt)?;
        let mut beside = Beside(&mut task.unknown);
        let scope = beside.take(KEY_SCOPE)?.unwrap_or_default();
        let key = beside.take(KEY_EXPIRES_AT)?.map(|expires_at| KeyReservation { scope, expires_at });
        let is_heard = beside.take(HEARD)?.unwrap_or_default();
        let lease = beside.take(LEASE_MS)?.map(Duration::from_millis);
        let claim = lease.map(|lease| LoggedClaim { lease, is_heard });
        if claim.is_some() != (task.status() == Status::Running) {
            let has = if claim.is_some() { "has" } else { "does not have" };
            return Err(corrupt(format!(
                "task {} is {}, but {has} the field `{LEASE_MS}`",
                task.id,
                task.status()
            )));
        }
        Ok(Self { task, key, claim })
    }

    /// Returns the task after a change.
    pub(super) fn changed(mut self, change: TaskChange) -> Result<Self> {
        let at = change.at;
        change.apply(&mut self.task)?;
        self.claim = match &self.task.state {
            // A claim begins heard, for the time from then to its expiry.
            State::Running(claim) => {
                let begun = LoggedClaim { lease: claim.expires_at.since(at), is_heard: true };
                Some(self.claim.unwrap_or(begun))
            }
            _ => None,
        };
        Ok(self)
    }

    pub(super) fn head(&self) -> TaskHead {
        let task = &self.task;
        let time = match &task.state {
            State::Pending { available_at } => *available_at,
            State::Running(claim) => claim.expires_at,
            state => state.finished_at().unwrap_or(task.updated_at),
        };
        TaskHead {
            id: task.id,
            rev: task.rev,
            task_type: task.task_type.clone(),
            status: task.status(),
            priority: task.priority,
            time,
            was_scheduled: task.status() == Status::Pending && time > task.updated_at,
            expires_at: task.expires_at,
            key: self.reserved_key(),
        }
    }

    pub(super) fn reserved_key(&self) -> Option<ReservedKey> {
        let (reservation, key) = (self.key?, self.task.idempotency_key.as_ref()?);
        let hash = KeyHash::of(reservation.scope, key, &self.task.task_type);
        Some(ReservedKey { hash, expires_at: reservation.expires_at })
    }
}

/// Milliseconds of a duration that is limited to ten years.
fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Fields beside the record of a task.
struct Beside<'a>(&'a mut Map<String, Value>);

impl Beside<'_> {
    fn take<T: for<'de> Deserialize<'de>>(&mut self, name: &str) -> Result<Option<T>> {
        let value = self.0.shift_remove(name).map(serde_json::from_value);
        value.transpose().map_err(|error| corrupt(format!("field `{name}`: {error}")))
    }
}

impl EncodedTask {
    /// Parses the head of an encoded task.
    pub fn read(body: &[u8]) -> Result<Self> {
        let fields: HeadFields = serde_json::from_slice(body).map_err(|error| corrupt(error.to_string()))?;
        Ok(Self { head: fields.head().map_err(corrupt)?, body: body.into() })
    }

    /// Id of the task.
    #[must_use]
    pub fn id(&self) -> TaskId {
        self.head.id
    }

    /// Its revision.
    #[must_use]
    pub fn rev(&self) -> u64 {
        self.head.rev
    }

    /// Its status.
    #[must_use]
    pub fn status(&self) -> Status {
        self.head.status
    }

    /// Time at which it ended, if it is final.
    #[must_use]
    pub fn time(&self) -> StoreTime {
        self.head.time
    }

    /// Expiry of its idempotency key.
    #[must_use]
    pub fn key_expires_at(&self) -> Option<StoreTime> {
        self.head.key.map(|key| key.expires_at)
    }

    /// The encoded task.
    #[must_use]
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    pub(super) fn into_parts(self) -> (TaskHead, Box<[u8]>) {
        (self.head, self.body)
    }
}

/// Fields of the head, as they are encoded. All others are skipped.
#[derive(Deserialize)]
#[serde(expecting = "a task")]
struct HeadFields<'a> {
    id: TaskId,
    #[serde(default = "first_rev")]
    rev: u64,
    task_type: TaskType,
    #[serde(default = "pending")]
    status: Status,
    #[serde(default)]
    priority: Priority,
    created_at: StoreTime,
    updated_at: Option<StoreTime>,
    available_at: Option<StoreTime>,
    lease_expires_at: Option<StoreTime>,
    finished_at: Option<StoreTime>,
    expires_at: Option<StoreTime>,
    #[serde(borrow)]
    idempotency_key: Option<Cow<'a, str>>,
    #[serde(default)]
    key_scope: Scope,
    key_expires_at: Option<StoreTime>,
}

fn first_rev() -> u64 {
    1
}

fn pending() -> Status {
    Status::Pending
}

impl HeadFields<'_> {
    fn head(self) -> Result<TaskHead, String> {
        let (name, time) = match self.status {
            Status::Pending => ("available_at", self.available_at.or(Some(self.created_at))),
            Status::Running => ("lease_expires_at", self.lease_expires_at),
            _ => ("finished_at", self.finished_at),
        };
        let time = time.ok_or_else(|| format!("missing field `{name}`, required by its status"))?;
        let key = self.idempotency_key.zip(self.key_expires_at).map(|(key, expires_at)| ReservedKey {
            hash: KeyHash::of(self.key_scope, &key, &self.task_type),
            expires_at,
        });
        Ok(TaskHead {
            id: self.id,
            rev: self.rev,
            status: self.status,
            priority: self.priority,
            time,
            was_scheduled: self.status == Status::Pending
                && time > self.updated_at.unwrap_or(self.created_at),
            expires_at: self.expires_at,
            key,
            task_type: self.task_type,
        })
    }
}

fn corrupt(why: impl std::fmt::Display) -> Error {
    Error::new(Kind::Corrupt, format!("a task of the journal is corrupt: {why}"))
}
