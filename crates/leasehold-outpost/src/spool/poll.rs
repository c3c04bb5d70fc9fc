//! What there is to do on this node.
//!
//! Tasks go by priority, and in no order among those of the same, so that processes which look at once rarely reach for
//! the same one. What a record says is remembered as long as its file is the same one: a look at five thousand tasks
//! reads only what has changed. Two files can look the same if they follow each other within the tick of a clock, so
//! everything is read again once a minute.

use leasehold_core::outpost::{NodeNow, SpoolFile};
use leasehold_core::{Result, StoreTime, TaskId, TaskType};
use leasehold_store::mutant::{Rule, breaks};
use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::PoisonError;
use std::time::Duration;

use super::Spool;
use super::kept::Kept;
use crate::disk;

/// What this process remembers of records.
#[derive(Debug, Default)]
pub(super) struct Seen {
    tasks: HashMap<TaskId, (Stamp, Option<Sight>)>,
    /// Since when, on the node's clock.
    since: Option<StoreTime>,
}

/// So long what was read is remembered.
const REMEMBERED: Duration = Duration::from_mins(1);

/// The index in the bucket is by minutes: what it shows as due is due so soon.
const SOON: Duration = Duration::from_mins(1);

/// Which file it was: number, size, time of its last change.
type Stamp = (u64, u64, i64, i64);

/// What is remembered; nothing of a record that makes no sense.
#[derive(Debug, Clone)]
struct Sight {
    priority: u8,
    task_type: TaskType,
    /// Without input and history: what says when it is due.
    kept: Kept,
}

impl Spool {
    /// Up to `most` tasks that are due and that nobody has, or whose holder was not heard of for too long; those that make
    /// no sense are among them, so that they are dealt with.
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

    /// What is due within a minute, whoever has it.
    pub(super) fn soon(&self) -> Result<Vec<(TaskId, TaskType)>> {
        let now = self.now();
        let ids = self.possible(&now, &now.later(SOON), &|_| true)?;
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let of = |id: TaskId| Some((id, seen.tasks.get(&id)?.1.as_ref()?.task_type.clone()));
        Ok(ids.into_iter().filter_map(|(_, _, id)| of(id)).collect())
    }

    /// What is due by then, with priority and a random number.
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
                // No record: whoever claims it moves it to where a person looks.
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
        let sight = Kept::read(id, &body).ok().map(|mut kept| {
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
            // What was not noted yet is noted by whoever tries to claim it.
            Err(_) => Ok(self.is_long_torn(id, now)?.unwrap_or(true)),
        }
    }
}
