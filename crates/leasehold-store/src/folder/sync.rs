//! Directories: created on demand, and made durable with as few syncs as possible.
//!
//! A new name is durable once its directory is synced. Writers into the same directory share syncs: one that *starts*
//! after a name was created covers it, so that the next sync serves all writers that wait during one.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::permissions::check_directory;
use super::temps::Temps;

/// Maximum number of cached directories, after which the cache is cleared: a busy queue creates a few per minute and
/// shard.
const REMEMBERED_MAX: usize = 20_000;

pub(super) struct Directories {
    temps: Arc<Temps>,
    /// Directories that exist and are durable.
    known: Mutex<HashSet<PathBuf>>,
    rounds: Mutex<HashMap<PathBuf, Arc<Rounds>>>,
}

/// Syncs of one directory.
#[derive(Default)]
struct Rounds {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Default)]
struct State {
    is_running: bool,
    started: u64,
    succeeded: u64,
}

impl Directories {
    pub(super) fn new(temps: Arc<Temps>) -> Self {
        Self { temps, known: Mutex::default(), rounds: Mutex::default() }
    }

    /// Ensures that `directory` and its parents below `root` exist and are durable.
    pub(super) fn ensure(&self, root: &Path, directory: &Path, durable: bool) -> io::Result<()> {
        if directory == root || lock(&self.known).contains(directory) {
            return Ok(());
        }
        let parent = directory.parent().expect("a directory below the root has a parent");
        self.ensure(root, parent, durable)?;
        match self.temps.create_dir(directory) {
            Err(error) if error.kind() == ErrorKind::NotFound && parent == root => {
                return Err(io::Error::other(format!("folder {} was removed", root.display())));
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                self.forget(parent);
                return self.ensure(root, directory, durable);
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists => check_directory(directory)?,
            done => done?,
        }
        // Also if another process created it, which may not have synced it yet.
        if durable {
            self.sync(parent)?;
        }
        let mut known = lock(&self.known);
        if known.len() >= REMEMBERED_MAX {
            known.clear();
        }
        known.insert(directory.to_owned());
        Ok(())
    }

    /// Removes a missing directory from the cache, and its parents, which may be missing too.
    pub(super) fn forget(&self, directory: &Path) {
        let mut known = lock(&self.known);
        for gone in directory.ancestors() {
            known.remove(gone);
        }
    }

    /// Makes every current name in `directory` durable.
    pub(super) fn sync(&self, directory: &Path) -> io::Result<()> {
        let rounds = {
            let mut all = lock(&self.rounds);
            if all.len() >= REMEMBERED_MAX {
                all.retain(|_, rounds| Arc::strong_count(rounds) > 1);
            }
            all.entry(directory.to_owned()).or_default().clone()
        };
        rounds.sync(directory)
    }
}

impl Rounds {
    fn sync(&self, directory: &Path) -> io::Result<()> {
        let mut state = lock(&self.state);
        let needed = state.started + 1;
        while state.succeeded < needed {
            if state.is_running {
                state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            state.is_running = true;
            state.started += 1;
            let round = state.started;
            drop(state);
            let synced = sync_directory(directory);
            state = lock(&self.state);
            state.is_running = false;
            if synced.is_ok() {
                state.succeeded = round;
            }
            self.ended.notify_all();
            synced?;
        }
        Ok(())
    }
}

fn sync_directory(directory: &Path) -> io::Result<()> {
    match File::open(directory) {
        Ok(file) => file.sync_all(),
        // It was emptied and removed since: what was written there was removed on purpose.
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
