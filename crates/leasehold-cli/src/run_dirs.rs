//! Private directories of task runs.
//!
//! Those of a process are in one directory, whose lock file the process keeps locked. The kernel releases the lock however
//! the process ends: the next process that creates its directory removes those of killed processes.

use leasehold_store::{Host, SystemHost};
use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;
use tempfile::{Builder, TempDir};

/// Prefix of the directory names.
const PREFIX: &str = "leasehold-runs-";
/// Name of the lock file.
const LOCK: &str = "lock";
/// Age from which on a directory without a lock file is abandoned. A younger one may still be under creation.
const UNLOCKED_MAX: Duration = Duration::from_hours(24);

static CURRENT: Mutex<Weak<Root>> = Mutex::new(Weak::new());

/// Directory of this process. A worker keeps it from start to end.
#[derive(Debug)]
pub(crate) struct Root {
    directory: TempDir,
    _lock: File,
}

/// Directory of one run. Removed on drop.
#[derive(Debug)]
pub struct RunDirectory {
    directory: TempDir,
    // Dropped after the directory in it.
    _root: Arc<Root>,
}

impl RunDirectory {
    /// Creates a directory, readable only by this user.
    pub fn new() -> io::Result<Self> {
        let root = current()?;
        Ok(Self { directory: private_builder().tempdir_in(root.directory.path())?, _root: root })
    }

    /// Path of the directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.directory.path()
    }
}

/// Directory of this process, created if necessary. Exists as long as a reference to it does.
pub(crate) fn current() -> io::Result<Arc<Root>> {
    let mut shared = CURRENT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(root) = shared.upgrade() {
        return Ok(root);
    }
    let root = Arc::new(Root::new(&std::env::temp_dir())?);
    *shared = Arc::downgrade(&root);
    Ok(root)
}

fn private_builder() -> Builder<'static, 'static> {
    let mut builder = Builder::new();
    builder.permissions(Permissions::from_mode(0o700));
    builder
}

impl Root {
    fn new(base: &Path) -> io::Result<Self> {
        remove_abandoned(base);
        let directory = private_builder().prefix(PREFIX).tempdir_in(base)?;
        // Locked before it gets its name, so that no other process finds it unlocked.
        let new = directory.path().join("lock.new");
        let lock = File::create_new(&new)?;
        lock.lock()?;
        fs::rename(&new, directory.path().join(LOCK))?;
        Ok(Self { directory, _lock: lock })
    }
}

/// Removes directories of killed processes of this user. Ignores failures: the next process tries again.
fn remove_abandoned(base: &Path) {
    for entry in fs::read_dir(base).into_iter().flatten().flatten() {
        let has_prefix = entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX));
        if has_prefix && is_abandoned(&entry.path()).unwrap_or(false) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

fn is_abandoned(directory: &Path) -> io::Result<bool> {
    // Does not follow links: any user can create one in the directory of temporary files.
    let found = fs::symlink_metadata(directory)?;
    if !found.is_dir() || found.uid() != rustix::process::geteuid().as_raw() {
        return Ok(false);
    }
    match File::open(directory.join(LOCK)) {
        Ok(lock) => Ok(lock.try_lock().is_ok()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let age_secs = SystemHost.instant().wall_ns / 1_000_000_000 - found.mtime();
            Ok(u64::try_from(age_secs).is_ok_and(|secs| secs >= UNLOCKED_MAX.as_secs()))
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn the_directory_of_a_run_is_private() {
        let run = RunDirectory::new().unwrap();
        assert_eq!((mode(run.path()), mode(run.path().parent().unwrap())), (0o700, 0o700));
        let path = run.path().to_owned();
        drop(run);
        assert!(!path.exists());
    }

    #[test]
    fn only_directories_of_killed_processes_are_removed() {
        let base = tempfile::tempdir().unwrap();
        let live = Root::new(base.path()).unwrap();
        // As SIGKILL leaves it: the lock is free, and the files are there.
        let dead = {
            let root = Root::new(base.path()).unwrap();
            root.directory.keep()
        };
        fs::create_dir(dead.join("run")).unwrap();
        let (fresh, other) = (base.path().join(format!("{PREFIX}fresh")), base.path().join("other"));
        fs::create_dir(&fresh).unwrap();
        fs::create_dir(&other).unwrap();
        let link = base.path().join(format!("{PREFIX}link"));
        std::os::unix::fs::symlink(&other, &link).unwrap();
        drop(Root::new(base.path()).unwrap());
        assert!(!dead.exists(), "its process is gone");
        for kept in [live.directory.path(), &fresh, &other, &link] {
            assert!(kept.exists(), "{}", kept.display());
        }
    }
}
