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

use crate::operation::{BenchRequest, Spot, body};
use crate::side::BlockingCalls;

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

    fn write(&self, spot: Spot, key: &str) -> io::Result<()> {
        let temp = self.root.join(format!("tmp/{}", spot.worker));
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

    fn list(&self, spot: Spot) -> anyhow::Result<()> {
        let directory = self.root.join(spot.directory);
        let names = fs::read_dir(&directory)?.map(|entry| entry.map(|entry| entry.file_name()));
        let mut names = names.collect::<io::Result<Vec<_>>>()?;
        names.sort_unstable();
        let after = spot.page_after().unwrap_or_default();
        let after = after.rsplit('/').next().unwrap_or_default();
        let page = names.iter().filter(|name| name.as_os_str() > after).take(PAGE_KEYS_MAX);
        let stats = page.map(|name| fs::metadata(directory.join(name))).collect::<io::Result<Vec<_>>>()?;
        ensure!(stats.len() == PAGE_KEYS_MAX, "a page of {} keys", stats.len());
        Ok(())
    }
}

impl BlockingCalls for PlainFolder {
    fn call(&self, operation: BenchRequest, spot: Spot) -> anyhow::Result<()> {
        match operation {
            BenchRequest::Put => self.write(spot, &spot.key())?,
            BenchRequest::Replace => self.write(spot, &spot.own_key())?,
            BenchRequest::Index => self.create(&spot.key())?,
            BenchRequest::Get | BenchRequest::Unmodified => {
                ensure!(!fs::read(self.root.join(spot.own_key()))?.is_empty(), "nothing was read");
            }
            BenchRequest::List => self.list(spot)?,
            BenchRequest::Delete => fs::remove_file(self.root.join(spot.key()))?,
        }
        Ok(())
    }
}
