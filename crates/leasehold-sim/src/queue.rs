//! Scenario `queue`: the real queue and the real workers under all faults.
//!
//! Two producers submit, with and without idempotency keys. Three workers run handlers that succeed, fail,
//! snooze, panic or take longer than a lease, and drain at random; one in three workers leases its shards. An
//! operator cancels, retries and reschedules. In one seed of five (those that end in 3 or 8) operators change
//! the number of shards meanwhile, or cancel the change. In three of ten (2, 5 and 8) an operator checks and
//! repairs meanwhile, and purges in the days after, when keys are used again and faults have resumed.
//!
//! The `QueueChecker` reads the raw objects after each change, with code of its own, and records the answers of
//! producers and the runs of handlers. After faults have stopped, all tasks must end, and the indexes must be
//! empty.

pub(crate) mod actors;
pub mod bell;
pub(crate) mod checker;
pub(crate) mod checks;
mod migration;
pub(crate) mod planned_submit;
pub mod purge;
pub(crate) mod raw;
mod request_bounds;
mod task_keys;
mod upkeep;

use std::time::Duration;

use crate::failed::Failed;
use crate::faults::Faults;
use crate::mutants::Mutant;
use crate::world::World;
use actors::QueueActors;
use checker::QueueChecker;
pub use migration::BrokenMigrationRule;
use migration::Migration;
use request_bounds::OperationCounter;
use upkeep::Upkeep;

/// Time after which faults stop.
const FAULTS_FOR: Duration = Duration::from_mins(4);
/// Time after which faults stop if the number of shards changes: tasks move two minutes after the
/// announcement.
const FAULTS_FOR_MIGRATION: Duration = Duration::from_mins(8);
/// Time until all tasks have ended; the store's time may have been set back by hours.
const REST_WITHIN: Duration = Duration::from_hours(8);
/// Time until the last delayed request has arrived.
const LATE_WITHIN: Duration = Duration::from_mins(22);
/// Grace periods of entries that no task requires.
const GRACES: Duration = Duration::from_mins(40);

/// Plays the scenario. The summary counts tasks by status.
pub(crate) fn play(world: &mut World) -> Result<String, Failed> {
    let mut rng = world.rng("queue");
    let migration = Migration::of(world, world.mutant().and_then(Mutant::broken_migration_rule));
    let upkeep = Upkeep::of(world);
    let faults_for = if migration.is_some() { FAULTS_FOR_MIGRATION } else { FAULTS_FOR };
    let checker = QueueChecker::new(world.executor().clone(), world.bucket_handle(), faults_for);
    let checking = checker.clone();
    world.check(move |change, _| checking.check_change(change));
    let (counting, bucket) = (OperationCounter::default(), world.bucket_handle());
    let counted = counting.clone();
    world.check(move |change, _| counted.count_change(change, &bucket));
    // Requests of operators are legitimate, but not bounded.
    let has_no_faults = world.faults() == Faults::none() && migration.is_none() && upkeep.is_none();
    world.stop_faults_at(faults_for);
    let actors = QueueActors::new(world, checker.clone(), migration.clone(), upkeep.is_some(), &mut rng);
    actors.start(world);
    if upkeep.is_some() {
        Upkeep::start(&actors, world);
    }
    let at_rest = || checker.is_at_rest() && migration.as_ref().is_none_or(Migration::is_done);
    world.run_until(at_rest, faults_for + REST_WITHIN)?;
    // Delayed requests arrive, and are cleaned up.
    world.run_for(LATE_WITHIN)?;
    world.run_until(at_rest, REST_WITHIN)?;
    if let Some(upkeep) = &upkeep {
        upkeep.clean_up(world, &actors, &checker, at_rest)?;
        world.run_for(LATE_WITHIN)?;
        world.run_until(at_rest, REST_WITHIN)?;
    }
    world.run_for(GRACES)?;
    if has_no_faults {
        counting.check(&world.clients()).map_err(|message| world.failed(message))?;
    }
    checker.summary().map_err(|message| world.failed(message))
}

#[cfg(test)]
mod crashed_worker;
#[cfg(test)]
mod outage;
#[cfg(test)]
mod start_times;
#[cfg(test)]
mod tests;
