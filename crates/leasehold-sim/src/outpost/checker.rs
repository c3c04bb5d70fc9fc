//! Compares the bucket and the folders with the runs of handlers and their results.

use leasehold_core::TaskId;
use leasehold_core::outpost::{Consistency, OpKind, SyncRefusal};
use leasehold_worker::Context;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::node::{ConflictFile, Node};
use super::records;
use crate::bucket::{BucketChange, SimBucket};
use crate::executor::{Executor, ProcessId};
use crate::queue::raw::{Raw, task_id};

/// Prefixes whose objects may be deleted: probes of the store, and the index, which is derived from tasks. No
/// task is old enough to be purged.
const DELETABLE: [&str; 3] = ["ready/", "leases/", "probe/"];
/// Pause after which the heartbeats of a process may have been missed for too long.
const STALLED_AFTER: Duration = Duration::from_secs(30);
/// Time after such a pause in which its claims may still be taken over.
const AFTERMATH: Duration = Duration::from_mins(15);

/// Maximum time from the last read of a lease to the start of a handler.
const SLACK_MS: i64 = 1_000;

/// Checker of this scenario. Clones share its state.
#[derive(Clone)]
pub(super) struct OutpostChecker {
    executor: Executor,
    bucket: Arc<SimBucket>,
    consistency: Consistency,
    observed: Arc<Mutex<Observed>>,
}

#[derive(Default)]
struct Observed {
    tasks: BTreeMap<String, Raw>,
    /// Tasks that are not final.
    open: BTreeSet<String>,
    /// Expiry of each claim in the bucket.
    claims: BTreeMap<String, i64>,
    /// Run that completed each generation of a task.
    completions: BTreeMap<(String, u64), u64>,
    submitted: Vec<TaskId>,
    runs: BTreeMap<u64, Run>,
    runs_begun: u64,
    /// Results of handlers.
    results: BTreeMap<u64, HandlerResult>,
    /// Runs whose result is recorded on a node.
    saved: BTreeSet<u64>,
}

/// A running handler.
struct Run {
    context: Context,
    node: Option<String>,
    process: ProcessId,
    last_active_at: Duration,
    stalled_at: Option<Duration>,
}

/// Result of a handler.
#[derive(Clone)]
struct HandlerResult {
    id: String,
    generation: u64,
    node: Option<String>,
}

type CheckResult = Result<(), String>;

impl OutpostChecker {
    pub(super) fn new(executor: Executor, bucket: Arc<SimBucket>, consistency: Consistency) -> Self {
        Self { executor, bucket, consistency, observed: Arc::default() }
    }

    pub(super) fn now(&self) -> Duration {
        self.executor.now()
    }

    /// Returns the store's time if it never jumped, so that no process can be mistaken about it.
    fn reliable_now_ms(&self) -> Option<i64> {
        self.bucket.jumped_at().is_none().then(|| self.bucket.time_ns().div_euclid(1_000_000))
    }

    /// Checks a change of the bucket.
    pub(super) fn check_change(&self, change: &BucketChange) -> CheckResult {
        let Some(after) = &change.after else {
            let is_deletable = DELETABLE.iter().any(|prefix| change.key.starts_with(prefix));
            return if is_deletable { Ok(()) } else { Err(format!("P1: {} was deleted", change.key)) };
        };
        let Some(id) = task_id(&change.key) else { return Ok(()) };
        let new = Raw::read(after)?;
        self.changed(id, &new).map_err(|why| format!("task {id}: {why}"))?;
        let mut observed = self.observed();
        if new.is_final() {
            observed.open.remove(id)
        } else {
            observed.open.insert(id.to_owned())
        };
        observed.tasks.insert(id.to_owned(), new);
        Ok(())
    }

    fn changed(&self, id: &str, new: &Raw) -> CheckResult {
        let (now, mut observed) = (self.reliable_now_ms(), self.observed());
        match observed.tasks.get(id) {
            None => records::created(new)?,
            Some(old) => {
                records::changed(old, new, self.consistency == Consistency::Strict, now)?;
                self.check_not_stolen(&observed, old, new, now)?;
            }
        }
        if let Some(expiry) = new.time("lease_expires_at") {
            observed.claims.insert(new.text("lease_id").to_owned(), expiry);
        }
        if new.status() != "completed" {
            return Ok(());
        }
        let run = new.0["output"]["run"].as_u64().unwrap_or_default();
        let generation = new.number("generation");
        match observed.results.get(&run) {
            Some(result) if result.id == id && result.generation == generation => {}
            _ => {
                return Err(format!(
                    "P3: completed with an output that no handler returned: {}",
                    new.0["output"]
                ));
            }
        }
        match observed.completions.insert((id.to_owned(), generation), run) {
            Some(before) if before != run => {
                Err(format!("P3: generation {generation} was completed by runs {before} and {run}"))
            }
            _ => Ok(()),
        }
    }

    /// Checks that a live claim is taken over only from a process without heartbeats.
    fn check_not_stolen(&self, observed: &Observed, old: &Raw, new: &Raw, now: Option<i64>) -> CheckResult {
        let (before, after) = (old.text("lease_id"), new.text("lease_id"));
        let is_taken =
            old.status() == "running" && before != after && records::event(old, new) == "take over";
        let lasts = now.is_some_and(|now| old.time("lease_expires_at").is_some_and(|at| now <= at));
        let holds_lease =
            |run: &&Run| run.context.task().lease_id.as_ref().is_some_and(|id| id.as_str() == before);
        match observed.runs.values().find(holds_lease) {
            Some(run) if is_taken && lasts && self.is_healthy(run) => {
                Err(format!("P6: {before} is alive and running, but {after} took over its task"))
            }
            _ => Ok(()),
        }
    }

    /// Returns whether a run continues, and has not been paused for long.
    fn is_healthy(&self, run: &Run) -> bool {
        let is_rested = |at: Duration| self.now().saturating_sub(at) > AFTERMATH;
        self.executor.is_alive(run.process)
            && !self.executor.is_paused(run.process)
            && !run.context.is_cancelled()
            && self.now().saturating_sub(run.last_active_at) < STALLED_AFTER
            && run.stalled_at.is_none_or(is_rested)
    }

    /// Records an acknowledged submit.
    pub(super) fn record_submit(&self, id: TaskId) {
        self.observed().submitted.push(id);
    }

    pub(super) fn submitted(&self) -> Vec<TaskId> {
        self.observed().submitted.clone()
    }

    /// Records the start of a handler. In a strict queue the bucket must contain its claim, and no other live
    /// one.
    pub(super) fn begin(
        &self,
        context: &Context,
        node: Option<&str>,
        process: ProcessId,
    ) -> Result<u64, String> {
        let (now, mut observed) = (self.reliable_now_ms(), self.observed());
        let id = context.task().id;
        let lease = context.task().lease_id.as_ref().map(ToString::to_string).unwrap_or_default();
        if self.consistency == Consistency::Strict {
            let Some(expiry) = observed.claims.get(&lease) else {
                return Err(format!("P2: the handler of {id} begins, but the bucket has no claim {lease}"));
            };
            let late = now.map_or(0, |now| now - expiry);
            if late > SLACK_MS && !self.executor.is_paused(process) {
                return Err(format!("P2: the handler of {id} begins {late} ms after its claim expired"));
            }
            for run in observed.runs.values().filter(|run| run.context.task().id == id) {
                let other = run.context.task().lease_id.as_ref().map(ToString::to_string).unwrap_or_default();
                let lasts = now.is_some_and(|now| observed.claims.get(&other).is_some_and(|at| now < *at));
                let is_trusted = !run.context.is_cancelled()
                    && self.executor.is_alive(run.process)
                    && !self.executor.is_paused(run.process);
                if lasts && is_trusted && self.is_healthy(run) {
                    return Err(format!("P2: {id} runs under {other} and {lease} at once"));
                }
            }
        }
        observed.runs_begun += 1;
        let run = observed.runs_begun;
        let begun = Run {
            context: context.clone(),
            node: node.map(ToOwned::to_owned),
            process,
            last_active_at: self.now(),
            stalled_at: None,
        };
        observed.runs.insert(run, begun);
        Ok(run)
    }

    /// Records that a handler is still running.
    pub(super) fn record_active(&self, run: u64) {
        let now = self.now();
        if let Some(run) = self.observed().runs.get_mut(&run) {
            if now.saturating_sub(run.last_active_at) > STALLED_AFTER {
                run.stalled_at = Some(now);
            }
            run.last_active_at = now;
        }
    }

    pub(super) fn end(&self, run: u64) {
        self.observed().runs.remove(&run);
    }

    /// Records the result of a handler.
    pub(super) fn record_result(&self, run: u64) {
        let mut observed = self.observed();
        let Some(begun) = observed.runs.get(&run) else { return };
        let task = begun.context.task();
        let result =
            HandlerResult { id: task.id.to_string(), generation: task.generation, node: begun.node.clone() };
        observed.results.insert(run, result);
    }

    /// Records that a result was written on its node: from now on it must not be lost.
    pub(super) fn record_saved(&self, run: u64) {
        self.observed().saved.insert(run);
    }

    /// Returns whether all submitted tasks are in the bucket, and have ended.
    pub(super) fn is_at_rest(&self) -> bool {
        let observed = self.observed();
        observed.open.is_empty()
            && observed.submitted.iter().all(|id| observed.tasks.contains_key(&id.to_string()))
    }

    /// Returns the bucket's record of a task.
    pub(super) fn record(&self, id: &str) -> String {
        self.observed().tasks.get(id).map_or_else(String::new, |task| task.0.to_string())
    }

    /// Returns a summary. Fails if a result was lost.
    pub(super) fn summary(&self, nodes: &[Node]) -> Result<String, String> {
        let observed = self.observed();
        let mut conflicts: BTreeMap<u64, (&str, ConflictFile)> = BTreeMap::new();
        for node in nodes {
            for conflict in node.conflicts() {
                if let OpKind::Complete { output, .. } = &conflict.op.kind
                    && let Some(run) = output["run"].as_u64()
                {
                    conflicts.insert(run, (&node.name, conflict));
                }
            }
        }
        let mut twice = 0;
        for run in &observed.saved {
            let Some(HandlerResult { id, generation, node }) = observed.results.get(run) else { continue };
            // A task requeued on a node may be a generation ahead there.
            let of_task = observed.completions.range((id.clone(), 0)..=(id.clone(), *generation));
            if of_task.clone().any(|(_, by)| by == run) {
                continue;
            }
            let completed = observed.completions.get(&(id.clone(), *generation));
            match conflicts.get(run) {
                Some((on, _)) if node.as_deref() != Some(*on) => {
                    return Err(format!("P7: the result of run {run} of {id} is on {on}"));
                }
                Some((_, conflict)) if completed.is_some() => {
                    twice += 1;
                    // Other workers may have completed it since.
                    let is_expected = matches!(
                        conflict.why,
                        SyncRefusal::CompletedByOthers
                            | SyncRefusal::TakenByOthers
                            | SyncRefusal::FailedByOthers
                    );
                    if !is_expected {
                        let why = conflict.why;
                        return Err(format!(
                            "conflicts: run {run} of {id} was redundant, but is recorded as {why}"
                        ));
                    }
                }
                Some(_) => {}
                None => {
                    return Err(format!(
                        "lost: the result of run {run} for generation {generation} of {id} on {node:?} is \
                         neither in the bucket nor in conflicts/; the bucket has {:?}",
                        observed.tasks.get(id).map(|task| task.0.to_string())
                    ));
                }
            }
        }
        let mut counts = BTreeMap::<&str, u32>::new();
        for task in observed.tasks.values() {
            *counts.entry(if task.is_tombstone() { "abandoned" } else { task.status() }).or_default() += 1;
        }
        let (submitted, runs, saved) = (observed.submitted.len(), observed.runs_begun, observed.saved.len());
        let mode = self.consistency;
        Ok(format!("{mode}: {submitted} submitted, {runs} runs, {saved} saved, {twice} twice, {counts:?}"))
    }

    fn observed(&self) -> MutexGuard<'_, Observed> {
        self.observed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
