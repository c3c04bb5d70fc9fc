//! Samples of a queue in the layout `journal`: its broker, the workers that the broker knows, counts, and the tasks that have
//! changed since the last sample.
//!
//! The broker answers from memory, so that a sample costs no request to the store, and is taken every two seconds while there is
//! a viewer, and once a minute without one. All tasks are read once, in pages: the live ones from the broker, and of the archive
//! as many as the table has room for, those that ended last. That is repeated only if changes were missed, after another
//! broker or a long pause; then the archive is read only if tasks that have ended meanwhile may be there.
//!
//! Without a broker that can be reached the log is followed. Requests: 2 gets to look for the broker; with a viewer 3 more, and 1
//! per commit since the last sample. That is done less often, and without a viewer only the broker is looked for.

#[cfg(test)]
mod tests;

use std::pin::pin;
use std::time::Duration;

use futures::TryStreamExt;
use leasehold_core::{Result, Task};
use leasehold_queue::{ChangePage, FoundBroker, JournalQueue, JournalSample, QueueLayout, Stats};
use leasehold_store::host::Instant;

use super::{IDLE_INTERVAL, PAGE, RETRY_EVERY, Shared, record, until_due};
use crate::pace::SampleCost;
use crate::snapshot::{DOWN_AFTER, Part, QueueSnapshot, Reading};
use crate::table::RowChange;
use crate::viewers::Topic;

/// Age from which on finished tasks are archived: within that time, all that have ended are live.
const ARCHIVED_AFTER: Duration = Duration::from_mins(5);
/// Least time between two reads of all tasks for the only reason that archived tasks were purged.
const PURGE_CHECK_INTERVAL: Duration = Duration::from_mins(10);

/// Reads the broker, its workers, the counts and the changes.
pub(crate) async fn sample(shared: &Shared) -> Duration {
    let Some(journal) = shared.journal() else { return IDLE_INTERVAL };
    let is_viewed = shared.viewers.is_viewed(Topic::Queue);
    let every = |cost| every(shared, is_viewed, cost);
    if let Some(left) = until_due(shared, Part::Journal, every) {
        return left;
    }
    let at = shared.host().instant();
    let read = read(shared, journal, at, is_viewed).await;
    record(shared, Part::Journal, (at, 0), read, every, |_, ()| {})
}

fn every(shared: &Shared, is_viewed: bool, cost: SampleCost) -> Duration {
    let snapshot = shared.snapshot();
    let absence = snapshot.journal.absence.as_ref();
    let absent_for = absence.map(|absence| shared.host().instant().since(absence.since));
    if is_viewed {
        return shared.pace.journal_every(cost, absent_for);
    }
    // `/healthz` tells a broker that is replaced from one that is missing.
    if absent_for.is_some_and(|absent| absent <= DOWN_AFTER) || snapshot.is_failing(Part::Journal) {
        RETRY_EVERY
    } else {
        IDLE_INTERVAL
    }
}

async fn read(shared: &Shared, journal: &JournalQueue, at: Instant, is_viewed: bool) -> Result<()> {
    let has_broker = find_broker(shared, journal, at).await?;
    if !has_broker && !is_viewed {
        return Ok(());
    }
    let since = shared.snapshot().journal.position.clone();
    let JournalSample { stats, changes } = journal.sample(since.as_ref()).await?;
    let now = journal.now()?.earliest;
    let requests = shared.requests();
    shared.snapshot_mut().set_stats(stats.clone(), at, now, requests);
    // Tasks are read when they are viewed for the first time, and followed from then on.
    if !is_viewed && since.is_none() {
        return Ok(());
    }
    // Counts that are older than the last page of changes may be less than the tasks in the table.
    let counted = (!changes.has_more).then(|| finished_tasks(&stats));
    read_changes(shared, journal, changes).await?;
    let scope = scope_of_read(&shared.snapshot(), counted, at);
    if let Some(scope) = scope {
        read_all(shared, journal, &stats, scope).await?;
        shared.snapshot_mut().journal.all_read_at = Some(at);
    }
    let mut snapshot = shared.snapshot_mut();
    if snapshot.pass.ended.replace(at).is_none() {
        snapshot.bump_revision();
    }
    Ok(())
}

/// Looks for the broker and asks for its state. Returns true if it was reached.
async fn find_broker(shared: &Shared, journal: &JournalQueue, at: Instant) -> Result<bool> {
    let found = journal.find_broker().await?;
    let has_broker = matches!(found, FoundBroker::Reached(_));
    let workers = if has_broker { journal.workers().await? } else { None };
    let mut snapshot = shared.snapshot_mut();
    let mut is_changed = snapshot.journal.set_broker(found, at);
    if let Some(value) = workers {
        let known = snapshot.journal.workers.replace(Reading { at, value });
        let workers = snapshot.journal.workers.as_ref().map(|workers| &workers.value);
        is_changed |= known.as_ref().map(|known| &known.value) != workers;
    }
    if is_changed {
        snapshot.bump_revision();
    }
    // As an outage of the store: a broker may be replaced, or about to serve, at any moment.
    let is_outage = snapshot.journal.is_without_broker(at, DOWN_AFTER);
    let is_news = snapshot.journal.note_outage(is_outage);
    drop(snapshot);
    if is_news && is_outage {
        tracing::warn!("dashboard cannot reach a broker of the queue, retrying");
    } else if is_news {
        tracing::warn!("dashboard can reach the broker of the queue again");
    }
    Ok(has_broker)
}

/// Puts the tasks that have changed into the table, page by page.
async fn read_changes(shared: &Shared, journal: &JournalQueue, mut page: ChangePage) -> Result<()> {
    loop {
        let has_more = page.has_more;
        {
            let mut snapshot = shared.snapshot_mut();
            put_all(&mut snapshot, &page.tasks);
            for id in &page.gone {
                if snapshot.table.remove(id) == RowChange::Yes {
                    snapshot.bump_revision();
                }
            }
            if page.is_gap {
                snapshot.journal.all_read_at = None;
            }
            snapshot.journal.position = Some(page.position.clone());
        }
        if !has_more {
            return Ok(());
        }
        tokio::task::yield_now().await;
        page = journal.changes(Some(&page.position)).await?;
    }
}

/// Puts tasks into the table. Returns false if there was no room for one of them.
fn put_all(snapshot: &mut QueueSnapshot, tasks: &[Task]) -> bool {
    let (mut is_changed, mut has_room) = (false, true);
    for task in tasks {
        match snapshot.table.put_newest(task) {
            RowChange::Yes => is_changed = true,
            RowChange::No => {}
            RowChange::Full => has_room = false,
        }
    }
    if is_changed {
        snapshot.bump_revision();
    }
    has_room
}

/// Tasks to read again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReadScope {
    Live,
    WithArchive,
}

/// Returns the tasks that have to be read again; `None` if the changes suffice.
/// `finished` is the number of finished tasks, if it is known.
fn scope_of_read(snapshot: &QueueSnapshot, finished: Option<u64>, at: Instant) -> Option<ReadScope> {
    let age = |then: Option<Instant>| then.map(|then| at.since(then));
    // Tasks that have ended since then may be archived.
    if age(snapshot.pass.ended).is_none_or(|age| age >= ARCHIVED_AFTER) {
        return Some(ReadScope::WithArchive);
    }
    let Some(all_read) = age(snapshot.journal.all_read_at) else { return Some(ReadScope::Live) };
    // A purge of archived tasks is not among the changes.
    let is_purged = || finished.is_some_and(|finished| snapshot.table.final_len() as u64 > finished);
    (all_read >= PURGE_CHECK_INTERVAL && is_purged()).then_some(ReadScope::WithArchive)
}

/// Number of finished tasks, with those of the archive.
fn finished_tasks(stats: &Stats) -> u64 {
    stats.finished.iter().flat_map(|finished| finished.values()).sum()
}

/// Reads the live tasks, and the archived ones that ended last.
async fn read_all(shared: &Shared, journal: &JournalQueue, stats: &Stats, scope: ReadScope) -> Result<()> {
    super::objects::begin_pass(shared)?;
    let listed = stats.due + stats.scheduled + stats.running + finished_tasks(stats);
    shared.snapshot_mut().pass.listed = listed;
    let mut is_cut = false;
    let mut live = pin!(journal.live_tasks().try_ready_chunks(PAGE));
    while let Some(page) = live.try_next().await.map_err(|error| error.1)? {
        // The table is full of unfinished tasks: further pages would make the broker read back tasks that are dropped here.
        is_cut = !put_page(shared, &page);
        if is_cut {
            break;
        }
        tokio::task::yield_now().await;
    }
    if scope == ReadScope::WithArchive {
        read_archive(shared, journal).await?;
    }
    let mut snapshot = shared.snapshot_mut();
    let removed = match scope {
        ReadScope::Live => snapshot.table.end_pass_over_live(),
        ReadScope::WithArchive => snapshot.table.end_pass(),
    };
    if removed > 0 || snapshot.pass.is_cut != is_cut {
        snapshot.bump_revision();
    }
    snapshot.pass.is_cut = is_cut;
    Ok(())
}

/// Reads archived tasks while there is room.
async fn read_archive(shared: &Shared, journal: &JournalQueue) -> Result<()> {
    let room = || {
        let snapshot = shared.snapshot();
        (snapshot.table.capacity() as u64).saturating_sub(snapshot.pass.read)
    };
    let tasks = room();
    if tasks == 0 {
        return Ok(());
    }
    let mut archived = pin!(journal.newest_archived(tasks).try_ready_chunks(PAGE));
    while let Some(mut page) = archived.try_next().await.map_err(|error| error.1)? {
        page.truncate(usize::try_from(room()).unwrap_or(usize::MAX));
        if page.is_empty() {
            return Ok(());
        }
        put_page(shared, &page);
        tokio::task::yield_now().await;
    }
    Ok(())
}

fn put_page(shared: &Shared, page: &[Task]) -> bool {
    let mut snapshot = shared.snapshot_mut();
    snapshot.pass.read += page.len() as u64;
    put_all(&mut snapshot, page)
}
