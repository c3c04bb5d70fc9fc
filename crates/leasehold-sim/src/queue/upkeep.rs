//! Operators that maintain the queue: they check and repair under all faults, submit under the same keys a
//! day later, and purge old tasks, while faults resume.

use leasehold_queue::ObjectQueue;
use leasehold_queue::purge::Retention;
use leasehold_store::{Client, Host, HostExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use super::actors::QueueActors;
use super::checker::QueueChecker;
use crate::failed::Failed;
use crate::faults::Faults;
use crate::host::SimHost;
use crate::world::World;

/// Maximum pause between two checks, or purges.
const REST_MAX: Duration = Duration::from_secs(50);
/// Duration of the faults in each round.
const FAULTS_FOR: Duration = Duration::from_mins(3);
/// Time until a round is over.
const ROUND_WITHIN: Duration = Duration::from_hours(4);
/// Pause between two rounds: longer than the grace period of a purge, and the lifetime of a key with it.
const BETWEEN: Duration = Duration::from_hours(26);
/// Number of rounds: tasks are marked as purged in the first and deleted in the second.
const ROUNDS: u64 = 2;

/// Operators that maintain the queue, in some seeds.
#[derive(Debug, Clone)]
pub(super) struct Upkeep {
    /// Faults of each round.
    faults: Faults,
}

impl Upkeep {
    /// Returns the operators of this world, if its seed has some: those that end in 2, 5 or 8. Those that end
    /// in 8 have a migration, too.
    pub(super) fn of(world: &World) -> Option<Self> {
        if !matches!(world.seed() % 10, 2 | 5 | 8) {
            return None;
        }
        // After a jump of the store's time no grace period holds.
        let jumps = world.rng("upkeep").happens(3_333);
        world.change_faults(|faults| faults.process_faults.date_jump *= u64::from(jumps));
        Some(Self { faults: world.faults() })
    }

    /// Starts an operator that checks and repairs until faults have stopped.
    pub(super) fn start(actors: &QueueActors, world: &World) {
        let actors = actors.clone();
        world.actor("auditor", move |host, client| Box::pin(audit(actors.clone(), host, client)));
    }

    /// Plays the days after; `at_rest` returns whether all submitted tasks have ended.
    pub(super) fn clean_up(
        &self,
        world: &mut World,
        actors: &QueueActors,
        checker: &QueueChecker,
        at_rest: impl Fn() -> bool,
    ) -> Result<(), Failed> {
        for round in 1..=ROUNDS {
            world.run_for(BETWEEN)?;
            let calm_at = world.now() + FAULTS_FOR;
            let mut faults = self.faults.clone();
            faults.process_faults.date_jump = 0;
            world.change_faults(|now| *now = faults);
            world.stop_faults_at(calm_at);
            let is_done = Arc::new(AtomicBool::new(false));
            let (actors, done) = (actors.clone(), is_done.clone());
            if round == 1 {
                actors.reuse_keys(world);
            }
            world.actor(&format!("purger{round}"), move |host, client| {
                Box::pin(purge(actors.clone(), host, client, calm_at, done.clone()))
            });
            world.run_until(|| is_done.load(Relaxed) && at_rest(), ROUND_WITHIN)?;
        }
        checker.check_purged().map_err(|message| world.failed(message))
    }
}

async fn audit(actors: QueueActors, host: Arc<SimHost>, client: Client) {
    let mut queue = actors.connect(&host, client.clone(), "auditor").await;
    while !actors.checker.is_calm() {
        host.sleep(host.random_below(REST_MAX)).await;
        let checked = queue.check(host.random().is_multiple_of(2)).await;
        actors.note(&host, format!("has checked: {checked:?}"));
        match checked {
            Ok(checked) => actors.alarm.check(actors.checker.checked(&checked)),
            Err(error) if actors.has_old_shard_len(&error) => {
                queue = actors.connect(&host, client.clone(), "auditor").await;
            }
            Err(_) => {}
        }
    }
}

/// Purges repeatedly, and once more after faults have stopped.
async fn purge(
    actors: QueueActors,
    host: Arc<SimHost>,
    client: Client,
    calm_at: Duration,
    done: Arc<AtomicBool>,
) {
    let queue: ObjectQueue = actors.connect(&host, client, "purger").await;
    while !done.load(Relaxed) {
        host.sleep(host.random_below(REST_MAX)).await;
        let is_last = actors.checker.now() > calm_at;
        let older_than = if is_last { Duration::ZERO } else { host.random_below(Duration::from_hours(48)) };
        let purged = queue.purge_all(&Retention { statuses: Vec::new(), older_than }).await;
        actors.note(&host, format!("has purged what is older than {older_than:?}: {purged:?}"));
        done.store(is_last && purged.is_ok(), Relaxed);
    }
}
