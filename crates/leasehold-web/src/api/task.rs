//! One task, whole: its record, its history, and the attempts that the history tells of.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use leasehold_core::task::Change;
use leasehold_core::{Status, StoreTime, Task, TaskId, record};
use serde::Serialize;
use serde_json::{Value, json};

use super::actions::Action;
use super::now;
use crate::looks::Topic;
use crate::routes::{App, Failed};

/// One run of a handler, or what is left of the tale of it.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct Run {
    attempt: u32,
    epoch: u64,
    generation: u64,
    worker: String,
    began_at: StoreTime,
    ended_at: Option<StoreTime>,
    ended_by: Option<String>,
    why: Option<String>,
}

/// The task with this id, read at most two seconds ago.
pub(crate) async fn task(State(app): State<Arc<App>>, Path(id): Path<String>) -> Result<Json<Value>, Failed> {
    let id: TaskId = id.parse()?;
    app.shared.looks.at(Topic::Queue);
    let task = app.opened.get(&app.shared, &id).await?;
    let now = now(&app)?;
    let can: Vec<_> = if app.access.allows_actions {
        Action::ALL.into_iter().filter(|action| action.fits(&task, now)).map(Action::name).collect()
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

/// The attempts, oldest first. A claim begins one; whatever next belongs to another epoch, or leaves the worker, ends it.
fn attempts(task: &Task) -> Vec<Run> {
    let changes: Vec<_> = task.history.events().collect();
    let retries =
        |changes: &[&Change]| changes.iter().filter(|change| change.event == "retry").count() as u64;
    let mut attempts: Vec<Run> = Vec::new();
    for (number, change) in changes.iter().enumerate() {
        let begins =
            change.to == Status::Running && change.epoch > attempts.last().map_or(0, |last| last.epoch);
        // Done where the store could not be asked: begun and ended in one.
        let is_offline = change.event.ends_with("_offline");
        let ends = is_offline || begins || change.to != Status::Running;
        if let Some(open) = attempts.last_mut().filter(|open| ends && open.ended_by.is_none()) {
            open.ended_at = Some(change.at);
            open.ended_by = Some(change.event.clone());
            open.why.clone_from(&change.why);
        }
        if begins || is_offline {
            attempts.push(Run {
                attempt: change.attempt,
                epoch: change.epoch,
                // The history may have lost some of its middle, so the present is what is certain.
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
