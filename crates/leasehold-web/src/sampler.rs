//! Reads the store into the board: the only part of the dashboard that sends requests on its own, once for all viewers.
//!
//! It reads five parts, each at its own pace: the index (counted by lists), the tasks (listed, and read where they have
//! changed), leases of workers, leases of shards, and artifacts. Without viewers only the index is counted, once a minute,
//! so that the chart of a night without viewers is not empty. Before that one small object is read: a count may take half a
//! minute to fail, and `/healthz` must report an unavailable store sooner.
//!
//! Each part is one function that reads what is due and returns how long to wait. Its only state is the board, so that tests
//! can call it at any time of a simulated clock.

#[cfg(test)]
mod tests;

use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use futures::future::{Either, join_all, select};
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use leasehold_core::limits::ANSWER_WAIT;
use leasehold_core::{Error, Kind, Result, Task, TaskId, keys};
use leasehold_pieces::prune;
use leasehold_queue::inspect::READS_AT_ONCE;
use leasehold_queue::{ListedTask, Queue};
use leasehold_store::host::Instant;
use leasehold_store::{Host, Purpose};
use leasehold_worker::Shutdown;
use leasehold_worker::shutdown::Stage;

use crate::pace::{RefreshPace, Took};
use crate::snapshot::{Board, Part, Reading, Tried, Turn};
use crate::table::Changed;
use crate::viewers::{Looks, Topic};

/// Interval between counts of the index without viewers.
const UNWATCHED: Duration = Duration::from_mins(1);
/// Longest wait for one small object without viewers. Longer than the wait for one response, so that the store client
/// notices and logs a store that does not respond.
const PROBE_WAIT: Duration = ANSWER_WAIT.saturating_add(Duration::from_secs(2));
/// Interval between retries of rarely read parts while the store fails.
const RETRY_EVERY: Duration = Duration::from_secs(10);
/// Interval between checks for the existence of artifacts while they are not viewed.
const ARE_THERE_ANY: Duration = Duration::from_mins(5);
/// Number of tasks read in one batch, so that the page shows the first tasks while the rest are being read.
const BATCH: usize = 256;
/// Number of entries in one page of a list.
const PAGE: usize = 1_000;
/// Largest number of artifacts that are shown.
const ARTIFACTS_MAX: usize = 10_000;
/// Largest number of worker names that are shown; they are kept for a week after their last use.
const WORKERS_MAX: usize = 1_000;

/// State shared by the sampler and the HTTP handlers.
#[derive(Debug)]
pub(crate) struct Shared {
    /// Queue as it was opened, with its own ledger.
    opened: Queue,
    pub(crate) pace: RefreshPace,
    pub(crate) looks: Looks,
    board: RwLock<Board>,
}

impl Shared {
    pub(crate) fn new(queue: Queue, pace: RefreshPace) -> Self {
        let looks = Looks::new(queue.client().host().clone());
        Self { opened: queue, pace, looks, board: RwLock::default() }
    }

    /// Returns the queue with its current layout: the number of shards may have changed since it was opened.
    pub(crate) fn queue(&self) -> Queue {
        self.opened.refreshed()
    }

    pub(crate) fn host(&self) -> &Arc<dyn Host> {
        self.opened.client().host()
    }

    pub(crate) fn board(&self) -> RwLockReadGuard<'_, Board> {
        self.board.read().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    pub(crate) fn board_mut(&self) -> RwLockWriteGuard<'_, Board> {
        self.board.write().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Returns the number of requests that the dashboard has sent so far.
    pub(crate) fn requests(&self) -> u64 {
        self.opened.client().ledger().snapshot().requests()
    }

    /// Updates the row of a task that was read or written individually.
    pub(crate) fn saw(&self, task: &Task) {
        let mut board = self.board_mut();
        if board.table.put(task) == Changed::Yes {
            board.touch();
        }
    }

    /// Removes the row of a task that no longer exists.
    pub(crate) fn missed(&self, id: &TaskId) {
        let mut board = self.board_mut();
        if board.table.remove(id) == Changed::Yes {
            board.touch();
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
    let mut began = shared.looks.began();
    loop {
        let pause = tick(shared).await;
        // A new viewer does not wait for the next minute.
        select(Box::pin(began.changed()), shared.host().sleep(pause)).await;
    }
}

/// Returns the time until a part is due; `None` if it is due now.
fn until_due(shared: &Shared, part: Part, every: impl Fn(Took) -> Duration) -> Option<Duration> {
    let tried = shared.board().tried(part)?;
    let left = every(tried.took).saturating_sub(shared.host().instant().since(tried.at));
    (!left.is_zero()).then_some(left)
}

/// Forgets the failure of a part that is not read again until it is viewed.
fn unwatched(shared: &Shared, part: Part) -> Duration {
    if shared.board().is_failing(part) {
        shared.board_mut().forget(part);
    }
    UNWATCHED
}

/// Records the result of a read, and returns the time until the part is due again.
fn done<T>(
    shared: &Shared,
    part: Part,
    (at, lists): (Instant, u64),
    result: Result<T>,
    every: impl Fn(Took) -> Duration,
    keep: impl FnOnce(&mut Board, T),
) -> Duration {
    let time = shared.host().instant().since(at);
    // The duration of a failed read does not count.
    let took = match &result {
        Ok(_) => Took { lists: u32::try_from(lists).unwrap_or(u32::MAX), time },
        Err(_) => Took::default(),
    };
    let mut board = shared.board_mut();
    let turn = board.note(part, Tried { at, took }, result.as_ref().err());
    match result {
        Ok(what) => keep(&mut board, what),
        // Logged once: each part is read every few seconds. The store client logs a store that does not respond.
        Err(error) if turn == Turn::Failing => {
            tracing::warn!(part = part.name(), %error, "dashboard cannot read the store, retrying");
        }
        Err(error) => tracing::debug!(part = part.name(), %error, "dashboard cannot read the store"),
    }
    if turn == Turn::Recovered {
        tracing::warn!("dashboard can read the store again");
    }
    // The interval may depend on the board.
    drop(board);
    every(took).saturating_sub(time)
}

/// Counts the index.
pub(crate) async fn index(shared: &Shared) -> Duration {
    let is_watched = shared.looks.is_at(Topic::Queue);
    let every = |took| {
        if is_watched {
            shared.pace.index_every(took)
        } else if shared.board().is_failing(Part::Index) {
            RETRY_EVERY
        } else {
            UNWATCHED
        }
    };
    if let Some(left) = until_due(shared, Part::Index, every) {
        return left;
    }
    let at = shared.host().instant();
    let counted = async {
        if !is_watched {
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
    done(shared, Part::Index, (at, lists), counted, every, |board, (stats, now)| {
        board.set_index(stats, at, now, requests);
    })
}

/// Reads one small object to check that the store responds. The read can be cancelled at any point.
async fn probe(shared: &Shared) -> Result<()> {
    let queue = shared.queue();
    let read = Box::pin(queue.client().get(Purpose::Admin, keys::QUEUE));
    match select(read, shared.host().sleep(PROBE_WAIT)).await {
        Either::Left((read, _)) => read.map(drop),
        Either::Right(_) => {
            let (store, secs) = (queue.client().describe(), PROBE_WAIT.as_secs());
            Err(Error::new(Kind::Unavailable, format!("{store} did not respond within {secs} s")))
        }
    }
}

/// Passes over the tasks: lists them all, reads those that may have changed.
pub(crate) async fn tasks(shared: &Shared) -> Duration {
    if !shared.looks.is_at(Topic::Queue) {
        return unwatched(shared, Part::Tasks);
    }
    let every = |took| shared.pace.tasks_every(took);
    if let Some(left) = until_due(shared, Part::Tasks, every) {
        return left;
    }
    let at = shared.host().instant();
    let passed = pass(shared).await;
    let lists = shared.board().pass.listed.div_ceil(PAGE as u64).max(1);
    done(shared, Part::Tasks, (at, lists), passed, every, |board, is_cut| {
        // Tasks beyond the last row were not listed; those before it that were not listed are gone.
        if board.table.end_pass() > 0 || board.pass.ended.is_none() || board.pass.is_cut != is_cut {
            board.touch();
        }
        board.pass.is_cut = is_cut;
        board.pass.ended = Some(at);
    })
}

/// Runs one pass. Returns true if there are more tasks than the table has room for.
async fn pass(shared: &Shared) -> Result<bool> {
    begin(shared)?;
    // Processes each page of the list as a whole.
    let queue = shared.queue();
    let mut pages = std::pin::pin!(queue.listed().try_ready_chunks(PAGE));
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
    let mut board = shared.board_mut();
    let room = board.table.room().saturating_sub(usize::try_from(board.pass.listed).unwrap_or(usize::MAX));
    let is_cut = page.len() > room;
    page.truncate(room);
    board.pass.listed += page.len() as u64;
    page.retain(|listed| board.table.note_listed(listed));
    (page, is_cut)
}

fn begin(shared: &Shared) -> Result<()> {
    let now = shared.queue().now()?.earliest;
    let mut board = shared.board_mut();
    board.table.begin_pass(now);
    (board.pass.listed, board.pass.read, board.pass.denied) = (0, 0, 0);
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
        let mut board = shared.board_mut();
        board.pass.read += 1;
        let changed = match task {
            Ok(Some(task)) => board.table.put_listed(&one, &task, now),
            // Deleted since it was listed, or the forwarding marker of a task that is listed elsewhere.
            Ok(None) => board.table.put_barren(&one, false, now),
            Err(error) if error.kind() == Kind::Corrupt => board.table.put_barren(&one, true, now),
            // One object that the store denies access to does not hide the others.
            Err(error) if error.kind() == Kind::Denied => {
                board.pass.denied += 1;
                Changed::No
            }
            Err(error) => return Err(error),
        };
        if changed == Changed::Yes {
            board.touch();
        }
    }
    Ok(())
}

/// Reads the leases of workers, and the sizes of their inboxes.
pub(crate) async fn workers(shared: &Shared) -> Duration {
    if !shared.looks.is_at(Topic::Workers) {
        return unwatched(shared, Part::Workers);
    }
    let names = shared.board().workers.as_ref().map_or(0, |seen| seen.what.0.len());
    let every = |_| shared.pace.leases_every(names);
    if let Some(left) = until_due(shared, Part::Workers, every) {
        return left;
    }
    let at = shared.host().instant();
    let seen = async {
        let names: Vec<_> = shared.queue().worker_leases().take(WORKERS_MAX).try_collect().await?;
        Ok((names, shared.queue().inbox_sizes().await?))
    };
    let seen = seen.await;
    done(shared, Part::Workers, (at, 2), seen, every, |board, what| {
        if board.workers.as_ref().is_none_or(|old| old.what != what) {
            board.touch();
        }
        board.workers = Some(Reading { at, what });
    })
}

/// Reads the leases on shards.
pub(crate) async fn shards(shared: &Shared) -> Duration {
    if !shared.looks.is_at(Topic::Shards) {
        return unwatched(shared, Part::Shards);
    }
    let groups = shared.board().shards.as_ref().map_or(0, |seen| seen.what.len());
    let every = |_| shared.pace.leases_every(groups);
    if let Some(left) = until_due(shared, Part::Shards, every) {
        return left;
    }
    let at = shared.host().instant();
    let seen = shared.queue().shard_leases().await;
    done(shared, Part::Shards, (at, 1), seen, every, |board, what| {
        if board.shards.as_ref().is_none_or(|old| old.what != what) {
            board.touch();
        }
        board.shards = Some(Reading { at, what });
    })
}

/// Lists artifacts while they are viewed; otherwise checks from time to time whether there are any.
pub(crate) async fn artifacts(shared: &Shared) -> Duration {
    let is_watched = shared.looks.is_at(Topic::Artifacts);
    if !is_watched && !shared.looks.is_at(Topic::Queue) {
        return unwatched(shared, Part::Artifacts);
    }
    let every = |took| {
        if is_watched {
            shared.pace.artifacts_every(took)
        } else if shared.board().is_failing(Part::Artifacts) {
            // The page shows the error until this is read again.
            RETRY_EVERY
        } else {
            ARE_THERE_ANY
        }
    };
    if let Some(left) = until_due(shared, Part::Artifacts, every) {
        return left;
    }
    let (at, queue) = (shared.host().instant(), shared.queue());
    if !is_watched {
        let are_any = prune::are_any(queue.client(), Purpose::Admin).await;
        return done(shared, Part::Artifacts, (at, 1), are_any, every, Board::set_has_artifacts);
    }
    let listed = prune::list(queue.client(), Purpose::Admin).await;
    // Two objects each.
    let lists = listed.as_ref().map_or(1, |listed| (listed.len() as u64 * 2).div_ceil(PAGE as u64).max(1));
    done(shared, Part::Artifacts, (at, lists), listed, every, |board, mut what| {
        while what.len() > ARTIFACTS_MAX {
            what.pop_last();
        }
        board.set_has_artifacts(!what.is_empty());
        if board.artifacts.as_ref().is_none_or(|old| old.what.len() != what.len()) {
            board.touch();
        }
        board.artifacts = Some(Reading { at, what });
    })
}
