//! Changes of files, one system call at a time.
//!
//! A file appears atomically: it is written under a random name in `tmp/` and then linked or renamed to its place. A
//! directory disappears atomically, too: it is renamed to `tmp/` and emptied there. A file in `tmp/` is locked by the process
//! that created it for as long as it lives; a file that another process can lock was left behind, and is removed.
//!
//! All files are for this user alone: files are 0600, directories 0700. Existing ones keep their permissions.
//!
//! [`Steps`] is called before each change, so that tests can end a process at every one of them.

use leasehold_core::{Error, Kind, Result};
use leasehold_store::{Host, HostExt};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Hook that is called before every change of a file.
pub trait Steps: fmt::Debug + Send + Sync + 'static {
    /// Called before a change; an error makes it fail.
    fn step(&self, what: &'static str) -> io::Result<()>;
}

/// Hook that does nothing.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Unwatched;

impl Steps for Unwatched {
    fn step(&self, _: &'static str) -> io::Result<()> {
        Ok(())
    }
}

/// Durability of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lasting {
    /// It must survive a power cut.
    Yes,
    /// It need not: it would be void after one anyway, or can be made again.
    No,
}

/// File operations of a spool.
#[derive(Debug, Clone)]
pub(crate) struct Disk {
    pub(crate) steps: Arc<dyn Steps>,
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
        Self { steps: Arc::new(Unwatched), tmp, host }
    }

    /// Writes a file atomically, replacing an existing one.
    pub(crate) fn replace(&self, to: &Path, body: &[u8], lasting: Lasting) -> Result<()> {
        let mut temp = self.written(body, lasting)?;
        self.step("rename", to)?;
        fs::rename(&temp.path, to).map_err(|error| failed("write", to, error))?;
        temp.is_moved = true;
        self.sync_parent(to, lasting)
    }

    /// Creates a file atomically; false if there is one.
    pub(crate) fn add(&self, to: &Path, body: &[u8], lasting: Lasting) -> Result<bool> {
        let mut temp = self.written(body, lasting)?;
        self.step("link", to)?;
        let is_new = match fs::hard_link(&temp.path, to) {
            Ok(()) => true,
            Err(error) if error.kind() == ErrorKind::AlreadyExists => false,
            Err(error) => return Err(failed("write", to, error)),
        };
        self.step("unlink", &temp.path)?;
        fs::remove_file(&temp.path).map_err(|error| failed("remove", &temp.path, error))?;
        temp.is_moved = true;
        if is_new {
            self.sync_parent(to, lasting)?;
        }
        Ok(is_new)
    }

    /// Creates a directory in `tmp/` with these files in it.
    pub(crate) fn directory(&self, files: &[(&str, Vec<u8>)]) -> Result<SpoolTemp> {
        let temp = self.temp(|path| {
            self.steps.step("mkdir")?;
            fs::DirBuilder::new().mode(0o700).create(path)?;
            File::open(path)
        })?;
        for (name, body) in files {
            let path = temp.path.join(name);
            let created = self.steps.step("create").and_then(|()| create_new(&path));
            let file = created.map_err(|error| failed("write", &path, error))?;
            self.fill(&path, file, body, Lasting::Yes)?;
        }
        self.sync(&temp.path, Lasting::Yes)?;
        Ok(temp)
    }

    /// Moves a directory to its place and returns its lock; `None` if there is one already.
    pub(crate) fn place(&self, mut temp: SpoolTemp, to: &Path) -> Result<Option<File>> {
        self.step("rename", to)?;
        match fs::rename(&temp.path, to) {
            Ok(()) => temp.is_moved = true,
            Err(error) if is_taken(&error) => return Ok(None),
            Err(error) => return Err(failed("write", to, error)),
        }
        self.sync_parent(to, Lasting::Yes)?;
        let lock = temp.file.try_clone().map_err(|error| failed("lock", to, error))?;
        Ok(Some(lock))
    }

    /// Removes a directory that the caller has locked, atomically.
    pub(crate) fn take_away(&self, directory: &Path) -> Result<()> {
        let to = self.tmp.join(self.name());
        self.step("rename", directory)?;
        fs::rename(directory, &to).map_err(|error| failed("remove", directory, error))?;
        self.sync_parent(directory, Lasting::Yes)?;
        self.empty(&to)
    }

    /// Removes a file; false if there is none.
    pub(crate) fn remove(&self, path: &Path, lasting: Lasting) -> Result<bool> {
        self.step("unlink", path)?;
        match fs::remove_file(path) {
            Ok(()) => self.sync_parent(path, lasting).map(|()| true),
            Err(error) if is_missing(&error) => Ok(false),
            Err(error) => Err(failed("remove", path, error)),
        }
    }

    /// Moves a file to a path where there is none.
    pub(crate) fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.step("rename", to)?;
        fs::rename(from, to).map_err(|error| failed("move", from, error))?;
        self.sync_parent(to, Lasting::Yes)
    }

    /// Overwrites the first bytes of a file, not atomically.
    pub(crate) fn overwrite(&self, path: &Path, text: &str) -> Result<()> {
        self.step("write", path)?;
        let mut options = File::options();
        let opened = options.write(true).create(true).truncate(false).mode(0o600).open(path);
        let written =
            opened.and_then(|file| std::os::unix::fs::FileExt::write_all_at(&file, text.as_bytes(), 0));
        written.map_err(|error| failed("write", path, error))
    }

    /// Creates a directory of a spool.
    pub(crate) fn make(&self, directory: &Path) -> Result<()> {
        if directory.is_dir() {
            return Ok(());
        }
        self.step("mkdir", directory)?;
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(directory);
        made.map_err(|error| failed("create", directory, error))?;
        self.sync_parent(directory, Lasting::Yes)
    }

    /// Removes files in `tmp/` of processes that have died.
    pub(crate) fn sweep(&self) -> Result<u64> {
        let mut swept = 0;
        for name in names(&self.tmp)? {
            let path = self.tmp.join(name);
            let Ok(file) = File::open(&path) else { continue };
            let is_ours = try_locked(&file).and_then(|is_locked| Ok(is_locked && is_still_at(&file, &path)?));
            if !is_ours.map_err(|error| failed("lock", &path, error))? {
                continue;
            }
            if path.is_dir() {
                self.empty(&path)?;
            } else {
                self.remove(&path, Lasting::No)?;
            }
            swept += 1;
        }
        Ok(swept)
    }

    fn empty(&self, directory: &Path) -> Result<()> {
        for name in names(directory)? {
            self.remove(&directory.join(name), Lasting::No)?;
        }
        self.step("rmdir", directory)?;
        fs::remove_dir(directory).map_err(|error| failed("remove", directory, error))
    }

    fn written(&self, body: &[u8], lasting: Lasting) -> Result<SpoolTemp> {
        let temp = self.temp(|path| {
            self.steps.step("create")?;
            create_new(path)
        })?;
        let file = temp.file.try_clone().map_err(|error| failed("write", &temp.path, error))?;
        self.fill(&temp.path, file, body, lasting)?;
        Ok(temp)
    }

    fn fill(&self, path: &Path, mut file: File, body: &[u8], lasting: Lasting) -> Result<()> {
        self.step("write", path)?;
        file.write_all(body).map_err(|error| failed("write", path, error))?;
        self.sync_open(path, &file, lasting)
    }

    /// Creates and locks a file or directory in `tmp/`. Retries if another process has swept it before it was locked.
    fn temp(&self, make: impl Fn(&Path) -> io::Result<File>) -> Result<SpoolTemp> {
        loop {
            let path = self.tmp.join(self.name());
            let file = match make(&path) {
                Ok(file) => file,
                Err(error) if self.is_swept(&error) => continue,
                Err(error) => return Err(failed("write", &path, error)),
            };
            let is_ours = try_locked(&file).and_then(|is_locked| Ok(is_locked && is_still_at(&file, &path)?));
            if is_ours.map_err(|error| failed("lock", &path, error))? {
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

    fn sync_parent(&self, path: &Path, lasting: Lasting) -> Result<()> {
        path.parent().map_or(Ok(()), |parent| self.sync(parent, lasting))
    }

    fn sync(&self, directory: &Path, lasting: Lasting) -> Result<()> {
        if lasting == Lasting::No {
            return Ok(());
        }
        let opened = File::open(directory).map_err(|error| failed("open", directory, error))?;
        self.sync_open(directory, &opened, lasting)
    }

    fn sync_open(&self, path: &Path, file: &File, lasting: Lasting) -> Result<()> {
        if lasting == Lasting::No {
            return Ok(());
        }
        self.step("sync", path)?;
        file.sync_all().map_err(|error| failed("sync", path, error))
    }

    fn step(&self, what: &'static str, path: &Path) -> Result<()> {
        self.steps.step(what).map_err(|error| failed(what, path, error))
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
        Err(error) => Err(failed("read", path, error)),
    }
}

/// Lists the names in a directory, sorted, so that simulations are deterministic; empty if the directory is missing.
pub(crate) fn names(directory: &Path) -> Result<Vec<String>> {
    let read = || -> io::Result<Vec<String>> {
        fs::read_dir(directory)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    };
    match read() {
        Err(error) if is_missing(&error) => Ok(Vec::new()),
        read => {
            let mut names = read.map_err(|error| failed("list", directory, error))?;
            names.sort_unstable();
            Ok(names)
        }
    }
}

/// Opens a directory and waits for its lock; `None` if the directory is missing.
pub(crate) fn locked(directory: &Path) -> Result<Option<File>> {
    let lock = || -> io::Result<Option<File>> {
        loop {
            let file = match File::open(directory) {
                Err(error) if is_missing(&error) => return Ok(None),
                opened => opened?,
            };
            match flock(&file, FlockOperation::LockExclusive) {
                Err(Errno::INTR) => continue,
                locked => locked?,
            }
            // It may have been removed, and another created, while we waited.
            if is_still_at(&file, directory)? {
                return Ok(Some(file));
            }
        }
    };
    lock().map_err(|error| failed("lock", directory, error))
}

/// Opens a directory and locks it without waiting; `None` if it is missing or another process holds the lock.
pub(crate) fn locked_at_once(directory: &Path) -> Result<Option<File>> {
    let lock = || -> io::Result<Option<File>> {
        let file = match File::open(directory) {
            Err(error) if is_missing(&error) => return Ok(None),
            opened => opened?,
        };
        let is_ours = try_locked(&file)? && is_still_at(&file, directory)?;
        Ok(is_ours.then_some(file))
    };
    lock().map_err(|error| failed("lock", directory, error))
}

fn create_new(path: &Path) -> io::Result<File> {
    File::options().write(true).create_new(true).mode(0o600).open(path)
}

fn try_locked(file: &File) -> io::Result<bool> {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK | Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
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

fn is_taken(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::AlreadyExists | ErrorKind::DirectoryNotEmpty | ErrorKind::NotADirectory)
}

/// Error for a file system call that failed.
pub(crate) fn failed(what: &str, path: &Path, error: io::Error) -> Error {
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
