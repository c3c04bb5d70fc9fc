//! `queue.json` as a lease on the shard length.
//!
//! The key of a task is derived from its id and from `shard_prefix_len`, the number of hex digits that name a shard.
//! That number can change ([`migrate`](crate::migrate)), so every client treats its copy of `queue.json` as a lease: it
//! may write by it only for a limited time after it was requested.
//!
//! ```text
//!   read ─── 30 s ──▶ read again before the next write ─── 60 s ──▶ nothing is written without a newer answer
//!     0                 (a conditional get)                         announced ── 2 min ──▶ tasks are moved
//! ```
//!
//! The age counts from when the answer was *requested*, because a later write cannot be in it. It is measured with the
//! local clocks, and the larger value counts, so that a process that was suspended does not trust an old answer. A
//! client that only reads does not re-read `queue.json`. What a client may write depends on its content:
//!
//! | `queue.json` | renew and settle held tasks | any other write |
//! | --- | --- | --- |
//! | unchanged since this client connected | yes | yes |
//! | `migrating` | yes, at the task's current key | unavailable: retry later |
//! | another number of digits | yes, at the task's current key | invalid: connect again |
//! | missing | yes, for 60 s | corrupt: the shard length is unknown |
//! | another queue's id | yes, for 60 s | invalid: connect again |
//!
//! A submit creates an object where none was, so no condition makes it lose against a migration. It is therefore
//! acknowledged only while the answer that allowed it can still be trusted (`ensure_meta_current`). Hence every
//! acknowledged task is at its old key within 60 s of the announcement, before the first task is moved.
//!
//! Requests: 1 get at most every 30 s, before a write or when a task is missing.

use leasehold_core::{Error, Kind, Result, ShardLen, StoreTime, TaskId, WriteId, keys};
use leasehold_store::host::{Instant, lock};
use leasehold_store::{Get, Purpose, Version};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::connect::ObjectQueue;
use crate::meta::{LayoutName, QueueMeta, parse_meta};

/// Time limit of one attempt to read `queue.json` again: a renewal waits for it.
const REFRESH_TIMEOUT: Duration = Duration::from_secs(5);

/// A migration in progress.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Migrating {
    /// Number of digits that name a shard after the migration.
    pub to: ShardLen,
    /// Its current phase.
    pub phase: MigrationPhase,
    /// Time at which it was announced.
    pub started_at: StoreTime,
}

/// Phase of a migration. The time after the switch is recorded in [`PreviousShardLen`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MigrationPhase {
    /// Announced; some clients may not have read it yet.
    Announced,
    /// Every client that may write has read it; tasks are moved.
    Moving,
    /// Aborted; tasks are moved back.
    Aborting,
}

impl fmt::Display for Migrating {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a migration to shard_prefix_len {} ", self.to.digits())?;
        match self.phase {
            MigrationPhase::Announced => write!(f, "was announced at {}", self.started_at),
            MigrationPhase::Moving => write!(f, "is moving tasks, since {}", self.started_at),
            MigrationPhase::Aborting => write!(f, "is being aborted"),
        }
    }
}

/// The previous number of digits, and the state of the objects that are left at its keys.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PreviousShardLen {
    /// Number of digits that named a shard.
    pub shard_prefix_len: ShardLen,
    /// Time of the switch away from it.
    pub at: StoreTime,
    /// True if it is the target of an aborted migration.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub aborted: bool,
    /// Time at which everything there had been removed; until then a late write may still create objects there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub swept_at: Option<StoreTime>,
}

/// The client's copy of `queue.json`.
#[derive(Debug)]
pub(crate) struct MetaCache {
    known: Mutex<MetaSnapshot>,
    /// Held by the caller that reads `queue.json` while the copy is still valid. Other callers only try to lock it and
    /// never wait: the holder may itself be waiting to be polled by the task that would wait.
    refreshing: tokio::sync::Mutex<()>,
    /// True if `queue.json` belongs to another queue now.
    is_replaced: AtomicBool,
}

/// `queue.json` as it was read.
#[derive(Debug, Clone)]
pub(crate) struct MetaSnapshot {
    pub(crate) meta: Arc<QueueMeta>,
    pub(crate) version: Version,
    pub(crate) requested_at: Instant,
}

/// The kind of write that a caller is about to make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Intent<'a> {
    /// Tasks and entries at their keys of the current shard length.
    Change,
    /// A held task, at whichever key it is stored.
    HeldTask,
    /// A step of a migration, valid only for this write of `queue.json`.
    Migrate(&'a WriteId),
}

impl Intent<'_> {
    pub(crate) fn of(purpose: Purpose) -> Self {
        match purpose {
            Purpose::Renew | Purpose::Settle => Intent::HeldTask,
            _ => Intent::Change,
        }
    }
}

impl MetaCache {
    pub(crate) fn new(known: MetaSnapshot) -> Self {
        let known = Mutex::new(known);
        Self { known, refreshing: tokio::sync::Mutex::default(), is_replaced: AtomicBool::new(false) }
    }

    /// Returns a copy for use on another runtime. Callers there do not share a lock with callers here.
    pub(crate) fn detached(&self) -> Self {
        Self::new(self.known())
    }

    pub(crate) fn known(&self) -> MetaSnapshot {
        lock(&self.known).clone()
    }

    /// Stores an answer. Concurrent reads may be answered in any order; the one requested last wins.
    fn store(&self, answer: MetaSnapshot) {
        let mut known = lock(&self.known);
        if answer.requested_at.boot_ns >= known.requested_at.boot_ns {
            *known = answer;
        }
    }
}

impl QueueMeta {
    /// True if tasks may be in shards of two lengths: a migration is in progress, or its old keys are not removed yet.
    #[must_use]
    pub fn may_have_old_keys(&self) -> bool {
        self.migrating.is_some() || self.old_keys_left().is_some()
    }

    /// The previous shard length, if objects are left at its keys.
    pub(crate) fn old_keys_left(&self) -> Option<&PreviousShardLen> {
        self.left.as_ref().filter(|left| left.swept_at.is_none())
    }

    /// The shard lengths at which tasks may be stored, the current one first.
    #[must_use]
    pub fn lengths(&self) -> Vec<ShardLen> {
        let target = self.migrating.as_ref().map(|migrating| migrating.to);
        let left = self.old_keys_left().map(|left| left.shard_prefix_len);
        [Some(self.shard_prefix_len), target, left].into_iter().flatten().collect()
    }
}

impl ObjectQueue {
    /// Returns an error if tasks cannot be submitted and claimed at present. An error of kind *unavailable* is
    /// temporary: it ends with the migration. One of kind *invalid* is permanent if
    /// [`is_outdated`](Self::is_outdated) returns true: this client uses the old shard length and has to connect again.
    pub async fn ensure_writable(&self) -> Result<()> {
        self.ensure_allowed(Intent::Change).await
    }

    /// True if this client has to connect again: the queue has another number of shards, or is another queue. Other
    /// errors of kind *invalid* may be temporary, such as the answer of a captive portal in place of the store.
    #[must_use]
    pub fn is_outdated(&self) -> bool {
        let known = self.meta_cache.known().meta.shard_prefix_len;
        self.meta_cache.is_replaced.load(Relaxed) || known != self.shard_len()
    }

    /// Checks that this write is allowed by a copy of `queue.json` that is fresh enough, and reads it again if needed.
    pub(crate) async fn ensure_allowed(&self, intent: Intent<'_>) -> Result<()> {
        let age = self.meta_age();
        if age > self.config.meta_max_age {
            self.refresh_meta_if_old().await?;
        } else if age > self.config.meta_refresh_interval
            // If another caller is reading it already, this one continues with the copy, which is still valid.
            && let Ok(_one) = self.meta_cache.refreshing.try_lock()
            && let Err(error) = self.refresh_meta_if_old().await
        {
            // A missing, corrupt or foreign queue.json is an answer: held tasks may be settled, nothing new begins.
            let is_answer = error.kind() == Kind::Corrupt || self.meta_cache.is_replaced.load(Relaxed);
            if is_answer && intent != Intent::HeldTask {
                return Err(error);
            }
            tracing::debug!(%error, "failed to refresh queue.json");
        }
        self.check_allowed(intent)
    }

    /// Checks that this write is allowed by the current copy of `queue.json`, without a request: for use between the
    /// writes of one operation.
    pub(crate) fn check_allowed(&self, intent: Intent<'_>) -> Result<()> {
        let age = self.meta_age();
        if age > self.config.meta_max_age {
            let message = format!("failed to refresh queue.json, last read {} s ago; retry", age.as_secs());
            return Err(Error::new(Kind::Unavailable, message));
        }
        let now = self.meta_cache.known().meta;
        match intent {
            Intent::HeldTask => Ok(()),
            _ if self.meta_cache.is_replaced.load(Relaxed) => Err(another_queue()),
            Intent::Change => self.check_meta(&now),
            Intent::Migrate(under) if *under == now.write_id => Ok(()),
            Intent::Migrate(_) => {
                Err(Error::new(Kind::Unavailable, "another process continued the migration; run it again"))
            }
        }
    }

    /// Checks that a write that was just confirmed was still allowed when it was applied.
    pub(crate) async fn ensure_meta_current(&self) -> Result<()> {
        if self.meta_age() > self.config.meta_max_age {
            self.refresh_meta().await?;
        }
        self.check_allowed(Intent::Change)
    }

    fn check_meta(&self, now: &QueueMeta) -> Result<()> {
        let (began, has) = (self.shard_len().digits(), now.shard_prefix_len.digits());
        if began != has {
            return Err(Error::invalid(format!(
                "shard_prefix_len was {began} when this client connected, but this queue has {has} now; connect again"
            )));
        }
        let under_way =
            |migrating: &Migrating| Error::new(Kind::Unavailable, format!("{migrating}; try again later"));
        now.migrating.as_ref().map(under_way).map_or(Ok(()), Err)
    }

    /// Reads `queue.json` if the copy is older than `meta_refresh_interval`.
    pub(crate) async fn refresh_meta_if_old(&self) -> Result<()> {
        if self.meta_age() > self.config.meta_refresh_interval {
            self.refresh_meta().await?;
        }
        Ok(())
    }

    /// Reads `queue.json`. Requests: 1 get.
    pub(crate) async fn refresh_meta(&self) -> Result<MetaSnapshot> {
        let (before, requested_at) = (self.meta_cache.known(), self.client.host().instant());
        let client = self.client.clone().with_timeout(REFRESH_TIMEOUT);
        let after = match client.get_unless(Purpose::Admin, keys::QUEUE, Some(&before.version)).await? {
            Get::Unchanged => MetaSnapshot { requested_at, ..before },
            Get::Found(object) => {
                let meta = parse_meta(&object.body)?;
                if meta.queue_id != self.meta.queue_id {
                    self.meta_cache.is_replaced.store(true, Relaxed);
                    return Err(another_queue());
                }
                if meta.layout != LayoutName::Objects {
                    let message = format!("this queue has layout {} now; connect again", meta.layout);
                    return Err(Error::new(Kind::Corrupt, message));
                }
                MetaSnapshot { meta: Arc::new(meta), version: object.version, requested_at }
            }
            Get::Missing => {
                let store = self.client.describe();
                return Err(Error::new(
                    Kind::Corrupt,
                    format!(
                        "queue.json is missing at {store}: nothing can be submitted or claimed; restore it from a backup, \
                         or run `leasehold init --restore`"
                    ),
                ));
            }
        };
        self.meta_cache.is_replaced.store(false, Relaxed);
        self.meta_cache.store(after);
        Ok(self.meta_cache.known())
    }

    /// Time since `queue.json` was requested. A pause of a virtual machine shows only on the wall clock.
    fn meta_age(&self) -> Duration {
        let (requested_at, now) = (lock(&self.meta_cache.known).requested_at, self.client.host().instant());
        let wall_ns = now.wall_ns.saturating_sub(requested_at.wall_ns);
        now.since(requested_at).max(Duration::from_nanos(u64::try_from(wall_ns).unwrap_or(0)))
    }

    /// The key of a task by the latest known shard length.
    pub(crate) fn current_key(&self, id: &TaskId) -> String {
        keys::task(&self.meta_cache.known().meta.shard_prefix_len.shard_of(id), id)
    }
}

fn another_queue() -> Error {
    Error::invalid("this store now contains another queue; connect again")
}
