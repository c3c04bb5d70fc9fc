//! Samples of a queue in the layout `objects`.
//!
//! Four parts, each at its own pace: the index (counted by lists), the tasks (listed, and read where they have changed), leases
//! of workers, and leases of shards. Without viewers only the index is counted, once a minute, so that the chart of a night
//! without viewers is not empty. Before that `queue.json` is read: a count may take half a minute to fail, and `/healthz` must
//! report an unavailable store sooner.

use std::time::Duration;

use futures::future::{Either, select};
use futures::{StreamExt, TryStreamExt, stream};
use leasehold_core::limits::RESPONSE_TIMEOUT;
use leasehold_core::{Error, Kind, Result, keys};
use leasehold_queue::ListedTask;
use leasehold_queue::inspect::READS_AT_ONCE;
use leasehold_store::Purpose;

use super::{IDLE_INTERVAL, PAGE, RETRY_EVERY, Shared, record, skip_unviewed, until_due};
use crate::snapshot::{Part, Reading};
use crate::table::RowChange;
use crate::viewers::Topic;

/// Longest wait for `queue.json`. Longer than the wait for one response, so that the store client
/// notices and logs a store that does not respond.
const PROBE_TIMEOUT: Duration = RESPONSE_TIMEOUT.saturating_add(Duration::from_secs(2));
/// Number of tasks read in one batch, so that the page shows the first tasks while the rest are being read.
const BATCH: usize = 256;
/// Largest number of worker leases that are shown; they are kept for a week after their last use.
const WORKERS_MAX: usize = 1_000;

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
pub(super) async fn pass(shared: &Shared) -> Result<bool> {
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

pub(super) fn begin_pass(shared: &Shared) -> Result<()> {
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
