//! Reads the store into the board: the only part of the dashboard that asks by itself, and one for all viewers.
//!
//! Five things are read, each at its own pace: the index (counted by lists), the tasks (listed, and read where they have
//! changed), leases of workers and of shards, artifacts. While nobody looks only the index is counted, once a minute, so
//! that the chart of an unwatched night is not empty. Before that one small object is read: a count has half a minute to
//! fail, and `/healthz` has to know sooner that the store is gone.
//!
//! A part is one function that does what is due and says how long to wait. It keeps no state but the board, so that tests
//! can call it at any moment of a clock that they move themselves.

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
use leasehold_queue::{Listed, Queue};
use leasehold_store::host::Instant;
use leasehold_store::{Host, Purpose};
use leasehold_worker::Shutdown;
use leasehold_worker::shutdown::Stage;

use crate::board::{Board, Part, Seen, Tried, Turn};
use crate::looks::{Looks, Topic};
use crate::pace::{Pace, Took};
use crate::table::Changed;

/// How often the index is counted while nobody looks.
const UNWATCHED: Duration = Duration::from_mins(1);
/// Longest wait for one small object while nobody looks. Longer than that for one answer, so that the client notes and logs
/// a store that does not answer.
const PROBE_WAIT: Duration = ANSWER_WAIT.saturating_add(Duration::from_secs(2));
/// From one try to the next of what is read seldom, while the store fails.
const RETRY_EVERY: Duration = Duration::from_secs(10);
/// How often it is found out whether there are artifacts, while nobody looks at them.
const ARE_THERE_ANY: Duration = Duration::from_mins(5);
/// Tasks are read in batches, so that the page shows the first of many while the last are being read.
const BATCH: usize = 256;
/// What a list gives at once.
const PAGE: usize = 1_000;
/// Most artifacts that are shown.
const ARTIFACTS_MAX: usize = 10_000;
/// Most names of workers that are shown; they stay for a week after their last use.
const WORKERS_MAX: usize = 1_000;

/// What the sampler and the answers share.
#[derive(Debug)]
pub(crate) struct Shared {
    /// The queue as it was opened, with a ledger of its own.
    opened: Queue,
    pub(crate) pace: Pace,
    pub(crate) looks: Looks,
    board: RwLock<Board>,
}

impl Shared {
    pub(crate) fn new(queue: Queue, pace: Pace) -> Self {
        let looks = Looks::new(queue.client().host().clone());
        Self { opened: queue, pace, looks, board: RwLock::default() }
    }

    /// The queue as it is: the number of its shards may have changed since it was opened.
    pub(crate) fn queue(&self) -> Queue {
        self.opened.as_it_is()
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

    /// How many requests this page has sent so far.
    pub(crate) fn requests(&self) -> u64 {
        self.opened.client().ledger().snapshot().requests()
    }

    /// A task was read or written by itself: its row is as new as that.
    pub(crate) fn saw(&self, task: &Task) {
        let mut board = self.board_mut();
        if board.table.put(task) == Changed::Yes {
            board.touch();
        }
    }

    /// A task was looked for and is gone.
    pub(crate) fn missed(&self, id: &TaskId) {
        let mut board = self.board_mut();
        if board.table.remove(id) == Changed::Yes {
            board.touch();
        }
    }
}

/// Samples until it is stopped. It only reads: it can be left at any point.
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
        // Whoever begins to look does not wait for the next minute.
        select(Box::pin(began.changed()), shared.host().sleep(pause)).await;
    }
}

/// How long until a part is due that is read so often; nothing if it is due.
fn until_due(shared: &Shared, part: Part, every: impl Fn(Took) -> Duration) -> Option<Duration> {
    let tried = shared.board().tried(part)?;
    let left = every(tried.took).saturating_sub(shared.host().instant().since(tried.at));
    (!left.is_zero()).then_some(left)
}

/// Forgets that a part could not be read, because it is not tried again until somebody looks.
fn unwatched(shared: &Shared, part: Part) -> Duration {
    if shared.board().is_failing(part) {
        shared.board_mut().forget(part);
    }
    UNWATCHED
}

/// Notes how a part went, and says when it is due again.
fn done<T>(
    shared: &Shared,
    part: Part,
    (at, lists): (Instant, u64),
    result: Result<T>,
    every: impl Fn(Took) -> Duration,
    keep: impl FnOnce(&mut Board, T),
) -> Duration {
    let time = shared.host().instant().since(at);
    // What has failed says nothing of how long it takes.
    let took = match &result {
        Ok(_) => Took { lists: u32::try_from(lists).unwrap_or(u32::MAX), time },
        Err(_) => Took::default(),
    };
    let mut board = shared.board_mut();
    let turn = board.note(part, Tried { at, took }, result.as_ref().err());
    match result {
        Ok(what) => keep(&mut board, what),
        // Once: each part is tried every few seconds. Its client logs a store that does not answer.
        Err(error) if turn == Turn::Failing => {
            tracing::warn!(part = part.name(), %error, "dashboard cannot read the store, retrying");
        }
        Err(error) => tracing::debug!(part = part.name(), %error, "dashboard cannot read the store"),
    }
    if turn == Turn::Recovered {
        tracing::warn!("dashboard can read the store again");
    }
    // How often may depend on the board.
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

/// Reads one small object: does the store answer? The read may be left at any point.
async fn probe(shared: &Shared) -> Result<()> {
    let queue = shared.queue();
    let read = Box::pin(queue.client().get(Purpose::Admin, keys::QUEUE));
    match select(read, shared.host().sleep(PROBE_WAIT)).await {
        Either::Left((read, _)) => read.map(drop),
        Either::Right(_) => {
            let (store, secs) = (queue.client().describe(), PROBE_WAIT.as_secs());
            Err(Error::new(Kind::Unavailable, format!("{store} did not answer within {secs} s")))
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
        // What lies beyond the last row was not listed; what was not seen before it is gone.
        if board.table.end_pass() > 0 || board.pass.ended.is_none() || board.pass.is_cut != is_cut {
            board.touch();
        }
        board.pass.is_cut = is_cut;
        board.pass.ended = Some(at);
    })
}

/// One pass; says whether there are more tasks than can be remembered.
async fn pass(shared: &Shared) -> Result<bool> {
    begin(shared)?;
    // Whatever one list has given, at once.
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
        // A store in memory never makes us wait, and viewers want to be answered meanwhile.
        tokio::task::yield_now().await;
    }
    Ok(false)
}

/// Those of a page that have to be read, and whether some had no room any more.
fn note_listed(shared: &Shared, mut page: Vec<Listed>) -> (Vec<Listed>, bool) {
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

/// Reads tasks that were listed into the table.
async fn read(shared: &Shared, listed: Vec<Listed>) -> Result<()> {
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
            // Gone since it was listed, or the mark of one that is listed elsewhere.
            Ok(None) => board.table.put_barren(&one, false, now),
            Err(error) if error.kind() == Kind::Corrupt => board.table.put_barren(&one, true, now),
            // One object that we may not read does not hide the others.
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

/// Reads the names of workers, and how full their inboxes are.
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
        board.workers = Some(Seen { at, what });
    })
}

/// Reads who holds which shards.
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
        board.shards = Some(Seen { at, what });
    })
}

/// Lists artifacts for those who look at them; for others it finds out now and then whether there are any.
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
        board.artifacts = Some(Seen { at, what });
    })
}
