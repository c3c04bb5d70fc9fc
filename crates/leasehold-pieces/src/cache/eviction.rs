//! Makes room in the cache by removing the least recently used artifacts.

use leasehold_core::{ArtifactId, Error, Kind, Result};
use rustix::fs::{FlockOperation, flock};
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::Cache;
use crate::assemble::io_error;
use crate::manifest::Manifest;

/// With more artifacts than this, a tenth of the cache is cleared at a time, because each clearing reads all directories.
const MANY_ARTIFACTS: usize = 1_000;

/// Length of the byte count in the lock file: fixed, so that one write replaces it.
const TOTAL_BYTES_LEN: usize = 21;

/// One artifact in the cache.
#[derive(Debug, Clone)]
struct EvictionCandidate {
    directory: PathBuf,
    bytes: u64,
    used: SystemTime,
}

impl Cache {
    /// Removes the least recently used artifacts until there is room for another one. The lock file holds an upper bound of
    /// the cached bytes; the files are counted only when that bound exceeds the limit.
    pub(super) fn make_room(&self, manifest: &Manifest, lock: &File) -> Result<()> {
        let (artifact, size) = (&manifest.artifact, manifest.cut.size());
        let ours = self.directory(artifact);
        let limit = self.bytes_max.unwrap_or(u64::MAX);
        if size > limit {
            return Err(Error::invalid(format!(
                "artifact {artifact} has {size} bytes, but cache {} holds at most {limit}; raise its limit",
                self.root.display()
            )));
        }
        let part = ours.join("part");
        let needed = size.saturating_sub(allocated(&part));
        if let Some(noted) = read_total(lock) {
            // A fetch that was begun earlier is already counted.
            let total = if part.exists() { noted } else { noted.saturating_add(size) };
            if total <= limit && self.free_bytes()? >= needed {
                return self.write_total(lock, total);
            }
        }
        let mut others: Vec<EvictionCandidate> = self.eviction_candidates()?;
        others.retain(|candidate| candidate.directory != ours);
        others.sort_by_key(|candidate| candidate.used);
        let mut held: u64 = others.iter().map(|candidate| candidate.bytes).sum();
        // Nothing is removed if that would not free enough.
        if self.free_bytes()?.saturating_add(held) < needed {
            return Err(self.disk_full(needed)?);
        }
        let spare = if others.len() > MANY_ARTIFACTS { limit / 10 } else { 0 };
        for candidate in others {
            if held.saturating_add(size).saturating_add(spare) <= limit && self.free_bytes()? >= needed {
                break;
            }
            if evict(&candidate.directory) {
                tracing::debug!(directory = %candidate.directory.display(), "removed artifact from cache");
                held -= candidate.bytes;
            }
        }
        if held.saturating_add(size) > limit {
            return Err(Error::new(
                Kind::Unavailable,
                format!(
                    "cache {} is full: artifacts in use take {held} of {limit} bytes, and {size} more are needed; \
                     raise its limit or run fewer tasks at once",
                    self.root.display()
                ),
            ));
        }
        if self.free_bytes()? < needed {
            return Err(self.disk_full(needed)?);
        }
        self.write_total(lock, held.saturating_add(size))
    }

    fn disk_full(&self, needed: u64) -> Result<Error> {
        let (place, free) = (self.root.display(), self.free_bytes()?);
        let message = format!("cannot cache {needed} bytes in {place}: the disk has {free} bytes free");
        Ok(Error::new(Kind::Unavailable, message))
    }

    fn write_total(&self, lock: &File, bytes: u64) -> Result<()> {
        let written = lock.write_all_at(format!("{bytes:020}\n").as_bytes(), 0);
        written.map_err(|error| io_error("write", &self.root.join("lock"), error))
    }

    /// Free bytes on the disk of the cache.
    fn free_bytes(&self) -> Result<u64> {
        let stat = rustix::fs::statvfs(&*self.root)
            .map_err(|error| io_error("read the free space of", &self.root, error.into()))?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    /// Lists all artifacts in the cache.
    fn eviction_candidates(&self) -> Result<Vec<EvictionCandidate>> {
        let read = || -> io::Result<Vec<EvictionCandidate>> {
            let mut candidates = Vec::new();
            for entry in fs::read_dir(&self.root)? {
                let entry = entry?;
                let is_artifact =
                    entry.file_name().to_str().is_some_and(|name| name.parse::<ArtifactId>().is_ok());
                if is_artifact {
                    candidates.push(read_candidate(entry.path()));
                }
            }
            Ok(candidates)
        };
        read().map_err(|error| io_error("read", &self.root, error))
    }
}

/// Reads the upper bound of cached bytes from the lock file; `None` if it holds none.
fn read_total(lock: &File) -> Option<u64> {
    let mut noted = [0; TOTAL_BYTES_LEN];
    lock.read_exact_at(&mut noted, 0).ok()?;
    std::str::from_utf8(&noted).ok()?.strip_suffix('\n')?.parse().ok()
}

/// Reads the size and last use of one artifact.
fn read_candidate(directory: PathBuf) -> EvictionCandidate {
    let size = |name: &str| fs::metadata(directory.join(name)).map_or(0, |found| found.len());
    let used = fs::metadata(directory.join("manifest.json")).and_then(|found| found.modified());
    EvictionCandidate {
        bytes: size("data") + size("part"),
        used: used.unwrap_or(SystemTime::UNIX_EPOCH),
        directory,
    }
}

/// Bytes that are already allocated to a sparse file.
fn allocated(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    fs::metadata(path).map_or(0, |found| found.blocks() * 512)
}

/// Removes an artifact; false if it is in use.
pub(super) fn evict(directory: &Path) -> bool {
    let locks = ["data", "journal"].map(|name| lock_unused(&directory.join(name)));
    if locks.iter().any(Result::is_err) {
        return false;
    }
    // A process that opens a file from now on notices the removal after it has locked the file.
    fs::remove_dir_all(directory).is_ok()
}

/// Locks a file that is not in use. A missing file is not in use.
fn lock_unused(path: &Path) -> io::Result<Option<File>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    Ok(Some(file))
}
