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

mod room;
mod serving;
mod shelf;

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

use crate::assemble::{Assembly, Opened, Paths, failed, is_sealed, is_still_at};
use crate::manifest::{Manifest, Record};
use room::evict;
pub use serving::ServingMark;

/// A process that gets no piece for so long is not waited for: longer than any lease on a piece.
const OTHERS_WAIT: Duration = Duration::from_mins(6);

/// How often to look whether another process has come to the end of what we want too.
const OTHERS_PAUSE: Duration = Duration::from_millis(200);

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

    /// Makes the directory, for this user alone: files of tasks are in it. One that is there keeps its permissions.
    fn make(&self) -> Result<()> {
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.root);
        made.map_err(|error| failed("use as a cache", &self.root, error))
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

    /// Waits until the artifact is here or ours to fetch. Another that is at it is not waited for when it gets nothing: it may
    /// stand still.
    pub(crate) async fn begin(&self, manifest: &Manifest, host: &Arc<dyn Host>) -> Result<Begun> {
        let mut seen = (0, host.instant());
        loop {
            let (cache, wanted) = (self.clone(), manifest.clone());
            if let Some(begun) = host.blocking(move || cache.try_begin(&wanted)).await? {
                return Ok(begun);
            }
            let (cache, artifact) = (self.clone(), manifest.artifact.clone());
            let noted = host.blocking(move || Ok(cache.noted_bytes(&artifact))).await?;
            let now = host.instant();
            if noted != seen.0 {
                seen = (noted, now);
            }
            if now.since(seen.1) > OTHERS_WAIT {
                return Err(self.stands_still(&manifest.artifact));
            }
            host.sleep(OTHERS_PAUSE).await;
        }
    }

    /// How long the journal of a file in the making is: it grows with every piece.
    fn noted_bytes(&self, artifact: &ArtifactId) -> u64 {
        let journal = Paths::in_directory(&self.directory(artifact)).journal;
        fs::metadata(journal).map_or(0, |found| found.len())
    }

    fn stands_still(&self, artifact: &ArtifactId) -> Error {
        let (mins, cache) = (OTHERS_WAIT.as_secs() / 60, self.root.display());
        let message = format!(
            "another process fetches artifact {artifact} into {cache} and has got nothing for {mins} minutes; is it stopped?"
        );
        Error::new(Kind::Unavailable, message)
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
}

impl Paths {
    fn in_directory(directory: &Path) -> Self {
        Self { part: directory.join("part"), journal: directory.join("journal") }
    }
}

/// Where a copy is made before it gets its name: nobody else's, or one copy could be cut off by another.
fn beside(to: &Path, artifact: &ArtifactId) -> PathBuf {
    static COPIES: AtomicU64 = AtomicU64::new(0);
    let name = to.file_name().unwrap_or_default().to_string_lossy();
    let (process, copy) = (std::process::id(), COPIES.fetch_add(1, Relaxed));
    let hash = &artifact.as_str()[..16.min(artifact.as_str().len())];
    to.with_file_name(format!(".{name}.{hash}.{process}-{copy}.leasehold"))
}
