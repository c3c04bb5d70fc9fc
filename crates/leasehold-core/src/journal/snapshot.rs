//! Snapshots: the live tasks at one position of the log, so that replay begins there and earlier commits can be deleted.
//!
//! ```text
//! journal/0/snapshot/{seq}      manifest: position in the log, chunks, fences
//! journal/0/state/{seq}-{n}     chunk: live tasks with ids of one range, in order, one per line
//! ```
//!
//! Both begin with a [sealed] header line. A later snapshot refers to the chunks of earlier ones that have not changed, so
//! that its size depends on what has changed, not on the number of pending tasks. The manifest contains the hash of each chunk.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::fmt;

use super::archive::{ArchiveName, ArchiveRef, ArchiveTable};
use super::commit::{CommitHash, LogPosition, Seq};
use super::sealed;
use super::task::EncodedTask;
use crate::error::{Error, Kind, Result};
use crate::ids::{TaskId, WriteId};
use crate::limits::{CHUNK_HEADER_BYTES_MAX, OBJECT_BYTES_MAX};
use crate::oversize;
use crate::time::StoreTime;

/// Newest format that this program reads and writes.
pub const FORMAT: u32 = 1;

/// List of the chunks of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotManifest {
    format: u32,
    /// Last commit that the snapshot covers.
    #[serde(flatten)]
    pub position: LogPosition,
    /// Time at which it was taken.
    pub at: StoreTime,
    /// Its chunks, in the order of their ids.
    pub chunks: Vec<ChunkRef>,
    /// Commits that are fences, which are never deleted (rule B1).
    pub fences: Vec<Seq>,
    /// Commits up to this one are deleted, except for fences.
    pub deleted_to: Seq,
    /// Snapshot before this one.
    pub previous: Option<Seq>,
    /// Chunks of the snapshot before this one that are not part of this one.
    pub replaced: Vec<ChunkName>,
    /// Objects of the archive.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub archive: Vec<ArchiveRef>,
    /// Objects of the archive that were removed and are yet to be deleted, with the time of their removal.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub archive_removed: Vec<(ArchiveName, StoreTime)>,
    write_id: WriteId,
}

/// Name of a chunk: the snapshot that wrote it, and its number there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ChunkName {
    /// Snapshot that wrote it.
    pub seq: Seq,
    /// Number among the chunks of that snapshot.
    pub number: u32,
}

/// A chunk, as a manifest refers to it. It has the tasks from its first id to that of the next chunk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChunkRef {
    /// Its name.
    #[serde(flatten)]
    pub name: ChunkName,
    /// First id of its range.
    pub first: TaskId,
    /// Number of its tasks.
    pub tasks: u64,
    /// Hash of the whole chunk.
    pub hash: CommitHash,
}

/// Header line of a chunk.
#[derive(Serialize, Deserialize)]
struct ChunkHeader {
    format: u32,
    #[serde(flatten)]
    name: ChunkName,
    tasks: u64,
    bytes: u64,
}

/// Part of a header by which a program tells whether it can read the rest.
#[derive(Deserialize)]
struct FormatOnly {
    format: u32,
}

impl SnapshotManifest {
    /// Creates the manifest of a snapshot; see the fields.
    #[must_use]
    pub fn new(position: LogPosition, at: StoreTime, chunks: Vec<ChunkRef>, write_id: WriteId) -> Self {
        Self {
            format: FORMAT,
            position,
            at,
            chunks,
            fences: Vec::new(),
            deleted_to: Seq::NONE,
            previous: None,
            replaced: Vec::new(),
            archive: Vec::new(),
            archive_removed: Vec::new(),
            write_id,
        }
    }

    /// Archive of the snapshot.
    #[must_use]
    pub fn archive_table(&self) -> ArchiveTable {
        ArchiveTable::new(self.archive.clone(), self.archive_removed.clone())
    }

    /// Sets the archive of the snapshot.
    pub fn set_archive(&mut self, table: &ArchiveTable) {
        self.archive = table.objects().cloned().collect();
        self.archive_removed = table.removed().map(|(name, at)| (name.clone(), at)).collect();
    }

    /// Returns the bytes of the manifest.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        sealed::seal(self, b"").0.into()
    }

    /// Parses the manifest of the snapshot at `position`; `name` stands for it in the error.
    pub fn decode(name: impl fmt::Display, body: &[u8], position: LogPosition) -> Result<Self> {
        let bytes_max = usize::try_from(OBJECT_BYTES_MAX).unwrap_or(usize::MAX);
        let (manifest, _, rest) = read_sealed::<Self>(body, bytes_max).map_err(|why| corrupt(&name, &why))?;
        if !rest.is_empty() {
            return Err(corrupt(name, "bytes follow its only line"));
        }
        if manifest.position != position {
            return Err(corrupt(name, "its position in the log is not the one that the lease names"));
        }
        Ok(manifest)
    }
}

/// Returns the bytes of a chunk, and the reference to it. `lines` are encoded tasks, each with a line end.
#[must_use]
pub fn encode_chunk(name: ChunkName, first: TaskId, tasks: u64, lines: &[u8]) -> (Bytes, ChunkRef) {
    let header = ChunkHeader { format: FORMAT, name, tasks, bytes: lines.len() as u64 };
    let (mut body, hash) = sealed::seal(&header, lines);
    body.extend_from_slice(lines);
    (body.into(), ChunkRef { name, first, tasks, hash })
}

/// Parses the tasks of a chunk; `name` stands for it in the error.
pub fn decode_chunk(name: impl fmt::Display, body: &[u8], expected: &ChunkRef) -> Result<Vec<EncodedTask>> {
    let (header, hash, lines) =
        read_sealed::<ChunkHeader>(body, CHUNK_HEADER_BYTES_MAX).map_err(|why| corrupt(&name, &why))?;
    if (header.name, hash) != (expected.name, expected.hash) {
        return Err(corrupt(name, "it is not the chunk that the snapshot refers to"));
    }
    let lines = lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let tasks = lines.map(EncodedTask::read).collect::<Result<Vec<_>>>();
    let tasks = tasks.map_err(|error| corrupt(&name, &error.to_string()))?;
    if tasks.len() as u64 != expected.tasks {
        return Err(corrupt(name, &format!("it has {} of {} tasks", tasks.len(), expected.tasks)));
    }
    Ok(tasks)
}

/// Reads a sealed header and its hash, and returns the bytes after it.
pub(super) fn read_sealed<'a, H: Deserialize<'a>>(
    body: &'a [u8],
    bytes_max: usize,
) -> Result<(H, CommitHash, &'a [u8]), String> {
    let line = sealed::first_line(body, bytes_max)
        .ok_or_else(|| oversize::reason(body).unwrap_or("it has no complete header").to_owned())?;
    let parsed = |error: serde_json::Error| format!("header: {error}");
    let FormatOnly { format } = serde_json::from_slice(line).map_err(parsed)?;
    if format > FORMAT {
        return Err(format!(
            "format {format} is newer than the supported format {FORMAT}; upgrade leasehold"
        ));
    }
    let rest = &body[line.len() + 1..];
    let hash = sealed::check(line, rest)?;
    Ok((serde_json::from_slice(line).map_err(parsed)?, hash, rest))
}

fn corrupt(name: impl fmt::Display, why: &str) -> Error {
    Error::new(Kind::Corrupt, format!("{name} is not a valid part of a snapshot: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::task::JournalTask;
    use crate::testing;

    fn chunk() -> (Bytes, ChunkRef, Vec<EncodedTask>) {
        let tasks: Vec<_> = (1..4)
            .map(|number| {
                let mut task = testing::pending();
                task.id = TaskId::from_random(number);
                JournalTask { task, key: None, claim: None }.encode()
            })
            .collect();
        let mut lines = Vec::new();
        for task in &tasks {
            lines.extend_from_slice(task.body());
            lines.push(b'\n');
        }
        let (body, reference) =
            encode_chunk(ChunkName { seq: Seq::new(7), number: 2 }, tasks[0].id(), 3, &lines);
        (body, reference, tasks)
    }

    #[test]
    fn a_chunk_has_its_tasks_and_no_changed_bit_stays_unnoticed() {
        let (body, reference, tasks) = chunk();
        assert_eq!(decode_chunk("chunk", &body, &reference).unwrap(), tasks);
        for place in 0..body.len() {
            let mut changed = body.to_vec();
            changed[place] ^= 1;
            assert_eq!(
                decode_chunk("chunk", &changed, &reference).unwrap_err().kind(),
                Kind::Corrupt,
                "{place}"
            );
            assert!(decode_chunk("chunk", &body[..place], &reference).is_err(), "{place}");
        }
        let other = ChunkRef { name: ChunkName { seq: Seq::new(7), number: 3 }, ..reference };
        assert!(decode_chunk("chunk", &body, &other).is_err());
    }

    #[test]
    fn a_manifest_survives_and_names_its_position() {
        let (_, reference, _) = chunk();
        let position = LogPosition { seq: Seq::new(7), hash: reference.hash };
        let mut manifest = SnapshotManifest::new(
            position,
            StoreTime::from_millis(5),
            vec![reference],
            WriteId::from_random(1),
        );
        manifest.fences = vec![Seq::new(1), Seq::new(6)];
        manifest.replaced = vec![ChunkName { seq: Seq::new(2), number: 0 }];
        let body = manifest.encode();
        assert_eq!(SnapshotManifest::decode("snapshot", &body, position).unwrap(), manifest);
        let wrong = LogPosition { seq: Seq::new(8), ..position };
        assert!(SnapshotManifest::decode("snapshot", &body, wrong).is_err());
        for place in 0..body.len() {
            let mut changed = body.to_vec();
            changed[place] ^= 1;
            assert!(SnapshotManifest::decode("snapshot", &changed, position).is_err(), "{place}");
        }
    }

    #[test]
    fn a_newer_format_asks_for_an_upgrade() {
        let error = read_sealed::<ChunkHeader>(b"{\"format\":2}\n", 100).err().unwrap();
        assert!(error.contains("upgrade leasehold"), "{error}");
    }
}
