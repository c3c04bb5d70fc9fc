//! Store in a plain folder: the embedded default. Several processes of one host may share it, or several
//! hosts through a mount that supports file locks.
//!
//! Every object is one regular file whose path is its key and whose bytes are the object's, so that you can read, copy
//! and back up a queue with the usual tools. The store's own files are in `.leasehold/`: locks, temporary files, the
//! clock.
//!
//! # Writes
//!
//! ```text
//!   lock the key's stripe ─ read ─ does the condition hold? ─ no ─▶ refused
//!                                          │ yes
//!        write a temporary file ─ fsync ─ rename ─ unlock ─ fsync the directory ─▶ written
//! ```
//!
//! * The version of an object is the hash of its bytes. It needs no extra storage, survives copying, and behaves like
//!   the etags of buckets.
//! * The lock is the kernel's (`flock`) and ends with its process: no crash leaves a stuck lock.
//! * The rename is atomic: after a crash, and for any reader, there is the old object or the new one.
//! * A write that was renamed but could not be synced counts as unanswered, and a read of it syncs first: an object
//!   that is read back as written is durable.
//! * The directory is synced after the lock is released, and writers into one directory share that sync. Other
//!   processes may read the object a moment before it is durable, but their writes become durable only after it; the
//!   writer itself answers only when it is durable.
//! * An empty object without a condition (an index entry) is created in place: it has no bytes to sync.
//! * An upload in parts is one temporary file: each part is written at its offset and synced, and the end is a rename as
//!   above. Its version cannot be the hash of bytes that are never read at once: it is the file's inode, time and
//!   length, and is only for ranged reads.
//! * A removal is not synced: at worst a power cut brings back a key that is never written again, and every process
//!   that removes objects handles that.

mod clock;
mod files;
mod locks;
mod permissions;
mod sync;
mod temps;
mod uploads;
mod walk;

use bytes::Bytes;
use futures::FutureExt;
use leasehold_core::ids::parse_name;
use leasehold_core::{Error, Kind, Result};
use std::fmt;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use crate::clock::Clock;
use crate::host::Host;
use crate::open::OpenMode;
use crate::store::{
    Answer, Cause, Failure, Get, List, LocalFolder, Page, PartId, PutAnswer, Ranged, Store, UploadId,
    Version, When,
};
use files::Files;
pub(crate) use files::{is_missing, read_only_error};
pub use permissions::FolderAccess;
pub(crate) use permissions::open_regular;

/// Point at which a write counts as done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Durability {
    /// After it is on the disk.
    #[default]
    Fsync,
    /// After the operating system has it: survives the crash of any process, but not a power cut.
    Os,
}

impl FromStr for Durability {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        parse_name("durability", text, &[("fsync", Self::Fsync), ("os", Self::Os)])
    }
}

/// Source of a folder's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FolderTime {
    /// This host: its boot clock and one offset per boot, stored in the folder.
    Host,
    /// Server behind a mount, by the modification times that it gives to files.
    Mount,
}

/// Options for opening a folder.
#[derive(Debug, Clone, Copy, Default)]
pub struct FolderOptions {
    /// Point at which a write counts as done.
    pub durability: Durability,
    /// Source of the time; by default the kind of file system decides.
    pub time: Option<FolderTime>,
    /// Permissions of what is created in the folder.
    pub access: FolderAccess,
    /// Purpose for which it is opened.
    pub mode: OpenMode,
}

/// Objects as files in a folder.
pub struct FolderStore {
    files: Arc<Files>,
    options: FolderOptions,
}

impl FolderStore {
    /// Opens a folder, and creates it in [`OpenMode::Create`]. Writers remove temporary files of crashed processes. For
    /// reading, read permission is enough, and a missing folder reads as empty.
    pub fn open(root: impl AsRef<Path>, options: FolderOptions, host: &Arc<dyn Host>) -> Result<Self> {
        Ok(Self { files: Arc::new(Files::open(root.as_ref(), options, host)?), options })
    }

    /// Runs file system calls on a thread that may block.
    fn blocking<T: Send + 'static, E: Into<FolderError>>(
        &self,
        work: impl FnOnce(&Files) -> std::result::Result<T, E> + Send + 'static,
    ) -> Answer<'_, T> {
        let files = self.files.clone();
        #[expect(clippy::disallowed_methods, reason = "file systems have no asynchronous calls")]
        let running = tokio::task::spawn_blocking(move || {
            work(&files).map_err(|error| error.into().into_failure(&files.root))
        });
        running
            .map(|joined| {
                joined.unwrap_or_else(|panicked| {
                    Err(Failure::permanent(Kind::Internal, "thread of a folder request panicked")
                        .because(panicked))
                })
            })
            .boxed()
    }
}

impl fmt::Debug for FolderStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FolderStore").field("root", &self.files.root).finish_non_exhaustive()
    }
}

impl Store for FolderStore {
    fn get<'a>(&'a self, key: &'a str, unless: Option<&'a Version>) -> Answer<'a, Get> {
        let (key, unless) = (key.to_owned(), unless.cloned());
        self.blocking(move |files| files.get(&key, unless.as_ref()))
    }

    fn put<'a>(&'a self, key: &'a str, body: Bytes, when: &'a When) -> Answer<'a, PutAnswer> {
        let (key, when) = (key.to_owned(), when.clone());
        self.blocking(move |files| files.put(&key, &body, &when))
    }

    fn delete<'a>(&'a self, key: &'a str) -> Answer<'a, ()> {
        let key = key.to_owned();
        self.blocking(move |files| files.delete(&key))
    }

    fn list<'a>(&'a self, list: &'a List) -> Answer<'a, Page> {
        let list = list.clone();
        self.blocking(move |files| files.list(&list))
    }

    fn get_range<'a>(
        &'a self,
        key: &'a str,
        range: Range<u64>,
        unchanged: Option<&'a Version>,
    ) -> Answer<'a, Ranged> {
        let (key, unchanged) = (key.to_owned(), unchanged.cloned());
        self.blocking(move |files| files.get_range(&key, &range, unchanged.as_ref()))
    }

    fn upload_begin<'a>(&'a self, key: &'a str, part_bytes: u64) -> Answer<'a, UploadId> {
        let key = key.to_owned();
        self.blocking(move |files| files.upload_begin(&key, part_bytes))
    }

    fn upload_part<'a>(
        &'a self,
        key: &'a str,
        upload: &'a UploadId,
        number: usize,
        body: Bytes,
    ) -> Answer<'a, PartId> {
        let (key, upload) = (key.to_owned(), upload.clone());
        self.blocking(move |files| files.upload_part(&key, &upload, number, &body))
    }

    fn upload_end<'a>(
        &'a self,
        key: &'a str,
        upload: &'a UploadId,
        parts: Vec<PartId>,
    ) -> Answer<'a, Version> {
        let (key, upload) = (key.to_owned(), upload.clone());
        self.blocking(move |files| files.upload_end(&key, &upload, &parts))
    }

    fn upload_abort<'a>(&'a self, key: &'a str, upload: &'a UploadId) -> Answer<'a, ()> {
        let (key, upload) = (key.to_owned(), upload.clone());
        self.blocking(move |files| {
            files.upload_abort(&key, &upload);
            io::Result::Ok(())
        })
    }

    fn clock(&self) -> &Clock {
        self.files.clock()
    }

    fn describe(&self) -> String {
        format!("folder {}", self.files.root.display())
    }

    fn local_folder(&self) -> Option<LocalFolder> {
        let is_local = self.files.time() == FolderTime::Host;
        is_local.then(|| LocalFolder { root: self.files.root.clone(), options: self.options })
    }
}

/// Cause of a failed request.
enum FolderError {
    /// A system call failed with unknown effect.
    System(io::Error),
    /// A system call failed before the request had a visible effect.
    NotDone(io::Error),
    /// The store itself refuses the request.
    Own(Failure),
}

impl From<io::Error> for FolderError {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

impl From<Failure> for FolderError {
    fn from(failure: Failure) -> Self {
        Self::Own(failure)
    }
}

impl FolderError {
    fn into_failure(self, root: &Path) -> Failure {
        match self {
            Self::System(error) => failure(root, error),
            Self::NotDone(error) => {
                let mut failure = failure(root, error);
                if failure.cause == Cause::Unanswered {
                    failure.cause = Cause::Unreached;
                }
                failure
            }
            Self::Own(failure) => failure,
        }
    }
}

/// Classifies a failed system call. It may still have been carried out in part: only a read-back can tell. A full disk
/// is definite: after the rename only calls whose errors have no kind of their own are left.
pub(crate) fn failure(root: &Path, error: io::Error) -> Failure {
    use io::ErrorKind::{
        FileTooLarge, InvalidData, InvalidInput, NotADirectory, PermissionDenied, QuotaExceeded,
        ReadOnlyFilesystem, StorageFull, WouldBlock,
    };
    let place = root.display();
    let (cause, message) = match error.kind() {
        PermissionDenied | ReadOnlyFilesystem => (Cause::Final(Kind::Denied), cannot_write(root)),
        WouldBlock => (Cause::Unreached, error.to_string()),
        StorageFull | QuotaExceeded => {
            (Cause::Final(Kind::Unavailable), format!("disk of folder {place} is full: {error}"))
        }
        FileTooLarge => (Cause::Final(Kind::Unavailable), format!("cannot write to folder {place}: {error}")),
        InvalidData => (Cause::Final(Kind::Corrupt), error.to_string()),
        NotADirectory | InvalidInput => (Cause::Final(Kind::Invalid), error.to_string()),
        _ => (Cause::Unanswered, format!("i/o error in folder {place}: {error}")),
    };
    let kind = if let Cause::Final(kind) = cause { kind } else { Kind::Unavailable };
    Failure { cause, error: Error::new(kind, message).because(error) }
}

fn cannot_write(root: &Path) -> String {
    format!("folder {} is not writable by this user; change its permissions or use another", root.display())
}

#[cfg(test)]
mod tests {
    use super::*;
    use io::ErrorKind::{FileTooLarge, Other, QuotaExceeded, StorageFull};

    #[test]
    fn a_full_disk_is_definite_and_what_was_not_done_can_be_repeated() {
        let root = Path::new("/some/folder");
        for kind in [StorageFull, QuotaExceeded, FileTooLarge] {
            for error in [FolderError::System(kind.into()), FolderError::NotDone(kind.into())] {
                let failure = error.into_failure(root);
                assert_eq!(failure.cause, Cause::Final(Kind::Unavailable), "{kind:?}");
                assert_eq!(failure.error.kind(), Kind::Unavailable);
                let message = failure.error.to_string();
                let reason = io::Error::from(kind).to_string();
                assert!(message.contains("/some/folder") && message.contains(&reason), "{message}");
            }
        }
        assert_eq!(FolderError::System(Other.into()).into_failure(root).cause, Cause::Unanswered);
        assert_eq!(FolderError::NotDone(Other.into()).into_failure(root).cause, Cause::Unreached);
    }
}
