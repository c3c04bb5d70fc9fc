//! Directory in memory with the failures of a real one: killed processes, full disks, failed syncs, power loss.
//!
//! Every process sees at once what another has written. A power loss keeps what was synced, and of the rest what the test
//! chooses: each write and each change of a name on its own, in any combination. This is more than a real file system does.
//!
//! Each system call is one *step*. A [`DiskHook`] runs before it, and decides its [`StepFate`]; it may also block, so that a
//! test decides the order in which threads take their steps.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use crate::host::lock;
use crate::log::{HeldLock, LogDirectory, LogFile};

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

#[derive(Debug, Default)]
struct DiskState {
    files: Vec<FileState>,
    /// Names that every process sees.
    names: BTreeMap<String, usize>,
    /// Names that survive a power loss.
    durable: BTreeMap<String, usize>,
    /// Changes of names that were not synced, in order.
    changes: Vec<NameChange>,
    /// Locked files, with the process that holds each lock.
    locks: BTreeMap<usize, ProcessOfBoot>,
    killed: BTreeSet<ProcessOfBoot>,
    /// Number of power losses: a process of an earlier boot is dead.
    boot: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct ProcessOfBoot {
    boot: u32,
    process: u32,
}

#[derive(Debug, Clone, Default)]
struct FileState {
    /// Bytes that every process sees.
    bytes: Vec<u8>,
    writes: Vec<FileWrite>,
}

#[derive(Debug, Clone)]
struct FileWrite {
    offset: usize,
    bytes: Vec<u8>,
    state: WriteState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WriteState {
    Unsynced,
    Synced,
    /// A sync has failed: no later one writes these bytes.
    Dropped,
}

#[derive(Debug, Clone)]
struct NameChange {
    /// Name that disappears.
    gone: Option<String>,
    /// Name that appears, and its file.
    there: Option<(String, usize)>,
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

    /// Names and bytes of all files.
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
            let write = FileWrite { offset: 0, bytes: bytes.clone(), state: WriteState::Synced };
            state.files.push(FileState { bytes, writes: vec![write] });
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

impl DiskState {
    fn kill(&mut self, process: ProcessOfBoot) {
        self.killed.insert(process);
        self.locks.retain(|_, holder| *holder != process);
    }

    fn file(&mut self, name: &str) -> Option<&mut FileState> {
        let file = *self.names.get(name)?;
        self.files.get_mut(file)
    }

    fn create(&mut self, name: &str) -> usize {
        let file = self.files.len();
        self.files.push(FileState::default());
        self.change(NameChange { gone: None, there: Some((name.to_owned(), file)) });
        file
    }

    fn change(&mut self, change: NameChange) {
        change.apply(&mut self.names);
        self.changes.push(change);
    }
}

impl NameChange {
    fn apply(&self, names: &mut BTreeMap<String, usize>) {
        if let Some(gone) = &self.gone {
            names.remove(gone);
        }
        if let Some((name, file)) = self.there.clone() {
            names.insert(name, file);
        }
    }
}

impl FileState {
    fn append(&mut self, bytes: &[u8]) {
        let write =
            FileWrite { offset: self.bytes.len(), bytes: bytes.to_vec(), state: WriteState::Unsynced };
        self.writes.push(write);
        self.bytes.extend_from_slice(bytes);
    }

    fn sync(&mut self, to: WriteState) {
        for write in self.writes.iter_mut().filter(|write| write.state == WriteState::Unsynced) {
            write.state = to;
        }
    }

    fn lose_power(&mut self, survives: &mut impl FnMut() -> Survival) {
        let mut bytes = Vec::new();
        for write in &self.writes {
            let survival = if write.state == WriteState::Synced { Survival::Kept } else { survives() };
            let half = write.bytes.len() / 2;
            let (from, to) = match survival {
                Survival::Lost => continue,
                Survival::Begin => (0, half),
                Survival::End => (half, write.bytes.len()),
                Survival::Kept => (0, write.bytes.len()),
            };
            let end = write.offset + to;
            bytes.resize(bytes.len().max(end), 0);
            bytes[write.offset + from..end].copy_from_slice(&write.bytes[from..to]);
        }
        *self = Self {
            writes: vec![FileWrite { offset: 0, bytes: bytes.clone(), state: WriteState::Synced }],
            bytes,
        };
    }
}

#[derive(Debug, Clone)]
struct DiskProcess {
    disk: FakeDisk,
    process: ProcessOfBoot,
    hook: Arc<dyn DiskHook>,
    path: PathBuf,
}

fn killed() -> io::Error {
    io::Error::other("the process was killed")
}

impl DiskProcess {
    /// Takes a step; `fail` carries out what is left of one that fails.
    fn step<T>(
        &self,
        step: DiskStep,
        fail: impl FnOnce(&mut DiskState, usize),
        run: impl FnOnce(&mut DiskState) -> io::Result<T>,
    ) -> io::Result<T> {
        // Not under the mutex: it may block.
        let fate = self.hook.step(self.process.process, step);
        let mut state = lock(&self.disk.state);
        if state.boot != self.process.boot || state.killed.contains(&self.process) {
            return Err(killed());
        }
        match fate {
            StepFate::Done => run(&mut state),
            StepFate::Fails(kind, bytes) => {
                fail(&mut state, bytes);
                Err(kind.into())
            }
            StepFate::Killed(bytes) => {
                if step == DiskStep::Append {
                    fail(&mut state, bytes);
                }
                state.kill(self.process);
                Err(killed())
            }
        }
    }

    fn simple<T>(&self, step: DiskStep, run: impl FnOnce(&mut DiskState) -> io::Result<T>) -> io::Result<T> {
        self.step(step, |_, _| (), run)
    }
}

impl LogDirectory for DiskProcess {
    fn path(&self) -> &Path {
        &self.path
    }

    fn ensure(&self) -> io::Result<()> {
        Ok(())
    }

    fn names(&self) -> io::Result<Vec<String>> {
        self.simple(DiskStep::Read, |state| Ok(state.names.keys().cloned().collect()))
    }

    fn read(&self, name: &str, offset: u64, bytes_max: u64) -> io::Result<Option<Vec<u8>>> {
        self.simple(DiskStep::Read, |state| {
            let (offset, most) = (
                usize::try_from(offset).unwrap_or(usize::MAX),
                usize::try_from(bytes_max).unwrap_or(usize::MAX),
            );
            let file = state.file(name);
            Ok(file.map(|file| file.bytes.iter().skip(offset).take(most).copied().collect()))
        })
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn LogFile>> {
        let file = self.simple(DiskStep::Create, |state| Ok(state.create(name)))?;
        Ok(Box::new(DiskFile { process: self.clone(), file }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.simple(DiskStep::Rename, |state| {
            let file = *state.names.get(from).ok_or(ErrorKind::NotFound)?;
            state.change(NameChange { gone: Some(from.to_owned()), there: Some((to.to_owned(), file)) });
            Ok(())
        })
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.simple(DiskStep::Remove, |state| {
            state.change(NameChange { gone: Some(name.to_owned()), there: None });
            Ok(())
        })
    }

    fn sync(&self) -> io::Result<()> {
        self.simple(DiskStep::SyncDirectory, |state| {
            for change in std::mem::take(&mut state.changes) {
                change.apply(&mut state.durable);
            }
            Ok(())
        })
    }

    fn try_lock(&self, name: &str) -> io::Result<Option<HeldLock>> {
        self.simple(DiskStep::Lock, |state| {
            let file = state.names.get(name).copied().unwrap_or_else(|| state.create(name));
            if state.locks.contains_key(&file) {
                return Ok(None);
            }
            state.locks.insert(file, self.process);
            let held = DiskLock { disk: self.disk.clone(), file, process: self.process };
            Ok(Some(HeldLock::new(held)))
        })
    }

    fn is_locked(&self, name: &str) -> io::Result<bool> {
        self.simple(DiskStep::Lock, |state| {
            let file = state.names.get(name);
            Ok(file.is_some_and(|file| state.locks.contains_key(file)))
        })
    }
}

#[derive(Debug)]
struct DiskFile {
    process: DiskProcess,
    file: usize,
}

impl LogFile for DiskFile {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let partly = |state: &mut DiskState, count: usize| {
            state.files[self.file].append(&bytes[..count.min(bytes.len())]);
        };
        self.process.step(DiskStep::Append, partly, |state| {
            state.files[self.file].append(bytes);
            Ok(())
        })
    }

    fn sync(&mut self) -> io::Result<()> {
        let dropped = |state: &mut DiskState, _| state.files[self.file].sync(WriteState::Dropped);
        self.process.step(DiskStep::Sync, dropped, |state| {
            state.files[self.file].sync(WriteState::Synced);
            Ok(())
        })
    }
}

struct DiskLock {
    disk: FakeDisk,
    file: usize,
    process: ProcessOfBoot,
}

impl Drop for DiskLock {
    fn drop(&mut self) {
        let mut state = lock(&self.disk.state);
        if state.locks.get(&self.file) == Some(&self.process) {
            state.locks.remove(&self.file);
        }
    }
}
