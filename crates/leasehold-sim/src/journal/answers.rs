//! Answers to producers, operators and readers, compared with the log: everything that was acknowledged is in it, and
//! refusals and reads show a state that it had between the request and the answer.

use leasehold_core::{Error, Kind, Reason, Rejected, Status, StoreTime, Task, TaskId, record};
use leasehold_queue::{Submitted, Transition};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::claims::Claims;
use super::raw_tasks::{RawTask, RawTasks, difference};

/// Answers so far.
#[derive(Default)]
pub(super) struct Answers {
    /// Tasks whose submit was acknowledged.
    pub(super) acknowledged: Vec<TaskId>,
    /// Submits that definitely failed.
    failed: BTreeSet<u64>,
    /// Task of each submit without a key, by its number.
    logged: BTreeMap<u64, String>,
    /// Submits of which the outcome is unknown.
    pub(super) unknown: u64,
    /// Answers that show a state: refusals and reads.
    pub(super) reads: u64,
}

/// Extent of the log when a request was sent.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct SentAt {
    /// Number of records.
    pub(super) records: u64,
    /// Time of the last fence.
    pub(super) fenced: Duration,
}

/// The log, as it is when an answer arrives.
pub(super) struct LogView<'a> {
    pub(super) tasks: &'a RawTasks,
    pub(super) claims: &'a Claims,
    /// Time of the store, in milliseconds, if no process can be mistaken about it.
    pub(super) now: Option<i64>,
}

/// Range of numbers of records.
type RecordRange = (u64, u64);

impl Answers {
    /// Checks the answer to a submit.
    pub(super) fn submitted(
        &mut self,
        (number, key): (u64, Option<u64>),
        answer: &Result<Submitted, Error>,
        sent: SentAt,
        log: &LogView<'_>,
    ) -> Result<(), String> {
        let submitted = match answer {
            Ok(submitted) => submitted,
            Err(error) if error.outcome_is_unknown() => {
                self.unknown += 1;
                return Ok(());
            }
            Err(error) => {
                check_kind(error, log.now)?;
                if key.is_none() {
                    self.failed.insert(number);
                    let is_there = log.tasks.iter().any(|(_, task)| task.now().submit() == Some(number));
                    return if is_there { Err(definitely_failed(number)) } else { Ok(()) };
                }
                return Ok(());
            }
        };
        let id = submitted.id.to_string();
        let Some(task) = log.tasks.get(&id) else {
            return Err(format!("P1: task {id} was acknowledged, but the log has no submit of it"));
        };
        self.acknowledged.push(submitted.id);
        let input = &task.now().0["input"];
        if input["submit"].as_u64() != Some(number).filter(|_| key.is_none()) || input["key"].as_u64() != key
        {
            return Err(format!(
                "P1: submit {number} was acknowledged as task {id}, which has the input {input}"
            ));
        }
        let is_retry = |event: &Value| event["event"] == "retry";
        if submitted.is_retried && !task.now().history().iter().any(is_retry) {
            return Err(format!("P1: a retry of task {id} was acknowledged, but the log has none"));
        }
        submitted.existing.map_or(Ok(()), |status| self.had_status(task, status, sent, log))
    }

    /// Checks a record of a submit: none that definitely failed may be logged, and none that was repeated has two tasks.
    pub(super) fn submit_logged(&mut self, number: Option<u64>, id: &str) -> Result<(), String> {
        let Some(number) = number else { return Ok(()) };
        if self.failed.contains(&number) {
            return Err(definitely_failed(number));
        }
        // A task that leaves the archive is logged again.
        let first = self.logged.entry(number).or_insert_with(|| id.to_owned());
        if first == id { Ok(()) } else { Err(format!("P1: submit {number} has two tasks: {first} and {id}")) }
    }

    fn had_status(
        &mut self,
        task: &RawTask,
        status: Status,
        sent: SentAt,
        log: &LogView<'_>,
    ) -> Result<(), String> {
        self.reads += 1;
        let revs = 1..=task.now().number("rev");
        let mut shown = revs.filter_map(|rev| task.revision(rev));
        let is_shown = |(raw, from, to): (&crate::queue::raw::Raw, u64, u64)| {
            raw.status() == status.name() && overlaps((from, to), sent, log)
        };
        if shown.any(is_shown) {
            Ok(())
        } else {
            Err(format!("refusal: task {} was reported as {status}, which it was not", task.now().text("id")))
        }
    }

    /// Checks the answer to an operation.
    pub(super) fn operated(
        &mut self,
        (id, name, by): (TaskId, &str, &str),
        answer: &Result<Transition<Task>, Error>,
        sent: SentAt,
        log: &LogView<'_>,
    ) -> Result<(), String> {
        match answer {
            Ok(Transition::Done(task)) => {
                let logged = log.tasks.get(&id.to_string()).and_then(|logged| logged.revision(task.rev));
                let event = logged.and_then(|(raw, ..)| raw.history().last().cloned()).unwrap_or_default();
                if event["event"] != name || event["by"] != by {
                    return Err(format!("P1: {name} of task {id} was acknowledged, but the log has {event}"));
                }
                self.shows(task, sent, log)
            }
            Ok(Transition::Rejected(why, task)) => {
                let is_consistent = match why {
                    Rejected::Status(status) => *status == task.status(),
                    Rejected::CancelRequested => task.status() == Status::Running,
                    _ => true,
                };
                if !is_consistent {
                    return Err(format!(
                        "refusal: {name} of task {id} was rejected ({why}), but it is {}",
                        task.status()
                    ));
                }
                self.shows(task, sent, log)
            }
            Ok(other) => Err(format!("an operation on task {id} returned {other:?}")),
            Err(error) => self.missing(id, error, sent, log),
        }
    }

    /// Checks the answer to a read of one task.
    pub(super) fn read(
        &mut self,
        id: TaskId,
        answer: &Result<Task, Error>,
        sent: SentAt,
        log: &LogView<'_>,
    ) -> Result<(), String> {
        match answer {
            Ok(task) => self.shows(task, sent, log),
            Err(error) => self.missing(id, error, sent, log),
        }
    }

    /// Checks a list of all tasks, which shows one state.
    pub(super) fn listed(&mut self, tasks: &[Task], sent: SentAt, log: &LogView<'_>) -> Result<(), String> {
        let mut shown: RecordRange = (sent.records, log.tasks.records());
        let listed: BTreeMap<_, _> = tasks.iter().map(|task| (task.id.to_string(), task)).collect();
        for (id, logged) in log.tasks.iter() {
            let (from, to) = match listed.get(id) {
                None => (0, logged.submitted()),
                Some(task) => self.same(task, logged, sent, log)?,
            };
            shown = (shown.0.max(from), shown.1.min(to - 1));
        }
        if let Some(unknown) = listed.keys().find(|id| log.tasks.get(id).is_none()) {
            return Err(format!("P1: task {unknown} is listed, but the log has no submit of it"));
        }
        if shown.0 <= shown.1 {
            Ok(())
        } else {
            Err("refusal: a list shows no state that the log had since the request".to_owned())
        }
    }

    /// Checks that a task is reported as the log had it since the request.
    fn shows(&mut self, task: &Task, sent: SentAt, log: &LogView<'_>) -> Result<(), String> {
        let id = task.id.to_string();
        let Some(logged) = log.tasks.get(&id) else {
            return Err(format!("P1: task {id} was reported, but the log has no submit of it"));
        };
        let range = self.same(task, logged, sent, log)?;
        if overlaps(range, sent, log) {
            Ok(())
        } else {
            Err(format!("refusal: task {id} was reported at revision {}, which it had left", task.rev))
        }
    }

    /// Compares a task with its revision in the log, and returns the numbers of the records at which that began and ended.
    fn same(
        &mut self,
        task: &Task,
        logged: &RawTask,
        sent: SentAt,
        log: &LogView<'_>,
    ) -> Result<RecordRange, String> {
        self.reads += 1;
        let (id, rev, reported) = (task.id, task.rev, record::value(task));
        let Some((raw, from, to)) = logged.revision(rev) else {
            return Err(format!("P1: task {id} was reported at revision {rev}, which the log does not have"));
        };
        if let Some(field) = difference(raw, &reported) {
            let (ours, theirs) = (&raw.0[field], &reported[field]);
            return Err(format!(
                "replay: task {id} has {field} {theirs} at revision {rev}, the log has {ours}"
            ));
        }
        let is_current = logged.now().number("rev") == rev;
        if let leasehold_core::State::Running(claim) = &task.state
            && is_current
            && let Some(now) = log.now
        {
            check_expiry(
                &(id.to_string(), raw.text("lease_id").to_owned()),
                claim.expires_at,
                logged,
                sent,
                (log, now),
            )?;
        }
        Ok((from, to))
    }

    /// Checks an error: a task may be reported as missing only if the log did not have it when the request was sent.
    fn missing(&mut self, id: TaskId, error: &Error, sent: SentAt, log: &LogView<'_>) -> Result<(), String> {
        if error.reason() != Some(Reason::Missing) {
            return check_kind(error, log.now);
        }
        self.reads += 1;
        match log.tasks.get(&id.to_string()) {
            Some(task) if task.submitted() <= sent.records => {
                Err(format!("refusal: task {id} was reported as missing, but the log has it"))
            }
            _ => Ok(()),
        }
    }
}

/// Checks the expiry of a claim as a broker reports it: by the log, or by a renewal since the last fence (C5).
fn check_expiry(
    name: &(String, String),
    reported: StoreTime,
    logged: &RawTask,
    sent: SentAt,
    (log, now): (&LogView<'_>, i64),
) -> Result<(), String> {
    let by_log = logged.now().time("lease_expires_at").unwrap_or(0);
    let is_renewed = log.claims.last_renewal(name).is_some_and(|at| at >= sent.fenced);
    let most = if is_renewed { by_log.max(now + logged.lease_ms()) } else { by_log };
    let over = reported.as_millis() - most;
    if over <= 0 {
        return Ok(());
    }
    Err(format!("C5: the claim on task {} is extended by {over} ms, which no rule allows", name.0))
}

/// True if a range of records overlaps the time between a request and its answer.
fn overlaps((from, to): RecordRange, sent: SentAt, log: &LogView<'_>) -> bool {
    from <= log.tasks.records() && sent.records < to
}

/// Checks the kind of an error: no process may find the log corrupt.
pub(super) fn check_kind(error: &Error, now: Option<i64>) -> Result<(), String> {
    match error.kind() {
        Kind::Unavailable => Ok(()),
        // The time of an id, or of a schedule, may be far off after a jump of the store's time.
        Kind::Invalid if now.is_none() => Ok(()),
        kind => Err(format!("a request failed with an error of kind {}: {error}", kind.name())),
    }
}

fn definitely_failed(number: u64) -> String {
    format!("P1: submit {number} definitely failed, but the log has its task")
}
