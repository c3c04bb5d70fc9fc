//! The judge: compares the bucket and the folders with the runs of handlers and their results.

use leasehold_core::TaskId;
use leasehold_core::outpost::{Consistency, OpKind, Why};
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
const GOES: [&str; 3] = ["ready/", "leases/", "probe/"];
/// Pause after which the heartbeats of a process may have been missed for too long.
const STOOD_STILL: Duration = Duration::from_secs(30);
/// Time after such a pause in which its claims may still be taken over.
const AFTERMATH: Duration = Duration::from_mins(15);

/// Maximum time from the last read of a lease to the start of a handler.
const SLACK_MS: i64 = 1_000;

/// The judge. Clones share its state.
#[derive(Clone)]
pub(super) struct OutpostJudge {
    executor: Executor,
    bucket: Arc<SimBucket>,
    consistency: Consistency,
    case: Arc<Mutex<Case>>,
}

#[derive(Default)]
struct Case {
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
    results: BTreeMap<u64, Given>,
    /// Runs whose result is recorded on a node.
    kept: BTreeSet<u64>,
}

/// A running handler.
struct Run {
    context: Context,
    node: Option<String>,
    process: ProcessId,
    seen_at: Duration,
    stood_still_at: Option<Duration>,
}

/// Result of a handler.
#[derive(Clone)]
struct Given {
    id: String,
    generation: u64,
    node: Option<String>,
}

type Judged = Result<(), String>;

impl OutpostJudge {
    pub(super) fn new(executor: Executor, bucket: Arc<SimBucket>, consistency: Consistency) -> Self {
        Self { executor, bucket, consistency, case: Arc::default() }
    }

    pub(super) fn now(&self) -> Duration {
        self.executor.now()
    }

    /// Returns the store's time if it never jumped, so that no process can be mistaken about it.
    fn sure_ms(&self) -> Option<i64> {
        self.bucket.jumped_at().is_none().then(|| self.bucket.time_ns().div_euclid(1_000_000))
    }

    /// Checks a change of the bucket.
    pub(super) fn watch(&self, change: &BucketChange) -> Judged {
        let Some(after) = &change.after else {
            let goes = GOES.iter().any(|prefix| change.key.starts_with(prefix));
            return if goes { Ok(()) } else { Err(format!("P1: {} was deleted", change.key)) };
        };
        let Some(id) = task_id(&change.key) else { return Ok(()) };
        let new = Raw::read(after)?;
        self.changed(id, &new).map_err(|why| format!("task {id}: {why}"))?;
        let mut case = self.case();
        if new.is_final() {
            case.open.remove(id)
        } else {
            case.open.insert(id.to_owned())
        };
        case.tasks.insert(id.to_owned(), new);
        Ok(())
    }

    fn changed(&self, id: &str, new: &Raw) -> Judged {
        let (now, mut case) = (self.sure_ms(), self.case());
        match case.tasks.get(id) {
            None => records::created(new)?,
            Some(old) => {
                records::changed(old, new, self.consistency == Consistency::Strict, now)?;
                self.is_not_stolen(&case, old, new, now)?;
            }
        }
        if let Some(expiry) = new.time("lease_expires_at") {
            case.claims.insert(new.text("lease_id").to_owned(), expiry);
        }
        if new.status() != "completed" {
            return Ok(());
        }
        let run = new.0["output"]["run"].as_u64().unwrap_or_default();
        let generation = new.number("generation");
        match case.results.get(&run) {
            Some(given) if given.id == id && given.generation == generation => {}
            _ => {
                return Err(format!(
                    "P3: completed with an output that no handler returned: {}",
                    new.0["output"]
                ));
            }
        }
        match case.completions.insert((id.to_owned(), generation), run) {
            Some(before) if before != run => {
                Err(format!("P3: generation {generation} was completed by runs {before} and {run}"))
            }
            _ => Ok(()),
        }
    }

    /// Checks that a live claim is taken over only from a process without heartbeats.
    fn is_not_stolen(&self, case: &Case, old: &Raw, new: &Raw, now: Option<i64>) -> Judged {
        let (before, after) = (old.text("lease_id"), new.text("lease_id"));
        let is_taken =
            old.status() == "running" && before != after && records::event(old, new) == "take over";
        let lasts = now.is_some_and(|now| old.time("lease_expires_at").is_some_and(|at| now <= at));
        let is_its =
            |run: &&Run| run.context.task().lease_id.as_ref().is_some_and(|id| id.as_str() == before);
        match case.runs.values().find(is_its) {
            Some(run) if is_taken && lasts && self.is_well(run) => {
                Err(format!("P6: {before} is alive and running, but {after} took over its task"))
            }
            _ => Ok(()),
        }
    }

    /// Returns whether a run continues, and has not been paused for long.
    fn is_well(&self, run: &Run) -> bool {
        let is_rested = |at: Duration| self.now().saturating_sub(at) > AFTERMATH;
        self.executor.is_alive(run.process)
            && !self.executor.is_paused(run.process)
            && !run.context.is_cancelled()
            && self.now().saturating_sub(run.seen_at) < STOOD_STILL
            && run.stood_still_at.is_none_or(is_rested)
    }

    /// Records an acknowledged submit.
    pub(super) fn told(&self, id: TaskId) {
        self.case().submitted.push(id);
    }

    pub(super) fn submitted(&self) -> Vec<TaskId> {
        self.case().submitted.clone()
    }

    /// Records the start of a handler. In a strict queue the bucket must contain its claim, and no other live
    /// one.
    pub(super) fn begin(
        &self,
        context: &Context,
        node: Option<&str>,
        process: ProcessId,
    ) -> Result<u64, String> {
        let (now, mut case) = (self.sure_ms(), self.case());
        let id = context.task().id;
        let lease = context.task().lease_id.as_ref().map(ToString::to_string).unwrap_or_default();
        if self.consistency == Consistency::Strict {
            let Some(expiry) = case.claims.get(&lease) else {
                return Err(format!("P2: the handler of {id} begins, but the bucket has no claim {lease}"));
            };
            let late = now.map_or(0, |now| now - expiry);
            if late > SLACK_MS && !self.executor.is_paused(process) {
                return Err(format!("P2: the handler of {id} begins {late} ms after its claim expired"));
            }
            for run in case.runs.values().filter(|run| run.context.task().id == id) {
                let other = run.context.task().lease_id.as_ref().map(ToString::to_string).unwrap_or_default();
                let lasts = now.is_some_and(|now| case.claims.get(&other).is_some_and(|at| now < *at));
                let is_trusted = !run.context.is_cancelled()
                    && self.executor.is_alive(run.process)
                    && !self.executor.is_paused(run.process);
                if lasts && is_trusted && self.is_well(run) {
                    return Err(format!("P2: {id} runs under {other} and {lease} at once"));
                }
            }
        }
        case.runs_begun += 1;
        let run = case.runs_begun;
        let begun = Run {
            context: context.clone(),
            node: node.map(ToOwned::to_owned),
            process,
            seen_at: self.now(),
            stood_still_at: None,
        };
        case.runs.insert(run, begun);
        Ok(run)
    }

    /// Records that a handler is still running.
    pub(super) fn goes_on(&self, run: u64) {
        let now = self.now();
        if let Some(run) = self.case().runs.get_mut(&run) {
            if now.saturating_sub(run.seen_at) > STOOD_STILL {
                run.stood_still_at = Some(now);
            }
            run.seen_at = now;
        }
    }

    pub(super) fn end(&self, run: u64) {
        self.case().runs.remove(&run);
    }

    /// Records the result of a handler.
    pub(super) fn gives(&self, run: u64) {
        let mut case = self.case();
        let Some(begun) = case.runs.get(&run) else { return };
        let task = begun.context.task();
        let given = Given { id: task.id.to_string(), generation: task.generation, node: begun.node.clone() };
        case.results.insert(run, given);
    }

    /// Records that a result was written on its node: from now on it must not be lost.
    pub(super) fn is_kept(&self, run: u64) {
        self.case().kept.insert(run);
    }

    /// Returns whether all submitted tasks are in the bucket, and have ended.
    pub(super) fn is_at_rest(&self) -> bool {
        let case = self.case();
        case.open.is_empty() && case.submitted.iter().all(|id| case.tasks.contains_key(&id.to_string()))
    }

    /// Returns the bucket's record of a task.
    pub(super) fn record(&self, id: &str) -> String {
        self.case().tasks.get(id).map_or_else(String::new, |task| task.0.to_string())
    }

    /// Returns a summary. Fails if a result was lost.
    pub(super) fn sum_up(&self, nodes: &[Node]) -> Result<String, String> {
        let case = self.case();
        let mut conflicts: BTreeMap<u64, (&str, ConflictFile)> = BTreeMap::new();
        for node in nodes {
            for conflict in node.conflicts() {
                if let OpKind::Complete { output, .. } = &conflict.op.deed
                    && let Some(run) = output["run"].as_u64()
                {
                    conflicts.insert(run, (&node.name, conflict));
                }
            }
        }
        let mut twice = 0;
        for run in &case.kept {
            let Some(Given { id, generation, node }) = case.results.get(run) else { continue };
            // A task requeued on a node may be a generation ahead there.
            let of_task = case.completions.range((id.clone(), 0)..=(id.clone(), *generation));
            if of_task.clone().any(|(_, by)| by == run) {
                continue;
            }
            let completed = case.completions.get(&(id.clone(), *generation));
            match conflicts.get(run) {
                Some((on, _)) if node.as_deref() != Some(*on) => {
                    return Err(format!("P7: the result of run {run} of {id} is on {on}"));
                }
                Some((_, conflict)) if completed.is_some() => {
                    twice += 1;
                    // Other workers may have completed it since.
                    let is_told = matches!(
                        conflict.why,
                        Why::CompletedByOthers | Why::TakenByOthers | Why::FailedByOthers
                    );
                    if !is_told {
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
                        case.tasks.get(id).map(|task| task.0.to_string())
                    ));
                }
            }
        }
        let mut counts = BTreeMap::<&str, u32>::new();
        for task in case.tasks.values() {
            *counts.entry(if task.is_tombstone() { "abandoned" } else { task.status() }).or_default() += 1;
        }
        let (submitted, runs, kept) = (case.submitted.len(), case.runs_begun, case.kept.len());
        let mode = self.consistency;
        Ok(format!("{mode}: {submitted} submitted, {runs} runs, {kept} kept, {twice} twice, {counts:?}"))
    }

    fn case(&self) -> MutexGuard<'_, Case> {
        self.case.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
