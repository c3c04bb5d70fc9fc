//! Directory and names of sockets.
//!
//! The path of a socket is limited to 108 bytes, so it is opened through a descriptor of its directory.

use leasehold_core::{Error, HexName, Kind, Result};
use leasehold_store::{Client, FolderAccess};
use rustix::fs::{Mode, OFlags};
use std::fs::{self, DirBuilder, Permissions};
use std::io::ErrorKind;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
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
    /// Directory of this user that has the directories of its queues; none in a folder.
    user_directory: Option<PathBuf>,
    is_shared: bool,
}

impl SocketDirectory {
    /// Directory of a queue: in its folder, or below the directory of this user's sockets.
    pub(crate) fn of(store: &Client, user_directory: &Path) -> Result<Self> {
        if let Some(folder) = store.local_folder() {
            let root = fs::canonicalize(&folder.root).map_err(|error| failed("open", &folder.root, error))?;
            return Ok(Self {
                path: root.join(IN_FOLDER),
                user_directory: None,
                is_shared: folder.options.access == FolderAccess::Group,
            });
        }
        let name = blake3::hash(store.describe().as_bytes()).to_hex();
        let path = user_directory.join(&name[..QUEUE_DIGITS]);
        Ok(Self { path, user_directory: Some(user_directory.to_owned()), is_shared: false })
    }

    /// Path of the socket of a broker.
    pub(crate) fn socket(&self, instance: &HexName) -> PathBuf {
        self.path.join(format!("{instance}.sock"))
    }

    /// Creates the directory if it is missing, and removes the sockets of brokers that have ended.
    pub(crate) fn prepare(&self) -> Result<()> {
        match &self.user_directory {
            Some(user_directory) => {
                create_own(user_directory)?;
                create_own(&self.path)?;
            }
            // Its folder says who may use it.
            None => create(&self.path, if self.is_shared { SHARED.0 } else { PRIVATE.0 })?,
        }
        let entries = fs::read_dir(&self.path).map_err(|error| failed("read", &self.path, error))?;
        for path in entries.flatten().map(|entry| entry.path()) {
            let is_socket = path.extension().is_some_and(|extension| extension == "sock");
            // A socket with a listener belongs to a broker that lives, although it may have lost its lease.
            if is_socket && is_refused(&path) {
                // Another user's socket cannot be removed, and does no harm.
                let _ = fs::remove_file(path);
            }
        }
        Ok(())
    }

    /// Gives a socket the permissions of the queue: for this user or, in a shared folder, for its group.
    pub(crate) fn open_to_users(&self, socket: &Path) -> Result<()> {
        let mode = if self.is_shared { SHARED.1 } else { PRIVATE.1 };
        fs::set_permissions(socket, Permissions::from_mode(mode))
            .map_err(|error| failed("change the permissions of", socket, error))
    }
}

/// Creates a directory of this user, and refuses one that another user could change.
fn create_own(path: &Path) -> Result<()> {
    create(path, PRIVATE.0)?;
    let found = fs::symlink_metadata(path).map_err(|error| failed("open", path, error))?;
    if !found.is_dir() || found.uid() != rustix::process::geteuid().as_raw() {
        let message = format!("`{}` is not a directory of this user; remove it", path.display());
        return Err(Error::new(Kind::Denied, message));
    }
    Ok(())
}

/// Creates a directory if it is missing.
fn create(path: &Path, mode: u32) -> Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(mode)
        .create(path)
        .map_err(|error| failed("create", path, error))?;
    // Whatever the umask is. Only its owner can, and has done so.
    let _ = fs::set_permissions(path, Permissions::from_mode(mode));
    Ok(())
}

/// True if nothing listens at a socket.
fn is_refused(path: &Path) -> bool {
    let connected = ShortPath::of(path).map(|short| UnixStream::connect(short.path()));
    matches!(connected, Ok(Err(error)) if error.kind() == ErrorKind::ConnectionRefused)
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
