//! System calls of one process on a disk in memory.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::state::{DiskState, NameChange, ProcessOfBoot, WriteState};
use super::{DiskHook, DiskStep, FakeDisk, StepFate};
use crate::host::lock;
use crate::log::{HeldLock, LogDirectory, LogFile};

#[derive(Debug, Clone)]
pub(super) struct DiskProcess {
    pub(super) disk: FakeDisk,
    pub(super) process: ProcessOfBoot,
    pub(super) hook: Arc<dyn DiskHook>,
    pub(super) path: PathBuf,
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
            Ok(file.map(|file| file.with_reserve().skip(offset).take(most).collect()))
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
