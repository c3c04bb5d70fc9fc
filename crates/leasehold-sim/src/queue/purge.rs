//! Scenario `purge`: retention under all faults, while an operator retries the tasks.
//!
//! A few tasks were cancelled a day ago. One process purges them; an operator retries and cancels them again.
//! A task may be deleted only after it was marked as purged for a day: after an acknowledged retry it must
//! exist.

use leasehold_queue::purge::{PURGE_GRACE, Retention};
use leasehold_queue::{ObjectQueue, QueueConfig, QueueLayout, Transition};
use leasehold_store::{Client, Host, HostExt};
use serde_json::Value;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::raw::{Raw, task_id};
use crate::bucket::{BucketChange, SimBucket};
use crate::executor::Executor;
use crate::failed::Failed;
use crate::faults::Faults;
use crate::host::SimHost;
use crate::world::World;

const TASKS: usize = 8;
const FAULTS_FOR: Duration = Duration::from_mins(4);
/// Time until the last delayed request has arrived.
const LATE_WITHIN: Duration = Duration::from_mins(22);
const DAY: Duration = Duration::from_hours(25);
/// Maximum pause between two operations.
const REST_MAX: Duration = Duration::from_secs(10);
const SECOND: Duration = Duration::from_secs(1);

type Ids = Arc<Mutex<Vec<leasehold_core::TaskId>>>;

/// Plays the scenario. The summary counts deleted tasks.
pub(crate) fn play(world: &mut World) -> Result<String, Failed> {
    let (bucket, executor) = (world.bucket_handle(), world.executor().clone());
    world.check(move |change, _| check_change(change, &bucket));
    let (faults, ids) = (world.set_faults(Faults::none()), Ids::default());
    let (host, client) = world.process("producer");
    world.spawn(host.process(), prepare(host.clone(), client, ids.clone()));
    world.run_until(|| lock(&ids).len() == TASKS, DAY)?;
    world.run_for(DAY)?;
    world.set_faults(faults);
    let until = world.now() + FAULTS_FOR;
    world.stop_faults_at(until);
    let (own, until_then) = (ids.clone(), until + LATE_WITHIN);
    let time = executor.clone();
    world.actor("operator", move |host, client| {
        Box::pin(operate(host, client, own.clone(), time.clone(), until))
    });
    world.actor("purger", move |host, client| Box::pin(purge(host, client, executor.clone(), until_then)));
    world.run_for(FAULTS_FOR + LATE_WITHIN + DAY)?;
    let (host, client) = world.process("last");
    world.spawn(host.process(), purge_once(host.clone(), client));
    world.run_for(Duration::from_mins(10))?;
    let left = world.objects().keys().filter(|key| task_id(key).is_some()).count();
    Ok(format!("{} of {TASKS} tasks were deleted", TASKS - left))
}

/// Checks that a task is deleted only if it was marked as purged a day ago, and that the mark stays.
fn check_change(change: &BucketChange, bucket: &SimBucket) -> Result<(), String> {
    let Some(id) = task_id(&change.key) else { return Ok(()) };
    let Some(before) = change.before.as_ref().map(Raw::read).transpose()? else { return Ok(()) };
    let Some(after) = change.after.as_ref().map(Raw::read).transpose()? else {
        if before.status() != "purged" {
            return Err(format!("P1: task {id} was deleted while it was {}", before.status()));
        }
        let (now, grace) = (bucket.time_ns().div_euclid(1_000_000), PURGE_GRACE.as_millis());
        let marked_for = now - before.time("finished_at").unwrap_or(now);
        if bucket.jumped_at().is_none() && i128::from(marked_for) < i128::try_from(grace).unwrap_or(0) {
            return Err(format!("P1: task {id} was deleted although it was purged only {marked_for} ms ago"));
        }
        return Ok(());
    };
    if before.status() == "purged" && after.status() != "purged" {
        return Err(format!("P1: task {id} was purged, but is {} again", after.status()));
    }
    Ok(())
}

async fn connect(host: &SimHost, client: Client) -> ObjectQueue {
    loop {
        if let Ok(queue) = ObjectQueue::with_config(client.clone(), QueueConfig::default()).await {
            return queue;
        }
        host.sleep(SECOND).await;
    }
}

async fn prepare(host: Arc<SimHost>, client: Client, ids: Ids) {
    let queue = connect(&host, client).await;
    for _ in 0..TASKS {
        let submitted = queue.submit("t", Value::Null).await.expect("no faults are injected yet");
        queue.cancel(&submitted.id).await.expect("no faults are injected yet");
        lock(&ids).push(submitted.id);
    }
}

async fn operate(host: Arc<SimHost>, client: Client, ids: Ids, time: Executor, until: Duration) {
    let queue = connect(&host, client).await;
    while time.now() < until {
        host.sleep(host.random_below(REST_MAX)).await;
        let id = lock(&ids)[usize::try_from(host.random()).unwrap_or(0) % TASKS];
        if let Ok(Transition::Done(_)) = queue.retry(&id).await {
            host.sleep(host.random_below(REST_MAX)).await;
            // Cancelled or pending: it must exist.
            drop(queue.cancel(&id).await);
        }
    }
}

async fn purge(host: Arc<SimHost>, client: Client, time: Executor, until: Duration) {
    let queue = connect(&host, client).await;
    while time.now() < until {
        let retention = Retention { statuses: Vec::new(), older_than: host.random_below(REST_MAX) };
        drop(queue.purge_all(&retention).await);
        host.sleep(host.random_below(REST_MAX * 2)).await;
    }
}

async fn purge_once(host: Arc<SimHost>, client: Client) {
    let queue = connect(&host, client).await;
    drop(queue.purge_all(&Retention { statuses: Vec::new(), older_than: DAY }).await);
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
