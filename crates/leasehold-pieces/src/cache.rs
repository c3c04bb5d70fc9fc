//! Cache of artifacts on this machine: a directory of bounded size, shared by all processes that are configured to use it.
//!
//! ```text
//!   <cache>/lock                   held while room is made; holds an upper bound of the bytes in the cache
//!   <cache>/serving                peer id under which the cache is served (see `serving`)
//!   <cache>/<hash>/manifest.json   copy of the store's; its modification time is when the artifact was last used
//!   <cache>/<hash>/data            the whole file, verified
//!   <cache>/<hash>/part, journal   a fetch in progress (see `assemble`)
//! ```
//!
//! A process that uses `data` holds a shared lock on it; a process that writes `part` holds an exclusive lock on `journal`.
//! A file that can be locked is not in use. When room is needed, the least recently used artifact is removed first.

mod eviction;
mod piece_source;
mod serving;

use leasehold_core::{ArtifactId, Error, HexName, Kind, Result};
use leasehold_store::{Host, HostExt};
use rustix::fs::{FlockOperation, flock};
use std::fs::{self, File, FileTimes};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

use crate::assemble::{Assembly, PartFile, Paths, io_error, is_still_at, is_unmodified};
use crate::manifest::{Manifest, ManifestRecord};
use eviction::evict;
pub use serving::ServingLock;

/// Longest wait for another process that makes no progress: longer than any lease on a piece.
const STALLED_FETCH_TIMEOUT: Duration = Duration::from_mins(6);

/// Pause between two checks whether another process has finished fetching the same artifact.
const OTHER_FETCH_PAUSE: Duration = Duration::from_millis(200);

/// Cache of artifacts on this machine. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Cache {
    root: Arc<Path>,
    bytes_max: Option<u64>,
}

/// A complete, verified artifact in the cache. It is not removed as long as this value lives.
#[derive(Debug)]
pub struct Cached {
    manifest: Manifest,
    path: PathBuf,
    /// Holds a shared lock as long as it is open.
    file: File,
}

impl Cached {
    /// Manifest of the artifact.
    #[must_use]
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Path of the file. All processes share it: read or copy it, and never modify it.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Copies the file to `to`, atomically. Blocks.
    pub fn copy_to(&self, to: &Path) -> Result<()> {
        let temporary = temporary_path(to, &self.manifest.artifact);
        let copied = (|| {
            let mut copy = File::options().write(true).create_new(true).open(&temporary)?;
            // Opened again: all users of the locked file share its read position.
            io::copy(&mut File::open(&self.path)?, &mut copy)?;
            fs::rename(&temporary, to)
        })();
        copied.map_err(|error| {
            let _ = fs::remove_file(&temporary);
            io_error("write", to, error)
        })
    }
}

/// State of an artifact in the cache when a fetch begins.
#[derive(Debug)]
pub(crate) enum CacheEntry {
    /// Fetched before, or by another process while we waited.
    Complete(Cached),
    /// Ours to fetch, resuming an earlier fetch if there was one.
    Incomplete(Arc<Assembly>),
}

impl Cache {
    /// Opens the cache in this directory, creating it if needed. It holds at most `bytes_max` bytes.
    pub fn open(root: impl Into<PathBuf>, bytes_max: Option<u64>) -> Result<Self> {
        let cache = Self::at(root, bytes_max)?;
        cache.create_root()?;
        Ok(cache)
    }

    /// Opens a cache whose directory is created on the first write.
    pub fn at(root: impl Into<PathBuf>, bytes_max: Option<u64>) -> Result<Self> {
        let root = root.into();
        let root = std::path::absolute(&root).map_err(|error| io_error("open the cache", &root, error))?;
        Ok(Self { root: root.into(), bytes_max })
    }

    /// Creates the directory, for this user alone: it holds files of tasks. An existing one keeps its permissions.
    fn create_root(&self) -> Result<()> {
        let created = fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.root);
        created.map_err(|error| io_error("create the cache", &self.root, error))
    }

    /// Directory of the cache.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the artifact if it is complete in the cache. Blocks.
    pub fn find(&self, artifact: &ArtifactId) -> Result<Option<Cached>> {
        let path = self.directory(artifact).join("data");
        let found = || -> io::Result<Option<File>> {
            let file = match File::open(&path) {
                Ok(file) => file,
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
                Err(error) => return Err(error),
            };
            flock(&file, FlockOperation::LockShared)?;
            Ok(is_still_at(&file, &path)?.then_some(file))
        };
        let Some(file) = found().map_err(|error| io_error("read", &path, error))? else { return Ok(None) };
        let Some(manifest) = self.manifest(artifact)? else { return Ok(None) };
        let found = file.metadata().map_err(|error| io_error("read", &path, error))?;
        if found.len() != manifest.cut.size() || !is_unmodified(&found) {
            tracing::warn!(path = %path.display(), "cached artifact was modified, fetching it again");
            drop(file);
            evict(&self.directory(artifact));
            return Ok(None);
        }
        self.touch(artifact);
        Ok(Some(Cached { manifest, path, file }))
    }

    /// Waits until the artifact is cached or ours to fetch. Fails if another process fetches it and makes no progress: it
    /// may be stopped.
    pub(crate) async fn begin(&self, manifest: &Manifest, host: &Arc<dyn Host>) -> Result<CacheEntry> {
        let mut progress = (0, host.instant());
        loop {
            let (cache, wanted) = (self.clone(), manifest.clone());
            if let Some(entry) = host.blocking(move || cache.try_begin(&wanted)).await? {
                return Ok(entry);
            }
            let (cache, artifact) = (self.clone(), manifest.artifact.clone());
            let written = host.blocking(move || Ok(cache.journal_bytes(&artifact))).await?;
            let now = host.instant();
            if written != progress.0 {
                progress = (written, now);
            }
            if now.since(progress.1) > STALLED_FETCH_TIMEOUT {
                return Err(self.no_progress_error(&manifest.artifact));
            }
            host.sleep(OTHER_FETCH_PAUSE).await;
        }
    }

    /// Length of the journal of a fetch in progress: it grows with every piece.
    fn journal_bytes(&self, artifact: &ArtifactId) -> u64 {
        let journal = Paths::in_directory(&self.directory(artifact)).journal;
        fs::metadata(journal).map_or(0, |found| found.len())
    }

    fn no_progress_error(&self, artifact: &ArtifactId) -> Error {
        let (mins, cache) = (STALLED_FETCH_TIMEOUT.as_secs() / 60, self.root.display());
        let message = format!(
            "another process is fetching artifact {artifact} into {cache} and has made no progress for {mins} minutes; \
             end it and retry"
        );
        Error::new(Kind::Unavailable, message)
    }

    fn try_begin(&self, manifest: &Manifest) -> Result<Option<CacheEntry>> {
        if let Some(cached) = self.find(&manifest.artifact)? {
            return Ok(Some(CacheEntry::Complete(cached)));
        }
        let PartFile::Ours(assembly) = self.reserve(manifest)? else { return Ok(None) };
        // Another process may have finished it between our check and our lock.
        if let Some(cached) = self.find(&manifest.artifact)? {
            assembly.discard();
            return Ok(Some(CacheEntry::Complete(cached)));
        }
        self.write_manifest(manifest)?;
        assembly.resume()?;
        Ok(Some(CacheEntry::Incomplete(Arc::from(assembly))))
    }

    /// Makes room for an artifact and reserves it: the part file has its full length from the beginning.
    fn reserve(&self, manifest: &Manifest) -> Result<PartFile> {
        let directory = self.directory(&manifest.artifact);
        let lock = self.lock()?;
        self.make_room(manifest, &lock)?;
        fs::create_dir_all(&directory).map_err(|error| io_error("create", &directory, error))?;
        Assembly::open(Paths::in_directory(&directory), manifest.clone())
    }

    /// Moves a complete download to its final name. Blocks.
    pub(crate) fn finish(&self, assembly: &Assembly) -> Result<Cached> {
        let artifact = &assembly.manifest().artifact;
        let finished = assembly.finish(&self.directory(artifact).join("data"));
        if matches!(&finished, Err(error) if error.kind() == Kind::Corrupt) {
            self.remove_corrupt(artifact);
        }
        finished?;
        let gone = || {
            Error::new(Kind::Unavailable, format!("artifact {artifact} was removed from the cache; retry"))
        };
        self.find(artifact)?.ok_or_else(gone)
    }

    /// Removes all files of a corrupt artifact.
    fn remove_corrupt(&self, artifact: &ArtifactId) {
        let _ = fs::remove_dir_all(self.directory(artifact));
    }

    /// Manifest of an artifact that is cached, completely or in part. A corrupt manifest counts as missing.
    fn manifest(&self, artifact: &ArtifactId) -> Result<Option<Manifest>> {
        let path = self.directory(artifact).join("manifest.json");
        match fs::read(&path) {
            Ok(bytes) => {
                let key = path.display().to_string();
                Ok(ManifestRecord::read(&key, artifact, &bytes).ok().and_then(ManifestRecord::readable))
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(io_error("read", &path, error)),
        }
    }

    fn write_manifest(&self, manifest: &Manifest) -> Result<()> {
        let path = self.directory(&manifest.artifact).join("manifest.json");
        let record = ManifestRecord::Published(manifest.clone());
        let bytes = record.write(&manifest.artifact, HexName::from_random(0));
        let temp = path.with_extension("new");
        let written = File::create(&temp).and_then(|mut file| file.write_all(&bytes));
        let named = written.and_then(|()| fs::rename(&temp, &path));
        named.map_err(|error| io_error("write", &path, error))
    }

    /// Marks an artifact as used. A failure only makes it an earlier candidate for removal.
    fn touch(&self, artifact: &ArtifactId) {
        let path = self.directory(artifact).join("manifest.json");
        #[expect(
            clippy::disallowed_methods,
            reason = "modification times are in the machine's time, and are only compared with each other"
        )]
        let now = SystemTime::now();
        let _ = File::options()
            .append(true)
            .open(path)
            .and_then(|file| file.set_times(FileTimes::new().set_modified(now)));
    }

    fn lock(&self) -> Result<File> {
        self.create_root()?;
        let path = self.root.join("lock");
        let lock = || -> io::Result<File> {
            let file = File::options().read(true).write(true).create(true).truncate(false).open(&path)?;
            flock(&file, FlockOperation::LockExclusive)?;
            Ok(file)
        };
        lock().map_err(|error| io_error("lock", &path, error))
    }

    fn directory(&self, artifact: &ArtifactId) -> PathBuf {
        self.root.join(artifact.as_str())
    }
}

impl Paths {
    fn in_directory(directory: &Path) -> Self {
        Self { part: directory.join("part"), journal: directory.join("journal") }
    }
}

/// Temporary path of a copy. Unique per copy, so that no copy truncates another.
fn temporary_path(to: &Path, artifact: &ArtifactId) -> PathBuf {
    static COPIES: AtomicU64 = AtomicU64::new(0);
    let name = to.file_name().unwrap_or_default().to_string_lossy();
    let (process, copy) = (std::process::id(), COPIES.fetch_add(1, Relaxed));
    let hash = &artifact.as_str()[..16.min(artifact.as_str().len())];
    to.with_file_name(format!(".{name}.{hash}.{process}-{copy}.leasehold"))
}
