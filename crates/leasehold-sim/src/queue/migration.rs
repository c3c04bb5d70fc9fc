//! Operators who change the number of shards in the middle of everything, and go on with it after each crash.

use futures::future::{Either, select};
use leasehold_core::{Kind, Result};
use leasehold_queue::{MigrateOptions, Migrated, Queue, QueueConfig};
use leasehold_store::{Client, Host, HostExt};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::actors::{Cast, lock};
use crate::chance::Chance;
use crate::host::SimHost;
use crate::world::World;

/// One begins within this.
const BEGIN_WITHIN: Duration = Duration::from_mins(3);
/// Whoever is going to call it off does so within this.
const CALL_OFF_WITHIN: Duration = Duration::from_mins(5);
/// Between two tries.
const REST: Duration = Duration::from_secs(3);

/// Who is careless.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Careless {
    /// Clients never ask again how many digits name a shard.
    NeverAsks,
    /// Tasks are moved before all clients know of it.
    MovesAtOnce,
    /// What was left is swept before everything has landed.
    SweepsAtOnce,
}

/// What the operators of a migration want.
#[derive(Debug, Clone)]
pub(super) struct Migration {
    from: u8,
    to: u8,
    careless: Option<Careless>,
    goals: Arc<Vec<Mutex<Goal>>>,
}

/// What one of them is about to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Goal {
    /// Migrate.
    Go,
    /// Migrate for a while, then change one's mind.
    GoAndCallOff,
    /// Call off what others do, after a while.
    WaitAndCallOff,
    /// Call it off; if that is not possible, migrate if `true`.
    CallOff(bool),
    Done,
}

impl Migration {
    /// There is one in the worlds of these seeds, from one digit to two or back.
    pub(super) fn of(world: &World, careless: Option<Careless>) -> Option<Self> {
        if world.seed() % 5 != 3 {
            return None;
        }
        let mut chance: Chance = world.chance("migration");
        // What matters here is what lands late; and once the store's time was set, no grace means anything.
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

    /// How a client connects that was there before it began.
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

    /// The operators start.
    pub(super) fn enter(&self, cast: &Cast, world: &World) {
        for number in 0..self.goals.len() {
            let (own, cast) = (self.clone(), cast.clone());
            world.actor(&format!("migrator{}", number + 1), move |host, client| {
                Box::pin(own.clone().operate(number, cast.clone(), host, client))
            });
        }
    }

    async fn operate(self, number: usize, cast: Cast, host: Arc<SimHost>, client: Client) {
        let goal = || *lock(&self.goals[number]);
        host.sleep(host.random_below(BEGIN_WITHIN)).await;
        while goal() != Goal::Done {
            let queue = cast.connect(&host, client.clone(), "migrator").await;
            let next = self.pursue(goal(), &queue, &cast, &host).await;
            *lock(&self.goals[number]) = next;
            host.sleep(host.random_below(REST)).await;
        }
    }

    /// Does something for a goal; gives what is to be done next.
    async fn pursue(&self, goal: Goal, queue: &Queue, cast: &Cast, host: &Arc<SimHost>) -> Goal {
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
        cast.note(host, format!("wanted {goal:?}: {done:?}"));
        next(goal, &done)
    }
}

fn next(goal: Goal, done: &Result<Migrated>) -> Goal {
    match (goal, done) {
        (_, Ok(_)) => Goal::Done,
        // Nothing can be called off (any more); what was begun is finished by whoever began it.
        (Goal::CallOff(true), Err(error)) if error.kind() == Kind::Invalid => Goal::Go,
        // Someone else calls it off, or has done so, and sees to the end of that.
        (_, Err(error)) if matches!(error.kind(), Kind::Invalid | Kind::Lost) => Goal::Done,
        (goal, Err(_)) => goal,
    }
}
