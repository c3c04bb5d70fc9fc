//! Chunks of a broker's newest snapshot: which of them have changed since, and which tasks are evicted from memory.
//!
//! ```text
//!   captured ─▶ written ─▶ named by the lease ─▶ its tasks may be evicted ─▶ one changes ─▶ captured with the next snapshot
//! ```

use leasehold_core::journal::{
    ChunkRef, JournalRecord, JournalState, LiveBody, LogPosition, Seq, SnapshotManifest,
};
use leasehold_core::limits::CHUNK_BYTES;
use leasehold_core::{StoreTime, TaskId};
use leasehold_store::mutant::breaks;
use std::cmp::Reverse;
use std::collections::BTreeSet;

use super::snapshot::{CapturedSnapshot, ChangedChunk, EvictedLine, SnapshotPart};

/// Chunks of the newest snapshot, and those that have changed since.
#[derive(Debug, Default)]
pub(super) struct ChunkTable {
    /// In the order of their ids; together they cover all ids.
    chunks: Vec<TableChunk>,
    /// Newest snapshot; none before the first.
    manifest: Option<SnapshotManifest>,
    /// Commits that are fences.
    fences: BTreeSet<Seq>,
    /// Number of chunks that were read back.
    reads: u64,
}

#[derive(Debug, Clone)]
struct TableChunk {
    first: TaskId,
    /// None if it was captured, and the lease does not name it yet.
    written: Option<ChunkRef>,
    is_changed: bool,
    /// False if its tasks are evicted.
    is_resident: bool,
    /// Number of its last read; 0 if it was not read back.
    read: u64,
}

/// Chunk of the newest snapshot, with the end of its range of ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BackingChunk {
    pub(super) chunk: ChunkRef,
    /// First id of the next chunk.
    pub(super) end: Option<TaskId>,
}

impl ChunkTable {
    /// Table of a snapshot that was loaded.
    pub(super) fn new(manifest: SnapshotManifest) -> Self {
        let fences = manifest.fences.iter().copied().collect();
        let written = |chunk: &ChunkRef| TableChunk {
            first: chunk.first,
            written: Some(chunk.clone()),
            is_changed: false,
            is_resident: true,
            read: 0,
        };
        let chunks = manifest.chunks.iter().map(written).collect();
        Self { chunks, manifest: Some(manifest), fences, reads: 0 }
    }

    /// Chunk that has an evicted task.
    pub(super) fn backing(&self, id: &TaskId) -> Option<BackingChunk> {
        self.manifest.as_ref().and_then(|manifest| backing(manifest, id))
    }

    /// True if a chunk is part of the newest snapshot, so that it has the current revision of each of its tasks that is still evicted.
    pub(super) fn is_backing(&self, backing: &BackingChunk) -> bool {
        self.backing(&backing.chunk.first).as_ref() == Some(backing)
    }

    /// Notes that a chunk was read back: it is evicted after those that were read before.
    pub(super) fn was_read_back(&mut self, backing: &BackingChunk) {
        self.reads += 1;
        for chunk in &mut self.chunks {
            if chunk.first >= backing.chunk.first && backing.end.is_none_or(|end| chunk.first < end) {
                (chunk.is_resident, chunk.read) = (true, self.reads);
            }
        }
    }

    /// Evicts the tasks of unchanged chunks while a state has more bytes in memory than `bytes_max`. Chunks that were never read
    /// back are evicted first, newest first, because claims begin with the oldest tasks; then those that were read back longest ago.
    pub(super) fn evict(&mut self, state: &mut JournalState, bytes_max: u64) {
        if state.resident_bytes() <= bytes_max {
            return;
        }
        let is_stale = breaks("changed-chunk-evicted");
        let may_go = |chunk: &TableChunk| {
            chunk.is_resident && chunk.written.is_some() && (!chunk.is_changed || is_stale)
        };
        let places = self.chunks.iter().enumerate().filter(|(_, chunk)| may_go(chunk));
        let mut places: Vec<_> = places.map(|(place, chunk)| (chunk.read, Reverse(place))).collect();
        places.sort_unstable();
        for (_, Reverse(place)) in places {
            if state.resident_bytes() <= bytes_max {
                return;
            }
            state.evict(self.chunks[place].first, self.chunks.get(place + 1).map(|next| next.first));
            self.chunks[place].is_resident = false;
        }
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
        let (mut parts, mut chunks) = (Vec::new(), Vec::new());
        let mut ranges = self.chunks.iter().enumerate().peekable();
        let ends = |place: usize| self.chunks.get(place + 1).map(|chunk| chunk.first);
        if ranges.peek().is_none() {
            split(state, None, None, &mut parts, &mut chunks);
        }
        while let Some((place, chunk)) = ranges.next() {
            if let (Some(written), false) = (&chunk.written, chunk.is_changed) {
                parts.push(SnapshotPart::Unchanged(written.clone()));
                chunks.push(chunk.clone());
                continue;
            }
            // Neighbours that have changed are divided anew together, so that no chunk stays small.
            let mut last = place;
            while let Some((next, _)) = ranges.next_if(|(_, next)| next.is_changed || next.written.is_none())
            {
                last = next;
            }
            let first = (place > 0).then_some(chunk.first);
            split(state, first, ends(last), &mut parts, &mut chunks);
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
        self.chunks = chunks;
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

/// Divides the tasks of a range into chunks.
fn split(
    state: &JournalState,
    from: Option<TaskId>,
    to: Option<TaskId>,
    parts: &mut Vec<SnapshotPart>,
    chunks: &mut Vec<TableChunk>,
) {
    let mut push = |chunk: ChangedChunk| {
        let (first, written, is_changed) = (chunk.first, None, false);
        chunks.push(TableChunk { first, written, is_changed, is_resident: true, read: 0 });
        parts.push(SnapshotPart::Changed(chunk));
    };
    let tasks = state.bodies_from(from).take_while(|(id, _)| to.is_none_or(|to| *id < to));
    let (mut chunk, mut bytes) = (ChangedChunk::new(from.unwrap_or_else(TaskId::least)), 0);
    for (id, body) in tasks {
        if bytes >= CHUNK_BYTES {
            push(std::mem::replace(&mut chunk, ChangedChunk::new(id)));
            bytes = 0;
        }
        chunk.tasks += 1;
        match body {
            LiveBody::Resident(body) => {
                chunk.lines.extend_from_slice(&body);
                chunk.lines.push(b'\n');
                bytes += body.len() + 1;
            }
            LiveBody::Evicted { rev, bytes: length } => {
                chunk.evicted.push(EvictedLine { offset: chunk.lines.len(), id, rev });
                bytes += length + 1;
            }
        }
    }
    push(chunk);
}

/// Chunk of a snapshot that has a task.
pub(super) fn backing(manifest: &SnapshotManifest, id: &TaskId) -> Option<BackingChunk> {
    let after = manifest.chunks.partition_point(|chunk| chunk.first <= *id);
    let chunk = manifest.chunks.get(after.checked_sub(1)?)?.clone();
    Some(BackingChunk { chunk, end: manifest.chunks.get(after).map(|next| next.first) })
}
