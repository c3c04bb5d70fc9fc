//! List of tasks.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{self, State};
use leasehold_core::Error;
use serde_json::{Value, json};

use super::now;
use super::row::TaskRow;
use crate::query::{Asked, Query};
use crate::routes::{ApiError, App};
use crate::viewers::Topic;

/// One page of the tasks that match a query.
pub(crate) async fn tasks(
    State(app): State<Arc<App>>,
    asked: Result<extract::Query<Asked>, QueryRejection>,
) -> Result<Json<Value>, ApiError> {
    let asked = asked.map_err(|error| Error::invalid(error.body_text()))?;
    let query = Query::read(asked.0)?;
    app.shared.looks.at(Topic::Queue);
    let now = now(&app)?;
    let board = app.shared.board();
    let (total, rows) = query.page(&board.table, now);
    let rows: Vec<_> = rows.into_iter().map(|row| TaskRow::new(row, now)).collect();
    Ok(Json(json!({
        "revision": board.revision(),
        "total": total,
        "offset": query.offset,
        "tasks": rows,
        "is_complete": board.pass.ended.is_some() && !board.pass.is_cut,
    })))
}
