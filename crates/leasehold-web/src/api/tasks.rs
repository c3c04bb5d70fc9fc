//! List of tasks.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{self, State};
use leasehold_core::Error;
use serde_json::{Value, json};

use super::now;
use super::row::TaskRow;
use crate::query::{Query, QueryParams};
use crate::routes::{ApiError, App};
use crate::viewers::Topic;

/// One page of the tasks that match a query.
pub(crate) async fn tasks(
    State(app): State<Arc<App>>,
    params: Result<extract::Query<QueryParams>, QueryRejection>,
) -> Result<Json<Value>, ApiError> {
    let params = params.map_err(|error| Error::invalid(error.body_text()))?;
    let query = Query::parse(params.0)?;
    app.shared.viewers.record(Topic::Queue);
    let now = now(&app)?;
    let snapshot = app.shared.snapshot();
    let (total, rows) = query.page(&snapshot.table, now);
    let rows: Vec<_> = rows.into_iter().map(|row| TaskRow::new(row, now)).collect();
    Ok(Json(json!({
        "revision": snapshot.revision(),
        "total": total,
        "offset": query.offset,
        "tasks": rows,
        "is_complete": snapshot.pass.ended.is_some() && !snapshot.pass.is_cut,
    })))
}
