//! Snapshots beside the other work of a broker: when one is due, and what follows from it.

use futures::FutureExt;
use futures::future::BoxFuture;
use leasehold_core::journal::{
    ArchiveLimits, ArchiveName, JournalRecord, JournalState, Seq, SnapshotManifest,
};
use leasehold_core::limits::{
    CHUNK_BYTES, COMMITS_KEPT, RESIDENT_BYTES, SNAPSHOT_COMMITS, SNAPSHOT_INTERVAL, SNAPSHOT_LOG_BYTES,
};
use leasehold_core::{Result, StoreTime};
use leasehold_store::host::Instant;
use leasehold_store::mutant::breaks;
use leasehold_store::{Client, LogTrimmer};
use std::collections::VecDeque;
use std::task::{Context, Poll};
use std::time::Duration;

use super::Broker;
use crate::journal::archive::delete as delete_archived;
use crate::journal::chunks::ChunkTable;
use crate::journal::snapshot::delete_replaced;

/// Pause after a snapshot that could not be written.
const RETRY_PAUSE: Duration = Duration::from_mins(1);

/// Times at which a broker takes snapshots, and deletes what they cover. Every value is safe; the defaults are those of
/// [`limits`](leasehold_core::limits).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SnapshotLimits {
    /// Number of commits after which a snapshot is taken.
    pub commits: u64,
    /// Time after which a snapshot is taken if anything has changed.
    pub interval: Duration,
    /// Time for which commits in a bucket are kept after a snapshot covers them.
    pub commits_kept: Duration,
    /// Tasks that are archived before a snapshot.
    pub archive: ArchiveLimits,
    /// Bytes of encoded tasks that are kept in memory although a chunk of a snapshot has them. A process that only reads keeps
    /// as many.
    pub resident_bytes: u64,
}

impl Default for SnapshotLimits {
    fn default() -> Self {
        Self {
            commits: SNAPSHOT_COMMITS,
            interval: SNAPSHOT_INTERVAL,
            commits_kept: COMMITS_KEPT,
            archive: ArchiveLimits::default(),
            resident_bytes: RESIDENT_BYTES,
        }
    }
}

/// Snapshots of a broker, and the deletion of what they cover.
pub(super) struct Maintenance {
    pub(super) table: ChunkTable,
    trimmer: LogTrimmer,
    /// Commits and their bytes since the newest snapshot.
    since: CommitsSince,
    /// Time of the newest snapshot, or at which this broker began, or the last attempt has failed.
    began_at: Instant,
    has_failed: bool,
    /// Snapshot that is written, and that the lease is about to name.
    unnamed: Option<SnapshotManifest>,
    /// Snapshot before the newest one, from the moment at which the lease names the newest one: the parts that only its predecessor
    /// used are deleted next.
    outdated: Option<SnapshotManifest>,
    /// First commits that snapshots do not cover, with the time of each snapshot: the commits before them are deleted later.
    floors: VecDeque<(Seq, StoreTime)>,
    /// Commits up to this one are deleted.
    deleted_to: Seq,
    limits: SnapshotLimits,
    work: Option<BoxFuture<'static, MaintenanceDone>>,
    /// True while tasks are archived, before a snapshot.
    is_archiving: bool,
    /// True while the broker waits until everything is confirmed.
    pub(super) is_capturing: bool,
    /// Archive objects that the snapshot in progress does not refer to, and that were removed long enough ago.
    unneeded: Vec<ArchiveName>,
    /// Archive objects that are to be deleted.
    to_delete: Vec<ArchiveName>,
}

/// Bytes of encoded tasks in memory beyond which a snapshot is taken early, so that changed tasks can be evicted, too. `bytes_max`
/// are kept anyway; a snapshot is worth its requests if at least as many bytes have changed, and at least a chunk.
pub(in crate::journal) fn most_resident(bytes_max: u64) -> u64 {
    bytes_max.saturating_add(bytes_max.max(CHUNK_BYTES as u64))
}

/// Commits since a snapshot.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::journal) struct CommitsSince {
    pub(in crate::journal) commits: u64,
    pub(in crate::journal) bytes: u64,
}

impl CommitsSince {
    pub(in crate::journal) fn add(&mut self, bytes: usize) {
        self.commits += 1;
        self.bytes += bytes as u64;
    }
}

/// End of a piece of maintenance.
pub(super) enum MaintenanceDone {
    Written(Result<SnapshotManifest>),
    Deleted(Result<Seq>, Vec<ArchiveName>),
}

impl Maintenance {
    pub(super) fn new(
        mut table: ChunkTable,
        since: CommitsSince,
        trimmer: LogTrimmer,
        is_in_folder: bool,
        limits: SnapshotLimits,
        now: Instant,
    ) -> Self {
        if is_in_folder {
            // Fences of a folder are deleted with their segments: the epoch file fences.
            table.forget_fences();
        }
        let floor = |manifest: &SnapshotManifest| (manifest.position.seq.next(), manifest.at);
        Self {
            floors: table.manifest().map(floor).into_iter().collect(),
            deleted_to: table.manifest().map_or(Seq::NONE, |manifest| manifest.deleted_to),
            // A reader of a folder finds a missing segment at once, and starts over.
            limits: if is_in_folder {
                SnapshotLimits { commits_kept: Duration::ZERO, ..limits }
            } else {
                limits
            },
            table,
            trimmer,
            since,
            began_at: now,
            has_failed: false,
            unnamed: None,
            outdated: None,
            work: None,
            is_archiving: false,
            is_capturing: false,
            unneeded: Vec::new(),
            to_delete: Vec::new(),
        }
    }

    /// Notes records that were decided.
    pub(super) fn record(&mut self, records: &[JournalRecord]) {
        for record in records {
            self.table.record(record);
        }
    }

    /// Notes a commit that was confirmed.
    pub(super) fn committed(&mut self, bytes: usize) {
        self.since.add(bytes);
    }

    /// Number of commits since the newest snapshot was begun.
    pub(super) fn lag(&self) -> u64 {
        self.since.commits
    }

    /// Evicts tasks while more than the limit are in memory.
    pub(super) fn evict(&mut self, state: &mut JournalState) {
        self.table.evict(state, self.limits.resident_bytes);
    }

    /// True if new tasks are to wait: a snapshot is on its way, after which others can be evicted, and many are in memory.
    /// Otherwise a producer that is faster than snapshots are written would fill the memory.
    pub(super) fn holds_submits(&self, resident_bytes: u64) -> bool {
        self.is_busy() && resident_bytes > most_resident(self.limits.resident_bytes).saturating_mul(2)
    }

    /// Time until a snapshot is due; none if nothing has changed, or one is being written. Changed tasks cannot be evicted
    /// before the next one.
    pub(super) fn due_in(&self, now: Instant, resident_bytes: u64) -> Option<Duration> {
        if self.is_busy() || self.since.commits == 0 {
            return None;
        }
        let passed = now.since(self.began_at);
        if self.has_failed {
            return Some(RETRY_PAUSE.saturating_sub(passed));
        }
        let is_large = self.since.commits >= self.limits.commits
            || self.since.bytes >= SNAPSHOT_LOG_BYTES
            || resident_bytes > most_resident(self.limits.resident_bytes);
        Some(if is_large { Duration::ZERO } else { self.limits.interval.saturating_sub(passed) })
    }

    /// True if something is being written or deleted, or the lease is about to name a snapshot.
    pub(super) fn is_busy(&self) -> bool {
        self.is_archiving || self.is_capturing || self.work.is_some() || self.unnamed.is_some()
    }

    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<MaintenanceDone> {
        let Some(work) = &mut self.work else { return Poll::Pending };
        let done = work.poll_unpin(context);
        if done.is_ready() {
            self.work = None;
        }
        done
    }

    /// Deletes parts of old snapshots, and commits that have been covered for long enough.
    fn delete_covered(&mut self, client: &Client, now: StoreTime) {
        let is_over = |(_, at): &(Seq, StoreTime)| at.plus(self.limits.commits_kept) <= now;
        let over = self.floors.iter().take_while(|floor| is_over(floor)).count();
        let floor = self.floors.drain(..over).next_back().map(|(floor, _)| floor);
        let outdated = self.outdated.take();
        let archived = std::mem::take(&mut self.to_delete);
        if floor.is_none() && outdated.is_none() && archived.is_empty() {
            return;
        }
        let (trimmer, fences, deleted_to) =
            (self.trimmer.clone(), self.table.fences().clone(), self.deleted_to);
        let client = client.clone();
        let delete = async move {
            if let Some(outdated) = outdated {
                delete_replaced(&client, &outdated).await;
            }
            let archived = delete_archived(&client, archived).await;
            let deleted = match floor {
                None => Ok(deleted_to),
                Some(floor) => {
                    let below = trimmer.delete_below(floor, deleted_to, &fences).await;
                    below.map(|_| Seq::new(floor.get().saturating_sub(1)))
                }
            };
            MaintenanceDone::Deleted(deleted, archived)
        };
        self.work = Some(delete.boxed());
    }
}

impl Broker {
    /// Begins a snapshot when it is due, after tasks were archived. While the broker waits for what was decided to be confirmed, it decides nothing.
    pub(super) fn maintain(&mut self) -> Result<()> {
        let now = self.instant();
        let resident = self.state.resident_bytes();
        if self.maintenance.due_in(now, resident).is_some_and(|left| left.is_zero()) {
            self.archive_deleted()?;
            self.archiver.begin();
            self.maintenance.is_archiving = true;
        }
        if !self.maintenance.is_capturing && !self.open.is_full() && self.archive()? {
            (self.maintenance.is_archiving, self.maintenance.is_capturing) = (false, true);
        }
        let is_confirmed = self.open.is_empty() && self.writer.is_idle();
        if self.maintenance.is_capturing
            && is_confirmed
            && let Some(position) = self.writer.position()
        {
            let (at, deleted_to) = (self.now()?.latest_known(), self.maintenance.deleted_to);
            let captured = self.maintenance.table.capture(&self.state, position, at, deleted_to);
            let kept = self.archiver.limits.kept;
            let removed = self.state.archive().removed();
            let old = removed.filter(|(_, removed_at)| removed_at.plus(kept) <= at);
            self.maintenance.unneeded = old.map(|(name, _)| name.clone()).collect();
            let client = self.client.clone();
            let write = async move { MaintenanceDone::Written(captured.write(&client).await) };
            self.maintenance.work = Some(write.boxed());
            self.maintenance.is_capturing = false;
            (self.maintenance.since, self.maintenance.began_at) = (CommitsSince::default(), now);
            self.maintenance.has_failed = false;
        }
        if self.maintenance.work.is_none() && !self.is_closing {
            let now = self.now()?.earliest;
            self.maintenance.delete_covered(&self.client, now);
        }
        Ok(())
    }

    pub(super) fn maintained(&mut self, done: MaintenanceDone) {
        match done {
            MaintenanceDone::Written(Ok(manifest)) => {
                if breaks("floor-before-lease") {
                    self.maintenance.floors.push_back((manifest.position.seq.next(), manifest.at));
                }
                self.lease.name_snapshot(manifest.position);
                self.maintenance.unnamed = Some(manifest);
            }
            MaintenanceDone::Written(Err(error)) => {
                tracing::warn!(%error, "failed to write a snapshot of the journal, retrying");
                self.maintenance.has_failed = true;
                self.maintenance.began_at = self.instant();
                self.maintenance.since.commits += 1;
            }
            MaintenanceDone::Deleted(trimmed, archived) => {
                self.archiver.deleted.extend(archived);
                match trimmed {
                    Ok(deleted_to) => self.maintenance.deleted_to = deleted_to,
                    Err(error) => tracing::debug!(%error, "failed to delete commits that a snapshot covers"),
                }
            }
        }
    }

    /// Handles a confirmed lease: the snapshot that it names counts from now on.
    pub(super) fn lease_confirmed(&mut self) {
        let named = self.lease.snapshot();
        if let Some(manifest) = self.maintenance.unnamed.take_if(|unnamed| unnamed.position == named) {
            tracing::debug!(commit = %named.seq, "snapshot of the journal taken");
            self.maintenance.floors.push_back((manifest.position.seq.next(), manifest.at));
            self.maintenance.outdated = self.maintenance.table.manifest().cloned();
            self.maintenance.to_delete.append(&mut self.maintenance.unneeded);
            self.maintenance.table.written(manifest);
            self.evict();
        } else if self.is_closing {
            // It is left to the next broker.
            self.maintenance.unnamed = None;
        }
    }
}
