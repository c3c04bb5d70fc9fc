//! Objects as files: requests implemented by system calls.

use leasehold_core::limits::OBJECT_BYTES_MAX;
use leasehold_core::oversize;
use leasehold_core::{Error, Kind, keys};
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::clock::FolderClock;
use super::locks::{Lock, Locks};
use super::permissions::open_regular;
use super::sync::Directories;
use super::temps::{Temp, Temps};
use super::uploads::{self, FolderUploads};
use super::{Durability, FolderError, FolderOptions, FolderTime, walk};
use crate::clock::Clock;
use crate::host::{Host, Instant};
use crate::open::OpenMode;
use crate::parts;
use crate::store::{Get, List, Object, Page, PartId, PutAnswer, Ranged, UploadId, Version, When};

/// Maximum number of attempts to use a directory that another process removes, because it is empty, between its
/// creation and its use.
const VANISHED_MAX: u32 = 100;

pub(super) struct Files {
    pub(super) root: PathBuf,
    durability: Durability,
    clock: FolderClock,
    directories: Directories,
    locks: Locks,
    temps: Arc<Temps>,
    uploads: FolderUploads,
    /// Keys that this process has renamed into place and not yet synced, with the number of writers.
    unsynced: Mutex<HashMap<String, u32>>,
}

impl Files {
    pub(super) fn open(
        root: &Path,
        options: FolderOptions,
        host: &Arc<dyn Host>,
    ) -> leasehold_core::Result<Self> {
        let opened = || -> io::Result<Self> {
            if !opens_for_writing(root, options.mode)? {
                return Self::open_for_reading(root, options, host);
            }
            let access = options.access;
            access.create_dir_all(root, &**host)?;
            let root = root.canonicalize()?;
            let own = root.join(keys::RESERVED);
            for directory in [own.clone(), own.join("clock"), own.join("locks")] {
                access.create_own_dir(&directory, &**host)?;
            }
            if options.durability == Durability::Fsync {
                File::open(&root)?.sync_all()?;
                match File::open(parent(&root)) {
                    // This user cannot list the directory: another user created the folder in it.
                    Err(error) if error.kind() == ErrorKind::PermissionDenied => {}
                    opened => opened?.sync_all()?,
                }
            }
            let temps = Arc::new(Temps::open(&own, access, &**host)?);
            Ok(Self {
                unsynced: Mutex::default(),
                durability: options.durability,
                clock: FolderClock::open(&own, options.time, access, &temps, host)?,
                directories: Directories::new(temps.clone()),
                locks: Locks::new(&own, temps.clone()),
                temps,
                uploads: FolderUploads::default(),
                root,
            })
        };
        opened().map_err(|error| cannot_open(root, error))
    }

    /// Opens a folder without writing anything, not even to `.leasehold`: read permission suffices.
    fn open_for_reading(root: &Path, options: FolderOptions, host: &Arc<dyn Host>) -> io::Result<Self> {
        let root = if root.exists() { root.canonicalize()? } else { root.to_owned() };
        let (own, temps) = (root.join(keys::RESERVED), Arc::new(Temps::none()));
        Ok(Self {
            unsynced: Mutex::default(),
            durability: options.durability,
            clock: FolderClock::open_for_reading(&own, options.time, options.access, &temps, host)?,
            directories: Directories::new(temps.clone()),
            locks: Locks::new(&own, temps.clone()),
            temps,
            uploads: FolderUploads::default(),
            root,
        })
    }

    pub(super) fn list(&self, list: &List) -> io::Result<Page> {
        self.clock.refresh()?;
        walk::page(&self.root, list)
    }

    pub(super) fn clock(&self) -> &Clock {
        self.clock.clock()
    }

    pub(super) fn time(&self) -> FolderTime {
        self.clock.time()
    }

    pub(super) fn get(&self, key: &str, unless: Option<&Version>) -> io::Result<Get> {
        let path = self.root.join(key);
        let object = read(&path)?;
        if self.unsynced().contains_key(key) {
            self.sync_parent(&path)?;
        }
        Ok(match object {
            None => Get::Missing,
            Some(object) if Some(&object.version) == unless => Get::Unchanged,
            Some(object) => Get::Found(object),
        })
    }

    /// Writes an object. Nothing is visible before the rename: a put that fails before it was surely not carried out.
    pub(super) fn put(&self, key: &str, body: &[u8], when: &When) -> Result<PutAnswer, FolderError> {
        let path = self.root.join(key);
        let lock = self.locks.hold(key, || self.clock.instant()).map_err(FolderError::NotDone)?;
        if body.is_empty() && *when == When::Always && self.touch(&path)? {
            drop(lock);
            self.sync_parent(&path)?;
            return Ok(PutAnswer::Written(version(body)));
        }
        if *when != When::Always && !when.holds(read(&path).map_err(FolderError::NotDone)?.as_ref()) {
            return Ok(PutAnswer::Refused);
        }
        let mut temp = self.temps.create(|file| self.fill(file, body)).map_err(FolderError::NotDone)?;
        self.rename_into_place(key, &mut temp, lock)?;
        self.make_durable(key)?;
        Ok(PutAnswer::Written(version(body)))
    }

    /// Reads only the requested range.
    pub(super) fn get_range(
        &self,
        key: &str,
        range: &Range<u64>,
        unchanged: Option<&Version>,
    ) -> Result<Ranged, FolderError> {
        let path = self.root.join(key);
        let file = match open_regular(File::options().read(true), &path) {
            Err(error) if is_missing(&error) => return Ok(Ranged::Missing),
            opened => opened?,
        };
        if self.unsynced().contains_key(key) {
            self.sync_parent(&path)?;
        }
        let metadata = file.metadata()?;
        let version = uploads::version(&metadata);
        if unchanged.is_some_and(|known| *known != version) {
            return Ok(Ranged::Changed);
        }
        let range = parts::clamp_range(key, range, metadata.len())?;
        let length = usize::try_from(range.end - range.start).map_err(io::Error::other)?;
        let mut body = vec![0; length];
        file.read_exact_at(&mut body, range.start)?;
        Ok(Ranged::Found(Object { body: body.into(), version }))
    }

    pub(super) fn upload_begin(&self, key: &str, part_bytes: u64) -> io::Result<UploadId> {
        let (temp, file) = self.temps.open_new()?;
        Ok(self.uploads.begin(key, part_bytes, temp, file))
    }

    pub(super) fn upload_part(
        &self,
        key: &str,
        upload: &UploadId,
        number: usize,
        body: &[u8],
    ) -> Result<PartId, FolderError> {
        self.uploads.part(key, upload, number, body, self.durability)
    }

    pub(super) fn upload_end(
        &self,
        key: &str,
        upload: &UploadId,
        parts: &[PartId],
    ) -> Result<Version, FolderError> {
        let version = self.uploads.end(key, upload, parts, |file, temp| {
            self.seal(file, self.clock.instant())?;
            let lock = self.locks.hold(key, || self.clock.instant())?;
            self.rename_into_place(key, temp, lock)
        })?;
        self.make_durable(key)?;
        Ok(version)
    }

    pub(super) fn upload_abort(&self, key: &str, upload: &UploadId) {
        self.uploads.abort(key, upload);
    }

    pub(super) fn delete(&self, key: &str) -> io::Result<()> {
        let path = self.root.join(key);
        let lock = self.locks.hold(key, || self.clock.instant())?;
        match fs::remove_file(&path) {
            Ok(()) => {}
            Err(error) if is_missing(&error) => return Ok(()),
            Err(error) => return Err(error),
        }
        drop(lock);
        self.remove_empty_parents(&path);
        Ok(())
    }

    /// Renames a file into place. Its key counts as unsynced until [`Self::make_durable`] has synced it.
    fn rename_into_place(&self, key: &str, temp: &mut Temp, lock: Lock) -> io::Result<()> {
        let path = self.root.join(key);
        self.mark_unsynced(key);
        let renamed = self.in_directory(&path, || temp.rename(&path));
        drop(lock);
        renamed.inspect_err(|_| self.clear_unsynced(key))
    }

    /// Syncs a renamed object. If that fails, its key stays unsynced, and readers sync it first.
    fn make_durable(&self, key: &str) -> io::Result<()> {
        self.sync_parent(&self.root.join(key))?;
        self.clear_unsynced(key);
        Ok(())
    }

    /// Creates an empty object in place; false if only a rename may replace the existing one: it has bytes, or it
    /// belongs to another user, so that this user cannot set its time.
    fn touch(&self, path: &Path) -> io::Result<bool> {
        let file = match self.in_directory(path, || self.temps.append(path)) {
            Err(error) if error.kind() == ErrorKind::PermissionDenied => return Ok(false),
            opened => opened?,
        };
        if file.metadata()?.len() > 0 {
            return Ok(false);
        }
        let sent = self.clock.instant();
        match self.clock.set_modified(&file) {
            Err(error) if error.kind() == ErrorKind::PermissionDenied => return Ok(false),
            result => result?,
        }
        self.clock.observe_file(&file, sent)?;
        Ok(true)
    }

    fn fill(&self, file: &mut File, body: &[u8]) -> io::Result<()> {
        let sent = self.clock.instant();
        file.write_all(body)?;
        self.seal(file, sent)
    }

    /// Sets the time of a written file, makes it durable, and updates the clock from it.
    fn seal(&self, file: &File, sent: Instant) -> io::Result<()> {
        self.clock.set_modified(file)?;
        if self.durability == Durability::Fsync {
            file.sync_all()?;
        }
        self.clock.observe_file(file, sent)
    }

    /// Runs `act`, which needs the directory of `path`, and creates the directory if it is missing.
    fn in_directory<T>(&self, path: &Path, mut act: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        let directory = parent(path);
        let durable = self.durability == Durability::Fsync;
        for _ in 0..VANISHED_MAX {
            self.directories.ensure(&self.root, directory, durable)?;
            match act() {
                Err(error) if error.kind() == ErrorKind::NotFound => self.directories.forget(directory),
                Err(error)
                    if matches!(error.kind(), ErrorKind::IsADirectory | ErrorKind::DirectoryNotEmpty) =>
                {
                    // An empty directory may be in the place of the object; one with objects may not.
                    match fs::remove_dir(path) {
                        Err(error) if error.kind() != ErrorKind::NotFound => return Err(key_conflict(path)),
                        _ => {}
                    }
                }
                done => return done,
            }
        }
        Err(io::Error::other(format!(
            "directory {} was removed {VANISHED_MAX} times by other processes",
            directory.display()
        )))
    }

    /// Makes the object at `path` durable. It is already in place, so no failure may say that it was not written.
    fn sync_parent(&self, path: &Path) -> io::Result<()> {
        match self.durability {
            Durability::Fsync => self.directories.sync(parent(path)).map_err(io::Error::other),
            Durability::Os => Ok(()),
        }
    }

    fn mark_unsynced(&self, key: &str) {
        *self.unsynced().entry(key.to_owned()).or_default() += 1;
    }

    fn clear_unsynced(&self, key: &str) {
        let mut unsynced = self.unsynced();
        if let Some(writers) = unsynced.get_mut(key) {
            *writers -= 1;
            if *writers == 0 {
                unsynced.remove(key);
            }
        }
    }

    fn unsynced(&self) -> MutexGuard<'_, HashMap<String, u32>> {
        self.unsynced.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes directories that have become empty, such as those of past minutes. Writers create them again.
    fn remove_empty_parents(&self, path: &Path) {
        let mut directory = parent(path);
        while directory != self.root && fs::remove_dir(directory).is_ok() {
            self.directories.forget(directory);
            directory = parent(directory);
        }
    }
}

/// Checks the root. With [`OpenMode::Write`] a folder without a store is only read: there is nothing to change, and the
/// caller reports that it is empty.
fn opens_for_writing(root: &Path, mode: OpenMode) -> io::Result<bool> {
    match fs::metadata(root) {
        Ok(found) if !found.is_dir() => return Err(rustix::io::Errno::NOTDIR.into()),
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let is_there = |name: &str| root.join(name).exists();
    Ok(match mode {
        OpenMode::Create => true,
        OpenMode::Write => is_there(keys::RESERVED) || is_there(keys::QUEUE),
        OpenMode::Read => false,
    })
}

/// Error of a write to a folder that was opened read-only.
pub(crate) fn read_only_error() -> io::Error {
    io::Error::new(ErrorKind::PermissionDenied, "the folder was opened read-only")
}

/// Reads an object. One that is too large gets the version of its file, so that it can be replaced.
fn read(path: &Path) -> io::Result<Option<Object>> {
    let file = match open_regular(File::options().read(true), path) {
        Err(error) if is_missing(&error) => return Ok(None),
        opened => opened?,
    };
    let found = file.metadata()?;
    if found.len() > OBJECT_BYTES_MAX {
        let body = oversize::placeholder(found.len()).into();
        return Ok(Some(Object { body, version: uploads::version(&found) }));
    }
    let mut body = Vec::with_capacity(usize::try_from(found.len()).unwrap_or(0));
    // A file that another program writes to may grow meanwhile.
    file.take(OBJECT_BYTES_MAX).read_to_end(&mut body)?;
    Ok(Some(Object { version: version(&body), body: body.into() }))
}

/// Version of an object: the first 128 bits of the hash of its bytes.
fn version(body: &[u8]) -> Version {
    Version::new(&blake3::hash(body).to_hex()[..32])
}

pub(crate) fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::IsADirectory | ErrorKind::NotADirectory)
}

fn parent(path: &Path) -> &Path {
    path.parent().expect("an object is below the root")
}

fn key_conflict(path: &Path) -> io::Error {
    let message = format!("{} is a directory; no key may be a path prefix of another", path.display());
    io::Error::new(ErrorKind::InvalidInput, message)
}

fn cannot_open(root: &Path, error: io::Error) -> Error {
    let kind = match error.kind() {
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
            return super::failure(root, error).error;
        }
        ErrorKind::NotADirectory
        | ErrorKind::AlreadyExists
        | ErrorKind::NotFound
        | ErrorKind::InvalidInput
        | ErrorKind::InvalidFilename => Kind::Invalid,
        ErrorKind::InvalidData => Kind::Corrupt,
        _ => Kind::Unavailable,
    };
    Error::new(kind, format!("cannot open folder {}: {error}", root.display())).because(error)
}
