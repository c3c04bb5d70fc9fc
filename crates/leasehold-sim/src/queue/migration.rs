//! Operators that change the number of shards under faults, and resume the migration after each crash.

use futures::future::{Either, select};
use leasehold_core::{Kind, Result};
use leasehold_queue::{MigrateOptions, Migrated, ObjectQueue, QueueConfig};
use leasehold_store::{Client, Host, HostExt};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::actors::{QueueActors, lock};
use crate::host::SimHost;
use crate::random::SimRandom;
use crate::world::World;

/// Time within which a migration begins.
const BEGIN_WITHIN: Duration = Duration::from_mins(3);
/// Time within which an operator cancels it, if it is going to.
const ABORT_WITHIN: Duration = Duration::from_mins(5);
/// Pause between two tries.
const REST: Duration = Duration::from_secs(3);

/// Broken rule of a migration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BrokenMigrationRule {
    /// Clients never read the number of shards again.
    ShardLengthNeverReread,
    /// Tasks are moved before all clients have read the announcement.
    MigrationDoesNotWait,
    /// Leftovers are removed before all delayed writes have arrived.
    LeftoversDeletedAtOnce,
}

/// The operators of a migration.
#[derive(Debug, Clone)]
pub(super) struct Migration {
    from: u8,
    to: u8,
    broken: Option<BrokenMigrationRule>,
    goals: Arc<Vec<Mutex<Goal>>>,
}

/// Next action of an operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Goal {
    /// Migrate.
    Migrate,
    /// Migrate for a while, then cancel.
    MigrateThenAbort,
    /// Cancel another operator's migration, after a while.
    WaitThenAbort,
    /// Cancel it; if that is not possible, migrate if `true`.
    Abort(bool),
    Done,
}

impl Migration {
    /// Returns the migration of this world, if its seed has one: from one digit to two or back.
    pub(super) fn of(world: &World, broken: Option<BrokenMigrationRule>) -> Option<Self> {
        if world.seed() % 5 != 3 {
            return None;
        }
        let mut rng: SimRandom = world.rng("migration");
        // Late writes matter here; and after a jump of the store's time no grace period holds.
        let jumps = rng.happens(3_333);
        world.change_faults(|faults| {
            faults.late *= 3;
            faults.process_faults.date_jump *= u64::from(jumps);
        });
        let (from, to) = if rng.happens(5_000) { (1, 2) } else { (2, 1) };
        let goals = match rng.below(5) {
            0 => vec![Goal::MigrateThenAbort],
            1 => vec![Goal::Migrate, Goal::WaitThenAbort],
            2 => vec![Goal::Migrate, Goal::Migrate],
            _ => vec![Goal::Migrate],
        };
        Some(Self { from, to, broken, goals: Arc::new(goals.into_iter().map(Mutex::new).collect()) })
    }

    /// Configuration of a client that connected before the migration began.
    pub(super) fn config(&self) -> QueueConfig {
        let usual = QueueConfig { shard_prefix_len: Some(self.from), ..QueueConfig::default() };
        if self.broken != Some(BrokenMigrationRule::ShardLengthNeverReread) {
            return usual;
        }
        let day = Duration::from_hours(24);
        QueueConfig { meta_refresh_interval: day, meta_max_age: day, ..usual }
    }

    fn options(&self) -> MigrateOptions {
        let usual = MigrateOptions::default();
        match self.broken {
            Some(BrokenMigrationRule::MigrationDoesNotWait) => {
                MigrateOptions { until_known: Duration::ZERO, ..usual }
            }
            Some(BrokenMigrationRule::LeftoversDeletedAtOnce) => {
                MigrateOptions { grace: Duration::ZERO, ..usual }
            }
            Some(BrokenMigrationRule::ShardLengthNeverReread) | None => usual,
        }
    }

    pub(super) fn is_done(&self) -> bool {
        self.goals.iter().all(|goal| *lock(goal) == Goal::Done)
    }

    /// Starts the operators.
    pub(super) fn start(&self, actors: &QueueActors, world: &World) {
        for number in 0..self.goals.len() {
            let (own, actors) = (self.clone(), actors.clone());
            world.actor(&format!("migrator{}", number + 1), move |host, client| {
                Box::pin(own.clone().operate(number, actors.clone(), host, client))
            });
        }
    }

    async fn operate(self, number: usize, actors: QueueActors, host: Arc<SimHost>, client: Client) {
        let goal = || *lock(&self.goals[number]);
        host.sleep(host.random_below(BEGIN_WITHIN)).await;
        while goal() != Goal::Done {
            let queue = actors.connect(&host, client.clone(), "migrator").await;
            let next = self.advance(goal(), &queue, &actors, &host).await;
            *lock(&self.goals[number]) = next;
            host.sleep(host.random_below(REST)).await;
        }
    }

    /// Takes one action towards a goal. Returns the next goal.
    async fn advance(
        &self,
        goal: Goal,
        queue: &ObjectQueue,
        actors: &QueueActors,
        host: &Arc<SimHost>,
    ) -> Goal {
        let options = self.options();
        let timeout = host.sleep(host.random_below(ABORT_WITHIN));
        let done = match goal {
            Goal::WaitThenAbort => {
                timeout.await;
                return Goal::Abort(false);
            }
            Goal::MigrateThenAbort => {
                let migrating = Box::pin(queue.migrate(self.to, &options, &|_| ()));
                match select(migrating, timeout).await {
                    Either::Left((done, _)) => done,
                    Either::Right(_) => return Goal::Abort(true),
                }
            }
            Goal::Abort(_) => queue.abort_migration(&options, &|_| ()).await,
            Goal::Migrate | Goal::Done => queue.migrate(self.to, &options, &|_| ()).await,
        };
        actors.note(host, format!("{goal:?}: {done:?}"));
        next(goal, &done)
    }
}

fn next(goal: Goal, done: &Result<Migrated>) -> Goal {
    match (goal, done) {
        (_, Ok(_)) => Goal::Done,
        // Nothing can be cancelled (or no longer); the operator that began the migration finishes it.
        (Goal::Abort(true), Err(error)) if error.kind() == Kind::Invalid => Goal::Migrate,
        // Another operator cancels it, or has done so, and completes that.
        (_, Err(error)) if matches!(error.kind(), Kind::Invalid | Kind::Lost) => Goal::Done,
        (goal, Err(_)) => goal,
    }
}
