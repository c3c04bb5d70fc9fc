//! Scenario `journal`: several processes use one queue in the journal layout, under all faults.
//!
//! Three nodes, each one process with a producer, a worker and an operator on one open queue. The node that holds the lease
//! on the journal is the broker. In some worlds it serves its own requests alone; the others get an error and try again. In
//! other worlds most processes are connected: the nodes that are not the broker send it their requests, over lines that are
//! slow, break, or are held back by partitions, and a connection to an ended process of the same host is refused. Sessions end
//! cleanly, or with a queue that is closed beneath its worker, or dropped. Links to the bucket are cut for longer than the
//! lease, processes are paused beyond it and wake up with their connections, and an operator breaks the lease of a broker that
//! lives. A reader reads from the broker, or follows the log.
//!
//! The `JournalChecker` reads the raw objects after each change and replays the log twice: with code of its own, and as a
//! broker does. It compares the result with all answers: what was acknowledged is in the log, refusals and reads show a state
//! that the log had since the request, and a worker that was promised a claim holds it in the log until then. A task that is
//! archived must be in an object that exists, and no object is deleted while the log refers to it. After faults have
//! stopped, all tasks must end. An answer that passed a connection is judged as one of the own process.

mod actors;
mod answers;
mod checker;
mod claims;
mod handler;
mod pace;
mod paused_fence;
mod raw_archive;
mod raw_log;
mod raw_tasks;
mod snapshots;
mod source;
mod wiring;

use leasehold_store::{Purpose, Verb};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use crate::failed::Failed;
use crate::faults::Faults;
use crate::world::World;
use actors::JournalActors;
use checker::JournalChecker;

/// Time after which faults stop.
const FAULTS_FOR: Duration = Duration::from_mins(5);
/// Time until all tasks have ended; the store's time may have been set back by hours.
const REST_WITHIN: Duration = Duration::from_hours(8);
/// Time until the last delayed request has arrived.
const LATE_WITHIN: Duration = Duration::from_mins(22);
/// Time until a process has read the whole log.
const READ_WITHIN: Duration = Duration::from_mins(10);

/// Seconds until all answers have arrived.
const COUNTED_WITHIN_SECS: u32 = 60;

/// Plays the scenario. The summary counts answers, commits and tasks.
pub(crate) fn play(world: &mut World) -> Result<String, Failed> {
    let mut rng = world.rng("journal");
    let checker = JournalChecker::new(world.executor().clone(), world.bucket_handle(), FAULTS_FOR);
    let checking = checker.clone();
    world.check(move |change, objects| checking.check_change(change, objects));
    let has_no_faults = world.faults() == Faults::none();
    world.stop_faults_at(FAULTS_FOR);
    let actors = JournalActors::new(world, checker.clone(), &mut rng);
    actors.start(world);
    let at_rest = || checker.is_at_rest();
    world.run_until(at_rest, FAULTS_FOR + REST_WITHIN)?;
    // Delayed requests arrive.
    world.run_for(LATE_WITHIN)?;
    world.run_until(at_rest, REST_WITHIN)?;
    audit(world, &actors)?;
    checker.check_at_rest().map_err(|message| world.failed(message))?;
    if has_no_faults {
        one_put_per_object(world, &checker).map_err(|message| world.failed(message))?;
    }
    every_request_is_counted(world)?;
    Ok(checker.summary())
}

/// Reads all tasks in a new process, which has to replay the whole log.
fn audit(world: &mut World, actors: &JournalActors) -> Result<(), Failed> {
    let (done, actors) = (Arc::new(AtomicBool::new(false)), actors.clone());
    let (is_done, (host, client)) = (done.clone(), world.process("auditor"));
    world.spawn(host.process(), async move {
        let queue = actors.connect(&host, client, "auditor").await;
        actors.read_all(&host, &queue).await;
        done.store(true, Relaxed);
    });
    world.run_until(|| is_done.load(Relaxed), READ_WITHIN)
}

/// Checks that every request is in a ledger. A process that takes over has several in flight, and is waited for.
fn every_request_is_counted(world: &mut World) -> Result<(), Failed> {
    for _ in 0..COUNTED_WITHIN_SECS {
        if world.every_request_is_counted().is_ok() {
            return Ok(());
        }
        world.run_for(Duration::from_secs(1))?;
    }
    world.every_request_is_counted().map_err(|message| world.failed(message))
}

/// Checks the number of puts without faults: one for each commit, each part of a snapshot and each archive
/// object.
fn one_put_per_object(world: &World, checker: &JournalChecker) -> Result<(), String> {
    let clients = world.clients();
    let is_commit = |line: &leasehold_store::ledger::LedgerLine| {
        line.purpose == Purpose::Journal && line.verb == Verb::Put
    };
    let puts: u64 = clients.iter().map(|(_, client)| client.ledger().snapshot().count(is_commit)).sum();
    let created = checker.created();
    if puts == created { Ok(()) } else { Err(format!("requests: {puts} puts of {created} objects")) }
}

#[cfg(test)]
mod tests;
