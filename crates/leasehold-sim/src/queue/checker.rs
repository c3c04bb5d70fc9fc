//! Compares the bucket with the answers that producers got and with the runs of handlers.

use leasehold_core::{Error, StoreTime, TaskId};
use leasehold_queue::Submitted;
use leasehold_queue::check::Checked;
use leasehold_worker::Context;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::checks;
use super::planned_submit::KEY_LIFETIME;
use super::raw::{Raw, RawEntry, minute, shard_digits, task_id};
use super::task_keys::{ChangeContext, RawQueueMeta, RawTaskObject, TaskEffect, TaskObjects};
use crate::bucket::{BucketChange, SimBucket, StoredObject};
use crate::executor::{Executor, ProcessId};

/// Maximum difference within one lease of two clocks that run at different rates.
const SLACK_MS: i64 = 50;

/// Maximum time from the write of a key's record until its producer has the answer.
const KEY_SLACK: Duration = Duration::from_mins(45);

/// Checker of this scenario. Clones share its state.
#[derive(Clone)]
pub(crate) struct QueueChecker {
    executor: Executor,
    bucket: Arc<SimBucket>,
    calm_after: Duration,
    observed: Arc<Mutex<Observed>>,
}

#[derive(Default)]
struct Observed {
    tasks: BTreeMap<String, Raw>,
    /// Keys at which each task exists.
    objects: BTreeMap<String, TaskObjects>,
    meta: RawQueueMeta,
    moves: u64,
    /// Tasks that are not final.
    open: BTreeSet<String>,
    entries: BTreeMap<String, BTreeSet<RawEntry>>,
    acknowledged: Vec<TaskId>,
    /// Task of each key, and when a producer was first answered with it.
    by_key: BTreeMap<u64, (TaskId, Duration)>,
    /// Expiry of the record of a task's key, by the raw record.
    key_expiries: BTreeMap<String, i64>,
    /// Purged tasks.
    gone: BTreeSet<String>,
    /// Submits that definitely failed.
    failed: BTreeSet<u64>,
    unknown: u64,
    producing: usize,
    runs: BTreeMap<u64, Run>,
    runs_begun: u64,
    /// Expiry of each claim, by the record.
    expiries: BTreeMap<(String, u64), i64>,
    succeeded: BTreeSet<(String, u64)>,
}

/// A running handler.
struct Run {
    context: Context,
    process: ProcessId,
    began: Duration,
}

type CheckResult = Result<(), String>;

impl QueueChecker {
    pub(crate) fn new(executor: Executor, bucket: Arc<SimBucket>, calm_after: Duration) -> Self {
        Self { executor, bucket, calm_after, observed: Arc::default() }
    }

    pub(crate) fn now(&self) -> Duration {
        self.executor.now()
    }

    pub(crate) fn is_calm(&self) -> bool {
        self.now() > self.calm_after
    }

    /// Adds submits that are still to be made.
    pub(crate) fn expect(&self, submits: usize) {
        self.observed().producing = submits;
    }

    /// Returns the store's time if it never jumped, so that no process can be mistaken about it.
    fn reliable_now_ms(&self) -> Option<i64> {
        self.bucket.jumped_at().is_none().then(|| self.bucket.time_ns().div_euclid(1_000_000))
    }

    /// Checks a change of the bucket.
    pub(crate) fn check_change(&self, change: &BucketChange) -> CheckResult {
        crate::leases::check_change(change)?;
        let now = self.reliable_now_ms();
        let mut observed = self.observed();
        let id = if let Some(entry) = RawEntry::read(&change.key) {
            let id = entry.id.clone();
            let entries = observed.entries.entry(id.clone()).or_default();
            if change.after.is_some() {
                entries.insert(entry)
            } else {
                entries.remove(&entry)
            };
            id
        } else if let Some(id) = task_id(&change.key) {
            let wrong = |why| format!("task {id}: {why}");
            let object = change.after.as_ref().map(RawTaskObject::read).transpose().map_err(wrong)?;
            let at = (self.now(), now);
            observed.object_changed(id, shard_digits(&change.key), object, at).map_err(wrong)?;
            id.to_owned()
        } else if change.key.starts_with("unique/") {
            let record = change.after.as_ref().map(Raw::read).transpose()?;
            observed.key_changed(change.before.as_ref().map(Raw::read).transpose()?, record);
            return Ok(());
        } else if change.key == "queue.json" {
            let after = change.after.as_ref().ok_or("P1: queue.json was deleted")?;
            return observed.meta_changed(after, self.now());
        } else {
            return Ok(());
        };
        observed.check_covered(&id, now)
    }

    /// Checks the answer that a producer got for a submit.
    pub(crate) fn check_answer(
        &self,
        number: u64,
        key: Option<u64>,
        answer: &Result<Submitted, Error>,
    ) -> CheckResult {
        let mut observed = self.observed();
        observed.producing -= 1;
        match answer {
            Ok(submitted) => {
                let name = submitted.id.to_string();
                if observed.tasks.get(&name).is_none_or(Raw::is_tombstone) {
                    return Err(format!("P1: task {name} was acknowledged, but does not exist"));
                }
                let len = observed.meta.len;
                if !observed.objects.get(&name).is_some_and(|objects| objects.is_at(len))
                    && observed.meta.is_not_migrating()
                {
                    return Err(format!(
                        "P8: task {name} was acknowledged at a key of a shard length that no client reads"
                    ));
                }
                observed.acknowledged.push(submitted.id);
                let Some(key) = key else { return Ok(()) };
                let (known, at) = *observed.by_key.entry(key).or_insert((submitted.id, self.now()));
                if known == submitted.id {
                    return Ok(());
                }
                observed.by_key.insert(key, (submitted.id, self.now()));
                let is_over = self.now().saturating_sub(at) + KEY_SLACK >= KEY_LIFETIME;
                if is_over || self.bucket.jumped_at().is_some() {
                    return Ok(());
                }
                Err(format!("one key has two tasks: {known} and {name}"))
            }
            Err(error) if error.outcome_is_unknown() => {
                observed.unknown += 1;
                Ok(())
            }
            Err(_) if key.is_some() => Ok(()),
            Err(error) => {
                observed.failed.insert(number);
                let is_there = |task: &Raw| task.submit() == Some(number) && !task.is_tombstone();
                if observed.tasks.values().any(is_there) {
                    return Err(format!("submit {number} definitely failed ({error}), but its task exists"));
                }
                Ok(())
            }
        }
    }

    /// Counts a submit that ended with its process, without an answer.
    pub(crate) fn count_unanswered(&self) {
        let mut observed = self.observed();
        observed.producing -= 1;
        observed.unknown += 1;
    }

    /// Counts a submit that is to be repeated.
    pub(crate) fn expect_one_more(&self) {
        self.observed().producing += 1;
    }

    pub(crate) fn acknowledged(&self) -> Vec<TaskId> {
        self.observed().acknowledged.clone()
    }

    /// Records the start of a handler: no other process may trust a claim on the task.
    pub(crate) fn begin(&self, context: &Context, process: ProcessId) -> Result<u64, String> {
        let mut observed = self.observed();
        let (id, epoch) = (context.task().id, context.epoch());
        for run in observed.runs.values().filter(|run| run.context.task().id == id) {
            let trusted = !run.context.is_cancelled() && !self.executor.is_paused(run.process);
            if trusted && self.reliable_now_ms().is_some() {
                return Err(format!("P2: {id} runs in epochs {} and {epoch} at once", run.context.epoch()));
            }
        }
        observed.runs_begun += 1;
        let run = observed.runs_begun;
        observed.runs.insert(run, Run { context: context.clone(), process, began: self.executor.now() });
        Ok(run)
    }

    /// Checks that the claim had not expired when its handler started, whether the handler was stopped or
    /// not.
    pub(crate) fn check_start(&self, run: u64) -> CheckResult {
        let observed = self.observed();
        let (Some(run), Some(now)) = (observed.runs.get(&run), self.reliable_now_ms()) else { return Ok(()) };
        let (id, epoch) = (run.context.task().id, run.context.epoch());
        let Some(expiry) = observed.expiries.get(&(id.to_string(), epoch)) else { return Ok(()) };
        if now - expiry <= SLACK_MS || self.executor.is_paused(run.process) {
            return Ok(());
        }
        Err(format!(
            "P2: the handler of {id} begins in epoch {epoch}, {} ms after its claim expired",
            now - expiry
        ))
    }

    /// Checks that a running handler was stopped if its claim has expired.
    pub(crate) fn check_running(&self, run: u64) -> CheckResult {
        let observed = self.observed();
        let (Some(run), Some(now)) = (observed.runs.get(&run), self.reliable_now_ms()) else { return Ok(()) };
        let (id, epoch) = (run.context.task().id, run.context.epoch());
        let Some(expiry) = observed.expiries.get(&(id.to_string(), epoch)) else { return Ok(()) };
        let late = now - expiry;
        if late <= SLACK_MS || run.context.is_cancelled() || self.executor.is_paused(run.process) {
            return Ok(());
        }
        let began = run.began;
        Err(format!(
            "P2: the handler of {id} in epoch {epoch} (since {began:?}) trusts a claim that expired {late} ms ago"
        ))
    }

    pub(crate) fn end(&self, run: u64) {
        self.observed().runs.remove(&run);
    }

    pub(crate) fn succeed(&self, context: &Context) {
        self.observed().succeeded.insert((context.task().id.to_string(), context.epoch()));
    }

    /// Returns whether faults have stopped, and all tasks were submitted and have ended.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.is_calm() && {
            let observed = self.observed();
            let jumped = self.bucket.jumped_at().is_some();
            observed.producing == 0 && observed.open.iter().all(|id| jumped && observed.is_left_behind(id))
        }
    }

    /// Checks the result of `check`: every task is covered at every moment, and no record is corrupt.
    pub(crate) fn checked(&self, checked: &Checked) -> CheckResult {
        if self.reliable_now_ms().is_some() && !(checked.uncovered.is_empty() && checked.corrupt.is_empty()) {
            return Err(format!("a check reported an inconsistency that does not exist: {checked:?}"));
        }
        Ok(())
    }

    /// Checks that after two purges a day apart all tasks from before the first are deleted.
    pub(crate) fn check_purged(&self) -> CheckResult {
        let (observed, Some(now)) = (self.observed(), self.reliable_now_ms()) else { return Ok(()) };
        let is_old =
            |task: &&Raw| task.time("created_at").is_some_and(|at| at + 2 * checks::PURGE_GRACE_MS < now);
        match observed.tasks.values().find(is_old) {
            Some(old) => Err(format!("it should have been purged: {}", old.0)),
            None => Ok(()),
        }
    }

    /// Returns a summary. Fails if anything is left over.
    pub(crate) fn summary(&self) -> Result<String, String> {
        let observed = self.observed();
        let jumped = self.bucket.jumped_at().is_some();
        let is_open =
            |(id, task): &(&String, &Raw)| !(task.is_final() || jumped && observed.is_left_behind(id));
        if let Some((_, task)) = observed.tasks.iter().find(is_open) {
            return Err(format!("task has not ended: {}", task.0));
        }
        let left: Vec<_> = observed.entries.values().flatten().collect();
        if !jumped && !left.is_empty() {
            return Err(format!("P9: entries are left over: {}", describe(left.into_iter())));
        }
        if let Some((id, objects)) =
            observed.objects.iter().find(|(_, objects)| objects.has_other_length(observed.meta.len))
            && !jumped
        {
            return Err(format!("P8: an object of task {id} is left over: {objects}"));
        }
        let mut counts = BTreeMap::<&str, u32>::new();
        for task in observed.tasks.values() {
            *counts.entry(if task.is_tombstone() { "abandoned" } else { task.status() }).or_default() += 1;
        }
        let (acknowledged, unknown) = (observed.acknowledged.len(), observed.unknown);
        let (runs, moves) = (observed.runs_begun, observed.moves);
        Ok(format!(
            "{acknowledged} acknowledged, {unknown} unknown, {runs} runs, {moves} moves, {} purged, {counts:?}",
            observed.gone.len()
        ))
    }

    fn observed(&self) -> MutexGuard<'_, Observed> {
        self.observed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Observed {
    fn object_changed(
        &mut self,
        id: &str,
        len: usize,
        object: Option<RawTaskObject>,
        (at, now): (Duration, Option<i64>),
    ) -> CheckResult {
        let (meta, jumped, task) = (&self.meta, now.is_none(), self.tasks.get(id));
        let context = ChangeContext { meta, now: at, jumped, task };
        let new = match self.objects.entry(id.to_owned()).or_default().change(len, object, &context)? {
            TaskEffect::Same => return Ok(()),
            TaskEffect::Gone => {
                self.gone.insert(id.to_owned());
                let task = self.tasks.remove(id);
                return task.map_or(Ok(()), |task| checks::deleted(&task, now));
            }
            TaskEffect::Changed(new) => {
                self.moves += u64::from(new.text("shard").len() != len);
                new
            }
            TaskEffect::Stray(new) => {
                self.tasks.remove(id);
                new
            }
        };
        self.task_changed(id, &new, now)?;
        if new.is_final() {
            self.open.remove(id)
        } else {
            self.open.insert(id.to_owned())
        };
        self.tasks.insert(id.to_owned(), new);
        Ok(())
    }

    fn key_changed(&mut self, before: Option<Raw>, after: Option<Raw>) {
        if let Some(before) = before {
            self.key_expiries.remove(before.text("task_id"));
        }
        if let Some(after) = after
            && let Some(expiry) = after.time("expires_at")
        {
            self.key_expiries.insert(after.text("task_id").to_owned(), expiry);
        }
    }

    /// Checks that at the switch every acknowledged task is at its new key, and covered there.
    fn meta_changed(&mut self, after: &StoredObject, at: Duration) -> CheckResult {
        if !self.meta.change(after, at)? {
            return Ok(());
        }
        let len = self.meta.len;
        for (id, objects) in &self.objects {
            if let Some(left) = objects.left_by_switch(len) {
                return Err(format!("P8: task {id} is still at its old key after the switch: {}", left.0));
            }
            self.check_covered(id, None)?;
        }
        let is_there =
            |id: &TaskId| self.objects.get(&id.to_string()).is_some_and(|objects| objects.is_at(len));
        match self.acknowledged.iter().find(|id| !is_there(id)) {
            Some(id) => Err(format!("P8: task {id} was acknowledged, but does not exist after the switch")),
            None => Ok(()),
        }
    }

    /// Returns whether a task is at a key that no migration lists.
    fn is_left_behind(&self, id: &str) -> bool {
        self.objects.get(id).is_some_and(|objects| !objects.is_at(self.meta.len))
    }

    fn task_changed(&mut self, id: &str, new: &Raw, now: Option<i64>) -> CheckResult {
        match self.tasks.get(id) {
            None if self.gone.contains(id) && !new.is_tombstone() => {
                return Err("P3: it was purged, but exists again".into());
            }
            None => checks::created(new)?,
            Some(old) => checks::changed(old, new, now)?,
        }
        if new.submit().is_some_and(|submit| self.failed.contains(&submit)) && !new.is_tombstone() {
            return Err("its submit definitely failed, but it exists".into());
        }
        if new.status() == "purged"
            && let (Some(now), Some(expiry)) = (now, self.key_expiries.get(id))
            && now < expiry + checks::PURGE_GRACE_MS
            && self.tasks.get(id).is_some_and(|old| old.status() != "purged")
        {
            return Err("it was purged before its idempotency key expired".into());
        }
        let claim = (id.to_owned(), new.number("epoch"));
        if let Some(expiry) = new.time("lease_expires_at") {
            self.expiries.insert(claim.clone(), expiry);
        }
        let completes = new.status() == "completed";
        if completes && (!self.succeeded.contains(&claim) || new.0["output"].as_u64() != Some(claim.1)) {
            return Err(format!("P3: completed in epoch {}, whose handler did not succeed", claim.1));
        }
        Ok(())
    }

    /// Checks that a task that is not final has an entry that is not ahead of it, and either not due later
    /// (promise P5) or due already: an expired claim may leave a task that should have expired before. If the
    /// store's time was set back, an entry may be due later: the task is found, but later.
    fn check_covered(&self, id: &str, now: Option<i64>) -> CheckResult {
        let Some(task) = self.tasks.get(id) else { return Ok(()) };
        let Some(due) = task.due() else { return Ok(()) };
        let rev = task.number("rev");
        let entries = self.entries.get(id);
        let by = now
            .and_then(|now| minute(&StoreTime::from_millis(now).to_string()))
            .map(|now| now.max(due.clone()));
        let is_found = |entry: &RawEntry| by.as_ref().is_none_or(|by| entry.minute <= *by);
        // Some workers list only its shard; while the task moves, its old entry still leads to it. Entries in
        // an inbox or in the overflow are always read by some worker.
        let is_at_key = self.objects.get(id).is_some_and(|objects| objects.has(task));
        let is_seen =
            |entry: &RawEntry| !is_at_key || entry.shard.is_empty() || entry.shard == task.text("shard");
        let covers = |entry: &RawEntry| entry.rev <= rev && is_found(entry) && is_seen(entry);
        if entries.is_some_and(|entries| entries.iter().any(covers)) {
            return Ok(());
        }
        let status = task.status();
        let entries = describe(entries.into_iter().flatten());
        Err(format!(
            "P5: {status} task {id} has no entry that covers rev {rev}, due {due}; its entries: {entries}"
        ))
    }
}

/// Describes index entries for a message.
fn describe<'a>(entries: impl Iterator<Item = &'a RawEntry>) -> String {
    let entries: Vec<_> = entries.map(ToString::to_string).collect();
    if entries.is_empty() { "none".to_owned() } else { entries.join(", ") }
}
