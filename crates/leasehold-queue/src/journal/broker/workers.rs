//! Workers that have reported themselves to a broker, and its own state. Both are in memory only, and answered like reads.
//!
//! A worker reports itself a few times within the lease of its claims, and its renewals count as well: they come from a thread
//! that no handler can block.

use leasehold_core::ids::TaskTypes;
use leasehold_core::{HexName, Result, StoreTime, WorkerId};
use leasehold_store::host::{Instant, resident_bytes};
use std::collections::BTreeMap;
use std::time::Duration;

use super::Broker;
use crate::journal::request::{AnswerTo, HeldAnswer, WorkerReport, WorkerStage};
use crate::journal::status::{BrokerHolder, BrokerStatus, JournalWorker, JournalWorkerState};

/// Time for which a worker that no longer reports itself is shown.
const SHOWN_FOR: Duration = Duration::from_hours(1);
/// Maximum number of workers that a broker remembers. More than may be connected to it.
const WORKERS_MAX: usize = 10_000;

/// Workers by id, and by source of tasks: two processes may use one id.
#[derive(Default)]
pub(super) struct WorkerTable {
    workers: BTreeMap<(WorkerId, HexName), ReportedWorker>,
}

struct ReportedWorker {
    report: WorkerReport,
    seen_at: Instant,
}

impl WorkerTable {
    /// Notes the report of a worker.
    pub(super) fn report(&mut self, report: WorkerReport, now: Instant) {
        let key = (report.worker.clone(), report.source.clone());
        if report.stage == WorkerStage::Ended {
            self.workers.remove(&key);
            return;
        }
        if !self.workers.contains_key(&key) {
            self.workers.retain(|_, worker| now.since(worker.seen_at) < SHOWN_FOR);
            if self.workers.len() >= WORKERS_MAX {
                let oldest = self.workers.iter().min_by_key(|(_, worker)| worker.seen_at.boot_ns);
                if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
                    self.workers.remove(&oldest);
                }
            }
        }
        self.workers.insert(key, ReportedWorker { report, seen_at: now });
    }

    /// Notes that a worker has renewed a claim.
    pub(super) fn renewed(&mut self, worker: &WorkerId, now: Instant) {
        let first = (worker.clone(), HexName::from_random(0));
        let same = self.workers.range_mut(first..).take_while(|((id, _), _)| id == worker);
        // With one id for two workers it is not known which of them it was.
        same.for_each(|(_, same)| same.seen_at = now);
    }

    fn list(&self, now: Instant, at: StoreTime, running: &BTreeMap<WorkerId, u64>) -> Vec<JournalWorker> {
        let reported = self.workers.values().map(|ReportedWorker { report, seen_at }| {
            let silence = now.since(*seen_at);
            JournalWorker {
                worker_id: report.worker.clone(),
                host: Some(report.host.clone()),
                pid: Some(report.pid),
                types: report.types.clone(),
                slots: Some(report.slots),
                running: running.get(&report.worker).copied().unwrap_or(0),
                last_seen_at: Some(at.minus(silence)),
                state: match report.stage {
                    _ if silence >= report.lease => JournalWorkerState::Dead,
                    WorkerStage::Stopping => JournalWorkerState::Stopping,
                    WorkerStage::Working | WorkerStage::Ended => JournalWorkerState::Alive,
                },
            }
        });
        let is_reported = |id: &WorkerId| self.workers.keys().any(|(reported, _)| reported == id);
        let unknown = running.iter().filter(|(id, _)| !is_reported(id)).map(|(id, running)| JournalWorker {
            worker_id: id.clone(),
            host: None,
            pid: None,
            types: TaskTypes::all(),
            slots: None,
            running: *running,
            last_seen_at: None,
            state: JournalWorkerState::Unknown,
        });
        let mut all: Vec<_> = reported.chain(unknown).collect();
        all.sort_by(|one, other| one.worker_id.cmp(&other.worker_id));
        all
    }
}

impl Broker {
    pub(super) fn workers(&mut self, answer: AnswerTo<Vec<JournalWorker>>) -> Result<()> {
        let running = self.state.workers().map(|(id, tasks)| (id.clone(), tasks.len() as u64)).collect();
        let listed = self.workers.list(self.instant(), self.now()?.earliest, &running);
        self.hold(HeldAnswer::new(answer, Ok(listed)), false)
    }

    pub(super) fn status(&mut self, answer: AnswerTo<BrokerStatus>) -> Result<()> {
        let status = BrokerHolder::of(self.lease.lease().lease()).map(|holder| BrokerStatus {
            holder,
            since: self.since,
            commits: self.meter.figures(self.instant()),
            snapshot_lag: self.maintenance.lag(),
            live_tasks: self.state.len() as u64,
            archived_tasks: self.state.archive().counts().values().sum(),
            clients: self.clients.get(),
            parked_claims: self.parked.waiting(),
            body_bytes: self.state.resident_bytes(),
            resident_bytes: resident_bytes(),
        });
        self.hold(HeldAnswer::new(answer, status), false)
    }
}
