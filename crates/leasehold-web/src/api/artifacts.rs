//! Large files, as a list of the store shows them: nothing is read for it.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};

use super::age;
use crate::looks::Topic;
use crate::routes::App;

/// Most artifacts of one answer.
const SHOWN_MAX: usize = 1_000;

/// The artifacts of the store, the newest first.
pub(crate) async fn artifacts(State(app): State<Arc<App>>) -> Json<Value> {
    app.shared.looks.at(Topic::Queue);
    app.shared.looks.at(Topic::Artifacts);
    let board = app.shared.board();
    let mut all: Vec<_> = board.artifacts.iter().flat_map(|seen| &seen.what).collect();
    all.sort_by_key(|(_, listed)| std::cmp::Reverse(listed.manifest));
    let total = all.len();
    let told = all.into_iter().take(SHOWN_MAX).map(|(artifact, listed)| {
        json!({
            "id": artifact,
            "bytes": listed.data.map(|(_, bytes)| bytes),
            "created_at": listed.manifest.or(listed.data.map(|(at, _)| at)),
            // Someone is at it, or has died over it.
            "state": if listed.manifest.is_some() { "published" } else { "unfinished" },
        })
    });
    let told: Vec<_> = told.collect();
    let at = board.artifacts.as_ref().map(|seen| seen.at);
    Json(json!({"artifacts": told, "total": total, "age_secs": age(&app, at)}))
}
