//! Directories: made when needed, and made durable with as few syncs as possible.
//!
//! A new name is durable once its directory is synced. Writers into the same directory share that: a sync that
//! *starts* after a name was made covers it, so all who wait while one sync runs are served by the next.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::modes::check_directory;
use super::temps::Temps;

/// So many directories are remembered before all are forgotten: a busy queue makes a few per minute and shard.
const REMEMBERED_MAX: usize = 20_000;

pub(super) struct Directories {
    temps: Arc<Temps>,
    /// Directories that this process knows to be there and durable.
    known: Mutex<HashSet<PathBuf>>,
    rounds: Mutex<HashMap<PathBuf, Arc<Rounds>>>,
}

/// The syncs of one directory.
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

    /// Makes sure that `directory` and all between it and `root` are there, and durable.
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
        // Also when someone else has made it: they may not have come to sync it yet.
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

    /// Forgets a directory that turned out to be gone, and those above it, which may be gone too.
    pub(super) fn forget(&self, directory: &Path) {
        let mut known = lock(&self.known);
        for gone in directory.ancestors() {
            known.remove(gone);
        }
    }

    /// Makes every name that is in `directory` now durable.
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
        // Someone has emptied and removed it since: what was written there is gone on purpose.
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
