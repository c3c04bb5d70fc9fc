//! Shards: their holders, and their waiting and running tasks.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use leasehold_core::{ShardLen, ShardRange};
use leasehold_queue::{LeaseInfo, LeaseState, Stats};
use serde_json::{Value, json};

use super::age;
use crate::routes::App;
use crate::viewers::Topic;

/// All groups of shards that are leased together, in order.
pub(crate) async fn shards(State(app): State<Arc<App>>) -> Json<Value> {
    app.shared.viewers.record(Topic::Queue);
    app.shared.viewers.record(Topic::Shards);
    let snapshot = app.shared.snapshot();
    let stats = snapshot.index.as_ref().map(|index| &index.value);
    let free = LeaseInfo { state: LeaseState::Free, lease: None };
    let groups: Vec<_> = if let Some(seen) = &snapshot.shards {
        seen.value.iter().map(|(group, seen)| group_json(group, seen, stats)).collect()
    } else {
        // Not read yet: shows the groups as free, without holders.
        let groups = app.shared.shard_len().map(ShardLen::groups).unwrap_or_default();
        groups.iter().map(|group| group_json(group, &free, stats)).collect()
    };
    Json(json!({"groups": groups, "age_secs": age(&app, snapshot.shards.as_ref().map(|seen| seen.at))}))
}

fn group_json(group: &ShardRange, seen: &LeaseInfo, stats: Option<&Stats>) -> Value {
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
