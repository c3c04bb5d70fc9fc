//! Every operation of the queue, prepared so that it can be run once, under any fault.

use leasehold_core::new_task::Start;
use leasehold_core::{Error, Index, NewTask, Result, Status, Task, TaskId};
use leasehold_queue::purge::{Purged, Retention};
use leasehold_queue::{Claimed, ObjectQueue, QueueLayout, Settlement, Transition, UniqueKey};
use serde_json::json;
use std::time::Duration;

use super::{LEASE, World, any_type, audit, hours, mins, order, secs, worker};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    Submit,
    SubmitOnce,
    SubmitAgain,
    Claim,
    Renew,
    Complete,
    CompleteAfterRenewal,
    FailAndRetry,
    FailForGood,
    Release,
    Snooze,
    Stop,
    CancelPending,
    CancelRunning,
    Retry,
    RescheduleEarlier,
    RescheduleLater,
    TimeOut,
    Expire,
    SweepOutdated,
    SweepRenewed,
    Bury,
    Fence,
    Purge,
    PurgeMarked,
    RemoveKey,
}

use Operation as Op;

pub(crate) const ALL: [Operation; 26] = [
    Op::Submit,
    Op::SubmitOnce,
    Op::SubmitAgain,
    Op::Claim,
    Op::Renew,
    Op::Complete,
    Op::CompleteAfterRenewal,
    Op::FailAndRetry,
    Op::FailForGood,
    Op::Release,
    Op::Snooze,
    Op::Stop,
    Op::CancelPending,
    Op::CancelRunning,
    Op::Retry,
    Op::RescheduleEarlier,
    Op::RescheduleLater,
    Op::TimeOut,
    Op::Expire,
    Op::SweepOutdated,
    Op::SweepRenewed,
    Op::Bury,
    Op::Fence,
    Op::Purge,
    Op::PurgeMarked,
    Op::RemoveKey,
];

/// The inputs of an operation.
#[derive(Debug, Clone)]
pub(crate) struct Ready {
    pub(crate) op: Operation,
    /// The task of the operation, unless it creates one.
    pub(crate) id: Option<TaskId>,
    claimed: Option<Claimed>,
}

pub(crate) fn retention() -> Retention {
    Retention { statuses: Vec::new(), older_than: hours(1) }
}

fn key() -> UniqueKey {
    UniqueKey { lifetime: hours(1), ..UniqueKey::new("once") }
}

fn planned(after: Duration) -> NewTask {
    NewTask { start: Start::After(after), ..order() }
}

/// A submit that stopped after its entry.
async fn abandoned(world: &World) -> TaskId {
    let (queue, stage) = world.staged().await;
    stage.play_at(1, super::stage::Fate::Die);
    queue.submit_task(order()).await.unwrap_err();
    let key = audit::keys(&world.store, "ready/").await.pop().unwrap();
    leasehold_core::Entry::parse(&key).unwrap().id
}

/// A final task, and the entry of an unfinished retry.
async fn half_retried(world: &World) -> TaskId {
    let id = world.submit().await;
    world.queue.cancel(&id).await.unwrap();
    let (queue, stage) = world.staged().await;
    stage.play_at(2, super::stage::Fate::Die);
    queue.retry(&id).await.unwrap_err();
    assert_eq!(world.entries_of(&id, Index::Ready).await.len(), 1);
    id
}

/// A task that was claimed by a worker that crashed right after.
async fn half_claimed(world: &World) -> TaskId {
    let id = world.submit().await;
    let (queue, stage) = world.staged().await;
    stage.play_at(2, super::stage::Fate::Die);
    drop(world.try_claim_as(&queue, &id, "w0").await);
    assert_eq!(world.get(&id).await.status(), Status::Running);
    id
}

impl Ready {
    pub(crate) async fn prepare(world: &World, op: Operation) -> Self {
        let expiring = NewTask { expires_in: Some(mins(2)), ..planned(mins(1)) };
        let id = match op {
            Op::Submit | Op::SubmitOnce => None,
            Op::SubmitAgain | Op::RemoveKey => {
                Some(world.queue.submit_task(order()).key(key()).await.unwrap().id)
            }
            Op::RescheduleEarlier => Some(world.submit_this(planned(mins(20))).await),
            Op::Expire => Some(world.submit_this(expiring).await),
            Op::Bury => Some(abandoned(world).await),
            Op::Fence => Some(half_retried(world).await),
            Op::SweepOutdated => Some(half_claimed(world).await),
            _ => Some(world.submit().await),
        };
        let mut ready = Self { op, id, claimed: None };
        ready.lead_up(world).await;
        ready
    }

    async fn lead_up(&mut self, world: &World) {
        let Some(id) = self.id else { return };
        match self.op {
            Op::Renew
            | Op::Complete
            | Op::FailAndRetry
            | Op::FailForGood
            | Op::Release
            | Op::Snooze
            | Op::Stop
            | Op::CancelRunning
            | Op::TimeOut => self.claimed = Some(world.claim(&id).await),
            Op::CompleteAfterRenewal | Op::SweepRenewed => {
                let claimed = world.claim(&id).await;
                world.advance(secs(40));
                let Some(claimed) = world.queue.renew(&claimed, mins(5), None).await.unwrap() else {
                    panic!("there is no other worker")
                };
                self.claimed = Some(claimed);
            }
            Op::Retry | Op::Purge | Op::PurgeMarked => {
                world.queue.cancel(&id).await.unwrap();
            }
            _ => {}
        }
        match self.op {
            Op::TimeOut | Op::SweepRenewed => world.advance(secs(150)),
            Op::Expire => world.advance(mins(3)),
            // The claim has almost expired, and its worker had enough time to remove the entry.
            Op::SweepOutdated => world.advance(secs(59)),
            Op::Bury | Op::Fence => world.advance(mins(31)),
            Op::Purge => world.advance(hours(25)),
            Op::PurgeMarked => {
                world.advance(hours(25));
                let task = world.get(&id).await;
                assert_eq!(world.queue.purge(&task, &retention()).await.unwrap(), Purged::Marked);
                world.advance(hours(25));
            }
            Op::RemoveKey => world.advance(hours(2)),
            _ => {}
        }
    }

    /// Runs it. Returns the id of a task that was acknowledged, if any.
    pub(crate) async fn run(&self, world: &World, queue: &ObjectQueue) -> Result<Option<TaskId>> {
        let (id, claimed) = (self.id, self.claimed.as_ref());
        let settle = |settlement| {
            let claimed = claimed.expect("it was claimed");
            async move { queue.settle(claimed, settlement).await.map(|task| task.map(|task| task.id)) }
        };
        match (self.op, id) {
            (Op::Submit, _) => queue.submit_task(order()).await.map(|submitted| Some(submitted.id)),
            (Op::SubmitOnce | Op::SubmitAgain, _) => {
                queue.submit_task(order()).key(key()).await.map(|submitted| Some(submitted.id))
            }
            (Op::Renew, _) => {
                queue.renew(claimed.expect("it was claimed"), LEASE, Some(json!(7))).await.map(|_| None)
            }
            (Op::Complete | Op::CompleteAfterRenewal, _) => settle(Settlement::complete(json!("done"))).await,
            (Op::FailAndRetry, _) => {
                settle(Settlement::Fail { error: "oh".into(), retryable: true, after: None }).await
            }
            (Op::FailForGood, _) => {
                settle(Settlement::Fail { error: "oh".into(), retryable: false, after: None }).await
            }
            (Op::Release, _) => settle(Settlement::Release).await,
            (Op::Snooze, _) => settle(Settlement::Snooze(mins(5))).await,
            (Op::Stop, _) => settle(Settlement::Stop).await,
            (_, Some(id)) => self.run_on(world, queue, id).await,
            (_, None) => Err(Error::invalid("there is no task")),
        }
    }

    async fn run_on(&self, world: &World, queue: &ObjectQueue, id: TaskId) -> Result<Option<TaskId>> {
        let now = world.now();
        let done = |operated: Transition<Task>| operated.is_done().then_some(id);
        match self.op {
            Op::CancelPending | Op::CancelRunning => queue.cancel(&id).await.map(done),
            Op::Retry => queue.retry(&id).await.map(done),
            Op::RescheduleEarlier => queue.reschedule(&id, now).await.map(done),
            Op::RescheduleLater => queue.reschedule(&id, now.plus(mins(10))).await.map(done),
            Op::Claim => {
                let due = world.due(Index::Ready).await;
                let Some(found) = due.iter().find(|found| found.entry.id == id) else { return Ok(None) };
                let outcome = queue.claim(found, &worker("w1"), LEASE, &any_type(), false).await?;
                Ok(outcome.is_ok().then_some(id))
            }
            Op::TimeOut | Op::Expire | Op::SweepOutdated | Op::SweepRenewed | Op::Bury | Op::Fence => {
                let due = [world.due(Index::Ready).await, world.due(Index::Lease).await].concat();
                let Some(found) = due.iter().find(|found| found.entry.id == id) else { return Ok(None) };
                queue.sweep(found).await.map(|_| Some(id))
            }
            Op::Purge | Op::PurgeMarked => {
                let Ok(task) = world.queue.get(&id).await else { return Ok(None) };
                queue.purge(&task, &retention()).await.map(|_| None)
            }
            Op::RemoveKey => {
                let Some(path) = audit::keys(&world.store, "unique/").await.pop() else { return Ok(None) };
                queue.remove_expired_key(&path).await.map(|_| None)
            }
            op => Err(Error::invalid(format!("{op:?} does not begin with a task"))),
        }
    }
}
