//! Knows what was really carried out and what is believed, and compares.

use leasehold_core::{Error, Result};
use leasehold_store::{Standing, Updated, Version};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::bucket::{Change, Objects, Stored};
use crate::executor::Executor;

/// The judge. Clones are the same one.
#[derive(Debug, Clone)]
pub(super) struct Judge {
    executor: Executor,
    calm_after: Duration,
    case: Arc<Mutex<Case>>,
}

#[derive(Debug, Default)]
struct Case {
    operations: Vec<Operation>,
    /// Which operation planned each write.
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
    /// Not known yet, or never: its process was killed.
    Open,
    Acknowledged,
    /// It surely did not happen and never will.
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

impl Judge {
    pub(super) fn new(executor: Executor, calm_after: Duration) -> Self {
        Self { executor, calm_after, case: Arc::default() }
    }

    pub(super) fn now(&self) -> Duration {
        self.executor.now()
    }

    /// Whether faults have stopped.
    pub(super) fn is_calm(&self) -> bool {
        self.now() > self.calm_after
    }

    /// Someone wishes to change this; gives the operation's number.
    pub(super) fn begin(&self, key: &str) -> usize {
        let (key, began) = (key.to_owned(), self.now());
        let operation = Operation { key, began, belief: Belief::Open, planned: 0, carried_out: None };
        let mut case = self.case();
        case.operations.push(operation);
        case.operations.len() - 1
    }

    /// An operation is about to send a write with this id.
    pub(super) fn plan(&self, operation: usize, id: &str) {
        let mut case = self.case();
        case.operations[operation].planned += 1;
        case.planned.insert(id.to_owned(), operation);
    }

    /// The process has heard how its operation on a counter ended.
    pub(super) fn conclude(&self, operation: usize, counted: Result<Updated<u64>>) -> Judged {
        let updated = match counted {
            Ok(updated) => updated,
            Err(error) => return self.fail(operation, &error),
        };
        let truth = self.acknowledge(operation)?;
        truth.agrees(&updated).map_err(|why| format!("operation {operation} {why}"))
    }

    /// The process has heard how the raising of its flag ended.
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
            Err(format!("{name} failed for certain, but was carried out: {error}"))
        } else {
            Ok(())
        }
    }

    /// A counter or a flag has changed.
    pub(super) fn watch(&self, change: &Change) -> Judged {
        let key = &change.key;
        let after = change.after.as_ref().ok_or_else(|| format!("{key} is gone"))?;
        if let Some(id) = key.strip_prefix("flags/") {
            return self.carried_out(key, id, 1, after).map(drop);
        }
        let ((old, old_ids), (new, new_ids)) = (read(change.before.as_ref()), read(Some(after)));
        let (id, rest) = new_ids.split_once(' ').unwrap_or((&new_ids, ""));
        if new != old + 1 || rest != old_ids {
            return Err(format!(
                "{key} went from {old} to {new} and its history is not what it was plus one"
            ));
        }
        match self.carried_out(key, id, new, after)? {
            Some(earlier) => {
                Err(format!("a write of {key} was carried out twice, as {earlier} and as {new}"))
            }
            None => Ok(()),
        }
    }

    /// The write with this id was carried out; gives the number as which its operation was so before.
    fn carried_out(
        &self,
        key: &str,
        id: &str,
        number: u64,
        after: &Stored,
    ) -> std::result::Result<Option<u64>, String> {
        let mut case = self.case();
        let planned = case.planned.get(id).copied();
        let operation = planned.ok_or_else(|| format!("{key} has a write that nobody planned: {id}"))?;
        let (name, operation) = case.named(operation);
        if operation.belief == Belief::Failed {
            return Err(format!("{name} had failed for certain, and was carried out nevertheless"));
        }
        let truth = CarriedOut { number, version: after.object.version.clone(), id: id.to_owned() };
        Ok(operation.carried_out.replace(truth).map(|earlier| earlier.number))
    }

    /// Everything has landed: every counter must be what its operations make it.
    pub(super) fn sum_up(&self, objects: &Objects) -> std::result::Result<String, String> {
        let case = self.case();
        let mut told = [0; 4];
        for operation in &case.operations {
            told[operation.belief as usize] += 1;
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
        let [open, acknowledged, failed, unknown] = told;
        Ok(format!(
            "{acknowledged} acknowledged, {failed} failed, {unknown} unknown, {open} cut off by a crash"
        ))
    }

    fn case(&self) -> MutexGuard<'_, Case> {
        self.case.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Case {
    /// An operation, and its name in messages.
    fn named(&mut self, operation: usize) -> (String, &mut Operation) {
        let found = &mut self.operations[operation];
        (format!("operation {operation} on {}", found.key), found)
    }
}

impl CarriedOut {
    /// Whether a process was told the truth.
    fn agrees(&self, updated: &Updated<u64>) -> Judged {
        let standing = match &updated.now {
            Standing::Left => false,
            Standing::Written(version) => *version == self.version,
            Standing::Overtaken(object) => {
                object.version != self.version && String::from_utf8_lossy(&object.body).contains(&self.id)
            }
        };
        if updated.result == self.number && standing {
            return Ok(());
        }
        Err(format!("was told {} and {:?}, but the truth is {self:?}", updated.result, updated.now))
    }
}

/// The number of a counter and its history.
fn read(stored: Option<&Stored>) -> (u64, String) {
    let text = stored.map(|stored| String::from_utf8_lossy(&stored.object.body).into_owned());
    let text = text.unwrap_or_default();
    let (number, ids) = text.split_once(' ').unwrap_or(("0", ""));
    (number.parse().unwrap_or(0), ids.to_owned())
}
