//! Reads the store into the snapshot: the only part of the dashboard that sends requests on its own, once for all viewers.
//!
//! It reads five parts, each at its own pace: the index (counted by lists), the tasks (listed, and read where they have
//! changed), leases of workers, leases of shards, and artifacts. Without viewers only the index is counted, once a minute,
//! so that the chart of a night without viewers is not empty. Before that `queue.json` is read: a count may take half a
//! minute to fail, and `/healthz` must report an unavailable store sooner.
//!
//! Each part is one function that reads what is due and returns how long to wait. Its only state is the snapshot, so that
//! tests can call it at any time of a simulated clock.

#[cfg(test)]
mod tests;

use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use futures::future::{Either, join_all, select};
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use leasehold_core::limits::RESPONSE_TIMEOUT;
use leasehold_core::{Error, Kind, Result, ShardLen, Task, TaskId, keys};
use leasehold_pieces::prune;
use leasehold_queue::inspect::READS_AT_ONCE;
use leasehold_queue::{ListedTask, ObjectQueue, Queue};
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
/// Longest wait for `queue.json`. Longer than the wait for one response, so that the store client
/// notices and logs a store that does not respond.
const PROBE_TIMEOUT: Duration = RESPONSE_TIMEOUT.saturating_add(Duration::from_secs(2));
/// Interval between retries of rarely read parts while the store fails.
const RETRY_EVERY: Duration = Duration::from_secs(10);
/// Interval between checks for the existence of artifacts while they are not viewed.
const ARTIFACT_CHECK_INTERVAL: Duration = Duration::from_mins(5);
/// Number of tasks read in one batch, so that the page shows the first tasks while the rest are being read.
const BATCH: usize = 256;
/// Number of entries in one page of a list.
const PAGE: usize = 1_000;
/// Largest number of artifacts that are shown.
const ARTIFACTS_MAX: usize = 10_000;
/// Largest number of worker leases that are shown; they are kept for a week after their last use.
const WORKERS_MAX: usize = 1_000;

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
    let parts = [
        repeat(shared, index).boxed(),
        repeat(shared, tasks).boxed(),
        repeat(shared, workers).boxed(),
        repeat(shared, shards).boxed(),
        repeat(shared, artifacts).boxed(),
    ];
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

/// Counts the index.
pub(crate) async fn index(shared: &Shared) -> Duration {
    let is_viewed = shared.viewers.is_viewed(Topic::Queue);
    let every = |cost| {
        if is_viewed {
            shared.pace.index_every(cost)
        } else if shared.snapshot().is_failing(Part::Index) {
            RETRY_EVERY
        } else {
            IDLE_INTERVAL
        }
    };
    if let Some(left) = until_due(shared, Part::Index, every) {
        return left;
    }
    let at = shared.host().instant();
    let counted = async {
        if !is_viewed {
            probe(shared).await?;
        }
        let stats = shared.queue().stats().await?;
        Ok((stats, shared.queue().now()?.earliest))
    };
    let counted = counted.await;
    let entries = counted.as_ref().map_or(0, |(stats, _)| stats.due + stats.scheduled + stats.running);
    // Four kinds of entries, each with a page that is not full.
    let lists = 4 + entries / PAGE as u64;
    let requests = shared.requests();
    record(shared, Part::Index, (at, lists), counted, every, |snapshot, (stats, now)| {
        snapshot.set_index(stats, at, now, requests);
    })
}

/// Reads `queue.json` to check that the store responds and still has the queue. The read can be cancelled at any point.
async fn probe(shared: &Shared) -> Result<()> {
    let read = Box::pin(shared.client().get(Purpose::Admin, keys::QUEUE));
    let store = || shared.client().describe();
    match select(read, shared.host().sleep(PROBE_TIMEOUT)).await {
        Either::Left((Ok(None), _)) => {
            Err(Error::new(Kind::Corrupt, format!("queue.json is missing at {}", store())))
        }
        Either::Left((read, _)) => read.map(drop),
        Either::Right(_) => {
            let (store, secs) = (store(), PROBE_TIMEOUT.as_secs());
            Err(Error::new(Kind::Unavailable, format!("{store} did not respond within {secs} s")))
        }
    }
}

/// Passes over the tasks: lists them all, reads those that may have changed.
pub(crate) async fn tasks(shared: &Shared) -> Duration {
    if !shared.viewers.is_viewed(Topic::Queue) {
        return skip_unviewed(shared, Part::Tasks);
    }
    let every = |cost| shared.pace.tasks_every(cost);
    if let Some(left) = until_due(shared, Part::Tasks, every) {
        return left;
    }
    let at = shared.host().instant();
    let passed = pass(shared).await;
    let lists = shared.snapshot().pass.listed.div_ceil(PAGE as u64).max(1);
    record(shared, Part::Tasks, (at, lists), passed, every, |snapshot, is_cut| {
        // Tasks beyond the last row were not listed; those before it that were not listed are gone.
        if snapshot.table.end_pass() > 0 || snapshot.pass.ended.is_none() || snapshot.pass.is_cut != is_cut {
            snapshot.bump_revision();
        }
        snapshot.pass.is_cut = is_cut;
        snapshot.pass.ended = Some(at);
    })
}

/// Runs one pass. Returns true if there are more tasks than the table has room for.
async fn pass(shared: &Shared) -> Result<bool> {
    begin_pass(shared)?;
    // Processes each page of the list as a whole.
    let queue = shared.queue();
    let mut pages = std::pin::pin!(queue.list_timestamps().try_ready_chunks(PAGE));
    while let Some(page) = pages.try_next().await.map_err(|error| error.1)? {
        let (mut changed, is_cut) = note_listed(shared, page);
        while !changed.is_empty() {
            let rest = changed.split_off(changed.len().min(BATCH));
            read(shared, std::mem::replace(&mut changed, rest)).await?;
        }
        if is_cut {
            return Ok(true);
        }
        // An in-memory store never yields, and viewers must be served meanwhile.
        tokio::task::yield_now().await;
    }
    Ok(false)
}

/// Returns the tasks of a page that have to be read, and true if there was no room for some.
fn note_listed(shared: &Shared, mut page: Vec<ListedTask>) -> (Vec<ListedTask>, bool) {
    let mut snapshot = shared.snapshot_mut();
    let room =
        snapshot.table.capacity().saturating_sub(usize::try_from(snapshot.pass.listed).unwrap_or(usize::MAX));
    let is_cut = page.len() > room;
    page.truncate(room);
    snapshot.pass.listed += page.len() as u64;
    page.retain(|listed| snapshot.table.note_listed(listed));
    (page, is_cut)
}

fn begin_pass(shared: &Shared) -> Result<()> {
    let now = shared.queue().now()?.earliest;
    let mut snapshot = shared.snapshot_mut();
    snapshot.table.begin_pass(now);
    (snapshot.pass.listed, snapshot.pass.read, snapshot.pass.denied) = (0, 0, 0);
    Ok(())
}

/// Reads listed tasks into the table.
async fn read(shared: &Shared, listed: Vec<ListedTask>) -> Result<()> {
    let now = shared.queue().now()?.earliest;
    let queue = &shared.queue();
    let reads = listed.into_iter().map(|one| async move {
        let task = queue.read_listed(&one).await;
        (one, task)
    });
    let mut reads = stream::iter(reads).buffer_unordered(READS_AT_ONCE);
    while let Some((one, task)) = reads.next().await {
        let mut snapshot = shared.snapshot_mut();
        snapshot.pass.read += 1;
        let changed = match task {
            Ok(Some(task)) => snapshot.table.put_listed(&one, &task, now),
            // Deleted since it was listed, or the forwarding marker of a task that is listed elsewhere.
            Ok(None) => snapshot.table.put_non_task(&one, false, now),
            Err(error) if error.kind() == Kind::Corrupt => snapshot.table.put_non_task(&one, true, now),
            // One object that the store denies access to does not hide the others.
            Err(error) if error.kind() == Kind::Denied => {
                snapshot.pass.denied += 1;
                RowChange::No
            }
            Err(error) => return Err(error),
        };
        if changed == RowChange::Yes {
            snapshot.bump_revision();
        }
    }
    Ok(())
}

/// Reads the leases of workers, and the sizes of their inboxes.
pub(crate) async fn workers(shared: &Shared) -> Duration {
    if !shared.viewers.is_viewed(Topic::Workers) {
        return skip_unviewed(shared, Part::Workers);
    }
    let names = shared.snapshot().workers.as_ref().map_or(0, |seen| seen.value.0.len());
    let every = |_| shared.pace.leases_every(names);
    if let Some(left) = until_due(shared, Part::Workers, every) {
        return left;
    }
    let at = shared.host().instant();
    let seen = async {
        let queue = shared.queue();
        let objects = queue.objects()?;
        let names: Vec<_> = objects.worker_leases().take(WORKERS_MAX).try_collect().await?;
        Ok((names, objects.inbox_sizes().await?))
    };
    let seen = seen.await;
    record(shared, Part::Workers, (at, 2), seen, every, |snapshot, value| {
        if snapshot.workers.as_ref().is_none_or(|old| old.value != value) {
            snapshot.bump_revision();
        }
        snapshot.workers = Some(Reading { at, value });
    })
}

/// Reads the leases on shards.
pub(crate) async fn shards(shared: &Shared) -> Duration {
    if !shared.viewers.is_viewed(Topic::Shards) {
        return skip_unviewed(shared, Part::Shards);
    }
    let groups = shared.snapshot().shards.as_ref().map_or(0, |seen| seen.value.len());
    let every = |_| shared.pace.leases_every(groups);
    if let Some(left) = until_due(shared, Part::Shards, every) {
        return left;
    }
    let at = shared.host().instant();
    let seen = async { shared.queue().objects()?.shard_leases().await }.await;
    record(shared, Part::Shards, (at, 1), seen, every, |snapshot, value| {
        if snapshot.shards.as_ref().is_none_or(|old| old.value != value) {
            snapshot.bump_revision();
        }
        snapshot.shards = Some(Reading { at, value });
    })
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
