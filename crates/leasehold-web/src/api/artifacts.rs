//! Artifacts, as listed by the store; no object is read.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};

use super::age;
use crate::routes::App;
use crate::viewers::Topic;

/// Largest number of artifacts in one response.
const SHOWN_MAX: usize = 1_000;

/// Artifacts of the store, newest first.
pub(crate) async fn artifacts(State(app): State<Arc<App>>) -> Json<Value> {
    app.shared.viewers.record(Topic::Queue);
    app.shared.viewers.record(Topic::Artifacts);
    let snapshot = app.shared.snapshot();
    let mut all: Vec<_> = snapshot.artifacts.iter().flat_map(|seen| &seen.value).collect();
    all.sort_by_key(|(_, listed)| std::cmp::Reverse(listed.manifest));
    let total = all.len();
    let rows = all.into_iter().take(SHOWN_MAX).map(|(artifact, listed)| {
        json!({
            "id": artifact,
            "bytes": listed.data.map(|(_, bytes)| bytes),
            "created_at": listed.manifest.or(listed.data.map(|(at, _)| at)),
            // A publisher is uploading it, or has crashed.
            "state": if listed.manifest.is_some() { "published" } else { "unfinished" },
        })
    });
    let rows: Vec<_> = rows.collect();
    let at = snapshot.artifacts.as_ref().map(|seen| seen.at);
    Json(json!({"artifacts": rows, "total": total, "age_secs": age(&app, at)}))
}
