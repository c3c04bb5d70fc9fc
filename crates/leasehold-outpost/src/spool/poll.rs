//! Finds tasks on this node that are due.
//!
//! Tasks are ordered by priority, and randomly within a priority, so that processes that scan at the same time rarely
//! compete for the same one. A record is cached as long as its file is the same: a scan of five thousand tasks reads only
//! those that have changed. Two files can look the same if one follows the other within a tick of the clock, so all records
//! are read again once a minute.

use leasehold_core::outpost::{NodeNow, SpoolFile};
use leasehold_core::{Result, StoreTime, TaskId, TaskType};
use leasehold_store::mutant::{Rule, breaks};
use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::PoisonError;
use std::time::Duration;

use super::Spool;
use super::kept::NotedRecord;
use crate::disk;

/// Cache of records.
#[derive(Debug, Default)]
pub(super) struct RecordCache {
    tasks: HashMap<TaskId, (Stamp, Option<Sight>)>,
    /// Start of the cache, on the node's clock.
    since: Option<StoreTime>,
}

/// Lifetime of the cache.
const REMEMBERED: Duration = Duration::from_mins(1);

/// Longest time until a task is due that the bucket's index, which has a resolution of a minute, shows as due.
const SOON: Duration = Duration::from_mins(1);

/// Identity of a file: inode, size, modification time.
type Stamp = (u64, u64, i64, i64);

/// Cached part of a record; there is none for a corrupt record.
#[derive(Debug, Clone)]
struct Sight {
    priority: u8,
    task_type: TaskType,
    /// Record without input and history, to compute when it is due.
    kept: NotedRecord,
}

impl Spool {
    /// Finds up to `most` tasks that are due and free, or whose lease is stale; corrupt ones are included, so that a claim
    /// moves them to `failed/`.
    pub fn poll(&self, most: usize, wants: &dyn Fn(&TaskType) -> bool) -> Result<Vec<TaskId>> {
        let now = self.now();
        let mut possible = self.possible(&now, &now, wants)?;
        possible.sort_unstable_by_key(|(priority, chance, _)| (std::cmp::Reverse(*priority), *chance));
        let mut found = Vec::new();
        for (_, _, id) in possible {
            if found.len() >= most {
                break;
            }
            if self.may_be_taken(&id, &now)? {
                found.push(id);
            }
        }
        Ok(found)
    }

    /// Finds tasks that are due within a minute, held or not.
    pub(super) fn soon(&self) -> Result<Vec<(TaskId, TaskType)>> {
        let now = self.now();
        let ids = self.possible(&now, &now.later(SOON), &|_| true)?;
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let of = |id: TaskId| Some((id, seen.tasks.get(&id)?.1.as_ref()?.task_type.clone()));
        Ok(ids.into_iter().filter_map(|(_, _, id)| of(id)).collect())
    }

    /// Finds tasks that are due at `then`, with priority and a random number.
    fn possible(
        &self,
        now: &NodeNow,
        then: &NodeNow,
        wants: &dyn Fn(&TaskType) -> bool,
    ) -> Result<Vec<(u8, u64, TaskId)>> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let mut before = std::mem::take(&mut seen.tasks);
        if seen.since.is_none_or(|since| now.boot.since(since) >= REMEMBERED || now.boot < since) {
            before.clear();
            seen.since = Some(now.boot);
        }
        let mut possible = Vec::new();
        for id in self.pending_ids()? {
            let Some(stamp) = self.stamp(&id) else {
                // No record: a claim moves it to `failed/`.
                possible.push((u8::MAX, self.host.random(), id));
                continue;
            };
            let known = before.remove(&id).filter(|(at, _)| *at == stamp).map(|(_, sight)| sight);
            let sight = known.map_or_else(|| self.sight(&id), Ok)?;
            let priority = match &sight {
                None => Some(u8::MAX),
                Some(sight) => {
                    let is_ready = sight.kept.is_due(then) || sight.kept.is_ours_and_late(then);
                    (wants(&sight.task_type) && is_ready).then_some(sight.priority)
                }
            };
            possible.extend(priority.map(|priority| (priority, self.host.random(), id)));
            seen.tasks.insert(id, (stamp, sight));
        }
        Ok(possible)
    }

    fn sight(&self, id: &TaskId) -> Result<Option<Sight>> {
        let body = disk::read(&self.path(&SpoolFile::Task(*id)))?.unwrap_or_default();
        let sight = NotedRecord::read(id, &body).ok().map(|mut kept| {
            kept.task.input = serde_json::Value::Null;
            kept.task.history = leasehold_core::task::History::default();
            Sight { priority: kept.task.priority.into(), task_type: kept.task.task_type.clone(), kept }
        });
        Ok(sight)
    }

    fn stamp(&self, id: &TaskId) -> Option<Stamp> {
        let found = fs::metadata(self.path(&SpoolFile::Task(*id))).ok()?;
        Some((found.ino(), found.len(), found.mtime(), found.mtime_nsec()))
    }

    fn may_be_taken(&self, id: &TaskId, now: &NodeNow) -> Result<bool> {
        let Some(body) = disk::read(&self.path(&SpoolFile::Lease(*id)))? else { return Ok(true) };
        match serde_json::from_slice::<leasehold_core::outpost::DiskLease>(&body) {
            Ok(lease) => Ok(lease.is_stale(now) || breaks(Rule::LiveLeaseTaken)),
            // A corrupt lease that was not recorded yet is recorded by the next attempt to claim the task.
            Err(_) => Ok(self.is_long_torn(id, now)?.unwrap_or(true)),
        }
    }
}
