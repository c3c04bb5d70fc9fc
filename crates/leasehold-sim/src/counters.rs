//! Scenario `counters`: processes increment shared numbers and numbers of their own, and write flags, under
//! all faults.
//!
//! A counter is an object `number id id …` with the ids of all writes that produced it, newest first. One
//! *operation* is one request to add one; it may need several writes, each with a fresh id, of which at most
//! one may ever be carried out. A *flag* is an object of its own that is written without a condition, as
//! index entries are, and so perhaps several times. The `CounterChecker` compares the bucket with the results that
//! processes got:
//!
//! * each change of a counter adds one to its number and one known id to its history, and changes nothing else;
//! * no operation on a counter is ever carried out twice, however late;
//! * an operation that was acknowledged has been carried out, with the number and version that its process got;
//! * an operation that failed, with an outcome that is *known*, is never carried out;
//! * an outcome is unknown only if something was sent;
//! * every request that was sent is in a ledger;
//! * after faults have stopped, no operation fails, and every process finishes. Then each counter is the
//!   number of acknowledged operations plus those of unknown outcome (answer lost, process killed) that were
//!   carried out.

mod checker;

use leasehold_core::Result;
use leasehold_store::ledger::Purpose::Admin;
use leasehold_store::{Client, Decision, Host, HostExt, Updated, update};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::alarm::Alarm;
use crate::failed::Failed;
use crate::host::SimHost;
use crate::trace::Trace;
use crate::world::World;
use checker::CounterChecker;

/// Time after which faults stop; faults of processes come twice a minute, so several hit each.
const FAULTS_FOR: Duration = Duration::from_mins(5);
/// Number of successive operations that each process must complete afterwards.
const AFTERWARDS: u32 = 5;
/// Time for these operations: the longest pause, a restart, and a margin.
const FINISH_WITHIN: Duration = Duration::from_mins(15);
/// Time until the last delayed request has arrived.
const LATE_WITHIN: Duration = Duration::from_mins(22);
/// Maximum pause between two operations.
const REST_MAX: Duration = Duration::from_secs(4);

/// Retry budgets of processes: the shorter, the more outcomes stay unknown.
const RETRY_BUDGETS: [Duration; 3] =
    [Duration::from_secs(1), Duration::from_secs(5), Duration::from_secs(30)];

/// One process that increments counters.
#[derive(Clone)]
struct CounterActor {
    checker: CounterChecker,
    alarm: Alarm,
    trace: Trace,
    /// Number of shared counters.
    shared: u64,
    finished: Arc<Mutex<BTreeSet<String>>>,
}

/// Plays the scenario. The summary counts operations.
pub(crate) fn play(world: &mut World) -> std::result::Result<String, Failed> {
    let mut rng = world.rng("counters");
    let (actors, shared) = (3 + rng.below(4), 1 + rng.below(2));
    let checker = CounterChecker::new(world.executor().clone(), FAULTS_FOR);
    let checking = checker.clone();
    world.check(move |change, _| checking.check_change(change));
    world.stop_faults_at(FAULTS_FOR);
    let finished = Arc::<Mutex<BTreeSet<String>>>::default();
    for number in 1..=actors {
        let name = format!("w{number}");
        let (alarm, trace) = (world.alarm().clone(), world.trace().clone());
        let actor =
            CounterActor { checker: checker.clone(), alarm, trace, shared, finished: finished.clone() };
        let own = name.clone();
        world.actor(&name, move |host, client| Box::pin(actor.clone().run(own.clone(), host, client)));
    }
    let everyone = usize::try_from(actors).unwrap_or(usize::MAX);
    let all_finished = || finished.lock().unwrap_or_else(PoisonError::into_inner).len() == everyone;
    world.run_until(all_finished, FAULTS_FOR + FINISH_WITHIN)?;
    world.run_for(LATE_WITHIN)?;
    world.every_request_is_counted().map_err(|message| world.failed(message))?;
    checker.summary(&world.objects()).map_err(|message| world.failed(message))
}

impl CounterActor {
    async fn run(self, name: String, host: Arc<SimHost>, client: Client) {
        let client = client.with_timeout(RETRY_BUDGETS[index(host.random(), RETRY_BUDGETS.len())]);
        let mut in_a_row = 0;
        while in_a_row < AFTERWARDS {
            let calm = self.checker.is_calm();
            let succeeded = match host.random() % (self.shared + 2) {
                0 => self.count(&client, &host, &format!("counters/own-{name}")).await,
                1 => self.flag(&client, &host).await,
                number => self.count(&client, &host, &format!("counters/shared-{}", number - 1)).await,
            };
            in_a_row = if calm && succeeded { in_a_row + 1 } else { 0 };
            host.sleep(host.random_below(REST_MAX)).await;
        }
        self.finished.lock().unwrap_or_else(PoisonError::into_inner).insert(name);
    }

    /// Writes one flag, and records the result.
    async fn flag(&self, client: &Client, host: &SimHost) -> bool {
        let id = client.write_id().to_string();
        let key = format!("flags/{id}");
        let operation = self.checker.begin(&key);
        self.checker.plan(operation, &id);
        let raised = client.put_always(Admin, &key, id.into()).await;
        self.note(host, &key, raised.as_ref().map(|version| version.as_str().to_owned()));
        self.conclude(raised.is_ok(), self.checker.conclude_flag(operation, raised))
    }

    /// Makes one operation on a counter, and records the result.
    async fn count(&self, client: &Client, host: &SimHost, counter: &str) -> bool {
        let operation = self.checker.begin(counter);
        let ended = self.increment(client, counter, operation).await;
        self.note(host, counter, ended.as_ref().map(|updated| updated.result.to_string()));
        self.conclude(ended.is_ok(), self.checker.conclude(operation, ended))
    }

    fn note(&self, host: &SimHost, key: &str, made: std::result::Result<String, &leasehold_core::Error>) {
        let what = match made {
            Ok(what) => format!("changed {key} to {what}"),
            Err(error) if error.outcome_is_unknown() => format!("may have changed {key}: {error}"),
            Err(error) => format!("did not change {key}: {error}"),
        };
        self.trace.line(self.checker.now(), host.name(), what);
    }

    fn conclude(&self, succeeded: bool, checked: std::result::Result<(), String>) -> bool {
        self.alarm.check(checked);
        succeeded
    }

    async fn increment(&self, client: &Client, counter: &str, operation: usize) -> Result<Updated<u64>> {
        update(client, Admin, counter, |found| {
            let id = client.write_id().to_string();
            self.checker.plan(operation, &id);
            let text = found.map(|object| String::from_utf8_lossy(&object.body).into_owned());
            let (number, earlier) =
                text.as_deref().and_then(|text| text.split_once(' ')).unwrap_or(("0", ""));
            let count = number.parse::<u64>().unwrap_or(0) + 1;
            let body = format!("{count} {id} {earlier}").trim_end().to_owned().into();
            let ours = Box::new(move |found: &[u8]| String::from_utf8_lossy(found).contains(&id));
            Ok(Decision::Write { body, ours, first: None, result: count })
        })
        .await
    }
}

fn index(random: u64, len: usize) -> usize {
    usize::try_from(random % len as u64).unwrap_or(0)
}

#[cfg(test)]
mod tests;
