//! JSON responses, one file per view. Data from tasks occurs only as JSON values.

pub(crate) mod actions;
pub(crate) mod artifacts;
pub(crate) mod broker;
pub(crate) mod outposts;
pub(crate) mod overview;
pub(crate) mod row;
pub(crate) mod shards;
pub(crate) mod task;
pub(crate) mod tasks;
pub(crate) mod workers;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use leasehold_core::{Result, StoreTime};
use leasehold_store::host::Instant;
use serde_json::{Value, json};

use crate::routes::App;

/// Effective settings of this process.
pub(crate) async fn settings(State(app): State<Arc<App>>) -> Json<Value> {
    Json(json!({"settings": app.settings}))
}

/// Current time of the store.
fn now(app: &App) -> Result<StoreTime> {
    Ok(app.shared.queue().now()?.earliest)
}

/// Seconds since a read.
fn age(app: &App, at: Option<Instant>) -> Option<f64> {
    at.map(|at| (app.shared.host().instant().since(at).as_secs_f64() * 10.0).round() / 10.0)
}
