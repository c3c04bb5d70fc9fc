//! Content of an archive object: a sealed header line, and one task per line, sorted by id.
//!
//! ```text
//! {"format":1,"name":"20231114/…","tasks":2,"bytes":812,"checksum":"…"}
//! {…task, encoded as in a chunk…}
//! {…task…}
//! ```

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::super::commit::CommitHash;
use super::super::sealed;
use super::super::snapshot::read_sealed;
use super::super::task::EncodedTask;
use super::{ArchiveName, ArchiveRef};
use crate::error::{Error, Kind, Result};
use crate::ids::{HexName, TaskId};
use crate::limits::{CHUNK_BYTES, CHUNK_HEADER_BYTES_MAX};
use crate::task::Status;

/// Newest format that this program reads and writes.
pub const FORMAT: u32 = 1;

/// Header line of an archive object.
#[derive(Serialize, Deserialize)]
struct ArchiveHeader {
    format: u32,
    name: ArchiveName,
    tasks: u64,
    bytes: u64,
}

/// Task for the archive.
pub type ArchiveInput = EncodedTask;

/// Object that is to be put, or was put.
#[derive(Debug, Clone)]
pub struct WrittenArchive {
    /// The object as the table refers to it, if none of its copies is outdated.
    pub reference: ArchiveRef,
    /// Its bytes.
    pub body: Bytes,
    /// Its tasks with their statuses.
    pub tasks: BTreeMap<TaskId, Status>,
}

/// Encodes tasks of one day, sorted by id and without repetition, into as few objects as their size allows. `new_id` draws
/// random ids.
#[must_use]
pub fn encode_archives(tasks: &[ArchiveInput], mut new_id: impl FnMut() -> HexName) -> Vec<WrittenArchive> {
    let (mut objects, mut begin, mut bytes) = (Vec::new(), 0, 0);
    for (place, task) in tasks.iter().enumerate() {
        if bytes >= CHUNK_BYTES {
            objects.extend(encode(&tasks[begin..place], new_id()));
            (begin, bytes) = (place, 0);
        }
        bytes += task.body().len() + 1;
    }
    objects.extend(encode(&tasks[begin..], new_id()));
    objects
}

fn encode(tasks: &[ArchiveInput], id: HexName) -> Option<WrittenArchive> {
    let name = ArchiveName::new(tasks.first()?.id(), tasks.last()?.id(), id);
    let mut lines = Vec::new();
    for task in tasks {
        lines.extend_from_slice(task.body());
        lines.push(b'\n');
    }
    let (count, bytes) = (tasks.len() as u64, lines.len() as u64);
    let header = ArchiveHeader { format: FORMAT, name: name.clone(), tasks: count, bytes };
    let (mut body, hash) = sealed::seal(&header, &lines);
    body.extend_from_slice(&lines);
    let mut counts = BTreeMap::new();
    for task in tasks {
        *counts.entry(task.status()).or_default() += 1;
    }
    let ended = || tasks.iter().map(EncodedTask::time);
    let reference = ArchiveRef {
        name,
        hash,
        bytes: body.len() as u64,
        counts,
        earliest: ended().min()?,
        latest: ended().max()?,
        keys_until: tasks.iter().filter_map(EncodedTask::key_expires_at).max(),
        outdated: BTreeSet::new(),
    };
    let tasks = tasks.iter().map(|task| (task.id(), task.status())).collect();
    Some(WrittenArchive { reference, body: body.into(), tasks })
}

/// Parses the tasks of an object, without those that are outdated; `name` stands for the object in the error.
pub fn decode_archive(
    name: impl fmt::Display,
    body: &[u8],
    expected: &ArchiveRef,
) -> Result<Vec<ArchiveInput>> {
    let corrupt =
        |why: &str| Error::new(Kind::Corrupt, format!("{name} is not a valid archive object: {why}"));
    let (header, hash, lines): (ArchiveHeader, CommitHash, _) =
        read_sealed(body, CHUNK_HEADER_BYTES_MAX).map_err(|why| corrupt(&why))?;
    if (&header.name, hash) != (&expected.name, expected.hash) {
        return Err(corrupt("it is not the object that the table refers to"));
    }
    let lines = lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let tasks = lines.map(EncodedTask::read).collect::<Result<Vec<_>>>();
    let mut tasks = tasks.map_err(|error| corrupt(&error.to_string()))?;
    if tasks.len() as u64 != header.tasks {
        return Err(corrupt(&format!("it has {} of {} tasks", tasks.len(), header.tasks)));
    }
    tasks.retain(|task| !expected.outdated.contains(&task.id()));
    Ok(tasks)
}
