//! Source of tasks that records what a broker answers to the worker, beside the real one.

use futures::future::BoxFuture;
use leasehold_core::settlement::Settlement;
use leasehold_core::{Result, State, Task};
use leasehold_queue::Queue;
use leasehold_queue::source::{
    ClaimStatus, ClaimedTask, SourceStatus, TaskInSlot, TaskSource, TaskSourceFactory, WorkerInfo,
};
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;

use super::checker::JournalChecker;
use super::claims::{ClaimName, RecordedAnswer};
use crate::alarm::Alarm;

/// Opens sources whose answers are recorded.
#[derive(Debug, Clone)]
pub(super) struct RecordedSource {
    pub(super) source: Arc<dyn TaskSourceFactory>,
    pub(super) record: Recorder,
}

/// Receiver of the answers of one process.
#[derive(Debug, Clone)]
pub(super) struct Recorder {
    pub(super) queue: Queue,
    pub(super) checker: JournalChecker,
    pub(super) alarm: Alarm,
}

struct RecordedTasks {
    source: Box<dyn TaskSource>,
    record: Recorder,
}

#[derive(Debug)]
struct RecordedClaim {
    claim: Box<dyn ClaimedTask>,
    name: ClaimName,
    record: Recorder,
}

impl TaskSourceFactory for RecordedSource {
    fn open(&self, worker: WorkerInfo) -> BoxFuture<'static, Result<Box<dyn TaskSource>>> {
        let (opening, record) = (self.source.open(worker), self.record.clone());
        Box::pin(async move {
            let source = opening.await?;
            Ok(Box::new(RecordedTasks { source, record }) as Box<dyn TaskSource>)
        })
    }
}

impl TaskSource for RecordedTasks {
    fn next(&mut self) -> BoxFuture<'_, Result<Option<TaskInSlot>>> {
        Box::pin(async { Ok(self.source.next().await?.map(|task| self.record.claimed(task))) })
    }

    fn status(&self) -> Arc<dyn SourceStatus> {
        self.source.status()
    }

    fn close(self: Box<Self>) -> BoxFuture<'static, Result<()>> {
        self.source.close()
    }
}

impl Recorder {
    fn claimed(&self, TaskInSlot { task: claim, slot }: TaskInSlot) -> TaskInSlot {
        let task = claim.task();
        let lease_id = task.lease_id.as_ref().map(ToString::to_string).unwrap_or_default();
        let name = (task.id.to_string(), lease_id);
        let until = match &task.state {
            State::Running(claim) => claim.expires_at.as_millis(),
            _ => 0,
        };
        let trusted = claim.time_left().map(|_| until);
        self.alarm.check(self.checker.check_claim(&name, RecordedAnswer::Held(trusted)));
        TaskInSlot { task: Box::new(RecordedClaim { claim, name, record: self.clone() }), slot }
    }
}

impl RecordedClaim {
    /// Expiry that the worker relies on, in milliseconds.
    fn trusted_until(&self) -> Option<i64> {
        let (left, now) = (self.claim.time_left()?, self.record.queue.now().ok()?);
        Some(now.latest.plus(left).as_millis())
    }

    fn check(&self, answer: RecordedAnswer) {
        self.record.alarm.check(self.record.checker.check_claim(&self.name, answer));
    }
}

impl ClaimedTask for RecordedClaim {
    fn task(&self) -> &Task {
        self.claim.task()
    }

    fn time_left(&self) -> Option<Duration> {
        self.claim.time_left()
    }

    fn renew_every(&self) -> Duration {
        self.claim.renew_every()
    }

    fn renew(&mut self, progress: Option<Value>, is_requested: bool) -> BoxFuture<'_, Result<ClaimStatus>> {
        Box::pin(async move {
            self.record.checker.note_renewal(&self.name, false);
            let renewed = self.claim.renew(progress, is_requested).await;
            // A request whose connection has ended may still be decided.
            let is_answered = !renewed.as_ref().is_err_and(leasehold_core::Error::outcome_is_unknown);
            self.record.checker.note_renewal(&self.name, is_answered);
            match &renewed {
                Ok(ClaimStatus::Lost) => self.check(RecordedAnswer::Lost),
                Ok(_) => self.check(RecordedAnswer::Held(self.trusted_until())),
                Err(error) => self.record.alarm.check(self.record.checker.check_error(error)),
            }
            renewed
        })
    }

    fn finish(&mut self, settlement: Settlement) -> BoxFuture<'_, Result<Option<Task>>> {
        Box::pin(async move {
            self.record.checker.settlement_requested(&self.name, &settlement);
            let settled = self.claim.finish(settlement).await;
            match &settled {
                Ok(Some(_)) => self.check(RecordedAnswer::Settled),
                Ok(None) => self.check(RecordedAnswer::Lost),
                Err(error) => self.record.alarm.check(self.record.checker.check_error(error)),
            }
            settled
        })
    }

    fn frees_slot_before_finish(&self) -> bool {
        self.claim.frees_slot_before_finish()
    }
}
