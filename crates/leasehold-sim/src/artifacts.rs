//! Scenario `artifacts`: tasks with artifacts, under all faults and over several days.
//!
//! Producers publish small files, some of several pieces, and submit tasks that need them. Workers stage
//! them, verify them and publish results, many of them equal, so that publishers race. An operator cancels; a
//! consumer fetches the results of completed tasks. That is one round, and the next one is a day or more
//! later: artifacts past their retention are removed, while others are published again at the same moment.
//! Caches are on a real disk and outlive their processes; the last writes of a machine may be lost with it.
//!
//! Tasks are judged as in [`queue`](crate::queue); the `watch` checks every change of an artifact's objects.

mod cast;
mod disk;
mod watch;

use leasehold_store::Host;
use std::sync::Arc;
use std::time::Duration;

use crate::failed::Failed;
use crate::faults::Faults;
use crate::queue::judge::QueueJudge;
use crate::world::World;
use cast::{ArtifactCast, Round};
use disk::SimDisk;
use watch::Watch;

/// Number of rounds: an artifact published in the first is past its retention in the second and leaves in the
/// third, and in the fourth a process may find leftovers of a dead pruner.
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
    let mut chance = world.chance("artifacts");
    let disk = SimDisk::new(&mut chance)
        .map_err(|error| world.failed(format!("failed to create the disk: {error}")))?;
    let watch = Watch::new(world, &disk);
    let judge = QueueJudge::new(world.executor().clone(), world.bucket_handle(), Duration::ZERO);
    let (judging, watching) = (judge.clone(), watch.clone());
    world.check(move |change, _| judging.watch(change));
    world.check(move |change, objects| watching.changed(change, objects));
    let cast = ArtifactCast::new(world, judge.clone(), watch.clone(), disk, &mut chance);
    let faults = world.faults();
    for number in 1..=ROUNDS {
        world.set_faults(faults.clone());
        let until = world.now() + FAULTS_FOR;
        world.stop_faults_at(until);
        let round = Round::new(number, until, &cast, &mut chance);
        cast.enter(world, &round);
        let executor = world.executor().clone();
        let is_done = || executor.now() > until && round.is_produced() && judge.is_at_rest();
        world.run_until(is_done, FAULTS_FOR + REST_WITHIN)?;
        if number == ROUNDS {
            world.run_for(LATE_WITHIN)?;
            world.run_until(is_done, REST_WITHIN)?;
        }
        round.end();
        world.run_until(|| round.is_over(), REST_WITHIN)?;
        world.set_faults(Faults::none());
        read_everything(world, &cast)?;
        world.run_for(a_day_or_more(&mut chance))?;
    }
    let summary = judge.sum_up().map_err(|message| world.failed(message))?;
    Ok(format!("{summary}; {}", watch.sum_up()))
}

/// Mostly just over a day, so that the retention of artifacts from the last round is over in this one.
fn a_day_or_more(chance: &mut crate::chance::SimRandom) -> Duration {
    let most = if chance.happens(2_000) { DAY * 9 } else { DAY + Duration::from_mins(20) };
    chance.between(DAY.saturating_sub(Duration::from_mins(5)), most)
}

/// Checks after faults have stopped that every promised artifact can be fetched.
fn read_everything(world: &mut World, cast: &ArtifactCast) -> Result<(), Failed> {
    let (host, client) = world.process("reader");
    let done = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let (cast, flag) = (cast.clone(), done.clone());
    world.spawn(host.process(), async move {
        cast.read_everything(&host, client).await;
        flag.store(true, std::sync::atomic::Ordering::Relaxed);
        drop::<Arc<dyn Host>>(host);
    });
    world.run_until(|| done.load(std::sync::atomic::Ordering::Relaxed), REST_WITHIN)
}

#[cfg(test)]
mod bills;
#[cfg(test)]
mod retention;
#[cfg(test)]
mod staging;
#[cfg(test)]
mod tests;
