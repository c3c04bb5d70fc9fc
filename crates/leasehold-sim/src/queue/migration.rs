//! Operators that change the number of shards under faults, and resume the migration after each crash.

use futures::future::{Either, select};
use leasehold_core::{Kind, Result};
use leasehold_queue::{MigrateOptions, Migrated, Queue, QueueConfig};
use leasehold_store::{Client, Host, HostExt};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::actors::{QueueCast, lock};
use crate::chance::SimRandom;
use crate::host::SimHost;
use crate::world::World;

/// Time within which a migration begins.
const BEGIN_WITHIN: Duration = Duration::from_mins(3);
/// Time within which an operator cancels it, if it is going to.
const CALL_OFF_WITHIN: Duration = Duration::from_mins(5);
/// Pause between two tries.
const REST: Duration = Duration::from_secs(3);

/// Rule of a migration that is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Careless {
    /// Clients never read the number of shards again.
    NeverAsks,
    /// Tasks are moved before all clients have read the new layout.
    MovesAtOnce,
    /// Leftovers are removed before all delayed writes have arrived.
    SweepsAtOnce,
}

/// The operators of a migration.
#[derive(Debug, Clone)]
pub(super) struct Migration {
    from: u8,
    to: u8,
    careless: Option<Careless>,
    goals: Arc<Vec<Mutex<Goal>>>,
}

/// Next action of an operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Goal {
    /// Migrate.
    Go,
    /// Migrate for a while, then cancel.
    GoAndCallOff,
    /// Cancel another operator's migration, after a while.
    WaitAndCallOff,
    /// Cancel it; if that is not possible, migrate if `true`.
    CallOff(bool),
    Done,
}

impl Migration {
    /// Returns the migration of this world, if its seed has one: from one digit to two or back.
    pub(super) fn of(world: &World, careless: Option<Careless>) -> Option<Self> {
        if world.seed() % 5 != 3 {
            return None;
        }
        let mut chance: SimRandom = world.chance("migration");
        // Late writes matter here; and after a jump of the store's time no grace period holds.
        let jumps = chance.happens(3_333);
        world.change_faults(|faults| {
            faults.late *= 3;
            faults.troubles.date_jump *= u64::from(jumps);
        });
        let (from, to) = if chance.happens(5_000) { (1, 2) } else { (2, 1) };
        let goals = match chance.below(5) {
            0 => vec![Goal::GoAndCallOff],
            1 => vec![Goal::Go, Goal::WaitAndCallOff],
            2 => vec![Goal::Go, Goal::Go],
            _ => vec![Goal::Go],
        };
        Some(Self { from, to, careless, goals: Arc::new(goals.into_iter().map(Mutex::new).collect()) })
    }

    /// Configuration of a client that connected before the migration began.
    pub(super) fn config(&self) -> QueueConfig {
        let usual = QueueConfig { shard_prefix_len: self.from, ..QueueConfig::default() };
        if self.careless != Some(Careless::NeverAsks) {
            return usual;
        }
        let day = Duration::from_hours(24);
        QueueConfig { layout_asked_every: day, layout_trusted: day, ..usual }
    }

    fn options(&self) -> MigrateOptions {
        let usual = MigrateOptions::default();
        match self.careless {
            Some(Careless::MovesAtOnce) => MigrateOptions { until_known: Duration::ZERO, ..usual },
            Some(Careless::SweepsAtOnce) => MigrateOptions { grace: Duration::ZERO, ..usual },
            Some(Careless::NeverAsks) | None => usual,
        }
    }

    pub(super) fn is_done(&self) -> bool {
        self.goals.iter().all(|goal| *lock(goal) == Goal::Done)
    }

    /// Starts the operators.
    pub(super) fn enter(&self, cast: &QueueCast, world: &World) {
        for number in 0..self.goals.len() {
            let (own, cast) = (self.clone(), cast.clone());
            world.actor(&format!("migrator{}", number + 1), move |host, client| {
                Box::pin(own.clone().operate(number, cast.clone(), host, client))
            });
        }
    }

    async fn operate(self, number: usize, cast: QueueCast, host: Arc<SimHost>, client: Client) {
        let goal = || *lock(&self.goals[number]);
        host.sleep(host.random_below(BEGIN_WITHIN)).await;
        while goal() != Goal::Done {
            let queue = cast.connect(&host, client.clone(), "migrator").await;
            let next = self.pursue(goal(), &queue, &cast, &host).await;
            *lock(&self.goals[number]) = next;
            host.sleep(host.random_below(REST)).await;
        }
    }

    /// Takes one action towards a goal. Returns the next goal.
    async fn pursue(&self, goal: Goal, queue: &Queue, cast: &QueueCast, host: &Arc<SimHost>) -> Goal {
        let options = self.options();
        let patience = host.sleep(host.random_below(CALL_OFF_WITHIN));
        let done = match goal {
            Goal::WaitAndCallOff => {
                patience.await;
                return Goal::CallOff(false);
            }
            Goal::GoAndCallOff => {
                let migrating = Box::pin(queue.migrate(self.to, &options, &|_| ()));
                match select(migrating, patience).await {
                    Either::Left((done, _)) => done,
                    Either::Right(_) => return Goal::CallOff(true),
                }
            }
            Goal::CallOff(_) => queue.abort_migration(&options, &|_| ()).await,
            Goal::Go | Goal::Done => queue.migrate(self.to, &options, &|_| ()).await,
        };
        cast.note(host, format!("{goal:?}: {done:?}"));
        next(goal, &done)
    }
}

fn next(goal: Goal, done: &Result<Migrated>) -> Goal {
    match (goal, done) {
        (_, Ok(_)) => Goal::Done,
        // Nothing can be cancelled (or no longer); the operator that began the migration finishes it.
        (Goal::CallOff(true), Err(error)) if error.kind() == Kind::Invalid => Goal::Go,
        // Another operator cancels it, or has done so, and completes that.
        (_, Err(error)) if matches!(error.kind(), Kind::Invalid | Kind::Lost) => Goal::Done,
        (goal, Err(_)) => goal,
    }
}
