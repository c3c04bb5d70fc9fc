//! Workers: those with a lease or an inbox in the store, and those that occur only in task records.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use leasehold_core::{HexName, Status, StoreTime, TaskId};
use leasehold_queue::{JournalWorker, LeaseState};
use serde::Serialize;
use serde_json::{Value, json};

use super::{age, now};
use crate::routes::{ApiError, App};
use crate::snapshot::{QueueSnapshot, Workers};
use crate::viewers::Topic;

/// Largest number of running tasks listed for one worker.
const RUNNING_MAX: usize = 100;
/// Time for which a worker without a lease in the store is shown after its last activity.
const SHOWN_FOR: Duration = Duration::from_hours(1);

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
    activity: WorkerActivity,
}

/// Recent activity of a worker, derived from task records.
#[derive(Debug, Clone, Default, Serialize)]
struct WorkerActivity {
    running: Vec<TaskId>,
    done_last_hour: u64,
    failed_last_hour: u64,
    last_seen_at: Option<StoreTime>,
}

/// All known workers.
pub(crate) async fn workers(State(app): State<Arc<App>>) -> Result<Json<Value>, ApiError> {
    app.shared.viewers.record(Topic::Queue);
    app.shared.viewers.record(Topic::Workers);
    let now = now(&app)?;
    let snapshot = app.shared.snapshot();
    if app.shared.journal().is_some() {
        return Ok(Json(reported_workers(&app, &snapshot, now)));
    }
    let mut activity = activity_by_worker(&snapshot, now);
    let seen = snapshot.workers.as_ref();
    let mut rows = seen.map_or_else(Vec::new, |seen| leased_workers(&seen.value, &mut activity));
    rows.extend(unleased_workers(activity, now));
    Ok(Json(json!({"workers": rows, "age_secs": age(&app, seen.map(|seen| seen.at))})))
}

fn activity_by_worker(snapshot: &QueueSnapshot, now: StoreTime) -> BTreeMap<String, WorkerActivity> {
    let hour_ago = now.minus(Duration::from_hours(1));
    let mut all: BTreeMap<String, WorkerActivity> = BTreeMap::new();
    for row in snapshot.table.rows() {
        let Some(worker) = &row.worker else { continue };
        let activity = match all.get_mut(&**worker) {
            Some(activity) => activity,
            None => all.entry(worker.to_string()).or_default(),
        };
        // The last write of a pending task is usually not by its worker.
        let seen_at = if row.status == Status::Running { Some(row.updated_at) } else { row.finished_at };
        activity.last_seen_at = activity.last_seen_at.max(seen_at);
        let is_recent = row.finished_at.is_some_and(|at| at >= hour_ago);
        match row.status {
            Status::Running if activity.running.len() < RUNNING_MAX => activity.running.push(row.id),
            Status::Completed if is_recent => activity.done_last_hour += 1,
            Status::Failed if is_recent => activity.failed_last_hour += 1,
            _ => {}
        }
    }
    all
}

/// Workers with leases in the store; the activity of each is included once.
fn leased_workers(
    (leases, inboxes): &Workers,
    activity: &mut BTreeMap<String, WorkerActivity>,
) -> Vec<WorkerRow> {
    let row =
        |(worker, lease_kind, seen): &(_, leasehold_queue::WorkerLeaseKind, leasehold_queue::LeaseInfo)| {
            let worker: &leasehold_core::WorkerId = worker;
            let (lease, holder) = (seen.lease.as_ref(), seen.holder());
            let is_inbox = *lease_kind == leasehold_queue::WorkerLeaseKind::Inbox;
            WorkerRow {
                worker_id: worker.to_string(),
                kind: lease_kind.name(),
                // A lease that is free was released: otherwise it would not exist.
                state: if seen.state == LeaseState::Free { "released" } else { seen.state.name() },
                instance: lease.map(|lease| lease.instance.clone()),
                epoch: lease.map(|lease| lease.epoch),
                until: holder.and(lease).map(|lease| lease.expires_at),
                in_inbox: is_inbox.then(|| inboxes.get(worker).copied().unwrap_or(0)),
                activity: activity.remove(worker.as_str()).unwrap_or_default(),
            }
        };
    leases.iter().map(row).collect()
}

/// Workers that have reported themselves to the broker of a journal or hold tasks, and those that occur only in task records.
fn reported_workers(app: &App, snapshot: &QueueSnapshot, now: StoreTime) -> Value {
    let mut activity = activity_by_worker(snapshot, now);
    let seen = snapshot.journal.workers.as_ref();
    let reported = seen.map_or(&[][..], |seen| &seen.value);
    let row = |worker: &JournalWorker| {
        // Two processes may have one id: their tasks cannot be told apart.
        let activity = activity.get(worker.worker_id.as_str()).cloned().unwrap_or_default();
        json!({
            "worker_id": worker.worker_id,
            "kind": "reported",
            "state": worker.state.name(),
            "host": worker.host,
            "pid": worker.pid,
            "types": worker.types.names(),
            "slots": worker.slots,
            "held": worker.running,
            "running": activity.running,
            "done_last_hour": activity.done_last_hour,
            "failed_last_hour": activity.failed_last_hour,
            "last_seen_at": worker.last_seen_at.or(activity.last_seen_at),
        })
    };
    let mut rows: Vec<_> = reported.iter().map(row).collect();
    for worker in reported {
        activity.remove(worker.worker_id.as_str());
    }
    rows.extend(unleased_workers(activity, now).map(|row| json!(row)));
    json!({"workers": rows, "age_secs": age(app, seen.map(|seen| seen.at))})
}

/// Workers that occur only in task records: they work on all shards, and need no lease for that.
fn unleased_workers(
    activity: BTreeMap<String, WorkerActivity>,
    now: StoreTime,
) -> impl Iterator<Item = WorkerRow> {
    let is_shown = move |activity: &WorkerActivity| {
        !activity.running.is_empty() || activity.last_seen_at.is_some_and(|at| now.since(at) < SHOWN_FOR)
    };
    activity.into_iter().filter(move |(_, activity)| is_shown(activity)).map(|(worker_id, activity)| {
        WorkerRow {
            worker_id,
            kind: "seen",
            state: "seen",
            instance: None,
            epoch: None,
            until: None,
            in_inbox: None,
            activity,
        }
    })
}
