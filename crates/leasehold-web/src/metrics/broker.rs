//! Metrics of the broker of a journal, from its last state. Without a broker only that is reported.

use leasehold_queue::{BrokerStatus, JournalWorkerState};

use super::MetricsText;
use crate::journal_view::JournalView;

const WORKER_STATES: [JournalWorkerState; 4] = [
    JournalWorkerState::Alive,
    JournalWorkerState::Stopping,
    JournalWorkerState::Dead,
    JournalWorkerState::Unknown,
];

pub(super) fn broker(view: &JournalView, text: &mut MetricsText) {
    let Some(reached) = view.reached() else {
        if view.absence.is_some() {
            reachable(0, text);
        }
        return;
    };
    reachable(1, text);
    commits(&reached.value, text);
    for (name, help, value) in gauges(&reached.value) {
        text.family(name, "gauge", help);
        text.sample(&[], value);
    }
    if let Some(seen) = &view.workers {
        text.family("leasehold_workers", "gauge", "Workers that report themselves to the broker, by state.");
        for state in WORKER_STATES {
            let count = seen.value.iter().filter(|worker| worker.state == state).count();
            text.sample(&[("state", state.name())], count);
        }
    }
}

fn reachable(value: u8, text: &mut MetricsText) {
    let help = "1 if a broker of the queue can be reached, otherwise 0.";
    text.family("leasehold_broker_reachable", "gauge", help);
    text.sample(&[], value);
}

fn commits(status: &BrokerStatus, text: &mut MetricsText) {
    let commits = &status.commits;
    for (name, help, value) in [
        ("leasehold_broker_commits_total", "Commits of the broker since it began.", commits.commits),
        ("leasehold_broker_records_total", "Records in the commits of the broker.", commits.records),
        ("leasehold_broker_record_bytes_total", "Bytes of the records of the broker.", commits.bytes),
    ] {
        text.family(name, "counter", help);
        text.sample(&[], value);
    }
    let help = "Duration of a commit in the last minute, by quantile.";
    text.family("leasehold_broker_commit_seconds", "gauge", help);
    for (quantile, micros) in [("0.5", commits.p50_us), ("0.99", commits.p99_us)] {
        if let Some(micros) = micros {
            text.sample(&[("quantile", quantile)], seconds(micros));
        }
    }
}

fn seconds(micros: u64) -> f64 {
    std::time::Duration::from_micros(micros).as_secs_f64()
}

fn gauges(status: &BrokerStatus) -> Vec<(&'static str, &'static str, u64)> {
    let mut gauges = vec![
        ("leasehold_broker_epoch", "Number of the lease of the broker.", status.holder.epoch),
        ("leasehold_broker_clients", "Connections of other processes to the broker.", status.clients),
        ("leasehold_broker_waiting_claims", "Claims that wait for a task.", status.parked_claims),
        ("leasehold_broker_live_tasks", "Tasks in the memory of the broker.", status.live_tasks),
        ("leasehold_broker_archived_tasks", "Tasks in the archive.", status.archived_tasks),
        ("leasehold_broker_snapshot_lag_commits", "Commits since the newest snapshot.", status.snapshot_lag),
    ];
    if let Some(bytes) = status.resident_bytes {
        gauges.push(("leasehold_broker_resident_bytes", "Memory of the process of the broker.", bytes));
    }
    gauges
}
