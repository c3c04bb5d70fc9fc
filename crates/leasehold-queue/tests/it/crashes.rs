//! Promises P1 and P5 under every single fault: each operation is run once for each of its requests and each fault of
//! that request. Afterwards every task is still covered, and a healthy worker completes it.

use leasehold_core::TaskId;
use serde_json::Value;

use crate::support::World;
use crate::support::audit::{self, assert_covered, is_tombstone};
use crate::support::operations::{ALL, Operation, Ready};
use crate::support::recovery::{LONG, recover};
use crate::support::stage::Fate;

const FATES: [Fate; 7] = [
    Fate::LoseAnswer,
    Fate::LoseRequest,
    Fate::Refuse,
    Fate::Unreached,
    Fate::Die,
    Fate::PassThenDie,
    Fate::HoldThenDie,
];

/// Time at which a request is applied that was in flight when its process crashed.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Landing {
    AtOnce,
    AfterMinutes(u64),
}

/// No store accepts a request that is older than a quarter of an hour.
const LANDINGS: [Landing; 3] = [Landing::AtOnce, Landing::AfterMinutes(3), Landing::AfterMinutes(14)];

async fn requests_of(op: Operation) -> usize {
    let world = World::new().await;
    let ready = Ready::prepare(&world, op).await;
    let (queue, stage) = world.staged().await;
    stage.play_at(usize::MAX, Fate::Pass);
    ready.run(&world, &queue).await.unwrap();
    assert_covered(&world.store, &format!("{op:?}")).await;
    stage.asked().len()
}

async fn run_with_fault(op: Operation, number: usize, fate: Fate, landing: Landing) {
    let context = format!("{op:?}, request {number} {fate:?}, lands {landing:?}");
    let world = World::new().await;
    let ready = Ready::prepare(&world, op).await;
    let (queue, stage) = world.staged().await;
    stage.play_at(number, fate);
    let result = ready.run(&world, &queue).await;
    assert_covered(&world.store, &context).await;
    if let Landing::AfterMinutes(minutes) = landing {
        recover(&world, minutes, &context).await;
    }
    stage.apply_late().await;
    assert_covered(&world.store, &context).await;
    recover(&world, LONG, &context).await;
    let was_dead = matches!(fate, Fate::Die | Fate::PassThenDie | Fate::HoldThenDie);
    let acknowledged = result.as_ref().ok().copied().flatten();
    for (id, task) in all_tasks(&world).await {
        let is_final = !["pending", "running"].contains(&task["status"].as_str().unwrap());
        assert!(is_final, "{context}: {id} is still {}", task["status"]);
        let denied = result.as_ref().is_err_and(|error| !error.outcome_is_unknown());
        if matches!(op, Operation::Submit) && denied && !was_dead {
            assert!(is_tombstone(&task), "{context}: it was said not to be submitted");
        }
    }
    if let Some(id) = acknowledged {
        let task = world.raw(&id).await.unwrap_or_else(|| panic!("{context}: the task is gone"));
        let was_abandoned = matches!(op, Operation::Bury);
        assert_eq!(is_tombstone(&task), was_abandoned, "{context}: {task}");
    }
    for index in ["ready/", "leases/"] {
        assert_eq!(audit::keys(&world.store, index).await, Vec::<String>::new(), "{context}");
    }
}

async fn all_tasks(world: &World) -> Vec<(TaskId, Value)> {
    let mut tasks = Vec::new();
    for key in audit::keys(&world.store, "tasks/").await {
        let (_, id) = leasehold_core::keys::parse_task(&key).unwrap();
        tasks.push((id, audit::value(&world.store, &key).await.unwrap()));
    }
    tasks
}

#[tokio::test]
async fn every_operation_survives_every_single_fault() {
    let mut runs = 0;
    for op in ALL {
        let requests = requests_of(op).await;
        assert!(requests > 0, "{op:?} asks nothing of the store");
        for number in 0..requests {
            for fate in FATES {
                let landings = if fate == Fate::HoldThenDie { &LANDINGS[..] } else { &LANDINGS[..1] };
                for landing in landings {
                    run_with_fault(op, number, fate, *landing).await;
                    runs += 1;
                }
            }
        }
    }
    assert!(runs > 600, "only {runs} runs");
}
