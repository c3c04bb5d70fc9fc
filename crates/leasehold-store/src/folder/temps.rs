//! Temporary files, and the removal of those of crashed processes.
//!
//! Each process writes into a directory of its own, `tmp/{name}/`, and holds a lock on `tmp/{name}.lock` as long as it
//! lives. A process that opens the folder and gets such a lock knows that its owner has ended, and removes both.
//!
//! Files and directories for a group are also created here and then linked or renamed into place: the umask withholds
//! the permissions of the group until the second call, and before it another user could access them, or a crash could
//! happen.

use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::FolderAccess;
use super::files::read_only_error;
use super::locks::wait_for;
use super::permissions::open_regular;
use crate::host::{Host, HostExt};

pub(super) struct Temps {
    /// None in a folder that was opened read-only.
    own: Option<Own>,
    count: AtomicU64,
}

/// Directory of this process, and its lock.
struct Own {
    directory: PathBuf,
    access: FolderAccess,
    lock: PathBuf,
    _held: File,
}

/// Temporary file, removed when this is dropped, unless it was renamed.
pub(super) struct Temp {
    path: PathBuf,
    is_renamed: bool,
}

impl Temps {
    pub(super) fn open(own: &Path, access: FolderAccess, host: &dyn Host) -> io::Result<Self> {
        let all = own.join("tmp");
        access.create_own_dir(&all, host)?;
        remove_abandoned(&all)?;
        loop {
            let directory = all.join(format!("{:032x}", host.random_bits()));
            let lock = directory.with_extension("lock");
            let held = access.create(&lock)?;
            wait_for(&held, "a new temporary directory", host.instant(), || host.instant())?;
            // Between creation and locking, another process may have removed the file as abandoned.
            if fs::metadata(&lock)
                .is_ok_and(|there| held.metadata().is_ok_and(|ours| there.ino() == ours.ino()))
            {
                access.create_dir(&directory)?;
                let own = Some(Own { directory, access, lock, _held: held });
                return Ok(Self { own, count: AtomicU64::new(0) });
            }
        }
    }

    /// Creates an instance without a directory, which refuses every write.
    pub(super) fn none() -> Self {
        Self { own: None, count: AtomicU64::new(0) }
    }

    pub(super) fn create(&self, fill: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<Temp> {
        let (temp, mut opened) = self.open_new()?;
        fill(&mut opened)?;
        Ok(temp)
    }

    /// Creates a temporary file that is written incrementally.
    pub(super) fn open_new(&self) -> io::Result<(Temp, File)> {
        let path = self.new_path()?;
        let file = self.access()?.create_new(&path)?;
        Ok((Temp { path, is_renamed: false }, file))
    }

    /// Opens a file for appending, and creates it with its permissions if it is missing.
    pub(super) fn append(&self, path: &Path) -> io::Result<File> {
        let access = self.access()?;
        if access == FolderAccess::Private {
            return access.append(path);
        }
        let open = || access.open(File::options().append(true), path);
        match open() {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            done => return done,
        }
        let (temp, _) = self.open_new()?;
        match fs::hard_link(&temp.path, path) {
            Ok(()) => open(),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => open(),
            Err(error) if error.kind() == ErrorKind::NotFound => Err(error),
            // A file system without hard links.
            Err(_) => access.append(path),
        }
    }

    /// Creates a directory with its permissions, which must not exist yet.
    pub(super) fn create_dir(&self, path: &Path) -> io::Result<()> {
        let access = self.access()?;
        if access == FolderAccess::Private {
            return access.create_dir(path);
        }
        access.create_dir_at(&self.new_path()?, path)
    }

    fn access(&self) -> io::Result<FolderAccess> {
        self.own.as_ref().map(|own| own.access).ok_or_else(read_only_error)
    }

    /// Returns a path that was never used before, in this process or another.
    fn new_path(&self) -> io::Result<PathBuf> {
        let own = self.own.as_ref().ok_or_else(read_only_error)?;
        Ok(own.directory.join(self.count.fetch_add(1, Relaxed).to_string()))
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        // Best effort: remaining files are removed at the next start.
        let _ = fs::remove_dir_all(&self.directory);
        let _ = fs::remove_file(&self.lock);
    }
}

impl Temp {
    /// Returns a name that is unique in this process and others.
    pub(super) fn name(&self) -> String {
        let names = self.path.iter().rev().take(2).map(|name| name.to_string_lossy());
        names.collect::<Vec<_>>().join("@")
    }

    pub(super) fn rename(&mut self, to: &Path) -> io::Result<()> {
        fs::rename(&self.path, to)?;
        self.is_renamed = true;
        Ok(())
    }
}

impl Drop for Temp {
    fn drop(&mut self) {
        // Skipped after a rename: even a removal of a missing file locks the directory, which all writers share.
        if !self.is_renamed {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn remove_abandoned(all: &Path) -> io::Result<()> {
    for entry in fs::read_dir(all)? {
        let lock = entry?.path();
        if lock.extension().is_none_or(|extension| extension != "lock") {
            continue;
        }
        let Ok(file) = open_regular(File::options().append(true), &lock) else { continue };
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) => return Err(error),
            Ok(()) => {
                let _ = fs::remove_dir_all(lock.with_extension(""));
                let _ = fs::remove_file(&lock);
            }
        }
    }
    Ok(())
}
