//! Room in the cache: what was used longest ago makes it.

use leasehold_core::{ArtifactId, Error, Kind, Result};
use rustix::fs::{FlockOperation, flock};
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::Cache;
use crate::assemble::failed;
use crate::manifest::Manifest;

/// With more artifacts than this, a tenth of the cache is cleared at a time: all of them are looked at for it.
const MANY: usize = 1_000;

/// How a number of bytes is noted in the lock: always as long, so that one write replaces it.
const NOTE_BYTES: usize = 21;

/// One artifact in the cache, as lists show it.
#[derive(Debug, Clone)]
struct Stock {
    directory: PathBuf,
    bytes: u64,
    used: SystemTime,
}

impl Cache {
    /// Removes what was used longest ago until there is room for an artifact. What is here is counted only when it may be
    /// too much: the lock says how much it was, and what came since. It may say too much, and then it is counted; it never
    /// says too little.
    pub(super) fn make_room(&self, manifest: &Manifest, lock: &File) -> Result<()> {
        let (artifact, size) = (&manifest.artifact, manifest.cut.size());
        let ours = self.directory(artifact);
        let limit = self.bytes_max.unwrap_or(u64::MAX);
        if size > limit {
            return Err(Error::invalid(format!(
                "artifact {artifact} has {size} bytes, but the cache {} holds at most {limit}; raise its limit",
                self.root.display()
            )));
        }
        let part = ours.join("part");
        let needed = size.saturating_sub(allocated(&part));
        if let Some(noted) = read_total(lock) {
            // What was begun was counted then.
            let total = if part.exists() { noted } else { noted.saturating_add(size) };
            if total <= limit && self.free()? >= needed {
                return self.note_total(lock, total);
            }
        }
        let mut others: Vec<Stock> = self.stock()?;
        others.retain(|stock| stock.directory != ours);
        others.sort_by_key(|stock| stock.used);
        let mut held: u64 = others.iter().map(|stock| stock.bytes).sum();
        // What would not help is not removed.
        if self.free()?.saturating_add(held) < needed {
            return Err(self.disk_full(needed)?);
        }
        let spare = if others.len() > MANY { limit / 10 } else { 0 };
        for stock in others {
            if held.saturating_add(size).saturating_add(spare) <= limit && self.free()? >= needed {
                break;
            }
            if evict(&stock.directory) {
                tracing::debug!("{} was removed from the cache", stock.directory.display());
                held -= stock.bytes;
            }
        }
        if held.saturating_add(size) > limit {
            return Err(Error::new(
                Kind::Unavailable,
                format!(
                    "the cache {} is full of artifacts in use: {held} of {limit} bytes, and {size} are needed; \
                     raise its limit, or run less at once",
                    self.root.display()
                ),
            ));
        }
        if self.free()? < needed {
            return Err(self.disk_full(needed)?);
        }
        self.note_total(lock, held.saturating_add(size))
    }

    fn disk_full(&self, needed: u64) -> Result<Error> {
        let (place, free) = (self.root.display(), self.free()?);
        let message = format!("the disk is full: {needed} bytes are needed in {place}, and {free} are free");
        Ok(Error::new(Kind::Unavailable, message))
    }

    fn note_total(&self, lock: &File, bytes: u64) -> Result<()> {
        let noted = lock.write_all_at(format!("{bytes:020}\n").as_bytes(), 0);
        noted.map_err(|error| failed("write", &self.root.join("lock"), error))
    }

    /// Bytes that this disk has left.
    fn free(&self) -> Result<u64> {
        let told =
            rustix::fs::statvfs(&*self.root).map_err(|error| failed("look at", &self.root, error.into()))?;
        Ok(told.f_bavail.saturating_mul(told.f_frsize))
    }

    /// All that is here.
    fn stock(&self) -> Result<Vec<Stock>> {
        let read = || -> io::Result<Vec<Stock>> {
            let mut stock = Vec::new();
            for entry in fs::read_dir(&self.root)? {
                let entry = entry?;
                let is_artifact =
                    entry.file_name().to_str().is_some_and(|name| name.parse::<ArtifactId>().is_ok());
                if is_artifact {
                    stock.push(look(entry.path()));
                }
            }
            Ok(stock)
        };
        read().map_err(|error| failed("read", &self.root, error))
    }
}

/// How many bytes there are at most, as the lock says; nothing if it says nothing.
fn read_total(lock: &File) -> Option<u64> {
    let mut noted = [0; NOTE_BYTES];
    lock.read_exact_at(&mut noted, 0).ok()?;
    std::str::from_utf8(&noted).ok()?.strip_suffix('\n')?.parse().ok()
}

/// What lies in the directory of one artifact.
fn look(directory: PathBuf) -> Stock {
    let size = |name: &str| fs::metadata(directory.join(name)).map_or(0, |found| found.len());
    let used = fs::metadata(directory.join("manifest.json")).and_then(|found| found.modified());
    Stock { bytes: size("data") + size("part"), used: used.unwrap_or(SystemTime::UNIX_EPOCH), directory }
}

/// Bytes that a sparse file takes up already.
fn allocated(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    fs::metadata(path).map_or(0, |found| found.blocks() * 512)
}

/// Removes an artifact that nobody uses; false if somebody does.
pub(super) fn evict(directory: &Path) -> bool {
    let locks = ["data", "journal"].map(|name| lock_unused(&directory.join(name)));
    if locks.iter().any(Result::is_err) {
        return false;
    }
    // What is opened from now on is found to be gone by whoever has locked it.
    fs::remove_dir_all(directory).is_ok()
}

/// Locks a file that nobody uses; no file is nobody's.
fn lock_unused(path: &Path) -> io::Result<Option<File>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    Ok(Some(file))
}
