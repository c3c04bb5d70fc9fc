//! Snapshots of a journal: taken by the broker, loaded by the next one and by processes that only read.
//!
//! ```text
//!   everything decided is confirmed ─▶ capture the changed chunks ─▶ chunks ─▶ manifest ─▶ lease ─▶ delete what is not needed
//! ```
//!
//! A snapshot covers confirmed commits only (rule B13): the broker takes no request while the commit in flight is confirmed,
//! and then copies the changed chunks. Everything after that happens while it serves requests. The snapshot counts from the
//! moment at which the lease names it, which also fixes what may be deleted (rule B7).

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use leasehold_core::journal::snapshot::{decode_chunk, encode_chunk};
use leasehold_core::journal::{
    ArchiveTable, ChunkName, ChunkRef, JournalRecord, JournalState, LogPosition, Seq, SnapshotManifest,
};
use leasehold_core::limits::{CHUNK_BYTES, SLOTS_AT_ONCE};
use leasehold_core::{Error, Kind, Result, StoreTime, TaskId, keys};
use leasehold_store::mutant::breaks;
use leasehold_store::{Client, Purpose, PutOutcome, When};
use std::collections::BTreeSet;

/// Chunks of the newest snapshot, and those that have changed since.
#[derive(Debug, Default)]
pub(super) struct ChunkTable {
    /// In the order of their ids; together they cover all ids.
    chunks: Vec<TableChunk>,
    /// Newest snapshot; none before the first.
    manifest: Option<SnapshotManifest>,
    /// Commits that are fences.
    fences: BTreeSet<Seq>,
}

#[derive(Debug, Clone)]
struct TableChunk {
    first: TaskId,
    /// None if it was captured, and is not written yet.
    written: Option<ChunkRef>,
    is_changed: bool,
}

/// Part of a state that is to be written.
#[derive(Debug)]
pub(super) struct CapturedSnapshot {
    position: LogPosition,
    at: StoreTime,
    parts: Vec<SnapshotPart>,
    archive: ArchiveTable,
    fences: Vec<Seq>,
    deleted_to: Seq,
    previous: Option<SnapshotManifest>,
}

#[derive(Debug)]
enum SnapshotPart {
    Unchanged(ChunkRef),
    Changed { first: TaskId, tasks: u64, lines: Vec<u8> },
}

impl ChunkTable {
    /// Table of a snapshot that was loaded.
    pub(super) fn new(manifest: SnapshotManifest) -> Self {
        let fences = manifest.fences.iter().copied().collect();
        let written = |chunk: &ChunkRef| TableChunk {
            first: chunk.first,
            written: Some(chunk.clone()),
            is_changed: false,
        };
        Self { chunks: manifest.chunks.iter().map(written).collect(), manifest: Some(manifest), fences }
    }

    /// Newest snapshot.
    pub(super) fn manifest(&self) -> Option<&SnapshotManifest> {
        self.manifest.as_ref()
    }

    /// Commits that are fences.
    pub(super) fn fences(&self) -> &BTreeSet<Seq> {
        &self.fences
    }

    /// Forgets the fences, in a log that does not keep them.
    pub(super) fn forget_fences(&mut self) {
        self.fences.clear();
    }

    /// Notes that a record changes its tasks.
    pub(super) fn record(&mut self, record: &JournalRecord) {
        match record {
            JournalRecord::Submit(task) => self.touch(task.id()),
            JournalRecord::Change { task, .. } => self.touch(*task),
            JournalRecord::Heard { tasks, .. } => tasks.iter().for_each(|task| self.touch(*task)),
            JournalRecord::Archive(change) => change.tasks.iter().for_each(|task| self.touch(task.id)),
        }
    }

    /// Notes a fence, which may change every running task.
    pub(super) fn fence(&mut self, seq: Seq, state: &JournalState) {
        self.fences.insert(seq);
        if breaks("fence-not-in-snapshot") {
            return;
        }
        for (_, tasks) in state.workers() {
            for task in tasks {
                self.touch(*task);
            }
        }
    }

    fn touch(&mut self, id: TaskId) {
        let after = self.chunks.partition_point(|chunk| chunk.first <= id);
        if let Some(chunk) = self.chunks.get_mut(after.saturating_sub(1)) {
            chunk.is_changed = true;
        }
    }

    /// Copies the chunks that have changed from a state whose records are all confirmed up to `position`.
    pub(super) fn capture(
        &mut self,
        state: &JournalState,
        position: LogPosition,
        at: StoreTime,
        deleted_to: Seq,
    ) -> CapturedSnapshot {
        let mut parts = Vec::new();
        let mut ranges = self.chunks.iter().enumerate().peekable();
        let ends = |place: usize| self.chunks.get(place + 1).map(|chunk| chunk.first);
        if ranges.peek().is_none() {
            split(state, None, None, &mut parts);
        }
        while let Some((place, chunk)) = ranges.next() {
            if let (Some(written), false) = (&chunk.written, chunk.is_changed) {
                parts.push(SnapshotPart::Unchanged(written.clone()));
                continue;
            }
            // Neighbours that have changed are divided anew together, so that no chunk stays small.
            let mut last = place;
            while let Some((next, _)) = ranges.next_if(|(_, next)| next.is_changed || next.written.is_none())
            {
                last = next;
            }
            let first = (place > 0).then_some(chunk.first);
            split(state, first, ends(last), &mut parts);
        }
        let captured = CapturedSnapshot {
            position,
            at,
            parts,
            archive: state.archive().clone(),
            fences: self.fences.iter().copied().collect(),
            deleted_to,
            previous: self.manifest.clone(),
        };
        self.chunks = captured.parts.iter().map(SnapshotPart::in_table).collect();
        captured
    }

    /// Refers to a snapshot that was written.
    pub(super) fn written(&mut self, manifest: SnapshotManifest) {
        for chunk in &mut self.chunks {
            let found = manifest.chunks.binary_search_by_key(&chunk.first, |chunk| chunk.first);
            chunk.written = found.ok().map(|place| manifest.chunks[place].clone());
        }
        self.manifest = Some(manifest);
    }
}

impl SnapshotPart {
    fn in_table(&self) -> TableChunk {
        match self {
            Self::Unchanged(chunk) => {
                TableChunk { first: chunk.first, written: Some(chunk.clone()), is_changed: false }
            }
            Self::Changed { first, .. } => TableChunk { first: *first, written: None, is_changed: false },
        }
    }
}

/// Divides the tasks of a range into chunks.
fn split(state: &JournalState, from: Option<TaskId>, to: Option<TaskId>, parts: &mut Vec<SnapshotPart>) {
    let least = from.unwrap_or_else(TaskId::least);
    let tasks = state.encoded_from(from).take_while(|(id, _)| to.is_none_or(|to| *id < to));
    let (mut first, mut count, mut lines) = (least, 0, Vec::new());
    for (id, body) in tasks {
        if lines.len() >= CHUNK_BYTES {
            let full = std::mem::take(&mut lines);
            parts.push(SnapshotPart::Changed { first, tasks: count, lines: full });
            (first, count) = (id, 0);
        }
        lines.extend_from_slice(&body);
        lines.push(b'\n');
        count += 1;
    }
    parts.push(SnapshotPart::Changed { first, tasks: count, lines });
}

impl CapturedSnapshot {
    /// Writes the changed chunks, then the manifest. Requests: 1 put per changed chunk, and 1.
    pub(super) async fn write(self, client: &Client) -> Result<SnapshotManifest> {
        let seq = self.position.seq;
        let mut chunks = Vec::with_capacity(self.parts.len());
        let mut number = 0;
        for part in self.parts {
            chunks.push(match part {
                SnapshotPart::Unchanged(chunk) => chunk,
                SnapshotPart::Changed { first, tasks, lines } => {
                    let name = ChunkName { seq, number };
                    number += 1;
                    let (body, chunk) = encode_chunk(name, first, tasks, &lines);
                    put(client, &keys::journal_chunk(name), body).await?;
                    chunk
                }
            });
        }
        let mut manifest = SnapshotManifest::new(self.position, self.at, chunks, client.write_id());
        manifest.set_archive(&self.archive);
        (manifest.fences, manifest.deleted_to) = (self.fences, self.deleted_to);
        if let Some(previous) = self.previous {
            let kept: BTreeSet<_> = manifest.chunks.iter().map(|chunk| chunk.name).collect();
            let names = previous.chunks.iter().map(|chunk| chunk.name);
            manifest.replaced = names.filter(|name| !kept.contains(name)).collect();
            manifest.previous = Some(previous.position.seq);
        }
        put(client, &keys::journal_snapshot(seq), manifest.encode()).await?;
        Ok(manifest)
    }
}

pub(super) async fn put(client: &Client, key: &str, body: Bytes) -> Result<()> {
    match client.put(Purpose::Journal, key, body, &When::Absent).await? {
        PutOutcome::Written(_) | PutOutcome::Superseded(_) => Ok(()),
        PutOutcome::Lost(_) => {
            Err(Error::new(Kind::Unavailable, format!("`{key}` exists already, with other content")))
        }
    }
}

/// Loads the snapshot at a position: its tasks into `state`, and its manifest. Requests: 1 get, and 1 per chunk.
pub(super) async fn load(
    client: &Client,
    position: LogPosition,
    state: &mut JournalState,
) -> Result<SnapshotManifest> {
    let manifest = read_manifest(client, position).await?;
    let chunks = stream::iter(manifest.chunks.clone()).map(|chunk| async move {
        let key = keys::journal_chunk(chunk.name);
        decode_chunk(format!("`{key}`"), &read(client, &key).await?, &chunk)
    });
    let mut chunks = std::pin::pin!(chunks.buffered(SLOTS_AT_ONCE));
    while let Some(tasks) = chunks.try_next().await? {
        tasks.into_iter().try_for_each(|task| state.insert(task))?;
    }
    state.set_archive(manifest.archive_table());
    Ok(manifest)
}

/// Reads the manifest of the snapshot at a position. Requests: 1 get.
pub(super) async fn read_manifest(client: &Client, position: LogPosition) -> Result<SnapshotManifest> {
    let key = keys::journal_snapshot(position.seq);
    SnapshotManifest::decode(format!("`{key}`"), &read(client, &key).await?, position)
}

/// Reads a part of a snapshot. Requests: 1 get.
pub(super) async fn read(client: &Client, key: &str) -> Result<Bytes> {
    let found = client.get(Purpose::Journal, key).await?.map(|object| object.body);
    found.ok_or_else(|| {
        let message = format!("`{key}`, a part of the journal's snapshot, is missing");
        Error::new(Kind::Corrupt, message)
    })
}

/// Deletes the manifest of the snapshot that `outdated` has replaced, and the chunks that only that one used. A key that could not be deleted stays, and does no harm.
pub(super) async fn delete_replaced(client: &Client, outdated: &SnapshotManifest) {
    let snapshot = outdated.previous.map(keys::journal_snapshot);
    let chunks = outdated.replaced.iter().map(|name| keys::journal_chunk(*name));
    for key in snapshot.into_iter().chain(chunks) {
        if let Err(error) = client.delete(Purpose::Journal, &key).await {
            tracing::debug!(%key, %error, "failed to delete a part of an old snapshot");
        }
    }
}
