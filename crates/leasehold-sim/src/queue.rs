//! The real queue and the real workers, while everything goes wrong.
//!
//! Two producers submit, with and without keys; three workers run handlers that succeed, fail, snooze, panic and
//! take longer than a lease, and drain at random, and one in three of them leases its shards; an operator cancels, retries
//! and reschedules. In one seed of five (those that end in 3 or 8) others change the number of shards meanwhile, or call
//! that off; in three of ten (2, 5 and 8) someone checks and repairs meanwhile, and purges in the days after, when keys are used
//! again and faults have come back. The `Judge` reads the raw objects after each change, with code of its own, and knows what producers were told
//! and what handlers do.
//! When faults have stopped, everything must come to rest, and nothing may be left in the indexes.

mod actors;
pub mod bell;
mod bound;
mod checks;
pub(crate) mod judge;
mod migration;
mod places;
pub mod purge;
pub(crate) mod raw;
mod upkeep;

use std::time::Duration;

use crate::failed::Failed;
use crate::faults::Faults;
use crate::mutants::Mutant;
use crate::world::World;
use actors::Cast;
use bound::Counting;
use judge::Judge;
pub use migration::Careless;
use migration::Migration;
use upkeep::Upkeep;

/// Faults stop after this.
const FAULTS_FOR: Duration = Duration::from_mins(4);
/// The same where the number of shards is changed: tasks are moved two minutes after that was announced.
const FAULTS_FOR_MIGRATION: Duration = Duration::from_mins(8);
/// Afterwards everything is at rest within this: the time of the store may have been set back by hours.
const REST_WITHIN: Duration = Duration::from_hours(8);
/// The last request that was held up has landed after this.
const LATE_WITHIN: Duration = Duration::from_mins(22);
/// The graces of entries that nothing calls for.
const GRACES: Duration = Duration::from_mins(40);

/// Plays it; the summary says what was done.
pub(crate) fn play(world: &mut World) -> Result<String, Failed> {
    let mut chance = world.chance("queue");
    let migration = Migration::of(world, world.mutant().and_then(Mutant::careless));
    let upkeep = Upkeep::of(world);
    let faults_for = if migration.is_some() { FAULTS_FOR_MIGRATION } else { FAULTS_FOR };
    let judge = Judge::new(world.executor().clone(), world.bucket_handle(), faults_for);
    let watching = judge.clone();
    world.check(move |change, _| watching.watch(change));
    let (counting, bucket) = (Counting::default(), world.bucket_handle());
    let counted = counting.clone();
    world.check(move |change, _| counted.watch(change, &bucket));
    // What operators do has its reasons, but no bound.
    let is_good_day = world.faults() == Faults::none() && migration.is_none() && upkeep.is_none();
    world.stop_faults_at(faults_for);
    let cast = Cast::new(world, judge.clone(), migration.clone(), upkeep.is_some(), &mut chance);
    cast.enter(world);
    if upkeep.is_some() {
        Upkeep::enter(&cast, world);
    }
    let at_rest = || judge.is_at_rest() && migration.as_ref().is_none_or(Migration::is_done);
    world.run_until(at_rest, faults_for + REST_WITHIN)?;
    // What was held up lands, and is seen to.
    world.run_for(LATE_WITHIN)?;
    world.run_until(at_rest, REST_WITHIN)?;
    if let Some(upkeep) = &upkeep {
        upkeep.clean_up(world, &cast, &judge, at_rest)?;
        world.run_for(LATE_WITHIN)?;
        world.run_until(at_rest, REST_WITHIN)?;
    }
    world.run_for(GRACES)?;
    if is_good_day {
        counting.judge(&world.clients()).map_err(|message| world.failed(message))?;
    }
    judge.sum_up().map_err(|message| world.failed(message))
}

#[cfg(test)]
mod lost;
#[cfg(test)]
mod outage;
#[cfg(test)]
mod punctual;
#[cfg(test)]
mod tests;
