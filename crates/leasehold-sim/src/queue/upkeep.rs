//! Operators who keep the queue in order: they check and repair in the middle of everything, submit under the same keys a
//! day later, and purge what nobody needs any more, while faults come back.

use leasehold_queue::Queue;
use leasehold_queue::purge::Retention;
use leasehold_store::{Client, Host, HostExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use super::actors::Cast;
use super::judge::Judge;
use crate::failed::Failed;
use crate::faults::Faults;
use crate::host::SimHost;
use crate::world::World;

/// Longest rest between two checks, or purges.
const REST_MAX: Duration = Duration::from_secs(50);
/// Faults come back for so long in each round.
const FAULTS_FOR: Duration = Duration::from_mins(3);
/// A round is over within this.
const ROUND_WITHIN: Duration = Duration::from_hours(4);
/// Between two rounds: longer than the grace of a purge, and the life of a key with it.
const BETWEEN: Duration = Duration::from_hours(26);
/// Tasks are marked in the first, deleted in the second.
const ROUNDS: u64 = 2;

/// Those who keep the worlds of some seeds in order.
#[derive(Debug, Clone)]
pub(super) struct Upkeep {
    /// What goes wrong.
    faults: Faults,
}

impl Upkeep {
    /// In the worlds of these seeds: those that end in 2, 5 or 8. The last of them have a migration, too.
    pub(super) fn of(world: &World) -> Option<Self> {
        if !matches!(world.seed() % 10, 2 | 5 | 8) {
            return None;
        }
        // Once the store's time was set, no grace means anything.
        let jumps = world.chance("upkeep").happens(3_333);
        world.change_faults(|faults| faults.troubles.date_jump *= u64::from(jumps));
        Some(Self { faults: world.faults() })
    }

    /// Someone checks and repairs until faults have stopped.
    pub(super) fn enter(cast: &Cast, world: &World) {
        let cast = cast.clone();
        world.actor("auditor", move |host, client| Box::pin(audit(cast.clone(), host, client)));
    }

    /// What is done in the days after: `at_rest` tells when everything that was begun is done.
    pub(super) fn clean_up(
        &self,
        world: &mut World,
        cast: &Cast,
        judge: &Judge,
        at_rest: impl Fn() -> bool,
    ) -> Result<(), Failed> {
        for round in 1..=ROUNDS {
            world.run_for(BETWEEN)?;
            let calm_at = world.now() + FAULTS_FOR;
            let mut faults = self.faults.clone();
            faults.troubles.date_jump = 0;
            world.change_faults(|now| *now = faults);
            world.stop_faults_at(calm_at);
            let is_done = Arc::new(AtomicBool::new(false));
            let (cast, done) = (cast.clone(), is_done.clone());
            if round == 1 {
                cast.submit_again(world);
            }
            world.actor(&format!("purger{round}"), move |host, client| {
                Box::pin(purge(cast.clone(), host, client, calm_at, done.clone()))
            });
            world.run_until(|| is_done.load(Relaxed) && at_rest(), ROUND_WITHIN)?;
        }
        judge.is_cleaned_up().map_err(|message| world.failed(message))
    }
}

async fn audit(cast: Cast, host: Arc<SimHost>, client: Client) {
    let mut queue = cast.connect(&host, client.clone(), "auditor").await;
    while !cast.judge.is_calm() {
        host.sleep(host.random_below(REST_MAX)).await;
        let checked = queue.check(host.random().is_multiple_of(2)).await;
        cast.note(&host, format!("has checked: {checked:?}"));
        match checked {
            Ok(checked) => cast.alarm.check(cast.judge.checked(&checked)),
            Err(error) if cast.is_of_old(&error) => {
                queue = cast.connect(&host, client.clone(), "auditor").await;
            }
            Err(_) => {}
        }
    }
}

/// Purges again and again, and once more when nothing goes wrong any more.
async fn purge(cast: Cast, host: Arc<SimHost>, client: Client, calm_at: Duration, done: Arc<AtomicBool>) {
    let queue: Queue = cast.connect(&host, client, "purger").await;
    while !done.load(Relaxed) {
        host.sleep(host.random_below(REST_MAX)).await;
        let is_last = cast.judge.now() > calm_at;
        let older_than = if is_last { Duration::ZERO } else { host.random_below(Duration::from_hours(48)) };
        let purged = queue.purge_all(&Retention { statuses: Vec::new(), older_than }).await;
        cast.note(&host, format!("has purged what is older than {older_than:?}: {purged:?}"));
        done.store(is_last && purged.is_ok(), Relaxed);
    }
}
