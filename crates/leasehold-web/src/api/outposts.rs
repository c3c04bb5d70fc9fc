//! Outposts, derived from task records. A node appears once it has finished a task offline; then the tasks that it holds
//! are counted, too.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use leasehold_core::{Status, StoreTime};
use serde::Serialize;
use serde_json::{Value, json};

use super::age;
use crate::routes::App;
use crate::snapshot::QueueSnapshot;
use crate::viewers::Topic;

/// Row of one node.
#[derive(Debug, Serialize)]
struct OutpostRow {
    node_id: String,
    holds: u64,
    last_seen_at: Option<StoreTime>,
    completed_offline: u64,
}

/// Nodes that have finished a task offline.
pub(crate) async fn outposts(State(app): State<Arc<App>>) -> Json<Value> {
    app.shared.viewers.record(Topic::Queue);
    let snapshot = app.shared.snapshot();
    let nodes: Vec<_> = nodes(&snapshot).into_values().collect();
    Json(json!({"nodes": nodes, "age_secs": age(&app, snapshot.pass.ended)}))
}

fn nodes(snapshot: &QueueSnapshot) -> BTreeMap<&str, OutpostRow> {
    let mut nodes: BTreeMap<&str, OutpostRow> = BTreeMap::new();
    for row in snapshot.table.rows() {
        let Some(name) = row.outpost.as_deref() else { continue };
        let node = nodes.entry(name).or_insert_with(|| OutpostRow {
            node_id: name.to_owned(),
            holds: 0,
            last_seen_at: None,
            completed_offline: 0,
        });
        node.completed_offline += u64::from(row.status == Status::Completed);
        node.last_seen_at = node.last_seen_at.max(Some(row.updated_at));
    }
    for row in snapshot.table.rows().filter(|row| row.status == Status::Running) {
        if let Some(node) = row.worker.as_deref().and_then(|worker| nodes.get_mut(worker)) {
            node.holds += 1;
            node.last_seen_at = node.last_seen_at.max(Some(row.updated_at));
        }
    }
    nodes
}
