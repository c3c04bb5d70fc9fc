//! Reads the queue into the snapshot: the only part of the dashboard that sends requests on its own, once for all viewers.
//!
//! What it reads depends on the layout of the queue, and the result is one snapshot, so that views, figures and actions need
//! not know the layout:
//!
//! | layout | parts |
//! | --- | --- |
//! | `objects` | the index, the tasks, leases of workers, leases of shards |
//! | `journal` | the broker, with its workers, counts and the tasks that have changed: one part |
//! | both | artifacts |
//!
//! Each part has its own pace, and is one function that reads what is due and returns how long to wait. Its only state is the
//! snapshot, so that tests can call it at any time of a simulated clock.

pub(crate) mod journal;
pub(crate) mod objects;
#[cfg(test)]
mod tests;

use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, join_all, select};
use leasehold_core::{Result, ShardLen, Task, TaskId};
use leasehold_pieces::prune;
use leasehold_queue::{JournalQueue, ObjectQueue, Queue};
use leasehold_store::host::Instant;
use leasehold_store::{Client, Host, Purpose};
use leasehold_worker::Shutdown;
use leasehold_worker::shutdown::Stage;

use crate::pace::{RefreshPace, SampleCost};
use crate::snapshot::{HealthChange, Part, QueueSnapshot, ReadAttempt, Reading};
use crate::table::RowChange;
use crate::viewers::{Topic, Viewers};

/// Interval between counts of the index without viewers.
const IDLE_INTERVAL: Duration = Duration::from_mins(1);
/// Interval between retries of rarely read parts while the store fails.
const RETRY_EVERY: Duration = Duration::from_secs(10);
/// Interval between checks for the existence of artifacts while they are not viewed.
const ARTIFACT_CHECK_INTERVAL: Duration = Duration::from_mins(5);
/// Number of entries in one page of a list.
const PAGE: usize = 1_000;
/// Largest number of artifacts that are shown.
const ARTIFACTS_MAX: usize = 10_000;

/// State shared by the sampler and the HTTP handlers.
#[derive(Debug)]
pub(crate) struct Shared {
    /// Queue as it was opened, with its own ledger.
    opened: Queue,
    client: Client,
    pub(crate) pace: RefreshPace,
    pub(crate) viewers: Viewers,
    snapshot: RwLock<QueueSnapshot>,
}

impl Shared {
    pub(crate) fn new(queue: Queue, pace: RefreshPace) -> Result<Self> {
        let (client, viewers) = (queue.client()?.clone(), Viewers::new(queue.host().clone()));
        Ok(Self { opened: queue, client, pace, viewers, snapshot: RwLock::default() })
    }

    /// Returns the queue with its current number of shards, which may have changed since it was opened.
    pub(crate) fn queue(&self) -> Queue {
        self.opened.objects().map_or_else(|_| self.opened.clone(), |objects| objects.refreshed().into())
    }

    /// The queue, if it is in the layout `journal`.
    pub(crate) fn journal(&self) -> Option<&JournalQueue> {
        self.opened.journal().ok()
    }

    /// Client of the store, with the requests of the dashboard.
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// Number of digits that name a shard; `None` if the layout of the queue has no shards.
    pub(crate) fn shard_len(&self) -> Option<ShardLen> {
        self.queue().objects().ok().map(ObjectQueue::shard_len)
    }

    pub(crate) fn host(&self) -> &Arc<dyn Host> {
        self.client.host()
    }

    pub(crate) fn snapshot(&self) -> RwLockReadGuard<'_, QueueSnapshot> {
        self.snapshot.read().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    pub(crate) fn snapshot_mut(&self) -> RwLockWriteGuard<'_, QueueSnapshot> {
        self.snapshot.write().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Returns the number of requests that the dashboard has sent so far.
    pub(crate) fn requests(&self) -> u64 {
        self.client.ledger().snapshot().requests()
    }

    /// Updates the row of a task that was read or written individually.
    pub(crate) fn update_task(&self, task: &Task) {
        let mut snapshot = self.snapshot_mut();
        if snapshot.table.put(task) == RowChange::Yes {
            snapshot.bump_revision();
        }
    }

    /// Removes the row of a task that no longer exists.
    pub(crate) fn remove_task(&self, id: &TaskId) {
        let mut snapshot = self.snapshot_mut();
        if snapshot.table.remove(id) == RowChange::Yes {
            snapshot.bump_revision();
        }
    }
}

/// Samples until shutdown. It only reads, so it can be cancelled at any point.
pub(crate) async fn run(shared: &Shared, shutdown: Shutdown) {
    let mut parts: Vec<BoxFuture<'_, ()>> = vec![repeat(shared, artifacts).boxed()];
    if shared.journal().is_some() {
        parts.push(repeat(shared, journal::sample).boxed());
    } else {
        parts.push(repeat(shared, objects::index).boxed());
        parts.push(repeat(shared, objects::tasks).boxed());
        parts.push(repeat(shared, objects::workers).boxed());
        parts.push(repeat(shared, objects::shards).boxed());
    }
    select(join_all(parts), Box::pin(shutdown.reached(Stage::Drain))).await;
}

async fn repeat(shared: &Shared, tick: impl AsyncFn(&Shared) -> Duration + Send) {
    let mut first_views = shared.viewers.first_views();
    loop {
        let pause = tick(shared).await;
        // A new viewer does not wait for the next minute.
        select(Box::pin(first_views.changed()), shared.host().sleep(pause)).await;
    }
}

/// Returns the time until a part is due; `None` if it is due now.
fn until_due(shared: &Shared, part: Part, every: impl Fn(SampleCost) -> Duration) -> Option<Duration> {
    let attempt = shared.snapshot().last_attempt(part)?;
    let left = every(attempt.cost).saturating_sub(shared.host().instant().since(attempt.at));
    (!left.is_zero()).then_some(left)
}

/// Forgets the failure of a part that is not read again until it is viewed.
fn skip_unviewed(shared: &Shared, part: Part) -> Duration {
    if shared.snapshot().is_failing(part) {
        shared.snapshot_mut().forget(part);
    }
    IDLE_INTERVAL
}

/// Records the result of a read, and returns the time until the part is due again.
fn record<T>(
    shared: &Shared,
    part: Part,
    (at, lists): (Instant, u64),
    result: Result<T>,
    every: impl Fn(SampleCost) -> Duration,
    keep: impl FnOnce(&mut QueueSnapshot, T),
) -> Duration {
    let time = shared.host().instant().since(at);
    // The duration of a failed read does not count.
    let cost = match &result {
        Ok(_) => SampleCost { lists: u32::try_from(lists).unwrap_or(u32::MAX), time },
        Err(_) => SampleCost::default(),
    };
    let mut snapshot = shared.snapshot_mut();
    let change = snapshot.note(part, ReadAttempt { at, cost }, result.as_ref().err());
    match result {
        Ok(value) => keep(&mut snapshot, value),
        // Logged once: each part is read every few seconds. The store client logs a store that does not respond.
        Err(error) if change == HealthChange::Failing => {
            tracing::warn!(part = part.name(), %error, "dashboard cannot read the store, retrying");
        }
        Err(error) => tracing::debug!(part = part.name(), %error, "dashboard cannot read the store"),
    }
    if change == HealthChange::Recovered {
        tracing::warn!("dashboard can read the store again");
    }
    // The interval may depend on the snapshot.
    drop(snapshot);
    every(cost).saturating_sub(time)
}

/// Lists artifacts while they are viewed; otherwise checks from time to time whether there are any.
pub(crate) async fn artifacts(shared: &Shared) -> Duration {
    let is_viewed = shared.viewers.is_viewed(Topic::Artifacts);
    if !is_viewed && !shared.viewers.is_viewed(Topic::Queue) {
        return skip_unviewed(shared, Part::Artifacts);
    }
    let every = |cost| {
        if is_viewed {
            shared.pace.artifacts_every(cost)
        } else if shared.snapshot().is_failing(Part::Artifacts) {
            // The page shows the error until this is read again.
            RETRY_EVERY
        } else {
            ARTIFACT_CHECK_INTERVAL
        }
    };
    if let Some(left) = until_due(shared, Part::Artifacts, every) {
        return left;
    }
    let at = shared.host().instant();
    if !is_viewed {
        let has_artifacts = prune::has_artifacts(shared.client(), Purpose::Admin).await;
        return record(
            shared,
            Part::Artifacts,
            (at, 1),
            has_artifacts,
            every,
            QueueSnapshot::set_has_artifacts,
        );
    }
    let listed = prune::list(shared.client(), Purpose::Admin).await;
    // Two objects each.
    let lists = listed.as_ref().map_or(1, |listed| (listed.len() as u64 * 2).div_ceil(PAGE as u64).max(1));
    record(shared, Part::Artifacts, (at, lists), listed, every, |snapshot, mut value| {
        while value.len() > ARTIFACTS_MAX {
            value.pop_last();
        }
        snapshot.set_has_artifacts(!value.is_empty());
        if snapshot.artifacts.as_ref().is_none_or(|old| old.value.len() != value.len()) {
            snapshot.bump_revision();
        }
        snapshot.artifacts = Some(Reading { at, value });
    })
}
