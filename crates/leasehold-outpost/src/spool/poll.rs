//! Finds tasks on this node that are due.
//!
//! Tasks are ordered by priority, and randomly within a priority, so that processes that scan at the same time rarely
//! compete for the same one. A record is cached as long as its file is the same: a scan of five thousand tasks reads only
//! those that have changed. Two files can look the same if one follows the other within a tick of the clock, so all records
//! are read again once a minute.

use leasehold_core::ids::TaskTypes;
use leasehold_core::outpost::{NodeNow, SpoolFile};
use leasehold_core::{Result, StoreTime, TaskId, TaskType};
use leasehold_store::host::lock;
use leasehold_store::mutant::breaks;
use std::collections::HashMap;
use std::time::Duration;

use super::Spool;
use super::folder::LeaseFile;
use super::record::NotedRecord;
use crate::disk::{self, FileStamp};

/// Cache of records.
#[derive(Debug, Default)]
pub(super) struct RecordCache {
    /// Records without input and history; none for a corrupt one.
    tasks: HashMap<TaskId, (FileStamp, Option<NotedRecord>)>,
    /// Start of the cache, on the node's clock.
    since: Option<StoreTime>,
}

/// Lifetime of the cache.
const CACHE_LIFETIME: Duration = Duration::from_mins(1);

/// Longest time until a task is due that the bucket's index, which has a resolution of a minute, shows as due.
const SOON: Duration = Duration::from_mins(1);

impl Spool {
    /// Finds up to `most` tasks that are due and free, or whose lease is stale; corrupt ones are included, so that a claim
    /// moves them to `failed/`.
    pub fn poll(&self, most: usize, types: &TaskTypes) -> Result<Vec<TaskId>> {
        let now = self.now();
        let mut candidates = self.candidates(&now, &now, types)?;
        candidates.sort_unstable_by_key(|(priority, random, _)| (std::cmp::Reverse(*priority), *random));
        let mut found = Vec::new();
        for (_, _, id) in candidates {
            if found.len() >= most {
                break;
            }
            if self.is_claimable(&id, &now)? {
                found.push(id);
            }
        }
        Ok(found)
    }

    /// Counts free tasks that are due now or within a minute, by type.
    pub fn free(&self) -> Result<HashMap<TaskType, usize>> {
        let (now, mut free) = (self.now(), HashMap::new());
        let due_soon = self.candidates(&now, &now.later(SOON), &TaskTypes::all())?;
        let cache = lock(&self.record_cache);
        for (_, _, id) in due_soon {
            if let Some((_, Some(noted))) = cache.tasks.get(&id)
                && !self.path(&SpoolFile::Lease(id)).exists()
            {
                *free.entry(noted.task.task_type.clone()).or_default() += 1;
            }
        }
        Ok(free)
    }

    /// Finds tasks of these types that are due at `then`, with priority and a random number.
    fn candidates(&self, now: &NodeNow, then: &NodeNow, types: &TaskTypes) -> Result<Vec<(u8, u64, TaskId)>> {
        let mut cache = lock(&self.record_cache);
        let mut before = std::mem::take(&mut cache.tasks);
        if cache.since.is_none_or(|since| now.boot.since(since) >= CACHE_LIFETIME || now.boot < since) {
            before.clear();
            cache.since = Some(now.boot);
        }
        let mut candidates = Vec::new();
        for id in self.ids_in("pending")? {
            let Some(stamp) = disk::stamp(&self.path(&SpoolFile::Task(id))) else {
                // No record: a claim moves it to `failed/`.
                candidates.push((u8::MAX, self.host.random(), id));
                continue;
            };
            let known = before.remove(&id).filter(|(at, _)| *at == stamp).map(|(_, cached)| cached);
            let cached = known.map_or_else(|| self.read_short_record(&id), Ok)?;
            let priority = match &cached {
                None => Some(u8::MAX),
                Some(noted) => {
                    let is_ready = noted.is_due(then) || noted.is_local_and_expired(then);
                    (types.contains(&noted.task.task_type) && is_ready).then_some(noted.task.priority.into())
                }
            };
            candidates.extend(priority.map(|priority| (priority, self.host.random(), id)));
            cache.tasks.insert(id, (stamp, cached));
        }
        Ok(candidates)
    }

    fn read_short_record(&self, id: &TaskId) -> Result<Option<NotedRecord>> {
        Ok(self.pending_record(id)?.map(|mut noted| {
            noted.task.input = serde_json::Value::Null;
            noted.task.history = leasehold_core::task::History::default();
            noted
        }))
    }

    fn is_claimable(&self, id: &TaskId, now: &NodeNow) -> Result<bool> {
        Ok(match self.lease_file(id, now)? {
            LeaseFile::Free => true,
            LeaseFile::Lease(lease) => lease.is_stale(now) || breaks("live-lease-taken"),
            // A corrupt lease that was not recorded yet is recorded by the next attempt to claim the task.
            LeaseFile::Corrupt { is_old } => is_old.unwrap_or(true),
        })
    }
}
