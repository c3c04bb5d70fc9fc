//! Changes of files, one system call at a time.
//!
//! A file appears atomically: it is written under a random name in `tmp/` and then linked or renamed to its place. A
//! directory disappears atomically, too: it is renamed to `tmp/` and emptied there. A file in `tmp/` is locked by the process
//! that created it for as long as it lives; a file that another process can lock was left behind, and is removed.
//!
//! All files are for this user alone: files are 0600, directories 0700. Existing ones keep their permissions.
//!
//! [`FileHook`] is called before each change, so that tests can end a process at every one of them.

use leasehold_core::{Error, Kind, Result};
use leasehold_store::{Host, HostExt};
use std::fmt;
use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Hook that is called before every change of a file.
pub trait FileHook: fmt::Debug + Send + Sync + 'static {
    /// Called before a change; an error makes it fail.
    fn step(&self, what: &'static str) -> io::Result<()>;
}

/// Durability of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Durable {
    /// It must survive a power cut.
    Yes,
    /// It need not: it would be void after one anyway, or can be made again.
    No,
}

/// File operations of a spool.
#[derive(Debug, Clone)]
pub(crate) struct Disk {
    /// Called before each change, in tests.
    pub(crate) file_hook: Option<Arc<dyn FileHook>>,
    tmp: PathBuf,
    host: Arc<dyn Host>,
}

/// A temporary file or directory; removed on drop, unless it was moved to its place.
#[derive(Debug)]
pub(crate) struct SpoolTemp {
    path: PathBuf,
    /// Holds the lock as long as it is open.
    file: File,
    is_moved: bool,
}

impl Disk {
    pub(crate) fn new(tmp: PathBuf, host: Arc<dyn Host>) -> Self {
        Self { file_hook: None, tmp, host }
    }

    /// Writes a file atomically, replacing an existing one.
    pub(crate) fn replace(&self, to: &Path, body: &[u8], durable: Durable) -> Result<()> {
        let mut temp = self.temp_file(body, durable)?;
        self.act("rename", "write", to, || fs::rename(&temp.path, to))?;
        temp.is_moved = true;
        self.sync_parent(to, durable)
    }

    /// Creates a file atomically; false if there is one.
    pub(crate) fn create(&self, to: &Path, body: &[u8], durable: Durable) -> Result<bool> {
        let mut temp = self.temp_file(body, durable)?;
        let is_new = self.act("link", "write", to, || match fs::hard_link(&temp.path, to) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
            linked => linked.map(|()| true),
        })?;
        self.act("unlink", "remove", &temp.path, || fs::remove_file(&temp.path))?;
        temp.is_moved = true;
        if is_new {
            self.sync_parent(to, durable)?;
        }
        Ok(is_new)
    }

    /// Creates a directory in `tmp/` with these files in it.
    pub(crate) fn temp_directory(&self, files: &[(&str, Vec<u8>)]) -> Result<SpoolTemp> {
        let temp = self.temp("mkdir", |path| {
            fs::DirBuilder::new().mode(0o700).create(path)?;
            File::open(path)
        })?;
        for (name, body) in files {
            let path = temp.path.join(name);
            let file = self.act("create", "write", &path, || create_new(&path))?;
            self.write_file(&path, &file, body, Durable::Yes)?;
        }
        self.sync(&temp.path, &temp.file, Durable::Yes)?;
        Ok(temp)
    }

    /// Moves a directory to its place and returns its lock; `None` if there is one already.
    pub(crate) fn place(&self, mut temp: SpoolTemp, to: &Path) -> Result<Option<File>> {
        temp.is_moved = self.act("rename", "write", to, || match fs::rename(&temp.path, to) {
            Err(error) if is_occupied(&error) => Ok(false),
            moved => moved.map(|()| true),
        })?;
        if !temp.is_moved {
            return Ok(None);
        }
        self.sync_parent(to, Durable::Yes)?;
        temp.file.try_clone().map(Some).map_err(|error| io_error("lock", to, error))
    }

    /// Removes a directory that the caller has locked, atomically.
    pub(crate) fn remove_directory(&self, directory: &Path) -> Result<()> {
        let to = self.tmp.join(self.name());
        self.act("rename", "remove", directory, || fs::rename(directory, &to))?;
        self.sync_parent(directory, Durable::Yes)?;
        self.empty(&to)
    }

    /// Removes a file; false if there is none.
    pub(crate) fn remove(&self, path: &Path, durable: Durable) -> Result<bool> {
        let is_removed = self.act("unlink", "remove", path, || match fs::remove_file(path) {
            Err(error) if is_missing(&error) => Ok(false),
            removed => removed.map(|()| true),
        })?;
        if is_removed {
            self.sync_parent(path, durable)?;
        }
        Ok(is_removed)
    }

    /// Moves a file to a path where there is none.
    pub(crate) fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.act("rename", "move", from, || fs::rename(from, to))?;
        self.sync_parent(to, Durable::Yes)
    }

    /// Overwrites the first bytes of a file, not atomically.
    pub(crate) fn overwrite(&self, path: &Path, text: &str) -> Result<()> {
        self.act("write", "write", path, || {
            let mut options = File::options();
            let file = options.write(true).create(true).truncate(false).mode(0o600).open(path)?;
            file.write_all_at(text.as_bytes(), 0)
        })
    }

    /// Creates a directory of a spool.
    pub(crate) fn create_directory(&self, directory: &Path) -> Result<()> {
        if directory.is_dir() {
            return Ok(());
        }
        let mut builder = fs::DirBuilder::new();
        self.act("mkdir", "create", directory, || builder.recursive(true).mode(0o700).create(directory))?;
        self.sync_parent(directory, Durable::Yes)
    }

    /// Removes files in `tmp/` of processes that have ended.
    pub(crate) fn sweep_tmp(&self) -> Result<u64> {
        let mut swept = 0;
        for name in names(&self.tmp)? {
            let path = self.tmp.join(name);
            let Ok(file) = File::open(&path) else { continue };
            if !try_lock_at(&file, &path)? {
                continue;
            }
            if path.is_dir() {
                self.empty(&path)?;
            } else {
                self.remove(&path, Durable::No)?;
            }
            swept += 1;
        }
        Ok(swept)
    }

    fn empty(&self, directory: &Path) -> Result<()> {
        for name in names(directory)? {
            self.remove(&directory.join(name), Durable::No)?;
        }
        self.act("rmdir", "remove", directory, || fs::remove_dir(directory))
    }

    /// Writes a file in `tmp/`.
    fn temp_file(&self, body: &[u8], durable: Durable) -> Result<SpoolTemp> {
        let temp = self.temp("create", create_new)?;
        self.write_file(&temp.path, &temp.file, body, durable)?;
        Ok(temp)
    }

    /// Writes an open file, and syncs it if it must be durable.
    fn write_file(&self, path: &Path, mut file: &File, body: &[u8], durable: Durable) -> Result<()> {
        self.act("write", "write", path, || file.write_all(body))?;
        self.sync(path, file, durable)
    }

    /// Creates and locks a file or directory in `tmp/`. Retries if another process has swept it before it was locked.
    fn temp(&self, step: &'static str, make: impl Fn(&Path) -> io::Result<File>) -> Result<SpoolTemp> {
        loop {
            let path = self.tmp.join(self.name());
            let file = match self.before(step).and_then(|()| make(&path)) {
                Ok(file) => file,
                Err(error) if self.is_swept(&error) => continue,
                Err(error) => return Err(io_error("write", &path, error)),
            };
            if try_lock_at(&file, &path)? {
                return Ok(SpoolTemp { path, file, is_moved: false });
            }
        }
    }

    /// Returns whether a directory was removed between its creation and its opening, or the name was taken, by a host whose
    /// random numbers repeat.
    fn is_swept(&self, error: &io::Error) -> bool {
        match error.kind() {
            ErrorKind::AlreadyExists => true,
            ErrorKind::NotFound => self.tmp.is_dir(),
            _ => false,
        }
    }

    fn name(&self) -> String {
        format!("{:032x}", self.host.random_bits())
    }

    fn sync_parent(&self, path: &Path, durable: Durable) -> Result<()> {
        let Some(parent) = path.parent().filter(|_| durable == Durable::Yes) else { return Ok(()) };
        let opened = File::open(parent).map_err(|error| io_error("open", parent, error))?;
        self.sync(parent, &opened, durable)
    }

    fn sync(&self, path: &Path, file: &File, durable: Durable) -> Result<()> {
        if durable == Durable::No {
            return Ok(());
        }
        self.act("sync", "sync", path, || file.sync_all())
    }

    fn before(&self, step: &'static str) -> io::Result<()> {
        self.file_hook.as_ref().map_or(Ok(()), |hook| hook.step(step))
    }

    /// Makes one change, after the hook was called with its name; `what` is for the error.
    fn act<T>(
        &self,
        step: &'static str,
        what: &str,
        path: &Path,
        change: impl FnOnce() -> io::Result<T>,
    ) -> Result<T> {
        self.before(step).and_then(|()| change()).map_err(|error| io_error(what, path, error))
    }
}

impl Drop for SpoolTemp {
    fn drop(&mut self) {
        // Best effort: a later sweep removes what stays.
        if !self.is_moved {
            let _ =
                if self.path.is_dir() { fs::remove_dir_all(&self.path) } else { fs::remove_file(&self.path) };
        }
    }
}

/// Reads a file; `None` if there is none.
pub(crate) fn read(path: &Path) -> Result<Option<Vec<u8>>> {
    match fs::read(path) {
        Ok(body) => Ok(Some(body)),
        Err(error) if is_missing(&error) => Ok(None),
        Err(error) => Err(io_error("read", path, error)),
    }
}

/// Identity of a file: inode, size, modification time in nanoseconds.
pub(crate) type FileStamp = (u64, u64, i64);

/// Reads the identity of a file; `None` if there is none.
pub(crate) fn stamp(path: &Path) -> Option<FileStamp> {
    let found = fs::metadata(path).ok()?;
    let modified_ns = found.mtime().wrapping_mul(1_000_000_000).wrapping_add(found.mtime_nsec());
    Some((found.ino(), found.len(), modified_ns))
}

/// Lists the names in a directory, sorted, so that simulations are deterministic; empty if the directory is missing.
pub(crate) fn names(directory: &Path) -> Result<Vec<String>> {
    let read = || -> io::Result<Vec<String>> {
        fs::read_dir(directory)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    };
    match read() {
        Err(error) if is_missing(&error) => Ok(Vec::new()),
        read => {
            let mut names = read.map_err(|error| io_error("list", directory, error))?;
            names.sort_unstable();
            Ok(names)
        }
    }
}

/// Opens a directory and waits for its lock; `None` if the directory is missing.
pub(crate) fn lock(directory: &Path) -> Result<Option<File>> {
    loop {
        let Some(file) = open_directory(directory)? else { return Ok(None) };
        let is_locked = match file.lock() {
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(false),
            // It may have been removed, and another created, while we waited.
            locked => locked.and_then(|()| is_still_at(&file, directory)),
        };
        if is_locked.map_err(|error| io_error("lock", directory, error))? {
            return Ok(Some(file));
        }
    }
}

/// Opens a directory and locks it without waiting; `None` if it is missing or another process holds the lock.
pub(crate) fn try_lock(directory: &Path) -> Result<Option<File>> {
    let Some(file) = open_directory(directory)? else { return Ok(None) };
    Ok(try_lock_at(&file, directory)?.then_some(file))
}

fn open_directory(directory: &Path) -> Result<Option<File>> {
    match File::open(directory) {
        Err(error) if is_missing(&error) => Ok(None),
        opened => opened.map(Some).map_err(|error| io_error("lock", directory, error)),
    }
}

fn create_new(path: &Path) -> io::Result<File> {
    File::options().write(true).create_new(true).mode(0o600).open(path)
}

/// Locks the open file; false if another process holds the lock, or if it is no longer the one at this path.
fn try_lock_at(file: &File, path: &Path) -> Result<bool> {
    let locked = match file.try_lock() {
        Ok(()) => is_still_at(file, path),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    };
    locked.map_err(|error| io_error("lock", path, error))
}

/// Returns whether the open file is the one at this path now.
fn is_still_at(file: &File, path: &Path) -> io::Result<bool> {
    match fs::metadata(path) {
        Ok(there) => Ok(there.ino() == file.metadata()?.ino()),
        Err(error) if is_missing(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

fn is_occupied(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::AlreadyExists | ErrorKind::DirectoryNotEmpty | ErrorKind::NotADirectory)
}

/// Error for a file system call that failed.
pub(crate) fn io_error(what: &str, path: &Path, error: io::Error) -> Error {
    let path = path.display();
    let kind = match error.kind() {
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => Kind::Denied,
        _ => Kind::Unavailable,
    };
    let message = match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            format!("the disk is full: cannot {what} {path}")
        }
        _ => format!("cannot {what} {path}: {error}"),
    };
    Error::new(kind, message).because(error)
}
