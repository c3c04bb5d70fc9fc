//! Directory of a log: the system calls, one per method, and nothing else.

use leasehold_core::keys::JOURNAL_LOG;
use rustix::fs::FallocateFlags;
use std::any::Any;
use std::fmt;
use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::folder::{Durability, FolderAccess, FolderOptions, is_missing, open_regular, read_only_error};
use crate::host::{Host, HostExt};
use crate::open::OpenMode;

/// Maximum space that is reserved at once: some thousand small commits. A process that only reads the log reads the zeros, too.
const RESERVED_BYTES_MAX: u64 = 1_024 * 1_024;

/// Directory of a log. Methods block.
///
/// A name that was created, renamed or removed is seen by every process at once, and is durable after [`Self::sync`]; the
/// bytes of a file after [`LogFile::sync`].
pub trait LogDirectory: fmt::Debug + Send + Sync + 'static {
    /// Path, for messages.
    fn path(&self) -> &Path;

    /// Creates the directory durably, if it is missing.
    fn ensure(&self) -> io::Result<()>;

    /// Lists the names; none if the directory is missing.
    fn names(&self) -> io::Result<Vec<String>>;

    /// Reads at most `bytes_max` bytes of a file from an offset on; none if the file is missing.
    fn read(&self, name: &str, offset: u64, bytes_max: u64) -> io::Result<Option<Vec<u8>>>;

    /// Creates an empty file in the place of any other of this name.
    fn create(&self, name: &str) -> io::Result<Box<dyn LogFile>>;

    /// Renames a file, in the place of any other of that name.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file, whether it exists or not.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Makes all names durable.
    fn sync(&self) -> io::Result<()>;

    /// Locks a file, which is created if it is missing, until the lock is dropped or its process ends; none if another
    /// process holds the lock.
    fn try_lock(&self, name: &str) -> io::Result<Option<HeldLock>>;

    /// True if a process holds the lock of a file.
    fn is_locked(&self, name: &str) -> io::Result<bool>;
}

/// File that is written from its begin to its end. A reader may see zeros behind the end.
pub trait LogFile: fmt::Debug + Send + Sync {
    /// Appends bytes. After an error any part of them may have been appended.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Makes the bytes durable. After an error no later sync can be trusted: the system may have dropped them.
    fn sync(&mut self) -> io::Result<()>;
}

/// Lock that is held until this is dropped.
pub struct HeldLock(#[expect(dead_code, reason = "held until it is dropped")] Box<dyn Any + Send + Sync>);

impl HeldLock {
    /// Wraps what releases the lock when it is dropped.
    pub fn new(held: impl Any + Send + Sync) -> Self {
        Self(Box::new(held))
    }
}

impl fmt::Debug for HeldLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HeldLock")
    }
}

/// Directory on a disk of this host, in the folder of a queue. Its files have the permissions of the folder.
#[derive(Debug)]
pub struct FolderLogDirectory {
    root: PathBuf,
    path: PathBuf,
    access: FolderAccess,
    is_durable: bool,
    is_read_only: bool,
    host: Arc<dyn Host>,
}

impl FolderLogDirectory {
    /// Names the directory in the folder of a queue. Nothing is read or written yet.
    #[must_use]
    pub fn new(root: &Path, options: FolderOptions, host: Arc<dyn Host>) -> Self {
        Self {
            root: root.to_owned(),
            path: root.join(JOURNAL_LOG.trim_end_matches('/')),
            access: options.access,
            is_durable: options.durability == Durability::Fsync,
            is_read_only: options.mode == OpenMode::Read,
            host,
        }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Opens a lock file. For a group it is linked into place with its permissions: before that another user could
    /// not open it.
    fn open_lock(&self, name: &str) -> io::Result<File> {
        let (path, mut options) = (self.at(name), File::options());
        if self.access == FolderAccess::Private {
            return self.access.open(options.create(true).append(true), &path);
        }
        loop {
            match self.access.open(options.append(true), &path) {
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                opened => return opened,
            }
            let new = self.at(&format!("lock-{:032x}.new", self.host.random_bits()));
            drop(self.access.open(File::options().create_new(true).write(true), &new)?);
            let linked = fs::hard_link(&new, &path);
            let _ = fs::remove_file(&new);
            match linked {
                // The other process was faster, or removed our new file as one that was left behind.
                Err(error) if matches!(error.kind(), ErrorKind::AlreadyExists | ErrorKind::NotFound) => {}
                Ok(()) => {}
                // A file system without hard links.
                Err(_) => return self.access.open(File::options().create(true).append(true), &path),
            }
        }
    }
}

impl LogDirectory for FolderLogDirectory {
    fn path(&self) -> &Path {
        &self.path
    }

    /// Parents are synced even if they exist: the process that created them may not have done it yet.
    fn ensure(&self) -> io::Result<()> {
        if self.is_read_only {
            return Err(read_only_error());
        }
        let mut parent = self.root.clone();
        for name in JOURNAL_LOG.trim_end_matches('/').split('/') {
            let directory = parent.join(name);
            self.access.create_own_dir(&directory, &*self.host)?;
            if self.is_durable {
                File::open(&parent)?.sync_all()?;
            }
            parent = directory;
        }
        Ok(())
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let entries = match fs::read_dir(&self.path) {
            Err(error) if is_missing(&error) => return Ok(Vec::new()),
            entries => entries?,
        };
        let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
        let mut names = names.collect::<io::Result<Vec<_>>>()?;
        names.sort_unstable();
        Ok(names)
    }

    fn read(&self, name: &str, offset: u64, bytes_max: u64) -> io::Result<Option<Vec<u8>>> {
        let mut file = match open_regular(File::options().read(true), &self.at(name)) {
            Err(error) if is_missing(&error) => return Ok(None),
            opened => opened?,
        };
        if offset > 0 {
            file.seek(SeekFrom::Start(offset))?;
        }
        let length = file.metadata()?.len().saturating_sub(offset).min(bytes_max);
        let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or(0));
        file.take(bytes_max).read_to_end(&mut bytes)?;
        Ok(Some(bytes))
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn LogFile>> {
        let file = self.access.create(&self.at(name))?;
        Ok(Box::new(FolderLogFile { file, is_durable: self.is_durable, size: 0, reserved: 0 }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.at(from), self.at(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        match fs::remove_file(self.at(name)) {
            Err(error) if is_missing(&error) => Ok(()),
            done => done,
        }
    }

    fn sync(&self) -> io::Result<()> {
        if self.is_durable { File::open(&self.path)?.sync_all() } else { Ok(()) }
    }

    fn try_lock(&self, name: &str) -> io::Result<Option<HeldLock>> {
        // Opened again by each call, so that the lock also excludes another writer of this process.
        let file = self.open_lock(name)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(HeldLock::new(file))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    /// Tries a shared lock, so that two processes that ask at once do not take each other for the holder.
    fn is_locked(&self, name: &str) -> io::Result<bool> {
        let file = match open_regular(File::options().read(true), &self.at(name)) {
            Err(error) if is_missing(&error) => return Ok(false),
            opened => opened?,
        };
        match file.try_lock_shared() {
            Ok(()) => Ok(false),
            Err(TryLockError::WouldBlock) => Ok(true),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
}

/// File with space reserved behind its end: a sync that does not change the size of the file takes two thirds of the time.
#[derive(Debug)]
struct FolderLogFile {
    file: File,
    is_durable: bool,
    size: u64,
    /// Size with the reserved space.
    reserved: u64,
}

impl FolderLogFile {
    /// Reserves as much space as the file has, so that small files stay small.
    fn reserve(&mut self, end: u64) {
        let reserved = end + self.size.min(RESERVED_BYTES_MAX);
        let (flags, length) = (FallocateFlags::empty(), reserved - self.size);
        // A disk that is almost full may have room for the bytes alone, and some file systems reserve nothing.
        if rustix::fs::fallocate(&self.file, flags, self.size, length).is_ok() {
            self.reserved = reserved;
        }
    }
}

impl LogFile for FolderLogFile {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let end = self.size + bytes.len() as u64;
        if self.is_durable && self.size > 0 && end > self.reserved {
            self.reserve(end);
        }
        self.file.write_all(bytes)?;
        self.size = end;
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        if self.is_durable { self.file.sync_data() } else { Ok(()) }
    }
}
