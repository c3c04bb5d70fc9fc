//! Directory and names of sockets.
//!
//! The path of a socket is limited to 108 bytes, so it is opened through a descriptor of its directory.

use leasehold_core::{Error, HexName, Kind, Result};
use leasehold_store::{Client, FolderAccess};
use rustix::fs::{Mode, OFlags};
use std::fs::{self, DirBuilder, Permissions};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Directory of the sockets, below the root of a folder.
const IN_FOLDER: &str = ".leasehold/broker";

/// Number of hex digits that name a queue in the directory of this user's sockets.
const QUEUE_DIGITS: usize = 16;

/// Permissions of a directory of sockets, and of a socket: for this user, and for the group of a shared folder.
const PRIVATE: (u32, u32) = (0o700, 0o600);
const SHARED: (u32, u32) = (0o2770, 0o660);

/// Directory of the sockets of one queue.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SocketDirectory {
    pub(crate) path: PathBuf,
    is_shared: bool,
}

impl SocketDirectory {
    /// Directory of a queue: in its folder, or below the directory of this user's sockets.
    pub(crate) fn of(store: &Client, user_directory: &Path) -> Result<Self> {
        if let Some(folder) = store.local_folder() {
            let root = fs::canonicalize(&folder.root).map_err(|error| failed("open", &folder.root, error))?;
            return Ok(Self {
                path: root.join(IN_FOLDER),
                is_shared: folder.options.access == FolderAccess::Group,
            });
        }
        let name = blake3::hash(store.describe().as_bytes()).to_hex();
        Ok(Self { path: user_directory.join(&name[..QUEUE_DIGITS]), is_shared: false })
    }

    /// Path of the socket of a broker.
    pub(crate) fn socket(&self, instance: &HexName) -> PathBuf {
        self.path.join(format!("{instance}.sock"))
    }

    /// Creates the directory if it is missing, and removes the sockets of earlier brokers: this process holds the lease.
    pub(crate) fn prepare(&self) -> Result<()> {
        let (mode, _) = self.modes();
        DirBuilder::new()
            .recursive(true)
            .mode(mode)
            .create(&self.path)
            .map_err(|error| failed("create", &self.path, error))?;
        let found = fs::metadata(&self.path).map_err(|error| failed("open", &self.path, error))?;
        if !self.is_shared && found.uid() != rustix::process::geteuid().as_raw() {
            let message = format!(
                "`{}` belongs to another user; remove it, or set another directory",
                self.path.display()
            );
            return Err(Error::new(Kind::Denied, message));
        }
        if found.uid() == rustix::process::geteuid().as_raw() {
            // Whatever the umask is.
            fs::set_permissions(&self.path, Permissions::from_mode(mode))
                .map_err(|error| failed("change the permissions of", &self.path, error))?;
        }
        let entries = fs::read_dir(&self.path).map_err(|error| failed("read", &self.path, error))?;
        for path in entries.flatten().map(|entry| entry.path()) {
            if path.extension().is_some_and(|extension| extension == "sock") {
                // Another user's socket cannot be removed, and does no harm.
                let _ = fs::remove_file(path);
            }
        }
        Ok(())
    }

    /// Lets those use a socket who may use the queue.
    pub(crate) fn open_to_users(&self, socket: &Path) -> Result<()> {
        let (_, mode) = self.modes();
        fs::set_permissions(socket, Permissions::from_mode(mode))
            .map_err(|error| failed("change the permissions of", socket, error))
    }

    fn modes(&self) -> (u32, u32) {
        if self.is_shared { SHARED } else { PRIVATE }
    }
}

/// Short path of a socket, valid while this exists.
pub(crate) struct ShortPath {
    directory: OwnedFd,
    name: PathBuf,
}

impl ShortPath {
    pub(crate) fn of(socket: &Path) -> Result<Self> {
        let (directory, name) = socket
            .parent()
            .zip(socket.file_name())
            .ok_or_else(|| Error::invalid(format!("`{}` is not the path of a socket", socket.display())))?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::open(directory, flags, Mode::empty());
        let opened = opened.map_err(|error| failed("open", directory, error.into()))?;
        Ok(Self { directory: opened, name: name.into() })
    }

    pub(crate) fn path(&self) -> PathBuf {
        Path::new("/proc/self/fd").join(self.directory.as_raw_fd().to_string()).join(&self.name)
    }
}

pub(crate) fn failed(what: &str, path: &Path, error: std::io::Error) -> Error {
    let kind = match error.kind() {
        std::io::ErrorKind::PermissionDenied => Kind::Denied,
        // Nothing listens at a socket that exists.
        std::io::ErrorKind::ConnectionRefused => Kind::Lost,
        _ => Kind::Unavailable,
    };
    Error::new(kind, format!("failed to {what} `{}`: {error}", path.display())).because(error)
}
