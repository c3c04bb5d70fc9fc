//! One task: its record, its history, and the attempts derived from the history.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use leasehold_core::task::Change;
use leasehold_core::{Status, StoreTime, Task, TaskId, record};
use serde::Serialize;
use serde_json::{Value, json};

use super::actions::TaskAction;
use super::now;
use crate::routes::{ApiError, App};
use crate::viewers::Topic;

/// One run of a handler, as far as the history records it.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct AttemptRun {
    attempt: u32,
    epoch: u64,
    generation: u64,
    worker: String,
    began_at: StoreTime,
    ended_at: Option<StoreTime>,
    ended_by: Option<String>,
    why: Option<String>,
}

/// Task with this id, read at most four seconds ago.
pub(crate) async fn task(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let id: TaskId = id.parse()?;
    app.shared.viewers.record(Topic::Queue);
    let task = app.task_cache.get(&app.shared, &id).await?;
    let now = now(&app)?;
    let can: Vec<_> = if app.access.allows_actions {
        TaskAction::ALL
            .into_iter()
            .filter(|action| action.has_effect(&task, now))
            .map(TaskAction::name)
            .collect()
    } else {
        Vec::new()
    };
    let history: Vec<_> = task.history.events().collect();
    Ok(Json(json!({
        "task": record::value(&task),
        "history": history,
        "folded": task.history.folded(),
        "attempts": attempts(&task),
        "can": can,
    })))
}

/// Attempts, oldest first. A claim starts one; the next change with another epoch, or to another status, ends it.
fn attempts(task: &Task) -> Vec<AttemptRun> {
    let changes: Vec<_> = task.history.events().collect();
    let retries =
        |changes: &[&Change]| changes.iter().filter(|change| change.event == "retry").count() as u64;
    let mut attempts: Vec<AttemptRun> = Vec::new();
    for (number, change) in changes.iter().enumerate() {
        let begins =
            change.to == Status::Running && change.epoch > attempts.last().map_or(0, |last| last.epoch);
        // Finished offline: started and ended in one change.
        let is_offline = change.event.ends_with("_offline");
        let ends = is_offline || begins || change.to != Status::Running;
        if let Some(open) = attempts.last_mut().filter(|open| ends && open.ended_by.is_none()) {
            open.ended_at = Some(change.at);
            open.ended_by = Some(change.event.clone());
            open.why.clone_from(&change.why);
        }
        if begins || is_offline {
            attempts.push(AttemptRun {
                attempt: change.attempt,
                epoch: change.epoch,
                // The history may lack changes in the middle, so this counts back from the current generation.
                generation: task.generation.saturating_sub(retries(&changes[number..])),
                worker: change.by.clone(),
                began_at: change.at,
                ended_at: is_offline.then_some(change.at),
                ended_by: is_offline.then(|| change.event.clone()),
                why: change.why.clone().filter(|_| is_offline),
            });
        }
    }
    attempts
}
