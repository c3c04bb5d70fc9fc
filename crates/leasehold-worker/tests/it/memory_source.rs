//! A source of tasks in memory: no layout, only the rules of a task.

use futures::future::{BoxFuture, select};
use leasehold_core::{
    Event, HexName, LeaseId, NewTask, Now, Result, ShardLen, State, StepContext, StoreTime, Task, TaskId,
    step,
};
use leasehold_queue::Settlement;
use leasehold_queue::source::{
    ClaimStatus, ClaimedTask, DrainWait, SlotState, SourceStatus, TaskInSlot, TaskSource, TaskSourceFactory,
    WorkerInfo,
};
use leasehold_store::{Host, HostExt, SystemHost};
use leasehold_worker::{Worker, WorkerOptions};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;

use crate::suite::Fixture;

const LEASE: Duration = Duration::from_secs(30);

/// Tasks in memory. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct MemoryQueue {
    tasks: Arc<Mutex<BTreeMap<TaskId, Task>>>,
}

struct MemorySource {
    queue: MemoryQueue,
    worker: WorkerInfo,
    changes: watch::Receiver<SlotState>,
    status: Arc<MemoryStatus>,
}

#[derive(Debug, Default)]
struct MemoryStatus(Mutex<Option<DrainWait>>);

#[derive(Debug)]
struct MemoryClaim {
    queue: MemoryQueue,
    task: Task,
    lease_id: LeaseId,
}

fn now() -> Now {
    Now::exactly(StoreTime::from_millis(SystemHost.instant().wall_ns / 1_000_000))
}

fn name() -> HexName {
    HexName::from_random(SystemHost.random_bits())
}

impl MemoryQueue {
    /// Applies an event to a task; none if it was removed, or the event is rejected.
    fn change(&self, id: &TaskId, by: &str, event: &Event) -> Option<Task> {
        let context =
            StepContext { by: by.to_owned(), now: now(), write_id: name(), random: SystemHost.random() };
        let mut tasks = self.tasks.lock().unwrap();
        let task = tasks.get_mut(id)?;
        *task = step(task, event, &context).ok()?.task;
        Some(task.clone())
    }

    fn claim(&self, id: TaskId, by: &str) -> Option<MemoryClaim> {
        let (worker, lease_id) = (leasehold_core::Name::checked("worker id", by).unwrap(), name());
        let event = Event::Claim { worker, lease_id: lease_id.clone(), lease: LEASE };
        Some(MemoryClaim { task: self.change(&id, by, &event)?, queue: self.clone(), lease_id })
    }
}

impl TaskSourceFactory for MemoryQueue {
    fn open(&self, worker: WorkerInfo) -> BoxFuture<'static, Result<Box<dyn TaskSource>>> {
        let (queue, changes, status) = (self.clone(), worker.slots.changes(), Arc::default());
        Box::pin(async {
            Ok(Box::new(MemorySource { queue, worker, changes, status }) as Box<dyn TaskSource>)
        })
    }
}

impl TaskSource for MemorySource {
    fn next(&mut self) -> BoxFuture<'_, Result<Option<TaskInSlot>>> {
        Box::pin(async {
            while !self.worker.slots.is_closed() {
                let tasks: Vec<_> = self.queue.tasks.lock().unwrap().values().cloned().collect();
                let mut ours = tasks.iter().filter(|task| self.worker.types.contains(&task.task_type));
                let is_due = |task: &&Task| matches!(&task.state, State::Pending { available_at } if now().is_due(*available_at));
                let claim = ours.clone().filter(is_due).find_map(|task| {
                    let slot = self.worker.slots.take(task.id)?;
                    let task = Box::new(self.queue.claim(task.id, self.worker.id.as_str())?);
                    Some(TaskInSlot { task, slot })
                });
                if claim.is_some() {
                    return Ok(claim);
                }
                if self.worker.until_empty && self.worker.slots.is_idle() {
                    let left =
                        ours.find(|task| !task.status().is_final()).map(|task| DrainWait::Held(task.id));
                    *self.status.0.lock().unwrap() = left;
                    if left.is_none() {
                        break;
                    }
                }
                let pause = SystemHost.sleep(self.worker.polling.min);
                select(pause, Box::pin(self.changes.changed())).await;
            }
            Ok(None)
        })
    }

    fn status(&self) -> Arc<dyn SourceStatus> {
        self.status.clone()
    }

    fn close(self: Box<Self>) -> BoxFuture<'static, Result<()>> {
        Box::pin(async { Ok(()) })
    }
}

impl SourceStatus for MemoryStatus {
    fn drain_wait(&self) -> Option<DrainWait> {
        *self.0.lock().unwrap()
    }
}

impl ClaimedTask for MemoryClaim {
    fn task(&self) -> &Task {
        &self.task
    }

    fn time_left(&self) -> Option<Duration> {
        let State::Running(claim) = &self.task.state else { return None };
        now().is_before(claim.expires_at).then(|| claim.expires_at.since(now().latest))
    }

    fn renew_every(&self) -> Duration {
        Duration::from_millis(200)
    }

    fn renew(&mut self, progress: Option<Value>, _: bool) -> BoxFuture<'_, Result<ClaimStatus>> {
        let event = Event::Renew { lease_id: self.lease_id.clone(), lease: LEASE, progress };
        let status = match self.queue.change(&self.task.id, "worker", &event) {
            None => ClaimStatus::Lost,
            Some(task) => {
                self.task = task;
                let is_cancelled =
                    matches!(&self.task.state, State::Running(claim) if claim.cancel_requested);
                if is_cancelled { ClaimStatus::Cancelled } else { ClaimStatus::Held }
            }
        };
        Box::pin(async move { Ok(status) })
    }

    fn finish(&mut self, settlement: Settlement) -> BoxFuture<'_, Result<Option<Task>>> {
        let event = settlement.event(self.lease_id.clone(), now());
        let settled = self.queue.change(&self.task.id, "worker", &event);
        Box::pin(async move { Ok(settled) })
    }
}

impl Fixture for MemoryQueue {
    fn worker(&self, id: &str) -> Worker {
        Worker::from_source(Arc::new(self.clone()), Arc::new(SystemHost), id).unwrap()
    }

    fn options(&self) -> WorkerOptions {
        WorkerOptions::default()
    }

    fn submit(&self, task: NewTask) -> BoxFuture<'_, TaskId> {
        let id = TaskId::from_random(SystemHost.random_bits());
        let context = StepContext { by: "producer".into(), now: now(), write_id: name(), random: 0 };
        let task = task.submitted(id, ShardLen::DEFAULT.shard_of(&id), &context);
        self.tasks.lock().unwrap().insert(id, task);
        Box::pin(async move { id })
    }

    fn get(&self, id: TaskId) -> BoxFuture<'_, Task> {
        let task = self.tasks.lock().unwrap()[&id].clone();
        Box::pin(async move { task })
    }

    fn cancel(&self, id: TaskId) -> BoxFuture<'_, ()> {
        self.change(&id, "operator", &Event::Cancel).unwrap();
        Box::pin(async {})
    }

    fn hold(&self, id: TaskId) -> BoxFuture<'_, ()> {
        self.claim(id, "other").unwrap();
        Box::pin(async {})
    }

    fn revoke(&self, id: TaskId) -> BoxFuture<'_, ()> {
        self.tasks.lock().unwrap().remove(&id);
        Box::pin(async {})
    }
}
