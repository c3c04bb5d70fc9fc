//! Disks of the machines: a real directory, and the writes that a power cut loses.

use futures::future::BoxFuture;
use leasehold_core::{ArtifactId, Name, Result};
use leasehold_pieces::{Algorithm, ArtifactStore, Cache};
use leasehold_store::Host;
use leasehold_worker::{ArtifactIo, ProgressFn, StagedFile};
use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;

use crate::executor::ProcessId;
use crate::host::SimHost;
use crate::random::SimRandom;

/// Sizes of the published files: empty, less than a piece, a piece, several, and a partial last piece.
const SIZES: [u64; 8] = [0, 1, 700, 1_024, 1_025, 3_000, 4_096, 9_999];

/// Directory in memory, which is faster than a disk.
const MEMORY: &str = "/dev/shm";

/// Rate of power cuts: one file in this number.
const POWER_CUT_ONE_IN: u64 = 6;

/// Layout of a piece journal, header and record length: see `leasehold-pieces`, `assemble.rs`.
const HEAD_BYTES: usize = 24;
const NOTE_BYTES: usize = 8;

/// Disks of a world. Clones share them.
#[derive(Clone)]
pub(super) struct SimDisk {
    root: Arc<TempDir>,
    /// All content that can ever be published, by its id.
    known: Arc<BTreeMap<ArtifactId, Vec<u8>>>,
}

impl SimDisk {
    /// Creates the disks, with the files of the producers.
    pub(super) fn new(rng: &mut SimRandom) -> io::Result<Self> {
        let root = if Path::new(MEMORY).is_dir() { TempDir::new_in(MEMORY)? } else { TempDir::new()? };
        let mut known = BTreeMap::new();
        for (number, size) in SIZES.into_iter().enumerate() {
            let bytes: Vec<u8> = (0..size).map(|_| rng.next().to_le_bytes()[0]).collect();
            fs::write(input_in(root.path(), number), &bytes)?;
            let derived = derive(&bytes);
            known.insert(name_of(&bytes)?, bytes);
            known.insert(name_of(&derived)?, derived);
        }
        fs::create_dir(root.path().join("results"))?;
        Ok(Self { root: Arc::new(root), known: Arc::new(known) })
    }

    /// Number of files of the producers.
    pub(super) const INPUTS: usize = SIZES.len();

    /// Path of a producer's file.
    pub(super) fn input(&self, number: usize) -> PathBuf {
        input_in(self.root.path(), number)
    }

    /// Returns the content of an artifact.
    pub(super) fn bytes_of(&self, artifact: &ArtifactId) -> Option<&[u8]> {
        self.known.get(artifact).map(Vec::as_slice)
    }

    /// Opens the cache of a machine.
    pub(super) fn cache(&self, machine: &str) -> Result<Cache> {
        Cache::open(self.root.path().join(machine), None)
    }

    /// Writes the result of a run.
    pub(super) fn write_result(&self, run: &str, bytes: &[u8]) -> io::Result<PathBuf> {
        let path = self.root.path().join("results").join(run);
        fs::write(&path, bytes)?;
        Ok(path)
    }

    /// Replaces the disk of a machine by an empty one.
    pub(super) fn wipe(&self, machine: &str) {
        // The directory may not exist yet.
        drop(fs::remove_dir_all(self.root.path().join(machine)));
    }

    /// Simulates a power cut: of every file that is being assembled, the piece recorded last has not reached
    /// the disk.
    pub(super) fn cut_power(&self, machine: &str) -> io::Result<u64> {
        let Ok(entries) = fs::read_dir(self.root.path().join(machine)) else { return Ok(0) };
        let mut torn = 0;
        for entry in entries {
            torn += u64::from(drop_last_piece(&entry?.path())?);
        }
        Ok(torn)
    }
}

/// Fetcher of a machine that loses power when a file is complete, but not yet renamed.
pub(super) struct PowerLossIo {
    pub(super) artifacts: ArtifactStore,
    pub(super) host: Arc<SimHost>,
    pub(super) kill: Arc<dyn Fn(ProcessId) -> bool + Send + Sync>,
}

impl fmt::Debug for PowerLossIo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.artifacts.fmt(f)
    }
}

impl ArtifactIo for PowerLossIo {
    fn fetch<'a>(
        &'a self,
        artifact: &'a ArtifactId,
        progress: ProgressFn<'a>,
    ) -> BoxFuture<'a, Result<StagedFile>> {
        Box::pin(async move {
            let report = |bytes, of| {
                progress(bytes, of);
                if bytes == of && self.host.random().is_multiple_of(POWER_CUT_ONE_IN) {
                    (self.kill)(self.host.process());
                }
            };
            ArtifactIo::fetch(&self.artifacts, artifact, &report).await
        })
    }

    fn publish<'a>(
        &'a self,
        name: &'a Name,
        path: &'a Path,
        stopped: BoxFuture<'a, ()>,
    ) -> BoxFuture<'a, Result<ArtifactId>> {
        ArtifactIo::publish(&self.artifacts, name, path, stopped)
    }
}

fn drop_last_piece(directory: &Path) -> io::Result<bool> {
    let Ok(journal) = fs::read(directory.join("journal")) else { return Ok(false) };
    let number = |bytes: &[u8]| u64::from(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
    let Some(last) = journal.get(HEAD_BYTES..).and_then(|notes| notes.chunks_exact(NOTE_BYTES).last()) else {
        return Ok(false);
    };
    let piece_bytes = number(&journal[16..20]);
    let part = File::options().write(true).open(directory.join("part"))?;
    let (begin, size) = (number(last) * piece_bytes, part.metadata()?.len());
    let zeros = piece_bytes.min(size.saturating_sub(begin));
    part.write_all_at(&vec![0; usize::try_from(zeros).unwrap_or(0)], begin)?;
    Ok(true)
}

fn input_in(root: &Path, number: usize) -> PathBuf {
    root.join(format!("input-{number}"))
}

/// Derives the result of a handler from a file.
pub(super) fn derive(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().rev().copied().collect()
}

/// Computes the id of some bytes independently of their publisher.
pub(super) fn name_of(bytes: &[u8]) -> io::Result<ArtifactId> {
    Algorithm::Blake3.hash(bytes).to_string().parse().map_err(io::Error::other)
}
