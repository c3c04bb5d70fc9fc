//! Actions on tasks: cancel, retry, run now. The queue decides whether an action is allowed.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::{StreamExt, stream};
use http::StatusCode;
use leasehold_core::{Error, Reason, Result, State as TaskState, Status, StoreTime, Task, TaskId};
use leasehold_queue::{Queue, Transition};
use serde_json::{Value, json};

use super::now;
use super::row::TaskRow;
use crate::query::{Query, QueryParams};
use crate::routes::{ApiError, App, error_response};

/// Largest number of tasks changed by one request; for more, the client repeats it.
const TASKS_MAX: usize = 1_000;
/// Number of tasks changed concurrently: each takes at least one request to the store.
const AT_ONCE: usize = 32;

/// An action on a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TaskAction {
    Cancel,
    Retry,
    RunNow,
}

impl TaskAction {
    pub(crate) const ALL: [Self; 3] = [Self::Cancel, Self::Retry, Self::RunNow];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Cancel => "cancel",
            Self::Retry => "retry",
            Self::RunNow => "run_now",
        }
    }

    fn applies_to(self, status: Status) -> bool {
        match self {
            Self::Cancel => !status.is_final(),
            Self::Retry => matches!(status, Status::Failed | Status::Cancelled | Status::Expired),
            Self::RunNow => status == Status::Pending,
        }
    }

    /// True if the action would have an effect on the task.
    pub(crate) fn has_effect(self, task: &Task, now: StoreTime) -> bool {
        let is_useful = match &task.state {
            TaskState::Running(claim) => !claim.cancel_requested,
            TaskState::Pending { available_at } => self != Self::RunNow || *available_at > now,
            _ => true,
        };
        self.applies_to(task.status()) && is_useful
    }

    async fn apply(self, queue: &Queue, id: &TaskId) -> Result<Transition<Task>> {
        match self {
            Self::Cancel => queue.cancel(id).await,
            Self::Retry => queue.retry(id).await,
            Self::RunNow => queue.reschedule(id, queue.now()?.earliest).await,
        }
    }
}

/// Applies an action to one task.
pub(crate) async fn act(
    State(app): State<Arc<App>>,
    Path((id, action)): Path<(String, String)>,
) -> Result<Response, ApiError> {
    let Some(action) = TaskAction::ALL.into_iter().find(|known| known.name() == action) else {
        return Ok(error_response(StatusCode::NOT_FOUND, "unknown action; use cancel, retry or run_now"));
    };
    let id: TaskId = id.parse()?;
    let own = app.clone();
    let operated = app.run_to_completion(async move { apply_and_update(&own, action, &id).await }).await??;
    if let Transition::Rejected(rejected, _) = operated {
        return Ok(error_response(StatusCode::CONFLICT, &rejected.to_string()));
    }
    let (now, snapshot) = (now(&app)?, app.shared.snapshot());
    let row = snapshot.table.get(&id).map(|row| TaskRow::new(row, now));
    Ok(Json(json!({"task": row})).into_response())
}

/// Applies an action, and updates the snapshot with the result.
async fn apply_and_update(app: &App, action: TaskAction, id: &TaskId) -> Result<Transition<Task>> {
    let operated = action.apply(&app.shared.queue(), id).await;
    app.task_cache.forget(id);
    if let Ok(Transition::Done(task)) = &operated {
        tracing::info!(task = %id, action = action.name(), "task changed from the dashboard");
        app.shared.update_task(task);
    }
    operated
}

/// Retries all tasks that match a filter.
pub(crate) async fn retry_all(State(app): State<Arc<App>>, body: Bytes) -> Result<Json<Value>, ApiError> {
    apply_to_all(app, TaskAction::Retry, &body).await
}

/// Cancels all tasks that match a filter.
pub(crate) async fn cancel_all(State(app): State<Arc<App>>, body: Bytes) -> Result<Json<Value>, ApiError> {
    apply_to_all(app, TaskAction::Cancel, &body).await
}

async fn apply_to_all(app: Arc<App>, action: TaskAction, body: &[u8]) -> Result<Json<Value>, ApiError> {
    let params: QueryParams =
        serde_json::from_slice(body).map_err(|error| Error::invalid(format!("invalid filter: {error}")))?;
    let query = Query::parse(params)?;
    let now = now(&app)?;
    let ids: Vec<_> = {
        let snapshot = app.shared.snapshot();
        let rows = query.all(&snapshot.table, now).into_iter().filter(|row| action.applies_to(row.status));
        rows.map(|row| row.id).take(TASKS_MAX).collect()
    };
    let own = app.clone();
    let counts = app.run_to_completion(async move { apply_to_each(&own, action, ids).await }).await?;
    Ok(Json(counts))
}

/// Applies an action to each task; a failure does not stop the others.
async fn apply_to_each(app: &App, action: TaskAction, ids: Vec<TaskId>) -> Value {
    let acts = ids.into_iter().map(|id| async move { (id, apply_and_update(app, action, &id).await) });
    let mut acts = stream::iter(acts).buffer_unordered(AT_ONCE);
    let (mut changed, mut refused, mut failed, mut why) = (0u64, 0u64, 0u64, None);
    while let Some((id, operated)) = acts.next().await {
        match operated {
            Ok(operated) if operated.is_done() => changed += 1,
            Ok(_) => refused += 1,
            Err(error) if error.reason() == Some(Reason::Missing) => {
                app.shared.remove_task(&id);
                refused += 1;
            }
            Err(error) => {
                failed += 1;
                why.get_or_insert_with(|| error.to_string());
            }
        }
    }
    json!({"done": changed, "refused": refused, "failed": failed, "error": why})
}
