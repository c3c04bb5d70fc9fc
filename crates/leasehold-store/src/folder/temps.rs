//! Temporary files, and how those of crashed writers are told from those of living ones.
//!
//! Each process writes into a directory of its own, `tmp/{name}/`, and holds a lock on `tmp/{name}.lock` for
//! as long as it lives. Whoever opens the folder and gets such a lock knows that its owner is dead, and removes
//! both.

use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::FolderAccess;
use super::files::opened_for_reading;
use super::locks::wait_for;
use super::modes::open_regular;
use crate::host::{Host, HostExt};

pub(super) struct Temps {
    /// None in a folder that was opened for reading.
    own: Option<Own>,
    count: AtomicU64,
}

/// The directory of this process, and its lock.
struct Own {
    directory: PathBuf,
    access: FolderAccess,
    lock: PathBuf,
    _held: File,
}

/// A temporary file; gone when this is dropped, unless it was renamed.
pub(super) struct Temp {
    path: PathBuf,
    is_renamed: bool,
}

impl Temps {
    pub(super) fn open(own: &Path, access: FolderAccess, host: &dyn Host) -> io::Result<Self> {
        let all = own.join("tmp");
        access.create_dir_all(&all)?;
        remove_abandoned(&all)?;
        loop {
            let directory = all.join(format!("{:032x}", host.random_bits()));
            let lock = directory.with_extension("lock");
            let held = access.create(&lock)?;
            wait_for(&held, "a new temporary directory", host.instant(), || host.instant())?;
            // Between creating and locking, someone may have taken the file for abandoned and removed it.
            if fs::metadata(&lock)
                .is_ok_and(|there| held.metadata().is_ok_and(|ours| there.ino() == ours.ino()))
            {
                access.create_dir(&directory)?;
                let own = Some(Own { directory, access, lock, _held: held });
                return Ok(Self { own, count: AtomicU64::new(0) });
            }
        }
    }

    /// No place for temporary files: every write is refused.
    pub(super) fn none() -> Self {
        Self { own: None, count: AtomicU64::new(0) }
    }

    pub(super) fn create(&self, fill: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<Temp> {
        let (temp, mut opened) = self.open_new()?;
        fill(&mut opened)?;
        Ok(temp)
    }

    /// A file to be filled little by little.
    pub(super) fn open_new(&self) -> io::Result<(Temp, File)> {
        let own = self.own.as_ref().ok_or_else(opened_for_reading)?;
        let path = own.directory.join(self.count.fetch_add(1, Relaxed).to_string());
        let file = own.access.create_new(&path)?;
        Ok((Temp { path, is_renamed: false }, file))
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        // Best effort: whatever stays is removed at the next start.
        let _ = fs::remove_dir_all(&self.directory);
        let _ = fs::remove_file(&self.lock);
    }
}

impl Temp {
    /// A name that no other file has, in this process or another.
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
        // Not in vain: even a removal that finds nothing locks the directory that all writers share.
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
