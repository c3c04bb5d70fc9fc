//! The broker of a queue in the layout `journal`. The secret of its lease is not part of its state.

use leasehold_queue::{BrokerHolder, BrokerStatus};
use serde_json::{Value, json};

use super::age;
use crate::journal_view::JournalView;
use crate::routes::App;

/// State of the broker, or who was the last one; null until it was looked for.
pub(crate) fn broker(app: &App, view: &JournalView) -> Value {
    if let Some(absence) = &view.absence {
        let last = absence.last.as_ref().map(|last| last_holder(app, last));
        return json!({"is_reached": false, "absent_secs": age(app, Some(absence.since)), "last": last});
    }
    view.reached().map_or(Value::Null, |reached| status(&reached.value))
}

fn status(status: &BrokerStatus) -> Value {
    let BrokerStatus { holder, commits, .. } = status;
    json!({
        "is_reached": true,
        "host": holder.host,
        "pid": holder.pid,
        "epoch": holder.epoch,
        "since": status.since,
        "commits": commits.commits,
        "commits_per_second": commits.per_second(),
        "records_per_commit": commits.records_per_commit(),
        "p50_us": commits.p50_us,
        "p99_us": commits.p99_us,
        "snapshot_lag": status.snapshot_lag,
        "live_tasks": status.live_tasks,
        "archived_tasks": status.archived_tasks,
        "clients": status.clients,
        "waiting_claims": status.parked_claims,
        "body_bytes": status.body_bytes,
        "resident_bytes": status.resident_bytes,
    })
}

fn last_holder(app: &App, last: &BrokerHolder) -> Value {
    let state = app.shared.queue().now().ok().map(|now| last.lease_state(now).name());
    json!({
        "host": last.host,
        "pid": last.pid,
        "epoch": last.epoch,
        "state": if last.is_released { Some("released") } else { state },
        "renewed_at": last.renewed_at,
        "expires_at": last.lease_expires_at,
    })
}
