//! Locks on keys that hold across processes and die with them.
//!
//! A key belongs to one of 4,096 stripes, each an empty file that is locked with `flock` while the key is
//! compared and replaced. Two keys of one stripe merely wait for each other; nobody ever holds two stripes, so
//! nobody waits for ever. The files are never removed: a lock on a removed file excludes nobody.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

/// Enough that 64 writers at once rarely share a stripe; few enough to be no burden to list.
const STRIPES: u32 = 4_096;

pub(super) struct Locks {
    directory: PathBuf,
}

/// A held lock; it ends when this is dropped, or with the process.
pub(super) struct Lock {
    _file: File,
}

impl Locks {
    pub(super) fn open(own: &Path) -> io::Result<Self> {
        let directory = own.join("locks");
        fs::create_dir_all(&directory)?;
        Ok(Self { directory })
    }

    pub(super) fn hold(&self, key: &str) -> io::Result<Lock> {
        let hash = blake3::hash(key.as_bytes());
        let number =
            u32::from_le_bytes(hash.as_bytes()[..4].try_into().expect("a hash has 32 bytes")) % STRIPES;
        let file =
            File::options().create(true).append(true).open(self.directory.join(format!("{number:03x}")))?;
        // Each call opens the file anew, so that the lock also excludes other threads of this process.
        file.lock()?;
        Ok(Lock { _file: file })
    }
}
