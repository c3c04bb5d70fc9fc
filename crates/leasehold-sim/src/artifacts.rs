//! Scenario `artifacts`: tasks with artifacts, under all faults and over several days.
//!
//! Producers publish small files, some of several pieces, and submit tasks that need them. Workers stage
//! them, verify them and publish results, many of them equal, so that publishers race. An operator cancels; a
//! consumer fetches the results of completed tasks. That is one round, and the next one is a day or more
//! later: artifacts past their retention are removed, while others are published again at the same moment.
//! Caches are on a real disk and outlive their processes; the last writes of a machine may be lost with it.
//!
//! Tasks are checked as in [`queue`](crate::queue); `ArtifactChecker` checks every change of an artifact's objects.

mod actors;
mod checker;
mod disk;

use leasehold_store::Host;
use std::sync::Arc;
use std::time::Duration;

use crate::failed::Failed;
use crate::faults::Faults;
use crate::queue::checker::QueueChecker;
use crate::world::World;
use actors::{ArtifactActors, Round};
use checker::ArtifactChecker;
use disk::SimDisk;

/// Number of rounds: an artifact published in the first is past its retention in the second and leaves in the
/// third, and in the fourth a process may find leftovers of a crashed pruner.
const ROUNDS: u64 = 4;
/// Time after which faults stop in each round.
const FAULTS_FOR: Duration = Duration::from_mins(2);
/// Time until all tasks have ended.
const REST_WITHIN: Duration = Duration::from_hours(8);
/// Time until the last delayed request has arrived, and its leftovers are removed.
const LATE_WITHIN: Duration = Duration::from_mins(62);
const DAY: Duration = Duration::from_hours(24);

/// Plays the scenario. The summary counts tasks and artifacts.
pub(crate) fn play(world: &mut World) -> Result<String, Failed> {
    let mut rng = world.rng("artifacts");
    let disk = SimDisk::new(&mut rng)
        .map_err(|error| world.failed(format!("failed to create the disk: {error}")))?;
    let artifact_checker = ArtifactChecker::new(world, &disk);
    let checker = QueueChecker::new(world.executor().clone(), world.bucket_handle(), Duration::ZERO);
    let (checking_tasks, checking_artifacts) = (checker.clone(), artifact_checker.clone());
    world.check(move |change, _| checking_tasks.check_change(change));
    world.check(move |change, objects| checking_artifacts.changed(change, objects));
    let actors = ArtifactActors::new(world, checker.clone(), artifact_checker.clone(), disk, &mut rng);
    let faults = world.faults();
    for number in 1..=ROUNDS {
        world.set_faults(faults.clone());
        let until = world.now() + FAULTS_FOR;
        world.stop_faults_at(until);
        let round = Round::new(number, until, &actors, &mut rng);
        actors.start(world, &round);
        let executor = world.executor().clone();
        let is_done = || executor.now() > until && round.is_produced() && checker.is_at_rest();
        world.run_until(is_done, FAULTS_FOR + REST_WITHIN)?;
        if number == ROUNDS {
            world.run_for(LATE_WITHIN)?;
            world.run_until(is_done, REST_WITHIN)?;
        }
        round.end();
        world.run_until(|| round.is_over(), REST_WITHIN)?;
        world.set_faults(Faults::none());
        read_everything(world, &actors)?;
        world.run_for(a_day_or_more(&mut rng))?;
    }
    let summary = checker.summary().map_err(|message| world.failed(message))?;
    Ok(format!("{summary}; {}", artifact_checker.summary()))
}

/// Mostly just over a day, so that the retention of artifacts from the last round is over in this one.
fn a_day_or_more(rng: &mut crate::random::SimRandom) -> Duration {
    let most = if rng.happens(2_000) { DAY * 9 } else { DAY + Duration::from_mins(20) };
    rng.between(DAY.saturating_sub(Duration::from_mins(5)), most)
}

/// Checks after faults have stopped that every promised artifact can be fetched.
fn read_everything(world: &mut World, actors: &ArtifactActors) -> Result<(), Failed> {
    let (host, client) = world.process("reader");
    let done = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let (actors, flag) = (actors.clone(), done.clone());
    world.spawn(host.process(), async move {
        actors.read_everything(&host, client).await;
        flag.store(true, std::sync::atomic::Ordering::Relaxed);
        drop::<Arc<dyn Host>>(host);
    });
    world.run_until(|| done.load(std::sync::atomic::Ordering::Relaxed), REST_WITHIN)
}

#[cfg(test)]
mod costs;
#[cfg(test)]
mod retention;
#[cfg(test)]
mod staging;
#[cfg(test)]
mod tests;
