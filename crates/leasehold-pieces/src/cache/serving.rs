//! Peer id under which a cache is served. The blocks to fetch from the origin are divided among the nodes that serve, so
//! every process that fetches into this cache needs that id.
//!
//! The file `serving` holds the peer id and is locked as long as the server runs. An unlocked file was left by a killed server
//! and is ignored.

use leasehold_core::{Error, Kind, Name, Result};
use rustix::fs::{FlockOperation, flock};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::PathBuf;

use super::Cache;
use crate::assemble::{io_error, is_still_at};

/// Most bytes to read from the file; a peer id is far shorter.
const NAME_BYTES_MAX: u64 = 1_024;

/// Lock that marks a cache as served, as long as this value lives.
#[derive(Debug)]
pub struct ServingLock {
    path: PathBuf,
    /// Holds the lock as long as it is open.
    _file: File,
}

impl Drop for ServingLock {
    fn drop(&mut self) {
        // A file that stays is ignored once its lock is gone.
        let _ = fs::remove_file(&self.path);
    }
}

impl Cache {
    /// Marks this cache as served under a peer id; fails if another process serves it. Blocks.
    pub fn serve_as(&self, name: &Name) -> Result<ServingLock> {
        // Keeps readers out, whose shared lock on `serving` would be in our way.
        let _lock = self.lock()?;
        let path = self.root().join("serving");
        let marked = || -> io::Result<Option<File>> {
            loop {
                let mut file =
                    File::options().read(true).write(true).create(true).truncate(false).open(&path)?;
                match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                    Ok(()) if is_still_at(&file, &path)? => {
                        file.set_len(0)?;
                        file.write_all(name.as_str().as_bytes())?;
                        return Ok(Some(file));
                    }
                    // The server that held it has just ended and removed it.
                    Ok(()) => {}
                    Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
                    Err(error) => return Err(error.into()),
                }
            }
        };
        match marked().map_err(|error| io_error("write", &path, error))? {
            Some(file) => Ok(ServingLock { path, _file: file }),
            None => Err(Error::new(
                Kind::Unavailable,
                format!(
                    "cache {} is already served by another process; choose another cache",
                    self.root().display()
                ),
            )),
        }
    }

    /// Peer id under which any process serves this cache at the moment. Blocks.
    #[must_use]
    pub fn served_as(&self) -> Option<Name> {
        let path = self.root().join("serving");
        if !path.exists() {
            return None;
        }
        let _lock = self.lock().ok()?;
        let file = File::open(&path).ok()?;
        if flock(&file, FlockOperation::NonBlockingLockShared).is_ok() {
            return None;
        }
        let mut text = String::new();
        file.take(NAME_BYTES_MAX).read_to_string(&mut text).ok()?;
        Name::checked("peer id", &text).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_is_served_by_one_process_at_a_time() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::open(directory.path(), None).unwrap();
        let name = |text| Name::checked("name", text).unwrap();
        assert_eq!(cache.served_as(), None);
        let mark = cache.serve_as(&name("a-long-name")).unwrap();
        assert_eq!(cache.served_as(), Some(name("a-long-name")));
        assert_eq!(cache.serve_as(&name("b")).unwrap_err().kind(), Kind::Unavailable);
        drop(mark);
        assert_eq!(cache.served_as(), None);
        let _mark = cache.serve_as(&name("b")).unwrap();
        assert_eq!(cache.served_as(), Some(name("b")));
    }

    #[test]
    fn the_file_of_a_dead_server_is_ignored() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::open(directory.path(), None).unwrap();
        fs::write(directory.path().join("serving"), "a-long-name").unwrap();
        assert_eq!(cache.served_as(), None);
        let name = Name::checked("name", "b").unwrap();
        let _mark = cache.serve_as(&name).unwrap();
        assert_eq!(cache.served_as(), Some(name));
    }

    #[test]
    fn a_cache_is_created_when_it_is_first_used() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::at(directory.path().join("not/there"), None).unwrap();
        assert_eq!(cache.served_as(), None);
        assert!(!cache.root().exists());
        drop(cache.serve_as(&Name::checked("name", "b").unwrap()).unwrap());
        assert!(cache.root().exists());
    }
}
