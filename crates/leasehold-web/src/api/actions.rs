//! What people do to tasks: cancel, retry, run now. Whether it may happen, the queue decides.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::{StreamExt, stream};
use http::StatusCode;
use leasehold_core::{Error, Matter, Result, State as TaskState, Status, StoreTime, Task, TaskId};
use leasehold_queue::{Operated, Queue};
use serde_json::{Value, json};

use super::now;
use super::row::TaskRow;
use crate::query::{Asked, Query};
use crate::routes::{App, Failed, refusal};

/// Most tasks that are changed by one request; whoever wants more asks again.
const TASKS_MAX: usize = 1_000;
/// So many at once: a bucket takes its time for each.
const AT_ONCE: usize = 32;

/// Something that can be done to a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    Cancel,
    Retry,
    RunNow,
}

impl Action {
    pub(crate) const ALL: [Self; 3] = [Self::Cancel, Self::Retry, Self::RunNow];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Cancel => "cancel",
            Self::Retry => "retry",
            Self::RunNow => "run_now",
        }
    }

    fn is_from(self, status: Status) -> bool {
        match self {
            Self::Cancel => !status.is_final(),
            Self::Retry => matches!(status, Status::Failed | Status::Cancelled | Status::Expired),
            Self::RunNow => status == Status::Pending,
        }
    }

    /// Whether there is any use in offering it.
    pub(crate) fn fits(self, task: &Task, now: StoreTime) -> bool {
        let is_useful = match &task.state {
            TaskState::Running(claim) => !claim.cancel_requested,
            TaskState::Pending { available_at } => self != Self::RunNow || *available_at > now,
            _ => true,
        };
        self.is_from(task.status()) && is_useful
    }

    async fn apply(self, queue: &Queue, id: &TaskId) -> Result<Operated> {
        match self {
            Self::Cancel => queue.cancel(id).await,
            Self::Retry => queue.retry(id).await,
            Self::RunNow => queue.reschedule(id, queue.now()?.earliest).await,
        }
    }
}

/// Does it to one task.
pub(crate) async fn act(
    State(app): State<Arc<App>>,
    Path((id, action)): Path<(String, String)>,
) -> Result<Response, Failed> {
    let Some(action) = Action::ALL.into_iter().find(|known| known.name() == action) else {
        return Ok(refusal(StatusCode::NOT_FOUND, "there are cancel, retry and run_now"));
    };
    let id: TaskId = id.parse()?;
    let own = app.clone();
    match app.see_through(async move { done(&own, action, &id).await }).await?? {
        Operated::Refused(rejected) => Ok(refusal(StatusCode::CONFLICT, &rejected.to_string())),
        Operated::Done(task) => {
            let (now, board) = (now(&app)?, app.shared.board());
            let row = board.table.get(&task.id).map(|row| TaskRow::new(row, now));
            Ok(Json(json!({"task": row})).into_response())
        }
    }
}

/// Does it, and shows what came of it at once.
async fn done(app: &App, action: Action, id: &TaskId) -> Result<Operated> {
    let operated = action.apply(&app.shared.queue(), id).await;
    app.opened.forget(id);
    if let Ok(Operated::Done(task)) = &operated {
        tracing::info!(task.id = %id, action = action.name(), "changed from the dashboard");
        app.shared.saw(task);
    }
    operated
}

/// Lets all tasks that fit run again.
pub(crate) async fn retry_all(State(app): State<Arc<App>>, body: Bytes) -> Result<Json<Value>, Failed> {
    all(app, Action::Retry, &body).await
}

/// Calls off all tasks that fit.
pub(crate) async fn cancel_all(State(app): State<Arc<App>>, body: Bytes) -> Result<Json<Value>, Failed> {
    all(app, Action::Cancel, &body).await
}

async fn all(app: Arc<App>, action: Action, body: &[u8]) -> Result<Json<Value>, Failed> {
    let asked: Asked = serde_json::from_slice(body)
        .map_err(|error| Error::invalid(format!("the filter cannot be understood: {error}")))?;
    let query = Query::read(asked)?;
    let now = now(&app)?;
    let ids: Vec<_> = {
        let board = app.shared.board();
        let rows = query.all(&board.table, now).into_iter().filter(|row| action.is_from(row.status));
        rows.map(|row| row.id).take(TASKS_MAX).collect()
    };
    let own = app.clone();
    let told = app.see_through(async move { each(&own, action, ids).await }).await?;
    Ok(Json(told))
}

/// Does it to each of them; one that cannot be reached does not keep the others.
async fn each(app: &App, action: Action, ids: Vec<TaskId>) -> Value {
    let acts = ids.into_iter().map(|id| async move { (id, done(app, action, &id).await) });
    let mut acts = stream::iter(acts).buffer_unordered(AT_ONCE);
    let (mut changed, mut refused, mut failed, mut why) = (0u64, 0u64, 0u64, None);
    while let Some((id, operated)) = acts.next().await {
        match operated {
            Ok(Operated::Done(_)) => changed += 1,
            Ok(Operated::Refused(_)) => refused += 1,
            Err(error) if error.matter() == Some(Matter::Missing) => {
                app.shared.missed(&id);
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
