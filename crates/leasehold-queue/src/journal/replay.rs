//! Replay of a journal: the snapshot that the lease names, and the commits after it, in a process that takes over or only
//! reads.
//!
//! A process with more tasks than it keeps in memory evicts those of chunks, and reads a chunk back when a commit changes one
//! of its tasks. The log is read without a pause, so that commit and those after it are kept in memory and applied when the end of
//! the log was reached.
//!
//! Requests: 1 get of the snapshot, 1 per chunk, and 1 per chunk that is read back.

use leasehold_core::journal::{Commit, JournalState, LogPosition};
use leasehold_core::{Result, TaskId};
use leasehold_store::mutant::breaks;
use leasehold_store::{Client, Followed, LogReader};

use super::broker::maintenance::CommitsSince;
use super::broker::superseded;
use super::changes::ChangeFeed;
use super::chunks::ChunkTable;
use super::open::apply;
use super::snapshot::{load, no_chunk, read_chunk};

/// State that is replayed.
#[derive(Debug, Default)]
pub(super) struct Replayed {
    pub(super) state: JournalState,
    /// Chunks of the snapshot, and those that have changed since.
    pub(super) table: ChunkTable,
    /// Commits since the snapshot.
    pub(super) since: CommitsSince,
    /// Tasks that these commits have changed.
    pub(super) changes: ChangeFeed,
    /// Position after the last commit that was applied.
    pub(super) position: LogPosition,
    /// Bytes of encoded tasks to keep in memory.
    bytes_max: u64,
}

impl Replayed {
    /// Loads the snapshot at a position, if there is one.
    pub(super) async fn load(client: &Client, position: LogPosition, bytes_max: u64) -> Result<Self> {
        let mut replayed = Self { position, bytes_max, ..Self::default() };
        if position != LogPosition::START {
            let manifest = load(client, position, bytes_max, &mut replayed.state).await?;
            replayed.table = ChunkTable::new(manifest);
        }
        Ok(replayed)
    }

    /// Applies a commit that changes no evicted task.
    pub(super) fn apply(&mut self, commit: &Commit) -> Result<()> {
        self.since.add(commit.records.len());
        let Self { state, table, changes, .. } = self;
        apply(state, commit, |record| {
            table.record(record);
            changes.record(record);
        })?;
        if commit.header.fence.is_some() {
            self.table.fence(commit.header.seq, &self.state);
        }
        self.position = commit.position();
        Ok(())
    }

    /// Applies the commits up to the current end of the log. Those of `below_epoch` or later belong to another broker.
    pub(super) async fn read_on(
        &mut self,
        client: &Client,
        reader: &mut LogReader,
        below_epoch: Option<u64>,
    ) -> Result<Followed> {
        let mut waiting = Vec::new();
        let followed = reader.read(|commit| {
            let is_newer = below_epoch.is_some_and(|epoch| commit.header.epoch >= epoch);
            if is_newer && !breaks("log-newer-epoch-replayed") {
                return Err(superseded());
            }
            if waiting.is_empty() && self.state.commit_needs(&commit.records).is_none() {
                return self.apply(&commit);
            }
            waiting.push(commit);
            Ok(())
        });
        let followed = followed.await?;
        for commit in waiting {
            self.evict();
            while let Some(id) = self.state.commit_needs(&commit.records) {
                self.read_back(client, &id).await?;
            }
            self.apply(&commit)?;
        }
        Ok(followed)
    }

    /// Evicts tasks while more than the limit are in memory. Must not be called between reading back the tasks of one commit.
    pub(super) fn evict(&mut self) {
        self.table.evict(&mut self.state, self.bytes_max);
    }

    /// Reads back the chunk of an evicted task. Requests: 1 get.
    pub(super) async fn read_back(&mut self, client: &Client, id: &TaskId) -> Result<()> {
        let backing = self.table.backing(id).ok_or_else(|| no_chunk(id))?;
        let tasks = read_chunk(client, &backing.chunk).await?;
        self.state.read_back(backing.chunk.first, backing.end, tasks)?;
        self.table.was_read_back(&backing);
        Ok(())
    }
}
