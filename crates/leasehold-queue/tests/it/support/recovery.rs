//! The work of a worker, by hand: claim and complete due tasks, clean up the rest, minute by minute.

use leasehold_core::Index;
use leasehold_queue::Settlement;
use serde_json::json;

use super::audit::assert_covered;
use super::{LEASE, World, any_type, mins, worker};

/// Runs a healthy worker for this number of minutes, and checks after every step that all tasks are covered.
pub(crate) async fn recover(world: &World, minutes: u64, context: &str) {
    for _ in 0..minutes {
        world.advance(mins(1));
        round(world, context).await;
    }
}

async fn round(world: &World, context: &str) {
    for found in world.due(Index::Lease).await {
        world.queue.sweep(&found).await.unwrap();
        assert_covered(&world.store, context).await;
    }
    for found in world.due(Index::Ready).await {
        let outcome = world.queue.claim(&found, &worker("healer"), LEASE, &any_type(), false).await.unwrap();
        assert_covered(&world.store, context).await;
        if let Ok(claimed) = outcome {
            let settled = world.queue.settle(&claimed, Settlement::complete(json!("healed"))).await.unwrap();
            assert!(settled.is_some(), "{context}: no other worker runs");
        } else {
            world.queue.sweep(&found).await.unwrap();
        }
        assert_covered(&world.store, context).await;
    }
}

/// Minutes after which every grace period is over and nothing waits.
pub(crate) const LONG: u64 = 45;
