//! Changing the number of shards of a live queue.
//!
//! The key of a task follows from how many digits name a shard, so a new number means that every task gets a new key.
//! No store moves objects, and nobody is asked to stop. `queue.json` is the lease on the layout
//! ([`layout`](crate::layout)), and one process, this one, walks through the steps below; any other can take over from
//! it at any point, because all there is to know is in the store.
//!
//! ```text
//!   length 1 ── announce ──▶ announced ── 2 min ──▶ moving ── all moved, verified: switch ──▶ length 2, 1 left
//!                               │                      │                                         │ 30 min
//!                               │ abort                │ abort                                   ▼
//!                               ▼                      ▼                                      length 2
//!                            length 1               aborting ── all moved back, verified ──▶ length 1, 2 left ──▶ length 1
//! ```
//!
//! * **announced**: clients learn of it within 60 s, and submit, claim and sweep nothing any more. Whoever holds a task
//!   goes on. A process that finds this state waits the whole time anew, because nobody can say when it was written.
//! * **moving**: each task becomes a mark at its old key, on condition; then its entry and its record are put where the
//!   mark says, the record on condition *absent*; then its old entry is removed. Holders follow the mark.
//! * **switch**: once every object of the old length is a mark whose task is there and covered. From here on the new
//!   length is the queue's, and there is no way back but another migration.
//! * **left**: a request that was sent before the announcement can still land in the old place, such as a submit that
//!   nobody was told had succeeded. After the grace nothing lands any more. What has landed is moved, too; then marks
//!   and entries of the old length are removed. The next migration waits another grace, so that none of these removals,
//!   which have no condition, can come late enough to hit a task that came back.
//! * **aborting**: first every task that was not moved gets a new revision, and every mark its task, so that nothing of
//!   the move that is still on its way can land; then all that lies in the new place moves back, by the same steps.
//!
//! The whole argument, and what happens at a crash at each point, is in `docs/protocol/migrate.md`.

mod moving;
mod sweeping;

use futures::TryStreamExt;
use leasehold_core::{Error, Index, Kind, Result, ShardLen, StoreTime, keys};
use leasehold_store::{Purpose, When};
use serde::Serialize;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::connect::{Agreement, Queue};
use crate::layout::{Known, Left, Migrating, Phase};
use moving::Way;

/// A migration has five steps; others may do some of them, or one more before.
const STEPS_MAX: usize = 32;
/// How often a wait is reported, at most.
const WAIT_TICK: Duration = Duration::from_secs(1);
/// Between two looks at a clock that is almost there.
const WAIT_MIN: Duration = Duration::from_millis(1);

/// How a migration behaves. Only tests, on stores that nobody else uses, have a reason to change the durations.
#[derive(Debug, Clone)]
pub struct MigrateOptions {
    /// How long to wait until all clients know. Twice as long as a client trusts what it knows.
    pub until_known: Duration,
    /// How long something may still land in a place that was left. Longer than any store accepts a signed request.
    pub grace: Duration,
    /// Whether to wait for that, and to sweep the place that was left. Else the same call later does it.
    pub sweeps: bool,
}

impl Default for MigrateOptions {
    fn default() -> Self {
        Self { until_known: Duration::from_mins(2), grace: Duration::from_mins(30), sweeps: true }
    }
}

/// What a migration is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// Waits.
    Waiting(Wait, Duration),
    /// So many objects are done, of so many.
    Working(Work, u64, u64),
}

/// What a migration waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// All clients know of it.
    Known,
    /// Nothing can land any more in the place that was left.
    Landed,
    /// No removal of the last migration is on its way any more.
    Removed,
}

/// What a migration does to tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// Moves them.
    Move,
    /// Makes sure that no move can land any more.
    Close,
    /// Looks whether all are there and covered.
    Verify,
    /// Removes what they have left.
    Sweep,
}

/// What a migration came to.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Migrated {
    /// How many digits name a shard now.
    pub shard_prefix_len: ShardLen,
    /// How many tasks this process has moved.
    pub moved: u64,
    /// When the place that was left can be swept, if that is still to be done: by the same call.
    pub sweep_after: Option<StoreTime>,
    /// Objects that make no sense, and why: left where they were.
    pub corrupt: Vec<String>,
}

/// What a migration would do.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Plan {
    /// How many digits name a shard now.
    pub shard_prefix_len: ShardLen,
    /// How many are to.
    pub to: ShardLen,
    /// A migration that is under way, or what is left of one.
    pub under_way: Option<String>,
    /// Objects at keys of the present length: tasks, or marks of those that were moved.
    pub tasks: u64,
    /// Objects at keys of the length to which it goes.
    pub there: u64,
    /// Index entries of the present length.
    pub entries: u64,
}

type Report<'a> = &'a (dyn Fn(Progress) + Sync);

impl Queue {
    /// Says what [`migrate`](Self::migrate) would do, and writes nothing.
    pub async fn plan_migration(&self, to: u8) -> Result<Plan> {
        let to = ShardLen::new(to)?;
        let agreement = self.ask().await?.agreement;
        let now = agreement.shard_prefix_len;
        let [tasks, there] = self.count_tasks([now, to]).await?;
        let entries = self.count_entries(now).await?;
        let there = if now == to { 0 } else { there };
        Ok(Plan { shard_prefix_len: now, to, under_way: under_way(&agreement), tasks, there, entries })
    }

    /// Changes how many digits name a shard, or goes on with that from wherever it stands. When this returns, all
    /// clients that were connected are refused, and this one, too.
    pub async fn migrate(&self, to: u8, options: &MigrateOptions, report: Report<'_>) -> Result<Migrated> {
        let to = ShardLen::new(to)?;
        let migration = Migration { queue: self, options, report, tally: Mutex::default() };
        let mut has_begun = false;
        for _ in 0..STEPS_MAX {
            let known = self.ask().await?;
            if has_begun && is_called_off(&known.agreement, to) {
                return Err(Error::new(Kind::Lost, "the migration was called off by someone else"));
            }
            if let Some(migrating) = &known.agreement.migrating {
                fits(migrating, to)?;
                has_begun = true;
                migration.go_on(&known, migrating).await?;
            } else if let Some(left) = unswept(&known.agreement) {
                if !options.sweeps {
                    return Ok(migration.told(&known.agreement));
                }
                migration.sweep(&known, left).await?;
            } else if known.agreement.shard_prefix_len == to {
                return Ok(migration.told(&known.agreement));
            } else {
                migration.announce(&known, to).await?;
            }
        }
        Err(taken_on())
    }

    /// Calls a migration off, before the switch: brings everything back to where it was.
    pub async fn abort_migration(&self, options: &MigrateOptions, report: Report<'_>) -> Result<Migrated> {
        let migration = Migration { queue: self, options, report, tally: Mutex::default() };
        for step in 0..STEPS_MAX {
            let known = self.ask().await?;
            if let Some(migrating) = &known.agreement.migrating {
                migration.turn_back(&known, migrating).await?;
                continue;
            }
            match unswept(&known.agreement) {
                Some(left) if left.aborted && options.sweeps => migration.sweep(&known, left).await?,
                Some(left) if !left.aborted => return Err(too_late(&known.agreement, left)),
                None if step == 0 => return Err(Error::invalid("no migration is under way")),
                _ => return Ok(migration.told(&known.agreement)),
            }
        }
        Err(taken_on())
    }

    async fn count_tasks<const N: usize>(&self, lens: [ShardLen; N]) -> Result<[u64; N]> {
        let mut counts = [0; N];
        let mut keys = std::pin::pin!(self.task_keys());
        while let Some(key) = keys.try_next().await? {
            let len = keys::task_place(&key).map(|(len, _)| len);
            for (count, wanted) in counts.iter_mut().zip(lens) {
                *count += u64::from(len == Some(wanted));
            }
        }
        Ok(counts)
    }

    async fn count_entries(&self, len: ShardLen) -> Result<u64> {
        let mut count = 0;
        for index in [Index::Ready, Index::Lease] {
            let mut keys = std::pin::pin!(self.keys(index.root().into()));
            while let Some(key) = keys.try_next().await? {
                count += u64::from(sweeping::is_entry_of(&key, len));
            }
        }
        Ok(count)
    }
}

/// One process on its way through a migration.
struct Migration<'a> {
    queue: &'a Queue,
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
    async fn announce(&self, known: &Known, to: ShardLen) -> Result<()> {
        let swept_at = known.agreement.left.as_ref().and_then(|left| left.swept_at);
        let removed_at = swept_at.map(|swept_at| swept_at.plus(self.options.grace));
        if let Some(at) = removed_at.filter(|at| self.queue.now().is_ok_and(|now| !now.is_past(*at))) {
            self.wait_past(&known.agreement, Wait::Removed, at).await?;
        }
        let started_at = self.queue.now()?.earliest;
        let migrating = Migrating { to, phase: Phase::Announced, started_at };
        self.put(known, |agreement| agreement.migrating = Some(migrating)).await
    }

    async fn go_on(&self, known: &Known, migrating: &Migrating) -> Result<()> {
        let from = known.agreement.shard_prefix_len;
        if migrating.phase == Phase::Announced {
            self.wait_until_known().await;
            return self.put(known, |agreement| set_phase(agreement, Phase::Moving)).await;
        }
        self.move_and_verify(&Way::new(known, from, migrating.to)).await?;
        let left = self.left(from, false)?;
        let to = migrating.to;
        self.put(known, |agreement| {
            agreement.shard_prefix_len = to;
            (agreement.migrating, agreement.left) = (None, Some(left));
        })
        .await
    }

    async fn turn_back(&self, known: &Known, migrating: &Migrating) -> Result<()> {
        match migrating.phase {
            // Nothing was moved, and nothing will be: whoever would begin loses against this.
            Phase::Announced => self.put(known, |agreement| agreement.migrating = None).await,
            Phase::Moving => self.put(known, |agreement| set_phase(agreement, Phase::Aborting)).await,
            Phase::Aborting => {
                // Another process may still be moving tasks by what it knew.
                self.wait_until_known().await;
                let stays = known.agreement.shard_prefix_len;
                self.close(&Way::new(known, stays, migrating.to)).await?;
                self.move_and_verify(&Way::new(known, migrating.to, stays)).await?;
                let left = self.left(migrating.to, true)?;
                self.put(known, |agreement| (agreement.migrating, agreement.left) = (None, Some(left))).await
            }
        }
    }

    async fn sweep(&self, known: &Known, left: &Left) -> Result<()> {
        self.wait_past(&known.agreement, Wait::Landed, left.at.plus(self.options.grace)).await?;
        let way = Way::new(known, left.shard_prefix_len, known.agreement.shard_prefix_len);
        self.remove_left(&way).await?;
        let swept_at = Some(self.queue.now()?.latest_known());
        self.put(known, |agreement| {
            if let Some(left) = &mut agreement.left {
                left.swept_at = swept_at;
            }
        })
        .await
    }

    fn left(&self, shard_prefix_len: ShardLen, aborted: bool) -> Result<Left> {
        Ok(Left { shard_prefix_len, at: self.queue.now()?.latest_known(), aborted, swept_at: None })
    }

    /// Changes `queue.json`, if it is still what is known. Whether it was, the next look at it tells.
    async fn put(&self, known: &Known, change: impl FnOnce(&mut Agreement)) -> Result<()> {
        let client = &self.queue.client;
        let mut agreement = (*known.agreement).clone();
        change(&mut agreement);
        agreement.write_id = client.write_id();
        let when = When::Unchanged(known.version.clone());
        client.put(Purpose::Admin, keys::QUEUE, agreement.written()?, &when).await.map(|_| ())
    }

    /// Waits by this machine's clock, from when `queue.json` was surely there.
    async fn wait_until_known(&self) {
        let host = self.queue.client.host();
        let mut left = self.options.until_known;
        while !left.is_zero() {
            (self.report)(Progress::Waiting(Wait::Known, left));
            let tick = left.min(WAIT_TICK);
            host.sleep(tick).await;
            left -= tick;
        }
    }

    /// Waits until a moment of the store's time is past beyond doubt.
    async fn wait_past(&self, under: &Agreement, wait: Wait, at: StoreTime) -> Result<()> {
        loop {
            // Answers keep the clock true, and tell whether someone else goes on.
            self.queue.ask_if_old().await?;
            let now = self.queue.now()?;
            let left = at.since(now.earliest);
            (self.report)(Progress::Waiting(wait, left));
            if now.is_past(at) || self.queue.layout.known().agreement.write_id != under.write_id {
                return Ok(());
            }
            self.queue.client.host().sleep(left.clamp(WAIT_MIN, WAIT_TICK)).await;
        }
    }

    fn told(&self, agreement: &Agreement) -> Migrated {
        let tally = std::mem::take(&mut *self.tally());
        Migrated {
            shard_prefix_len: agreement.shard_prefix_len,
            moved: tally.moved,
            sweep_after: unswept(agreement).map(|left| left.at.plus(self.options.grace)),
            corrupt: tally.corrupt,
        }
    }

    fn tally(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn set_phase(agreement: &mut Agreement, phase: Phase) {
    if let Some(migrating) = &mut agreement.migrating {
        migrating.phase = phase;
    }
}

fn unswept(agreement: &Agreement) -> Option<&Left> {
    agreement.left.as_ref().filter(|left| left.swept_at.is_none())
}

fn is_called_off(agreement: &Agreement, to: ShardLen) -> bool {
    agreement.migrating.is_none() && agreement.shard_prefix_len != to
}

fn fits(migrating: &Migrating, to: ShardLen) -> Result<()> {
    let (going, wanted) = (migrating.to.digits(), to.digits());
    if migrating.phase == Phase::Aborting {
        return Err(Error::invalid(format!(
            "the migration to shard_prefix_len {going} is being called off; finish that with --abort"
        )));
    }
    if going != wanted {
        return Err(Error::invalid(format!(
            "a migration to shard_prefix_len {going} is under way, not to {wanted}; finish it, or call it off with --abort"
        )));
    }
    Ok(())
}

fn too_late(agreement: &Agreement, left: &Left) -> Error {
    let (from, now) = (left.shard_prefix_len.digits(), agreement.shard_prefix_len.digits());
    Error::invalid(format!(
        "the queue has had shard_prefix_len {now} since {}: too late to call that off; migrate back with --to {from}",
        left.at
    ))
}

fn taken_on() -> Error {
    Error::new(Kind::Unavailable, "others change this queue's layout all the time; run it again")
}

fn under_way(agreement: &Agreement) -> Option<String> {
    let migrating = agreement.migrating.as_ref().map(|migrating| {
        let (to, since) = (migrating.to.digits(), migrating.started_at);
        match migrating.phase {
            Phase::Announced => format!("a migration to shard_prefix_len {to} was announced at {since}"),
            Phase::Moving => format!("a migration to shard_prefix_len {to} is moving tasks, since {since}"),
            Phase::Aborting => format!("a migration to shard_prefix_len {to} is being called off"),
        }
    });
    migrating.or_else(|| {
        let left = unswept(agreement)?;
        Some(format!(
            "shard_prefix_len {} was left at {} and is to be swept",
            left.shard_prefix_len.digits(),
            left.at
        ))
    })
}
