//! Files and names of a disk in memory.

use std::collections::{BTreeMap, BTreeSet};

use super::Survival;

#[derive(Debug, Default)]
pub(super) struct DiskState {
    pub(super) files: Vec<FileState>,
    /// Names that every process sees.
    pub(super) names: BTreeMap<String, usize>,
    /// Names that survive a power loss.
    pub(super) durable: BTreeMap<String, usize>,
    /// Changes of names that were not synced, in order.
    pub(super) changes: Vec<NameChange>,
    /// Locked files, with the process that holds each lock.
    pub(super) locks: BTreeMap<usize, ProcessOfBoot>,
    pub(super) killed: BTreeSet<ProcessOfBoot>,
    /// Number of power losses: processes of an earlier boot have ended.
    pub(super) boot: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ProcessOfBoot {
    pub(super) boot: u32,
    pub(super) process: u32,
}

#[derive(Debug, Clone, Default)]
pub(super) struct FileState {
    /// Bytes that every process sees.
    pub(super) bytes: Vec<u8>,
    /// Length with the zeros that a file system reserves for later appends; without them if it is smaller.
    reserved: usize,
    pub(super) writes: Vec<FileWrite>,
}

#[derive(Debug, Clone)]
pub(super) struct FileWrite {
    pub(super) offset: usize,
    pub(super) bytes: Vec<u8>,
    pub(super) state: WriteState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WriteState {
    Unsynced,
    Synced,
    /// A sync has failed: no later one writes these bytes.
    Dropped,
}

#[derive(Debug, Clone)]
pub(super) struct NameChange {
    /// Name that disappears.
    pub(super) gone: Option<String>,
    /// Name that appears, and its file.
    pub(super) there: Option<(String, usize)>,
}

impl DiskState {
    pub(super) fn kill(&mut self, process: ProcessOfBoot) {
        self.killed.insert(process);
        self.locks.retain(|_, holder| *holder != process);
    }

    pub(super) fn file(&mut self, name: &str) -> Option<&mut FileState> {
        let file = *self.names.get(name)?;
        self.files.get_mut(file)
    }

    pub(super) fn create(&mut self, name: &str) -> usize {
        let file = self.files.len();
        self.files.push(FileState::default());
        self.change(NameChange { gone: None, there: Some((name.to_owned(), file)) });
        file
    }

    pub(super) fn change(&mut self, change: NameChange) {
        change.apply(&mut self.names);
        self.changes.push(change);
    }
}

impl NameChange {
    pub(super) fn apply(&self, names: &mut BTreeMap<String, usize>) {
        if let Some(gone) = &self.gone {
            names.remove(gone);
        }
        if let Some((name, file)) = self.there.clone() {
            names.insert(name, file);
        }
    }
}

impl FileState {
    pub(super) fn new(bytes: Vec<u8>) -> Self {
        let write = FileWrite { offset: 0, bytes: bytes.clone(), state: WriteState::Synced };
        Self { bytes, reserved: 0, writes: vec![write] }
    }

    /// Bytes with the zeros that are reserved.
    pub(super) fn with_reserve(&self) -> impl Iterator<Item = u8> {
        let zeros = self.reserved.saturating_sub(self.bytes.len());
        self.bytes.iter().copied().chain(std::iter::repeat_n(0, zeros))
    }

    pub(super) fn append(&mut self, bytes: &[u8]) {
        let write =
            FileWrite { offset: self.bytes.len(), bytes: bytes.to_vec(), state: WriteState::Unsynced };
        self.writes.push(write);
        let before = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        if self.bytes.len() > self.reserved {
            self.reserved = self.bytes.len() + before;
        }
    }

    pub(super) fn sync(&mut self, to: WriteState) {
        for write in self.writes.iter_mut().filter(|write| write.state == WriteState::Unsynced) {
            write.state = to;
        }
    }

    pub(super) fn lose_power(&mut self, survives: &mut impl FnMut() -> Survival) {
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
        *self = Self::new(bytes);
    }
}
