//! Tasks with files, while everything goes wrong and the days pass.
//!
//! Producers publish small files, some of several pieces, and submit tasks that need them; workers stage them, check them and
//! give results, which often are the same as those of others, so that publishers meet; an operator cancels; a consumer fetches
//! what completed tasks have given. That is one round, and the next one is a day or more later: files whose time is over
//! leave, while others are published again at that very moment. Caches lie on a real disk and outlive their processes;
//! what a machine wrote last may be lost with it.
//!
//! The tasks themselves are judged as in [`queue`](crate::queue); the `watch` looks at every change of a file's objects.

mod cast;
mod disk;
mod watch;

use leasehold_store::Host;
use std::sync::Arc;
use std::time::Duration;

use crate::failed::Failed;
use crate::faults::Faults;
use crate::queue::judge::Judge;
use crate::world::World;
use cast::{Cast, Round};
use disk::Disk;
use watch::Watch;

/// So many rounds: what is published in the first is over in the second, leaves in the third, and in the fourth someone may
/// find what a dead process has left of that.
const ROUNDS: u64 = 4;
/// In each round faults stop after this.
const FAULTS_FOR: Duration = Duration::from_mins(2);
/// Afterwards everything has ended within this.
const REST_WITHIN: Duration = Duration::from_hours(8);
/// The last request that was held up has landed after this, and what it left is swept.
const LATE_WITHIN: Duration = Duration::from_mins(62);
const DAY: Duration = Duration::from_hours(24);

/// Plays it; the summary says what was done.
pub(crate) fn play(world: &mut World) -> Result<String, Failed> {
    let mut chance = world.chance("artifacts");
    let disk = Disk::new(&mut chance).map_err(|error| world.failed(format!("no disk: {error}")))?;
    let watch = Watch::new(world, &disk);
    let judge = Judge::new(world.executor().clone(), world.bucket_handle(), Duration::ZERO);
    let (judging, watching) = (judge.clone(), watch.clone());
    world.check(move |change, _| judging.watch(change));
    world.check(move |change, objects| watching.changed(change, objects));
    let cast = Cast::new(world, judge.clone(), watch.clone(), disk, &mut chance);
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
    let told = judge.sum_up().map_err(|message| world.failed(message))?;
    Ok(format!("{told}; {}", watch.sum_up()))
}

/// Mostly just over a day, so that what has begun one round ago is over in this one.
fn a_day_or_more(chance: &mut crate::chance::Chance) -> Duration {
    let most = if chance.happens(2_000) { DAY * 9 } else { DAY + Duration::from_mins(20) };
    chance.between(DAY.saturating_sub(Duration::from_mins(5)), most)
}

/// When nothing goes wrong, whatever was promised can be had.
fn read_everything(world: &mut World, cast: &Cast) -> Result<(), Failed> {
    let (host, client) = world.process("reader");
    let done = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let (cast, told) = (cast.clone(), done.clone());
    world.spawn(host.process(), async move {
        cast.read_everything(&host, client).await;
        told.store(true, std::sync::atomic::Ordering::Relaxed);
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
