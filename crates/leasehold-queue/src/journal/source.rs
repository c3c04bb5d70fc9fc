//! Source of a worker's tasks over a journal: claims wait in the broker until there are tasks for them.
//!
//! ```text
//!   free slots ──▶ claim ──▶ broker: due tasks at once, otherwise when one is submitted ──▶ to the engine of the worker
//! ```
//!
//! Every free slot has at most one claim that waits. A slot that becomes free is claimed for at once, beside the claims that
//! wait. A worker that drains the queue does not wait: it asks again while there is something to wait for.

mod claim;

use futures::future::{BoxFuture, Either, select};
use futures::stream::FuturesUnordered;
use leasehold_core::journal::{ClaimRequest, SettleRequest};
use leasehold_core::scan::{DrainWait, Polling};
use leasehold_core::settlement::Settlement;
use leasehold_core::{Error, HexName, Kind, Result, Task};
use leasehold_store::host::{HostProcess, lock};
use leasehold_store::{Host, HostExt};
use std::collections::VecDeque;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;

use self::claim::JournalClaim;
use super::JournalQueue;
use super::handle::BrokerSlot;
use super::request::{BrokerRequest, ClaimAnswer, ClaimPoll, WorkerReport, WorkerStage};
use crate::connect::BrokerRole;
use crate::source::{
    SlotState, SourceStatus, TaskInSlot, TaskSource, TaskSourceFactory, WorkerInfo, next_or,
};

/// Longest pause of a worker that drains the queue, or whose broker cannot be reached.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Interval of the reports of a worker to the broker: a third of the lease of its claims, after which it counts as dead, within
/// these limits.
const REPORT_INTERVAL_MIN: Duration = Duration::from_secs(1);
const REPORT_INTERVAL_MAX: Duration = Duration::from_secs(10);

/// Pause before the claims of a source that have not ended are stopped again.
const STOP_AGAIN: Duration = Duration::from_millis(100);

impl TaskSourceFactory for JournalQueue {
    fn open(&self, worker: WorkerInfo) -> BoxFuture<'static, Result<Box<dyn TaskSource>>> {
        let (broker, host) = (self.broker.clone(), self.client.host().clone());
        Box::pin(async move {
            if broker.role() == BrokerRole::Only {
                return Err(Error::invalid(
                    "`broker.role` of this process is `only`, so it runs no handlers; set it to `auto` or `never`",
                ));
            }
            broker.serving().await?;
            let polling = worker.polling.at_most(PAUSE_MAX);
            let mut source = JournalSource {
                broker,
                id: HexName::from_random(host.random_bits()),
                host,
                slot_changes: worker.slots.changes(),
                claims: FuturesUnordered::new(),
                claimed: VecDeque::new(),
                requested: 0,
                pause: None,
                next_pause: polling.min,
                polling,
                status: Arc::default(),
                report_due: Box::pin(std::future::ready(())),
                worker,
            };
            source.report(WorkerStage::Working).await;
            Ok(Box::new(source) as Box<dyn TaskSource>)
        })
    }
}

/// Source of the tasks of one worker.
struct JournalSource {
    broker: Arc<BrokerSlot>,
    host: Arc<dyn Host>,
    worker: WorkerInfo,
    /// Id of this source, by which the broker stops its claims.
    id: HexName,
    /// Claims that were sent, with the number of slots of each.
    claims: FuturesUnordered<BoxFuture<'static, (usize, Result<ClaimAnswer>)>>,
    /// Claimed tasks that the engine has not received yet.
    claimed: VecDeque<TaskInSlot>,
    /// Slots for which claims were sent.
    requested: usize,
    slot_changes: watch::Receiver<SlotState>,
    /// Pause before the next claim.
    pause: Option<BoxFuture<'static, ()>>,
    next_pause: Duration,
    polling: Polling,
    status: Arc<JournalStatus>,
    /// Wait for the next report of this worker to the broker.
    report_due: BoxFuture<'static, ()>,
}

/// View of a source.
#[derive(Debug, Default)]
struct JournalStatus {
    drain_wait: Mutex<Option<DrainWait>>,
}

impl SourceStatus for JournalStatus {
    fn drain_wait(&self) -> Option<DrainWait> {
        *lock(&self.drain_wait)
    }
}

/// Outcome of an answer to a claim.
#[derive(PartialEq, Eq)]
enum Answered {
    /// There may be more tasks.
    Continue,
    /// The worker drains the queue, and nothing is left.
    NothingLeft,
}

/// Something that a source waits for.
enum SourceEvent {
    Claimed(usize, Result<ClaimAnswer>),
    Slots,
    Rested,
    ReportDue,
}

impl TaskSource for JournalSource {
    fn next(&mut self) -> BoxFuture<'_, Result<Option<TaskInSlot>>> {
        Box::pin(async {
            while !self.worker.slots.is_closed() {
                if let Some(claimed) = self.claimed.pop_front() {
                    return Ok(Some(claimed));
                }
                self.send_claims();
                match self.event().await {
                    SourceEvent::Claimed(slots, answer) => {
                        self.requested -= slots;
                        if self.answered(answer).await? == Answered::NothingLeft {
                            return Ok(None);
                        }
                    }
                    SourceEvent::Slots => {}
                    SourceEvent::Rested => self.pause = None,
                    SourceEvent::ReportDue => self.report(WorkerStage::Working).await,
                }
            }
            self.report(WorkerStage::Stopping).await;
            self.stop_claims().await;
            Ok(None)
        })
    }

    fn status(&self) -> Arc<dyn SourceStatus> {
        self.status.clone()
    }

    fn close(mut self: Box<Self>) -> BoxFuture<'static, Result<()>> {
        Box::pin(async move {
            self.stop_claims().await;
            self.report(WorkerStage::Ended).await;
            Ok(())
        })
    }
}

impl JournalSource {
    /// Claims tasks for the free slots that have no claim yet.
    fn send_claims(&mut self) {
        let slots = self.worker.slots.free().saturating_sub(self.requested);
        if slots == 0 || self.pause.is_some() {
            return;
        }
        let lease_ids = (0..slots).map(|_| HexName::from_random(self.host.random_bits())).collect();
        let request = ClaimRequest {
            worker: self.worker.id.clone(),
            types: self.worker.types.clone(),
            lease: self.worker.lease,
            lease_ids,
        };
        let (broker, source, waits) = (self.broker.clone(), self.id.clone(), !self.worker.until_empty);
        self.requested += slots;
        self.claims.push(Box::pin(async move {
            let claim = |answer| BrokerRequest::Claim(ClaimPoll { request, source, waits, answer });
            (slots, broker.ask(claim).await)
        }));
    }

    /// # Cancel safety
    ///
    /// Nothing is lost when the future is dropped.
    async fn event(&mut self) -> SourceEvent {
        let changed = pin!(self.slot_changes.changed());
        let rested = async {
            match &mut self.pause {
                Some(pause) => pause.await,
                None => std::future::pending().await,
            }
        };
        let rested = pin!(rested);
        let waiting = select(select(changed, rested), &mut self.report_due);
        match next_or(&mut self.claims, waiting).await {
            Either::Left((slots, answer)) => SourceEvent::Claimed(slots, answer),
            Either::Right(Either::Left((Either::Left(_), _))) => SourceEvent::Slots,
            Either::Right(Either::Left((Either::Right(_), _))) => SourceEvent::Rested,
            Either::Right(Either::Right(_)) => SourceEvent::ReportDue,
        }
    }

    /// Tells the broker about this worker. A broker knows its workers from that only, so a new one learns of them again.
    async fn report(&mut self, stage: WorkerStage) {
        let every = (self.worker.lease / 3).clamp(REPORT_INTERVAL_MIN, REPORT_INTERVAL_MAX);
        self.report_due = self.host.sleep(every);
        let HostProcess { host, pid } = self.host.process();
        let WorkerInfo { id, types, slots, lease, .. } = &self.worker;
        let report = WorkerReport {
            worker: id.clone(),
            source: self.id.clone(),
            host,
            pid,
            types: types.clone(),
            slots: slots.total() as u64,
            lease: *lease,
            stage,
        };
        self.broker.report(report).await;
    }

    /// Handles the answer to a claim.
    async fn answered(&mut self, answer: Result<ClaimAnswer>) -> Result<Answered> {
        let ClaimAnswer { tasks, upcoming } = match answer {
            Ok(answer) => answer,
            Err(error) if error.kind() == Kind::Unavailable => {
                // The end of a broker is logged once, by the connection to it.
                if error.outcome_is_unknown() {
                    tracing::debug!(worker = %self.worker.id, %error, "broker has ended during a claim, repeating it");
                } else {
                    tracing::warn!(worker = %self.worker.id, %error, "failed to claim tasks, retrying");
                }
                self.rest(None);
                return Ok(Answered::Continue);
            }
            Err(error) => return Err(error),
        };
        if !tasks.is_empty() {
            self.next_pause = self.polling.min;
            self.take_slots(tasks).await;
            return Ok(Answered::Continue);
        }
        if self.worker.until_empty {
            let is_idle = self.worker.slots.is_idle() && self.claims.is_empty();
            *lock(&self.status.drain_wait) = upcoming.filter(|_| is_idle);
            if is_idle && upcoming.is_none() {
                return Ok(Answered::NothingLeft);
            }
            self.rest(upcoming);
        }
        Ok(Answered::Continue)
    }

    /// Pauses before the next claim, up to the time at which a task becomes due.
    fn rest(&mut self, upcoming: Option<DrainWait>) {
        let now = self.broker.now().ok();
        let until_due = match (upcoming, now) {
            (Some(DrainWait::Due(at)), Some(now)) => at.since(now.earliest),
            _ => Duration::MAX,
        };
        let pause = self.next_pause.min(until_due.max(self.polling.min));
        self.next_pause = self.polling.slower(self.next_pause);
        self.pause = Some(self.host.sleep(pause));
    }

    /// Takes a slot for each task. A task that has a slot already is released: its earlier run has lost the claim and has
    /// not ended yet.
    async fn take_slots(&mut self, tasks: Vec<Task>) {
        for task in tasks {
            let slot = self.worker.slots.take(task.id).filter(|_| !self.worker.slots.is_closed());
            let Some(slot) = slot else {
                self.release(task).await;
                self.rest(None);
                continue;
            };
            let claim = JournalClaim::new(self.broker.clone(), task, &self.worker);
            self.claimed.push_back(TaskInSlot { task: Box::new(claim), slot });
        }
    }

    async fn release(&mut self, task: Task) {
        let Some(lease_id) = task.lease_id else { return };
        let release = SettleRequest { task: task.id, lease_id, settlement: Settlement::Release };
        if let Err(error) = self.broker.settle(release).await {
            tracing::warn!(task = %task.id, %error, "failed to release task");
        }
    }

    /// Ends the claims that wait, and releases the tasks of those that were answered.
    async fn stop_claims(&mut self) {
        while let Some(claimed) = self.claimed.pop_front() {
            self.release(claimed.task.task().clone()).await;
        }
        while !self.claims.is_empty() {
            self.broker.stop_claims(self.id.clone()).await;
            // A claim that waited for the broker to open arrives after that, and is stopped the next time.
            let mut pause = self.host.sleep(STOP_AGAIN);
            while let Either::Left((_, answer)) = next_or(&mut self.claims, &mut pause).await {
                for task in answer.map(|answer| answer.tasks).unwrap_or_default() {
                    self.release(task).await;
                }
                if self.claims.is_empty() {
                    return;
                }
            }
        }
    }
}
