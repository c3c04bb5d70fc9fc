//! Changing the number of shards of a queue while it is in use.
//!
//! The key of a task is derived from the number of digits that name a shard, so a new number means a new key for
//! every task. Stores cannot move objects, and clients keep running. `queue.json` serves as a lease on the shard length
//! ([`meta_cache`](crate::meta_cache)), and one process executes the steps below. Any other process can continue at any
//! point, because the whole state is in the store.
//!
//! ```text
//!   length 1 ── announce ──▶ announced ── 2 min ──▶ moving ── all moved, verified: switch ──▶ length 2, keys of 1 remain
//!                               │                      │                                         │ 30 min
//!                               │ abort                │ abort                                   ▼
//!                               ▼                      ▼                                      length 2
//!                            length 1               aborting ── all moved back, verified ──▶ length 1, keys of 2 remain ──▶ length 1
//! ```
//!
//! * **announced**: clients read it within 60 s, and from then on submit, claim and clean up nothing. Holders of
//!   tasks continue. A process that reads this state waits the full time again, because the time of the write is not
//!   known exactly.
//! * **moving**: each task is replaced by a forwarding marker at its old key, by a conditional write; then its entry
//!   and its record are written at the new key, the record with a put if absent; then its old entry is removed.
//!   Holders follow the marker.
//! * **switch**: once every object of the old length is a marker whose task exists and is covered by an entry. From
//!   here on the new length is the queue's, and the only way back is another migration.
//! * **keys remain** (`left` in `queue.json` is the previous length): a request that was sent before the announcement
//!   can still be applied at an old key, such as a submit that was never acknowledged. After the grace period none can.
//!   Tasks that arrived late are moved, too; then the markers and entries of the old length are removed. The next
//!   migration waits another grace period: these removals are unconditional, and a late one must not delete a task that
//!   was moved back.
//! * **aborting**: first every task that was not moved gets a new revision, and every marker its task, so that no
//!   move that is in flight can still be applied; then all tasks of the new length move back, by the same steps.
//!
//! Requests: about 10 per task that has an entry (5 to move it, 2 to verify it, 3 to remove what is left; see `moving`),
//! and 1 get and 1 put of `queue.json` per step.
//!
//! The full argument, and the effect of a crash at each point, is in `docs/protocol/migrate.md`.

mod moving;

use futures::future::ready;
use futures::{Stream, StreamExt, TryStreamExt};
use leasehold_core::{Entry, Error, Index, Kind, Result, ShardLen, StoreTime, keys};
use leasehold_store::host::lock;
use leasehold_store::{Purpose, When};
use serde::Serialize;
use std::sync::Mutex;
use std::time::Duration;

use crate::connect::ObjectQueue;
use crate::meta::QueueMeta;
use crate::meta_cache::{MetaSnapshot, Migrating, MigrationPhase, PreviousShardLen};
use moving::MoveRoute;

/// Maximum number of steps. A migration has five; other processes may do some of them, or one more before.
const STEPS_MAX: usize = 32;
/// Interval at which a wait is reported.
const WAIT_TICK: Duration = Duration::from_secs(1);
/// Shortest pause between two reads of the clock.
const WAIT_MIN: Duration = Duration::from_millis(1);

/// Options of a migration. Only tests, on stores without other clients, have a reason to change the durations.
#[derive(Debug, Clone)]
pub struct MigrateOptions {
    /// Time until all clients have read the announcement: twice as long as a client trusts its copy of `queue.json`.
    pub until_known: Duration,
    /// Time for which a request may still be applied at an old key. Longer than any store accepts a signed request.
    pub grace: Duration,
    /// True to wait for that time and remove what is left at the old keys. If false, the same call later does it.
    pub removes_old_keys: bool,
}

impl Default for MigrateOptions {
    fn default() -> Self {
        Self { until_known: Duration::from_mins(2), grace: Duration::from_mins(30), removes_old_keys: true }
    }
}

/// Progress of a migration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// Waiting, for this time at most.
    Waiting(MigrationWait, Duration),
    /// Objects done, and their total number.
    Working(MigrationPass, u64, u64),
}

/// Condition that a migration waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MigrationWait {
    /// All clients have read the announcement.
    Known,
    /// No request can be applied at an old key any longer.
    Landed,
    /// No removal of the previous migration is in flight any longer.
    Removed,
}

/// Step of a migration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MigrationPass {
    /// Moves the tasks to their new keys.
    Move,
    /// Makes sure that no move in flight can be applied any longer.
    Close,
    /// Verifies that all tasks exist and are covered.
    Verify,
    /// Removes what is left at the old keys.
    RemoveOldKeys,
}

/// Result of a migration.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Migrated {
    /// Number of digits that name a shard now.
    pub shard_prefix_len: ShardLen,
    /// Number of tasks that this process has moved.
    pub moved: u64,
    /// Time after which the same call deletes the objects at the old keys; none if they are deleted already.
    #[serde(rename = "sweep_after")]
    pub old_keys_deleted_after: Option<StoreTime>,
    /// Corrupt objects with their error; they are not moved.
    pub corrupt: Vec<String>,
}

/// Plan of a migration.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MigrationPlan {
    /// Number of digits that name a shard now.
    pub shard_prefix_len: ShardLen,
    /// Number of digits after the migration.
    pub to: ShardLen,
    /// Description of a migration in progress, or of what is left of one.
    #[serde(rename = "under_way")]
    pub in_progress: Option<String>,
    /// Objects at keys of the current length: tasks, or forwarding markers of moved ones.
    pub tasks: u64,
    /// Objects at keys of the new length, already moved by a migration in progress.
    #[serde(rename = "there")]
    pub already_moved: u64,
    /// Index entries of the current length.
    pub entries: u64,
}

type Report<'a> = &'a (dyn Fn(Progress) + Sync);

impl ObjectQueue {
    /// Returns what [`migrate`](Self::migrate) would do, and writes nothing.
    pub async fn plan_migration(&self, to: u8) -> Result<MigrationPlan> {
        let to = ShardLen::new(to)?;
        let meta = self.refresh_meta().await?.meta;
        let now = meta.shard_prefix_len;
        let [tasks, moved] = self.count_tasks([now, to]).await?;
        let entries = self.entries_of(now).try_fold(0, |count, _| ready(Ok(count + 1))).await?;
        let already_moved = if now == to { 0 } else { moved };
        Ok(MigrationPlan {
            shard_prefix_len: now,
            to,
            in_progress: in_progress(&meta),
            tasks,
            already_moved,
            entries,
        })
    }

    /// Changes the number of digits that name a shard, or continues a migration in progress. When this returns, every
    /// connected client is refused, including this one.
    pub async fn migrate(&self, to: u8, options: &MigrateOptions, report: Report<'_>) -> Result<Migrated> {
        let to = ShardLen::new(to)?;
        let migration = Migration { queue: self, options, report, tally: Mutex::default() };
        let mut has_begun = false;
        for _ in 0..STEPS_MAX {
            let known = self.refresh_meta().await?;
            let is_over = known.meta.migrating.is_none();
            if has_begun && is_over && known.meta.shard_prefix_len != to {
                return Err(Error::new(Kind::Lost, "the migration was aborted by another process"));
            }
            if let Some(migrating) = &known.meta.migrating {
                check_target(migrating, to)?;
                has_begun = true;
                migration.resume(&known, migrating).await?;
            } else if let Some(left) = known.meta.old_keys_left() {
                if !options.removes_old_keys {
                    return Ok(migration.summary(&known.meta));
                }
                migration.remove_old_keys(&known, left).await?;
            } else if known.meta.shard_prefix_len == to {
                return Ok(migration.summary(&known.meta));
            } else {
                migration.announce(&known, to).await?;
            }
        }
        Err(meta_contended())
    }

    /// Aborts a migration that has not taken effect yet: moves all tasks back.
    pub async fn abort_migration(&self, options: &MigrateOptions, report: Report<'_>) -> Result<Migrated> {
        let migration = Migration { queue: self, options, report, tally: Mutex::default() };
        for step in 0..STEPS_MAX {
            let known = self.refresh_meta().await?;
            if let Some(migrating) = &known.meta.migrating {
                migration.abort_step(&known, migrating).await?;
                continue;
            }
            match known.meta.old_keys_left() {
                Some(left) if left.aborted && options.removes_old_keys => {
                    migration.remove_old_keys(&known, left).await?;
                }
                Some(left) if !left.aborted => return Err(too_late(&known.meta, left)),
                None if step == 0 => return Err(Error::invalid("no migration is in progress")),
                _ => return Ok(migration.summary(&known.meta)),
            }
        }
        Err(meta_contended())
    }

    async fn count_tasks<const N: usize>(&self, lens: [ShardLen; N]) -> Result<[u64; N]> {
        let mut counts = [0; N];
        let mut keys = std::pin::pin!(self.task_keys());
        while let Some(key) = keys.try_next().await? {
            let len = keys::parse_task_shard(&key).map(|(len, _)| len);
            for (count, wanted) in counts.iter_mut().zip(lens) {
                *count += u64::from(len == Some(wanted));
            }
        }
        Ok(counts)
    }

    /// The index entries in shards of this length.
    fn entries_of(&self, len: ShardLen) -> impl Stream<Item = Result<Entry>> + Send + '_ {
        let keys = self.keys(Index::Ready.root()).chain(self.keys(Index::Lease.root()));
        keys.try_filter_map(move |key| ready(Ok(Entry::parse(&key).filter(|entry| entry.has_shard_len(len)))))
    }
}

/// A migration as executed by one process.
struct Migration<'a> {
    queue: &'a ObjectQueue,
    options: &'a MigrateOptions,
    report: Report<'a>,
    tally: Mutex<Tally>,
}

#[derive(Default)]
struct Tally {
    moved: u64,
    corrupt: Vec<String>,
}

impl Migration<'_> {
    async fn announce(&self, known: &MetaSnapshot, to: ShardLen) -> Result<()> {
        let swept_at = known.meta.left.as_ref().and_then(|left| left.swept_at);
        let removed_at = swept_at.map(|swept_at| swept_at.plus(self.options.grace));
        if let Some(at) = removed_at.filter(|at| self.queue.now().is_ok_and(|now| !now.is_past(*at))) {
            self.wait_past(&known.meta, MigrationWait::Removed, at).await?;
        }
        let started_at = self.queue.now()?.earliest;
        let migrating = Migrating { to, phase: MigrationPhase::Announced, started_at };
        self.put(known, |meta| meta.migrating = Some(migrating)).await
    }

    async fn resume(&self, known: &MetaSnapshot, migrating: &Migrating) -> Result<()> {
        let from = known.meta.shard_prefix_len;
        if migrating.phase == MigrationPhase::Announced {
            self.wait_until_known().await;
            return self.put(known, |meta| set_phase(meta, MigrationPhase::Moving)).await;
        }
        self.move_and_verify(&MoveRoute::new(known, from, migrating.to)).await?;
        let left = self.left(from, false)?;
        let to = migrating.to;
        self.put(known, |meta| {
            meta.shard_prefix_len = to;
            (meta.migrating, meta.left) = (None, Some(left));
        })
        .await
    }

    async fn abort_step(&self, known: &MetaSnapshot, migrating: &Migrating) -> Result<()> {
        match migrating.phase {
            // Nothing was moved, and nothing will be: a process that would start loses against this write.
            MigrationPhase::Announced => self.put(known, |meta| meta.migrating = None).await,
            MigrationPhase::Moving => self.put(known, |meta| set_phase(meta, MigrationPhase::Aborting)).await,
            MigrationPhase::Aborting => {
                // Another process may still be moving tasks by its copy of `queue.json`.
                self.wait_until_known().await;
                let stays = known.meta.shard_prefix_len;
                self.close(&MoveRoute::new(known, stays, migrating.to)).await?;
                self.move_and_verify(&MoveRoute::new(known, migrating.to, stays)).await?;
                let left = self.left(migrating.to, true)?;
                self.put(known, |meta| (meta.migrating, meta.left) = (None, Some(left))).await
            }
        }
    }

    async fn remove_old_keys(&self, known: &MetaSnapshot, left: &PreviousShardLen) -> Result<()> {
        self.wait_past(&known.meta, MigrationWait::Landed, left.at.plus(self.options.grace)).await?;
        let route = MoveRoute::new(known, left.shard_prefix_len, known.meta.shard_prefix_len);
        self.remove_left(&route).await?;
        let swept_at = Some(self.queue.now()?.latest_known());
        self.put(known, |meta| {
            if let Some(left) = &mut meta.left {
                left.swept_at = swept_at;
            }
        })
        .await
    }

    fn left(&self, shard_prefix_len: ShardLen, aborted: bool) -> Result<PreviousShardLen> {
        Ok(PreviousShardLen {
            shard_prefix_len,
            at: self.queue.now()?.latest_known(),
            aborted,
            swept_at: None,
        })
    }

    /// Changes `queue.json` if it is unchanged. The next read of it shows the outcome.
    async fn put(&self, known: &MetaSnapshot, change: impl FnOnce(&mut QueueMeta)) -> Result<()> {
        let client = &self.queue.client;
        let mut meta = (*known.meta).clone();
        change(&mut meta);
        meta.write_id = client.write_id();
        let when = When::Unchanged(known.version.clone());
        client.put(Purpose::Admin, keys::QUEUE, meta.to_bytes(), &when).await.map(|_| ())
    }

    /// Waits by the local clock, from a time at which `queue.json` has certainly been written.
    async fn wait_until_known(&self) {
        let host = self.queue.client.host();
        let mut left = self.options.until_known;
        while !left.is_zero() {
            (self.report)(Progress::Waiting(MigrationWait::Known, left));
            let tick = left.min(WAIT_TICK);
            host.sleep(tick).await;
            left -= tick;
        }
    }

    /// Waits until a time of the store has certainly passed.
    async fn wait_past(&self, under: &QueueMeta, wait: MigrationWait, at: StoreTime) -> Result<()> {
        loop {
            // Each read updates the store's clock, and shows whether another process has continued the migration.
            self.queue.refresh_meta_if_old().await?;
            let now = self.queue.now()?;
            let left = at.since(now.earliest);
            (self.report)(Progress::Waiting(wait, left));
            if now.is_past(at) || self.queue.meta_cache.known().meta.write_id != under.write_id {
                return Ok(());
            }
            self.queue.client.host().sleep(left.clamp(WAIT_MIN, WAIT_TICK)).await;
        }
    }

    fn summary(&self, meta: &QueueMeta) -> Migrated {
        let tally = std::mem::take(&mut *lock(&self.tally));
        Migrated {
            shard_prefix_len: meta.shard_prefix_len,
            moved: tally.moved,
            old_keys_deleted_after: meta.old_keys_left().map(|left| left.at.plus(self.options.grace)),
            corrupt: tally.corrupt,
        }
    }
}

fn set_phase(meta: &mut QueueMeta, phase: MigrationPhase) {
    if let Some(migrating) = &mut meta.migrating {
        migrating.phase = phase;
    }
}

fn check_target(migrating: &Migrating, to: ShardLen) -> Result<()> {
    let (target, wanted) = (migrating.to.digits(), to.digits());
    if migrating.phase == MigrationPhase::Aborting {
        return Err(Error::invalid(format!("{migrating}; finish that with --abort")));
    }
    if target != wanted {
        return Err(Error::invalid(format!(
            "a migration to shard_prefix_len {target} is in progress, not to {wanted}; finish it, or abort it with --abort"
        )));
    }
    Ok(())
}

fn too_late(meta: &QueueMeta, left: &PreviousShardLen) -> Error {
    let (from, now) = (left.shard_prefix_len.digits(), meta.shard_prefix_len.digits());
    Error::invalid(format!(
        "the queue has had shard_prefix_len {now} since {}: too late to abort; migrate back with --to {from}",
        left.at
    ))
}

fn meta_contended() -> Error {
    Error::new(Kind::Unavailable, "other processes keep changing queue.json; run it again")
}

fn in_progress(meta: &QueueMeta) -> Option<String> {
    meta.migrating.as_ref().map(ToString::to_string).or_else(|| {
        let left = meta.old_keys_left()?;
        Some(format!(
            "the keys of shard_prefix_len {}, in use until {}, are still to be removed",
            left.shard_prefix_len.digits(),
            left.at
        ))
    })
}
