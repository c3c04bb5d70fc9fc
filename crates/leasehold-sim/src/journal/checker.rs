//! Compares the raw log with the answers that processes got, and with what a broker would replay.

use leasehold_core::journal::{JournalRecord, JournalState};
use leasehold_core::settlement::Settlement;
use leasehold_core::{Error, Reason, StoreTime, Task, TaskId, record};
use leasehold_queue::{Submitted, Transition};
use leasehold_worker::Context;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::answers::{Answers, LogView, SentAt, check_kind};
use super::claims::{ClaimName, Claims, RecordedAnswer};
use super::raw_archive::RawArchive;
use super::raw_log::{self, RawCommit, RawLog};
use super::raw_tasks::{RawTasks, difference};
use super::snapshots;
use crate::bucket::{BucketChange, BucketObjects, SimBucket};
use crate::executor::{Executor, ProcessId};

/// Checker of this scenario. Clones share its state.
#[derive(Clone)]
pub(super) struct JournalChecker {
    executor: Executor,
    bucket: Arc<SimBucket>,
    calm_after: Duration,
    observed: Arc<Mutex<Observed>>,
}

#[derive(Default)]
struct Observed {
    log: RawLog,
    tasks: RawTasks,
    archive: RawArchive,
    /// State that a broker would replay.
    replay: JournalState,
    /// Commits so far.
    commits: Vec<RawCommit>,
    /// Snapshot that the lease names.
    snapshot: u64,
    /// Number of snapshots that the lease has named.
    snapshots: u64,
    /// Number of commits, parts of snapshots and archive objects that were created.
    created: u64,
    claims: Claims,
    answers: Answers,
    /// Time of the last fence.
    fenced: Duration,
    /// Submits that are still to be made.
    producing: usize,
    succeeded: BTreeSet<(String, u64)>,
}

type CheckResult = Result<(), String>;

impl JournalChecker {
    pub(super) fn new(executor: Executor, bucket: Arc<SimBucket>, calm_after: Duration) -> Self {
        Self { executor, bucket, calm_after, observed: Arc::default() }
    }

    pub(super) fn now(&self) -> Duration {
        self.executor.now()
    }

    pub(super) fn is_calm(&self) -> bool {
        self.now() > self.calm_after
    }

    /// Adds submits that are still to be made.
    pub(super) fn expect(&self, submits: usize) {
        self.observed().producing += submits;
    }

    /// Returns the store's time if it never jumped, so that no process can be mistaken about it.
    fn reliable_now_ms(&self) -> Option<i64> {
        self.bucket.jumped_at().is_none().then(|| self.bucket.time_ns().div_euclid(1_000_000))
    }

    /// Checks a change of the bucket.
    pub(super) fn check_change(&self, change: &BucketChange, objects: &BucketObjects) -> CheckResult {
        crate::leases::check_change(change)?;
        let (now, at, mut observed) = (self.reliable_now_ms(), self.now(), self.observed());
        observed.created += u64::from(is_part_of_journal(&change.key) && change.before.is_none());
        observed.archive.check_change(change)?;
        if let Some(commit) = observed.log.change(change)? {
            observed
                .committed(&commit, at, now, objects)
                .map_err(|why| format!("{why} (commit {})", commit.seq))?;
            observed.commits.push(commit);
            return Ok(());
        }
        let snapshot = observed.log.snapshot();
        let is_new = std::mem::replace(&mut observed.snapshot, snapshot) != snapshot;
        observed.snapshots += u64::from(is_new);
        // Deleted parts of older snapshots must not be parts of this one.
        if snapshot > 0 && (is_new || change.after.is_none()) {
            snapshots::check(snapshot, objects, &observed.commits, &observed.replay)
        } else {
            Ok(())
        }
    }

    /// Extent of the log at this moment, at which a request is sent.
    pub(super) fn sent(&self) -> SentAt {
        let observed = self.observed();
        SentAt { records: observed.tasks.records(), fenced: observed.fenced }
    }

    /// Checks the answer to a submit.
    pub(super) fn check_submitted(
        &self,
        submit: (u64, Option<u64>),
        answer: &Result<Submitted, Error>,
        sent: SentAt,
    ) -> CheckResult {
        self.observed().producing -= 1;
        self.judge(|answers, log| answers.submitted(submit, answer, sent, log))
    }

    /// Checks the answer to an operation of this name, made by this process.
    pub(super) fn check_operated(
        &self,
        operation: (TaskId, &str, &str),
        answer: &Result<Transition<Task>, Error>,
        sent: SentAt,
    ) -> CheckResult {
        self.judge(|answers, log| answers.operated(operation, answer, sent, log))
    }

    /// Checks the answer to a read of one task.
    pub(super) fn check_read(&self, id: TaskId, answer: &Result<Task, Error>, sent: SentAt) -> CheckResult {
        self.judge(|answers, log| answers.read(id, answer, sent, log))
    }

    /// Checks the answer to a wait: a final task that the log has, at any time.
    pub(super) fn check_waited(&self, id: TaskId, answer: &Result<Task, Error>) -> CheckResult {
        match answer {
            Err(error) if error.reason() == Some(Reason::Missing) => {
                Err(format!("refusal: task {id} was acknowledged, but a wait did not find it"))
            }
            Ok(task) if !task.status().is_final() => {
                Err(format!("a wait for task {id} ended while it is {}", task.status()))
            }
            _ => self.check_read(id, answer, SentAt::default()),
        }
    }

    /// Checks a list of all tasks.
    pub(super) fn check_list(&self, answer: &Result<Vec<Task>, Error>, sent: SentAt) -> CheckResult {
        match answer {
            Ok(tasks) => self.judge(|answers, log| answers.listed(tasks, sent, log)),
            Err(error) => self.check_error(error),
        }
    }

    /// Checks an error.
    pub(super) fn check_error(&self, error: &Error) -> CheckResult {
        check_kind(error, self.reliable_now_ms())
    }

    /// Checks the answer of a broker to the worker that holds a claim.
    pub(super) fn check_claim(&self, name: &ClaimName, answer: RecordedAnswer) -> CheckResult {
        let now = self.reliable_now_ms();
        self.observed().claims.answered(name, answer, now)
    }

    /// Notes that a worker asks to renew its claim, or has got the answer.
    pub(super) fn note_renewal(&self, name: &ClaimName, is_answered: bool) {
        let at = Some(self.now()).filter(|_| is_answered);
        self.observed().claims.renewal_answered(name, at);
    }

    pub(super) fn settlement_requested(&self, name: &ClaimName, settlement: &Settlement) {
        self.observed().claims.settlement_requested(name, settlement);
    }

    /// Counts a submit that ended with its process, without an answer.
    pub(super) fn count_unanswered(&self) {
        let mut observed = self.observed();
        observed.producing -= 1;
        observed.answers.unknown += 1;
    }

    pub(super) fn acknowledged(&self) -> Vec<TaskId> {
        self.observed().answers.acknowledged.clone()
    }

    /// Notes the start of a handler.
    pub(super) fn begin(&self, context: &Context, process: ProcessId) -> Result<u64, String> {
        let is_reliable = self.reliable_now_ms().is_some();
        self.observed().claims.begin(context, process, &self.executor, is_reliable)
    }

    /// Checks that a running handler was stopped if its claim has expired.
    pub(super) fn check_running(&self, run: u64) -> CheckResult {
        let now = self.reliable_now_ms();
        self.observed().claims.check_running(run, &self.executor, now)
    }

    pub(super) fn end(&self, run: u64) {
        self.observed().claims.end(run);
    }

    pub(super) fn succeed(&self, context: &Context) {
        self.observed().succeeded.insert((context.task().id.to_string(), context.epoch()));
    }

    /// Returns whether faults have stopped, and all tasks were submitted and have ended.
    pub(super) fn is_at_rest(&self) -> bool {
        let observed = self.observed();
        let is_final = |(_, task): (&String, &super::raw_tasks::RawTask)| task.now().is_final();
        self.is_calm() && observed.producing == 0 && observed.tasks.iter().all(is_final)
    }

    /// Checks at rest that every task is live or archived, and that every object of the archive is there.
    pub(super) fn check_at_rest(&self) -> CheckResult {
        let observed = self.observed();
        observed.tasks.iter().try_for_each(|(id, _)| observed.compare(id))?;
        self.bucket.with_objects(|objects| observed.archive.check_objects(objects))
    }

    /// Number of commits, parts of snapshots and archive objects that were created.
    pub(super) fn created(&self) -> u64 {
        self.observed().created
    }

    /// Returns a summary.
    pub(super) fn summary(&self) -> String {
        let observed = self.observed();
        let mut counts = BTreeMap::<&str, u32>::new();
        for (_, task) in observed.tasks.iter() {
            *counts.entry(task.now().status()).or_default() += 1;
        }
        let Answers { acknowledged, unknown, reads, .. } = &observed.answers;
        let (commits, fences, claims) =
            (observed.log.len(), observed.log.fences(), observed.claims.summary());
        let (acknowledged, snapshots) = (acknowledged.len(), observed.snapshots);
        let archive = observed.archive.summary();
        format!(
            "{acknowledged} acknowledged, {unknown} unknown, {commits} commits, {fences} fences, {snapshots} snapshots, {archive}, {claims}, {reads} reads, {counts:?}"
        )
    }

    fn judge(&self, check: impl FnOnce(&mut Answers, &LogView<'_>) -> CheckResult) -> CheckResult {
        let now = self.reliable_now_ms();
        let mut observed = self.observed();
        let Observed { tasks, claims, answers, .. } = &mut *observed;
        check(answers, &LogView { tasks, claims, now })
    }

    fn observed(&self) -> MutexGuard<'_, Observed> {
        self.observed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Observed {
    /// Applies a commit, once by the raw records and once as a broker does, and compares both.
    fn committed(
        &mut self,
        commit: &RawCommit,
        at: Duration,
        now: Option<i64>,
        objects: &BucketObjects,
    ) -> CheckResult {
        if let Some(fence) = commit.fence {
            self.fenced = at;
            self.tasks.fence(fence);
            let [fenced_at, trusted] = [fence.at, fence.trusted_until].map(StoreTime::from_millis);
            self.replay.fence(fenced_at, trusted);
            let running = self.tasks.iter().filter(|(_, task)| task.lease_id().is_some());
            let running: Vec<_> = running.map(|(id, _)| id.clone()).collect();
            return running.iter().try_for_each(|id| self.compare(id));
        }
        for line in commit.lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            let raw = raw_log::record(line)?;
            let effect = self.tasks.apply(&raw, now)?;
            if raw.text("kind") == "archive" {
                self.archive.apply(&raw, &mut self.tasks, objects)?;
            }
            effect.map_or(Ok(()), |effect| self.claims.logged(effect, now))?;
            let record = &raw.0["record"];
            let id = record["id"].as_str().unwrap_or_default();
            self.answers.submit_logged(record["input"]["submit"].as_u64(), id)?;
            let applied = JournalRecord::read(line).and_then(|record| self.replay.apply(record));
            applied.map_err(|error| format!("replay: {error}"))?;
            for task in raw.0["tasks"].as_array().into_iter().flatten() {
                task["id"].as_str().map_or(Ok(()), |id| self.compare(id))?;
            }
            let id = raw.0["task"].as_str().or(raw.0["record"]["id"].as_str());
            id.map_or(Ok(()), |id| self.compare(id).and_then(|()| self.check_completed(id)))?;
        }
        Ok(())
    }

    /// Compares a task with the one that a broker would have.
    fn compare(&self, id: &str) -> CheckResult {
        let Some(raw) = self.tasks.get(id).map(super::raw_tasks::RawTask::now) else { return Ok(()) };
        let replayed = id.parse::<TaskId>().and_then(|id| self.replay.get(&id));
        let replayed = replayed.map_err(|error| format!("replay: {error}"))?;
        if let Some(object) = self.archive.object_of(id) {
            return match (replayed, self.covers(object, id)) {
                (None, true) => Ok(()),
                (live, _) => {
                    Err(format!("replay: task {id} is in archive object {object}, live: {}", live.is_some()))
                }
            };
        }
        let Some(task) = replayed.map(|task| record::value(&task)) else {
            return Err(format!("replay: task {id} is missing"));
        };
        let expiry = (raw.0["lease_expires_at"] != task["lease_expires_at"]).then_some("lease_expires_at");
        match difference(raw, &task).or(expiry) {
            None => Ok(()),
            Some(field) => {
                let (ours, theirs) = (&raw.0[field], &task[field]);
                Err(format!("replay: task {id} has {field} {theirs}, the log has {ours}"))
            }
        }
    }

    /// True if a broker would look for a task in an object.
    fn covers(&self, object: &str, id: &str) -> bool {
        let found = id.parse::<TaskId>().map(|id| self.replay.archived_in(&id)).unwrap_or_default();
        found.len() <= 3 && found.iter().any(|found| found.name.to_string() == object)
    }

    /// Checks that the handler of the claim that completed a task has succeeded.
    fn check_completed(&self, id: &str) -> CheckResult {
        let Some(task) = self.tasks.get(id).map(super::raw_tasks::RawTask::now) else { return Ok(()) };
        let claim = (id.to_owned(), task.number("epoch"));
        let is_right = self.succeeded.contains(&claim) && task.0["output"].as_u64() == Some(claim.1);
        if task.status() == "completed" && !is_right {
            Err(format!("P3: task {id} is completed in epoch {}, whose handler did not succeed", claim.1))
        } else {
            Ok(())
        }
    }
}

/// True for commits, parts of snapshots and archive objects.
fn is_part_of_journal(key: &str) -> bool {
    ["log/", "state/", "snapshot/", "archive/"]
        .iter()
        .any(|part| key.strip_prefix("journal/0/").is_some_and(|key| key.starts_with(part)))
}

impl fmt::Debug for JournalChecker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JournalChecker")
    }
}
