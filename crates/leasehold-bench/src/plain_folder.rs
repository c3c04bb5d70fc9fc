//! Baseline of folders: a straightforward implementation with the standard library, one thread per call in
//! flight. No condition is checked, nothing is locked, no version is computed.
//!
//! | operation | system calls |
//! | --- | --- |
//! | put, replace | write a temporary file, fsync, rename, fsync the directory |
//! | index | create, fsync the directory |
//! | get, unmodified | read |
//! | list | read the directory, sort, stat the thousand of the page |
//! | delete | unlink |
//!
//! Without fsync (durability `os`) the two syncs are omitted.

use anyhow::ensure;
use leasehold_core::limits::PAGE_KEYS_MAX;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::operation::{BenchRequest, RequestSlot, body};
use crate::round::BlockingCalls;

pub(crate) struct PlainFolder {
    root: PathBuf,
    fsync: bool,
}

impl PlainFolder {
    pub(crate) fn open(root: PathBuf, fsync: bool) -> io::Result<Self> {
        let directories = BenchRequest::ALL.map(BenchRequest::directory);
        for directory in directories.into_iter().chain(["tmp"]) {
            fs::create_dir_all(root.join(directory))?;
        }
        Ok(Self { root, fsync })
    }

    fn write(&self, slot: RequestSlot, key: &str) -> io::Result<()> {
        let temp = self.root.join(format!("tmp/{}", slot.worker));
        let mut file = File::create(&temp)?;
        file.write_all(&body())?;
        if self.fsync {
            file.sync_all()?;
        }
        let path = self.root.join(key);
        fs::rename(&temp, &path)?;
        self.sync_directory(&path)
    }

    fn create(&self, key: &str) -> io::Result<()> {
        let path = self.root.join(key);
        File::create(&path)?;
        self.sync_directory(&path)
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        match path.parent() {
            Some(directory) if self.fsync => File::open(directory)?.sync_all(),
            _ => Ok(()),
        }
    }

    fn list(&self, slot: RequestSlot) -> anyhow::Result<()> {
        let directory = self.root.join(slot.directory);
        let names = fs::read_dir(&directory)?.map(|entry| entry.map(|entry| entry.file_name()));
        let mut names = names.collect::<io::Result<Vec<_>>>()?;
        names.sort_unstable();
        let after = slot.page_after().unwrap_or_default();
        let after = after.rsplit('/').next().unwrap_or_default();
        let page = names.iter().filter(|name| name.as_os_str() > after).take(PAGE_KEYS_MAX);
        let stats = page.map(|name| fs::metadata(directory.join(name))).collect::<io::Result<Vec<_>>>()?;
        ensure!(stats.len() == PAGE_KEYS_MAX, "a page of {} keys", stats.len());
        Ok(())
    }
}

impl BlockingCalls for PlainFolder {
    fn call(&self, operation: BenchRequest, slot: RequestSlot) -> anyhow::Result<()> {
        match operation {
            BenchRequest::Put => self.write(slot, &slot.key())?,
            BenchRequest::Replace => self.write(slot, &slot.own_key())?,
            BenchRequest::Index => self.create(&slot.key())?,
            BenchRequest::Get | BenchRequest::Unmodified => {
                ensure!(!fs::read(self.root.join(slot.own_key()))?.is_empty(), "nothing was read");
            }
            BenchRequest::List => self.list(slot)?,
            BenchRequest::Delete => fs::remove_file(self.root.join(slot.key()))?,
        }
        Ok(())
    }
}
