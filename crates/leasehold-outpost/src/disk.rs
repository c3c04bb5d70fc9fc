//! Every change of a file, one system call at a time.
//!
//! A file appears whole or not at all: it is written under a name of its own in `tmp/` and then linked or renamed to where
//! it belongs. A directory goes whole too: it is renamed to `tmp/` and emptied there. What lies in `tmp/` is locked by
//! whoever made it for as long as they live; what can be locked by another was left behind, and is removed.
//!
//! All of it is for this user alone: files are 0600, directories 0700. Those that exist keep their permissions.
//!
//! [`Steps`] is told before each change, so that tests can end a process at every one of them.

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

/// Is told of every change of a file before it happens.
pub trait Steps: fmt::Debug + Send + Sync + 'static {
    /// Something is about to happen; an error makes it fail.
    fn step(&self, what: &'static str) -> io::Result<()>;
}

/// Lets everything happen.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Unwatched;

impl Steps for Unwatched {
    fn step(&self, _: &'static str) -> io::Result<()> {
        Ok(())
    }
}

/// Whether a change must outlast a power cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lasting {
    /// It must.
    Yes,
    /// It would be void after one anyway, or can be made again.
    No,
}

/// The disk of a spool.
#[derive(Debug, Clone)]
pub(crate) struct Disk {
    pub(crate) steps: Arc<dyn Steps>,
    tmp: PathBuf,
    host: Arc<dyn Host>,
}

/// A file or directory in the making; gone when this is dropped, unless it was moved to where it belongs.
#[derive(Debug)]
pub(crate) struct Temp {
    path: PathBuf,
    /// Locked as long as it is open.
    file: File,
    is_moved: bool,
}

impl Disk {
    pub(crate) fn new(tmp: PathBuf, host: Arc<dyn Host>) -> Self {
        Self { steps: Arc::new(Unwatched), tmp, host }
    }

    /// Writes a file whole, in place of the one that may be there.
    pub(crate) fn replace(&self, to: &Path, body: &[u8], lasting: Lasting) -> Result<()> {
        let mut temp = self.written(body, lasting)?;
        self.step("rename", to)?;
        fs::rename(&temp.path, to).map_err(|error| failed("write", to, error))?;
        temp.is_moved = true;
        self.sync_parent(to, lasting)
    }

    /// Writes a file whole where there must be none; false if there is one.
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

    /// Makes a directory in `tmp/` with these files in it.
    pub(crate) fn directory(&self, files: &[(&str, Vec<u8>)]) -> Result<Temp> {
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

    /// Gives a directory its place, and its lock to the caller; nothing if there is one already.
    pub(crate) fn place(&self, mut temp: Temp, to: &Path) -> Result<Option<File>> {
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

    /// Removes a directory that the caller has locked, whole.
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

    /// Moves a file to where there is none of its name.
    pub(crate) fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.step("rename", to)?;
        fs::rename(from, to).map_err(|error| failed("move", from, error))?;
        self.sync_parent(to, Lasting::Yes)
    }

    /// Writes a few bytes over those of a file, which is nothing that must be whole.
    pub(crate) fn overwrite(&self, path: &Path, text: &str) -> Result<()> {
        self.step("write", path)?;
        let mut options = File::options();
        let opened = options.write(true).create(true).truncate(false).mode(0o600).open(path);
        let written =
            opened.and_then(|file| std::os::unix::fs::FileExt::write_all_at(&file, text.as_bytes(), 0));
        written.map_err(|error| failed("write", path, error))
    }

    /// Makes the directories of a spool.
    pub(crate) fn make(&self, directory: &Path) -> Result<()> {
        if directory.is_dir() {
            return Ok(());
        }
        self.step("mkdir", directory)?;
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(directory);
        made.map_err(|error| failed("make", directory, error))?;
        self.sync_parent(directory, Lasting::Yes)
    }

    /// Removes what was left behind in `tmp/` by those who died.
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

    fn written(&self, body: &[u8], lasting: Lasting) -> Result<Temp> {
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

    /// Something new in `tmp/`, locked. Whoever sweeps may have been faster: then another one.
    fn temp(&self, make: impl Fn(&Path) -> io::Result<File>) -> Result<Temp> {
        loop {
            let path = self.tmp.join(self.name());
            let file = match make(&path) {
                Ok(file) => file,
                Err(error) if self.is_swept(&error) => continue,
                Err(error) => return Err(failed("write", &path, error)),
            };
            let is_ours = try_locked(&file).and_then(|is_locked| Ok(is_locked && is_still_at(&file, &path)?));
            if is_ours.map_err(|error| failed("lock", &path, error))? {
                return Ok(Temp { path, file, is_moved: false });
            }
        }
    }

    /// Whether a directory has gone between its making and its opening; or the name was taken, by a host whose chance
    /// repeats itself.
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

impl Drop for Temp {
    fn drop(&mut self) {
        // Best effort: what stays is swept.
        if !self.is_moved {
            let _ =
                if self.path.is_dir() { fs::remove_dir_all(&self.path) } else { fs::remove_file(&self.path) };
        }
    }
}

/// What a file holds; nothing if there is none.
pub(crate) fn read(path: &Path) -> Result<Option<Vec<u8>>> {
    match fs::read(path) {
        Ok(body) => Ok(Some(body)),
        Err(error) if is_missing(&error) => Ok(None),
        Err(error) => Err(failed("read", path, error)),
    }
}

/// The names in a directory, sorted, so that a simulation sees the same each time; none if it is not there.
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

/// Opens a directory and locks it, waiting for others; nothing if it is not there.
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
            // It may have gone, and another come, while we waited.
            if is_still_at(&file, directory)? {
                return Ok(Some(file));
            }
        }
    };
    lock().map_err(|error| failed("lock", directory, error))
}

/// The same without waiting; nothing also if others have it.
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

/// Whether the open file is the one that lies at this path now.
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

/// A file system call that failed, in one sentence.
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
