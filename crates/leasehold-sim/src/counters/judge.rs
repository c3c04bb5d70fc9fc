//! The judge: compares the operations that were carried out with the results that processes got.

use leasehold_core::{Error, Result};
use leasehold_store::{StoredState, Updated, Version};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::bucket::{BucketChange, BucketObjects, StoredObject};
use crate::executor::Executor;

/// The judge. Clones share its state.
#[derive(Debug, Clone)]
pub(super) struct CounterJudge {
    executor: Executor,
    calm_after: Duration,
    case: Arc<Mutex<Case>>,
}

#[derive(Debug, Default)]
struct Case {
    operations: Vec<Operation>,
    /// Operation of each planned write.
    planned: BTreeMap<String, usize>,
}

#[derive(Debug)]
struct Operation {
    key: String,
    began: Duration,
    belief: Belief,
    planned: u32,
    carried_out: Option<CarriedOut>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Belief {
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

type Judged = std::result::Result<(), String>;

impl CounterJudge {
    pub(super) fn new(executor: Executor, calm_after: Duration) -> Self {
        Self { executor, calm_after, case: Arc::default() }
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
        let operation = Operation { key, began, belief: Belief::Open, planned: 0, carried_out: None };
        let mut case = self.case();
        case.operations.push(operation);
        case.operations.len() - 1
    }

    /// Records that an operation is about to send a write with this id.
    pub(super) fn plan(&self, operation: usize, id: &str) {
        let mut case = self.case();
        case.operations[operation].planned += 1;
        case.planned.insert(id.to_owned(), operation);
    }

    /// Records the result of an operation on a counter.
    pub(super) fn conclude(&self, operation: usize, counted: Result<Updated<u64>>) -> Judged {
        let updated = match counted {
            Ok(updated) => updated,
            Err(error) => return self.fail(operation, &error),
        };
        let truth = self.acknowledge(operation)?;
        truth.agrees(&updated).map_err(|why| format!("operation {operation} {why}"))
    }

    /// Records the result of writing a flag.
    pub(super) fn conclude_flag(&self, operation: usize, raised: Result<Version>) -> Judged {
        match raised {
            Ok(_) => self.acknowledge(operation).map(drop),
            Err(error) => self.fail(operation, &error),
        }
    }

    fn acknowledge(&self, operation: usize) -> std::result::Result<CarriedOut, String> {
        let mut case = self.case();
        let (name, operation) = case.named(operation);
        operation.belief = Belief::Acknowledged;
        operation.carried_out.clone().ok_or_else(|| format!("{name} was acknowledged, but never carried out"))
    }

    fn fail(&self, operation: usize, error: &Error) -> Judged {
        let mut case = self.case();
        let (name, operation) = case.named(operation);
        let unknown = error.outcome_is_unknown();
        operation.belief = if unknown { Belief::Unknown } else { Belief::Failed };
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
    pub(super) fn watch(&self, change: &BucketChange) -> Judged {
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
        let mut case = self.case();
        let planned = case.planned.get(id).copied();
        let operation =
            planned.ok_or_else(|| format!("{key} has a write that no operation planned: {id}"))?;
        let (name, operation) = case.named(operation);
        if operation.belief == Belief::Failed {
            return Err(format!("{name} definitely failed, but was carried out"));
        }
        let truth = CarriedOut { number, version: after.object.version.clone(), id: id.to_owned() };
        Ok(operation.carried_out.replace(truth).map(|earlier| earlier.number))
    }

    /// Checks after all requests have arrived that every counter is the sum of its operations.
    pub(super) fn sum_up(&self, objects: &BucketObjects) -> std::result::Result<String, String> {
        let case = self.case();
        let mut beliefs = [0; 4];
        for operation in &case.operations {
            beliefs[operation.belief as usize] += 1;
        }
        for (key, stored) in objects.iter().filter(|(key, _)| key.starts_with("counters/")) {
            let of = case.operations.iter().filter(|operation| operation.key == *key);
            let counts = |operation: &&Operation| match operation.belief {
                Belief::Acknowledged => true,
                Belief::Open | Belief::Unknown => operation.carried_out.is_some(),
                Belief::Failed => false,
            };
            let (number, expected) = (read(Some(stored)).0, of.filter(counts).count() as u64);
            if number != expected {
                return Err(format!(
                    "{key} is {number} in the end, but {expected} operations were carried out"
                ));
            }
        }
        let [open, acknowledged, failed, unknown] = beliefs;
        Ok(format!(
            "{acknowledged} acknowledged, {failed} failed, {unknown} unknown, {open} cut off by a crash"
        ))
    }

    fn case(&self) -> MutexGuard<'_, Case> {
        self.case.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Case {
    /// Returns an operation, and its name in messages.
    fn named(&mut self, operation: usize) -> (String, &mut Operation) {
        let found = &mut self.operations[operation];
        (format!("operation {operation} on {}", found.key), found)
    }
}

impl CarriedOut {
    /// Checks the result that a process got.
    fn agrees(&self, updated: &Updated<u64>) -> Judged {
        let standing = match &updated.now {
            StoredState::Left => false,
            StoredState::Written(version) => *version == self.version,
            StoredState::Overtaken(object) => {
                object.version != self.version && String::from_utf8_lossy(&object.body).contains(&self.id)
            }
        };
        if updated.result == self.number && standing {
            return Ok(());
        }
        Err(format!("got {} and {:?}, but was carried out as {self:?}", updated.result, updated.now))
    }
}

/// Reads the number of a counter and its history.
fn read(stored: Option<&StoredObject>) -> (u64, String) {
    let text = stored.map(|stored| String::from_utf8_lossy(&stored.object.body).into_owned());
    let text = text.unwrap_or_default();
    let (number, ids) = text.split_once(' ').unwrap_or(("0", ""));
    (number.parse().unwrap_or(0), ids.to_owned())
}
