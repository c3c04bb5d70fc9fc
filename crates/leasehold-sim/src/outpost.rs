//! Scenario `outpost`: nodes with folders around one bucket, under cut links and all other faults.
//!
//! Two or three nodes, each a machine with a folder of its own, a supervisor and one or two workers; on each
//! of them a user submits, cancels, requeues and checks out. Beside them a producer, a worker and an operator
//! use the bucket alone. Links are cut for up to twenty minutes; processes are killed, also between two
//! changes of files, and whole machines are rebooted. Seeds choose strict or relaxed, and the duration of
//! handlers: some need heartbeats to keep their claims.
//!
//! The `OutpostChecker` reads every record that is ever written to the bucket, and records runs and results of
//! handlers. After faults have stopped and links are restored, every task must end, and the folders must be
//! consistent.

mod actors;
mod checker;
mod node;
mod records;
mod users;

use std::time::Duration;

use crate::failed::Failed;
use crate::world::World;
use actors::OutpostActors;

/// Time after which faults stop; a link may stay cut for twenty minutes more.
const FAULTS_FOR: Duration = Duration::from_mins(30);
/// Time until all tasks have ended: five attempts of twenty minutes, with pauses of ten, on a node that waits
/// fifteen minutes between two syncs.
const REST_WITHIN: Duration = Duration::from_hours(8);
/// Time until the last delayed request has arrived.
const LATE_WITHIN: Duration = Duration::from_mins(22);
/// Minutes until the folders contain no leftovers of tasks that other workers have ended.
const ORDER_WITHIN_MINS: u32 = 45;

/// Plays the scenario. The summary counts tasks by status.
pub(crate) fn play(world: &mut World) -> Result<String, Failed> {
    let mut rng = world.rng("outpost");
    let actors = OutpostActors::new(world, &mut rng)
        .map_err(|error| world.failed(format!("failed to create the disk: {error}")))?;
    let checker = actors.checker.clone();
    let checking = checker.clone();
    world.check(move |change, _| checking.check_change(change));
    world.stop_faults_at(FAULTS_FOR);
    actors.start(world);
    let executor = world.executor().clone();
    let is_at_rest = || executor.now() > FAULTS_FOR && actors.is_produced() && checker.is_at_rest();
    let is_sent = || is_at_rest() && actors.nodes.iter().all(node::Node::has_nothing_to_send);
    world.run_until(is_sent, FAULTS_FOR + REST_WITHIN)?;
    world.run_for(LATE_WITHIN)?;
    world.run_until(is_sent, REST_WITHIN)?;
    let check_all_folders = || actors.nodes.iter().try_for_each(|node| node.check_folders(&checker));
    for _ in 0..ORDER_WITHIN_MINS {
        if check_all_folders().is_ok() {
            break;
        }
        world.run_for(Duration::from_mins(1))?;
    }
    check_all_folders().and_then(|()| checker.summary(&actors.nodes)).map_err(|message| world.failed(message))
}

#[cfg(test)]
mod tests;
