//! Shards: their holders, and their waiting and running tasks.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use leasehold_core::ShardRange;
use leasehold_queue::{LeaseState, SeenLease, Stats};
use serde_json::{Value, json};

use super::age;
use crate::routes::App;
use crate::viewers::Topic;

/// All groups of shards that are leased together, in order.
pub(crate) async fn shards(State(app): State<Arc<App>>) -> Json<Value> {
    app.shared.looks.at(Topic::Queue);
    app.shared.looks.at(Topic::Shards);
    let board = app.shared.board();
    let stats = board.index.as_ref().map(|index| &index.what);
    let free = SeenLease { state: LeaseState::Free, lease: None };
    let groups: Vec<_> = match &board.shards {
        Some(seen) => seen.what.iter().map(|(group, seen)| told(group, seen, stats)).collect(),
        // Not read yet: shows the groups as free, without holders.
        None => {
            app.shared.queue().shard_len().groups().iter().map(|group| told(group, &free, stats)).collect()
        }
    };
    Json(json!({"groups": groups, "age_secs": age(&app, board.shards.as_ref().map(|seen| seen.at))}))
}

fn told(group: &ShardRange, seen: &SeenLease, stats: Option<&Stats>) -> Value {
    let (lease, holder) = (seen.lease.as_ref(), seen.holder());
    let [due, scheduled, running] = waiting(group, stats);
    json!({
        "shards": group.to_string(),
        "first": group.first,
        "last": group.last,
        "count": group.count(),
        "state": seen.state.name(),
        "worker_id": holder,
        "epoch": lease.map(|lease| lease.epoch),
        "until": holder.and(lease).map(|lease| lease.expires_at),
        "due": due,
        "scheduled": scheduled,
        "running": running,
    })
}

/// Due, scheduled and running tasks of a group. Shard names sort in numeric order.
fn waiting(group: &ShardRange, stats: Option<&Stats>) -> [u64; 3] {
    let (first, last) = (group.first.as_str().to_owned(), group.last.as_str().to_owned());
    let shards = stats.into_iter().flat_map(|stats| stats.shards.range(first.clone()..=last.clone()));
    shards.fold([0; 3], |all, (_, counts)| std::array::from_fn(|kind| all[kind] + counts[kind]))
}
