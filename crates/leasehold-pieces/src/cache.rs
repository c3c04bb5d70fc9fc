//! The artifacts of this machine: a directory with a bound, shared by all processes that are told of it.
//!
//! ```text
//!   <cache>/lock                   held while room is made; says how many bytes there are at most
//!   <cache>/serving                under which name the cache is served (see `serving`)
//!   <cache>/<hash>/manifest.json   as it was in the store; its stamp is when the artifact was last used
//!   <cache>/<hash>/data            the whole, verified
//!   <cache>/<hash>/part, journal   what is being fetched (see `assemble`)
//! ```
//!
//! Whoever uses `data` holds a shared lock on it, whoever makes `part` an exclusive one on `journal`; what can be locked is
//! in nobody's use. When room is needed, what was used longest ago goes first.

mod serving;

use bytes::Bytes;
use leasehold_core::piece::{Cut, PieceMap};
use leasehold_core::{ArtifactId, Error, HexName, Kind, Result};
use leasehold_store::{Host, HostExt};
use rustix::fs::{FlockOperation, flock};
use std::fs::{self, File, FileTimes};
use std::io::{self, ErrorKind, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

use crate::assemble::{Assembly, Opened, Paths, failed, is_sealed, is_still_at, read_notes};
use crate::manifest::{Manifest, Record};
use crate::serve::Shelf;
pub use serving::ServingMark;

/// How often to look whether another process has come to the end of what we want too.
const OTHERS_PAUSE: Duration = Duration::from_millis(200);

/// With more artifacts than this, a tenth of the cache is cleared at a time: all of them are looked at for it.
const MANY: usize = 1_000;

/// How a number of bytes is noted in the lock: always as long, so that one write replaces it.
const NOTE_BYTES: usize = 21;

/// The artifacts of this machine. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Cache {
    root: Arc<Path>,
    bytes_max: Option<u64>,
}

/// An artifact that is whole and verified. It stays in the cache as long as this lives.
#[derive(Debug)]
pub struct Cached {
    manifest: Manifest,
    path: PathBuf,
    /// Locked, shared, as long as it is open.
    file: File,
}

impl Cached {
    /// What it is.
    #[must_use]
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Where it lies. Whoever changes this file breaks the artifact for everyone: copy it, or only read it.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Puts a copy at `to`, which is there whole or not at all. Blocks.
    pub fn copy_to(&self, to: &Path) -> Result<()> {
        let beside = beside(to, &self.manifest.artifact);
        let copied = (|| {
            let mut copy = File::options().write(true).create_new(true).open(&beside)?;
            // Not the locked file itself: it has one place at which it is read, for all who hold it.
            io::copy(&mut File::open(&self.path)?, &mut copy)?;
            fs::rename(&beside, to)
        })();
        copied.map_err(|error| {
            let _ = fs::remove_file(&beside);
            failed("write", to, error)
        })
    }
}

/// What a fetch finds in the cache.
#[derive(Debug)]
pub(crate) enum Begun {
    /// It was fetched before, or by another while we waited.
    There(Cached),
    /// It is for us to fetch, from where an earlier fetch came to.
    Ours(Arc<Assembly>),
}

/// One artifact in the cache, as lists show it.
#[derive(Debug, Clone)]
struct Stock {
    directory: PathBuf,
    bytes: u64,
    used: SystemTime,
}

impl Cache {
    /// The cache in this directory, which is made if need be. It holds at most so many bytes.
    pub fn open(root: impl Into<PathBuf>, bytes_max: Option<u64>) -> Result<Self> {
        let cache = Self::at(root, bytes_max)?;
        cache.make()?;
        Ok(cache)
    }

    /// The same, but the directory is made when something is first put into it.
    pub fn at(root: impl Into<PathBuf>, bytes_max: Option<u64>) -> Result<Self> {
        let root = root.into();
        let root = std::path::absolute(&root).map_err(|error| failed("use as a cache", &root, error))?;
        Ok(Self { root: root.into(), bytes_max })
    }

    fn make(&self) -> Result<()> {
        fs::create_dir_all(&self.root).map_err(|error| failed("use as a cache", &self.root, error))
    }

    /// Where it is.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The artifact, if it is here whole. Blocks.
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
        let Some(file) = found().map_err(|error| failed("read", &path, error))? else { return Ok(None) };
        let Some(manifest) = self.manifest(artifact)? else { return Ok(None) };
        let found = file.metadata().map_err(|error| failed("read", &path, error))?;
        if found.len() != manifest.cut.size() || !is_sealed(&found) {
            tracing::warn!("{} was changed by someone and is fetched again", path.display());
            drop(file);
            evict(&self.directory(artifact));
            return Ok(None);
        }
        self.touch(artifact);
        Ok(Some(Cached { manifest, path, file }))
    }

    /// Waits until the artifact is here or ours to fetch.
    pub(crate) async fn begin(&self, manifest: &Manifest, host: &Arc<dyn Host>) -> Result<Begun> {
        loop {
            let (cache, manifest) = (self.clone(), manifest.clone());
            if let Some(begun) = host.blocking(move || cache.try_begin(&manifest)).await? {
                return Ok(begun);
            }
            host.sleep(OTHERS_PAUSE).await;
        }
    }

    fn try_begin(&self, manifest: &Manifest) -> Result<Option<Begun>> {
        if let Some(cached) = self.find(&manifest.artifact)? {
            return Ok(Some(Begun::There(cached)));
        }
        let Opened::Ours(assembly) = self.reserve(manifest)? else { return Ok(None) };
        // Another may have finished it between our look and our lock.
        if let Some(cached) = self.find(&manifest.artifact)? {
            assembly.discard();
            return Ok(Some(Begun::There(cached)));
        }
        self.keep_manifest(manifest)?;
        assembly.resume()?;
        Ok(Some(Begun::Ours(Arc::from(assembly))))
    }

    /// Makes room for an artifact, and takes it: the file in the making has its full length from the beginning.
    fn reserve(&self, manifest: &Manifest) -> Result<Opened> {
        let directory = self.directory(&manifest.artifact);
        let lock = self.lock()?;
        self.make_room(manifest, &lock)?;
        fs::create_dir_all(&directory).map_err(|error| failed("make", &directory, error))?;
        Assembly::open(Paths::in_directory(&directory), manifest.clone())
    }

    /// Gives what was fetched its name. Blocks.
    pub(crate) fn finish(&self, assembly: &Assembly) -> Result<Cached> {
        let artifact = &assembly.manifest().artifact;
        let finished = assembly.finish(&self.directory(artifact).join("data"));
        if matches!(&finished, Err(error) if error.kind() == Kind::Corrupt) {
            self.forget(artifact);
        }
        finished?;
        let gone = || Error::new(Kind::Unavailable, format!("artifact {artifact} vanished from the cache"));
        self.find(artifact)?.ok_or_else(gone)
    }

    /// Removes what is known of an artifact that cannot be right.
    fn forget(&self, artifact: &ArtifactId) {
        let _ = fs::remove_dir_all(self.directory(artifact));
    }

    /// The manifest of an artifact that is here, whole or in part. One that makes no sense is no manifest.
    fn manifest(&self, artifact: &ArtifactId) -> Result<Option<Manifest>> {
        let path = self.directory(artifact).join("manifest.json");
        match fs::read(&path) {
            Ok(bytes) => {
                let key = path.display().to_string();
                Ok(Record::read(&key, artifact, &bytes).ok().and_then(Record::readable))
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed("read", &path, error)),
        }
    }

    fn keep_manifest(&self, manifest: &Manifest) -> Result<()> {
        let path = self.directory(&manifest.artifact).join("manifest.json");
        let record = Record::Kept(manifest.clone());
        let bytes = record.write(&manifest.artifact, HexName::from_random(0));
        let temp = path.with_extension("new");
        let written = File::create(&temp).and_then(|mut file| file.write_all(&bytes));
        let named = written.and_then(|()| fs::rename(&temp, &path));
        named.map_err(|error| failed("write", &path, error))
    }

    /// Notes that an artifact was used. What cannot be noted costs nothing but its place in the line.
    fn touch(&self, artifact: &ArtifactId) {
        let path = self.directory(artifact).join("manifest.json");
        #[expect(
            clippy::disallowed_methods,
            reason = "the stamps of files are in the machine's time, and only put them in order"
        )]
        let now = SystemTime::now();
        let _ = File::options()
            .append(true)
            .open(path)
            .and_then(|file| file.set_times(FileTimes::new().set_modified(now)));
    }

    /// Removes what was used longest ago until there is room for an artifact. What is here is counted only when it may be
    /// too much: the lock says how much it was, and what came since. It may say too much, and then it is counted; it never
    /// says too little.
    fn make_room(&self, manifest: &Manifest, lock: &File) -> Result<()> {
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

    fn lock(&self) -> Result<File> {
        self.make()?;
        let path = self.root.join("lock");
        let lock = || -> io::Result<File> {
            let file = File::options().read(true).write(true).create(true).truncate(false).open(&path)?;
            flock(&file, FlockOperation::LockExclusive)?;
            Ok(file)
        };
        lock().map_err(|error| failed("lock", &path, error))
    }

    fn directory(&self, artifact: &ArtifactId) -> PathBuf {
        self.root.join(artifact.as_str())
    }

    fn part_notes(&self, artifact: &ArtifactId, manifest: &Manifest) -> Option<PieceMap> {
        read_notes(&Paths::in_directory(&self.directory(artifact)).journal, manifest).ok().flatten()
    }
}

impl Paths {
    fn in_directory(directory: &Path) -> Self {
        Self { part: directory.join("part"), journal: directory.join("journal") }
    }
}

impl Shelf for Cache {
    fn have(&self, artifact: &ArtifactId) -> Option<(Cut, PieceMap)> {
        let manifest = self.manifest(artifact).ok().flatten()?;
        let pieces = manifest.cut.pieces();
        // First the part: if it is renamed between the two looks, the second one finds it.
        let noted = self.part_notes(artifact, &manifest);
        let map =
            if self.directory(artifact).join("data").exists() { Some(PieceMap::all(pieces)) } else { noted };
        Some((manifest.cut, map?))
    }

    fn read(&self, artifact: &ArtifactId, pieces: Range<u32>) -> Result<Option<Bytes>> {
        let Some(manifest) = self.manifest(artifact)? else { return Ok(None) };
        if pieces.end > manifest.cut.pieces() || pieces.is_empty() {
            return Ok(None);
        }
        let part = match self.part_notes(artifact, &manifest) {
            Some(noted) if pieces.clone().all(|piece| noted.has(piece)) => {
                File::open(Paths::in_directory(&self.directory(artifact)).part).ok()
            }
            _ => None,
        };
        let cached = if part.is_none() { self.find(artifact)? } else { None };
        let Some(file) = part.as_ref().or(cached.as_ref().map(|cached| &cached.file)) else {
            return Ok(None);
        };
        let range = manifest.cut.bytes_of_run(&pieces);
        let mut bytes = vec![0; usize::try_from(range.end - range.start).unwrap_or(usize::MAX)];
        let path = self.directory(artifact);
        file.read_exact_at(&mut bytes, range.start).map_err(|error| failed("read", &path, error))?;
        // A note may have survived what its piece has not, until its maker goes on: we would be blamed for it.
        if part.is_some() && !manifest.holds(pieces, &bytes) {
            return Ok(None);
        }
        Ok(Some(bytes.into()))
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
fn evict(directory: &Path) -> bool {
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

/// Where a copy is made before it gets its name: nobody else's, or one copy could be cut off by another.
fn beside(to: &Path, artifact: &ArtifactId) -> PathBuf {
    static COPIES: AtomicU64 = AtomicU64::new(0);
    let name = to.file_name().unwrap_or_default().to_string_lossy();
    let (process, copy) = (std::process::id(), COPIES.fetch_add(1, Relaxed));
    let hash = &artifact.as_str()[..16.min(artifact.as_str().len())];
    to.with_file_name(format!(".{name}.{hash}.{process}-{copy}.leasehold"))
}
