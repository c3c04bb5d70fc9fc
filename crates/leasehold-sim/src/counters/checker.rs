//! Compares the operations that were carried out with the results that processes got.

use leasehold_core::{Error, Result};
use leasehold_store::{PutOutcome, Updated, Version};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::bucket::{BucketChange, BucketObjects, StoredObject};
use crate::executor::Executor;

/// Checker of this scenario. Clones share its state.
#[derive(Debug, Clone)]
pub(super) struct CounterChecker {
    executor: Executor,
    calm_after: Duration,
    observed: Arc<Mutex<Observed>>,
}

#[derive(Debug, Default)]
struct Observed {
    operations: Vec<Operation>,
    /// Operation of each planned write.
    planned: BTreeMap<String, usize>,
}

#[derive(Debug)]
struct Operation {
    key: String,
    began: Duration,
    outcome: ReportedOutcome,
    planned: u32,
    carried_out: Option<CarriedOut>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReportedOutcome {
    /// Not known yet, or never because its process was killed.
    Open,
    Acknowledged,
    /// Definitely not carried out, now or later.
    Failed,
    Unknown,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct CarriedOut {
    number: u64,
    version: Version,
    id: String,
}

type CheckResult = std::result::Result<(), String>;

impl CounterChecker {
    pub(super) fn new(executor: Executor, calm_after: Duration) -> Self {
        Self { executor, calm_after, observed: Arc::default() }
    }

    pub(super) fn now(&self) -> Duration {
        self.executor.now()
    }

    /// Returns whether faults have stopped.
    pub(super) fn is_calm(&self) -> bool {
        self.now() > self.calm_after
    }

    /// Begins an operation on this key. Returns its number.
    pub(super) fn begin(&self, key: &str) -> usize {
        let (key, began) = (key.to_owned(), self.now());
        let operation =
            Operation { key, began, outcome: ReportedOutcome::Open, planned: 0, carried_out: None };
        let mut observed = self.observed();
        observed.operations.push(operation);
        observed.operations.len() - 1
    }

    /// Records that an operation is about to send a write with this id.
    pub(super) fn plan(&self, operation: usize, id: &str) {
        let mut observed = self.observed();
        observed.operations[operation].planned += 1;
        observed.planned.insert(id.to_owned(), operation);
    }

    /// Records the result of an operation on a counter.
    pub(super) fn conclude(&self, operation: usize, counted: Result<Updated<u64>>) -> CheckResult {
        let updated = match counted {
            Ok(updated) => updated,
            Err(error) => return self.fail(operation, &error),
        };
        let truth = self.acknowledge(operation)?;
        truth.agrees(&updated).map_err(|why| format!("operation {operation} {why}"))
    }

    /// Records the result of writing a flag.
    pub(super) fn conclude_flag(&self, operation: usize, raised: Result<Version>) -> CheckResult {
        match raised {
            Ok(_) => self.acknowledge(operation).map(drop),
            Err(error) => self.fail(operation, &error),
        }
    }

    fn acknowledge(&self, operation: usize) -> std::result::Result<CarriedOut, String> {
        let mut observed = self.observed();
        let (name, operation) = observed.operation_mut(operation);
        operation.outcome = ReportedOutcome::Acknowledged;
        operation.carried_out.clone().ok_or_else(|| format!("{name} was acknowledged, but never carried out"))
    }

    fn fail(&self, operation: usize, error: &Error) -> CheckResult {
        let mut observed = self.observed();
        let (name, operation) = observed.operation_mut(operation);
        let unknown = error.outcome_is_unknown();
        operation.outcome = if unknown { ReportedOutcome::Unknown } else { ReportedOutcome::Failed };
        if operation.began > self.calm_after {
            Err(format!("{name} failed although faults had stopped: {error}"))
        } else if unknown && operation.planned == 0 {
            Err(format!("{name} is of unknown outcome, but nothing was ever written: {error}"))
        } else if !unknown && operation.carried_out.is_some() {
            Err(format!("{name} definitely failed, but was carried out: {error}"))
        } else {
            Ok(())
        }
    }

    /// Checks a change of a counter or a flag.
    pub(super) fn check_change(&self, change: &BucketChange) -> CheckResult {
        let key = &change.key;
        let after = change.after.as_ref().ok_or_else(|| format!("{key} was deleted"))?;
        if let Some(id) = key.strip_prefix("flags/") {
            return self.carried_out(key, id, 1, after).map(drop);
        }
        let ((old, old_ids), (new, new_ids)) = (read(change.before.as_ref()), read(Some(after)));
        let (id, rest) = new_ids.split_once(' ').unwrap_or((&new_ids, ""));
        if new != old + 1 || rest != old_ids {
            return Err(format!("{key} went from {old} to {new} but its history did not grow by one id"));
        }
        match self.carried_out(key, id, new, after)? {
            Some(earlier) => {
                Err(format!("a write of {key} was carried out twice, as {earlier} and as {new}"))
            }
            None => Ok(()),
        }
    }

    /// Records that the write with this id was carried out. Returns the number with which its operation was
    /// carried out before, if any.
    fn carried_out(
        &self,
        key: &str,
        id: &str,
        number: u64,
        after: &StoredObject,
    ) -> std::result::Result<Option<u64>, String> {
        let mut observed = self.observed();
        let planned = observed.planned.get(id).copied();
        let operation =
            planned.ok_or_else(|| format!("{key} has a write that no operation planned: {id}"))?;
        let (name, operation) = observed.operation_mut(operation);
        if operation.outcome == ReportedOutcome::Failed {
            return Err(format!("{name} definitely failed, but was carried out"));
        }
        let truth = CarriedOut { number, version: after.object.version.clone(), id: id.to_owned() };
        Ok(operation.carried_out.replace(truth).map(|earlier| earlier.number))
    }

    /// Checks after all requests have arrived that every counter is the sum of its operations.
    pub(super) fn summary(&self, objects: &BucketObjects) -> std::result::Result<String, String> {
        let observed = self.observed();
        let mut outcomes = [0; 4];
        for operation in &observed.operations {
            outcomes[operation.outcome as usize] += 1;
        }
        for (key, stored) in objects.iter().filter(|(key, _)| key.starts_with("counters/")) {
            let of = observed.operations.iter().filter(|operation| operation.key == *key);
            let counts = |operation: &&Operation| match operation.outcome {
                ReportedOutcome::Acknowledged => true,
                ReportedOutcome::Open | ReportedOutcome::Unknown => operation.carried_out.is_some(),
                ReportedOutcome::Failed => false,
            };
            let (number, expected) = (read(Some(stored)).0, of.filter(counts).count() as u64);
            if number != expected {
                return Err(format!(
                    "{key} is {number} in the end, but {expected} operations were carried out"
                ));
            }
        }
        let [open, acknowledged, failed, unknown] = outcomes;
        Ok(format!(
            "{acknowledged} acknowledged, {failed} failed, {unknown} unknown, {open} cut off by a crash"
        ))
    }

    fn observed(&self) -> MutexGuard<'_, Observed> {
        self.observed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Observed {
    /// Returns an operation, and its name in messages.
    fn operation_mut(&mut self, operation: usize) -> (String, &mut Operation) {
        let found = &mut self.operations[operation];
        (format!("operation {operation} on {}", found.key), found)
    }
}

impl CarriedOut {
    /// Checks the result that a process got.
    fn agrees(&self, updated: &Updated<u64>) -> CheckResult {
        let standing = match &updated.put {
            None | Some(PutOutcome::Lost(_)) => false,
            Some(PutOutcome::Written(version)) => *version == self.version,
            Some(PutOutcome::Superseded(object)) => {
                object.version != self.version && String::from_utf8_lossy(&object.body).contains(&self.id)
            }
        };
        if updated.result == self.number && standing {
            return Ok(());
        }
        Err(format!("got {} and {:?}, but was carried out as {self:?}", updated.result, updated.put))
    }
}

/// Reads the number of a counter and its history.
fn read(stored: Option<&StoredObject>) -> (u64, String) {
    let text = stored.map(|stored| String::from_utf8_lossy(&stored.object.body).into_owned());
    let text = text.unwrap_or_default();
    let (number, ids) = text.split_once(' ').unwrap_or(("0", ""));
    (number.parse().unwrap_or(0), ids.to_owned())
}
