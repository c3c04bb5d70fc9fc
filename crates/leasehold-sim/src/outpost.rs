//! Scenario `outpost`: nodes with folders around one bucket, under cut links and all other faults.
//!
//! Two or three nodes, each a machine with a folder of its own, a supervisor and one or two workers; on each
//! of them a user submits, cancels, requeues and checks out. Beside them a producer, a worker and an operator
//! use the bucket alone. Links are cut for up to twenty minutes; processes are killed, also between two
//! changes of files, and whole machines are rebooted. Seeds choose strict or relaxed, and the duration of
//! handlers: some need heartbeats to keep their claims.
//!
//! The `OutpostJudge` reads every record that is ever written to the bucket, and records runs and results of
//! handlers. After faults have stopped and links are restored, every task must end, and the folders must be
//! consistent.

mod cast;
mod judge;
mod node;
mod records;
mod users;

use std::time::Duration;

use crate::failed::Failed;
use crate::world::World;
use cast::OutpostCast;

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
    let mut chance = world.chance("outpost");
    let cast = OutpostCast::new(world, &mut chance)
        .map_err(|error| world.failed(format!("failed to create the disk: {error}")))?;
    let judge = cast.judge.clone();
    let watching = judge.clone();
    world.check(move |change, _| watching.watch(change));
    world.stop_faults_at(FAULTS_FOR);
    cast.enter(world);
    let executor = world.executor().clone();
    let is_at_rest = || executor.now() > FAULTS_FOR && cast.is_produced() && judge.is_at_rest();
    let is_sent = || is_at_rest() && cast.nodes.iter().all(node::Node::has_nothing_to_send);
    world.run_until(is_sent, FAULTS_FOR + REST_WITHIN)?;
    world.run_for(LATE_WITHIN)?;
    world.run_until(is_sent, REST_WITHIN)?;
    let is_in_order = || cast.nodes.iter().try_for_each(|node| node.is_in_order(&judge));
    for _ in 0..ORDER_WITHIN_MINS {
        if is_in_order().is_ok() {
            break;
        }
        world.run_for(Duration::from_mins(1))?;
    }
    is_in_order().and_then(|()| judge.sum_up(&cast.nodes)).map_err(|message| world.failed(message))
}

#[cfg(test)]
mod tests;
