//! Snapshots of a journal: taken by the broker, loaded by the next one and by processes that only read.
//!
//! ```text
//!   everything decided is confirmed ─▶ capture the changed chunks ─▶ chunks ─▶ manifest ─▶ lease ─▶ delete what is not needed
//! ```
//!
//! A snapshot covers confirmed commits only (rule B13): the broker takes no request while the commit in flight is confirmed,
//! and then copies the changed chunks. Everything after that happens while it serves requests. The snapshot counts from the
//! moment at which the lease names it, which also fixes what may be deleted (rule B7).
//!
//! Tasks of a chunk that the lease's snapshot has, and that has not changed since, may be evicted from memory. So the chunks of
//! that snapshot have every evicted task, at any time: a changed chunk is written with those that the old one has.

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use leasehold_core::journal::snapshot::{decode_chunk, encode_chunk};
use leasehold_core::journal::{
    ArchiveTable, ChunkName, ChunkRef, EncodedTask, JournalState, LogPosition, Seq, SnapshotManifest,
};
use leasehold_core::limits::SLOTS_AT_ONCE;
use leasehold_core::{Error, Kind, Result, StoreTime, TaskId, keys};
use leasehold_store::mutant::breaks;
use leasehold_store::{Client, Purpose, PutOutcome, When};
use std::borrow::Cow;
use std::collections::BTreeSet;

use super::chunks::backing;

/// Part of a state that is to be written.
#[derive(Debug)]
pub(super) struct CapturedSnapshot {
    pub(super) position: LogPosition,
    pub(super) at: StoreTime,
    pub(super) parts: Vec<SnapshotPart>,
    pub(super) archive: ArchiveTable,
    pub(super) fences: Vec<Seq>,
    pub(super) deleted_to: Seq,
    pub(super) previous: Option<SnapshotManifest>,
}

#[derive(Debug)]
pub(super) enum SnapshotPart {
    Unchanged(ChunkRef),
    Changed(ChangedChunk),
}

/// Lines of a chunk, without those of evicted tasks.
#[derive(Debug)]
pub(super) struct ChangedChunk {
    pub(super) first: TaskId,
    pub(super) tasks: u64,
    pub(super) lines: Vec<u8>,
    pub(super) evicted: Vec<EvictedLine>,
}

/// Line of an evicted task, which the chunk of the snapshot before has.
#[derive(Debug)]
pub(super) struct EvictedLine {
    /// Offset in the other lines at which it belongs.
    pub(super) offset: usize,
    pub(super) id: TaskId,
    pub(super) rev: u64,
}

impl ChangedChunk {
    pub(super) fn new(first: TaskId) -> Self {
        Self { first, tasks: 0, lines: Vec::new(), evicted: Vec::new() }
    }

    /// Its lines, with those of evicted tasks. Requests: 1 get for each chunk of the snapshot before that has some of them.
    async fn complete(&self, client: &Client, before: Option<&SnapshotManifest>) -> Result<Cow<'_, [u8]>> {
        if self.evicted.is_empty() {
            return Ok(Cow::Borrowed(&self.lines));
        }
        let (mut lines, mut copied, mut read) = (Vec::new(), 0, None);
        for EvictedLine { offset, id, rev } in &self.evicted {
            let backing = before.and_then(|before| backing(before, id)).ok_or_else(|| no_chunk(id))?;
            let tasks = match &read {
                Some((chunk, tasks)) if *chunk == backing => tasks,
                _ => {
                    let tasks = read_chunk(client, &backing.chunk).await?;
                    &read.insert((backing, tasks)).1
                }
            };
            let place = tasks.binary_search_by_key(id, EncodedTask::id).ok();
            let task = place.map(|place| &tasks[place]).filter(|task| task.rev() == *rev);
            lines.extend_from_slice(&self.lines[copied..*offset]);
            lines.extend_from_slice(task.ok_or_else(|| no_chunk(id))?.body());
            lines.push(b'\n');
            copied = *offset;
        }
        lines.extend_from_slice(&self.lines[copied..]);
        Ok(Cow::Owned(lines))
    }
}

/// Error of an evicted task that no chunk has.
pub(super) fn no_chunk(id: &TaskId) -> Error {
    Error::new(Kind::Internal, format!("task {id} is evicted, and no chunk has it"))
}

impl CapturedSnapshot {
    /// Writes the changed chunks, then the manifest. Requests: 1 put per changed chunk, and 1; 1 get per chunk of the snapshot
    /// before whose evicted tasks they have.
    pub(super) async fn write(self, client: &Client) -> Result<SnapshotManifest> {
        let seq = self.position.seq;
        let mut chunks = Vec::with_capacity(self.parts.len());
        let mut number = 0;
        for part in self.parts {
            chunks.push(match part {
                SnapshotPart::Unchanged(chunk) => chunk,
                SnapshotPart::Changed(mut changed) => {
                    let name = ChunkName { seq, number };
                    number += 1;
                    if breaks("evicted-not-in-snapshot") {
                        changed.tasks -= changed.evicted.len() as u64;
                        changed.evicted.clear();
                    }
                    let lines = changed.complete(client, self.previous.as_ref()).await?;
                    let (body, chunk) = encode_chunk(name, changed.first, changed.tasks, &lines);
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

/// Loads the snapshot at a position: its tasks into `state`, and its manifest. Tasks of chunks after the first ones are evicted
/// if they have more bytes than `bytes_max`. Requests: 1 get, and 1 per chunk.
pub(super) async fn load(
    client: &Client,
    position: LogPosition,
    bytes_max: u64,
    state: &mut JournalState,
) -> Result<SnapshotManifest> {
    let manifest = read_manifest(client, position).await?;
    let chunks = stream::iter(manifest.chunks.clone())
        .map(|chunk| async move { Ok::<_, Error>((chunk.first, read_chunk(client, &chunk).await?)) });
    let mut chunks = std::pin::pin!(chunks.buffered(SLOTS_AT_ONCE));
    while let Some((first, tasks)) = chunks.try_next().await? {
        tasks.into_iter().try_for_each(|task| state.insert(task))?;
        if state.resident_bytes() > bytes_max {
            // The next chunks are not loaded yet.
            state.evict(first, None);
        }
    }
    state.set_archive(manifest.archive_table());
    Ok(manifest)
}

/// Reads the tasks of a chunk. Requests: 1 get.
pub(super) async fn read_chunk(client: &Client, chunk: &ChunkRef) -> Result<Vec<EncodedTask>> {
    let key = keys::journal_chunk(chunk.name);
    decode_chunk(format!("`{key}`"), &read(client, &key).await?, chunk)
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
