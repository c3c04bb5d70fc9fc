//! The real queue and the real workers, while everything goes wrong.
//!
//! Two producers submit, with and without keys; three workers run handlers that succeed, fail, snooze, panic and
//! take longer than a lease, and drain at random, and one in three of them leases its shards; an operator cancels, retries and reschedules. The `Judge` reads
//! the raw objects after each change, with code of its own, and knows what producers were told and what handlers do.
//! When faults have stopped, everything must come to rest, and nothing may be left in the indexes.

mod actors;
pub mod bell;
mod bound;
mod checks;
mod judge;
pub mod purge;
pub(crate) mod raw;

use std::time::Duration;

use crate::failed::Failed;
use crate::faults::Faults;
use crate::world::World;
use actors::Cast;
use bound::Counting;
use judge::Judge;

/// Faults stop after this.
const FAULTS_FOR: Duration = Duration::from_mins(4);
/// Afterwards everything is at rest within this: the time of the store may have been set back by hours.
const REST_WITHIN: Duration = Duration::from_hours(8);
/// The last request that was held up has landed after this.
const LATE_WITHIN: Duration = Duration::from_mins(22);
/// The graces of entries that nothing calls for.
const GRACES: Duration = Duration::from_mins(40);

/// Plays it; the summary says what was done.
pub(crate) fn play(world: &mut World) -> Result<String, Failed> {
    let mut chance = world.chance("queue");
    let judge = Judge::new(world.executor().clone(), world.bucket_handle(), FAULTS_FOR);
    let watching = judge.clone();
    world.check(move |change, _| watching.watch(change));
    let (counting, bucket) = (Counting::default(), world.bucket_handle());
    let counted = counting.clone();
    world.check(move |change, _| counted.watch(change, &bucket));
    let is_good_day = world.faults() == Faults::none();
    world.stop_faults_at(FAULTS_FOR);
    let cast = Cast::new(world, judge.clone(), &mut chance);
    cast.enter(world);
    let at_rest = judge.clone();
    world.run_until(|| at_rest.is_at_rest(), FAULTS_FOR + REST_WITHIN)?;
    // What was held up lands, and is seen to.
    world.run_for(LATE_WITHIN)?;
    world.run_until(|| at_rest.is_at_rest(), REST_WITHIN)?;
    world.run_for(GRACES)?;
    if is_good_day {
        counting.judge(&world.clients()).map_err(|message| world.failed(message))?;
    }
    judge.sum_up().map_err(|message| world.failed(message))
}

#[cfg(test)]
mod lost;
#[cfg(test)]
mod punctual;
#[cfg(test)]
mod tests;
