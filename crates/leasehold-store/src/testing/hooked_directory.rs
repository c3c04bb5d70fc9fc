//! Directory of a log whose system calls fail when a hook says so.

use std::io;
use std::path::Path;
use std::sync::Arc;

use super::fake_disk::{DiskHook, DiskStep, StepFate};
use crate::log::{HeldLock, LogDirectory, LogFile};

/// Directory that asks a [`DiskHook`] before every system call. It cannot kill a process: a hook that wants that ends the
/// process itself.
#[derive(Debug)]
pub struct HookedDirectory {
    inner: Arc<dyn LogDirectory>,
    hook: Arc<dyn DiskHook>,
}

impl HookedDirectory {
    /// Wraps a directory.
    pub fn new(inner: Arc<dyn LogDirectory>, hook: Arc<dyn DiskHook>) -> Self {
        Self { inner, hook }
    }
}

/// Asks the hook; `fail` carries out what is left of a step that fails.
fn step(hook: &dyn DiskHook, step: DiskStep, fail: impl FnOnce(usize) -> io::Result<()>) -> io::Result<()> {
    match hook.step(0, step) {
        StepFate::Done => Ok(()),
        StepFate::Fails(kind, bytes) => fail(bytes).and(Err(kind.into())),
        StepFate::Killed(_) => Err(io::Error::other("the process was killed")),
    }
}

impl HookedDirectory {
    fn step(&self, next: DiskStep) -> io::Result<()> {
        step(&*self.hook, next, |_| Ok(()))
    }
}

impl LogDirectory for HookedDirectory {
    fn path(&self) -> &Path {
        self.inner.path()
    }

    fn ensure(&self) -> io::Result<()> {
        self.step(DiskStep::Create)?;
        self.inner.ensure()
    }

    fn names(&self) -> io::Result<Vec<String>> {
        self.step(DiskStep::Read)?;
        self.inner.names()
    }

    fn read(&self, name: &str, offset: u64, bytes_max: u64) -> io::Result<Option<Vec<u8>>> {
        self.step(DiskStep::Read)?;
        self.inner.read(name, offset, bytes_max)
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn LogFile>> {
        self.step(DiskStep::Create)?;
        let inner = self.inner.create(name)?;
        Ok(Box::new(HookedFile { inner, hook: self.hook.clone() }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.step(DiskStep::Rename)?;
        self.inner.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.step(DiskStep::Remove)?;
        self.inner.remove(name)
    }

    fn sync(&self) -> io::Result<()> {
        self.step(DiskStep::SyncDirectory)?;
        self.inner.sync()
    }

    fn try_lock(&self, name: &str) -> io::Result<Option<HeldLock>> {
        self.step(DiskStep::Lock)?;
        self.inner.try_lock(name)
    }

    fn is_locked(&self, name: &str) -> io::Result<bool> {
        self.step(DiskStep::Lock)?;
        self.inner.is_locked(name)
    }
}

#[derive(Debug)]
struct HookedFile {
    inner: Box<dyn LogFile>,
    hook: Arc<dyn DiskHook>,
}

impl LogFile for HookedFile {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let inner = &mut self.inner;
        step(&*self.hook, DiskStep::Append, |count| inner.append(&bytes[..count.min(bytes.len())]))?;
        self.inner.append(bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        step(&*self.hook, DiskStep::Sync, |_| Ok(()))?;
        self.inner.sync()
    }
}
