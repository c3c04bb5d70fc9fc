//! Workers: those with a lease or an inbox in the store, and those that occur only in task records.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use leasehold_core::{HexName, Status, StoreTime, TaskId};
use leasehold_queue::LeaseState;
use serde::Serialize;
use serde_json::{Value, json};

use super::{age, now};
use crate::routes::{ApiError, App};
use crate::snapshot::{Board, Workers};
use crate::viewers::Topic;

/// Largest number of running tasks listed for one worker.
const RUNNING_MAX: usize = 100;
/// Time for which a worker without a name in the store is shown after its last activity.
const SEEN_FOR: Duration = Duration::from_hours(1);

/// Row of a worker, as the page expects it.
#[derive(Debug, Serialize)]
struct WorkerRow {
    worker_id: String,
    kind: &'static str,
    state: &'static str,
    instance: Option<HexName>,
    epoch: Option<u64>,
    until: Option<StoreTime>,
    in_inbox: Option<u64>,
    #[serde(flatten)]
    deeds: Deeds,
}

/// Recent activity of a worker, derived from task records.
#[derive(Debug, Clone, Default, Serialize)]
struct Deeds {
    running: Vec<TaskId>,
    done_last_hour: u64,
    failed_last_hour: u64,
    last_seen_at: Option<StoreTime>,
}

/// All known workers.
pub(crate) async fn workers(State(app): State<Arc<App>>) -> Result<Json<Value>, ApiError> {
    app.shared.looks.at(Topic::Queue);
    app.shared.looks.at(Topic::Workers);
    let now = now(&app)?;
    let board = app.shared.board();
    let mut deeds = deeds(&board, now);
    let seen = board.workers.as_ref();
    let mut rows = seen.map_or_else(Vec::new, |seen| named(&seen.what, &mut deeds));
    rows.extend(unnamed(deeds, now));
    Ok(Json(json!({"workers": rows, "age_secs": age(&app, seen.map(|seen| seen.at))})))
}

fn deeds(board: &Board, now: StoreTime) -> BTreeMap<String, Deeds> {
    let hour_ago = now.minus(Duration::from_hours(1));
    let mut all: BTreeMap<String, Deeds> = BTreeMap::new();
    for row in board.table.rows() {
        let Some(worker) = &row.worker else { continue };
        let deeds = match all.get_mut(&**worker) {
            Some(deeds) => deeds,
            None => all.entry(worker.to_string()).or_default(),
        };
        // The last write of a waiting task is usually not by its worker.
        let seen_at = if row.status == Status::Running { Some(row.updated_at) } else { row.finished_at };
        deeds.last_seen_at = deeds.last_seen_at.max(seen_at);
        let is_recent = row.finished_at.is_some_and(|at| at >= hour_ago);
        match row.status {
            Status::Running if deeds.running.len() < RUNNING_MAX => deeds.running.push(row.id),
            Status::Completed if is_recent => deeds.done_last_hour += 1,
            Status::Failed if is_recent => deeds.failed_last_hour += 1,
            _ => {}
        }
    }
    all
}

/// Workers with names in the store; the activity of each is included once.
fn named((names, inboxes): &Workers, deeds: &mut BTreeMap<String, Deeds>) -> Vec<WorkerRow> {
    let row = |(worker, name_for, seen): &(_, leasehold_queue::NameFor, leasehold_queue::SeenLease)| {
        let worker: &leasehold_core::WorkerId = worker;
        let (lease, holder) = (seen.lease.as_ref(), seen.holder());
        let is_inbox = *name_for == leasehold_queue::NameFor::Inbox;
        WorkerRow {
            worker_id: worker.to_string(),
            kind: name_for.name(),
            // A name that is free was released: otherwise it would not exist.
            state: if seen.state == LeaseState::Free { "released" } else { seen.state.name() },
            instance: lease.map(|lease| lease.instance.clone()),
            epoch: lease.map(|lease| lease.epoch),
            until: holder.and(lease).map(|lease| lease.expires_at),
            in_inbox: is_inbox.then(|| inboxes.get(worker).copied().unwrap_or(0)),
            deeds: deeds.remove(worker.as_str()).unwrap_or_default(),
        }
    };
    names.iter().map(row).collect()
}

/// Workers that occur only in task records: they work on all shards, and need no name for that.
fn unnamed(deeds: BTreeMap<String, Deeds>, now: StoreTime) -> impl Iterator<Item = WorkerRow> {
    let is_shown = move |deeds: &Deeds| {
        !deeds.running.is_empty() || deeds.last_seen_at.is_some_and(|at| now.since(at) < SEEN_FOR)
    };
    deeds.into_iter().filter(move |(_, deeds)| is_shown(deeds)).map(|(worker_id, deeds)| WorkerRow {
        worker_id,
        kind: "seen",
        state: "seen",
        instance: None,
        epoch: None,
        until: None,
        in_inbox: None,
        deeds,
    })
}
