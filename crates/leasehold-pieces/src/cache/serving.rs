//! Under which name a cache is served: the duties towards the origin are shared among nodes that serve, so a fetch into
//! this cache, in whatever process, has to know which of them it is.
//!
//! The file `serving` holds the name, and is locked as long as the server lives: what a dead one has left means nothing.

use leasehold_core::{Error, Kind, Name, Result};
use rustix::fs::{FlockOperation, flock};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::PathBuf;

use super::Cache;
use crate::assemble::{failed, is_still_at};

/// A name is far shorter; whatever else lies there is not read.
const NAME_BYTES_MAX: u64 = 1_024;

/// Says that a cache is served, as long as it lives.
#[derive(Debug)]
pub struct ServingMark {
    path: PathBuf,
    /// Locked as long as it is open.
    _file: File,
}

impl Drop for ServingMark {
    fn drop(&mut self) {
        // One that stays means nothing once the lock is gone.
        let _ = fs::remove_file(&self.path);
    }
}

impl Cache {
    /// Notes that this cache is served under a name, unless another process does so. Blocks.
    pub fn serve_as(&self, name: &Name) -> Result<ServingMark> {
        // Nobody looks at the mark meanwhile, and so nobody is in the way of its lock.
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
                    // Its holder has just ended, and removed it.
                    Ok(()) => {}
                    Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
                    Err(error) => return Err(error.into()),
                }
            }
        };
        match marked().map_err(|error| failed("write", &path, error))? {
            Some(file) => Ok(ServingMark { path, _file: file }),
            None => Err(Error::new(
                Kind::Unavailable,
                format!(
                    "the cache {} is served by another process already; choose another cache",
                    self.root().display()
                ),
            )),
        }
    }

    /// The name under which this cache is served at this moment, by whatever process. Blocks.
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
        Name::checked("name of a node", &text).ok()
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
    fn what_a_dead_server_has_left_means_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::open(directory.path(), None).unwrap();
        fs::write(directory.path().join("serving"), "a-long-name").unwrap();
        assert_eq!(cache.served_as(), None);
        let name = Name::checked("name", "b").unwrap();
        let _mark = cache.serve_as(&name).unwrap();
        assert_eq!(cache.served_as(), Some(name));
    }

    #[test]
    fn a_cache_is_made_when_it_is_first_used() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::at(directory.path().join("not/there"), None).unwrap();
        assert_eq!(cache.served_as(), None);
        assert!(!cache.root().exists());
        drop(cache.serve_as(&Name::checked("name", "b").unwrap()).unwrap());
        assert!(cache.root().exists());
    }
}
