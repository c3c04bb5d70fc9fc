//! Permissions of the files of a folder store, and the only functions that open them.
//!
//! Files in a folder were not necessarily created by a store. A FIFO would block a reader until its other end is
//! opened, and a symbolic link leads out of the folder: neither is opened, both count as corrupt.

use leasehold_core::ids::parse_name;
use leasehold_core::{Error, Result, keys};
use rustix::fs::{CWD, OFlags, RenameFlags, renameat_with};
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::str::FromStr;

use crate::host::{Host, HostExt};

/// Flags that have no effect on a regular file.
const NO_FOLLOW: i32 = OFlags::NOFOLLOW.union(OFlags::NONBLOCK).bits().cast_signed();

/// Permissions of the files and directories that are created in a folder. Those that exist keep theirs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum FolderAccess {
    /// Only for this user: files 0600, directories 0700.
    #[default]
    Private,
    /// For the group of the folder: files 0660, directories 2770, whatever the umask is.
    Group,
}

impl FromStr for FolderAccess {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        parse_name("folder access", text, &[("private", Self::Private), ("group", Self::Group)])
    }
}

impl FolderAccess {
    /// Opens a regular file for appending, and creates it if it is missing. It is visible before it has the permissions
    /// for a group: see [`super::temps::Temps::append`].
    pub(super) fn append(self, path: &Path) -> io::Result<File> {
        self.open(File::options().create(true).append(true), path)
    }

    /// Creates a file that must not exist yet.
    pub(super) fn create_new(self, path: &Path) -> io::Result<File> {
        self.open(File::options().create_new(true).write(true), path)
    }

    /// Creates a file, or empties an existing one.
    pub(crate) fn create(self, path: &Path) -> io::Result<File> {
        self.open(File::options().create(true).write(true).truncate(true), path)
    }

    /// Creates a directory that must not exist yet. It is visible before it has the permissions for a group: see
    /// [`Self::create_dir_at`].
    pub(super) fn create_dir(self, path: &Path) -> io::Result<()> {
        match self {
            Self::Private => fs::DirBuilder::new().mode(0o700).create(path),
            Self::Group => {
                fs::DirBuilder::new().mode(0o770).create(path)?;
                // Not in the call above: the umask would apply, and the setgid bit is ignored there.
                match fs::set_permissions(path, Permissions::from_mode(0o2770)) {
                    // Removed since, because it was empty: the next process creates it again.
                    Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
                    done => done,
                }
            }
        }
    }

    /// Creates a directory that must not exist yet at `new`, and moves it to `path` when it has its permissions: no other
    /// user can open it before, and a crash leaves none without them.
    pub(super) fn create_dir_at(self, new: &Path, path: &Path) -> io::Result<()> {
        self.create_dir(new)?;
        // Without the flag it could replace an empty directory in which another writer is about to create a file.
        let renamed = renameat_with(CWD, new, CWD, path, RenameFlags::NOREPLACE);
        if renamed.is_err() {
            let _ = fs::remove_dir(new);
        }
        match renamed {
            // A file system without the flag.
            Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => self.create_dir(path),
            done => Ok(done?),
        }
    }

    /// Creates a directory if it is missing. Its parents get default permissions.
    pub(super) fn create_dir_all(self, path: &Path, host: &dyn Host) -> io::Result<()> {
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        let created = match self {
            Self::Private => self.create_dir(path),
            Self::Group if path.is_dir() => return Ok(()),
            Self::Group => {
                let name = format!("{}-new-{:032x}", keys::RESERVED, host.random_bits());
                self.create_dir_at(&path.with_file_name(name), path)
            }
        };
        match created {
            Err(error) if error.kind() == ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
            done => done,
        }
    }

    /// Creates a directory of the store itself. One of this user without its permissions gets them now, such as after a
    /// command without the setting for a group.
    pub(crate) fn create_own_dir(self, path: &Path, host: &dyn Host) -> io::Result<()> {
        self.create_dir_all(path, host)?;
        let found = fs::metadata(path)?;
        let is_ours = found.uid() == rustix::process::geteuid().as_raw();
        if self == Self::Group && is_ours && found.permissions().mode() & 0o7777 != 0o2770 {
            fs::set_permissions(path, Permissions::from_mode(0o2770))?;
        }
        Ok(())
    }

    /// Opens a file; one of this user gets the permissions of the setting.
    pub(crate) fn open(self, options: &mut OpenOptions, path: &Path) -> io::Result<File> {
        match self {
            Self::Private => open_regular(options.mode(0o600), path),
            Self::Group => {
                let file = open_regular(options.mode(0o660), path)?;
                if file.metadata()?.permissions().mode() & 0o777 != 0o660 {
                    match file.set_permissions(Permissions::from_mode(0o660)) {
                        // It belongs to another user, who alone can change its permissions.
                        Err(error) if error.kind() == ErrorKind::PermissionDenied => {}
                        done => done?,
                    }
                }
                Ok(file)
            }
        }
    }
}

/// Opens a regular file of the folder. Never follows a symbolic link or blocks on a FIFO.
pub(crate) fn open_regular(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    match options.custom_flags(NO_FOLLOW).open(path) {
        Ok(file) => {
            let kind = file.metadata()?.file_type();
            if kind.is_file() {
                Ok(file)
            } else if kind.is_dir() {
                Err(ErrorKind::IsADirectory.into())
            } else {
                Err(irregular(path, "is not a regular file"))
            }
        }
        // A link, or a FIFO without a reader.
        Err(_) if is_irregular(path) => Err(irregular(path, "is not a regular file")),
        Err(error) => Err(error),
    }
}

/// Rejects a path that is neither a directory nor a file. A file there is an object whose key is a prefix of another,
/// which is reported elsewhere.
pub(super) fn check_directory(path: &Path) -> io::Result<()> {
    if is_irregular(path) { Err(irregular(path, "is not a directory")) } else { Ok(()) }
}

fn is_irregular(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir())
}

fn irregular(path: &Path, what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("{} {what}; remove it", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::SystemHost;
    use std::collections::BTreeSet;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    #[test]
    fn a_directory_for_a_group_is_never_visible_without_its_permissions() {
        const SEEN: u32 = 2_000;
        let outside = tempfile::tempdir().unwrap();
        let (path, seen) = (outside.path().join("shared"), AtomicU32::new(0));
        let modes = std::thread::scope(|scope| {
            let watching = scope.spawn(|| {
                let mut modes = BTreeSet::new();
                while seen.load(Relaxed) < SEEN {
                    if let Ok(found) = fs::metadata(&path) {
                        modes.insert(found.permissions().mode() & 0o7777);
                        seen.fetch_add(1, Relaxed);
                    }
                }
                modes
            });
            while seen.load(Relaxed) < SEEN {
                FolderAccess::Group.create_own_dir(&path, &SystemHost).unwrap();
                fs::remove_dir(&path).unwrap();
            }
            watching.join().unwrap()
        });
        assert_eq!(modes, BTreeSet::from([0o2770]));
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
    }
}
