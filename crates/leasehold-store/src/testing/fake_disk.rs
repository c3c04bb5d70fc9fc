//! Directory in memory with the failures of a real one: killed processes, full disks, failed syncs, power loss.
//!
//! Every process sees at once what another has written. A power loss keeps what was synced, and of the rest what the test
//! chooses: each write and each change of a name on its own, in any combination. This is more than a real file system does.
//!
//! Each system call is one *step*. A [`DiskHook`] runs before it, and decides its [`StepFate`]; it may also block, so that a
//! test decides the order in which threads take their steps.

mod process;
mod state;

use std::collections::BTreeMap;
use std::fmt;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use crate::host::lock;
use crate::log::LogDirectory;
use process::DiskProcess;
use state::{DiskState, FileState, ProcessOfBoot, WriteState};

/// System call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DiskStep {
    /// List, or read of a file.
    Read,
    /// Creation of a file.
    Create,
    /// Append to a file.
    Append,
    /// Sync of a file.
    Sync,
    /// Rename of a file.
    Rename,
    /// Removal of a file.
    Remove,
    /// Sync of the directory.
    SyncDirectory,
    /// Attempt to lock a file.
    Lock,
}

/// Fate of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepFate {
    /// It is carried out.
    Done,
    /// It fails. A failed append has appended this number of bytes, and bytes whose sync failed are never synced.
    Fails(ErrorKind, usize),
    /// Its process is killed before it, or within an append after this number of bytes.
    Killed(usize),
}

/// Decides the fate of each step.
pub trait DiskHook: fmt::Debug + Send + Sync + 'static {
    /// Called before a step of a process.
    fn step(&self, process: u32, step: DiskStep) -> StepFate;
}

/// Hook that lets every step be done.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoDiskHook;

impl DiskHook for NoDiskHook {
    fn step(&self, _: u32, _: DiskStep) -> StepFate {
        StepFate::Done
    }
}

/// Disk with one directory. Clones are the same disk.
#[derive(Debug, Clone, Default)]
pub struct FakeDisk {
    state: Arc<Mutex<DiskState>>,
}

/// Part of an unsynced write, or of a change of a name, that survives a power loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Survival {
    /// Nothing.
    Lost,
    /// The first half of the bytes; of a name nothing.
    Begin,
    /// The second half of the bytes, behind zeros; of a name nothing.
    End,
    /// Everything.
    Kept,
}

impl Survival {
    /// All parts.
    pub const ALL: [Survival; 4] = [Survival::Lost, Survival::Begin, Survival::End, Survival::Kept];
}

impl FakeDisk {
    /// Creates an empty disk.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Directory as one process uses it.
    pub fn process(&self, process: u32, hook: Arc<dyn DiskHook>) -> Arc<dyn LogDirectory> {
        let process = ProcessOfBoot { boot: lock(&self.state).boot, process };
        Arc::new(DiskProcess { disk: self.clone(), process, hook, path: PathBuf::from("/disk") })
    }

    /// Directory as a process uses it that meets no failure.
    #[must_use]
    pub fn sound(&self, process: u32) -> Arc<dyn LogDirectory> {
        self.process(process, Arc::new(NoDiskHook))
    }

    /// Kills a process: its locks are released, and all its later steps fail without an effect.
    pub fn kill(&self, process: u32) {
        let mut state = lock(&self.state);
        let boot = state.boot;
        state.kill(ProcessOfBoot { boot, process });
    }

    /// Number of writes and changes of names whose survival a power loss decides.
    #[must_use]
    pub fn unsynced(&self) -> usize {
        let state = lock(&self.state);
        let writes = state.files.iter().flat_map(|file| &file.writes);
        writes.filter(|write| write.state != WriteState::Synced).count() + state.changes.len()
    }

    /// Loses power: kills every process, and keeps of each unsynced write or change what `survives` says.
    pub fn lose_power(&self, mut survives: impl FnMut() -> Survival) {
        let mut state = lock(&self.state);
        for file in &mut state.files {
            file.lose_power(&mut survives);
        }
        let changes = std::mem::take(&mut state.changes);
        for change in changes {
            if survives() == Survival::Kept {
                change.apply(&mut state.durable);
            }
        }
        state.names = state.durable.clone();
        state.locks.clear();
        state.boot += 1;
    }

    /// Names and bytes of all files, without the zeros that are reserved behind them.
    #[must_use]
    pub fn files(&self) -> BTreeMap<String, Vec<u8>> {
        let state = lock(&self.state);
        state.names.iter().map(|(name, file)| (name.clone(), state.files[*file].bytes.clone())).collect()
    }

    /// Creates a disk with these files, all synced.
    #[must_use]
    pub fn with_files(files: BTreeMap<String, Vec<u8>>) -> Self {
        let mut state = DiskState::default();
        for (name, bytes) in files {
            state.names.insert(name, state.files.len());
            state.files.push(FileState::new(bytes));
        }
        state.durable = state.names.clone();
        Self { state: Arc::new(Mutex::new(state)) }
    }

    /// Copies the disk as it is, with what is not synced. No process holds a lock on the copy.
    #[must_use]
    pub fn copied(&self) -> Self {
        let state = lock(&self.state);
        let copy = DiskState {
            files: state.files.clone(),
            names: state.names.clone(),
            durable: state.durable.clone(),
            changes: state.changes.clone(),
            ..DiskState::default()
        };
        Self { state: Arc::new(Mutex::new(copy)) }
    }
}
