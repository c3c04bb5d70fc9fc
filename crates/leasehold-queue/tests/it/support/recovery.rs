//! What workers do all day, by hand: claim and complete what is due, sweep the rest, minute by minute.

use leasehold_core::Index;
use leasehold_queue::{Met, Settlement};
use serde_json::json;

use super::audit::assert_covered;
use super::{LEASE, World, any_type, mins, worker};

/// Lets a healthy worker run for so many minutes, and looks after every step whether all tasks are covered.
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
        let met = world.queue.claim(&found, &worker("healer"), LEASE, &any_type).await.unwrap();
        assert_covered(&world.store, context).await;
        if let Met::Claimed(claimed) = met {
            let settled = world.queue.settle(&claimed, Settlement::complete(json!("healed"))).await.unwrap();
            assert!(settled.is_some(), "{context}: nobody else runs");
        } else {
            world.queue.sweep(&found).await.unwrap();
        }
        assert_covered(&world.store, context).await;
    }
}

/// After so many minutes every grace is over and nothing waits any more.
pub(crate) const LONG: u64 = 45;
