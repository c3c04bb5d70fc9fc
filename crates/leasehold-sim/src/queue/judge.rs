//! Knows what stands in the bucket, what producers were told and what handlers do, and compares.

use leasehold_core::{Error, StoreTime, TaskId};
use leasehold_queue::Submitted;
use leasehold_worker::Context;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::checks;
use super::raw::{Pointer, Raw, minute, task_id};
use crate::bucket::{Change, SimBucket};
use crate::executor::{Executor, ProcessId};

/// What two clocks that run at different rates may differ by in one lease.
const SLACK_MS: i64 = 50;

/// The judge. Clones are the same one.
#[derive(Clone)]
pub(super) struct Judge {
    executor: Executor,
    bucket: Arc<SimBucket>,
    calm_after: Duration,
    case: Arc<Mutex<Case>>,
}

#[derive(Default)]
struct Case {
    tasks: BTreeMap<String, Raw>,
    /// Tasks that are not final.
    open: BTreeSet<String>,
    pointers: BTreeMap<String, BTreeSet<Pointer>>,
    acknowledged: Vec<TaskId>,
    by_key: BTreeMap<u64, TaskId>,
    /// Submits that surely failed.
    failed: BTreeSet<u64>,
    unknown: u64,
    producing: usize,
    runs: BTreeMap<u64, Run>,
    runs_begun: u64,
    /// Until when each claim lasts, by the record.
    expiries: BTreeMap<(String, u64), i64>,
    succeeded: BTreeSet<(String, u64)>,
}

/// A handler that runs.
struct Run {
    context: Context,
    process: ProcessId,
    began: Duration,
}

type Judged = Result<(), String>;

impl Judge {
    pub(super) fn new(executor: Executor, bucket: Arc<SimBucket>, calm_after: Duration) -> Self {
        Self { executor, bucket, calm_after, case: Arc::default() }
    }

    pub(super) fn now(&self) -> Duration {
        self.executor.now()
    }

    pub(super) fn is_calm(&self) -> bool {
        self.now() > self.calm_after
    }

    /// So many submits are still to come.
    pub(super) fn expect(&self, submits: usize) {
        self.case().producing = submits;
    }

    /// The store's time, if it never jumped, so that nobody can be mistaken about it.
    fn sure_ms(&self) -> Option<i64> {
        self.bucket.jumped_at().is_none().then(|| self.bucket.time_ns().div_euclid(1_000_000))
    }

    /// Looks at a change of the bucket.
    pub(super) fn watch(&self, change: &Change) -> Judged {
        let now = self.sure_ms();
        let mut case = self.case();
        let id = if let Some(pointer) = Pointer::read(&change.key) {
            let id = pointer.id.clone();
            let pointers = case.pointers.entry(id.clone()).or_default();
            if change.after.is_some() {
                pointers.insert(pointer)
            } else {
                pointers.remove(&pointer)
            };
            id
        } else if let Some(id) = task_id(&change.key) {
            let after = change.after.as_ref().ok_or_else(|| format!("P1: task {id} is gone"))?;
            let new = Raw::read(after).map_err(|why| format!("task {id}: {why}"))?;
            case.task_changed(id, &new, now).map_err(|why| format!("task {id}: {why}"))?;
            if new.is_final() {
                case.open.remove(id)
            } else {
                case.open.insert(id.to_owned())
            };
            case.tasks.insert(id.to_owned(), new);
            id.to_owned()
        } else {
            return Ok(());
        };
        case.covered(&id, now)
    }

    /// What a producer was told of an order.
    pub(super) fn told(&self, number: u64, key: Option<u64>, told: &Result<Submitted, Error>) -> Judged {
        let mut case = self.case();
        case.producing -= 1;
        match told {
            Ok(submitted) => {
                let name = submitted.id.to_string();
                if case.tasks.get(&name).is_none_or(Raw::is_tombstone) {
                    return Err(format!("P1: task {name} was acknowledged, but is not there"));
                }
                case.acknowledged.push(submitted.id);
                let known = key.map(|key| *case.by_key.entry(key).or_insert(submitted.id));
                match known {
                    Some(known) if known != submitted.id => {
                        Err(format!("one key has two tasks: {known} and {name}"))
                    }
                    _ => Ok(()),
                }
            }
            Err(error) if error.outcome_is_unknown() => {
                case.unknown += 1;
                Ok(())
            }
            Err(_) if key.is_some() => Ok(()),
            Err(error) => {
                case.failed.insert(number);
                let is_there = |task: &Raw| task.submit() == Some(number) && !task.is_tombstone();
                if case.tasks.values().any(is_there) {
                    return Err(format!("submit {number} surely failed ({error}), but its task is there"));
                }
                Ok(())
            }
        }
    }

    /// A submit ended with its process: nobody was told anything.
    pub(super) fn cut(&self) {
        let mut case = self.case();
        case.producing -= 1;
        case.unknown += 1;
    }

    pub(super) fn acknowledged(&self) -> Vec<TaskId> {
        self.case().acknowledged.clone()
    }

    /// A handler begins: nobody else may believe that the task is theirs.
    pub(super) fn begin(&self, context: &Context, process: ProcessId) -> Result<u64, String> {
        let mut case = self.case();
        let (id, epoch) = (context.task().id, context.epoch());
        for run in case.runs.values().filter(|run| run.context.task().id == id) {
            let trusted = !run.context.is_cancelled() && !self.executor.is_paused(run.process);
            if trusted && self.sure_ms().is_some() {
                return Err(format!("P2: {id} runs in epochs {} and {epoch} at once", run.context.epoch()));
            }
        }
        case.runs_begun += 1;
        let run = case.runs_begun;
        case.runs.insert(run, Run { context: context.clone(), process, began: self.executor.now() });
        Ok(run)
    }

    /// A handler goes on: its claim must not have run out without its being told.
    pub(super) fn goes_on(&self, run: u64) -> Judged {
        let case = self.case();
        let (Some(run), Some(now)) = (case.runs.get(&run), self.sure_ms()) else { return Ok(()) };
        let (id, epoch) = (run.context.task().id, run.context.epoch());
        let Some(expiry) = case.expiries.get(&(id.to_string(), epoch)) else { return Ok(()) };
        let late = now - expiry;
        if late <= SLACK_MS || run.context.is_cancelled() || self.executor.is_paused(run.process) {
            return Ok(());
        }
        let began = run.began;
        Err(format!(
            "P2: the handler of {id} in epoch {epoch} (since {began:?}) trusts a claim that ended {late} ms ago"
        ))
    }

    pub(super) fn end(&self, run: u64) {
        self.case().runs.remove(&run);
    }

    pub(super) fn succeed(&self, context: &Context) {
        self.case().succeeded.insert((context.task().id.to_string(), context.epoch()));
    }

    /// Whether faults are over, everything was submitted and all of it has ended.
    pub(super) fn is_at_rest(&self) -> bool {
        self.is_calm() && {
            let case = self.case();
            case.producing == 0 && case.open.is_empty()
        }
    }

    /// What was done; an error if anything is left over.
    pub(super) fn sum_up(&self) -> Result<String, String> {
        let case = self.case();
        if let Some(task) = case.tasks.values().find(|task| !task.is_final()) {
            return Err(format!("not at rest: {}", task.0));
        }
        let left: Vec<_> = case.pointers.values().flatten().collect();
        if self.bucket.jumped_at().is_none() && !left.is_empty() {
            return Err(format!("P9: entries are left over: {left:?}"));
        }
        let mut counts = BTreeMap::<&str, u32>::new();
        for task in case.tasks.values() {
            *counts.entry(if task.is_tombstone() { "abandoned" } else { task.status() }).or_default() += 1;
        }
        let (acknowledged, unknown) = (case.acknowledged.len(), case.unknown);
        Ok(format!("{acknowledged} acknowledged, {unknown} unknown, {} runs, {counts:?}", case.runs_begun))
    }

    fn case(&self) -> MutexGuard<'_, Case> {
        self.case.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Case {
    fn task_changed(&mut self, id: &str, new: &Raw, now: Option<i64>) -> Judged {
        match self.tasks.get(id) {
            None => checks::created(new)?,
            Some(old) => checks::changed(old, new, now)?,
        }
        if new.submit().is_some_and(|submit| self.failed.contains(&submit)) && !new.is_tombstone() {
            return Err("its submit surely failed, and yet it is there".into());
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

    /// A task that is not final has an entry that is not ahead of it, and not due later (promise P5), or due already: a
    /// claim that runs out may leave a task that should have expired before. Once the store's time was set back, an entry
    /// may be due later: the task is found later, but found.
    fn covered(&self, id: &str, now: Option<i64>) -> Judged {
        let Some(task) = self.tasks.get(id) else { return Ok(()) };
        let Some(due) = task.due() else { return Ok(()) };
        let rev = task.number("rev");
        let pointers = self.pointers.get(id);
        let by = now
            .and_then(|now| minute(&StoreTime::from_millis(now).to_string()))
            .map(|now| now.max(due.clone()));
        let is_found = |pointer: &Pointer| by.as_ref().is_none_or(|by| pointer.minute <= *by);
        let covers = |pointer: &Pointer| pointer.rev <= rev && is_found(pointer);
        if pointers.is_some_and(|pointers| pointers.iter().any(covers)) {
            return Ok(());
        }
        let status = task.status();
        Err(format!("P5: {status} task {id} at rev {rev}, due {due}, has only {pointers:?}"))
    }
}
