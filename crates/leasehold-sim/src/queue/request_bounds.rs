//! Bounds on the requests of a queue without faults: the table of `docs/protocol/queue.md` as one function.
//!
//! Operations are counted from the raw objects, and their maximum cost follows from that. Every request to a
//! store is billed, so each must have a reason here.

use leasehold_core::keys;
use leasehold_store::{Client, Purpose, Snapshot, Verb};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::raw::{Raw, task_id};
use crate::bucket::{BucketChange, SimBucket};

/// Operations counted from the raw objects.
#[derive(Debug, Clone, Default)]
pub(super) struct OperationCounts {
    /// Changes of tasks, by the event in their history.
    events: BTreeMap<String, u64>,
    renewals: u64,
    /// Number of times a task became pending, and how many of these with a later time.
    pending: u64,
    later: u64,
    /// Number of idempotency records created.
    keys: u64,
}

impl fmt::Display for OperationCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (event, count) in &self.events {
            write!(f, "{count} × {event}, ")?;
        }
        let Self { renewals, pending, later, keys, .. } = self;
        write!(f, "{renewals} renewals, {pending} × pending ({later} with a later time), {keys} keys created")
    }
}

/// Counts operations. Clones count together.
#[derive(Clone, Default)]
pub(super) struct OperationCounter(Arc<Mutex<OperationCounts>>);

impl OperationCounter {
    /// Counts a change of the bucket.
    pub(super) fn count_change(&self, change: &BucketChange, bucket: &SimBucket) -> Result<(), String> {
        let mut counts = self.counts();
        counts.keys += u64::from(change.key.starts_with(keys::UNIQUE) && change.before.is_none());
        let (Some(_), Some(after)) = (task_id(&change.key), &change.after) else { return Ok(()) };
        let task = Raw::read(after)?;
        let before = change.before.as_ref().map(Raw::read).transpose()?;
        if before.is_some_and(|before| before.history().len() == task.history().len()) {
            counts.renewals += 1;
            return Ok(());
        }
        let event = task.history().last().and_then(|event| event["event"].as_str()).unwrap_or_default();
        *counts.events.entry(event.to_owned()).or_default() += 1;
        if task.status() == "pending" {
            let now = bucket.time_ns().div_euclid(1_000_000);
            counts.pending += 1;
            counts.later += u64::from(task.time("available_at").is_some_and(|at| at > now));
        }
        Ok(())
    }

    /// Checks that all requests on behalf of tasks are within the bounds. The requests of idle workers are
    /// counted in the tests of [`bell`](super::bell).
    pub(super) fn check(&self, clients: &[(String, Client)]) -> Result<(), String> {
        let spent: Vec<_> = clients.iter().map(|(_, client)| client.ledger().snapshot()).collect();
        let workers = clients.iter().filter(|(name, _)| name.starts_with('w')).count() as u64;
        let counts = self.counts();
        for (purpose, verb, most) in bounds(&counts, &spent, workers) {
            let made = requests_made(&spent, purpose, verb);
            let name = format!("{} {}s", purpose.name(), verb.name());
            if made > most {
                return Err(format!(
                    "requests: {made} {name}, but at most {most} are allowed; operations: {counts}"
                ));
            }
        }
        Ok(())
    }

    fn counts(&self) -> MutexGuard<'_, OperationCounts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OperationCounts {
    fn count(&self, events: &[&str]) -> u64 {
        events.iter().filter_map(|event| self.events.get(*event)).sum()
    }
}

fn requests_made(spent: &[Snapshot], purpose: Purpose, verb: Verb) -> u64 {
    spent.iter().map(|spent| spent.count(|line| line.purpose == purpose && line.verb == verb)).sum()
}

/// Returns the maximum number of requests. A refused put costs a read, whatever its purpose.
fn bounds(counts: &OperationCounts, spent: &[Snapshot], workers: u64) -> Vec<(Purpose, Verb, u64)> {
    use leasehold_store::ledger::Outcome::Lost;
    let lost = |purpose: Purpose| -> u64 {
        let is_lost = |spent: &Snapshot| {
            spent.count(|line| line.purpose == purpose && line.verb == Verb::Put && line.outcome == Lost)
        };
        spent.iter().map(is_lost).sum()
    };
    let (submits, claims) = (counts.count(&["submit"]), counts.count(&["claim"]));
    let put_back = counts.count(&["snooze", "release", "fail"]);
    let settled = put_back + counts.count(&["complete", "stop"]);
    // Each worker reads every task it finds: once when it is due, and once before if it is scheduled.
    let met = workers * (counts.pending + counts.later);
    vec![
        // The entry, the task, and perhaps a bell; a key before that, and a read of the task that holds it.
        (Purpose::Submit, Verb::Put, 3 * submits + counts.keys + lost(Purpose::Submit)),
        (Purpose::Submit, Verb::Get, 2 * lost(Purpose::Submit)),
        // The task and its lease entry, then the removal of the ready entry.
        (Purpose::Claim, Verb::Put, 2 * claims + lost(Purpose::Claim)),
        (Purpose::Claim, Verb::Get, met + lost(Purpose::Claim)),
        (Purpose::Claim, Verb::Delete, claims),
        // The task; if it becomes pending again its entry before that, and perhaps a bell.
        (Purpose::Settle, Verb::Put, settled + 2 * put_back + lost(Purpose::Settle)),
        (Purpose::Settle, Verb::Get, lost(Purpose::Settle)),
        // After a renewal another worker may have moved the lease entry: both are removed.
        (Purpose::Settle, Verb::Delete, settled + settled.min(counts.renewals)),
        (Purpose::Renew, Verb::Put, counts.renewals + lost(Purpose::Renew)),
        (Purpose::Renew, Verb::Get, lost(Purpose::Renew)),
    ]
}
